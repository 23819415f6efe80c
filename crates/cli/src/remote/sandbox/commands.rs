//! Commands of a sandbox: listing them, their output, and signals to them.

use belljar_engine::report::signalled_status;
use hyper::Method;
use serde_json::{Value, json};

use super::args::LogsArgs;
use super::{at, call, show};
use crate::failure::Failure;
use crate::os::{self, Interrupts};
use crate::remote::events::{Events, bytes_of, stream_of};
use crate::remote::http::{EVENTS, Server, refused};
use crate::remote::show::Columns;
use crate::say;
use crate::view::Screen;

const COMMANDS: Columns = &["id", "pid", "state", "exit_code", "signal", "output_bytes", "command"];
/// Exit status of a shell command whose output has no reader: 128 + SIGPIPE.
pub(super) const UNREAD: u8 = 141;

/// An event of a followed command.
pub(super) enum Event {
    /// The command started and has this number.
    Started(u64),
    /// The command wrote output, which was shown; `false` if standard output is closed.
    Wrote(bool),
    /// The command ended.
    Ended(Value),
}

/// Shows output up to the next event and returns that event; `None` at the end of the stream.
pub(super) async fn next(events: &mut Events, screen: &Screen) -> Result<Option<Event>, Failure> {
    while let Some((name, data)) = events.next().await? {
        match name.as_str() {
            "started" => return Ok(data["id"].as_u64().map(Event::Started)),
            "output" => return Ok(Some(Event::Wrote(screen.show(stream_of(&data), bytes_of(&data)).await))),
            "lost" => say::note(&format!("{} bytes of output were dropped", data["bytes"])),
            "ended" => return Ok(Some(Event::Ended(data))),
            "error" => return Err(refused(&data["error"], "the connection to the command was lost")),
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
        (_, None, Some(name)) => signalled_status(name),
        (_, None, None) => 137,
    }
}

pub(super) fn list(server: &Server, id: &str, json: bool) -> Result<u8, Failure> {
    show::list(&call(server, Method::GET, &at(id, "/commands"), None)?, "commands", COMMANDS, json)
}

pub(super) fn kill(server: &Server, id: &str, number: u64, signal: &str) -> Result<u8, Failure> {
    let signal: Value = signal.parse::<u32>().map_or_else(|_| json!(signal), |number| json!(number));
    let place = at(id, &format!("/commands/{number}/signal"));
    call(server, Method::POST, &place, Some(&json!({"signal": signal}))).map(|_| 0)
}

pub(super) fn logs(server: &Server, args: &LogsArgs, json: bool) -> Result<u8, Failure> {
    let place = at(&args.id, &format!("/commands/{}/output?from={}", args.number, args.from));
    if json && !args.follow {
        return show::one(&call(server, Method::GET, &place, None)?);
    }
    let place = format!("{place}&follow={}", args.follow);
    os::runtime()?.block_on(async {
        let mut interrupts = Interrupts::listen()?;
        tokio::select! {
            status = follow(server, &place, args.raw) => status,
            () = interrupts.next() => Ok(130),
        }
    })
}

async fn follow(server: &Server, place: &str, raw: bool) -> Result<u8, Failure> {
    let mut events = Events::of(server.send(Method::GET, place, EVENTS, None).await?);
    let screen = Screen::start(raw)?;
    let status = loop {
        match next(&mut events, &screen).await? {
            Some(Event::Wrote(false)) => break UNREAD,
            Some(Event::Ended(_)) | None => break 0,
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
    fn endings_have_their_status() {
        let status = |exit: Value, signal: Value, late: bool| {
            exit_status(&json!({"exit_code": exit, "signal": signal, "timed_out": late}))
        };
        assert_eq!(status(json!(3), Value::Null, false), 3);
        assert_eq!(status(Value::Null, json!("SIGTERM"), false), 143);
        assert_eq!(status(Value::Null, json!("SIGKILL"), true), 124);
    }
}
