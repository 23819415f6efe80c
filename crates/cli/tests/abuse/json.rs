//! Hostile request bodies: long, deep, wide, compressed. Each is refused, and the server's memory hardly
//! grows.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::memory;
use crate::common::server::{KEY, Server};

const MIB: usize = 1 << 20;
/// Maximum memory growth: the longest accepted body, and the same again for everything else.
const MEMORY: usize = (32 + 32) * MIB;

/// Posts a body of any length and returns the status and the response.
fn post(server: &Server, path: &str, headers: &str, body: impl Iterator<Item = Vec<u8>>) -> (u16, String) {
    let mut stream = TcpStream::connect(server.url.strip_prefix("http://").unwrap()).unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer {KEY}\r\n\
         Content-Type: application/json\r\n{headers}\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    for piece in body {
        // The server may close early.
        if stream.write_all(&piece).is_err() {
            break;
        }
    }
    let mut answer = Vec::new();
    let _reset = stream.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap_or_else(|| panic!("no response: {answer:?}"));
    (status.parse().unwrap(), answer)
}

fn whole(server: &Server, path: &str, body: String) -> (u16, String) {
    let headers = format!("Content-Length: {}\r\n", body.len());
    post(server, path, &headers, std::iter::once(body.into_bytes()))
}

/// Creates a chunked body of this length in pieces of one MiB.
fn chunks(length: usize) -> impl Iterator<Item = Vec<u8>> {
    let piece = [format!("{MIB:x}\r\n").into_bytes(), vec![b'a'; MIB], b"\r\n".to_vec()].concat();
    let start = b"a\r\n{\"code\": \"\r\n".to_vec();
    std::iter::once(start).chain(std::iter::repeat_n(piece, length / MIB))
}

#[test]
fn huge_bodies_are_refused_within_bounds() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    assert_eq!(server.run(r#"{"command":["true"]}"#).0, "200");
    let before = memory(&server, "VmHWM");
    let path = "/v1/executions";
    let unread = std::iter::empty;
    let announced = |length: usize| format!("Content-Length: {length}\r\n");
    assert_eq!(post(&server, path, &announced(1 << 30), unread()).0, 413);
    assert_eq!(post(&server, path, "Transfer-Encoding: chunked\r\n", chunks(1 << 30)).0, 413);
    let packed = format!("Content-Encoding: gzip\r\n{}", announced(20));
    assert_eq!(post(&server, path, &packed, std::iter::once(vec![0x1f; 20])).0, 415);

    let key = |n: usize| format!("\"{n}\":0,");
    let keys = format!("{{\"metadata\":{{{}\"z\":0}}}}", (0..1_000_000).map(key).collect::<String>());
    let wide = format!("{{\"arguments\":{{\"a\":[{}1]}}}}", "1,".repeat(15_000_000));
    let files = format!("{{\"files\":[{}{{}}]}}", "{},".repeat(10_000_000));
    let deep = format!("{{\"metadata\":{}", "{\"a\":".repeat(1_000_000));
    for (body, why) in [(keys, "values"), (wide, "values"), (files, "values"), (deep, "nested")] {
        let (status, answer) = whole(&server, path, body);
        assert!(status == 422 && answer.contains(why), "{why}: {answer}");
    }
    let grown = memory(&server, "VmHWM") - before;
    assert!(grown < MEMORY, "{} MiB more", grown / MIB);
    assert_eq!(server.run(r#"{"command":["true"]}"#).0, "200");
}

#[test]
fn a_batch_refuses_a_hostile_line_and_continues() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let deep = format!("{{\"metadata\":{}\n", "{\"a\":".repeat(100_000));
    let (status, answer) = whole(&server, "/v1/batches", deep + "{\"command\":[\"true\"]}\n");
    assert_eq!(status, 200);
    assert!(answer.contains("nested deeper than 64") && answer.contains("\"succeeded\""), "{answer}");
}
