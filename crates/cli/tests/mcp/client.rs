//! A scripted MCP client.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use serde_json::{Value, json};

use crate::common::belljar;

pub(crate) struct Client {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    last: u64,
    /// Messages that the server sent on its own.
    pub(crate) told: Vec<Value>,
}

impl Client {
    pub(crate) fn start() -> Self {
        Self::by(belljar().arg("mcp"))
    }

    pub(crate) fn by(command: &mut Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, stdin, stdout, last: 0, told: Vec::new() }
    }

    pub(crate) fn initialize(&mut self, version: &str) -> Value {
        let who = json!({"name": "test", "version": "1"});
        let params = json!({"protocolVersion": version, "capabilities": {}, "clientInfo": who});
        let begun = self.ask("initialize", params);
        self.notify("notifications/initialized", json!({}));
        begun["result"].clone()
    }

    pub(crate) fn call(&mut self, tool: &str, input: Value) -> Value {
        let answer = self.ask("tools/call", json!({"name": tool, "arguments": input}));
        assert!(answer["result"].is_object(), "{answer}");
        answer["result"].clone()
    }

    /// Sends a request and returns its response. Earlier messages belong to other requests.
    pub(crate) fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.send(method, params);
        loop {
            let mut line = String::new();
            assert!(self.stdout.read_line(&mut line).unwrap() > 0, "no answer to {method}");
            // Only the protocol is on standard output.
            let message: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line}"));
            assert_eq!(message["jsonrpc"], "2.0");
            if message["id"] == id {
                return message;
            }
            self.told.push(message);
        }
    }

    pub(crate) fn send(&mut self, method: &str, params: Value) -> u64 {
        self.last += 1;
        self.write(&json!({"jsonrpc": "2.0", "id": self.last, "method": method, "params": params}));
        self.last
    }

    pub(crate) fn notify(&mut self, method: &str, params: Value) {
        self.write(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
    }

    fn write(&mut self, message: &Value) {
        writeln!(self.stdin.as_mut().unwrap(), "{message}").unwrap();
    }

    /// Closes standard input, as clients should.
    pub(crate) fn end(mut self) -> ExitStatus {
        drop(self.stdin.take());
        self.child.wait().unwrap()
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        drop(self.stdin.take());
        // A process that has already exited is fine.
        let _killed = self.child.kill();
        let _waited = self.child.wait();
    }
}
