//! Unpacks an archive from a sandbox, which is untrusted: its paths may only lead into the target folder.

use std::io::{self, Read};

use belljar_beneath::InnerPath;
use tar::{Archive, EntryType, PaxExtensions};

use crate::error::CliError;
use crate::os::UnpackFolder;

/// Maximum length of a name or of the extended headers of one entry.
const MAX_HEADER_BYTES: u64 = 64 << 10;
/// Maximum depth of folders.
const MAX_DEPTH: usize = 128;

/// Extended names from the header entries before an entry.
#[derive(Default)]
struct EntryNames {
    name: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
}

/// Unpacks all entries into the target folder.
pub(super) fn unpack(source: impl Read, mut target: UnpackFolder) -> Result<(), CliError> {
    let broken = |error: io::Error| CliError::host(format!("cp: the sandbox's archive: {error}"));
    let mut archive = Archive::new(source);
    let mut names = EntryNames::default();
    // Raw entries, because the library would read extended names into memory without a bound.
    for entry in archive.entries().map_err(broken)?.raw(true) {
        let mut entry = entry.map_err(broken)?;
        match entry.header().entry_type() {
            EntryType::GNULongName => names.name = Some(text(&mut entry).map_err(broken)?),
            EntryType::GNULongLink => names.target = Some(text(&mut entry).map_err(broken)?),
            EntryType::XHeader => read_pax(&mut entry, &mut names).map_err(broken)?,
            EntryType::XGlobalHeader => {}
            _ => unpack_entry(&mut entry, std::mem::take(&mut names), &mut target)?,
        }
    }
    target.apply_pending_modes().map_err(broken)
}

/// Unpacks one entry.
fn unpack_entry<R: Read>(
    entry: &mut tar::Entry<'_, R>,
    names: EntryNames,
    target: &mut UnpackFolder,
) -> Result<(), CliError> {
    let header = entry.header().clone();
    let name = names.name.unwrap_or_else(|| header.path_bytes().into_owned());
    let refused = |why: &str| {
        let name = String::from_utf8_lossy(&name);
        CliError::host(format!("cp: the sandbox's archive: '{}': {why}", name.escape_debug()))
    };
    let failed = |error: io::Error| refused(&error.to_string());
    let path = InnerPath::parse(&name, MAX_DEPTH).map_err(refused)?;
    let mode = header.mode().map_err(failed)?;
    let Some(path) = path else {
        // The target folder itself belongs to the user.
        let is_folder = header.entry_type() == EntryType::Directory;
        return if is_folder { Ok(()) } else { Err(refused("it replaces the folder itself")) };
    };
    match header.entry_type() {
        EntryType::Directory => target.create_folder(&path, mode).map_err(failed),
        EntryType::Regular => {
            let mut file = target.create_file(&path).map_err(failed)?;
            let size = header.size().map_err(failed)?;
            if io::copy(entry, &mut file).map_err(failed)? != size {
                return Err(refused("the archive ends early"));
            }
            UnpackFolder::set_permissions(&file, mode).map_err(failed)
        }
        EntryType::Symlink => {
            let link = names.target.or_else(|| header.link_name_bytes().map(Into::into)).unwrap_or_default();
            if !path.may_link_to(&link) {
                return Err(refused("a symbolic link that leads out of the folder"));
            }
            target.create_link(&path, &link).map_err(failed)
        }
        _ => Err(refused("only files, folders and symbolic links are unpacked")),
    }
}

/// Reads the content of a header entry, within a bound.
fn content(entry: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    entry.take(MAX_HEADER_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_HEADER_BYTES {
        Err(io::Error::other("a name that is too long"))
    } else {
        Ok(bytes)
    }
}

/// Reads text up to a NUL.
fn text(entry: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = content(entry)?;
    bytes.truncate(bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len()));
    Ok(bytes)
}

fn read_pax(entry: &mut impl Read, names: &mut EntryNames) -> io::Result<()> {
    let bytes = content(entry)?;
    for fact in PaxExtensions::new(&bytes) {
        let fact = fact?;
        match fact.key_bytes() {
            b"path" => names.name = Some(fact.value_bytes().to_vec()),
            b"linkpath" => names.target = Some(fact.value_bytes().to_vec()),
            // It would change where the next entry starts.
            b"size" => return Err(io::Error::other("a size beside the entry")),
            _ => {}
        }
    }
    Ok(())
}
