//! `belljar sandbox cp`: copies files and folders into or out of a sandbox, without holding them in memory.
//!
//! ```text
//! into:    thread: file, or pack ──▶ few chunks ──▶ request body
//! out of:  response body ──▶ few chunks ──▶ thread: file, or unpack
//! ```

mod pack;
mod pipe;
mod progress;
mod receive;
mod unpack;

use std::fs::{self, File, Metadata};
use std::io;
use std::path::{Path, PathBuf};

use hyper::Method;
use serde_json::{Value, json};

use super::sandbox_url;
use crate::error::{CliError, quote_path};
use crate::os;
use crate::remote::http::{Server, query};
use crate::say;

use pipe::OutgoingBytes;
use progress::CopyProgress;

/// Prefix of every sandbox id.
const ID: &str = "sbx_";

/// Source or target of a copy, as typed.
#[derive(Debug, PartialEq, Eq)]
enum CopyPath<'a> {
    /// Standard input or output.
    Stream,
    Local(&'a Path),
    Sandbox {
        id: &'a str,
        path: &'a str,
    },
}

impl<'a> CopyPath<'a> {
    fn parse(text: &'a str) -> Self {
        match text.split_once(':') {
            _ if text == "-" => Self::Stream,
            // An empty path is the workspace itself.
            Some((id, "")) if id.starts_with(ID) => Self::Sandbox { id, path: "." },
            Some((id, path)) if id.starts_with(ID) => Self::Sandbox { id, path },
            _ => Self::Local(Path::new(text)),
        }
    }
}

pub(super) fn copy(server: &Server, source: &str, destination: &str, json: bool) -> Result<u8, CliError> {
    let copied = match (CopyPath::parse(source), CopyPath::parse(destination)) {
        (CopyPath::Sandbox { id, path }, CopyPath::Local(to)) => {
            os::runtime()?.block_on(receive::to_file(server, id, path, to))?
        }
        (CopyPath::Sandbox { id, path }, CopyPath::Stream) => {
            return os::runtime()?.block_on(receive::to_stdout(server, id, path));
        }
        (from @ (CopyPath::Local(_) | CopyPath::Stream), CopyPath::Sandbox { id, path }) => {
            os::runtime()?.block_on(send(server, &from, id, path))?
        }
        _ => {
            let advice = "cp: exactly one side must be ID:PATH, with the id of a sandbox";
            return Err(CliError::invalid(advice));
        }
    };
    let Some(copied) = copied else { return Ok(130) };
    if json {
        say::answer(&json!({"bytes": copied}).to_string());
    }
    Ok(0)
}

/// Copies into a sandbox. Returns the number of bytes, or `None` if interrupted.
async fn send(server: &Server, from: &CopyPath<'_>, id: &str, path: &str) -> Result<Option<u64>, CliError> {
    let existing = server.find(&files_url(id, "/stat", &[("path", path), ("follow", "true")])).await?;
    let is_folder = existing.as_ref().is_some_and(|file| file["kind"] == "directory");
    let CopyPath::Local(source) = from else {
        let url = file_url(id, path, "0644");
        return pipe::send(server, &url, OutgoingBytes::from_reader(io::stdin()), CopyProgress::new(None))
            .await;
    };
    let unreadable =
        |error: io::Error| CliError::invalid(format!("cp: cannot read {}: {error}", quote_path(source)));
    let metadata = fs::metadata(source).map_err(unreadable)?;
    let target = match local_name(source)? {
        Some(name) if is_folder || path.ends_with('/') => format!("{}/{name}", path.trim_end_matches('/')),
        _ => path.to_owned(),
    };
    if metadata.is_dir() {
        return send_folder(server, source, id, &target).await;
    }
    if !metadata.is_file() {
        return Err(CliError::invalid(format!("cp: {} is neither a file nor a folder", quote_path(source))));
    }
    let file = File::open(source).map_err(unreadable)?;
    let url = file_url(id, &target, &mode_of(&metadata));
    pipe::send(server, &url, OutgoingBytes::from_reader(file), CopyProgress::new(Some(metadata.len()))).await
}

async fn send_folder(server: &Server, source: &Path, id: &str, to: &str) -> Result<Option<u64>, CliError> {
    let folder = json!({"path": to, "parents": true});
    server.call(Method::POST, &sandbox_url(id, "/files/folder"), Some(&folder)).await?;
    let source = PathBuf::from(source);
    let url = files_url(id, "/archive", &[("path", to), ("format", "tar")]);
    let archive = OutgoingBytes::from_writer(move |sink| pack::pack(&source, sink));
    pipe::send(server, &url, archive, CopyProgress::new(None)).await
}

fn file_url(id: &str, path: &str, permissions: &str) -> String {
    let asked = [
        ("path", path),
        ("mode", "replace"),
        ("atomic", "true"),
        ("parents", "true"),
        ("permissions", permissions),
    ];
    files_url(id, "", &asked)
}

/// Builds a URL path below a sandbox's files.
fn files_url(id: &str, rest: &str, asked: &[(&str, &str)]) -> String {
    let asked: Vec<_> = asked.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    sandbox_url(id, &format!("/files{rest}?{}", query(&asked)))
}

fn mode_of(metadata: &Metadata) -> String {
    format!("{:04o}", os::permissions(metadata))
}

/// Returns the last part of a local path; `None` if it stands for a folder's content (`.`, `x/.`).
fn local_name(path: &Path) -> Result<Option<&str>, CliError> {
    if path.as_os_str().as_encoded_bytes().ends_with(b"/.") {
        return Ok(None);
    }
    let Some(name) = path.file_name() else { return Ok(None) };
    let name = name.to_str();
    name.map(Some).ok_or_else(|| CliError::invalid(format!("cp: {} is not UTF-8", quote_path(path))))
}

/// Returns the last part of a path in a sandbox; `None` if it stands for a folder's content.
fn sandbox_name(path: &str) -> Option<&str> {
    let last = path.trim_end_matches('/').rsplit('/').next();
    last.filter(|name| !matches!(*name, "" | "." | ".."))
}

/// Returns the metadata of a file in a sandbox.
async fn stat(server: &Server, id: &str, path: &str) -> Result<Value, CliError> {
    server.call(Method::GET, &files_url(id, "/stat", &[("path", path), ("follow", "true")]), None).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_with_a_sandbox_id_are_remote() {
        assert_eq!(CopyPath::parse("sbx_1:/a:b"), CopyPath::Sandbox { id: "sbx_1", path: "/a:b" });
        assert_eq!(CopyPath::parse("sbx_1:"), CopyPath::Sandbox { id: "sbx_1", path: "." });
        for here in ["sbx_1", "a:b", "./sbx_1:x", "C:x"] {
            assert_eq!(CopyPath::parse(here), CopyPath::Local(Path::new(here)));
        }
        assert_eq!(CopyPath::parse("-"), CopyPath::Stream);
    }

    #[test]
    fn file_names_are_extracted_from_paths() {
        assert_eq!(["a/b", "a/b/", "/"].map(sandbox_name), [Some("b"), Some("b"), None]);
        assert_eq!([".", "a/.", "a/..", ""].map(sandbox_name), [None; 4]);
        let here = |path: &'static str| local_name(Path::new(path)).unwrap();
        assert_eq!(
            ["a/b", "a/b/", "/", ".", "a/.", ".."].map(here),
            [Some("b"), Some("b"), None, None, None, None]
        );
    }
}
