//! HTTP servers in a sandbox: real ones and misbehaving ones.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Message, client};

use super::files::SandboxFiles;
use crate::common::server::{KEY, Reply, Server};

/// A server that answers as its path requests.
const PROGRAM: &str = r#"
import socket, threading, hashlib, base64, time
def head(c):
    data = b""
    while b"\r\n\r\n" not in data:
        got = c.recv(65536)
        if not got: return None, b""
        data += got
    return data.split(b"\r\n\r\n", 1)
def serve(c):
    try:
        h, rest = head(c)
        if h is None: return
        path = h.split(b" ")[1]
        lines = dict(l.split(b": ", 1) for l in h.split(b"\r\n")[1:] if b": " in l)
        lines = {k.lower(): v for k, v in lines.items()}
        if path.startswith(b"/echo"):
            n = int(lines[b"content-length"])
            c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % n + rest)
            n -= len(rest)
            while n:
                got = c.recv(65536); c.sendall(got); n -= len(got)
        elif path.startswith(b"/chunked"):
            c.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n")
            while not go.wait(0.05): pass
            c.sendall(b"6\r\nsecond\r\n0\r\nTrailer: x\r\n\r\n")
        elif path.startswith(b"/go"):
            go.set(); c.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
        elif path.startswith(b"/two-lengths"):
            c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 5\r\n\r\nhello")
        elif path.startswith(b"/same-lengths"):
            c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello")
        elif path.startswith(b"/both"):
            c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
        elif path.startswith(b"/coding"):
            c.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nhello")
        elif path.startswith(b"/bad-chunk"):
            c.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloXX\r\nzz\r\n0\r\n\r\n")
        elif path.startswith(b"/short"):
            c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nhello")
        elif path.startswith(b"/many"):
            c.sendall(b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: y\r\n" % n for n in range(500)) + b"\r\n")
        elif path.startswith(b"/long"):
            c.sendall(b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200000 + b"\r\n\r\n")
        elif path.startswith(b"/no-http"):
            c.sendall(b"SSH-2.0-none\r\n\r\n")
        elif path.startswith(b"/odd"):
            c.sendall(b"HTTP/1.1 799 Odd\r\nContent-Length: 0\r\n\r\n")
        elif path.startswith(b"/hang-up"):
            pass
        elif path.startswith(b"/silent"):
            time.sleep(600)
        elif path.startswith(b"/switch"):
            c.sendall(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nhello")
        elif path.startswith(b"/socket"):
            key = base64.b64encode(hashlib.sha1(lines[b"sec-websocket-key"] + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
            c.sendall(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: " + key + b"\r\nSet-Cookie: a=b\r\n\r\n")
            while True:
                got = rest or c.recv(65536); rest = b""
                if not got: break
                while got:
                    n = got[1] & 127; mask = got[2:6]; data = bytes(b ^ mask[i % 4] for i, b in enumerate(got[6:6+n]))
                    c.sendall(bytes([got[0], n]) + data); got = got[6+n:]
        else:
            body = h
            evil = b"Set-Cookie: a=b\r\nClear-Site-Data: *\r\nStrict-Transport-Security: max-age=9\r\nAccess-Control-Allow-Origin: *\r\nService-Worker-Allowed: /\r\nAlt-Svc: x\r\nX-Accel-Redirect: /etc/passwd\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\nContent-Security-Policy: sandbox allow-same-origin\r\nX-Mine: kept\r\n"
            c.sendall(b"HTTP/1.1 418 Teapot\r\nContent-Type: text/html\r\n" + evil + b"Content-Length: %d\r\n\r\n" % len(body) + (b"" if h.startswith(b"HEAD") else body))
    except Exception as e:
        print(e, flush=True)
    finally:
        c.close()
go = threading.Event()
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(("127.0.0.1", 8000)); s.listen(64)
while True:
    c, _ = s.accept(); threading.Thread(target=serve, args=(c,), daemon=True).start()
"#;

fn get(sandbox: &SandboxFiles<'_>, rest: &str) -> Reply {
    sandbox.server.get(&format!("{}/ports/8000{rest}", sandbox.path))
}

/// Waits until a program listens on the port.
fn listening(sandbox: &SandboxFiles<'_>, port: u16) {
    let started = Instant::now();
    while sandbox.server.get(&format!("{}/ports/{port}/", sandbox.path)).status == 409 {
        assert!(started.elapsed() < Duration::from_secs(60), "no program listens on {port}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn program<'a>(server: &'a Server, request: serde_json::Value) -> SandboxFiles<'a> {
    let sandbox = SandboxFiles::new(server, request);
    sandbox.put("program.py", PROGRAM.as_bytes());
    sandbox.begin("python3 program.py");
    listening(&sandbox, 8000);
    sandbox
}

#[test]
fn requests_are_forwarded_without_private_headers() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let sandbox = program(&server, json!({}));
    let headers = "Cookie: session=1\r\nProxy-Authorization: Basic x\r\nX-Hop: 1\r\nX-Forwarded-Prefix: /evil\r\nX-Mine: 1\r\nTE: trailers\r\n";
    let path = format!("{}/ports/8000/a%2Fb//c/%ff;x?y=%20&z=+", sandbox.path);
    let reply = server.call("GET", &path, headers, b"");
    let seen = reply.text();
    assert!(seen.starts_with("GET /a%2Fb//c/%ff;x?y=%20&z=+ HTTP/1.1\r\n"), "{seen}");
    let lower = seen.to_ascii_lowercase();
    for absent in ["authorization", "cookie", "proxy-", "te:", KEY, "/evil"] {
        assert!(!lower.contains(absent), "{absent}: {seen}");
    }
    for present in
        ["x-mine: 1", "host: localhost:8000", &format!("x-forwarded-prefix: {}/ports/8000\r\n", sandbox.path)]
    {
        assert!(format!("{lower}\r\n").contains(present), "{present}: {seen}");
    }
    // The program's response is passed on, including errors; headers that apply to the whole site are
    // removed.
    assert_eq!(
        (reply.status, reply.header("x-mine"), reply.header("content-type")),
        (418, Some("kept"), Some("text/html"))
    );
    let lower = reply.head.to_ascii_lowercase();
    for absent in [
        "set-cookie",
        "clear-site",
        "strict-",
        "access-control",
        "service-worker",
        "alt-svc",
        "x-accel",
        "x-hop",
    ] {
        assert!(!lower.contains(absent), "{absent}: {}", reply.head);
    }
    assert_eq!(
        lower.matches("content-security-policy: sandbox allow-scripts allow-forms\r\n").count(),
        1,
        "{lower}"
    );
    for method in ["OPTIONS", "PATCH", "DELETE", "PROPFIND"] {
        assert!(server.call(method, &path, "", b"").text().starts_with(method));
    }
    let head = server.call("HEAD", &path, "", b"");
    assert_eq!((head.status, head.body.len(), head.header("content-length").is_some()), (418, 0, true));
    // Nonstandard status codes are not counted individually.
    assert_eq!(get(&sandbox, "/odd").status, 799);
    let metrics = server.get("/metrics").text();
    assert!(metrics.contains("status=\"418\"") && !metrics.contains("status=\"799\""), "{metrics}");
    // Relative links in a page need a trailing slash.
    let moved = server.get(&format!("{}/ports/8000?a=%20", sandbox.path));
    let location = format!("{}/ports/8000/?a=%20", sandbox.path);
    assert_eq!((moved.status, moved.header("location")), (308, Some(location.as_str())));
    for wrong in ["0", "65536", "text", "-1", "+80", "080", "%38%30"] {
        assert_eq!(server.get(&format!("{}/ports/{wrong}/", sandbox.path)).status, 422, "{wrong}");
    }
    let closed = server.get(&format!("{}/ports/9/", sandbox.path));
    assert_eq!((closed.status, closed.code().as_str()), (409, "port_closed"));
    assert!(closed.head.contains("sandbox allow-scripts"));
}

#[test]
fn bytes_stream_both_ways() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let sandbox = program(&server, json!({}));
    let file = folder.path().join("large");
    let bytes: Vec<u8> =
        (0..20_u32 << 20).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(&file, &bytes).unwrap();
    let echoed = folder.path().join("echoed");
    let data = format!("@{}", file.display());
    let (status, _) = server.curl(
        &["--data-binary", &data, "-H", "Expect:", "-o", echoed.to_str().unwrap()],
        &format!("{}/ports/8000/echo", sandbox.path),
    );
    assert_eq!(status, "200");
    assert!(std::fs::read(&echoed).unwrap() == bytes);
    // The first chunk arrives before the program has produced the second.
    let mut stream = server.send_as(KEY, "GET", &format!("{}/ports/8000/chunked", sandbox.path), "", b"");
    let mut seen = Vec::new();
    while !seen.windows(5).any(|part| part == b"first") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        seen.push(byte[0]);
    }
    assert_eq!(get(&sandbox, "/go").status, 204);
    stream.read_to_end(&mut seen).unwrap();
    assert!(seen.ends_with(b"second\r\n0\r\n\r\n"), "{}", String::from_utf8_lossy(&seen));
}

#[test]
fn ambiguous_responses_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let sandbox = program(&server, json!({"limits": {"timeout_ms": 8000}}));
    for cheat in
        ["two-lengths", "same-lengths", "both", "coding", "many", "long", "no-http", "hang-up", "switch"]
    {
        let reply = get(&sandbox, &format!("/{cheat}"));
        assert_eq!((reply.status, reply.code().as_str()), (502, "port_failed"), "{cheat}");
    }
    // If the error shows only later, the connection ends in the middle.
    for cheat in ["bad-chunk", "short"] {
        let mut stream = server.send_as(KEY, "GET", &format!("{}/ports/8000/{cheat}", sandbox.path), "", b"");
        let mut seen = Vec::new();
        let _ = stream.read_to_end(&mut seen);
        assert!(
            !seen.ends_with(b"0\r\n\r\n") && seen.len() < 700,
            "{cheat}: {}",
            String::from_utf8_lossy(&seen)
        );
    }
    let silent = get(&sandbox, "/silent");
    assert_eq!((silent.status, silent.code().as_str()), (504, "port_timeout"));
}

#[test]
fn files_of_a_web_server_inside_are_served_until_the_sandbox_ends() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let sandbox = SandboxFiles::new(&server, json!({}));
    sandbox.put("site/über uns.html", "<h1>hallo</h1>".as_bytes());
    sandbox.begin("python3 -m http.server --directory site 8080");
    listening(&sandbox, 8080);
    let at = |rest: &str| format!("{}/ports/8080/{rest}", sandbox.path);
    let page = server.get(&at("%C3%BCber%20uns.html"));
    assert_eq!((page.status, page.text().as_str()), (200, "<h1>hallo</h1>"));
    assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
    let missing = server.get(&at("none"));
    assert!(missing.status == 404 && missing.text().contains("<"), "{}", missing.text());
    assert_eq!(server.post(&format!("{}/pause", sandbox.path), &json!({})).status, 200);
    assert_eq!(server.get(&at("")).code(), "sandbox_paused");
    assert_eq!(server.post(&format!("{}/resume", sandbox.path), &json!({})).status, 200);
    assert_eq!(server.get(&at("")).status, 200);
    server.delete(&sandbox.path);
    assert_eq!(server.get(&at("")).code(), "sandbox_ended");
}

#[test]
fn a_websocket_reaches_the_program_and_ends_with_the_sandbox() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let sandbox = program(&server, json!({}));
    let address = server.url.trim_start_matches("http://");
    let connect = |origin: Option<&str>| {
        let mut request =
            format!("ws://{address}{}/ports/8000/socket?a=b", sandbox.path).into_client_request().unwrap();
        request.headers_mut().insert("authorization", format!("Bearer {KEY}").parse().unwrap());
        if let Some(origin) = origin {
            request.headers_mut().insert("origin", origin.parse().unwrap());
        }
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        client(request, stream).map_err(|refused| refused.to_string())
    };
    let (mut socket, answer) = connect(None).unwrap();
    assert!(answer.headers().get("set-cookie").is_none());
    for text in ["hello", "", "again"] {
        socket.send(Message::text(text)).unwrap();
        assert_eq!(socket.read().unwrap(), Message::text(text));
    }
    drop(connect(Some(&server.url)).unwrap());
    for foreign in ["http://evil.test", "null"] {
        let refused = connect(Some(foreign)).unwrap_err();
        assert!(refused.contains("403"), "{refused}");
    }
    // Pages of other sites cannot send other requests either.
    let path = format!("{}/ports/8000/x", sandbox.path);
    assert_eq!(server.call("POST", &path, "Origin: http://evil.test\r\n", b"x").status, 403);
    assert_eq!(server.call("GET", &path, "Origin: http://evil.test\r\n", b"").status, 418);
    // No other protocol upgrade is possible.
    let other = server.call("GET", &path, "Upgrade: h2c\r\nHTTP2-Settings: x\r\n", b"");
    assert!(other.status == 418 && !other.text().to_ascii_lowercase().contains("h2c"), "{}", other.text());
    server.delete(&sandbox.path);
    assert!(socket.read().is_err());
}

#[test]
fn a_tunnel_counts_as_connection_and_stream() {
    let folder = tempfile::tempdir().unwrap();
    // Six connections and three streams for a single active tenant.
    let server = Server::configured(folder.path(), "connections = 8");
    let sandbox = program(&server, json!({}));
    let address = server.url.trim_start_matches("http://").to_owned();
    let ask = |path: &str, headers: &str| {
        let mut stream = TcpStream::connect(&address).unwrap();
        let head =
            format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {KEY}\r\n{headers}\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut first = [0; 12];
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.read_exact(&mut first).unwrap();
        (stream, String::from_utf8_lossy(&first[9..]).into_owned())
    };
    let tunnel = || {
        let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n";
        ask(&format!("{}/ports/8000/socket", sandbox.path), upgrade)
    };
    let mut tunnels: Vec<_> = (0..3).map(|_| tunnel()).collect();
    assert!(tunnels.iter().all(|(_, status)| status == "101"));
    assert_eq!(tunnel().1, "429");
    let kept: Vec<_> = (0..3).map(|_| ask("/v1/executions", "")).collect();
    assert!(kept.iter().all(|(_, status)| status == "200"));
    assert_eq!(ask("/v1/executions", "").1, "429");
    tunnels.pop();
    let end = Instant::now() + Duration::from_secs(20);
    while ask("/v1/executions", "Connection: close\r\n").1 != "200" {
        assert!(Instant::now() < end, "a closed tunnel still counts");
    }
}
