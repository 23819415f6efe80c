//! Checks the headers of a tar archive before the tar library reads any of them into memory.

use std::io::{self, Read, Seek};

use tar::{Archive, EntryType};

/// Limits for the headers of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeaderLimits {
    /// Number of entries; each may have two more that extend it.
    pub entries: u64,
    /// Size in bytes of an entry that extends the next one: the tar library reads it into memory.
    pub extension_bytes: u64,
}

/// Why the headers of an archive are refused.
#[derive(Debug)]
pub enum HeaderError {
    /// The archive cannot be read.
    Unreadable(io::Error),
    /// The archive has too many entries.
    TooManyEntries,
    /// A name, a link target or an attribute is too long.
    TooLong,
    /// An entry is of a kind that is not allowed.
    Kind,
}

/// Reads only the headers. Accepts the kinds of entries, extensions included, for which `accepts` returns true.
///
/// # Errors
/// Says why the archive is refused.
pub fn check_tar_headers(
    from: impl Read + Seek,
    limits: HeaderLimits,
    accepts: impl Fn(EntryType) -> bool,
) -> Result<(), HeaderError> {
    let mut archive = Archive::new(from);
    let mut left = limits.entries.saturating_mul(3);
    for entry in archive.entries_with_seek().map_err(HeaderError::Unreadable)?.raw(true) {
        let entry = entry.map_err(HeaderError::Unreadable)?;
        left = left.checked_sub(1).ok_or(HeaderError::TooManyEntries)?;
        let kind = entry.header().entry_type();
        if !accepts(kind) {
            return Err(HeaderError::Kind);
        }
        let extends = matches!(
            kind,
            EntryType::GNULongName | EntryType::GNULongLink | EntryType::XHeader | EntryType::XGlobalHeader
        );
        if extends && entry.size() > limits.extension_bytes {
            return Err(HeaderError::TooLong);
        }
    }
    Ok(())
}
