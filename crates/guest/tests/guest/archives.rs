//! Archives: round trips, and hostile ones.

use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::time::Duration;

use belljar_guest::GuestError;
use belljar_guest::protocol::{ArchiveFormat, ArchiveLimits, FailureKind, UnpackSummary};
use libtest_mimic::Trial;
use tar::{EntryType, Header};
use tokio::io::AsyncReadExt;
use zip::write::SimpleFileOptions;

use crate::fixture::{GuestFixture, trial, until};

const FORMATS: [ArchiveFormat; 3] = [ArchiveFormat::Tar, ArchiveFormat::TarGz, ArchiveFormat::Zip];

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("folders_round_trip", folders_round_trip),
        trial("archives_are_compatible_with_other_tools", archives_are_compatible_with_other_tools),
        trial("hostile_tars_are_refused", hostile_tars_are_refused),
        trial("hostile_zips_are_refused", hostile_zips_are_refused),
        trial("bombs_are_refused", bombs_are_refused),
        trial("links_are_not_followed", links_are_not_followed),
        trial("garbage_is_no_archive", garbage_is_no_archive),
        trial("a_worker_ends_with_its_caller", a_worker_ends_with_its_caller),
    ]
}

async fn upload(
    world: &GuestFixture,
    format: ArchiveFormat,
    bytes: &[u8],
) -> Result<UnpackSummary, GuestError> {
    upload_within(world, format, ArchiveLimits::default(), bytes).await
}

async fn upload_within(
    world: &GuestFixture,
    format: ArchiveFormat,
    limits: ArchiveLimits,
    bytes: &[u8],
) -> Result<UnpackSummary, GuestError> {
    let uploaded = world.guest.upload_archive("in", format, limits, bytes).await;
    uploaded.map_err(|error| GuestError::from_io(&error).unwrap().clone())
}

async fn download(world: &GuestFixture, path: &str, format: ArchiveFormat) -> Vec<u8> {
    let mut reader = world.guest.download_archive(path, format).await.unwrap();
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).await.unwrap();
    bytes
}

/// Name, kind, link target and content.
type TarEntry<'a> = (&'a str, EntryType, &'a str, &'a [u8]);

/// Creates a tar archive with verbatim names.
fn tar_of(entries: &[TarEntry<'_>]) -> Vec<u8> {
    let mut archive = Vec::new();
    for (name, kind, link, content) in entries {
        let mut header = Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_mode(0o644);
        header.set_size(content.len() as u64);
        let fields = header.as_gnu_mut().unwrap();
        fields.name[..name.len()].copy_from_slice(name.as_bytes());
        fields.linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_cksum();
        archive.extend_from_slice(header.as_bytes());
        archive.extend_from_slice(content);
        archive.resize(archive.len().next_multiple_of(512), 0);
    }
    archive.resize(archive.len() + 1024, 0);
    archive
}

fn zip_of(entries: &[(&str, u32, &[u8])]) -> Vec<u8> {
    let mut archive = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, mode, content) in entries {
        let options = SimpleFileOptions::default()
            .compression_method(zip::CompressionMethod::Deflated)
            .unix_permissions(*mode);
        if mode & 0o170_000 == 0o120_000 {
            archive.add_symlink(*name, String::from_utf8_lossy(content), options).unwrap();
        } else {
            archive.start_file(*name, options).unwrap();
            archive.write_all(content).unwrap();
        }
    }
    archive.finish().unwrap().into_inner()
}

async fn folders_round_trip(world: GuestFixture) {
    let make = "mkdir -p src/a/b src/empty; echo hello > src/a/b/f; head -c 3000000 /dev/urandom > src/big; \
                : > src/nothing; chmod 755 src/nothing; ln -s a/b/f src/link; ln -s /etc src/out; \
                mkfifo src/pipe; printf x > \"src/with space\"; n=$(head -c 200 /dev/zero | tr '\\0' n); \
                mkdir src/$n; echo long > src/$n/$n";
    assert_eq!(world.shell(make).await.stderr, b"");
    let describe = "find . -not -type p -printf '%y %m %p %l\\n' | sort; \
                    find . -type f -exec sha256sum {} + | sort";
    let source = world.shell(&format!("cd src; rm -f out; {describe}")).await.text().to_owned();
    world.shell("ln -s /etc src/out").await;
    for format in FORMATS {
        let bytes = download(&world, "src", format).await;
        // A link that leads out is packed as it is, and refused when unpacking.
        assert_eq!(upload(&world, format, &bytes).await.unwrap_err().kind(), Some(FailureKind::BadArchive));
        world.shell("rm -rf in").await;
    }
    world.shell("rm src/out").await;
    for format in FORMATS {
        let bytes = download(&world, "src", format).await;
        let unpacked = upload(&world, format, &bytes).await.unwrap();
        assert_eq!(unpacked.bytes, 3_000_000 + 6 + 1 + 5, "{format:?}");
        let copy = world.shell(&format!("cd in; {describe}")).await;
        assert_eq!(copy.text(), source, "{format:?}");
        // Unpacks again over the existing files.
        upload(&world, format, &bytes).await.unwrap();
        world.shell("rm -rf in").await;
    }
    let missing = world.guest.download_archive("gone", ArchiveFormat::Tar).await;
    assert_eq!(missing.unwrap_err().kind(), Some(FailureKind::NotFound));
}

async fn archives_are_compatible_with_other_tools(world: GuestFixture) {
    let made =
        world.shell("mkdir src; echo a > src/a; ln src/a src/b; ln -s a src/c; tar cf t.tar -C src .").await;
    assert_eq!(made.stderr, b"");
    let tar = world.read("t.tar").await.unwrap();
    upload(&world, ArchiveFormat::Tar, &tar).await.unwrap();
    assert_eq!(world.shell("cat in/a in/b in/c; stat -c %h in/a").await.text(), "a\na\na\n2");
    world.write("out.tar", &download(&world, "src", ArchiveFormat::TarGz).await).await;
    assert_eq!(world.shell("tar tzf out.tar | sort | tr '\\n' ' '").await.text(), "a b c");
    let bytes = download(&world, "src", ArchiveFormat::Zip).await;
    let mut archive = zip::ZipArchive::new(std::io::Cursor::new(bytes)).unwrap();
    let mut text = String::new();
    archive.by_name("a").unwrap().read_to_string(&mut text).unwrap();
    assert_eq!((archive.len(), text.as_str()), (3, "a\n"));
}

async fn hostile_tars_are_refused(world: GuestFixture) {
    use EntryType::{Block, Char, Fifo, Link, Regular, Symlink};
    let attempts: &[&[TarEntry<'_>]] = &[
        &[("../evil", Regular, "", b"x")],
        &[("/tmp/belljar-evil", Regular, "", b"x")],
        &[("a/../../evil", Regular, "", b"x")],
        &[("out", Symlink, "../..", b"")],
        &[("out", Symlink, "/etc", b"")],
        &[("d/up", Symlink, "..", b""), ("d/evil", Symlink, "up/../..", b"")],
        &[("in", Symlink, ".", b""), ("in/evil", Regular, "", b"x")],
        &[("dir", Symlink, "sub", b""), ("dir/evil", Regular, "", b"x")],
        &[("hard", Link, "../evil", b"")],
        &[("hard", Link, "/etc/passwd", b"")],
        &[("null", Char, "", b"")],
        &[("disk", Block, "", b"")],
        &[("pipe", Fifo, "", b"")],
    ];
    world.write("evil", b"mine").await;
    for attempt in attempts {
        let refused = upload(&world, ArchiveFormat::Tar, &tar_of(attempt)).await.unwrap_err();
        assert_eq!(refused.kind(), Some(FailureKind::BadArchive), "{attempt:?}: {refused}");
        world.shell("rm -rf in").await;
    }
    assert_eq!(world.shell("ls -A").await.text(), "evil");
    assert_eq!(world.read("evil").await.unwrap(), b"mine");
    assert!(!std::path::Path::new("/tmp/belljar-evil").exists());
    let set_id = tar_of(&[("f", Regular, "", b"x")]);
    upload(&world, ArchiveFormat::Tar, &set_id).await.unwrap();
    let mode = std::fs::metadata(world.folder.path().join("in/f")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o644);
}

async fn hostile_zips_are_refused(world: GuestFixture) {
    let attempts: &[&[(&str, u32, &[u8])]] = &[
        &[("../evil", 0o644, b"x")],
        &[("/tmp/belljar-evil", 0o644, b"x")],
        &[("a/../../evil", 0o644, b"x")],
        &[("out", 0o120_777, b"../..")],
        &[("out", 0o120_777, b"/etc/passwd")],
        &[("in", 0o120_777, b"."), ("in/evil", 0o644, b"x")],
    ];
    for attempt in attempts {
        let refused = upload(&world, ArchiveFormat::Zip, &zip_of(attempt)).await.unwrap_err();
        assert_eq!(refused.kind(), Some(FailureKind::BadArchive), "{attempt:?}: {refused}");
        world.shell("rm -rf in").await;
    }
    assert_eq!(world.shell("ls -A").await.text(), "");
}

async fn bombs_are_refused(world: GuestFixture) {
    let too_large = async |format, limits, bytes: &[u8]| {
        let refused = upload_within(&world, format, limits, bytes).await.unwrap_err();
        assert_eq!(refused.kind(), Some(FailureKind::TooLarge), "{refused}");
        world.shell("rm -rf in").await;
    };
    let usual = ArchiveLimits::default();
    let zeros = vec![0; 50 << 20];
    let zip = zip_of(&[("zeros", 0o644, &zeros)]);
    too_large(ArchiveFormat::Zip, usual, &zip).await;
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    packed.write_all(&tar_of(&[("zeros", EntryType::Regular, "", &zeros)])).unwrap();
    too_large(ArchiveFormat::TarGz, usual, &packed.finish().unwrap()).await;
    let tar = tar_of(&[("zeros", EntryType::Regular, "", &zeros)]);
    too_large(ArchiveFormat::Tar, ArchiveLimits { bytes: 1 << 20, ..usual }, &tar).await;
    let names: Vec<String> = (0..200).map(|number| number.to_string()).collect();
    let many: Vec<_> =
        names.iter().map(|name| (name.as_str(), EntryType::Regular, "", b"".as_slice())).collect();
    too_large(ArchiveFormat::Tar, ArchiveLimits { entries: 100, ..usual }, &tar_of(&many)).await;
    // A long name that claims a length of a gigabyte.
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::GNULongName);
    header.set_size(1 << 30);
    header.set_cksum();
    let long = [header.as_bytes().as_slice(), &vec![b'x'; 200 << 20]].concat();
    let refused = upload(&world, ArchiveFormat::Tar, &long).await.unwrap_err();
    assert_eq!(refused.to_string(), "in: the archive needs too much memory");
    assert_eq!(world.shell("echo alive").await.text(), "alive");
}

async fn links_are_not_followed(world: GuestFixture) {
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("secret"), "secret").unwrap();
    world
        .shell(&format!("mkdir src in; ln -s {0} src/out; ln -s {0} in/there", outside.path().display()))
        .await;
    for format in FORMATS {
        let bytes = download(&world, "src", format).await;
        assert!(!bytes.windows(6).any(|part| part == b"secret") || format == ArchiveFormat::TarGz);
    }
    // An existing link does not lead out either.
    let tar = tar_of(&[("there/evil", EntryType::Regular, "", b"x")]);
    assert_eq!(
        upload(&world, ArchiveFormat::Tar, &tar).await.unwrap_err().kind(),
        Some(FailureKind::BadArchive)
    );
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1);
    // A file replaces the link, not its target.
    let tar = tar_of(&[("there", EntryType::Regular, "", b"x")]);
    upload(&world, ArchiveFormat::Tar, &tar).await.unwrap();
    let there = std::fs::symlink_metadata(world.folder.path().join("in/there")).unwrap().file_type();
    assert!(there.is_file() && !there.is_fifo());
}

async fn garbage_is_no_archive(world: GuestFixture) {
    let mut garbage: Vec<u8> = (0..100_000_u64).map(|number| ((number * number) >> 7) as u8).collect();
    for format in FORMATS {
        let refused = upload(&world, format, &garbage).await.unwrap_err();
        assert_eq!(refused.kind(), Some(FailureKind::BadArchive), "{format:?}");
    }
    // Archives with one changed byte are refused or unpacked; the guest survives.
    let originals = [
        (
            ArchiveFormat::Tar,
            tar_of(&[("a/b", EntryType::Regular, "", b"hello"), ("l", EntryType::Symlink, "a", b"")]),
        ),
        (ArchiveFormat::Zip, zip_of(&[("a/b", 0o644, b"hello"), ("l", 0o120_777, b"a")])),
    ];
    for (format, original) in originals {
        for number in 0..60_usize {
            garbage.clone_from(&original);
            let place = number * 7919 % garbage.len();
            garbage[place] ^= 1 << (number % 8);
            let _either = upload(&world, format, &garbage).await;
        }
    }
    assert_eq!(world.shell("echo alive").await.text(), "alive");
}

async fn a_worker_ends_with_its_caller(world: GuestFixture) {
    world.shell("mkdir src; head -c 100000000 /dev/urandom > src/big").await;
    let mut reader = world.guest.download_archive("src", ArchiveFormat::Zip).await.unwrap();
    assert!(reader.next_chunk().await.unwrap().is_some());
    let workers = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -c ^belljar-archiv[e]";
    assert_eq!(world.shell(workers).await.text(), "1");
    drop(reader);
    until("the worker is gone", async || world.shell(workers).await.text() == "0").await;
    let (mut stuck, reading) = tokio::io::duplex(1024);
    tokio::io::AsyncWriteExt::write_all(&mut stuck, &[0; 100]).await.unwrap();
    let upload = world.guest.upload_archive("in", ArchiveFormat::Tar, ArchiveLimits::default(), reading);
    assert!(tokio::time::timeout(Duration::from_millis(200), upload).await.is_err());
    until("the worker is gone", async || world.shell(workers).await.text() == "0").await;
}
