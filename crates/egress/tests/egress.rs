//! Egress with real loopback sockets on both sides. Names come from a table, so they can point anywhere.
#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod dns;
mod harness;
mod internet;

use std::net::SocketAddr;
use std::time::Duration;

use belljar_egress::EgressLimits;
use harness::{TestEgress, TestServer, connect, read_all};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Requests a tunnel. Returns the stream and the response head.
pub(crate) async fn tunnel(sandbox: &TestEgress, authority: &str) -> (TcpStream, String) {
    let mut client = connect(sandbox.proxy).await;
    client.write_all(format!("CONNECT {authority} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match client.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    (client, String::from_utf8(head).unwrap())
}

/// Requests a SOCKS5 connection. Returns the stream and the reply code.
pub(crate) async fn socks(sandbox: &TestEgress, address: &[u8], port: u16) -> (TcpStream, u8) {
    let mut client = connect(sandbox.proxy).await;
    let request = [&[5, 1, 0, 5, 1, 0], address, &port.to_be_bytes()].concat();
    client.write_all(&request).await.unwrap();
    let mut answer = [0; 12];
    client.read_exact(&mut answer).await.unwrap();
    assert_eq!((answer[0], answer[1], answer[2]), (5, 0, 5));
    (client, answer[3])
}

pub(crate) fn by_name(name: &str) -> Vec<u8> {
    [&[3, name.len() as u8], name.as_bytes()].concat()
}

pub(crate) async fn echoes(client: &mut TcpStream) {
    client.write_all(b"to and fro").await.unwrap();
    let mut back = [0; 10];
    client.read_exact(&mut back).await.unwrap();
    assert_eq!(&back, b"to and fro");
}

/// Opens egress to an echo server, and a tunnel to it. Returns the rule, too.
async fn echo_tunnel(limits: EgressLimits) -> (TestServer, TestEgress, String, TcpStream) {
    let echo = TestServer::echo().await;
    let rule = format!("127.0.0.1:{}", echo.port());
    let sandbox = TestEgress::open_with_limits(&[&rule], limits);
    let (mut client, _) = tunnel(&sandbox, &rule).await;
    echoes(&mut client).await;
    (echo, sandbox, rule, client)
}

#[tokio::test]
async fn a_listed_host_is_reached_in_every_way() {
    let echo = TestServer::echo().await;
    let web = TestServer::web().await;
    let (port, web_port) = (echo.port(), web.port());
    let sandbox = TestEgress::open(&[
        &format!("a.test:{port}"),
        &format!("*.b.test:{web_port}"),
        &format!("127.0.0.1:{port}"),
        &format!("127.0.0.1:{web_port}"),
    ]);
    let (mut client, head) = tunnel(&sandbox, &format!("A.test.:{port}")).await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    echoes(&mut client).await;
    let (mut client, code) = socks(&sandbox, &by_name("a.test"), port).await;
    assert_eq!(code, 0);
    echoes(&mut client).await;
    let (mut client, code) = socks(&sandbox, &[1, 127, 0, 0, 1], port).await;
    assert_eq!(code, 0);
    echoes(&mut client).await;
    let request = format!("GET http://www.b.test:{web_port}/x?y HTTP/1.1\r\nHost: other\r\n\r\n");
    let answer = sandbox.ask(request.as_bytes()).await;
    assert!(answer.ends_with("hello"), "{answer}");
    assert_eq!(
        web.received(),
        format!("GET /x?y HTTP/1.1\r\nHost: www.b.test:{web_port}\r\nConnection: close\r\n\r\n")
    );
    assert!(sandbox.egress.findings().is_empty());
    let traffic = sandbox.egress.traffic();
    assert_eq!(traffic.connections, 4);
    assert!(traffic.sent_bytes > 30 && traffic.received_bytes > 30, "{traffic:?}");
}

#[tokio::test]
async fn unlisted_hosts_are_refused_with_a_finding() {
    let web = TestServer::web().await;
    let sandbox = TestEgress::open(&["a.test"]);
    let (_, head) = tunnel(&sandbox, "evil.test:443").await;
    assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
    let answer = sandbox.ask(b"GET http://evil.test/ HTTP/1.1\r\n\r\n").await;
    assert!(answer.contains("connection to evil.test:80 was refused: not in network.hosts"), "{answer}");
    assert_eq!(socks(&sandbox, &by_name("evil.test"), 443).await.1, 2);
    // Another port of a listed host, this machine's loopback, and a cloud metadata address.
    assert_eq!(socks(&sandbox, &by_name("a.test"), 22).await.1, 2);
    assert_eq!(socks(&sandbox, &[1, 127, 0, 0, 1], web.port()).await.1, 2);
    assert_eq!(socks(&sandbox, &[1, 169, 254, 169, 254], 80).await.1, 2);
    let mapped =
        [&[4_u8][..], &std::net::Ipv6Addr::from([0, 0, 0, 0, 0, 0xffff, 0x7f00, 1]).octets()].concat();
    assert_eq!(socks(&sandbox, &mapped, web.port()).await.1, 2);
    assert_eq!(sandbox.names.lookup_count(), 0, "an unlisted name must not be looked up");
    assert_eq!(web.connections(), 0);
    let findings = sandbox.egress.findings();
    let evil = &findings[0];
    assert_eq!(evil.message, "connection to evil.test:443 was refused: not in network.hosts (2 times)");
    assert_eq!((evil.rule.as_str(), evil.category.as_str()), ("network-host", "network"));
    assert!(evil.suggestion.contains("--network evil.test:443"), "{}", evil.suggestion);
    assert_eq!(findings.len(), 5, "{findings:?}");
}

#[tokio::test]
async fn a_private_address_is_refused_like_a_name_that_does_not_exist() {
    let web = TestServer::web().await;
    let port = web.port();
    let sandbox = TestEgress::open(&[&format!("*.b.test:{port}")]);
    let outcome = async |name: &str| {
        let answer = sandbox.ask(format!("GET http://{name}:{port}/ HTTP/1.1\r\n\r\n").as_bytes()).await;
        let (_, head) = tunnel(&sandbox, &format!("{name}:{port}")).await;
        let (_, code) = socks(&sandbox, &by_name(name), port).await;
        let findings = sandbox.egress.findings();
        let finding = findings.iter().find(|finding| finding.message.contains(name)).unwrap();
        format!("{answer}{head}{code}{finding:?}").replace(name, "NAME")
    };
    // Names of equal length, so that Content-Length is equal too.
    let (private, missing) = (outcome("private.b.test").await, outcome("nowhere.b.test").await);
    assert_eq!(private, missing);
    for name in ["mapped.b.test", "v6.b.test"] {
        let outcome = outcome(name).await;
        assert!(
            outcome.contains("NAME:") && !outcome.contains("127.0.0.1") && !outcome.contains("::1"),
            "{outcome}"
        );
        assert!(outcome.contains("the name does not resolve to a public address (3 times)"), "{outcome}");
    }
    assert_eq!(web.connections(), 0);
}

#[tokio::test]
async fn the_machines_own_public_address_counts_as_private() {
    // A machine without a route out has no such address.
    let Ok(own) = harness::own_address() else { return };
    let web = TestServer::web_at([0, 0, 0, 0], 0).await;
    let port = web.port();
    let sandbox = TestEgress::open(&[&format!("own.b.test:{port}")]);
    let request = format!("GET http://own.b.test:{port}/ HTTP/1.1\r\n\r\n");
    let answer = sandbox.ask(request.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains("not resolve to a public"), "{answer}");
    assert_eq!(web.connections(), 0);
    sandbox.set_rules(&[&format!("own.b.test:{port}"), &format!("{own}:{port}")]);
    assert!(sandbox.ask(request.as_bytes()).await.ends_with("hello"));
}

#[tokio::test]
async fn localhost_is_reachable_if_listed_by_name() {
    let web = TestServer::web().await;
    let port = web.port();
    let sandbox = TestEgress::open(&[&format!("localhost:{port}")]);
    let answer = sandbox.ask(format!("GET http://localhost:{port}/ HTTP/1.1\r\n\r\n").as_bytes()).await;
    assert!(answer.ends_with("hello"), "{answer}");
    assert_eq!(sandbox.names.lookup_count(), 0, "localhost must not be looked up");
    assert_eq!(socks(&sandbox, &[1, 127, 0, 0, 1], port).await.1, 2);
}

#[tokio::test]
async fn the_checked_address_is_the_connected_address() {
    // The first answer may be reached; all later answers may not.
    let allowed = TestServer::web_at([127, 0, 0, 2], 0).await;
    let forbidden = TestServer::web_at([127, 0, 0, 1], allowed.port()).await;
    let port = allowed.port();
    let sandbox = TestEgress::open(&[&format!("rebinding.test:{port}"), &format!("127.0.0.2:{port}")]);
    let answer = sandbox.ask(format!("GET http://rebinding.test:{port}/ HTTP/1.1\r\n\r\n").as_bytes()).await;
    assert!(answer.ends_with("hello"), "{answer}");
    assert_eq!((allowed.connections(), forbidden.connections(), sandbox.names.lookup_count()), (1, 0, 1));
    let again = sandbox.ask(format!("GET http://rebinding.test:{port}/ HTTP/1.1\r\n\r\n").as_bytes()).await;
    assert!(again.starts_with("HTTP/1.1 403 "), "{again}");
    assert_eq!(forbidden.connections(), 0);
}

#[tokio::test]
async fn a_second_request_never_reaches_the_host() {
    let web = TestServer::web().await;
    let port = web.port();
    let sandbox = TestEgress::open(&[&format!("a.test:{port}"), &format!("127.0.0.1:{port}")]);
    for second in
        ["GET http://evil.test/ HTTP/1.1\r\n\r\n", "GET /secret HTTP/1.1\r\nHost: evil.test\r\n\r\n"]
    {
        let request = format!("POST http://a.test:{port}/ HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc{second}");
        let answer = sandbox.ask(request.as_bytes()).await;
        assert!(answer.ends_with("hello"), "{answer}");
        let received = web.received();
        assert!(received.ends_with("\r\n\r\nabc"), "{received}");
        assert!(!received.contains("evil"), "{received}");
    }
    let chunked =
        format!("POST http://a.test:{port}/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
    assert!(sandbox.ask(chunked.as_bytes()).await.starts_with("HTTP/1.1 411 "));
}

#[tokio::test]
async fn malformed_requests_are_refused_and_others_still_served() {
    let echo = TestServer::echo().await;
    let port = echo.port();
    let short = EgressLimits { head_timeout: Duration::from_secs(1), ..EgressLimits::default() };
    let sandbox = TestEgress::open_with_limits(&[&format!("127.0.0.1:{port}")], short);
    let long = [b"GET http://a.test/ HTTP/1.1\r\nX: ".as_slice(), &[b'a'; 1 << 20]].concat();
    assert!(sandbox.ask(&long).await.starts_with("HTTP/1.1 431 "));
    for garbage in
        [b"\x16\x03\x01\x02\0".as_slice(), b"\x05", b"\x05\0", b"\x05\x01\x02", b"\x04\x01", &[0; 5_000]]
    {
        let _any = sandbox.ask(garbage).await;
    }
    // A client that sends nothing, or too little, is disconnected.
    let mut slow = connect(sandbox.proxy).await;
    slow.write_all(b"GET http://a.test/ HTTP/1.1\r\n").await.unwrap();
    assert!(read_all(&mut slow).await.starts_with("HTTP/1.1 408 "));
    // SOCKS5 commands other than CONNECT, and unrequested authentication.
    let mut bind = connect(sandbox.proxy).await;
    bind.write_all(&[5, 1, 0, 5, 2, 0, 1, 127, 0, 0, 1, 0, 80]).await.unwrap();
    let mut answer = [0; 4];
    bind.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer, [5, 0, 5, 7]);
    let (mut client, _) = tunnel(&sandbox, &format!("127.0.0.1:{port}")).await;
    echoes(&mut client).await;
}

#[tokio::test]
async fn total_connections_and_bytes_are_limited() {
    let limits = EgressLimits { total_connections: 2, bytes_per_direction: 50, ..EgressLimits::default() };
    let (_echo, sandbox, rule, _first) = echo_tunnel(limits).await;
    let (mut second, _) = tunnel(&sandbox, &rule).await;
    second.write_all(&[b'x'; 100]).await.unwrap();
    let rest = read_all(&mut second).await;
    assert!(rest.len() <= 50, "{}", rest.len());
    let (_, third) = tunnel(&sandbox, &rule).await;
    assert_eq!(third, "");
    let rules: Vec<_> = sandbox.egress.findings().into_iter().map(|finding| finding.message).collect();
    assert!(rules.iter().any(|message| message.contains("too many bytes")), "{rules:?}");
    assert!(rules.iter().any(|message| message.contains("too many connections in total")), "{rules:?}");
}

#[tokio::test]
async fn concurrent_connections_are_limited() {
    // The DNS listener holds one slot while it waits for a connection.
    let limits = EgressLimits { concurrent_connections: 2, ..EgressLimits::default() };
    let (echo, sandbox, rule, mut first) = echo_tunnel(limits).await;
    let mut second = connect(sandbox.proxy).await;
    second.write_all(format!("CONNECT {rule} HTTP/1.1\r\n\r\n").as_bytes()).await.unwrap();
    echoes(&mut first).await;
    assert_eq!(echo.connections(), 1);
    drop(first);
    let mut answer = [0; 12];
    second.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
}

#[tokio::test]
async fn idle_connections_are_closed() {
    let limits = EgressLimits { idle_timeout: Duration::from_secs(2), ..EgressLimits::default() };
    let (echo, _sandbox, _, mut client) = echo_tunnel(limits).await;
    assert_eq!(read_all(&mut client).await, "");
    echo.all_closed().await;
}

#[tokio::test]
async fn new_rules_close_forbidden_connections() {
    let (one, two) = (TestServer::echo().await, TestServer::echo().await);
    let (first, second) = (format!("127.0.0.1:{}", one.port()), format!("127.0.0.1:{}", two.port()));
    let sandbox = TestEgress::open(&[&first, &second]);
    let (mut forbidden_client, _) = tunnel(&sandbox, &first).await;
    let (mut allowed_client, _) = tunnel(&sandbox, &second).await;
    echoes(&mut forbidden_client).await;
    sandbox.set_rules(&[&second]);
    assert_eq!(read_all(&mut forbidden_client).await, "");
    one.all_closed().await;
    echoes(&mut allowed_client).await;
    assert!(tunnel(&sandbox, &first).await.1.starts_with("HTTP/1.1 403 "));
    sandbox.set_rules(&[&first]);
    let (mut again, _) = tunnel(&sandbox, &first).await;
    echoes(&mut again).await;
}

#[tokio::test]
async fn closing_leaves_no_sockets() {
    let (echo, sandbox, _, mut client) = echo_tunnel(EgressLimits::default()).await;
    sandbox.egress.close().await;
    echo.all_closed().await;
    assert_eq!(read_all(&mut client).await, "");
    let listeners: [SocketAddr; 2] = [sandbox.proxy, sandbox.names_tcp];
    for listener in listeners {
        assert!(TcpStream::connect(listener).await.is_err(), "{listener} still listens");
    }
    std::net::UdpSocket::bind(sandbox.names_udp).unwrap();
}

#[tokio::test]
async fn a_connection_can_be_half_closed() {
    let echo = TestServer::until_end().await;
    let rule = format!("127.0.0.1:{}", echo.port());
    let sandbox = TestEgress::open(&[&rule]);
    let (mut client, _) = tunnel(&sandbox, &rule).await;
    client.write_all(b"all of it").await.unwrap();
    client.shutdown().await.unwrap();
    assert_eq!(read_all(&mut client).await, "all of it");
}
