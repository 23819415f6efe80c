//! A small HTTP client: one connection for one call, to the server that was named.

use std::io;
use std::time::Duration;

use belljar_engine::ErrorCode;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::upgrade::Upgraded;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::handshake::{client::generate_key, derive_accept_key};

use super::patient::Patient;
use super::tls::{self, Secure};
use crate::env::{Environment, Hidden};
use crate::failure::Failure;

const USUAL: &str = "http://127.0.0.1:7117";
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest answer that is taken: the longest result, and some.
const LONGEST: usize = 256 << 20;

const JSON: &str = "application/json";
/// Events of a server, as they come.
pub(super) const EVENTS: &str = "text/event-stream";
const BYTES: &str = "application/octet-stream";

/// What is sent: bytes that are there, or that are still coming.
pub(super) type Body = UnsyncBoxBody<Bytes, io::Error>;

/// The server to call.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    authority: String,
    /// Where HTTPS is spoken.
    secure: Option<Secure>,
    key: Option<Hidden>,
}

impl Server {
    /// The flag counts, then the environment.
    pub(crate) fn of(flag: Option<&str>, environment: &Environment) -> Result<Self, Failure> {
        let url = flag.or(environment.server.as_deref()).unwrap_or(USUAL);
        let refused = |why: &str| Failure::invalid(format!("--server: '{}': {why}", url.escape_debug()));
        let (secure, rest) = match (url.strip_prefix("https://"), url.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (None, Some(rest)) => (false, rest),
            (None, None) => return Err(refused("must begin with https:// or http://")),
        };
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]_".contains(&byte);
        if authority.is_empty() || !authority.bytes().all(plain) {
            return Err(refused("is no server; write https://HOST:PORT"));
        }
        let secure = secure.then(|| Secure::to(host(authority), environment)).transpose()?;
        Ok(Self { authority: authority.to_owned(), secure, key: environment.api_key.clone() })
    }

    /// With its usual port.
    fn scheme(&self) -> (&'static str, u16) {
        if self.secure.is_some() { ("https", 443) } else { ("http", 80) }
    }

    /// A connection that waits for a request.
    async fn connect(&self) -> io::Result<SendRequest<Body>> {
        let (_, port) = self.scheme();
        let address = if has_port(&self.authority) {
            self.authority.clone()
        } else {
            format!("{}:{port}", self.authority)
        };
        let stream = TcpStream::connect(address).await?;
        match &self.secure {
            Some(secure) => greet(secure.over(stream).await?).await,
            None => greet(stream).await,
        }
    }

    /// Calls, and gives the whole answer; nothing is null.
    pub(crate) async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, Failure> {
        let response = self.send(method, path, JSON, body).await?;
        read(response).await
    }

    /// Asks for something that need not be there.
    pub(crate) async fn find(&self, path: &str) -> Result<Option<Value>, Failure> {
        let response = self.forward(request(Method::GET, path, [JSON, JSON], nothing())).await?;
        match response.status() {
            StatusCode::NOT_FOUND => Ok(None),
            _ => read(accepted(response).await?).await.map(Some),
        }
    }

    /// Calls, and gives the answer as it comes. What is no success is an error.
    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        accept: &'static str,
        body: Option<&Value>,
    ) -> Result<Response<Incoming>, Failure> {
        let body = body.map_or_else(nothing, |body| bytes(body.to_string().into()));
        self.exchange(method, path, [accept, JSON], body).await
    }

    /// The same with any body; the kinds are those of the answer and of the body.
    pub(super) async fn exchange(
        &self,
        method: Method,
        path: &str,
        kinds: [&'static str; 2],
        body: Body,
    ) -> Result<Response<Incoming>, Failure> {
        accepted(self.forward(request(method, path, kinds, body)).await?).await
    }

    /// Sends bytes, and gives the whole answer.
    pub(super) async fn put(&self, method: Method, path: &str, body: Body) -> Result<Value, Failure> {
        read(self.exchange(method, path, [JSON, BYTES], body).await?).await
    }

    /// Turns a connection into a WebSocket.
    pub(super) async fn upgrade(&self, path: &str) -> Result<TokioIo<Upgraded>, Failure> {
        let key = generate_key();
        let accept = derive_accept_key(key.as_bytes());
        let mut request = request(Method::GET, path, [JSON, JSON], nothing());
        let fields = [
            (header::CONNECTION, "upgrade"),
            (header::UPGRADE, "websocket"),
            (header::SEC_WEBSOCKET_VERSION, "13"),
            (header::SEC_WEBSOCKET_KEY, key.as_str()),
        ];
        for (name, value) in fields {
            insert(&mut request, name, value)?;
        }
        let response = self.forward(request).await?;
        if response.status().is_success() || response.status().is_redirection() {
            return Err(Failure::host("the server does not speak WebSocket here; is it of this version?"));
        }
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(refusal(response).await);
        }
        let said = response.headers().get(header::SEC_WEBSOCKET_ACCEPT);
        if said.is_none_or(|said| said.as_bytes() != accept.as_bytes()) {
            return Err(Failure::host("the server's WebSocket answer is not to this request"));
        }
        let upgraded = hyper::upgrade::on(response).await;
        upgraded.map(TokioIo::new).map_err(|error| self.failed(&error.to_string()))
    }

    /// Sends a request as it is, with our key, and gives whatever is answered.
    pub(super) async fn forward(&self, mut request: Request<Body>) -> Result<Response<Incoming>, Failure> {
        insert(&mut request, header::HOST, &self.authority)?;
        request.headers_mut().remove(header::AUTHORIZATION);
        if let Some(key) = &self.key {
            insert(&mut request, header::AUTHORIZATION, &format!("Bearer {}", key.reveal()))?;
        }
        let unreachable = |why: &str| {
            self.failed(&format!(
                "{why}; start a server with 'belljar serve', or name another with --server or BELLJAR_SERVER"
            ))
        };
        let connected = timeout(PATIENCE, self.connect()).await.map_err(|_| unreachable("no answer"))?;
        let mut sender = connected.map_err(|error| match error.kind() {
            io::ErrorKind::ConnectionRefused => unreachable(&error.to_string()),
            _ => self.failed(&tls::advised(&error)),
        })?;
        sender.send_request(request).await.map_err(|error| self.failed(&error.to_string()))
    }

    fn failed(&self, why: &str) -> Failure {
        Failure::host(format!("call {}://{}: {why}", self.scheme().0, self.authority))
    }
}

/// What is asked for goes out over this stream.
async fn greet(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
) -> io::Result<SendRequest<Body>> {
    let (sender, connection) =
        http1::handshake(TokioIo::new(Patient(stream))).await.map_err(io::Error::other)?;
    // Ends with the answer; what goes wrong on it is seen there.
    tokio::spawn(connection.with_upgrades());
    Ok(sender)
}

fn request(method: Method, path: &str, [accept, kind]: [&'static str; 2], body: Body) -> Request<Body> {
    let mut request = Request::new(body);
    *request.method_mut() = method;
    // A path of ours is made of encoded parts; were it none, the server would not know it either.
    *request.uri_mut() = path.parse().unwrap_or_default();
    request.headers_mut().insert(header::ACCEPT, HeaderValue::from_static(accept));
    request.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    request
}

fn insert(request: &mut Request<Body>, name: HeaderName, value: &str) -> Result<(), Failure> {
    let mut text = HeaderValue::from_str(value)
        .map_err(|_| Failure::invalid(format!("{name}: has characters that no header can have")))?;
    text.set_sensitive(name == header::AUTHORIZATION);
    request.headers_mut().insert(name, text);
    Ok(())
}

/// A body that is there.
pub(super) fn bytes(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

fn nothing() -> Body {
    bytes(Bytes::new())
}

async fn accepted(response: Response<Incoming>) -> Result<Response<Incoming>, Failure> {
    if response.status().is_success() { Ok(response) } else { Err(refusal(response).await) }
}

/// The name or address alone, an IPv6 one without its brackets.
fn host(authority: &str) -> &str {
    let host = if has_port(authority) {
        authority.rsplit_once(':').map_or(authority, |(host, _)| host)
    } else {
        authority
    };
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

fn has_port(authority: &str) -> bool {
    authority.rsplit_once(':').is_some_and(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()))
}

async fn read(response: Response<Incoming>) -> Result<Value, Failure> {
    let limited = http_body_util::Limited::new(response.into_body(), LONGEST);
    let lost = |why: String| Failure::host(format!("read the server's answer: {why}"));
    let bytes = limited.collect().await.map_err(|error| lost(error.to_string()))?.to_bytes();
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_slice(&bytes).map_err(|error| lost(error.to_string()))
}

/// What the server said instead of what was asked for.
pub(super) async fn refusal(response: Response<Incoming>) -> Failure {
    let status = response.status();
    let answer = read(response).await.unwrap_or_default();
    let mut failure = refused(&answer["error"], &format!("it answered {status}"));
    if status == StatusCode::UNAUTHORIZED {
        failure
            .message
            .push_str("; set BELLJAR_API_KEY to a key of this server ('belljar key create' makes one)");
    }
    failure
}

/// What the server says went wrong, in its own words.
pub(super) fn refused(error: &Value, otherwise: &str) -> Failure {
    let code = serde_json::from_value(error["code"].clone()).unwrap_or(ErrorCode::SetupFailed);
    let message = error["message"].as_str().unwrap_or(otherwise);
    Failure { code, message: format!("server: {message}") }
}

/// A query of these names and values.
pub(super) fn query(pairs: &[(String, String)]) -> String {
    let pairs: Vec<_> = pairs.iter().map(|(name, value)| format!("{}={}", part(name), part(value))).collect();
    pairs.join("&")
}

/// Text as one part of a path or query.
pub(crate) fn part(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let encode = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(encode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_named_plainly() {
        let environment = Environment::default();
        for good in [
            "http://127.0.0.1:7117",
            "http://localhost:1/",
            "http://[::1]:7117",
            "https://localhost",
            "https://[::1]:1",
        ] {
            assert!(Server::of(Some(good), &environment).is_ok(), "{good}");
        }
        for bad in
            ["", "127.0.0.1", "ftp://x", "https://", "http://", "http://a/b", "http://a b", "http://u@h"]
        {
            assert!(Server::of(Some(bad), &environment).is_err(), "{bad}");
        }
        assert_eq!(["a", "a:1", "[::1]:1", "[::1]"].map(host), ["a", "a", "::1", "::1"]);
        assert_eq!(query(&[("metadata.a b".to_owned(), "é&=".to_owned())]), "metadata.a%20b=%C3%A9%26%3D");
    }
}
