//! Egress with real loopback sockets on both sides. Names come from a table, so they can point anywhere.
#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod dns;
mod harness;

use std::net::SocketAddr;
use std::time::Duration;

use belljar_egress::EgressLimits;
use harness::{TestEgress, TestServer, connect, read_all};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Requests a tunnel. Returns the stream and the response head.
async fn tunnel(place: &TestEgress, authority: &str) -> (TcpStream, String) {
    let mut client = connect(place.proxy).await;
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
async fn socks(place: &TestEgress, address: &[u8], port: u16) -> (TcpStream, u8) {
    let mut client = connect(place.proxy).await;
    let asked = [&[5, 1, 0, 5, 1, 0], address, &port.to_be_bytes()].concat();
    client.write_all(&asked).await.unwrap();
    let mut answer = [0; 12];
    client.read_exact(&mut answer).await.unwrap();
    assert_eq!((answer[0], answer[1], answer[2]), (5, 0, 5));
    (client, answer[3])
}

fn by_name(name: &str) -> Vec<u8> {
    [&[3, name.len() as u8], name.as_bytes()].concat()
}

async fn echoes(client: &mut TcpStream) {
    client.write_all(b"to and fro").await.unwrap();
    let mut back = [0; 10];
    client.read_exact(&mut back).await.unwrap();
    assert_eq!(&back, b"to and fro");
}

#[tokio::test]
async fn a_listed_host_is_reached_in_every_way() {
    let echo = TestServer::echo().await;
    let web = TestServer::web().await;
    let (port, web_port) = (echo.port(), web.port());
    let place = TestEgress::open(&[
        &format!("a.test:{port}"),
        &format!("*.b.test:{web_port}"),
        &format!("127.0.0.1:{port}"),
        &format!("127.0.0.1:{web_port}"),
    ]);
    let (mut client, head) = tunnel(&place, &format!("A.test.:{port}")).await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    echoes(&mut client).await;
    let (mut client, code) = socks(&place, &by_name("a.test"), port).await;
    assert_eq!(code, 0);
    echoes(&mut client).await;
    let (mut client, code) = socks(&place, &[1, 127, 0, 0, 1], port).await;
    assert_eq!(code, 0);
    echoes(&mut client).await;
    let asked = format!("GET http://www.b.test:{web_port}/x?y HTTP/1.1\r\nHost: other\r\n\r\n");
    let answer = place.ask(asked.as_bytes()).await;
    assert!(answer.ends_with("hello"), "{answer}");
    assert_eq!(
        web.received(),
        format!("GET /x?y HTTP/1.1\r\nHost: www.b.test:{web_port}\r\nConnection: close\r\n\r\n")
    );
    assert!(place.egress.findings().is_empty());
    let traffic = place.egress.traffic();
    assert_eq!(traffic.connections, 4);
    assert!(traffic.sent_bytes > 30 && traffic.received_bytes > 30, "{traffic:?}");
}

#[tokio::test]
async fn unlisted_hosts_are_refused_with_a_finding() {
    let web = TestServer::web().await;
    let place = TestEgress::open(&["a.test"]);
    let (_, head) = tunnel(&place, "evil.test:443").await;
    assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
    let answer = place.ask(b"GET http://evil.test/ HTTP/1.1\r\n\r\n").await;
    assert!(answer.contains("connection to evil.test:80 was refused: not in network.hosts"), "{answer}");
    assert_eq!(socks(&place, &by_name("evil.test"), 443).await.1, 2);
    // Another port of a listed host, this machine's loopback, and a cloud metadata address.
    assert_eq!(socks(&place, &by_name("a.test"), 22).await.1, 2);
    assert_eq!(socks(&place, &[1, 127, 0, 0, 1], web.port()).await.1, 2);
    assert_eq!(socks(&place, &[1, 169, 254, 169, 254], 80).await.1, 2);
    let mapped =
        [&[4_u8][..], &std::net::Ipv6Addr::from([0, 0, 0, 0, 0, 0xffff, 0x7f00, 1]).octets()].concat();
    assert_eq!(socks(&place, &mapped, web.port()).await.1, 2);
    assert_eq!(place.names.lookup_count(), 0, "an unlisted name must not be looked up");
    assert_eq!(web.connections(), 0);
    let findings = place.egress.findings();
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
    let place = TestEgress::open(&[&format!("*.b.test:{port}")]);
    let told = async |name: &str| {
        let answer = place.ask(format!("GET http://{name}:{port}/ HTTP/1.1\r\n\r\n").as_bytes()).await;
        let (_, head) = tunnel(&place, &format!("{name}:{port}")).await;
        let (_, code) = socks(&place, &by_name(name), port).await;
        let findings = place.egress.findings();
        let finding = findings.iter().find(|finding| finding.message.contains(name)).unwrap();
        format!("{answer}{head}{code}{finding:?}").replace(name, "NAME")
    };
    // Names of equal length, so that Content-Length is equal too.
    let (private, missing) = (told("private.b.test").await, told("nowhere.b.test").await);
    assert_eq!(private, missing);
    for name in ["mapped.b.test", "v6.b.test"] {
        let told = told(name).await;
        assert!(told.contains("NAME:") && !told.contains("127.0.0.1") && !told.contains("::1"), "{told}");
        assert!(told.contains("the name does not resolve to a public address (3 times)"), "{told}");
    }
    assert_eq!(web.connections(), 0);
}

#[tokio::test]
async fn the_machines_own_public_address_counts_as_private() {
    // A machine without a route out has no such address.
    let Ok(own) = harness::own_address() else { return };
    let web = TestServer::web_at([0, 0, 0, 0], 0).await;
    let port = web.port();
    let place = TestEgress::open(&[&format!("own.b.test:{port}")]);
    let asked = format!("GET http://own.b.test:{port}/ HTTP/1.1\r\n\r\n");
    let answer = place.ask(asked.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains("not resolve to a public"), "{answer}");
    assert_eq!(web.connections(), 0);
    place.set_rules(&[&format!("own.b.test:{port}"), &format!("{own}:{port}")]);
    assert!(place.ask(asked.as_bytes()).await.ends_with("hello"));
}

#[tokio::test]
async fn localhost_is_reachable_if_listed_by_name() {
    let web = TestServer::web().await;
    let port = web.port();
    let place = TestEgress::open(&[&format!("localhost:{port}")]);
    let answer = place.ask(format!("GET http://localhost:{port}/ HTTP/1.1\r\n\r\n").as_bytes()).await;
    assert!(answer.ends_with("hello"), "{answer}");
    assert_eq!(place.names.lookup_count(), 0, "localhost must not be looked up");
    assert_eq!(socks(&place, &[1, 127, 0, 0, 1], port).await.1, 2);
}

#[tokio::test]
async fn the_checked_address_is_the_connected_address() {
    // The first answer may be reached; all later answers may not.
    let allowed = TestServer::web_at([127, 0, 0, 2], 0).await;
    let forbidden = TestServer::web_at([127, 0, 0, 1], allowed.port()).await;
    let port = allowed.port();
    let place = TestEgress::open(&[&format!("rebinding.test:{port}"), &format!("127.0.0.2:{port}")]);
    let answer = place.ask(format!("GET http://rebinding.test:{port}/ HTTP/1.1\r\n\r\n").as_bytes()).await;
    assert!(answer.ends_with("hello"), "{answer}");
    assert_eq!((allowed.connections(), forbidden.connections(), place.names.lookup_count()), (1, 0, 1));
    let again = place.ask(format!("GET http://rebinding.test:{port}/ HTTP/1.1\r\n\r\n").as_bytes()).await;
    assert!(again.starts_with("HTTP/1.1 403 "), "{again}");
    assert_eq!(forbidden.connections(), 0);
}

#[tokio::test]
async fn a_second_request_never_reaches_the_host() {
    let web = TestServer::web().await;
    let port = web.port();
    let place = TestEgress::open(&[&format!("a.test:{port}"), &format!("127.0.0.1:{port}")]);
    for second in
        ["GET http://evil.test/ HTTP/1.1\r\n\r\n", "GET /secret HTTP/1.1\r\nHost: evil.test\r\n\r\n"]
    {
        let asked = format!("POST http://a.test:{port}/ HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc{second}");
        let answer = place.ask(asked.as_bytes()).await;
        assert!(answer.ends_with("hello"), "{answer}");
        let heard = web.received();
        assert!(heard.ends_with("\r\n\r\nabc"), "{heard}");
        assert!(!heard.contains("evil"), "{heard}");
    }
    let chunked =
        format!("POST http://a.test:{port}/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
    assert!(place.ask(chunked.as_bytes()).await.starts_with("HTTP/1.1 411 "));
}

#[tokio::test]
async fn malformed_requests_are_refused_and_others_still_served() {
    let echo = TestServer::echo().await;
    let port = echo.port();
    let short = EgressLimits { head_timeout: Duration::from_secs(1), ..EgressLimits::default() };
    let place = TestEgress::open_with_limits(&[&format!("127.0.0.1:{port}")], short);
    let long = [b"GET http://a.test/ HTTP/1.1\r\nX: ".as_slice(), &[b'a'; 1 << 20]].concat();
    assert!(place.ask(&long).await.starts_with("HTTP/1.1 431 "));
    for garbage in
        [b"\x16\x03\x01\x02\0".as_slice(), b"\x05", b"\x05\0", b"\x05\x01\x02", b"\x04\x01", &[0; 5_000]]
    {
        let _any = place.ask(garbage).await;
    }
    // A client that sends nothing, or too little, is disconnected.
    let mut slow = connect(place.proxy).await;
    slow.write_all(b"GET http://a.test/ HTTP/1.1\r\n").await.unwrap();
    assert!(read_all(&mut slow).await.starts_with("HTTP/1.1 408 "));
    // SOCKS5 commands other than CONNECT, and unrequested authentication.
    let mut bind = connect(place.proxy).await;
    bind.write_all(&[5, 1, 0, 5, 2, 0, 1, 127, 0, 0, 1, 0, 80]).await.unwrap();
    let mut answer = [0; 4];
    bind.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer, [5, 0, 5, 7]);
    let (mut client, _) = tunnel(&place, &format!("127.0.0.1:{port}")).await;
    echoes(&mut client).await;
}

#[tokio::test]
async fn total_connections_and_bytes_are_limited() {
    let echo = TestServer::echo().await;
    let rule = format!("127.0.0.1:{}", echo.port());
    let place = TestEgress::open_with_limits(
        &[&rule],
        EgressLimits { total_connections: 2, bytes_per_direction: 50, ..EgressLimits::default() },
    );
    let (mut first, _) = tunnel(&place, &rule).await;
    echoes(&mut first).await;
    let (mut second, _) = tunnel(&place, &rule).await;
    second.write_all(&[b'x'; 100]).await.unwrap();
    let rest = read_all(&mut second).await;
    assert!(rest.len() <= 50, "{}", rest.len());
    let (_, third) = tunnel(&place, &rule).await;
    assert_eq!(third, "");
    let rules: Vec<_> = place.egress.findings().into_iter().map(|finding| finding.message).collect();
    assert!(rules.iter().any(|message| message.contains("too many bytes")), "{rules:?}");
    assert!(rules.iter().any(|message| message.contains("too many connections in total")), "{rules:?}");
}

#[tokio::test]
async fn concurrent_connections_are_limited() {
    let echo = TestServer::echo().await;
    let rule = format!("127.0.0.1:{}", echo.port());
    let place = TestEgress::open_with_limits(
        &[&rule],
        EgressLimits { concurrent_connections: 2, ..EgressLimits::default() },
    );
    // The DNS listener holds one slot while it waits for a connection.
    let (mut first, _) = tunnel(&place, &rule).await;
    let mut second = connect(place.proxy).await;
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
    let echo = TestServer::echo().await;
    let rule = format!("127.0.0.1:{}", echo.port());
    let place = TestEgress::open_with_limits(
        &[&rule],
        EgressLimits { idle_timeout: Duration::from_secs(2), ..EgressLimits::default() },
    );
    let (mut client, _) = tunnel(&place, &rule).await;
    echoes(&mut client).await;
    assert_eq!(read_all(&mut client).await, "");
    echo.all_closed().await;
}

#[tokio::test]
async fn new_rules_close_forbidden_connections() {
    let (one, two) = (TestServer::echo().await, TestServer::echo().await);
    let (first, second) = (format!("127.0.0.1:{}", one.port()), format!("127.0.0.1:{}", two.port()));
    let place = TestEgress::open(&[&first, &second]);
    let (mut cut, _) = tunnel(&place, &first).await;
    let (mut kept, _) = tunnel(&place, &second).await;
    echoes(&mut cut).await;
    place.set_rules(&[&second]);
    assert_eq!(read_all(&mut cut).await, "");
    one.all_closed().await;
    echoes(&mut kept).await;
    assert!(tunnel(&place, &first).await.1.starts_with("HTTP/1.1 403 "));
    place.set_rules(&[&first]);
    let (mut again, _) = tunnel(&place, &first).await;
    echoes(&mut again).await;
}

#[tokio::test]
async fn closing_leaves_no_sockets() {
    let echo = TestServer::echo().await;
    let rule = format!("127.0.0.1:{}", echo.port());
    let place = TestEgress::open(&[&rule]);
    let (mut client, _) = tunnel(&place, &rule).await;
    echoes(&mut client).await;
    place.egress.close().await;
    echo.all_closed().await;
    assert_eq!(read_all(&mut client).await, "");
    let doors: [SocketAddr; 2] = [place.proxy, place.names_tcp];
    for door in doors {
        assert!(TcpStream::connect(door).await.is_err(), "{door} still listens");
    }
    std::net::UdpSocket::bind(place.names_udp).unwrap();
}

#[tokio::test]
async fn a_connection_can_be_half_closed() {
    let echo = TestServer::until_end().await;
    let rule = format!("127.0.0.1:{}", echo.port());
    let place = TestEgress::open(&[&rule]);
    let (mut client, _) = tunnel(&place, &rule).await;
    client.write_all(b"all of it").await.unwrap();
    client.shutdown().await.unwrap();
    assert_eq!(read_all(&mut client).await, "all of it");
}
