//! Copies out of a sandbox.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use hyper::{Method, Response, body::Incoming};
use serde_json::Value;

use super::meter::Meter;
use super::pipe::{self, Incomings};
use super::{files, name_inside, stat, unpack};
use crate::failure::{Failure, shown};
use crate::os::Room;
use crate::remote::http::Server;

const BYTES: &str = "application/octet-stream";

/// Copies to a local path. Returns the number of bytes, or `None` if interrupted.
pub(super) async fn to_file(
    server: &Server,
    id: &str,
    path: &str,
    to: &Path,
) -> Result<Option<u64>, Failure> {
    let there = stat(server, id, path).await?;
    let target = match name_inside(path) {
        Some(name) if to.is_dir() && !path.ends_with("/.") => to.join(name),
        _ => to.to_path_buf(),
    };
    let response = fetch(server, id, path, &there).await?;
    if there["kind"] == "directory" {
        let take = move |archive: Incomings| unpack_into(archive, &target);
        return pipe::receive(response, Meter::new(None), take).await;
    }
    let mode = there["permissions"].as_str().and_then(|text| u32::from_str_radix(text, 8).ok());
    let take = move |bytes: Incomings| write_file(bytes, &target, mode.unwrap_or(0o644));
    pipe::receive(response, Meter::new(there["size"].as_u64()), take).await
}

pub(super) async fn to_stdout(server: &Server, id: &str, path: &str) -> Result<u8, Failure> {
    let there = stat(server, id, path).await?;
    let response = fetch(server, id, path, &there).await?;
    let copied = pipe::receive(response, Meter::new(there["size"].as_u64()), |mut bytes| {
        let failed =
            |error: io::Error| Failure::host(format!("cp: cannot write to standard output: {error}"));
        let mut out = io::stdout().lock();
        io::copy(&mut bytes, &mut out).and_then(|_| out.flush()).map_err(failed)
    });
    Ok(if copied.await?.is_some() { 0 } else { 130 })
}

/// Requests a file as it is, or a folder as an archive.
async fn fetch(server: &Server, id: &str, path: &str, there: &Value) -> Result<Response<Incoming>, Failure> {
    let place = match there["kind"].as_str() {
        Some("file") => files(id, "", &[("path", path)]),
        Some("directory") => files(id, "/archive", &[("path", path), ("format", "tar")]),
        _ => return Err(Failure::invalid("cp: only files and folders can be copied")),
    };
    server.send(Method::GET, &place, BYTES, None).await
}

fn unpack_into(archive: Incomings, target: &Path) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::host(format!("cp: cannot write to {}: {error}", shown(target)));
    match fs::create_dir(target) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
        _ => {}
    }
    unpack::unpack(archive, Room::open(target).map_err(failed)?)
}

/// Writes to a temporary name first, so that other processes see the old file or the complete new one.
fn write_file(mut bytes: Incomings, target: &Path, mode: u32) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::host(format!("cp: cannot write {}: {error}", shown(target)));
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
    Room::settle(file, mode)
}
