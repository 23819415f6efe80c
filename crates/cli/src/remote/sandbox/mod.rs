//! `belljar sandbox`: creates sandboxes on a server and works in them.

mod args;
mod commands;
mod copy;
mod examples;
mod exec;
mod files;
mod lifecycle;
mod ports;
mod shell;
mod storage;
mod watch;

use super::http::{Server, encode_part};
use super::{call, show};
use crate::env::Environment;
use crate::error::CliError;

pub(crate) use args::SandboxArgs;
use args::SandboxCommand;

/// Runs `belljar sandbox`.
pub(crate) fn sandbox(args: SandboxArgs, environment: &Environment) -> Result<u8, CliError> {
    let server = Server::new(args.server.server.as_deref(), environment)?;
    let (server, json) = (&server, args.server.json);
    match args.command {
        SandboxCommand::Create(args) => lifecycle::create(server, *args, json),
        SandboxCommand::List(args) => lifecycle::list(server, args, json),
        SandboxCommand::Show { id } => lifecycle::show(server, &id),
        SandboxCommand::Rm(args) => lifecycle::remove(server, args, json),
        SandboxCommand::Extend { id, time } => lifecycle::extend(server, &id, time, json),
        SandboxCommand::Pause { id } => lifecycle::pause_or_resume(server, &id, "pause", json),
        SandboxCommand::Resume { id } => lifecycle::pause_or_resume(server, &id, "resume", json),
        SandboxCommand::Network { id, hosts } => lifecycle::network_access(server, &id, &hosts),
        SandboxCommand::Stats { id, watch } => lifecycle::stats(server, &id, watch, json),
        SandboxCommand::Exec(args) => exec::exec(server, *args, json),
        SandboxCommand::Shell(args) => shell::shell(server, args),
        SandboxCommand::Ps { id } => commands::list(server, &id, json),
        SandboxCommand::Logs(args) => commands::logs(server, &args, json),
        SandboxCommand::Kill { id, number, signal } => commands::kill(server, &id, number, &signal),
        SandboxCommand::Cp { source, destination } => copy::copy(server, &source, &destination, json),
        SandboxCommand::RmFile { id, paths, recursive } => files::remove(server, &id, &paths, recursive),
        SandboxCommand::Ports { id, port: Some(port), listen } => {
            ports::forward(server, &id, port, listen, json)
        }
        SandboxCommand::Ports { id, port: None, .. } => ports::list(server, &id, json),
        SandboxCommand::Watch { id, path, recursive } => watch::watch(server, &id, &path, recursive, json),
        SandboxCommand::Volume { command } => storage::volume(server, command, json),
        SandboxCommand::Snapshot { command } => storage::snapshot(server, command, json),
    }
}

/// Builds a URL path below a sandbox.
fn sandbox_url(id: &str, rest: &str) -> String {
    format!("/v1/sandboxes/{}{rest}", encode_part(id))
}
