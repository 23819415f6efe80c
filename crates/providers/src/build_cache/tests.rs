//! Tests of the build cache: damage, tenants, bounds.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use belljar_engine::outcome::Artifact;
use tempfile::TempDir;

use super::*;

fn cache(max_bytes: u64) -> (TempDir, BuildCache) {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o700)).unwrap();
    let cache = BuildCache::new(folder.path().join("builds"), max_bytes);
    (folder, cache)
}

fn output(content: &[u8]) -> BuildOutput {
    let program = Artifact { name: "program".to_owned(), content: content.to_vec() };
    BuildOutput { files: vec![program], stdout: Vec::new(), stderr: b"a warning".to_vec() }
}

fn key(number: u64) -> ContentDigest {
    ContentDigest::from_bytes(&number.to_le_bytes())
}

fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let tenants = fs::read_dir(folder.join("builds")).unwrap().flatten();
    tenants
        .flat_map(|tenant| fs::read_dir(tenant.path()).unwrap().flatten())
        .map(|file| file.path())
        .collect()
}

#[test]
fn entries_belong_to_one_tenant() {
    let (_folder, cache) = cache(1 << 20);
    cache.store("a", &key(1), &output(b"one"));
    assert_eq!(cache.find("a", &key(1)), Some(output(b"one")));
    assert!(cache.contains("a", &key(1)));
    for (tenant, number) in [("b", 1), ("a", 2), ("../a", 1), ("", 1)] {
        assert_eq!(cache.find(tenant, &key(number)), None);
        assert!(!cache.contains(tenant, &key(number)));
    }
    cache.store("a", &key(1), &output(b"two"));
    assert_eq!(cache.find("a", &key(1)), Some(output(b"two")));
}

#[test]
fn entries_are_removed_with_their_tenant() {
    let (_folder, cache) = cache(1 << 20);
    cache.remove_tenant("a").unwrap();
    for tenant in ["a", "b"] {
        cache.store(tenant, &key(1), &output(b"one"));
    }
    cache.remove_tenant("a").unwrap();
    assert_eq!(cache.find("a", &key(1)), None);
    assert_eq!(cache.find("b", &key(1)), Some(output(b"one")));
    cache.store("a", &key(1), &output(b"two"));
    assert_eq!(cache.find("a", &key(1)), Some(output(b"two")));
}

#[test]
fn damaged_entries_are_removed() {
    let damages: [fn(&Path); 4] = [
        |path| fs::write(path, b"").unwrap(),
        |path| {
            let mut bytes = fs::read(path).unwrap();
            *bytes.last_mut().unwrap() ^= 1;
            fs::write(path, bytes).unwrap();
        },
        |path| {
            let bytes = fs::read(path).unwrap();
            fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
        },
        |path| {
            fs::remove_file(path).unwrap();
            std::os::unix::fs::symlink("/bin/sh", path).unwrap();
        },
    ];
    for damage in damages {
        let (folder, cache) = cache(1 << 20);
        cache.store("a", &key(1), &output(b"one"));
        damage(&files(folder.path())[0]);
        assert_eq!(cache.find("a", &key(1)), None);
        cache.store("a", &key(1), &output(b"again"));
        assert_eq!(cache.find("a", &key(1)), Some(output(b"again")));
    }
    let (folder, cache) = cache(1 << 20);
    cache.store("a", &key(1), &output(b"one"));
    let path = files(folder.path()).remove(0);
    fs::rename(&path, path.with_file_name(key(2).to_string())).unwrap();
    assert_eq!(cache.find("a", &key(2)), None, "an entry of another key");
}

#[test]
fn the_largest_tenant_loses_its_least_recently_used_entries() {
    let (folder, cache) = cache(64 << 10);
    cache.store("small", &key(0), &output(&[0; 2_000]));
    for number in 0..100 {
        cache.store("large", &key(number), &output(&[1; 2_000]));
        let age = |path: &Path| {
            let file = fs::File::options().write(true).open(path).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 + number)).unwrap();
        };
        files(folder.path())
            .iter()
            .filter(|path| path.ends_with(key(number).to_string()))
            .for_each(|path| age(path));
    }
    let total: u64 = files(folder.path()).iter().map(|path| fs::metadata(path).unwrap().len()).sum();
    assert!((48 << 10..=64 << 10).contains(&total), "{total}");
    assert!(cache.find("small", &key(0)).is_some());
    assert!(cache.find("large", &key(99)).is_some() && cache.find("large", &key(0)).is_none());
}

#[test]
fn leftovers_are_swept_and_large_outputs_not_stored() {
    let (folder, cache) = cache(64 << 10);
    cache.store("a", &key(1), &output(b"one"));
    let leftover = files(folder.path())[0].with_file_name(".tmp-1");
    fs::write(&leftover, b"half").unwrap();
    let old = fs::File::options().write(true).open(&leftover).unwrap();
    old.set_modified(SystemTime::now() - Duration::from_secs(7_200)).unwrap();
    cache.store("a", &key(2), &output(&[0; 60 << 10]));
    assert_eq!(cache.find("a", &key(2)), None);
    (3..9).for_each(|number| cache.store("a", &key(number), &output(&[0; 1 << 10])));
    assert!(!leftover.exists());
}

#[test]
fn a_folder_that_cannot_be_used_is_no_error() {
    let cache = BuildCache::new("/proc/builds".into(), 1 << 20);
    cache.store("a", &key(1), &output(b"one"));
    assert_eq!(cache.find("a", &key(1)), None);
}
