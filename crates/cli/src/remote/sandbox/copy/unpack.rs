//! An archive of a sandbox's, which is a stranger's: it says where its files go, and is believed only within a folder.

use std::io::{self, Read};

use tar::{Archive, EntryType, PaxExtensions};

use crate::failure::Failure;
use crate::os::Room;

/// The longest name, and the longest list of further facts, of one entry.
const LONGEST: u64 = 64 << 10;
/// Folders in folders.
const DEEPEST: usize = 128;

/// What an entry before another says about it.
#[derive(Default)]
struct Said {
    name: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
}

/// Puts everything into a room.
pub(super) fn unpack(source: impl Read, mut room: Room) -> Result<(), Failure> {
    let broken = |error: io::Error| Failure::host(format!("cp: the sandbox's archive: {error}"));
    let mut archive = Archive::new(source);
    let mut said = Said::default();
    // Raw, because names would be read into memory without a bound otherwise.
    for entry in archive.entries().map_err(broken)?.raw(true) {
        let mut entry = entry.map_err(broken)?;
        match entry.header().entry_type() {
            EntryType::GNULongName => said.name = Some(text(&mut entry).map_err(broken)?),
            EntryType::GNULongLink => said.target = Some(text(&mut entry).map_err(broken)?),
            EntryType::XHeader => facts(&mut entry, &mut said).map_err(broken)?,
            EntryType::XGlobalHeader => {}
            _ => place(&mut entry, std::mem::take(&mut said), &mut room)?,
        }
    }
    room.finish().map_err(broken)
}

/// One entry in its place.
fn place<R: Read>(entry: &mut tar::Entry<'_, R>, said: Said, room: &mut Room) -> Result<(), Failure> {
    let header = entry.header().clone();
    let name = said.name.unwrap_or_else(|| header.path_bytes().into_owned());
    let refused = |why: &str| {
        let name = String::from_utf8_lossy(&name);
        Failure::host(format!("cp: the sandbox's archive: '{}': {why}", name.escape_debug()))
    };
    let failed = |error: io::Error| refused(&error.to_string());
    let parts = parts(&name).map_err(refused)?;
    let mode = header.mode().map_err(failed)?;
    match header.entry_type() {
        // The folder itself is ours.
        EntryType::Directory if parts.is_empty() => Ok(()),
        EntryType::Directory => room.folder(&parts, mode).map_err(failed),
        EntryType::Regular => {
            let mut file = room.file(&parts).map_err(failed)?;
            let size = header.size().map_err(failed)?;
            if io::copy(entry, &mut file).map_err(failed)? != size {
                return Err(refused("it ends early"));
            }
            Room::settle(&file, mode).map_err(failed)
        }
        EntryType::Symlink => {
            let target = said.target.or_else(|| header.link_name_bytes().map(Into::into)).unwrap_or_default();
            if !stays_inside(&target, parts.len()) {
                return Err(refused("a link that leads out of the folder"));
            }
            room.link(&parts, &target).map_err(failed)
        }
        _ => Err(refused("only files, folders and symbolic links are unpacked")),
    }
}

/// The parts of a name; none is the folder itself.
fn parts(name: &[u8]) -> Result<Vec<&[u8]>, &'static str> {
    if name.starts_with(b"/") {
        return Err("an absolute path");
    }
    let parts: Vec<&[u8]> =
        name.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".").collect();
    if parts.contains(&b"..".as_slice()) {
        return Err("a path that leads out of the folder");
    }
    if parts.len() > DEEPEST {
        return Err("too many folders in folders");
    }
    if name.contains(&0) { Err("a name with a NUL in it") } else { Ok(parts) }
}

/// Whether a link stays below the folder. A way up counts only at its beginning: after a name it could be a way up from
/// wherever another link leads.
fn stays_inside(target: &[u8], depth: usize) -> bool {
    if target.is_empty() || target.starts_with(b"/") || target.contains(&0) {
        return false;
    }
    let parts = target.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".");
    let up = parts.clone().take_while(|part| *part == b"..").count();
    up < depth && parts.skip(up).all(|part| part != b"..")
}

/// The content of an entry that is about another.
fn content(entry: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    entry.take(LONGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LONGEST { Err(io::Error::other("a name that is too long")) } else { Ok(bytes) }
}

/// Text that a NUL ends.
fn text(entry: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = content(entry)?;
    bytes.truncate(bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len()));
    Ok(bytes)
}

fn facts(entry: &mut impl Read, said: &mut Said) -> io::Result<()> {
    let bytes = content(entry)?;
    for fact in PaxExtensions::new(&bytes) {
        let fact = fact?;
        match fact.key_bytes() {
            b"path" => said.name = Some(fact.value_bytes().to_vec()),
            b"linkpath" => said.target = Some(fact.value_bytes().to_vec()),
            // Would say where the next entry begins.
            b"size" => return Err(io::Error::other("a size beside the entry")),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_out_are_refused() {
        for bad in ["/etc/passwd", "../a", "a/../../b", "a/..", "..", "a\0b", "//a"] {
            assert!(parts(bad.as_bytes()).is_err(), "{bad}");
        }
        assert_eq!(parts(b"./a//b/").unwrap(), [b"a", b"b"]);
        assert!(parts(b"./").unwrap().is_empty());
    }

    #[test]
    fn links_stay_inside() {
        for good in ["x", "x/y", "..", "../..", "../../z", "./x"] {
            assert!(stays_inside(good.as_bytes(), 3), "{good}");
        }
        for bad in ["", "/", "/etc", "../../..", "x/..", "up/../..", "../x/../y"] {
            assert!(!stays_inside(bad.as_bytes(), 3), "{bad}");
        }
    }
}
