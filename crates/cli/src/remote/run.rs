//! `belljar run --server URL`: runs the request on a server.

use belljar_engine::finding::Finding;
use belljar_engine::provider::{Sink, Stream};
use belljar_engine::report::signal_exit_status;
use belljar_engine::request::{HostPaths, Request};
use hyper::Method;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::artifacts::{ArtifactView, save_artifacts};
use super::events::{EventStream, bytes_of, stream_of};
use super::http::{self, EVENTS, Server, server_error};
use crate::artifacts::ArtifactFolder;
use crate::env::Environment;
use crate::error::CliError;
use crate::intent::{Intent, OutputForm, OutputOptions};
use crate::os::{self, Interrupts};
use crate::run::{artifacts_note, finding_lines};
use crate::say;
use crate::view::View;

const PATH: &str = "/v1/executions";

/// Runs the request and returns the exit status.
pub(crate) fn run(url: &str, intent: Intent, environment: &Environment) -> Result<u8, CliError> {
    let server = Server::new(Some(url), environment)?;
    let Intent { request, paths, output, artifacts } = intent;
    refuse_local_paths(&paths)?;
    run_at(&server, PATH, &request, output, artifacts.as_ref())
}

/// Posts a request to a path for executions and returns the exit status.
pub(super) fn run_at(
    server: &Server,
    path: &str,
    request: &Request,
    output: OutputOptions,
    artifacts: Option<&ArtifactFolder>,
) -> Result<u8, CliError> {
    let body = serde_json::to_vec(request).map_err(|error| CliError::invalid(error.to_string()))?;
    os::runtime()?.block_on(async {
        let mut interrupts = Interrupts::listen()?;
        tokio::select! {
            status = perform(server, path, body, output, artifacts) => status,
            // Closing the connection cancels the execution.
            () = interrupts.next() => Ok(130),
        }
    })
}

/// Refuses options that only work on this machine.
pub(crate) fn refuse_local_paths(paths: &HostPaths) -> Result<(), CliError> {
    if paths.host_workspace.is_none() && paths.mounts.is_empty() && paths.image.is_none() {
        return Ok(());
    }
    let what = "--workspace, --mount and an --image folder are on this machine, so a server cannot use them";
    Err(CliError::invalid(what))
}

/// The fields of a result object that are shown or become the exit status.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ResultView {
    status: String,
    exit_code: Option<u8>,
    signal: Option<String>,
    limit: Option<String>,
    result: ReturnValueView,
    artifacts: Vec<ArtifactView>,
    error: Option<String>,
    findings: Box<RawValue>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ReturnValueView {
    present: bool,
    value: Box<RawValue>,
}

async fn perform(
    server: &Server,
    path: &str,
    body: Vec<u8>,
    output: OutputOptions,
    artifacts: Option<&ArtifactFolder>,
) -> Result<u8, CliError> {
    let send = |accept| server.exchange(Method::POST, path, [accept, http::JSON], http::bytes(body.into()));
    if output.form == OutputForm::Json {
        let text = http::read_text(send(http::JSON).await?).await?;
        let result: ResultView = http::parse(&text)?;
        if let Some(folder) = artifacts {
            save_artifacts(server, folder, None, &result.artifacts).await?;
        }
        say::answer(&text);
        return Ok(result.exit_status());
    }
    let mut events = EventStream::new(send(EVENTS).await?);
    let mut view = View::start(output.form == OutputForm::Raw, output.quiet)?;
    let result: ResultView = loop {
        let (name, data) = events.next_text_required().await?;
        if name == "result" {
            break http::parse(&data)?;
        }
        let data: Value = http::parse(&data).unwrap_or_default();
        match name.as_str() {
            "output" => {
                view.output(stream_of(&data), &bytes_of(&data));
            }
            "progress" => view.progress(data["message"].as_str().unwrap_or_default()),
            "error" => return Err(server_error(&data["error"], "nothing ran")),
            _ => {}
        }
    };
    if result.result.present {
        view.output(Stream::Stdout, format!("{}\n", result.result.value).as_bytes());
    }
    view.finish().await;
    if let Some(folder) = artifacts {
        save_artifacts(server, folder, None, &result.artifacts).await?;
    }
    if !output.quiet {
        result.notes().iter().for_each(|note| say::note(note));
        // What is left in a sandbox that stays is copied from there.
        if path == PATH {
            artifacts_note(result.artifacts.len(), artifacts).iter().for_each(|note| say::note(note));
        }
    }
    Ok(result.exit_status())
}

impl ResultView {
    /// Returns the notes to print after the output.
    fn notes(&self) -> Vec<String> {
        let explains_itself = self.exit_code.is_some_and(|code| code != 0) && self.limit.is_none();
        let error = self.error.clone().filter(|_| !explains_itself);
        // Findings of an older server may have another format, which is not an error.
        let findings: Vec<Finding> = serde_json::from_str(self.findings.get()).unwrap_or_default();
        error.into_iter().chain(finding_lines(&findings, self.status == "succeeded")).collect()
    }

    /// Returns the same exit status as a run on this machine.
    fn exit_status(&self) -> u8 {
        match (self.status.as_str(), self.limit.as_deref(), self.exit_code, self.signal.as_deref()) {
            ("timed_out", ..) => 124,
            ("cancelled", ..) => 130,
            ("refused", ..) => 126,
            ("limit_exceeded", Some("memory"), ..) => 137,
            ("failed", _, Some(0), _) => 1,
            (_, _, Some(code), _) => code,
            (_, _, None, Some(name)) => signal_exit_status(name),
            (_, _, None, None) => 137,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn exit_status_follows_the_result() {
        let status = |status: &str, exit: Value, signal: Value, limit: Value| {
            let result = json!({"status": status, "exit_code": exit, "signal": signal, "limit": limit});
            http::parse::<ResultView>(&result.to_string()).unwrap().exit_status()
        };
        assert_eq!(status("failed", json!(3), Value::Null, Value::Null), 3);
        assert_eq!(status("failed", json!(0), Value::Null, Value::Null), 1);
        assert_eq!(status("failed", Value::Null, json!("SIGSEGV"), Value::Null), 139);
        assert_eq!(status("timed_out", Value::Null, Value::Null, Value::Null), 124);
        assert_eq!(status("limit_exceeded", Value::Null, Value::Null, json!("memory")), 137);
    }
}
