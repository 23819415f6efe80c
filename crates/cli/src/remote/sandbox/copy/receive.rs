//! Copies out of a sandbox.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use hyper::{Method, Response, body::Incoming};
use serde_json::Value;

use super::pipe::{self, IncomingBytes};
use super::progress::CopyProgress;
use super::{files_url, sandbox_name, stat, unpack};
use crate::error::{CliError, quote_path};
use crate::os::UnpackFolder;
use crate::remote::http::Server;

const BYTES: &str = "application/octet-stream";

/// Copies to a local path. Returns the number of bytes, or `None` if interrupted.
pub(super) async fn to_file(
    server: &Server,
    id: &str,
    path: &str,
    to: &Path,
) -> Result<Option<u64>, CliError> {
    let metadata = stat(server, id, path).await?;
    let target = match sandbox_name(path) {
        Some(name) if to.is_dir() && !path.ends_with("/.") => to.join(name),
        _ => to.to_path_buf(),
    };
    let response = fetch(server, id, path, &metadata).await?;
    if metadata["kind"] == "directory" {
        let take = move |archive: IncomingBytes| unpack_into(archive, &target);
        return pipe::receive(response, CopyProgress::new(None), take).await;
    }
    let mode = metadata["permissions"].as_str().and_then(|text| u32::from_str_radix(text, 8).ok());
    let take = move |bytes: IncomingBytes| write_file(bytes, &target, mode.unwrap_or(0o644));
    pipe::receive(response, CopyProgress::new(metadata["size"].as_u64()), take).await
}

pub(super) async fn to_stdout(server: &Server, id: &str, path: &str) -> Result<u8, CliError> {
    let metadata = stat(server, id, path).await?;
    let response = fetch(server, id, path, &metadata).await?;
    let copied = pipe::receive(response, CopyProgress::new(metadata["size"].as_u64()), |mut bytes| {
        let failed =
            |error: io::Error| CliError::host(format!("cp: cannot write to standard output: {error}"));
        let mut out = io::stdout().lock();
        io::copy(&mut bytes, &mut out).and_then(|_| out.flush()).map_err(failed)
    });
    Ok(if copied.await?.is_some() { 0 } else { 130 })
}

/// Requests a file as it is, or a folder as an archive.
async fn fetch(
    server: &Server,
    id: &str,
    path: &str,
    metadata: &Value,
) -> Result<Response<Incoming>, CliError> {
    let url = match metadata["kind"].as_str() {
        Some("file") => files_url(id, "", &[("path", path)]),
        Some("directory") => files_url(id, "/archive", &[("path", path), ("format", "tar")]),
        _ => return Err(CliError::invalid("cp: only files and folders can be copied")),
    };
    server.send(Method::GET, &url, BYTES, None).await
}

fn unpack_into(archive: IncomingBytes, target: &Path) -> Result<(), CliError> {
    let failed =
        |error: io::Error| CliError::host(format!("cp: cannot write to {}: {error}", quote_path(target)));
    match fs::create_dir(target) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
        _ => {}
    }
    unpack::unpack(archive, UnpackFolder::open(target).map_err(failed)?)
}

/// Writes to a temporary name first, so that other processes see the old file or the complete new one.
fn write_file(mut bytes: IncomingBytes, target: &Path, mode: u32) -> Result<(), CliError> {
    let failed =
        |error: io::Error| CliError::host(format!("cp: cannot write {}: {error}", quote_path(target)));
    let mut part = target.as_os_str().to_owned();
    part.push(format!(".part-{}", std::process::id()));
    let part = PathBuf::from(part);
    let file = OpenOptions::new().write(true).create_new(true).open(&part).map_err(failed)?;
    let written = fill(&file, &mut bytes, mode).and_then(|()| fs::rename(&part, target));
    if written.is_err() {
        let _best_effort = fs::remove_file(&part);
    }
    written.map_err(failed)
}

fn fill(mut file: &File, bytes: &mut impl Read, mode: u32) -> io::Result<()> {
    io::copy(bytes, &mut file)?;
    UnpackFolder::set_permissions(file, mode)
}
