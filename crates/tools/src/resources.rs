//! Sandbox files as MCP resources: `belljar://sandboxes/SANDBOX/workspace/plot.png`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use belljar_engine::sandbox_handle::{FileKind, Files};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use rmcp::model::{Resource, ResourceContents, ResourceTemplate};

use crate::Error;
use crate::backend::ToolBackend;
use crate::execute::{as_text, image_mime_type, read_bytes};

const URI_PREFIX: &str = "belljar://sandboxes/";
/// Characters that are not percent-encoded in a path.
const UNENCODED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'/').remove(b'.').remove(b'-').remove(b'_').remove(b'~');
/// The folder whose files are listed.
const LISTED_FOLDER: &str = "/workspace";
/// Bounds of a listing: files, visited folders, and entries per folder.
const MAX_LISTED_FILES: usize = 500;
const MAX_VISITED_FOLDERS: usize = 50;
const MAX_FOLDER_ENTRIES: u32 = 256;

/// Lists the files of the caller's sandboxes, up to the bounds.
pub(crate) async fn list(backend: &dyn ToolBackend) -> Vec<Resource> {
    let mut found = Vec::new();
    for sandbox in backend.sandboxes() {
        // A sandbox that was closed meanwhile is skipped.
        if let Ok(opened) = backend.sandbox_files(&sandbox).await {
            list_sandbox(opened.files(), &sandbox, &mut found).await;
        }
    }
    found
}

async fn list_sandbox(files: &dyn Files, sandbox: &str, found: &mut Vec<Resource>) {
    let mut folders = vec![LISTED_FOLDER.to_owned()];
    let mut visited = 0;
    while let Some(folder) = folders.pop() {
        visited += 1;
        let Ok(page) = files.list(&folder, None, MAX_FOLDER_ENTRIES).await else { continue };
        for entry in page.entries {
            let path = format!("{folder}/{}", entry.name);
            match entry.metadata.kind {
                FileKind::File if found.len() < MAX_LISTED_FILES => {
                    let name = path.trim_start_matches(LISTED_FOLDER).trim_start_matches('/');
                    found.push(Resource::new(file_uri(sandbox, &path), name).with_size(entry.metadata.size));
                }
                FileKind::Directory if visited + folders.len() < MAX_VISITED_FOLDERS => folders.push(path),
                _ => {}
            }
        }
    }
}

pub(crate) fn file_template() -> ResourceTemplate {
    ResourceTemplate::new(format!("{URI_PREFIX}{{sandbox}}/{{+path}}"), "file")
        .with_title("A file in a sandbox")
        .with_description("Addressed by sandbox id and absolute path, without the leading slash.")
}

pub(crate) async fn read(backend: &dyn ToolBackend, uri: &str) -> Result<ResourceContents, Error> {
    let (sandbox, path) =
        parse_uri(uri).ok_or_else(|| Error::Call(format!("{uri} is not a sandbox file")))?;
    let opened = backend.sandbox_files(sandbox).await?;
    let (size, bytes) = read_bytes(opened.files(), &path, 0).await?;
    if size > bytes.len() as u64 {
        return Err(Error::Call(format!("{path} is too large; read it in parts with read_file")));
    }
    let contents = match (image_mime_type(&bytes), as_text(&bytes)) {
        (Some(kind), _) => ResourceContents::blob(STANDARD.encode(&bytes), uri).with_mime_type(kind),
        (None, Some(text)) => ResourceContents::text(text, uri),
        (None, None) => {
            ResourceContents::blob(STANDARD.encode(&bytes), uri).with_mime_type("application/octet-stream")
        }
    };
    Ok(contents)
}

fn file_uri(sandbox: &str, path: &str) -> String {
    format!("{URI_PREFIX}{sandbox}{}", utf8_percent_encode(path, UNENCODED))
}

fn parse_uri(uri: &str) -> Option<(&str, String)> {
    let (sandbox, path) = uri.strip_prefix(URI_PREFIX)?.split_once('/')?;
    let path = percent_decode_str(path).decode_utf8().ok()?;
    (!sandbox.is_empty() && !path.is_empty()).then(|| (sandbox, format!("/{path}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_round_trip() {
        for path in ["/workspace/a.txt", "/workspace/über uns/100%?#.png"] {
            let uri = file_uri("sbx_1", path);
            assert!(uri.is_ascii() && !uri.contains([' ', '?', '#']), "{uri}");
            assert_eq!(parse_uri(&uri), Some(("sbx_1", path.to_owned())));
        }
        for wrong in
            ["file:///etc/passwd", "belljar://sandboxes/", "belljar://sandboxes//a", "belljar://sandboxes/a/"]
        {
            assert_eq!(parse_uri(wrong), None, "{wrong}");
        }
    }
}
