//! Executes tool calls: converts the input to a request, passes it to the backend, and builds the answer.

use std::io::Cursor;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use belljar_engine::living::{Entry, FileKind, Files, WriteOptions};
use belljar_engine::packages::Progress;
use belljar_engine::policy::Verdict;
use belljar_engine::provider::BoxFuture;
use belljar_engine::quantity::{show_bytes, show_duration};
use belljar_engine::request::Request;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::time::Duration;
use tokio::io::AsyncReadExt;

use crate::answer::{Answer, Image};
use crate::hands::Hands;
use crate::input::{
    CheckCode, ListFiles, ReadFile, RunCode, RunCommand, SandboxClose, SandboxOpen, WriteFile,
};
use crate::table::{Kind, Tool};
use crate::{Error, words};

/// Maximum number of bytes read from a file at once; also the maximum size of an image.
const MAX_READ: u64 = 3 << 20;
/// Maximum number of bytes of a file in one answer, unless it is an image.
const MAX_TOLD: usize = 256 << 10;
/// Maximum number of folder entries in one answer.
const MAX_ENTRIES: u32 = 256;

/// Output of `sandbox_close`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Closed {
    /// The closed sandbox.
    sandbox: String,
}

/// Output of `read_file`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct FileRead {
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
pub(crate) struct Written {
    /// Path of the file.
    path: String,
    /// Number of bytes written.
    bytes: u64,
}

/// Output of `list_files`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Listing {
    /// Path of the folder.
    path: String,
    /// Entries, sorted by name.
    entries: Vec<Listed>,
    /// Whether there are more entries.
    truncated: bool,
}

/// An entry of a folder.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Listed {
    name: String,
    /// file, folder, link or other.
    kind: &'static str,
    size: u64,
}

/// Output of `check_code`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Checked {
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
        hands: &dyn Hands,
        input: Map<String, Value>,
        progress: &mut dyn Progress,
        cancel: BoxFuture<'_, ()>,
    ) -> Result<Answer, Error> {
        let (request, inside) = match self.kind {
            Kind::RunCode => self.input::<RunCode>(input)?.into_request(),
            Kind::RunCommand => self.input::<RunCommand>(input)?.into_request(),
            _ => {
                return tokio::select! {
                    answer = self.at_once(hands, input, progress) => answer,
                    () = cancel => Err(Error::Cancelled),
                };
            }
        };
        words::of_result(hands.run(request, inside.as_deref(), progress, cancel).await?)
    }

    /// Executes a call that can be canceled by dropping the future.
    async fn at_once(
        &self,
        hands: &dyn Hands,
        input: Map<String, Value>,
        progress: &mut dyn Progress,
    ) -> Result<Answer, Error> {
        match self.kind {
            Kind::SandboxOpen => open(hands, self.input(input)?, progress).await,
            Kind::SandboxClose => close(hands, self.input(input)?).await,
            Kind::ReadFile => {
                let ReadFile { sandbox, path, offset } = self.input(input)?;
                read(hands.enter(&sandbox).await?.files(), path, offset.unwrap_or(0)).await
            }
            Kind::WriteFile => {
                let (sandbox, path, bytes) = self.bytes(self.input(input)?)?;
                write(hands.enter(&sandbox).await?.files(), path, bytes).await
            }
            Kind::ListFiles => {
                let ListFiles { sandbox, path } = self.input(input)?;
                let path = path.unwrap_or_else(|| "/workspace".to_owned());
                list(hands.enter(&sandbox).await?.files(), path).await
            }
            Kind::CheckCode => check(hands, self.input::<CheckCode>(input)?.into_request()).await,
            Kind::RunCode | Kind::RunCommand => Err(self.wrong("cannot be executed here")),
        }
    }

    fn input<T: DeserializeOwned>(&self, input: Map<String, Value>) -> Result<T, Error> {
        serde_json::from_value(Value::Object(input)).map_err(|error| self.wrong(&error.to_string()))
    }

    fn bytes(&self, input: WriteFile) -> Result<(String, String, Vec<u8>), Error> {
        let bytes = match (input.content, input.content_base64) {
            (Some(text), None) => text.into_bytes(),
            (None, Some(coded)) => {
                STANDARD.decode(coded).map_err(|error| self.wrong(&format!("content_base64: {error}")))?
            }
            _ => return Err(self.wrong("give either content or content_base64")),
        };
        Ok((input.sandbox, input.path, bytes))
    }

    fn wrong(&self, message: &str) -> Error {
        Error::Input { tool: self.name, message: words::cut(message, 500, 0) }
    }
}

async fn open(hands: &dyn Hands, input: SandboxOpen, progress: &mut dyn Progress) -> Result<Answer, Error> {
    let opened = hands.open(input.into_request(), progress).await?;
    let lives = show_duration(Duration::from_millis(opened.timeout_ms));
    let text = format!(
        "Opened sandbox {}. Pass it as 'sandbox' to the other tools; its working folder is /workspace. It is closed after {lives}.",
        opened.sandbox
    );
    Ok(Answer::new(text, json!(opened)))
}

async fn close(hands: &dyn Hands, input: SandboxClose) -> Result<Answer, Error> {
    hands.close(&input.sandbox).await?;
    Ok(Answer::new(format!("Closed sandbox {}.", input.sandbox), json!(Closed { sandbox: input.sandbox })))
}

async fn read(files: &dyn Files, path: String, offset: u64) -> Result<Answer, Error> {
    let (size, bytes) = read_bytes(files, &path, offset).await?;
    let whole = offset == 0 && bytes.len() as u64 == size;
    if let Some(kind) = image_kind(&bytes).filter(|_| whole) {
        let data = STANDARD.encode(&bytes);
        let text = format!("{path} is an image ({kind}, {}).", show_bytes(size));
        let images = vec![Image { mime_type: kind.to_owned(), data: data.clone() }];
        let read =
            FileRead { path, size, offset, content: None, content_base64: Some(data), next_offset: None };
        return Ok(Answer { text, images, structured: Some(json!(read)) });
    }
    let told = &bytes[..bytes.len().min(MAX_TOLD)];
    let (text, told) = match text_of(told) {
        Some(text) => (Some(text.to_owned()), text.len()),
        None => (None, told.len()),
    };
    let end = offset + told as u64;
    let read = FileRead {
        content_base64: text.is_none().then(|| STANDARD.encode(&bytes[..told])),
        content: text,
        next_offset: (end < size).then_some(end),
        path,
        size,
        offset,
    };
    Ok(Answer::new(read.describe(), json!(read)))
}

impl FileRead {
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

/// Reads a part of a file from an offset, up to [`MAX_READ`]; returns the size of the file and the bytes.
pub(crate) async fn read_bytes(files: &dyn Files, path: &str, offset: u64) -> Result<(u64, Vec<u8>), Error> {
    let (metadata, source) = files.read(path, offset, Some(MAX_READ)).await?;
    let mut bytes = Vec::new();
    let read = source.take(MAX_READ).read_to_end(&mut bytes).await;
    read.map_err(|error| Error::Hands(format!("{path}: {error}")))?;
    // Files in /proc report size 0.
    Ok((metadata.size.max(offset + bytes.len() as u64), bytes))
}

/// Detects the type of an image by its first bytes, since file names are unreliable.
pub(crate) fn image_kind(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0x89, b'P', b'N', b'G', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}

/// Returns the bytes as text, without a character truncated at the end; `None` if they are not text.
pub(crate) fn text_of(bytes: &[u8]) -> Option<&str> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Some(text),
        Err(error) if error.error_len().is_none() => std::str::from_utf8(&bytes[..error.valid_up_to()]).ok(),
        Err(_) => None,
    }
    .filter(|text| !text.contains('\0'))
}

async fn write(files: &dyn Files, path: String, bytes: Vec<u8>) -> Result<Answer, Error> {
    let bytes = files.write(&path, WriteOptions::default(), Box::pin(Cursor::new(bytes))).await?;
    Ok(Answer::new(format!("Wrote {} to {path}.", show_bytes(bytes)), json!(Written { path, bytes })))
}

async fn list(files: &dyn Files, path: String) -> Result<Answer, Error> {
    let page = files.list(&path, None, MAX_ENTRIES).await?;
    let truncated = page.next.is_some();
    let entries: Vec<_> = page.entries.into_iter().map(Listed::from).collect();
    let mut lines: Vec<_> = entries.iter().map(Listed::line).collect();
    if lines.is_empty() {
        lines.push(format!("{path} is empty."));
    }
    if truncated {
        lines.push("… and more".to_owned());
    }
    Ok(Answer::new(lines.join("\n"), json!(Listing { path, entries, truncated })))
}

impl From<Entry> for Listed {
    fn from(entry: Entry) -> Self {
        let kind = match entry.metadata.kind {
            FileKind::File => "file",
            FileKind::Directory => "folder",
            FileKind::Link => "link",
            FileKind::Other => "other",
        };
        Self { name: entry.name, kind, size: entry.metadata.size }
    }
}

impl Listed {
    fn line(&self) -> String {
        match self.kind {
            "folder" => format!("{}/", self.name),
            "file" => format!("{} ({})", self.name, show_bytes(self.size)),
            kind => format!("{} ({kind})", self.name),
        }
    }
}

async fn check(hands: &dyn Hands, request: Request) -> Result<Answer, Error> {
    let Verdict { findings, refusal } = hands.check(request).await?;
    let said = words::findings(&findings);
    let verdict = match &refusal {
        Some(why) => format!("It would be refused: {why}"),
        None => "It would run.".to_owned(),
    };
    let text = if said.is_empty() { verdict } else { format!("{verdict}\n{said}") };
    let findings: Vec<_> = findings.iter().map(|finding| json!(finding)).collect();
    let findings = findings.into_iter().filter_map(|finding| finding.as_object().cloned()).collect();
    let status = if refusal.is_some() { "refused" } else { "passed" };
    Ok(Answer::new(text, json!(Checked { status, error: refusal, findings })))
}
