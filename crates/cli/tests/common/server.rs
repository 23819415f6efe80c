//! Runs `belljar serve` and sends requests to it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

pub(crate) const KEY: &str = "a-key-for-tests-that-is-long-enough-to-be-one";

pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) url: String,
    /// Output before the server was ready.
    pub(crate) lines: Vec<String>,
}

/// A response of the server.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&self.body)))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn code(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap_or_else(|| panic!("{self:?}")).to_owned()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

impl Server {
    /// Starts a server with the default test key.
    pub(crate) fn new(folder: &Path) -> Self {
        Self::start(folder, Some(KEY), &[])
    }

    /// Starts a server with the default test key and these `[server]` settings.
    pub(crate) fn configured(folder: &Path, settings: &str) -> Self {
        let file = folder.join("belljar.toml");
        std::fs::write(&file, format!("[server]\n{settings}\n")).unwrap();
        let mut command = command(folder, Some(KEY));
        Self::of(command.env("BELLJAR_CONFIG", file))
    }

    pub(crate) fn start(folder: &Path, key: Option<&str>, flags: &[&str]) -> Self {
        Self::of(command(folder, key).args(flags))
    }

    /// Starts a server with the default test key, by a command that ends in `belljar serve` and flags.
    pub(crate) fn by(mut command: Command, folder: &Path) -> Self {
        Self::of(on(&mut command, folder, Some(KEY)))
    }

    pub(crate) fn of(command: &mut Command) -> Self {
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

    /// Calls the server with curl and returns the status and the body.
    pub(crate) fn curl(&self, arguments: &[&str], path: &str) -> (String, String) {
        let bearer = format!("Authorization: Bearer {KEY}");
        let output = Command::new("curl")
            .args(["-sS", "--max-time", "30", "-w", "\n%{http_code}", "-H", &bearer])
            .args(arguments)
            .arg(format!("{}{path}", self.url))
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let (body, status) =
            text.rsplit_once('\n').unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(&output.stderr)));
        (status.to_owned(), body.to_owned())
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        self.call("GET", path, "", b"")
    }

    pub(crate) fn delete(&self, path: &str) -> Reply {
        self.call("DELETE", path, "", b"")
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Reply {
        self.call("POST", path, "Content-Type: application/json\r\n", body.to_string().as_bytes())
    }

    pub(crate) fn call(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Reply {
        self.call_as(KEY, method, path, headers, body)
    }

    /// Calls the server with another key.
    pub(crate) fn call_as(&self, key: &str, method: &str, path: &str, headers: &str, body: &[u8]) -> Reply {
        let mut stream = self.send_as(key, method, path, headers, body);
        let mut bytes = Vec::new();
        // A server that refuses early may reset the connection; what it sent before still counts.
        let _ = stream.read_to_end(&mut bytes);
        parse(&bytes)
    }

    /// Sends a request without reading the response.
    pub(crate) fn send_as(
        &self,
        key: &str,
        method: &str,
        path: &str,
        headers: &str,
        body: &[u8],
    ) -> TcpStream {
        let address = self.url.trim_start_matches("http://");
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nAuthorization: Bearer {key}\r\n\
             Content-Length: {}\r\n{headers}\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        // A server that refuses early has already closed.
        let _ = stream.write_all(body);
        stream
    }

    /// Creates a tenant and returns a key of it.
    pub(crate) fn tenant(&self, name: &str, quotas: Value) -> String {
        let made = self.post("/v1/tenants", &serde_json::json!({"name": name, "quotas": quotas}));
        assert_eq!(made.status, 201, "{made:?}");
        let key = self.post(&format!("/v1/tenants/{name}/keys"), &serde_json::json!({}));
        key.json()["key"].as_str().unwrap().to_owned()
    }

    /// Creates a sandbox and returns its path.
    pub(crate) fn sandbox(&self, request: &Value) -> String {
        let opened = self.post("/v1/sandboxes", request);
        assert_eq!(opened.status, 201, "{}", opened.text());
        format!("/v1/sandboxes/{}", opened.json()["id"].as_str().unwrap())
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

fn command(folder: &Path, key: Option<&str>) -> Command {
    let mut command = super::belljar();
    on(command.args(["serve", "--allow-degraded"]), folder, key);
    command
}

fn on<'a>(command: &'a mut Command, folder: &Path, key: Option<&str>) -> &'a mut Command {
    command.args(["--listen", "127.0.0.1:0", "--data-dir"]).arg(folder);
    command.env_remove("BELLJAR_ADMIN_KEY").env("BELLJAR_LOG", "warn");
    if let Some(key) = key {
        command.env("BELLJAR_ADMIN_KEY", key);
    }
    command
}

pub(crate) fn parse(bytes: &[u8]) -> Reply {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
    let end = end.unwrap_or_else(|| panic!("no head: {}", String::from_utf8_lossy(bytes)));
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    let body = &bytes[end + 4..];
    Reply { status, head, body: if chunked { unchunk(body) } else { body.to_vec() } }
}

fn unchunk(mut bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = bytes.windows(2).position(|two| two == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&bytes[..end]).unwrap(), 16).unwrap();
        if size == 0 {
            break;
        }
        body.extend_from_slice(&bytes[end + 2..end + 2 + size]);
        bytes = &bytes[end + 4 + size..];
    }
    body
}
