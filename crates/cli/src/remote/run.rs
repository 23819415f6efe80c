//! `belljar run --server URL`: runs the request on a server.

use belljar_engine::finding::Finding;
use belljar_engine::provider::{Sink, Stream};
use belljar_engine::report::signal_exit_status;
use belljar_engine::request::{HostPaths, Request};
use hyper::Method;
use serde_json::Value;

use super::events::{EventStream, bytes_of, stream_of};
use super::http::{EVENTS, Server, server_error};
use crate::env::Environment;
use crate::error::CliError;
use crate::intent::{Intent, OutputForm, OutputOptions};
use crate::os::{self, Interrupts};
use crate::run::finding_lines;
use crate::say;
use crate::view::View;

const PATH: &str = "/v1/executions";

/// Runs the request and returns the exit status.
pub(crate) fn run(url: &str, intent: Intent, environment: &Environment) -> Result<u8, CliError> {
    let server = Server::new(Some(url), environment)?;
    let Intent { request, paths, output } = intent;
    refuse_local_paths(&paths)?;
    run_at(&server, PATH, &request, output)
}

/// Posts a request to a path for executions and returns the exit status.
pub(super) fn run_at(
    server: &Server,
    path: &str,
    request: &Request,
    output: OutputOptions,
) -> Result<u8, CliError> {
    let body = serde_json::to_value(request).map_err(|error| CliError::invalid(error.to_string()))?;
    os::runtime()?.block_on(async {
        let mut interrupts = Interrupts::listen()?;
        tokio::select! {
            status = perform(server, path, &body, output) => status,
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

async fn perform(server: &Server, path: &str, body: &Value, output: OutputOptions) -> Result<u8, CliError> {
    if output.form == OutputForm::Json {
        let result = server.call(Method::POST, path, Some(body)).await?;
        say::answer(&result.to_string());
        return Ok(exit_status(&result));
    }
    let response = server.send(Method::POST, path, EVENTS, Some(body)).await?;
    let mut events = EventStream::new(response);
    let mut view = View::start(output.form == OutputForm::Raw, output.quiet)?;
    let result = loop {
        let (name, data) = events.next_required().await?;
        match name.as_str() {
            "output" => {
                view.output(stream_of(&data), &bytes_of(&data));
            }
            "progress" => view.progress(data["message"].as_str().unwrap_or_default()),
            "result" => break data,
            "error" => return Err(server_error(&data["error"], "nothing ran")),
            _ => {}
        }
    };
    if result["result"]["present"] == true {
        view.output(Stream::Stdout, format!("{}\n", result["result"]["value"]).as_bytes());
    }
    view.finish().await;
    if !output.quiet && (result["exit_code"].is_null() || !result["limit"].is_null()) {
        result["error"].as_str().into_iter().for_each(say::note);
    }
    if !output.quiet {
        // Findings of an older server may have another format, which is not an error.
        let findings: Vec<Finding> = serde_json::from_value(result["findings"].clone()).unwrap_or_default();
        finding_lines(&findings, result["status"] == "succeeded").iter().for_each(|line| say::note(line));
    }
    Ok(exit_status(&result))
}

/// Returns the same exit status as a run on this machine.
fn exit_status(result: &Value) -> u8 {
    let code = result["exit_code"].as_u64().and_then(|code| u8::try_from(code).ok());
    match (
        result["status"].as_str().unwrap_or_default(),
        result["limit"].as_str(),
        code,
        result["signal"].as_str(),
    ) {
        ("timed_out", ..) => 124,
        ("cancelled", ..) => 130,
        ("refused", ..) => 126,
        ("limit_exceeded", Some("memory"), ..) => 137,
        (_, _, Some(code), _) => code,
        (_, _, None, Some(name)) => signal_exit_status(name),
        (_, _, None, None) => 137,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn exit_status_follows_the_result() {
        let status = |status: &str, exit: Value, signal: Value, limit: Value| {
            exit_status(&json!({"status": status, "exit_code": exit, "signal": signal, "limit": limit}))
        };
        assert_eq!(status("failed", json!(3), Value::Null, Value::Null), 3);
        assert_eq!(status("failed", Value::Null, json!("SIGSEGV"), Value::Null), 139);
        assert_eq!(status("timed_out", Value::Null, Value::Null, Value::Null), 124);
        assert_eq!(status("limit_exceeded", Value::Null, Value::Null, json!("memory")), 137);
    }
}
