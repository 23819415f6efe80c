//! Thousands of connections that are silent or send one byte now and then: other clients are served, each
//! connection costs little memory, and is closed after its timeout.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::memory;
use crate::common::server::{KEY, Server};
use crate::expect::{everything, skip};

/// Maximum memory per connection, including buffers.
const MEMORY: usize = 32 << 10;
/// Request heads time out after 15 s and bodies after 30 s; a busy machine may need longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// The bytes that connections send before they fall silent.
const BEGINNINGS: [&str; 4] = [
    "",
    "G",
    "GET /v1/executions HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
    "POST /v1/executions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer KEY\r\nContent-Length: 9\r\n\r\n{",
];

fn connect(server: &Server, number: usize) -> TcpStream {
    let mut stream = TcpStream::connect(server.url.strip_prefix("http://").unwrap()).unwrap();
    let beginning = BEGINNINGS[number % BEGINNINGS.len()].replace("KEY", KEY);
    stream.write_all(beginning.as_bytes()).unwrap();
    stream.set_nonblocking(true).unwrap();
    stream
}

/// Returns whether the server has closed the connection, ignoring what it sent.
fn is_closed(stream: &mut TcpStream) -> bool {
    loop {
        match stream.read(&mut [0; 1024]) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
            Err(_) => return true,
        }
    }
}

fn healthy(server: &Server) {
    let (status, result) = server.run(r#"{"command":["echo","hello"]}"#);
    assert_eq!((status.as_str(), &result["stdout"]), ("200", &"hello\n".into()));
}

fn crowd(size: usize) {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    healthy(&server);
    let before = memory(&server, "VmRSS");
    let mut streams: Vec<_> = (0..size).map(|number| connect(&server, number)).collect();
    for _ in 0..10 {
        healthy(&server);
    }
    let each = memory(&server, "VmRSS").saturating_sub(before) / size;
    #[expect(clippy::print_stdout, reason = "the figure is worth knowing")]
    {
        println!("{size} connections, {each} bytes each");
    }
    assert!(each < MEMORY, "{each} bytes each");
    let end = Instant::now() + PATIENCE;
    while !streams.is_empty() {
        streams.retain_mut(|stream| !is_closed(stream));
        assert!(Instant::now() < end, "{} of {size} are still there", streams.len());
        // Another byte now and then must not extend the deadline.
        for stream in &mut streams {
            let _closed = stream.write(b"x");
        }
        std::thread::sleep(Duration::from_secs(1));
    }
    healthy(&server);
}

#[test]
fn hundreds_of_idle_and_slow_connections() {
    crowd(500);
}

#[test]
fn ten_thousand_idle_and_slow_connections() {
    let test = "ten_thousand_idle_and_slow_connections";
    if !everything() {
        return skip(test, "only with ./test --all");
    }
    let limit = getrlimit(Resource::Nofile);
    if limit.maximum.is_some_and(|most| most < 20_000) {
        return skip(test, "the limit of open files is below 20000");
    }
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    // Half of the descriptors are for connections, and a healthy client must be accepted as well.
    crowd(9_900);
}

#[test]
fn idle_connections_leave_descriptors_for_runs() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 256 && exec \"$@\"", "sh", env!("CARGO_BIN_EXE_belljar")]);
    command.args(["serve", "--allow-degraded"]);
    let server = Server::by(command, folder.path());
    // A client that connected and authenticated earlier, so that only the run itself is tested.
    let mut early = connect(&server, 0);
    early.set_nonblocking(false).unwrap();
    let hello =
        format!("GET /v1/executions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n\r\n");
    early.write_all(hello.as_bytes()).unwrap();
    let mut listed = Vec::new();
    while !listed.ends_with(b"}") {
        let mut piece = [0; 1024];
        let count = early.read(&mut piece).unwrap();
        assert!(count > 0, "{}", String::from_utf8_lossy(&listed));
        listed.extend_from_slice(&piece[..count]);
    }
    // More than the server has descriptors for, but no more than the accept backlog.
    let _crowd: Vec<_> = (0..240).map(|_| connect(&server, 0)).collect();
    // Wait until no more of them are accepted.
    let files = || std::fs::read_dir(format!("/proc/{}/fd", server.child.id())).unwrap().count();
    let mut open = 0;
    while std::mem::replace(&mut open, files()) != open {
        std::thread::sleep(Duration::from_millis(300));
    }
    let body = r#"{"command":["echo","hello"]}"#;
    let request = format!(
        "POST /v1/executions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer {KEY}\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    early.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    early.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("hello\\n"), "{answer}");
}
