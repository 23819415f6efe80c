//! Admission of what a program reads: standard input and files.

use std::collections::HashSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::{MAX_INPUT_FILES, check_relative};
use crate::Error;
use crate::plan::InputFile;
use crate::request::{FileSpec, MAX_STDIN_BYTES};

/// Returns the standard input, if one is given.
pub(crate) fn admit_stdin(text: Option<String>, base64: Option<&str>) -> Result<Option<Vec<u8>>, Error> {
    let stdin = text_or_base64("stdin", text, base64)?;
    match &stdin {
        Some(stdin) if stdin.len() > MAX_STDIN_BYTES => {
            Err(Error::invalid("stdin", "more than 64 MB; put it into a file instead"))
        }
        _ => Ok(stdin),
    }
}

/// Returns the files, decoded.
pub(crate) fn admit_files(specs: &[FileSpec], disk_bytes: u64) -> Result<Vec<InputFile>, Error> {
    if specs.len() > MAX_INPUT_FILES {
        return Err(Error::invalid("files", "more than 10000; send an archive instead"));
    }
    let mut seen = HashSet::new();
    let mut files = Vec::new();
    for spec in specs {
        let shown = spec.path.escape_debug();
        check_relative(&spec.path).map_err(|why| Error::invalid("files", format!("'{shown}': {why}")))?;
        if !seen.insert(&spec.path) {
            return Err(Error::invalid("files", format!("'{shown}' is listed twice")));
        }
        let content = text_or_base64("files", spec.content.clone(), spec.content_base64.as_deref())?
            .ok_or_else(|| {
                Error::invalid("files", format!("'{shown}' has neither content nor content_base64"))
            })?;
        files.push(InputFile { path: spec.path.clone(), mode: parse_mode(spec.mode.as_deref())?, content });
    }
    let bytes = files.iter().map(|file| file.content.len() as u64).sum();
    check_files_fit(files.len(), bytes, disk_bytes)?;
    Ok(files)
}

/// Checks that files are not too many, and fit on the disk.
pub(crate) fn check_files_fit(count: usize, total: u64, disk_bytes: u64) -> Result<(), Error> {
    if count > MAX_INPUT_FILES {
        return Err(Error::invalid("files", "more than 10000; send an archive instead"));
    }
    if total > disk_bytes {
        let (total, room) = (crate::quantity::show_bytes(total), crate::quantity::show_bytes(disk_bytes));
        return Err(Error::invalid(
            "files",
            format!("{total} of files do not fit into limits.disk_bytes of {room}"),
        ));
    }
    Ok(())
}

fn parse_mode(text: Option<&str>) -> Result<u32, Error> {
    let text = text.unwrap_or("0644");
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        _ => Err(Error::invalid("files", format!("mode '{text}' is not an octal number from 0000 to 0777"))),
    }
}

/// Decodes a field that is given as text or as base64.
pub(super) fn text_or_base64(
    field: &'static str,
    text: Option<String>,
    base64: Option<&str>,
) -> Result<Option<Vec<u8>>, Error> {
    match (text, base64) {
        (Some(_), Some(_)) => Err(Error::invalid(field, "given both as text and as base64")),
        (Some(text), None) => Ok(Some(text.into_bytes())),
        (None, Some(base64)) => {
            STANDARD.decode(base64).map(Some).map_err(|e| Error::invalid(field, format!("not base64: {e}")))
        }
        (None, None) => Ok(None),
    }
}
