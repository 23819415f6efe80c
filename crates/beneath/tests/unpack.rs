//! Unpacking into a folder that others prepared, within a budget.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::io::{Cursor, Write};
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use belljar_beneath::{
    HeaderError, HeaderLimits, InnerPath, OverBudget, TargetError, UnpackBudget, UnpackMode, UnpackTarget,
    check_tar_headers,
};
use rustix::fs::Mode;
use rustix::io::Errno;
use tar::{Builder, EntryType, Header};
use tempfile::TempDir;

/// A target next to a folder that must not be touched.
struct Fixture {
    folder: TempDir,
    target: UnpackTarget,
}

impl Fixture {
    fn new(mode: UnpackMode) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("outside")).unwrap();
        fs::write(folder.path().join("outside/kept"), "kept").unwrap();
        fs::create_dir(folder.path().join("inner")).unwrap();
        let target = UnpackTarget::open(&folder.path().join("inner"), mode).unwrap();
        Self { folder, target }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.folder.path().join("inner").join(path)
    }

    fn write(&self, path: &str, text: &str) -> Result<(), TargetError> {
        let mut file = self.target.create_file(&inner(path), Mode::RUSR | Mode::WUSR)?;
        file.write_all(text.as_bytes()).unwrap();
        Ok(())
    }

    fn is_outside_untouched(&self) -> bool {
        let outside = self.folder.path().join("outside");
        fs::read_to_string(outside.join("kept")).is_ok_and(|text| text == "kept")
            && fs::read_dir(outside).unwrap().count() == 1
    }
}

fn inner(path: &str) -> InnerPath<'_> {
    InnerPath::parse(path.as_bytes(), 128).unwrap().unwrap()
}

fn blocked(part: &str) -> Result<(), TargetError> {
    Err(TargetError::Blocked(part.as_bytes().to_vec()))
}

#[test]
fn existing_links_are_replaced_and_never_followed() {
    let fixture = Fixture::new(UnpackMode::Merge);
    symlink("../outside", fixture.at("folder")).unwrap();
    symlink("../outside/kept", fixture.at("file")).unwrap();
    assert_eq!(fixture.write("folder/new", "x"), blocked("folder"));
    assert_eq!(fixture.write("file/new", "x"), blocked("file"));
    assert_eq!(fixture.target.create_folder(&inner("folder")).map(drop), blocked("folder"));
    assert_eq!(fixture.target.create_link(&inner("folder/link"), b"x"), blocked("folder"));
    assert_eq!(fixture.target.create_hard_link(&inner("hard"), &inner("folder/kept")), blocked("folder"));
    fixture.write("file", "new").unwrap();
    assert!(fs::symlink_metadata(fixture.at("file")).unwrap().is_file());
    // The hard link is the symlink, not the file that it leads to.
    symlink("../outside/kept", fixture.at("link")).unwrap();
    fixture.target.create_hard_link(&inner("hard"), &inner("link")).unwrap();
    assert!(fixture.at("hard").is_symlink());
    fixture.write("hard", "new").unwrap();
    assert!(fixture.is_outside_untouched());
}

#[test]
fn entries_replace_files_but_no_folders() {
    let fixture = Fixture::new(UnpackMode::Merge);
    fixture.write("a/b/c", "one").unwrap();
    fixture.write("a/b/c", "two").unwrap();
    assert_eq!(fs::read_to_string(fixture.at("a/b/c")).unwrap(), "two");
    fixture.target.create_folder(&inner("a/b")).unwrap();
    assert!(fixture.write("a/b", "x").is_err() && fixture.at("a/b/c").exists());
    fixture.target.create_link(&inner("a/b/c"), b"..").unwrap();
    assert!(fixture.at("a/b/c").is_symlink());
}

#[test]
fn an_exact_archive_has_every_folder_and_no_duplicates() {
    let fixture = Fixture::new(UnpackMode::Exact);
    assert_eq!(fixture.write("a/b", "x"), Err(TargetError::Io(Errno::NOENT)));
    fixture.target.create_folder(&inner("a")).unwrap();
    fixture.write("a/b", "x").unwrap();
    let duplicate = Err(TargetError::Io(Errno::EXIST));
    assert_eq!(fixture.write("a/b", "y"), duplicate);
    assert_eq!(fixture.target.create_link(&inner("a/b"), b"x"), duplicate);
    assert_eq!(fixture.target.create_folder(&inner("a")).map(drop), duplicate);
    assert_eq!(fs::read_to_string(fixture.at("a/b")).unwrap(), "x");
}

#[test]
fn a_budget_ends() {
    let mut budget = UnpackBudget { bytes: 5, entries: 1 };
    assert_eq!((budget.take_entry(), budget.take_entry()), (Ok(()), Err(OverBudget::Entries)));
    assert_eq!((budget.take_bytes(5), budget.take_bytes(1)), (Ok(()), Err(OverBudget::Bytes)));
    assert_eq!(budget, UnpackBudget { bytes: 0, entries: 0 });
}

#[test]
fn headers_are_checked_before_they_are_read() {
    let archive = |entries: &[(EntryType, usize)]| {
        let mut builder = Builder::new(Vec::new());
        for (kind, size) in entries {
            let mut header = Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_size(*size as u64);
            header.set_cksum();
            builder.append(&header, &*vec![b'x'; *size]).unwrap();
        }
        Cursor::new(builder.into_inner().unwrap())
    };
    let limits = HeaderLimits { entries: 1, extension_bytes: 100 };
    let check = |entries: &[(EntryType, usize)]| {
        check_tar_headers(archive(entries), limits, |kind| kind != EntryType::Char)
    };
    use EntryType::{Char, GNULongLink, GNULongName, Regular, XGlobalHeader, XHeader};
    assert!(check(&[(GNULongName, 100), (GNULongLink, 100), (Regular, 1_000)]).is_ok());
    for kind in [GNULongName, GNULongLink, XHeader, XGlobalHeader] {
        assert!(matches!(check(&[(kind, 101)]), Err(HeaderError::TooLong)));
    }
    assert!(matches!(check(&[(Regular, 0); 4]), Err(HeaderError::TooManyEntries)));
    assert!(matches!(check(&[(Char, 0)]), Err(HeaderError::Kind)));
    let broken = check_tar_headers(Cursor::new(vec![7; 1_024]), limits, |_| true);
    assert!(matches!(broken, Err(HeaderError::Unreadable(_))));
}
