//! `belljar run --server URL`: the same request, run elsewhere.

use belljar_engine::provider::{Sink, Stream};
use belljar_engine::report::signalled_status;
use belljar_engine::request::HostPaths;
use http_body_util::BodyExt;
use hyper::Method;
use hyper::body::Incoming;
use serde_json::Value;

use super::http::{Server, refused};
use crate::env::Environment;
use crate::failure::Failure;
use crate::intent::{Form, Intent, Output};
use crate::os::{self, Interrupts};
use crate::say;
use crate::view::View;

const PATH: &str = "/v1/executions";
/// The longest event that is taken: the longest result, and some.
const LONGEST: usize = 256 << 20;

/// Runs, and gives the exit status.
pub(crate) fn run(url: &str, intent: Intent, environment: &Environment) -> Result<u8, Failure> {
    let server = Server::of(Some(url), environment)?;
    let Intent { request, paths, output } = intent;
    refuse_folders(&paths)?;
    let body = serde_json::to_value(&request).map_err(|error| Failure::invalid(error.to_string()))?;
    os::runtime()?.block_on(async {
        let mut interrupts = Interrupts::listen()?;
        tokio::select! {
            status = perform(&server, &body, output) => status,
            // Whoever hangs up takes the execution along.
            () = interrupts.next() => Ok(130),
        }
    })
}

/// What only a run on this machine can have.
pub(crate) fn refuse_folders(paths: &HostPaths) -> Result<(), Failure> {
    if paths.playground.is_none() && paths.mounts.is_empty() && paths.image.is_none() {
        return Ok(());
    }
    let what = "--workspace, --mount and --image name folders of this machine, which a server does not have";
    Err(Failure::invalid(what))
}

async fn perform(server: &Server, body: &Value, output: Output) -> Result<u8, Failure> {
    if output.form == Form::Json {
        let result = server.call(Method::POST, PATH, Some(body)).await?;
        say::answer(&result.to_string());
        return Ok(exit_status(&result));
    }
    let response = server.send(Method::POST, PATH, "text/event-stream", Some(body)).await?;
    let mut events = Events { body: response.into_body(), ready: Vec::new() };
    let mut view = View::start(output.form == Form::Raw)?;
    let result = loop {
        let (name, data) = events.next().await?;
        match name.as_str() {
            "output" => {
                let stream = if data["stream"] == "stderr" { Stream::Stderr } else { Stream::Stdout };
                view.output(stream, data["text"].as_str().unwrap_or_default().as_bytes());
            }
            "result" => break data,
            "error" => return Err(refused(&data["error"], "nothing ran")),
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
    Ok(exit_status(&result))
}

/// As a run on this machine has it.
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
        (_, _, None, Some(name)) => signalled_status(name),
        (_, _, None, None) => 137,
    }
}

/// Server-sent events, one at a time.
struct Events {
    body: Incoming,
    ready: Vec<u8>,
}

impl Events {
    async fn next(&mut self) -> Result<(String, Value), Failure> {
        let lost = |why: &str| Failure::host(format!("read the server's answer: {why}"));
        loop {
            if let Some(end) = self.ready.windows(2).position(|two| two == b"\n\n") {
                let event: Vec<u8> = self.ready.drain(..end + 2).collect();
                return Ok(parse(&String::from_utf8_lossy(&event)));
            }
            if self.ready.len() > LONGEST {
                return Err(lost("it is too long"));
            }
            let frame = self.body.frame().await.ok_or_else(|| lost("it ended early"))?;
            let frame = frame.map_err(|error| lost(&error.to_string()))?;
            self.ready.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
        }
    }
}

fn parse(event: &str) -> (String, Value) {
    let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    (field("event: ").to_owned(), serde_json::from_str(field("data: ")).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn endings_have_their_status() {
        let status = |status: &str, exit: Value, signal: Value, limit: Value| {
            exit_status(&json!({"status": status, "exit_code": exit, "signal": signal, "limit": limit}))
        };
        assert_eq!(status("failed", json!(3), Value::Null, Value::Null), 3);
        assert_eq!(status("failed", Value::Null, json!("SIGSEGV"), Value::Null), 139);
        assert_eq!(status("timed_out", Value::Null, Value::Null, Value::Null), 124);
        assert_eq!(status("limit_exceeded", Value::Null, Value::Null, json!("memory")), 137);
        assert_eq!(parse("event: output\ndata: {\"a\":1}\n\n"), ("output".to_owned(), json!({"a": 1})));
    }
}
