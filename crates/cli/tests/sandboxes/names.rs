//! Hostile file names: none is resolved outside its sandbox, and none escapes its HTTP header.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use super::files::{SandboxFiles, encode};
use crate::common::server::{KEY, Server};

const SECRET: &str = "a secret of the host";

/// A keep-alive connection with many requests in flight.
struct Pipe {
    stream: TcpStream,
    answers: BufReader<TcpStream>,
    host: String,
}

impl Pipe {
    fn new(server: &Server) -> Self {
        let host = server.url.trim_start_matches("http://").to_owned();
        let stream = TcpStream::connect(&host).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Self { answers: BufReader::new(stream.try_clone().unwrap()), stream, host }
    }

    fn request(&self, method: &str, path: &str, body: &str) -> String {
        let kind = if method == "POST" { "Content-Type: application/json\r\n" } else { "" };
        let (host, len) = (&self.host, body.len());
        format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {KEY}\r\n{kind}Content-Length: {len}\r\n\r\n{body}"
        )
    }

    fn send(&mut self, requests: &str) {
        self.stream.write_all(requests.as_bytes()).unwrap();
    }

    /// Reads the head and the body of the next response.
    fn answer(&mut self) -> (String, Vec<u8>) {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(self.answers.read_line(&mut head).unwrap() > 0, "the connection ended: {head}");
        }
        let lower = head.to_ascii_lowercase();
        let length = lower.split("content-length: ").nth(1).and_then(|rest| rest.split('\r').next());
        let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
        self.answers.read_exact(&mut body).unwrap();
        while lower.contains("transfer-encoding: chunked") {
            let mut line = String::new();
            self.answers.read_line(&mut line).unwrap();
            let size = usize::from_str_radix(line.trim(), 16).unwrap();
            let mut piece = vec![0; size + 2];
            self.answers.read_exact(&mut piece).unwrap();
            if size == 0 {
                break;
            }
            body.extend_from_slice(&piece[..size]);
        }
        (head, body)
    }
}

/// Generates pseudorandom names, the same ones in every run.
struct Names {
    state: u64,
    pieces: Vec<String>,
}

impl Names {
    fn new(canary: &Path) -> Self {
        let long = "l".repeat(255);
        let pieces = [
            "..",
            ".",
            "",
            "/",
            "//",
            "\\",
            "..\\",
            "%2e%2e%2f",
            "%252e%252e%252f",
            ":",
            "C:",
            "\u{ff0e}\u{ff0e}",
            "\u{2215}",
            "etc/passwd",
            "/etc/hostname",
            "/proc/self/environ",
            "/proc/1/root",
            "/proc/self/fd/3",
            "/proc/self/cwd",
            "/dev/null",
            "con",
            "nul.txt",
            "name.",
            "name ",
            " name",
            "-rf",
            "~",
            "$(id)",
            "`id`",
            ";",
            "|",
            "*",
            "?",
            "\r\nX-Injected: 1",
            "\"",
            "é",
            "😀",
            "\u{202e}",
            "\u{feff}",
            "\u{7f}",
            "\u{1}",
            "\t",
            "\0",
            "zqx",
            "a",
            long.as_str(),
            canary.to_str().unwrap(),
        ];
        Self { state: 0x9e37_79b9_7f4a_7c15, pieces: pieces.map(str::to_owned).into() }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 16) as usize % bound
    }

    fn next(&mut self) -> Vec<u8> {
        let mut name = Vec::new();
        for _ in 0..=self.below(5) {
            let piece = self.below(self.pieces.len());
            name.extend_from_slice(self.pieces[piece].as_bytes());
            match self.below(8) {
                0..4 => name.push(b'/'),
                // Invalid UTF-8: truncated, overlong, or arbitrary bytes.
                4 if self.below(4) == 0 => name.extend_from_slice(&[0xc0, 0xae]),
                5 if self.below(4) == 0 => name.push(0xff),
                _ => {}
            }
        }
        if self.below(200) == 0 {
            name.resize(4_000 + self.below(200), b'n');
        }
        name
    }
}

/// A trace of the server's own file system calls; calls in its sandboxes are not included.
struct Traced {
    strace: Child,
    log: std::path::PathBuf,
}

impl Traced {
    /// Returns `None` if the server cannot be traced.
    fn begin(server: &Server, folder: &Path) -> Option<Self> {
        let log = folder.join("trace");
        let mut strace = Command::new("strace")
            .args(["-f", "-e", "trace=%file,accept4", "-o"])
            .arg(&log)
            .args(["-p", &server.child.id().to_string()])
            .stderr(Stdio::piped())
            .spawn()
            .ok()?;
        let said = BufReader::new(strace.stderr.take().unwrap()).lines().next();
        let attached = said.and_then(Result::ok).is_some_and(|line| line.contains("attached"));
        attached.then_some(Self { strace, log })
    }

    /// Stops tracing and returns the calls.
    fn end(mut self) -> Vec<String> {
        Command::new("kill").args(["-INT", &self.strace.id().to_string()]).status().unwrap();
        self.strace.wait().unwrap();
        fs::read_to_string(&self.log).unwrap().lines().map(str::to_owned).collect()
    }
}

fn tell(pipe: &mut Pipe, url: &str, names: &mut Names, count: usize) {
    let mut requests = String::new();
    for number in 0..count {
        let raw = names.next();
        let name = encode(&raw);
        let text = String::from_utf8_lossy(&raw).into_owned();
        requests += &match number % 9 {
            0 => pipe.request("GET", &format!("{url}/files?path={name}"), ""),
            1 | 2 => pipe.request("PUT", &format!("{url}/files?path={name}&parents=true"), "written"),
            3 => pipe.request("GET", &format!("{url}/files/stat?path={name}&follow=true"), ""),
            4 => pipe.request("GET", &format!("{url}/files/list?path={name}&limit=1"), ""),
            5 => pipe.request("POST", &format!("{url}/files/folder"), &json!({"path": text}).to_string()),
            6 => pipe.request(
                "POST",
                &format!("{url}/files/move"),
                &json!({"from": text, "to": "moved", "replace": true}).to_string(),
            ),
            7 => pipe.request(
                "GET",
                &format!("{url}/files?path={}", raw.iter().map(|_| 'n').take(9).collect::<String>()),
                "",
            ),
            _ => pipe.request("DELETE", &format!("{url}/files?path={name}"), ""),
        };
    }
    pipe.send(&requests);
    for _ in 0..count {
        let (head, body) = pipe.answer();
        let status: u16 = head[9..12].parse().unwrap();
        assert!(status < 500, "{head}{}", String::from_utf8_lossy(&body));
        assert!(!head.to_ascii_lowercase().contains("\nx-injected"), "{head}");
        assert!(!body.windows(SECRET.len()).any(|part| part == SECRET.as_bytes()), "{head}");
    }
}

#[test]
fn the_server_never_resolves_sandbox_paths() {
    let folder = tempfile::tempdir().unwrap();
    let outside = tempfile::tempdir().unwrap();
    let canary = outside.path().join("canary-zqx");
    fs::write(&canary, SECRET).unwrap();
    let server = Server::new(folder.path());
    let url = SandboxFiles::new(&server, json!({"timeout_ms": 3_600_000}));
    let mut pipe = Pipe::new(&server);
    let mut names = Names::new(&canary);
    // Let everything that is done only once happen before tracing.
    tell(&mut pipe, &url.path, &mut names, 20);
    let traced = Traced::begin(&server, outside.path());
    assert!(traced.is_some() || std::env::var_os("CI").is_none(), "strace is needed");
    let all = std::env::var_os("BELLJAR_TEST_ALL").is_some_and(|value| value == "1");
    let (rounds, each) = if all { (2_000, 50) } else { (60, 50) };
    for _ in 0..rounds {
        tell(&mut pipe, &url.path, &mut names, each);
    }
    assert_eq!(server.get("/healthz").status, 200);
    let Some(calls) = traced.map(Traced::end) else { return };
    // The trace must include the last connection.
    assert!(calls.iter().any(|call| call.contains("accept4(")), "{calls:#?}");
    // Allowed are its database, by name and by descriptor, and what the allocator reads.
    let ours = format!("\"{}/", folder.path().display());
    let known = |call: &&String| {
        let quiet = call.contains("resumed>")
            || call.contains("accept4(")
            || call.contains("+++")
            || call.contains("---");
        quiet || call.contains(&ours) || call.contains("\"\", ") || call.contains("\"/proc/sys/vm/")
    };
    let strange: Vec<_> = calls.iter().filter(|call| !known(call)).collect();
    assert!(strange.is_empty(), "{strange:#?}");
    assert!(!calls.iter().any(|call| call.contains("zqx") || call.contains("environ")), "{calls:#?}");
    assert_eq!(fs::read_to_string(&canary).unwrap(), SECRET);
    let left: Vec<_> =
        fs::read_dir(outside.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.len() <= 2, "{left:?}");
}

#[test]
fn file_names_do_not_inject_headers() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let url = SandboxFiles::new(&server, json!({}));
    for (name, shown) in [
        ("a\r\nX-Injected: 1", "a%0D%0AX-Injected%3A%201"),
        ("quote\"; x=\"\\", "quote%22%3B%20x%3D%22%5C"),
        ("über 😀.txt", "%C3%BCber%20%F0%9F%98%80.txt"),
        ("%0d%0aSet-Cookie: a", "%250d%250aSet-Cookie%3A%20a"),
    ] {
        assert_eq!(url.put(name, b"x").status, 200, "{name:?}");
        for verb in ["", "/archive"] {
            let path = if verb.is_empty() { name.to_owned() } else { format!("folder/{name}") };
            if !verb.is_empty() {
                let made = json!({"path": path});
                assert_eq!(server.post(&format!("{}/files/folder", url.path), &made).status, 201);
            }
            let reply = server.get(&format!("{}/files{verb}?path={}", url.path, encode(path.as_bytes())));
            assert_eq!(reply.status, 200);
            let header = reply.header("content-disposition").unwrap();
            assert!(header.is_ascii() && header.contains(&format!("filename*=UTF-8''{shown}")), "{header}");
            assert!(reply.header("x-injected").is_none() && reply.header("set-cookie").is_none());
            assert_eq!(reply.header("content-security-policy"), Some("sandbox"));
            assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
        }
        // In an error message the name is part of a JSON string.
        let missing =
            server.get(&format!("{}/files?path={}", url.path, encode(format!("no{name}").as_bytes())));
        assert_eq!((missing.status, missing.header("x-injected")), (404, None));
    }
}

/// Replaces a folder by a link to the host's and back, as fast as possible.
const SWAP: &str = "
import os, sys
target = sys.argv[1]
os.makedirs('real', exist_ok=True); open('real/canary', 'w').write('inside')
os.symlink(target, 'link'); os.rename('real', 'swap')
open('begun', 'w')
while True:
    os.rename('swap', 'real'); os.rename('link', 'swap')
    os.rename('swap', 'link'); os.rename('real', 'swap')
";

#[test]
fn a_folder_replaced_by_a_link_does_not_escape() {
    let folder = tempfile::tempdir().unwrap();
    let outside = tempfile::tempdir().unwrap();
    // World-writable, so that the sandbox user could access it if it were visible.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    fs::set_permissions(outside.path(), open).unwrap();
    fs::write(outside.path().join("canary"), SECRET).unwrap();
    let server = Server::new(folder.path());
    let url = SandboxFiles::new(&server, json!({}));
    url.put("swap.py", SWAP.as_bytes());
    url.begin(&format!("python3 swap.py {}", outside.path().display()));
    let started = Instant::now();
    while server.get(&format!("{}/files/stat?path=begun", url.path)).status != 200 {
        assert!(started.elapsed() < Duration::from_secs(60), "the race never began");
    }
    let mut pipe = Pipe::new(&server);
    let (mut inside, mut refused) = (0, 0);
    for number in 0..400 {
        let requests = [
            pipe.request("GET", &format!("{}/files?path=swap/canary", url.path), ""),
            pipe.request("PUT", &format!("{}/files?path=swap/new{number}&parents=false", url.path), "x"),
            pipe.request("PUT", &format!("{}/files?path=swap/canary&atomic=true", url.path), "inside"),
            pipe.request("DELETE", &format!("{}/files?path=swap/new{number}", url.path), ""),
        ];
        pipe.send(&requests.concat());
        for _ in 0..requests.len() {
            let (head, body) = pipe.answer();
            assert!(!body.windows(SECRET.len()).any(|part| part == SECRET.as_bytes()), "{head}");
            if head.contains(" 200 ") { inside += 1 } else { refused += 1 }
        }
        // An archive that fails midway ends the connection, so it gets its own.
        let mut packed = Vec::new();
        let archive = format!("{}/files/archive?path=swap", url.path);
        let _ = server.send_as(KEY, "GET", &archive, "", b"").read_to_end(&mut packed);
        assert!(!packed.windows(SECRET.len()).any(|part| part == SECRET.as_bytes()));
    }
    assert!(inside > 0 && refused > 0, "there was no race: {inside} {refused}");
    assert_eq!(fs::read_to_string(outside.path().join("canary")).unwrap(), SECRET);
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
}
