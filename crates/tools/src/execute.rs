//! Executes tool calls: converts the input to a request, passes it to the backend, and builds the answer.

use std::io::Cursor;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use belljar_engine::packages::Progress;
use belljar_engine::policy::Verdict;
use belljar_engine::provider::BoxFuture;
use belljar_engine::quantity::{show_bytes, show_duration};
use belljar_engine::request::Request;
use belljar_engine::sandbox_handle::{DirectoryEntry, FileKind, Files, WriteOptions};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::time::Duration;
use tokio::io::AsyncReadExt;

use crate::answer::{AnswerImage, ToolAnswer};
use crate::backend::ToolBackend;
use crate::input::{
    CheckCode, ListFiles, ReadFile, RunCode, RunCommand, SandboxClose, SandboxOpen, WriteFile,
};
use crate::table::{Tool, ToolKind};
use crate::{Error, render};

/// Maximum number of bytes read from a file at once; also the maximum size of an image.
const MAX_READ_BYTES: u64 = 3 << 20;
/// Maximum number of bytes of a file in one answer, unless it is an image.
const MAX_CONTENT_BYTES: usize = 256 << 10;
/// Maximum number of folder entries in one answer.
const MAX_LISTED_ENTRIES: u32 = 256;

/// Output of `sandbox_close`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct CloseResult {
    /// The closed sandbox.
    sandbox: String,
}

/// Output of `read_file`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct FileContent {
    /// Path of the file.
    path: String,
    /// Size of the file in bytes.
    size: u64,
    /// Offset of the first returned byte.
    offset: u64,
    /// Content, if it is text.
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    /// Content in base64, if it is not text.
    #[serde(skip_serializing_if = "Option::is_none")]
    content_base64: Option<String>,
    /// Offset of the next part, if there is more.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_offset: Option<u64>,
}

/// Output of `write_file`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct WriteResult {
    /// Path of the file.
    path: String,
    /// Number of bytes written.
    bytes: u64,
}

/// Output of `list_files`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct FolderListing {
    /// Path of the folder.
    path: String,
    /// Entries, sorted by name.
    entries: Vec<FolderItem>,
    /// Whether there are more entries.
    truncated: bool,
}

/// An entry of a folder.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct FolderItem {
    name: String,
    /// file, folder, link or other.
    kind: &'static str,
    size: u64,
}

/// Output of `check_code`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct CheckResult {
    /// passed or refused.
    status: &'static str,
    /// Why the code would be refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// Findings, in the order of the code.
    findings: Vec<Map<String, Value>>,
}

impl Tool {
    /// Executes a call of the tool.
    ///
    /// # Errors
    /// Says why the call failed, in words for a model.
    pub async fn call(
        &self,
        backend: &dyn ToolBackend,
        input: Map<String, Value>,
        progress: &mut dyn Progress,
        cancel: BoxFuture<'_, ()>,
    ) -> Result<ToolAnswer, Error> {
        let (request, inside) = match self.kind {
            ToolKind::RunCode => {
                self.parse_input::<RunCode>(input)?.into_request().map_err(|why| self.input_error(&why))?
            }
            ToolKind::RunCommand => self.parse_input::<RunCommand>(input)?.into_request(),
            _ => {
                return tokio::select! {
                    answer = self.call_cancel_safe(backend, input, progress) => answer,
                    () = cancel => Err(Error::Cancelled),
                };
            }
        };
        render::render_result(&backend.run(request, inside.as_deref(), progress, cancel).await?)
    }

    /// Executes a call that can be canceled by dropping the future.
    async fn call_cancel_safe(
        &self,
        backend: &dyn ToolBackend,
        input: Map<String, Value>,
        progress: &mut dyn Progress,
    ) -> Result<ToolAnswer, Error> {
        match self.kind {
            ToolKind::SandboxOpen => open_sandbox(backend, self.parse_input(input)?, progress).await,
            ToolKind::SandboxClose => close_sandbox(backend, self.parse_input(input)?).await,
            ToolKind::ReadFile => {
                let ReadFile { sandbox, path, offset } = self.parse_input(input)?;
                read_file(backend.sandbox_files(&sandbox).await?.files(), path, offset.unwrap_or(0)).await
            }
            ToolKind::WriteFile => {
                let (sandbox, path, bytes) = self.parse_write(self.parse_input(input)?)?;
                write_file(backend.sandbox_files(&sandbox).await?.files(), path, bytes).await
            }
            ToolKind::ListFiles => {
                let ListFiles { sandbox, path } = self.parse_input(input)?;
                let path = path.unwrap_or_else(|| "/workspace".to_owned());
                list_folder(backend.sandbox_files(&sandbox).await?.files(), path).await
            }
            ToolKind::CheckCode => {
                check_code(backend, self.parse_input::<CheckCode>(input)?.into_request()).await
            }
            ToolKind::RunCode | ToolKind::RunCommand => Err(self.input_error("cannot be executed here")),
        }
    }

    fn parse_input<T: DeserializeOwned>(&self, input: Map<String, Value>) -> Result<T, Error> {
        serde_json::from_value(Value::Object(input)).map_err(|error| self.input_error(&error.to_string()))
    }

    fn parse_write(&self, input: WriteFile) -> Result<(String, String, Vec<u8>), Error> {
        let bytes = match (input.content, input.content_base64) {
            (Some(text), None) => text.into_bytes(),
            (None, Some(coded)) => STANDARD
                .decode(coded)
                .map_err(|error| self.input_error(&format!("content_base64: {error}")))?,
            _ => return Err(self.input_error("give either content or content_base64")),
        };
        Ok((input.sandbox, input.path, bytes))
    }

    fn input_error(&self, message: &str) -> Error {
        Error::Input { tool: self.name, message: render::truncate_middle(message, 500, 0) }
    }
}

async fn open_sandbox(
    backend: &dyn ToolBackend,
    input: SandboxOpen,
    progress: &mut dyn Progress,
) -> Result<ToolAnswer, Error> {
    let opened = backend.open(input.into_request(), progress).await?;
    let lives = show_duration(Duration::from_millis(opened.timeout_ms));
    let text = format!(
        "Opened sandbox {}. Pass it as 'sandbox' to the other tools; its working folder is /workspace. It is closed when it was not used for {lives}.",
        opened.sandbox
    );
    Ok(ToolAnswer::new(text, json!(opened)))
}

async fn close_sandbox(backend: &dyn ToolBackend, input: SandboxClose) -> Result<ToolAnswer, Error> {
    backend.close(&input.sandbox).await?;
    Ok(ToolAnswer::new(
        format!("Closed sandbox {}.", input.sandbox),
        json!(CloseResult { sandbox: input.sandbox }),
    ))
}

async fn read_file(files: &dyn Files, path: String, offset: u64) -> Result<ToolAnswer, Error> {
    let (size, bytes) = read_bytes(files, &path, offset).await?;
    let whole = offset == 0 && bytes.len() as u64 == size;
    if let Some(kind) = image_mime_type(&bytes).filter(|_| whole) {
        let data = STANDARD.encode(&bytes);
        let text = format!("{path} is an image ({kind}, {}).", show_bytes(size));
        let images = vec![AnswerImage { mime_type: kind.to_owned(), data: data.clone() }];
        let read =
            FileContent { path, size, offset, content: None, content_base64: Some(data), next_offset: None };
        return Ok(ToolAnswer { text, images, structured: Some(json!(read)) });
    }
    let shown = &bytes[..bytes.len().min(MAX_CONTENT_BYTES)];
    let (text, shown) = match as_text(shown) {
        Some(text) => (Some(text.to_owned()), text.len()),
        None => (None, shown.len()),
    };
    let end = offset + shown as u64;
    let read = FileContent {
        content_base64: text.is_none().then(|| STANDARD.encode(&bytes[..shown])),
        content: text,
        next_offset: (end < size).then_some(end),
        path,
        size,
        offset,
    };
    Ok(ToolAnswer::new(read.describe(), json!(read)))
}

impl FileContent {
    fn describe(&self) -> String {
        let more =
            self.next_offset.map(|next| format!("\n[… continues at offset {next} …]")).unwrap_or_default();
        match &self.content {
            Some(text) => format!("{text}{more}"),
            None => {
                let (path, size) = (&self.path, show_bytes(self.size));
                format!("{path} is not text ({size}); its bytes are in content_base64.{more}")
            }
        }
    }
}

/// Reads a part of a file from an offset, up to [`MAX_READ_BYTES`]; returns the size of the file and the
/// bytes.
pub(crate) async fn read_bytes(files: &dyn Files, path: &str, offset: u64) -> Result<(u64, Vec<u8>), Error> {
    let (metadata, source) = files.read(path, offset, Some(MAX_READ_BYTES)).await?;
    let mut bytes = Vec::new();
    let read = source.take(MAX_READ_BYTES).read_to_end(&mut bytes).await;
    read.map_err(|error| Error::Backend(format!("{path}: {error}")))?;
    // Files in /proc report size 0.
    Ok((metadata.size.max(offset + bytes.len() as u64), bytes))
}

/// Detects the type of an image by its first bytes, since file names are unreliable.
pub(crate) fn image_mime_type(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0x89, b'P', b'N', b'G', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}

/// Returns the bytes as text, without a character truncated at the end; `None` if they are not text.
pub(crate) fn as_text(bytes: &[u8]) -> Option<&str> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Some(text),
        Err(error) if error.error_len().is_none() => std::str::from_utf8(&bytes[..error.valid_up_to()]).ok(),
        Err(_) => None,
    }
    .filter(|text| !text.contains('\0'))
}

async fn write_file(files: &dyn Files, path: String, bytes: Vec<u8>) -> Result<ToolAnswer, Error> {
    let bytes = files.write(&path, WriteOptions::default(), Box::pin(Cursor::new(bytes))).await?;
    Ok(ToolAnswer::new(format!("Wrote {} to {path}.", show_bytes(bytes)), json!(WriteResult { path, bytes })))
}

async fn list_folder(files: &dyn Files, path: String) -> Result<ToolAnswer, Error> {
    let page = files.list(&path, None, MAX_LISTED_ENTRIES).await?;
    let truncated = page.next.is_some();
    let entries: Vec<_> = page.entries.into_iter().map(FolderItem::from).collect();
    let mut lines: Vec<_> = entries.iter().map(FolderItem::render_line).collect();
    if lines.is_empty() {
        lines.push(format!("{path} is empty."));
    }
    if truncated {
        lines.push("… and more".to_owned());
    }
    Ok(ToolAnswer::new(lines.join("\n"), json!(FolderListing { path, entries, truncated })))
}

impl From<DirectoryEntry> for FolderItem {
    fn from(entry: DirectoryEntry) -> Self {
        let kind = match entry.metadata.kind {
            FileKind::File => "file",
            FileKind::Directory => "folder",
            FileKind::Link => "link",
            FileKind::Other => "other",
        };
        Self { name: entry.name, kind, size: entry.metadata.size }
    }
}

impl FolderItem {
    fn render_line(&self) -> String {
        match self.kind {
            "folder" => format!("{}/", self.name),
            "file" => format!("{} ({})", self.name, show_bytes(self.size)),
            kind => format!("{} ({kind})", self.name),
        }
    }
}

async fn check_code(backend: &dyn ToolBackend, request: Request) -> Result<ToolAnswer, Error> {
    let Verdict { findings, refusal } = backend.check(request).await?;
    let said = render::render_findings(&findings);
    let verdict = match &refusal {
        Some(why) => format!("It would be refused: {why}"),
        None => "It would run.".to_owned(),
    };
    let text = if said.is_empty() { verdict } else { format!("{verdict}\n{said}") };
    let findings: Vec<_> = findings.iter().map(|finding| json!(finding)).collect();
    let findings = findings.into_iter().filter_map(|finding| finding.as_object().cloned()).collect();
    let status = if refusal.is_some() { "refused" } else { "passed" };
    Ok(ToolAnswer::new(text, json!(CheckResult { status, error: refusal, findings })))
}
