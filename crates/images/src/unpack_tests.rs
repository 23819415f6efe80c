//! Hostile archives with their expected results.

use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use belljar_beneath::folder::OPEN_FOLDER_FLAGS;
use rustix::fs::CWD;
use tar::{Builder, Header};
use tempfile::TempDir;

use super::*;
use crate::layer::check_headers;

const ROOM: UnpackBudget = UnpackBudget { bytes: 1 << 20, entries: 1_000 };

/// A folder with a root, next to a folder that must not be touched.
struct RootFixture {
    folder: TempDir,
}

impl RootFixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("root")).unwrap();
        fs::create_dir(folder.path().join("outside")).unwrap();
        fs::write(folder.path().join("outside/kept"), "kept").unwrap();
        Self { folder }
    }

    fn at(&self, path: &str) -> std::path::PathBuf {
        self.folder.path().join("root").join(path)
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.at(path)).unwrap_or_else(|error| format!("({error})"))
    }

    fn lay_in(&self, archive: Vec<u8>, room: UnpackBudget) -> Result<UnpackBudget, ImageError> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&archive).unwrap();
        file.seek(SeekFrom::Start(0)).unwrap();
        let root = rustix::fs::openat(CWD, self.at("."), OPEN_FOLDER_FLAGS, Mode::empty()).unwrap();
        check_headers(&mut file, room.entries)?;
        unpack(&root, &mut file, room)
    }

    fn lay(&self, entries: &[(&str, Kind<'_>)]) -> Result<UnpackBudget, ImageError> {
        self.lay_in(archive(entries), ROOM)
    }

    /// Returns whether everything outside the root is unchanged.
    fn is_untouched_outside(&self) -> bool {
        let names = |path: &Path| fs::read_dir(path).unwrap().count();
        fs::read_to_string(self.folder.path().join("outside/kept")).is_ok_and(|text| text == "kept")
            && names(&self.folder.path().join("outside")) == 1
            && names(self.folder.path()) == 2
    }
}

#[derive(Clone, Copy)]
enum Kind<'a> {
    File(&'a str),
    Mode(u32),
    Folder,
    Link(&'a str),
    Hard(&'a str),
    Device,
    Pipe,
}
use Kind::{Device, File as Regular, Folder, Hard, Link as Symbolic, Mode as Program, Pipe};

fn archive(entries: &[(&str, Kind<'_>)]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (path, kind) in entries {
        let mut header = Header::new_gnu();
        header.set_mode(0o644);
        let (entry, target, content) = match kind {
            Regular(text) => (EntryType::Regular, None, *text),
            Program(mode) => {
                header.set_mode(*mode);
                (EntryType::Regular, None, "#!")
            }
            Folder => (EntryType::Directory, None, ""),
            Symbolic(target) => (EntryType::Symlink, Some(*target), ""),
            Hard(target) => (EntryType::Link, Some(*target), ""),
            Device => (EntryType::Char, None, ""),
            Pipe => (EntryType::Fifo, None, ""),
        };
        header.set_entry_type(entry);
        header.set_size(content.len() as u64);
        // The builder refuses such names.
        let bytes = &mut header.as_old_mut().name;
        bytes[..path.len()].copy_from_slice(path.as_bytes());
        if let Some(target) = target {
            header.as_old_mut().linkname[..target.len()].copy_from_slice(target.as_bytes());
        }
        header.set_cksum();
        builder.append(&header, content.as_bytes()).unwrap();
    }
    builder.into_inner().unwrap()
}

/// A name, the entries, and the expected file inside; `None` if the archive must be refused.
type Row<'a> = (&'a str, &'a [(&'a str, Kind<'a>)], Option<(&'a str, &'a str)>);

const HOSTILE: &[Row<'static>] = &[
    ("up and out", &[("../outside/kept", Regular("evil"))], None),
    ("up, later", &[("a/../../outside/new", Regular("evil"))], None),
    ("from the top", &[("/outside/kept", Regular("in"))], Some(("outside/kept", "in"))),
    (
        "through a link that goes up",
        &[("l", Symbolic("../outside")), ("l/kept", Regular("in"))],
        Some(("l/kept", "in")),
    ),
    (
        "through a link from the top",
        &[("d", Folder), ("l", Symbolic("/d")), ("l/new", Regular("in"))],
        Some(("d/new", "in")),
    ),
    (
        "through links of links",
        &[("a", Folder), ("b", Symbolic("a/..")), ("c", Symbolic("b/../../..")), ("c/new", Regular("in"))],
        Some(("new", "in")),
    ),
    (
        "through a link of the kernel's",
        &[("l", Symbolic("/proc/self/cwd")), ("l/new", Regular("in"))],
        Some(("l/new", "in")),
    ),
    ("a file over a link", &[("l", Symbolic("../outside/kept")), ("l", Regular("in"))], Some(("l", "in"))),
    (
        "a folder over a link",
        &[("l", Symbolic("../outside")), ("l", Folder), ("l/x", Regular("in"))],
        Some(("l/x", "in")),
    ),
    ("a hard link out", &[("h", Hard("../outside/kept")), ("h", Regular("evil"))], None),
    ("a hard link from the top", &[("h", Hard("/outside/kept"))], None),
    ("a hard link through a link", &[("l", Symbolic("../outside")), ("h", Hard("l/kept"))], None),
    (
        "a hard link to a link, written to",
        &[("l", Symbolic("../outside/kept")), ("h", Hard("l")), ("h", Regular("in"))],
        Some(("h", "in")),
    ),
    ("a hard link to itself", &[("f", Regular("in")), ("f", Hard("f"))], Some(("f", "in"))),
    ("a hard link to a folder", &[("d", Folder), ("h", Hard("d"))], None),
    ("a whiteout that goes up", &[(".wh...", Regular(""))], None),
    ("a whiteout of nothing", &[(".wh.", Regular(""))], None),
    (
        "a whiteout through a link",
        &[("l", Symbolic("../outside")), ("l/.wh.kept", Regular("")), ("f", Regular("in"))],
        Some(("f", "in")),
    ),
    (
        "an opaque link",
        &[("l", Symbolic("../outside")), ("l/.wh..wh..opq", Regular("")), ("f", Regular("in"))],
        Some(("f", "in")),
    ),
    ("twice", &[("f", Regular("one")), ("f", Regular("two"))], Some(("f", "two"))),
    ("in a file", &[("f", Regular("one")), ("f/g", Regular("two"))], None),
    ("devices and pipes", &[("d", Device), ("p", Pipe), ("f", Regular("in"))], Some(("f", "in"))),
    ("a link to nothing", &[("l", Symbolic(""))], None),
    ("the root as a file", &[(".", Regular("x")), ("./f", Regular("in"))], Some(("f", "in"))),
];

#[test]
fn nothing_is_written_outside_the_root() {
    for (name, entries, wanted) in HOSTILE {
        let ground = RootFixture::new();
        let laid = ground.lay(entries);
        assert!(ground.is_untouched_outside(), "{name}");
        match wanted {
            None => assert!(matches!(laid, Err(ImageError::Refused(_))), "{name}: {laid:?}"),
            Some((path, text)) => {
                assert!(laid.is_ok(), "{name}: {laid:?}");
                assert_eq!(ground.read(path), *text, "{name}");
            }
        }
    }
}

#[test]
fn special_files_and_bits_are_left_out() {
    let ground = RootFixture::new();
    ground
        .lay(&[
            ("d", Device),
            ("p", Pipe),
            ("su", Program(0o6755)),
            ("private", Program(0o600)),
            ("f", Folder),
        ])
        .unwrap();
    assert!(!ground.at("d").exists() && !ground.at("p").exists());
    let mode = |path: &str| fs::symlink_metadata(ground.at(path)).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode("su"), mode("private"), mode("f")), (0o755, 0o644, 0o755));
}

#[test]
fn whiteouts_remove_lower_entries_only() {
    let ground = RootFixture::new();
    ground
        .lay(&[("a", Regular("1")), ("d/x", Regular("1")), ("d/y/z", Regular("1")), ("e/x", Regular("1"))])
        .unwrap();
    ground
        .lay(&[
            ("a", Regular("2")),
            (".wh.a", Regular("")),
            ("d/y/new", Regular("2")),
            ("d/.wh..wh..opq", Regular("")),
            (".wh.e", Regular("")),
            (".wh.absent", Regular("")),
        ])
        .unwrap();
    assert_eq!((ground.read("a"), ground.read("d/y/new")), ("2".to_owned(), "2".to_owned()));
    assert!(!ground.at("d/x").exists() && !ground.at("d/y/z").exists() && !ground.at("e").exists());
}

#[test]
fn a_file_of_another_image_is_never_written() {
    let ground = RootFixture::new();
    ground.lay(&[("f", Regular("below")), ("g", Hard("f"))]).unwrap();
    let inode = fs::metadata(ground.at("f")).unwrap().ino();
    ground.lay(&[("f", Regular("above"))]).unwrap();
    assert_eq!((ground.read("f"), ground.read("g")), ("above".to_owned(), "below".to_owned()));
    assert_eq!(fs::metadata(ground.at("g")).unwrap().ino(), inode);
}

#[test]
fn every_limit_is_enforced() {
    let ground = RootFixture::new();
    let two = archive(&[("a", Regular("123")), ("b", Regular("456"))]);
    let few = |bytes, entries| ground.lay_in(two.clone(), UnpackBudget { bytes, entries });
    assert!(matches!(few(5, 9), Err(ImageError::TooLarge { what: "bytes", .. })));
    assert!(matches!(few(99, 1), Err(ImageError::TooLarge { what: "entries", .. })));
    assert_eq!(few(6, 2), Ok(UnpackBudget { bytes: 0, entries: 0 }));

    let deep = ["d"; 2 * MAX_DEPTH].join("/");
    let mut builder = Builder::new(Vec::new());
    let mut header = Header::new_gnu();
    header.set_size(0);
    header.set_entry_type(EntryType::Directory);
    builder.append_data(&mut header, &deep, std::io::empty()).unwrap();
    assert!(matches!(ground.lay_in(builder.into_inner().unwrap(), ROOM), Err(ImageError::Refused(_))));

    let mut builder = Builder::new(Vec::new());
    let mut header = Header::new_gnu();
    header.set_size(0);
    header.set_entry_type(EntryType::Regular);
    builder.append_data(&mut header, "n".repeat(300), std::io::empty()).unwrap();
    assert!(matches!(ground.lay_in(builder.into_inner().unwrap(), ROOM), Err(ImageError::Refused(_))));

    let mut long = Header::new_gnu();
    long.set_entry_type(EntryType::GNULongName);
    long.set_size(2 << 20);
    long.set_cksum();
    let mut builder = Builder::new(Vec::new());
    builder.append(&long, &*vec![b'x'; 2 << 20]).unwrap();
    assert!(matches!(ground.lay_in(builder.into_inner().unwrap(), ROOM), Err(ImageError::Refused(_))));
    assert!(matches!(ground.lay_in(vec![7; 4_096], ROOM), Err(ImageError::Refused(_))));
}
