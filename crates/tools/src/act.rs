//! What each tool does: its input becomes a request, the hands do it, and the model is told.

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

/// What is read of a file at one time; an image has to fit.
const MAX_READ: u64 = 3 << 20;
/// What is told of a file that is no image.
const MAX_TOLD: usize = 256 << 10;
/// Entries of a folder in one answer.
const MAX_ENTRIES: u32 = 256;

/// A sandbox that was closed.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Closed {
    /// It.
    sandbox: String,
}

/// A file, or the part of it that is told.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct FileRead {
    /// Where it is.
    path: String,
    /// All its bytes.
    size: u64,
    /// The first byte that is told.
    offset: u64,
    /// Its text, where it is text.
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    /// Its bytes otherwise, base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    content_base64: Option<String>,
    /// The offset with which to go on, where there is more.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_offset: Option<u64>,
}

/// A file that was written.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Written {
    /// Where it is.
    path: String,
    /// How many bytes.
    bytes: u64,
}

/// A folder.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Listing {
    /// Where it is.
    path: String,
    /// What is in it, by name.
    entries: Vec<Listed>,
    /// Whether there is more in it.
    truncated: bool,
}

/// What is in a folder.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Listed {
    name: String,
    /// file, folder, link or other.
    kind: &'static str,
    size: u64,
}

/// What came of reading code.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Checked {
    /// passed or refused.
    status: &'static str,
    /// Why it may not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// In the order of the code.
    findings: Vec<Map<String, Value>>,
}

impl Tool {
    /// Does what it is for.
    ///
    /// # Errors
    /// Says why it came to nothing, in words for a model.
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

    /// What can be given up by letting go of it.
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
            Kind::RunCode | Kind::RunCommand => Err(self.wrong("takes longer than a moment")),
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
            _ => return Err(self.wrong("give one of content and content_base64")),
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
        "Opened sandbox {}. Give it as 'sandbox' to the other tools; its working folder is /workspace. It lives for {lives}.",
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
            self.next_offset.map(|next| format!("\n[… more from offset {next} on …]")).unwrap_or_default();
        match &self.content {
            Some(text) => format!("{text}{more}"),
            None => {
                let (path, size) = (&self.path, show_bytes(self.size));
                format!("{path} is no text ({size}); its bytes are in content_base64.{more}")
            }
        }
    }
}

/// A file from some byte on, as far as is read at one time; and how long it is.
pub(crate) async fn read_bytes(files: &dyn Files, path: &str, offset: u64) -> Result<(u64, Vec<u8>), Error> {
    let (metadata, source) = files.read(path, offset, Some(MAX_READ)).await?;
    let mut bytes = Vec::new();
    let read = source.take(MAX_READ).read_to_end(&mut bytes).await;
    read.map_err(|error| Error::Hands(format!("{path}: {error}")))?;
    // Files in /proc do not know their size.
    Ok((metadata.size.max(offset + bytes.len() as u64), bytes))
}

/// By its first bytes: names say anything.
pub(crate) fn image_kind(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0x89, b'P', b'N', b'G', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}

/// The text that it is, but for a character that its end cuts in two.
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
        None => "It would be run.".to_owned(),
    };
    let text = if said.is_empty() { verdict } else { format!("{verdict}\n{said}") };
    let findings: Vec<_> = findings.iter().map(|finding| json!(finding)).collect();
    let findings = findings.into_iter().filter_map(|finding| finding.as_object().cloned()).collect();
    let status = if refusal.is_some() { "refused" } else { "passed" };
    Ok(Answer::new(text, json!(Checked { status, error: refusal, findings })))
}
