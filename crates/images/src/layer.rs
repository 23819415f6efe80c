//! Decompresses a layer into a plain tar archive and checks its digest; only then the archive is parsed.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};

use belljar_beneath::{ContentDigest, Hasher, HeaderError, HeaderLimits, check_tar_headers};
use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;

use crate::error::ImageError;

/// Bound for the content of a compressed layer: `MAX_RATIO` times its size, and at least `MIN_BOUND_BYTES`.
const MAX_RATIO: u64 = 200;
const MIN_BOUND_BYTES: u64 = 64 << 20;
/// Maximum size of an extension entry, which the tar library reads into memory, in bytes.
const MAX_EXTENSION_BYTES: u64 = 1 << 20;
const CHUNK_BYTES: usize = 256 << 10;

/// Writes the layer without compression, and checks its digest.
pub(crate) fn expand(
    from: impl Read,
    size: u64,
    to: &mut File,
    digest: &ContentDigest,
    left: u64,
) -> Result<(), ImageError> {
    let mut from = BufReader::with_capacity(CHUNK_BYTES, from);
    let start = from.fill_buf().map_err(|error| unreadable(&error))?;
    let kind = (start.starts_with(b"\x1f\x8b"), start.starts_with(b"\x28\xb5\x2f\xfd"));
    let ratio = size.saturating_mul(MAX_RATIO).max(MIN_BOUND_BYTES);
    let bound = left.min(ratio);
    let mut plain: Box<dyn Read> = match kind {
        (true, _) => Box::new(MultiGzDecoder::new(from)),
        (_, true) => Box::new(StreamingDecoder::new(from).map_err(|error| unreadable(&error))?),
        _ => Box::new(from),
    };
    let (mut hasher, mut written, mut chunk) = (Hasher::raw(), 0_u64, vec![0; CHUNK_BYTES]);
    loop {
        let read = match plain.read(&mut chunk) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(unreadable(&error)),
        };
        written += read as u64;
        if written > bound {
            return Err(match bound == left {
                true => ImageError::TooLarge { limit: left, what: "bytes in a layer" },
                false => ImageError::refused(format!("a layer of {size} bytes unpacks to more than {bound}")),
            });
        }
        hasher.bytes(&chunk[..read]);
        to.write_all(&chunk[..read]).map_err(|error| ImageError::io("unpack", "a layer", error))?;
    }
    match hasher.finish() == *digest {
        true => Ok(()),
        false => Err(ImageError::Tampered { what: format!("layer sha256:{digest}") }),
    }
}

fn unreadable(error: &dyn std::fmt::Display) -> ImageError {
    ImageError::refused(format!("cannot read a layer ({error})"))
}

/// Checks the headers before the tar library reads names and attributes into memory.
pub(crate) fn check_headers(archive: &mut File, entries: u64) -> Result<(), ImageError> {
    rewind(archive)?;
    let limits = HeaderLimits { entries, extension_bytes: MAX_EXTENSION_BYTES };
    // Entries that cannot be unpacked are skipped later.
    check_tar_headers(&mut *archive, limits, |_| true).map_err(|error| match error {
        HeaderError::Unreadable(error) => unreadable(&error),
        HeaderError::TooManyEntries => ImageError::TooLarge { limit: entries, what: "entries" },
        HeaderError::TooLong => ImageError::refused("a name or attribute in a layer is too long"),
        HeaderError::Kind => ImageError::refused("an entry of a layer is of an unknown kind"),
    })?;
    rewind(archive)
}

fn rewind(archive: &mut File) -> Result<(), ImageError> {
    archive.seek(SeekFrom::Start(0)).map(drop).map_err(|error| unreadable(&error))
}

#[cfg(test)]
#[path = "layer_tests.rs"]
mod tests;
