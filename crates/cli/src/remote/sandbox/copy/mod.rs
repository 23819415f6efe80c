//! `belljar sandbox cp`: copies files and folders into or out of a sandbox, without holding them in memory.
//!
//! ```text
//! into:    thread: file, or pack ──▶ few chunks ──▶ request body
//! out of:  response body ──▶ few chunks ──▶ thread: file, or unpack
//! ```

mod meter;
mod pack;
mod pipe;
mod receive;
mod unpack;

use std::fs::{self, File, Metadata};
use std::io;
use std::path::{Path, PathBuf};

use hyper::Method;
use serde_json::{Value, json};

use super::at;
use crate::failure::{Failure, shown};
use crate::os;
use crate::remote::http::{Server, query};
use crate::say;

use meter::Meter;
use pipe::Outgoing;

/// Prefix of every sandbox id.
const ID: &str = "sbx_";

/// Source or target of a copy, as typed.
#[derive(Debug, PartialEq, Eq)]
enum End<'a> {
    /// Standard input or output.
    Stream,
    Here(&'a Path),
    There {
        id: &'a str,
        path: &'a str,
    },
}

impl<'a> End<'a> {
    fn of(text: &'a str) -> Self {
        match text.split_once(':') {
            _ if text == "-" => Self::Stream,
            // An empty path is the workspace itself.
            Some((id, "")) if id.starts_with(ID) => Self::There { id, path: "." },
            Some((id, path)) if id.starts_with(ID) => Self::There { id, path },
            _ => Self::Here(Path::new(text)),
        }
    }
}

pub(super) fn copy(server: &Server, source: &str, destination: &str, json: bool) -> Result<u8, Failure> {
    let copied = match (End::of(source), End::of(destination)) {
        (End::There { id, path }, End::Here(to)) => {
            os::runtime()?.block_on(receive::to_file(server, id, path, to))?
        }
        (End::There { id, path }, End::Stream) => {
            return os::runtime()?.block_on(receive::to_stdout(server, id, path));
        }
        (from @ (End::Here(_) | End::Stream), End::There { id, path }) => {
            os::runtime()?.block_on(send(server, &from, id, path))?
        }
        _ => {
            let advice = "cp: exactly one side must be ID:PATH, with the id of a sandbox";
            return Err(Failure::invalid(advice));
        }
    };
    let Some(copied) = copied else { return Ok(130) };
    if json {
        say::answer(&json!({"bytes": copied}).to_string());
    }
    Ok(0)
}

/// Copies into a sandbox. Returns the number of bytes, or `None` if interrupted.
async fn send(server: &Server, from: &End<'_>, id: &str, path: &str) -> Result<Option<u64>, Failure> {
    let there = server.find(&files(id, "/stat", &[("path", path), ("follow", "true")])).await?;
    let is_folder = there.as_ref().is_some_and(|file| file["kind"] == "directory");
    let End::Here(source) = from else {
        let place = file_place(id, path, "0644");
        return pipe::send(server, &place, Outgoing::reading(io::stdin()), Meter::new(None)).await;
    };
    let unreadable =
        |error: io::Error| Failure::invalid(format!("cp: cannot read {}: {error}", shown(source)));
    let metadata = fs::metadata(source).map_err(unreadable)?;
    let target = match name_of(source)? {
        Some(name) if is_folder || path.ends_with('/') => format!("{}/{name}", path.trim_end_matches('/')),
        _ => path.to_owned(),
    };
    if metadata.is_dir() {
        return send_folder(server, source, id, &target).await;
    }
    if !metadata.is_file() {
        return Err(Failure::invalid(format!("cp: {} is neither a file nor a folder", shown(source))));
    }
    let file = File::open(source).map_err(unreadable)?;
    let place = file_place(id, &target, &mode_of(&metadata));
    pipe::send(server, &place, Outgoing::reading(file), Meter::new(Some(metadata.len()))).await
}

async fn send_folder(server: &Server, source: &Path, id: &str, to: &str) -> Result<Option<u64>, Failure> {
    let folder = json!({"path": to, "parents": true});
    server.call(Method::POST, &at(id, "/files/folder"), Some(&folder)).await?;
    let source = PathBuf::from(source);
    let place = files(id, "/archive", &[("path", to), ("format", "tar")]);
    let archive = Outgoing::written(move |sink| pack::pack(&source, sink));
    pipe::send(server, &place, archive, Meter::new(None)).await
}

fn file_place(id: &str, path: &str, permissions: &str) -> String {
    let asked = [
        ("path", path),
        ("mode", "replace"),
        ("atomic", "true"),
        ("parents", "true"),
        ("permissions", permissions),
    ];
    files(id, "", &asked)
}

/// Builds a URL path below a sandbox's files.
fn files(id: &str, rest: &str, asked: &[(&str, &str)]) -> String {
    let asked: Vec<_> = asked.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    at(id, &format!("/files{rest}?{}", query(&asked)))
}

fn mode_of(metadata: &Metadata) -> String {
    format!("{:04o}", os::permissions(metadata))
}

/// Returns the last part of a local path; `None` if it stands for a folder's content (`.`, `x/.`).
fn name_of(path: &Path) -> Result<Option<&str>, Failure> {
    if path.as_os_str().as_encoded_bytes().ends_with(b"/.") {
        return Ok(None);
    }
    let Some(name) = path.file_name() else { return Ok(None) };
    let name = name.to_str();
    name.map(Some).ok_or_else(|| Failure::invalid(format!("cp: {} is not UTF-8", shown(path))))
}

/// Returns the last part of a path in a sandbox; `None` if it stands for a folder's content.
fn name_inside(path: &str) -> Option<&str> {
    let last = path.trim_end_matches('/').rsplit('/').next();
    last.filter(|name| !matches!(*name, "" | "." | ".."))
}

/// Returns the metadata of a file in a sandbox.
async fn stat(server: &Server, id: &str, path: &str) -> Result<Value, Failure> {
    server.call(Method::GET, &files(id, "/stat", &[("path", path), ("follow", "true")]), None).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_id_makes_a_path_one_of_a_sandbox() {
        assert_eq!(End::of("sbx_1:/a:b"), End::There { id: "sbx_1", path: "/a:b" });
        assert_eq!(End::of("sbx_1:"), End::There { id: "sbx_1", path: "." });
        for here in ["sbx_1", "a:b", "./sbx_1:x", "C:x"] {
            assert_eq!(End::of(here), End::Here(Path::new(here)));
        }
        assert_eq!(End::of("-"), End::Stream);
    }

    #[test]
    fn names_are_those_of_files() {
        assert_eq!(["a/b", "a/b/", "/"].map(name_inside), [Some("b"), Some("b"), None]);
        assert_eq!([".", "a/.", "a/..", ""].map(name_inside), [None; 4]);
        let here = |path: &'static str| name_of(Path::new(path)).unwrap();
        assert_eq!(
            ["a/b", "a/b/", "/", ".", "a/.", ".."].map(here),
            [Some("b"), Some("b"), None, None, None, None]
        );
    }
}
