//! `belljar sandbox` and `belljar provider`: the real binary against the real server, and against a hostile
//! one.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../common/mod.rs"]
mod common;

mod copy;
mod exec;
mod fake;
mod life;
mod ports;
mod providers;
mod pty;
mod shell;

use std::path::Path;
use std::process::{Command, Output, Stdio};

use common::server::{KEY, Server};
use tempfile::TempDir;

/// A server with one sandbox.
struct SandboxFixture {
    server: Server,
    id: String,
    /// The server's data, and files of the test.
    folder: TempDir,
}

impl SandboxFixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::new(folder.path());
        let mut fixture = Self { server, id: String::new(), folder };
        fixture.id = fixture.text(&["create", "--timeout", "10m", "--disk", "64M"]).trim_end().to_owned();
        fixture
    }

    fn command(&self, arguments: &[&str]) -> Command {
        client(&self.server.url, arguments)
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs a command that must succeed, and returns its output.
    fn text(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a command that must be refused with status 125, and returns its message.
    fn refusal(&self, arguments: &[&str]) -> String {
        refusal(&mut self.command(arguments))
    }

    /// Returns a path in the sandbox.
    fn at(&self, path: &str) -> String {
        format!("{}:{path}", self.id)
    }

    /// Returns a path in the test's own folder.
    fn beside(&self, name: &str) -> std::path::PathBuf {
        let path = self.folder.path().join(name);
        std::fs::create_dir(&path).unwrap();
        path
    }
}

/// Returns a `belljar sandbox` command for a server.
fn client(url: &str, arguments: &[&str]) -> Command {
    let mut command = common::belljar();
    command.arg("sandbox").args(arguments).env("BELLJAR_SERVER", url).env("BELLJAR_API_KEY", KEY);
    command
}

fn refusal(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn text_of(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Starts a command with all streams piped.
fn piped(mut command: Command) -> std::process::Child {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}
