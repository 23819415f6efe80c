//! Hosts reached through the operator's proxy: the rules are checked before the proxy receives anything.
#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

#[expect(dead_code, reason = "other tests use the rest")]
mod harness;

use std::sync::{Arc, Mutex};

use belljar_engine::network::{HostRules, UpstreamProxy};
use harness::{TestEgress, TestServer, connect};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

type ProxyLog = Arc<Mutex<Vec<String>>>;

async fn head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8(head).unwrap()
}

/// Starts a proxy that records requests, refuses one host, and itself plays every other destination.
async fn proxy() -> (u16, ProxyLog) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (port, log) = (listener.local_addr().unwrap().port(), ProxyLog::default());
    let shared_log = Arc::clone(&log);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let shared_log = Arc::clone(&shared_log);
            tokio::spawn(async move {
                let request = head(&mut stream).await;
                let refused = request.contains("busy.test");
                shared_log.lock().unwrap().push(request);
                let answer = if refused { "503 No" } else { "200 Yes" };
                let _told =
                    stream.write_all(format!("HTTP/1.1 {answer}\r\nVia: x\r\n\r\nhello").as_bytes()).await;
                let _gone = stream.read_u8().await;
            });
        }
    });
    (port, log)
}

async fn tunnel(sandbox: &TestEgress, authority: &str) -> (TcpStream, String) {
    let mut client = connect(sandbox.proxy).await;
    client.write_all(format!("CONNECT {authority} HTTP/1.1\r\n\r\n").as_bytes()).await.unwrap();
    let answer = head(&mut client).await;
    (client, answer)
}

#[tokio::test]
async fn the_proxy_is_used_for_listed_hosts_only() {
    let (port, log) = proxy().await;
    let direct = TestServer::web().await;
    let sandbox = TestEgress::open(&["a.test"]);
    let hosts = ["registry.test:443", "busy.test:443", &format!("mirror.test:{}", direct.port())];
    let proxy = UpstreamProxy::parse(&format!("http://ann:pw@127.0.0.1:{port}"), "mirror.test").unwrap();
    sandbox.egress.set_rules(HostRules::parse(&hosts).unwrap().via_proxy(proxy));
    let (mut client, answer) = tunnel(&sandbox, "registry.test:443").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let mut hello = [0; 5];
    client.read_exact(&mut hello).await.unwrap();
    assert_eq!(&hello, b"hello", "bytes after the proxy's response come from the destination");
    let request = "CONNECT registry.test:443 HTTP/1.1\r\nHost: registry.test:443\r\nProxy-Authorization: Basic YW5uOnB3\r\n\r\n";
    assert_eq!(*log.lock().unwrap(), [request]);
    assert_eq!(sandbox.names.lookup_count(), 0, "the proxy resolves names");
    // Addresses that package metadata could contain, and a host that the proxy would reach.
    for near in ["169.254.169.254:80", "127.0.0.1:80", "[::1]:80", "elsewhere.test:443", "registry.test:22"] {
        let (_, answer) = tunnel(&sandbox, near).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{near} {answer}");
    }
    let answer = sandbox.ask(b"GET http://169.254.169.254/latest/ HTTP/1.1\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    assert_eq!(log.lock().unwrap().len(), 1, "no request for them reached the proxy");
    let (mut client, _) = tunnel(&sandbox, "busy.test:443").await;
    let mut rest = String::new();
    client.read_to_string(&mut rest).await.unwrap();
    assert!(
        rest.contains("the configured proxy: it responded with status 503") && !rest.contains("ann"),
        "{rest}"
    );
    let (_, answer) = tunnel(&sandbox, hosts[2]).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!(log.lock().unwrap().len(), 2, "a host excluded from the proxy is reached directly");
}
