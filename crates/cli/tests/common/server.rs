//! `belljar serve` as a person starts it, and curl beside it.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

pub(crate) const KEY: &str = "a-key-for-tests-that-is-long-enough-to-be-one";

pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) url: String,
    /// What it said until it listened.
    pub(crate) lines: Vec<String>,
}

impl Server {
    pub(crate) fn start(folder: &Path, key: Option<&str>, flags: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_belljar"));
        command.args(["serve", "--allow-degraded"]).args(flags);
        Self::of(command, folder, key)
    }

    /// Started by this command, which is `belljar serve` and some flags.
    pub(crate) fn of(mut command: Command, folder: &Path, key: Option<&str>) -> Self {
        command.args(["--listen", "127.0.0.1:0", "--data-dir"]).arg(folder);
        command.env_remove("BELLJAR_ADMIN_KEY").env("BELLJAR_LOG", "warn");
        if let Some(key) = key {
            command.env("BELLJAR_ADMIN_KEY", key);
        }
        let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut server = Self { child, url: String::new(), lines: Vec::new() };
        let stdout = BufReader::new(server.child.stdout.take().unwrap());
        for line in stdout.lines() {
            server.lines.push(line.unwrap());
            if let Some(url) = server.lines.last().unwrap().strip_prefix("listening on ") {
                server.url = url.to_owned();
                return server;
            }
        }
        panic!("the server did not start: {:?}", server.lines);
    }

    /// What curl says: the status and the body.
    pub(crate) fn curl(&self, arguments: &[&str], path: &str) -> (String, String) {
        let output = Command::new("curl")
            .args([
                "-sS",
                "--max-time",
                "30",
                "-w",
                "\n%{http_code}",
                "-H",
                &format!("Authorization: Bearer {KEY}"),
            ])
            .args(arguments)
            .arg(format!("{}{path}", self.url))
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let (body, status) =
            text.rsplit_once('\n').unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(&output.stderr)));
        (status.to_owned(), body.to_owned())
    }

    pub(crate) fn run(&self, json: &str) -> (String, Value) {
        let (status, body) = self.curl(&["--json", json], "/v1/executions");
        (status, serde_json::from_str(&body).unwrap_or_else(|_| panic!("{body}")))
    }

    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
