//! `belljar sandbox exec`: runs programs and code in a sandbox and waits for them.

use std::future::Future;
use std::io::{self, Read};
use std::time::Duration;

use hyper::Method;
use hyper::body::Bytes;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::args::ExecArgs;
use super::commands::{CommandEvent, EXIT_SIGPIPE, exit_status, next_event};
use super::{call, sandbox_url, show};
use crate::env::Environment;
use crate::error::CliError;
use crate::intent::{Intent, parse_variable};
use crate::os::{self, Interrupts};
use crate::remote::events::EventStream;
use crate::remote::http::{EVENTS, Server, bytes};
use crate::remote::run::run_at;
use crate::run_args::{LimitArgs, RunArgs};
use crate::say;
use crate::view::StreamView;

/// Maximum number of bytes read from standard input at once.
const STDIN_CHUNK_BYTES: usize = 256 << 10;
/// How long to wait for a command to die after the user interrupted.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) fn exec(server: &Server, args: ExecArgs, json: bool) -> Result<u8, CliError> {
    if args.source.is_some() || args.code.is_some() {
        return code(server, args, json);
    }
    if args.command.is_empty() {
        let nothing = "nothing to run: pass -- CMD, -c CODE or a FILE; see belljar sandbox exec --help";
        return Err(CliError::invalid(nothing));
    }
    if args.language.is_some() {
        return Err(CliError::invalid("--language: only applies to code; pass -c CODE or a FILE"));
    }
    let (url, body) = (sandbox_url(&args.id, "/commands"), request(&args)?);
    if args.detach {
        let started = call(server, Method::POST, &url, Some(&body))?;
        if json {
            return show::print_object(&started);
        }
        say::answer(&started["id"].to_string());
        return Ok(0);
    }
    os::runtime()?.block_on(async {
        let mut wire = RunningCommand {
            server,
            url,
            interrupts: Interrupts::listen()?,
            number: None,
            interrupted: false,
        };
        if json { wire.result(&body).await } else { wire.live(&body, &args).await }
    })
}

fn request(args: &ExecArgs) -> Result<Value, CliError> {
    let variables = args.variables.iter().map(|text| parse_variable(text));
    let variables: Map<_, _> =
        variables.map(|pair| pair.map(|(k, v)| (k, v.into()))).collect::<Result<_, _>>()?;
    let mut request = json!({
        "command": args.command, "env": variables, "background": args.detach, "stdin_open": args.interactive
    });
    if let Some(workdir) = &args.workdir {
        request["workdir"] = workdir.as_str().into();
    }
    if let Some(timeout) = args.timeout {
        request["timeout_ms"] = timeout.into();
    }
    Ok(request)
}

/// Runs code as an execution in the existing sandbox.
fn code(server: &Server, args: ExecArgs, json: bool) -> Result<u8, CliError> {
    let url = sandbox_url(&args.id, "/executions");
    let run = RunArgs {
        source: args.source,
        code: args.code,
        language: args.language,
        workdir: args.workdir,
        variables: args.variables,
        command: args.command,
        packages: args.packages,
        no_deps: args.no_deps,
        limits: LimitArgs { timeout: args.timeout, ..LimitArgs::default() },
        raw: args.raw,
        json,
        ..RunArgs::default()
    };
    // The sandbox has its own limits and profile; those in the environment are for new sandboxes.
    let Intent { request, output, artifacts, .. } = Intent::from_args(run, &Environment::default())?;
    run_at(server, &url, &request, output, artifacts.as_ref())
}

/// A running command, and the interrupts to forward to it.
struct RunningCommand<'a> {
    server: &'a Server,
    url: String,
    interrupts: Interrupts,
    /// Number of the command, once known.
    number: Option<u64>,
    /// Whether SIGINT was already sent.
    interrupted: bool,
}

impl RunningCommand<'_> {
    /// Prints the result as one object. If the connection closes, the server kills the command.
    async fn result(&mut self, body: &Value) -> Result<u8, CliError> {
        let server = self.server;
        let url = self.url.clone();
        let Some(ended) = self.with_interrupts(server.call(Method::POST, &url, Some(body))).await else {
            return Ok(130);
        };
        let ended = ended?;
        say::answer(&ended.to_string());
        Ok(exit_status(&ended))
    }

    async fn live(&mut self, body: &Value, args: &ExecArgs) -> Result<u8, CliError> {
        let (server, url) = (self.server, self.url.clone());
        let Some(response) = self.with_interrupts(server.send(Method::POST, &url, EVENTS, Some(body))).await
        else {
            return Ok(130);
        };
        let mut events = EventStream::new(response?);
        let screen = StreamView::start(args.raw)?;
        let status = loop {
            match self.with_interrupts(next_event(&mut events, &screen)).await {
                None => break 130,
                Some(Err(failure)) => return Err(failure),
                Some(Ok(None)) => {
                    return Err(CliError::host(
                        "cannot read the server's response: the connection closed early",
                    ));
                }
                Some(Ok(Some(CommandEvent::Started(number)))) => {
                    self.number = Some(number);
                    if args.interactive {
                        tokio::spawn(forward_stdin(server.clone(), format!("{url}/{number}")));
                    }
                }
                Some(Ok(Some(CommandEvent::Wrote(true)))) => {}
                Some(Ok(Some(CommandEvent::Wrote(false)))) => {
                    self.kill().await;
                    break EXIT_SIGPIPE;
                }
                Some(Ok(Some(CommandEvent::Ended(command)))) => {
                    if command["timed_out"] == true {
                        say::note("the command timed out; raise the limit with --timeout");
                    }
                    break exit_status(&command);
                }
            }
        };
        screen.finish().await;
        Ok(status)
    }

    /// Waits for `work` and forwards an interrupt to the command; `None` after a second interrupt.
    async fn with_interrupts<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return Some(done),
                () = self.interrupts.next() => {}
            }
            match self.number {
                Some(number) if !self.interrupted => {
                    self.interrupted = true;
                    let (server, url) = (self.server.clone(), format!("{}/{number}/signal", self.url));
                    // Not awaited: the next interrupt must work whatever the server does.
                    tokio::spawn(async move {
                        server.call(Method::POST, &url, Some(&json!({"signal": "SIGINT"}))).await
                    });
                }
                _ => {
                    self.kill().await;
                    return None;
                }
            }
        }
    }

    /// Kills the command. It would die with the connection as well, but this waits for it.
    async fn kill(&self) {
        let Some(number) = self.number else { return };
        let (url, signal) = (format!("{}/{number}/signal", self.url), json!({"signal": "SIGKILL"}));
        let _best_effort = timeout(KILL_TIMEOUT, self.server.call(Method::POST, &url, Some(&signal))).await;
    }
}

/// Forwards standard input until it or the command ends.
async fn forward_stdin(server: Server, command: String) {
    let mut pieces = read_stdin();
    let url = format!("{command}/stdin");
    loop {
        let (url, piece) = match pieces.recv().await {
            Some(piece) => (url.clone(), piece),
            None => (format!("{url}?close=true"), Vec::new()),
        };
        let last = piece.is_empty();
        let Err(failure) = server.put(Method::POST, &url, bytes(Bytes::from(piece))).await else {
            if last {
                return;
            }
            continue;
        };
        // A command that has ended needs no input; otherwise the user should know that input is lost.
        if matches!(server.find(&command).await, Ok(Some(command)) if command["state"] == "running") {
            say::warning(&format!("standard input is no longer passed on: {}", failure.message));
        }
        return;
    }
}

/// Reads standard input as it arrives. The thread may block in a read and is abandoned at exit.
pub(super) fn read_stdin() -> mpsc::Receiver<Vec<u8>> {
    let (queue, pieces) = mpsc::channel(1);
    std::thread::spawn(move || {
        let mut buffer = vec![0; STDIN_CHUNK_BYTES];
        loop {
            match io::stdin().lock().read(&mut buffer) {
                Ok(0) => return,
                Ok(len) if queue.blocking_send(buffer[..len].to_vec()).is_ok() => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => return,
            }
        }
    });
    pieces
}
