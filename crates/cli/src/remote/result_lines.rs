//! The results of a call, one per line, as the server sends them.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;

use http_body_util::BodyExt;
use hyper::Response;
use hyper::body::Incoming;
use serde::Deserialize;

use super::artifacts::{ArtifactView, save_artifacts};
use super::http::Server;
use crate::artifacts::ArtifactFolder;
use crate::batch::{LineStatus, ResultLine};
use crate::error::CliError;

/// Content type of lines.
pub(super) const LINES: &str = "application/x-ndjson";
/// Maximum length of a line: the longest result, with some margin.
const MAX_LINE_BYTES: usize = 256 << 20;

type ResponseFuture = Pin<Box<dyn Future<Output = Result<Response<Incoming>, CliError>>>>;

enum CallResponse {
    Pending(ResponseFuture),
    Streaming(Incoming),
}

/// The result lines of a call.
pub(super) struct ResultLines {
    answer: CallResponse,
    ready: Vec<u8>,
    /// Maps the server's index of a line to the index in the input file.
    pub(super) in_flight: HashMap<u64, u64>,
}

impl ResultLines {
    pub(super) fn of(answer: impl Future<Output = Result<Response<Incoming>, CliError>> + 'static) -> Self {
        let answer = CallResponse::Pending(Box::pin(answer));
        Self { answer, ready: Vec::new(), in_flight: HashMap::new() }
    }

    /// Returns the next result. Dropping this future loses nothing.
    pub(super) async fn next(&mut self) -> Result<ResultLine, CliError> {
        loop {
            if let Some(end) = self.ready.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.ready.drain(..=end).collect();
                return self.convert_line(&line);
            }
            if self.ready.len() > MAX_LINE_BYTES {
                return Err(response_error("a line of the batch is too long"));
            }
            match &mut self.answer {
                CallResponse::Pending(answer) => {
                    self.answer = CallResponse::Streaming(answer.await?.into_body())
                }
                CallResponse::Streaming(body) => {
                    let frame =
                        body.frame().await.ok_or_else(|| response_error("the connection closed early"))?;
                    let frame = frame.map_err(|error| response_error(&error.to_string()))?;
                    self.ready.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
                }
            }
        }
    }

    /// Converts a result line: replaces the server's index by the one in the input file.
    fn convert_line(&mut self, line: &[u8]) -> Result<ResultLine, CliError> {
        let ResultHead { index, status } = serde_json::from_slice(line)
            .map_err(|error| response_error(&format!("not a result line: {error}")))?;
        let input_index =
            self.in_flight.remove(&index).ok_or_else(|| response_error("a result of an unknown request"))?;
        let theirs = format!("{{\"index\":{index},");
        let rest = line.strip_prefix(theirs.as_bytes()).ok_or_else(|| response_error("not a result line"))?;
        let became = match status.as_deref() {
            Some("succeeded") => LineStatus::Succeeded,
            Some("cancelled") => LineStatus::Cancelled,
            Some("refused") => LineStatus::NotRun,
            Some(_) => LineStatus::Failed,
            None => LineStatus::NotRun,
        };
        Ok(ResultLine {
            status: became,
            line: [format!("{{\"index\":{input_index},").as_bytes(), rest].concat(),
        })
    }
}

/// Saves the artifacts of a result. If that is interrupted, it starts again.
pub(super) async fn save_line_artifacts(
    server: &Server,
    folder: Option<&ArtifactFolder>,
    result: &ResultLine,
) -> Result<(), CliError> {
    let Some(folder) = folder else { return Ok(()) };
    let LineArtifacts { index, artifacts } = serde_json::from_slice(&result.line)
        .map_err(|error| response_error(&format!("not a result line: {error}")))?;
    save_artifacts(server, folder, Some(index), &artifacts).await
}

/// The fields read from a result line.
#[derive(Debug, Deserialize)]
struct ResultHead {
    index: u64,
    status: Option<String>,
}

/// The artifacts of a result line.
#[derive(Debug, Deserialize)]
struct LineArtifacts {
    index: u64,
    #[serde(default)]
    artifacts: Vec<ArtifactView>,
}

fn response_error(why: &str) -> CliError {
    CliError::host(format!("cannot read the server's response: {why}"))
}
