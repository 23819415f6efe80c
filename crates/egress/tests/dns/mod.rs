//! DNS: listed names are answered; other names are refused without a lookup.

use std::time::Duration;

use belljar_egress::EgressLimits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UdpSocket;

use crate::harness::{TestEgress, connect};

pub(crate) const A: u8 = 1;
const AAAA: u8 = 28;
const TXT: u8 = 16;

fn question(name: &str, kind: u8) -> Vec<u8> {
    let mut bytes = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0".to_vec();
    for label in name.split('.') {
        bytes.push(label.len() as u8);
        bytes.extend(label.bytes());
    }
    bytes.extend([0, 0, kind, 0, 1]);
    bytes
}

/// Returns the response code and the data of each answer.
fn read(question_bytes: &[u8], answer: &[u8]) -> (u8, Vec<Vec<u8>>) {
    assert_eq!((&answer[..2], answer[2] & 0x80), (&question_bytes[..2], 0x80));
    let mut rest = &answer[question_bytes.len()..];
    let mut data = Vec::new();
    for _ in 0..answer[7] {
        let len = usize::from(rest[11]);
        data.push(rest[12..12 + len].to_vec());
        rest = &rest[12 + len..];
    }
    (answer[3] & 0x0f, data)
}

pub(crate) async fn by_datagram(sandbox: &TestEgress, name: &str, kind: u8) -> (u8, Vec<Vec<u8>>) {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect(sandbox.names_udp).await.unwrap();
    let question_bytes = question(name, kind);
    socket.send(&question_bytes).await.unwrap();
    let mut answer = [0; 512];
    let len = tokio::time::timeout(Duration::from_secs(30), socket.recv(&mut answer)).await.unwrap().unwrap();
    read(&question_bytes, &answer[..len])
}

async fn by_stream(sandbox: &TestEgress, name: &str, kind: u8) -> (u8, Vec<Vec<u8>>) {
    let mut client = connect(sandbox.names_tcp).await;
    let question_bytes = question(name, kind);
    client.write_u16(question_bytes.len() as u16).await.unwrap();
    client.write_all(&question_bytes).await.unwrap();
    let mut answer = vec![0; usize::from(client.read_u16().await.unwrap())];
    client.read_exact(&mut answer).await.unwrap();
    read(&question_bytes, &answer)
}

#[tokio::test]
async fn listed_names_are_answered() {
    let sandbox = TestEgress::open(&["*.b.test"]);
    let address = vec![vec![203, 0, 113, 9]];
    assert_eq!(by_datagram(&sandbox, "public.b.test", A).await, (0, address.clone()));
    assert_eq!(by_datagram(&sandbox, "PUBLIC.B.test", A).await, (0, address.clone()));
    assert_eq!(by_stream(&sandbox, "public.b.test", A).await, (0, address));
    assert_eq!(by_datagram(&sandbox, "public.b.test", AAAA).await, (0, vec![]));
}

#[tokio::test]
async fn a_private_address_is_answered_like_a_name_that_does_not_exist() {
    let sandbox = TestEgress::open(&["*.b.test"]);
    for name in ["nowhere.b.test", "a.b.test", "mapped.b.test", "v6.b.test"] {
        for kind in [A, AAAA] {
            assert_eq!(by_datagram(&sandbox, name, kind).await, (3, vec![]), "{name}");
            assert_eq!(by_stream(&sandbox, name, kind).await, (3, vec![]), "{name}");
        }
    }
}

#[tokio::test]
async fn unlisted_names_are_refused_without_a_lookup() {
    let sandbox = TestEgress::open(&["a.test", "*.b.test"]);
    let leaked = format!("{}.evil.test", "c2VjcmV0".repeat(7));
    for name in
        ["evil.test", "x.a.test", "b.test", leaked.as_str(), "localhost", "127.0.0.1", "a.test.evil.test"]
    {
        assert_eq!(by_datagram(&sandbox, name, A).await, (5, vec![]), "{name}");
        assert_eq!(by_stream(&sandbox, name, AAAA).await, (5, vec![]), "{name}");
    }
    assert_eq!(by_datagram(&sandbox, "a.test", TXT).await, (0, vec![]));
    assert_eq!(sandbox.names.lookup_count(), 0);
    let finding = &sandbox.egress.findings()[0];
    assert_eq!(finding.message, "looking up evil.test was refused: not in network.hosts (2 times)");
    assert!(finding.suggestion.contains("--network evil.test"), "{}", finding.suggestion);
}

#[tokio::test]
async fn total_lookups_are_limited() {
    let sandbox = TestEgress::open_with_limits(
        &["*.b.test"],
        EgressLimits { total_lookups: 3, ..EgressLimits::default() },
    );
    for _ in 0..3 {
        assert_eq!(by_datagram(&sandbox, "public.b.test", A).await.0, 0);
    }
    assert_eq!(by_datagram(&sandbox, "public.b.test", A).await.0, 5);
    assert_eq!(sandbox.names.lookup_count(), 3);
}

#[tokio::test]
async fn garbage_is_dropped_and_later_queries_are_answered() {
    let sandbox = TestEgress::open(&["*.b.test"]);
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    for garbage in [b"".as_slice(), b"\0", &[0xff; 512], &question("public.b.test", A)[..20]] {
        socket.send_to(garbage, sandbox.names_udp).await.unwrap();
    }
    assert_eq!(by_datagram(&sandbox, "public.b.test", A).await.0, 0);
}
