//! Files: ranges, pages, large files in constant memory, valid and hostile archives, changes, volumes.

use std::os::unix::fs::PermissionsExt;

use belljar_engine::sandbox_handle::{
    ArchiveFormat, ArchiveLimits, ChangeKind, FailureKind, FileKind, SandboxError, WriteMode, WriteOptions,
};
use serde_json::json;
use tokio::io::AsyncReadExt;

use super::{Case, cases, text};
use crate::fixture::{Fixture, Verdict, check};

pub(super) fn all() -> Vec<(&'static str, Case)> {
    cases![
        files_are_read_and_written,
        folders_are_listed_in_pages,
        files_outside_the_sandbox_are_denied,
        big_files_take_constant_memory,
        archives_are_downloaded_and_uploaded,
        hostile_archives_are_refused,
        changes_are_reported,
        volumes_outlive_sandboxes,
    ]
}

fn is(error: &SandboxError, kind: FailureKind) -> bool {
    error.kind() == Some(kind)
}

async fn files_are_read_and_written(fixture: Fixture) -> Verdict {
    let open = fixture.open(json!({})).await?;
    let files = open.handle.files();
    check!(open.write_file("a/b.txt", b"0123456789").await? == 10, "written");
    check!(open.read_file("a/b.txt", 3, Some(4)).await? == b"3456", "a range");
    check!(open.read_file("/workspace/a/b.txt", 8, None).await? == b"89", "a tail");
    check!(open.read_file("a/b.txt", 100, None).await?.is_empty(), "beyond the end");
    let append = WriteOptions { mode: WriteMode::Append, ..WriteOptions::default() };
    files.write("a/b.txt", append, Box::pin(&b"ab"[..])).await.map_err(text)?;
    let create = WriteOptions { mode: WriteMode::Create, ..WriteOptions::default() };
    let exists = files.write("a/b.txt", create, Box::pin(&b"x"[..])).await;
    check!(exists.as_ref().is_err_and(|error| is(error, FailureKind::Exists)), exists);
    files.set_mode("a/b.txt", 0o640).await.map_err(text)?;
    let metadata = files.stat("a/b.txt", false).await.map_err(text)?;
    check!((metadata.kind, metadata.size, metadata.mode & 0o777) == (FileKind::File, 12, 0o640), metadata);
    files.rename("a/b.txt", "a/c", false).await.map_err(text)?;
    files.make_folder("a/d/e", true, Some(0o755)).await.map_err(text)?;
    check!(
        open.shell_output("ls a; cat a/c; stat -c %U a/c").await? == "c\nd\n0123456789absandbox",
        "as seen inside"
    );
    let full = files.remove("a", false).await;
    check!(full.as_ref().is_err_and(|error| is(error, FailureKind::NotEmpty)), full);
    files.remove("a", true).await.map_err(text)?;
    let gone = files.stat("a", false).await;
    check!(gone.as_ref().is_err_and(|error| is(error, FailureKind::NotFound)), gone);
    open.close().await
}

async fn folders_are_listed_in_pages(fixture: Fixture) -> Verdict {
    let open = fixture.open(json!({})).await?;
    open.shell_output("mkdir many; cd many; seq -w 0 299 | xargs touch").await?;
    let (mut names, mut after) = (Vec::new(), None);
    loop {
        let page = open.handle.files().list("many", after, 100).await.map_err(text)?;
        check!(page.entries.len() <= 100, page.entries.len());
        names.extend(page.entries.into_iter().map(|entry| entry.name));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    check!(names.len() == 300 && names[0] == "000" && names.is_sorted(), names);
    open.close().await
}

async fn files_outside_the_sandbox_are_denied(fixture: Fixture) -> Verdict {
    let open = fixture.open(json!({})).await?;
    let files = open.handle.files();
    for path in ["/usr/x", "/etc/x", "/x", "/run/belljar/x", "/proc/sys/kernel/hostname"] {
        let denied = files.write(path, WriteOptions::default(), Box::pin(&b"x"[..])).await;
        check!(denied.is_err(), path);
    }
    // A symlink resolves inside the sandbox, never on the host.
    open.shell_output("ln -s /etc/shadow shadow; ln -s /proc/1/environ environ; ln -s / root").await?;
    for path in ["shadow", "environ", "root/root/.ssh", "root/home/agent"] {
        check!(open.read_file(path, 0, None).await.is_err(), path);
    }
    for path in ["/dev/zero", "/dev/tty", "/proc/1/mem"] {
        check!(open.read_file(path, 0, Some(1)).await.is_err(), path);
    }
    open.close().await
}

/// The size of a file that is never held in memory as a whole.
const BIG: u64 = 64 << 20;

async fn big_files_take_constant_memory(fixture: Fixture) -> Verdict {
    // The disk is accounted as memory, and little is left beside it.
    let open = fixture.open(json!({"limits": {"memory_bytes": 80 << 20, "disk_bytes": 70 << 20}})).await?;
    let files = open.handle.files();
    let source = tokio::io::repeat(7).take(BIG);
    let written = files.write("big", WriteOptions::default(), Box::pin(source)).await.map_err(text)?;
    check!(written == BIG, written);
    let (metadata, mut source) = files.read("big", 0, None).await.map_err(text)?;
    check!(metadata.size == BIG, metadata);
    let read = tokio::io::copy(&mut source, &mut tokio::io::sink()).await.map_err(text)?;
    check!(read == BIG, read);
    let stats = open.handle.stats().await.map_err(text)?;
    check!(stats.memory_kills == 0, stats);
    check!(stats.peak_memory_bytes.is_none_or(|bytes| bytes < BIG + (12 << 20)), stats);
    check!(stats.disk_bytes.is_none_or(|bytes| (BIG..BIG + (4 << 20)).contains(&bytes)), stats);
    open.close().await
}

async fn archives_are_downloaded_and_uploaded(fixture: Fixture) -> Verdict {
    let open = fixture.open(json!({})).await?;
    let files = open.handle.files();
    open.shell_output("mkdir -p a/b; echo one > a/b/1; echo two > a/2; chmod 700 a/2; ln -s 2 a/link")
        .await?;
    for format in [ArchiveFormat::Tar, ArchiveFormat::TarGz, ArchiveFormat::Zip] {
        let mut packed = Vec::new();
        let mut source = files.download_archive("a", format).await.map_err(text)?;
        source.read_to_end(&mut packed).await.map_err(text)?;
        // What was packed in one sandbox can be unpacked in another, as snapshots require.
        let other = fixture.open(json!({})).await?;
        let limits = ArchiveLimits::default();
        let unpacked =
            other.handle.files().upload_archive("copy", format, limits, Box::pin(&packed[..])).await;
        let unpacked = unpacked.map_err(text)?;
        check!(unpacked.bytes == 8, (format, unpacked));
        let seen = other.shell_output("cat copy/b/1 copy/2; readlink copy/link; stat -c %a copy/2").await?;
        check!(seen == "one\ntwo\n2\n700", (format, seen));
        other.close().await?;
    }
    open.close().await
}

async fn hostile_archives_are_refused(fixture: Fixture) -> Verdict {
    let open = fixture.open(json!({})).await?;
    let make = "import tarfile, io\n\
        def tar(name, *entries):\n\
        \x20   with tarfile.open(name, 'w') as t:\n\
        \x20       for path, kind, link in entries:\n\
        \x20           i = tarfile.TarInfo(path); i.type = kind; i.linkname = link; i.size = 1 if kind == b'0' else 0\n\
        \x20           t.addfile(i, io.BytesIO(b'x'))\n\
        tar('up', ('../../tmp/escaped', b'0', ''))\n\
        tar('absolute', ('/tmp/escaped', b'0', ''))\n\
        tar('link', ('l', b'2', '/tmp'), ('l/escaped', b'0', ''))\n\
        tar('device', ('d', b'3', ''))\n";
    open.write_file("make.py", make.as_bytes()).await?;
    open.shell_output("python3 make.py").await?;
    let files = open.handle.files();
    for name in ["up", "absolute", "link", "device"] {
        let tar = open.read_file(name, 0, None).await?;
        let limits = ArchiveLimits::default();
        let refused = files.upload_archive("into", ArchiveFormat::Tar, limits, Box::pin(&tar[..])).await;
        check!(refused.as_ref().is_err_and(|error| is(error, FailureKind::BadArchive)), (name, refused));
    }
    check!(files.stat("/tmp/escaped", false).await.is_err(), "an entry escaped");
    let small = ArchiveLimits { bytes: 1 << 20, ..ArchiveLimits::default() };
    open.shell_output("truncate -s 2M zeros; tar cf fat zeros").await?;
    let fat = open.read_file("fat", 0, None).await?;
    let refused = files.upload_archive("into", ArchiveFormat::Tar, small, Box::pin(&fat[..])).await;
    check!(refused.as_ref().is_err_and(|error| is(error, FailureKind::TooLarge)), refused);
    open.close().await
}

async fn changes_are_reported(fixture: Fixture) -> Verdict {
    let open = fixture.open(json!({})).await?;
    let mut watch = open.handle.files().watch("", true).await.map_err(text)?;
    let mut seen = Vec::new();
    // A folder is watched by the time its creation is reported.
    for (line, kind, path) in [
        ("mkdir d", ChangeKind::Created, "d"),
        ("echo x > d/f; mv d/f d/g; rm d/g", ChangeKind::Removed, "d/g"),
    ] {
        open.shell_output(line).await?;
        while !seen.contains(&(kind, path.to_owned())) {
            let change = watch.next().await.map_err(text)?.ok_or("the watch ended")?;
            seen.push((change.kind, change.path));
        }
    }
    open.close().await
}

async fn volumes_outlive_sandboxes(fixture: Fixture) -> Verdict {
    // On a disk, because some kernels cannot map file owners on tmpfs.
    let folder = tempfile::tempdir_in("/var/tmp").map_err(text)?;
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).map_err(text)?;
    let request = |read_only: bool| {
        let json = json!({"volumes": [{"name": "cache", "path": "/data/cache", "read_only": read_only}]});
        let request = serde_json::from_value(json).map_err(text)?;
        let admitted = fixture.engine().admit_sandbox(request, None).map_err(text)?;
        let path = folder.path().to_owned();
        admitted.with_volumes(move |_| Some(path.clone())).map_err(text)
    };
    let one = fixture.open_admitted(request(false)?).await?;
    one.shell_output("echo from one > /data/cache/f; mkdir /data/cache/d").await?;
    one.write_file("/data/cache/d/g", b"by the guest").await?;
    one.close().await?;
    use std::os::unix::fs::MetadataExt;
    let owner = |path: &str| std::fs::metadata(folder.path().join(path)).map(|m| m.uid()).map_err(text);
    check!(
        owner("f")? == owner("")? && owner("d/g")? == owner("")?,
        "new files belong to the folder's owner"
    );
    let two = fixture.open_admitted(request(true)?).await?;
    check!(
        two.shell_output("cat /data/cache/f /data/cache/d/g").await? == "from one\nby the guest",
        "the files are still there"
    );
    check!(
        two.shell("echo x > /data/cache/h").await?.ending
            != Some(belljar_engine::sandbox_handle::CommandEnding::Exited(0)),
        "read-only"
    );
    two.close().await
}
