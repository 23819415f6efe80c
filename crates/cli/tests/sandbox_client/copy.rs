//! Copying files and folders into and out of a sandbox; and hostile archives.

use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use tar::{Builder, EntryType, Header};

use crate::fake::Fake;
use crate::{SandboxFixture, client, piped, refusal, text_of};

#[test]
fn files_go_both_ways() {
    let fixture = SandboxFixture::new();
    let folder = fixture.beside("files");
    let bytes: Vec<u8> = (0..1_000_000_u32).map(|number| (number % 251) as u8).collect();
    let file = folder.join("a b.bin");
    std::fs::write(&file, &bytes).unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o750)).unwrap();
    fixture.text(&["cp", text_of(&file), &fixture.at("")]);
    let found = ["exec", &fixture.id, "--", "stat", "-c", "%s %a", "a b.bin"];
    assert_eq!(fixture.text(&found), "1000000 750\n");
    fixture.text(&["cp", text_of(&file), &fixture.at("new/name")]);
    let back = folder.join("back");
    fixture.text(&["cp", &fixture.at("/workspace/new/name"), text_of(&back)]);
    assert_eq!(
        (std::fs::read(&back).unwrap(), back.metadata().unwrap().mode() & 0o777),
        (bytes.clone(), 0o750)
    );
    std::fs::create_dir(folder.join("in")).unwrap();
    fixture.text(&["cp", &fixture.at("a b.bin"), text_of(&folder.join("in"))]);
    assert_eq!(std::fs::read(folder.join("in/a b.bin")).unwrap(), bytes);
    let mut child = piped(fixture.command(&["cp", "-", &fixture.at("typed")]));
    child.stdin.take().unwrap().write_all(b"from a pipe").unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(fixture.text(&["cp", &fixture.at("typed"), "-"]), "from a pipe");
    let told = fixture.text(&["cp", &fixture.at("typed"), text_of(&back), "--json"]);
    assert_eq!(told, "{\"bytes\":11}\n");
    assert!(fixture.refusal(&["cp", &fixture.at("nothing"), "."]).contains("nothing"));
    assert!(fixture.refusal(&["cp", "a", "b"]).contains("exactly one side"));
    assert!(fixture.refusal(&["cp", "/dev/null", &fixture.at("x")]).contains("neither a file nor a folder"));
}

#[test]
fn folders_go_both_ways() {
    let fixture = SandboxFixture::new();
    let folder = fixture.beside("project");
    std::fs::create_dir_all(folder.join("deep/er")).unwrap();
    std::fs::write(folder.join("deep/er/run.sh"), "#!/bin/sh\necho ran\n").unwrap();
    std::fs::set_permissions(folder.join("deep/er/run.sh"), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::write(folder.join("x".repeat(180)), "long").unwrap();
    symlink("deep/er/run.sh", folder.join("link")).unwrap();
    fixture.text(&["cp", text_of(&folder), &fixture.at("/workspace")]);
    assert_eq!(fixture.text(&["exec", &fixture.id, "--", "project/link"]), "ran\n");
    // To a new name; and the content of a folder instead of the folder itself.
    fixture.text(&["cp", text_of(&folder), &fixture.at("copy")]);
    fixture.text(&["cp", &format!("{}/.", text_of(&folder)), &fixture.at("copy")]);
    let out = fixture.beside("out");
    fixture.text(&["cp", &fixture.at("copy"), text_of(&out)]);
    fixture.text(&["cp", &fixture.at("copy/."), text_of(&out)]);
    for copy in [out.join("copy"), out] {
        let run = copy.join("deep/er/run.sh");
        assert_eq!(std::fs::read_to_string(&run).unwrap(), "#!/bin/sh\necho ran\n");
        assert_eq!(run.metadata().unwrap().mode() & 0o777, 0o755);
        assert_eq!(std::fs::read_link(copy.join("link")).unwrap(), Path::new("deep/er/run.sh"));
        assert_eq!(std::fs::read_to_string(copy.join("x".repeat(180))).unwrap(), "long");
    }
    let archive = fixture.run(&["cp", &fixture.at("copy"), "-"]).stdout;
    let mut archive = tar::Archive::new(archive.as_slice());
    assert!(archive.entries().unwrap().any(|entry| entry.unwrap().path().unwrap().ends_with("run.sh")));
}

#[test]
fn an_early_error_response_is_read_during_an_upload() {
    // The fake server responds without reading the body, and closes the connection.
    let fake = Fake::start(|request| match request.method.as_str() {
        "GET" => (404, Vec::new()),
        _ => (409, br#"{"error":{"code":"disk_full","message":"the disk is full"}}"#.to_vec()),
    });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("big");
    std::fs::write(&file, vec![7; 8 << 20]).unwrap();
    for _ in 0..20 {
        let said = refusal(&mut client(&fake.url, &["cp", text_of(&file), "sbx_1:big"]));
        assert!(said.contains("the disk is full"), "{said}");
    }
}

/// An archive entry: its type, its name, and its link target or content.
type Crafted<'a> = (EntryType, &'a str, &'a str);

/// Creates an archive with entries that an honest packer would not write.
fn crafted(entries: &[Crafted<'_>]) -> Vec<u8> {
    let mut archive = Builder::new(Vec::new());
    for (kind, name, content) in entries {
        let mut header = Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_mode(0o4777);
        // Written directly, because the library refuses such names.
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        let is_link = matches!(kind, EntryType::Symlink | EntryType::Link);
        if is_link {
            header.as_old_mut().linkname[..content.len()].copy_from_slice(content.as_bytes());
        }
        let content = if is_link { "" } else { content };
        header.set_size(content.len() as u64);
        header.set_cksum();
        archive.append(&header, content.as_bytes()).unwrap();
    }
    archive.into_inner().unwrap()
}

/// Copies a folder from a server that responds with this archive. Returns whether it worked, and standard
/// error.
fn take(archive: Vec<u8>, destination: &Path) -> (bool, String) {
    let fake = Fake::start(move |request| match request.path.contains("/stat?") {
        true => (200, br#"{"kind":"directory","size":0,"permissions":"0755"}"#.to_vec()),
        false => (200, archive.clone()),
    });
    let output = client(&fake.url, &["cp", "sbx_1:inside/.", text_of(destination)]).output().unwrap();
    (output.status.success(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn no_archive_writes_outside_of_its_folder() {
    use EntryType::{Block, Char, Directory, Fifo, Link, Regular, Symlink};
    let absolute = tempfile::tempdir().unwrap();
    let elsewhere = format!("{}/bad", text_of(absolute.path()));
    let cases: &[(&str, Vec<Crafted<'_>>)] = &[
        ("a way up", vec![(Regular, "../bad", "x")]),
        ("a way up later", vec![(Regular, "a/../../bad", "x")]),
        ("a folder above", vec![(Directory, "../bad", "")]),
        ("an absolute path", vec![(Regular, &elsewhere, "x")]),
        ("a link out", vec![(Symlink, "l", "../")]),
        ("an absolute link", vec![(Symlink, "l", "/etc")]),
        (
            "a link up through a link",
            vec![(Directory, "x/y", ""), (Symlink, "x/y/d", "../.."), (Symlink, "e", "x/y/d/..")],
        ),
        (
            "through a link to a folder",
            vec![(Directory, "d", ""), (Symlink, "l", "d"), (Regular, "l/bad", "x")],
        ),
        ("a hard link", vec![(Link, "h", "/etc/passwd")]),
        ("a hard link up", vec![(Link, "h", "../kept")]),
        ("a device", vec![(Char, "c", "")]),
        ("a disk", vec![(Block, "b", "")]),
        ("a pipe", vec![(Fifo, "p", "")]),
    ];
    for (what, entries) in cases {
        let around = tempfile::tempdir().unwrap();
        let inner = around.path().join("inner");
        std::fs::create_dir(&inner).unwrap();
        std::fs::write(around.path().join("kept"), "kept").unwrap();
        let (fine, said) = take(crafted(entries), &inner);
        assert!(!fine && said.contains("the sandbox's archive: '"), "{what}: {said}");
        let names: Vec<_> =
            std::fs::read_dir(around.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names.len(), 2, "{what}: {names:?}");
        assert_eq!(std::fs::read_to_string(around.path().join("kept")).unwrap(), "kept", "{what}");
        assert!(std::fs::read_dir(absolute.path()).unwrap().next().is_none(), "{what}");
    }
}

#[test]
fn existing_links_are_replaced_and_never_followed() {
    let around = tempfile::tempdir().unwrap();
    let inner = around.path().join("inner");
    std::fs::create_dir(&inner).unwrap();
    std::fs::write(around.path().join("kept"), "kept").unwrap();
    symlink("../kept", inner.join("mine")).unwrap();
    let archive = crafted(&[
        (EntryType::Symlink, "theirs", "d"),
        (EntryType::Regular, "theirs", "file"),
        (EntryType::Regular, "mine", "file"),
    ]);
    let (fine, said) = take(archive, &inner);
    assert!(fine, "{said}");
    assert_eq!(std::fs::read_to_string(around.path().join("kept")).unwrap(), "kept");
    for name in ["mine", "theirs"] {
        let metadata = std::fs::symlink_metadata(inner.join(name)).unwrap();
        assert!(metadata.is_file(), "{name}");
        assert_eq!(metadata.mode() & 0o7777, 0o777, "{name}: setuid bits are dropped");
    }
    symlink("..", inner.join("up")).unwrap();
    let (fine, said) = take(crafted(&[(EntryType::Regular, "up/bad", "x")]), &inner);
    assert!(!fine && said.contains("leads through a symbolic link"), "{said}");
    assert!(!around.path().join("bad").exists());
}

#[test]
fn truncated_archives_and_endless_names_are_refused() {
    let inner = tempfile::tempdir().unwrap();
    let mut cut = crafted(&[(EntryType::Regular, "a", "content")]);
    cut.truncate(515);
    assert!(!take(cut, inner.path()).0);
    let long =
        crafted(&[(EntryType::GNULongName, "n", &"n".repeat(1 << 20)), (EntryType::Regular, "a", "x")]);
    let (fine, said) = take(long, inner.path());
    assert!(!fine && said.contains("a name that is too long"), "{said}");
    let (fine, said) = take(b"no archive at all".repeat(100), inner.path());
    assert!(!fine, "{said}");
}
