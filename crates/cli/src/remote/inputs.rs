//! `belljar run --server URL --inputs FILE`: sends the code with many inputs in one HTTP call, and as many calls as the
//! inputs need.
//!
//! Lines that arrive while a call runs wait for the next one. The server decides how many inputs run at the same time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use belljar_engine::batch::{BatchEntry, BatchResult};
use belljar_engine::request::{Input, Request};
use hyper::Method;
use tokio::time::sleep;

use super::http::{self, Server};
use super::result_lines::{LINES, ResultLines, save_line_artifacts};
use crate::artifacts::ArtifactFolder;
use crate::batch::{BatchRunner, ResultLine};
use crate::env::Environment;
use crate::error::CliError;

const PATH: &str = "/v1/executions";
/// Inputs of one call, and their size; far below what a server accepts.
const MAX_CALL_INPUTS: usize = 500;
const MAX_CALL_BYTES: usize = 4 << 20;
/// Time without another line after which a call starts with fewer inputs.
const MAX_LINE_PAUSE: Duration = Duration::from_millis(20);

/// Runs one program with many inputs on a server.
pub(crate) struct RemoteInputs {
    server: Arc<Server>,
    /// The request without inputs.
    request: Request,
    /// Inputs for the next call, and their indexes in the file.
    inputs: Vec<Input>,
    indexes: Vec<u64>,
    bytes: usize,
    call: Option<ResultLines>,
    /// Inputs that could not be sent.
    not_sent: VecDeque<BatchResult>,
    artifacts: Option<ArtifactFolder>,
    /// A result whose artifacts are being saved.
    saving: Option<ResultLine>,
}

impl RemoteInputs {
    /// Creates it for the server at this URL.
    pub(crate) fn new(
        url: &str,
        environment: &Environment,
        request: Request,
        artifacts: Option<ArtifactFolder>,
    ) -> Result<Self, CliError> {
        Ok(Self {
            server: Arc::new(Server::new(Some(url), environment)?),
            request,
            inputs: Vec::new(),
            indexes: Vec::new(),
            bytes: 0,
            call: None,
            not_sent: VecDeque::new(),
            artifacts,
            saving: None,
        })
    }

    fn is_full(&self) -> bool {
        self.inputs.len() >= MAX_CALL_INPUTS || self.bytes >= MAX_CALL_BYTES
    }

    /// Starts a call with the inputs that wait.
    fn start_call(&mut self) -> Result<(), CliError> {
        self.request.inputs = Some(std::mem::take(&mut self.inputs));
        self.bytes = 0;
        let body = serde_json::to_vec(&self.request).map_err(|error| CliError::invalid(error.to_string()));
        self.request.inputs = None;
        let (body, server) = (http::bytes(body?.into()), Arc::clone(&self.server));
        let mut call =
            ResultLines::of(
                async move { server.exchange(Method::POST, PATH, [LINES, http::JSON], body).await },
            );
        call.in_flight = (0..).zip(self.indexes.drain(..)).collect();
        self.call = Some(call);
        Ok(())
    }

    /// Returns the next result of the call, after starting one if none is running.
    async fn next_result(&mut self) -> Option<Result<ResultLine, CliError>> {
        if self.call.is_none() {
            if self.inputs.is_empty() {
                return None;
            }
            if !self.is_full() {
                sleep(MAX_LINE_PAUSE).await;
            }
            if let Err(error) = self.start_call() {
                return Some(Err(error));
            }
        }
        let call = self.call.as_mut()?;
        let result = call.next().await;
        if call.in_flight.is_empty() || result.is_err() {
            self.call = None;
        }
        Some(result)
    }
}

impl BatchRunner for RemoteInputs {
    type Line = Input;

    fn running(&self) -> usize {
        let in_flight = self.call.as_ref().map_or(0, |call| call.in_flight.len());
        usize::from(self.saving.is_some()) + self.not_sent.len() + self.inputs.len() + in_flight
    }

    fn has_free_job(&self) -> bool {
        !self.is_full()
    }

    fn start(&mut self, entry: BatchEntry<Input>) -> Result<(), CliError> {
        let BatchEntry { index, request: wanted } = entry;
        match wanted {
            Ok(input) => {
                self.bytes += input.size();
                self.inputs.push(input);
                self.indexes.push(index);
            }
            Err(error) => self.not_sent.push_back(BatchResult { index, result: Err(error) }),
        }
        Ok(())
    }

    async fn next(&mut self) -> Option<Result<ResultLine, CliError>> {
        if let Some(finished) = self.not_sent.pop_front() {
            return Some(ResultLine::from_finished(&finished));
        }
        if self.saving.is_none() {
            match self.next_result().await? {
                Ok(result) => self.saving = Some(result),
                Err(error) => return Some(Err(error)),
            }
        }
        let saved = match &self.saving {
            Some(result) => save_line_artifacts(&self.server, self.artifacts.as_ref(), result).await,
            None => Ok(()),
        };
        let result = self.saving.take()?;
        Some(saved.map(|()| result))
    }

    /// Drops the connection, upon which the server cancels its executions.
    fn cancel(&mut self) {
        self.call = None;
        self.inputs.clear();
        self.indexes.clear();
    }
}
