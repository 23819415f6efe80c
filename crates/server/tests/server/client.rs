//! A minimal HTTP client that controls every byte of a request.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

pub(crate) struct HttpTestClient {
    address: SocketAddr,
    key: Option<String>,
}

#[derive(Debug)]
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl HttpResponse {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{self:?}"))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    /// Returns the error code, after checking the shape of the error object.
    pub(crate) fn code(&self) -> String {
        let json = self.json();
        let error = &json["error"];
        assert!(
            error["message"].is_string() && error["request_id"].as_str().unwrap().starts_with("req_"),
            "{json}"
        );
        error["code"].as_str().unwrap().to_owned()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

impl HttpTestClient {
    pub(crate) fn new(address: SocketAddr, key: Option<&str>) -> Self {
        Self { address, key: key.map(str::to_owned) }
    }

    pub(crate) async fn get(&self, path: &str) -> HttpResponse {
        self.send("GET", path, "", b"").await
    }

    pub(crate) async fn delete(&self, path: &str) -> HttpResponse {
        self.send("DELETE", path, "", b"").await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> HttpResponse {
        self.post_with(path, "", body).await
    }

    pub(crate) async fn send_json(&self, method: &str, path: &str, body: Value) -> HttpResponse {
        self.send(method, path, "Content-Type: application/json\r\n", body.to_string().as_bytes()).await
    }

    pub(crate) async fn post_with(&self, path: &str, headers: &str, body: &Value) -> HttpResponse {
        let headers = format!("{headers}Content-Type: application/json\r\n");
        self.send("POST", path, &headers, body.to_string().as_bytes()).await
    }

    /// Runs a script for the fake provider.
    pub(crate) async fn run(&self, script: &str) -> HttpResponse {
        self.post("/v1/executions", &request(script)).await
    }

    pub(crate) async fn send(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> HttpResponse {
        let mut stream = self.start(method, path, headers, body).await;
        answer(&mut stream).await
    }

    /// Sends a request without reading the response.
    pub(crate) async fn start(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> TcpStream {
        let head = self.head(method, path, &format!("{headers}Content-Length: {}\r\n", body.len()));
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(&[head.as_bytes(), body].concat()).await.unwrap();
        stream
    }

    pub(crate) fn head(&self, method: &str, path: &str, headers: &str) -> String {
        let key = self.key.as_ref().map_or(String::new(), |key| format!("Authorization: Bearer {key}\r\n"));
        format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n{key}{headers}\r\n",
            self.address
        )
    }

    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Waits until `count` executions match the query.
    pub(crate) async fn until_listed(&self, query: &str, count: usize) {
        let listed = async || {
            let page = self.get(&format!("/v1/executions?{query}")).await.json();
            page["executions"].as_array().unwrap().len()
        };
        let waiting = async {
            while listed().await != count {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(Duration::from_secs(60), waiting)
            .await
            .unwrap_or_else(|_| panic!("never {count} executions match {query}"));
    }
}

pub(crate) fn request(script: &str) -> Value {
    json!({"language": "python", "code": script})
}

pub(crate) async fn answer(stream: &mut TcpStream) -> HttpResponse {
    let mut bytes = Vec::new();
    // A server that closes early may reset the unread part of the request; its response still counts.
    let _ =
        timeout(Duration::from_secs(60), stream.read_to_end(&mut bytes)).await.expect("no response in time");
    parse(&bytes)
}

fn parse(bytes: &[u8]) -> HttpResponse {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
    let end = end.unwrap_or_else(|| panic!("no response head: {}", String::from_utf8_lossy(bytes)));
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let body = bytes[end + 4..].to_vec();
    let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    HttpResponse { status, head, body: if chunked { unchunk(&body) } else { body } }
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
