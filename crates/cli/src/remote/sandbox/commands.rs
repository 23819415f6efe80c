//! Commands of a sandbox: listing them, their output, and signals to them.

use belljar_engine::report::signal_exit_status;
use hyper::Method;
use serde_json::{Value, json};

use super::args::LogsArgs;
use super::{call, sandbox_url, show};
use crate::error::CliError;
use crate::os::{self, Interrupts};
use crate::remote::events::{EventStream, bytes_of, stream_of};
use crate::remote::http::{EVENTS, Server, server_error};
use crate::remote::show::Columns;
use crate::say;
use crate::view::StreamView;

const COMMANDS: Columns = &["id", "pid", "state", "exit_code", "signal", "output_bytes", "command"];
/// Exit status of a shell command whose output has no reader: 128 + SIGPIPE.
pub(super) const EXIT_SIGPIPE: u8 = 141;

/// An event of a followed command.
pub(super) enum CommandEvent {
    /// The command started and has this number.
    Started(u64),
    /// The command wrote output, which was shown; `false` if standard output is closed.
    Wrote(bool),
    /// The command ended.
    Ended(Value),
}

/// Shows output up to the next event and returns that event; `None` at the end of the stream.
pub(super) async fn next_event(
    events: &mut EventStream,
    screen: &StreamView,
) -> Result<Option<CommandEvent>, CliError> {
    while let Some((name, data)) = events.next().await? {
        match name.as_str() {
            "started" => return Ok(data["id"].as_u64().map(CommandEvent::Started)),
            "output" => {
                return Ok(Some(CommandEvent::Wrote(screen.show(stream_of(&data), bytes_of(&data)).await)));
            }
            "lost" => say::note(&format!("{} bytes of output were dropped", data["bytes"])),
            "ended" => return Ok(Some(CommandEvent::Ended(data))),
            "error" => return Err(server_error(&data["error"], "the connection to the command was lost")),
            _ => {}
        }
    }
    Ok(None)
}

/// Returns the exit status that a shell would give.
pub(super) fn exit_status(command: &Value) -> u8 {
    let code = command["exit_code"].as_u64().and_then(|code| u8::try_from(code).ok());
    match (command["timed_out"] == true, code, command["signal"].as_str()) {
        (true, ..) => 124,
        (_, Some(code), _) => code,
        (_, None, Some(name)) => signal_exit_status(name),
        (_, None, None) => 137,
    }
}

pub(super) fn list(server: &Server, id: &str, json: bool) -> Result<u8, CliError> {
    show::print_list(
        &call(server, Method::GET, &sandbox_url(id, "/commands"), None)?,
        "commands",
        COMMANDS,
        json,
    )
}

pub(super) fn kill(server: &Server, id: &str, number: u64, signal: &str) -> Result<u8, CliError> {
    let signal: Value = signal.parse::<u32>().map_or_else(|_| json!(signal), |number| json!(number));
    let url = sandbox_url(id, &format!("/commands/{number}/signal"));
    call(server, Method::POST, &url, Some(&json!({"signal": signal}))).map(|_| 0)
}

pub(super) fn logs(server: &Server, args: &LogsArgs, json: bool) -> Result<u8, CliError> {
    let url = sandbox_url(&args.id, &format!("/commands/{}/output?from={}", args.number, args.from));
    if json && !args.follow {
        return show::print_object(&call(server, Method::GET, &url, None)?);
    }
    let url = format!("{url}&follow={}", args.follow);
    os::runtime()?.block_on(async {
        let mut interrupts = Interrupts::listen()?;
        tokio::select! {
            status = follow(server, &url, args.raw) => status,
            () = interrupts.next() => Ok(130),
        }
    })
}

async fn follow(server: &Server, url: &str, raw: bool) -> Result<u8, CliError> {
    let mut events = EventStream::new(server.send(Method::GET, url, EVENTS, None).await?);
    let screen = StreamView::start(raw)?;
    let status = loop {
        match next_event(&mut events, &screen).await? {
            Some(CommandEvent::Wrote(false)) => break EXIT_SIGPIPE,
            Some(CommandEvent::Ended(_)) | None => break 0,
            Some(_) => {}
        }
    };
    screen.finish().await;
    Ok(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_status_follows_the_command() {
        let status = |exit: Value, signal: Value, late: bool| {
            exit_status(&json!({"exit_code": exit, "signal": signal, "timed_out": late}))
        };
        assert_eq!(status(json!(3), Value::Null, false), 3);
        assert_eq!(status(Value::Null, json!("SIGTERM"), false), 143);
        assert_eq!(status(Value::Null, json!("SIGKILL"), true), 124);
    }
}
