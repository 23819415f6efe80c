//! A small HTTP client: one connection per call, to the given server.

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
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::handshake::{client::generate_key, derive_accept_key};

use super::early_response::EarlyResponseStream;
use super::tls::{self, TlsTarget};
use crate::env::{Environment, SecretValue};
use crate::error::CliError;

const DEFAULT_URL: &str = "http://127.0.0.1:7117";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of a response: the longest result, with some margin.
const MAX_RESPONSE_BYTES: usize = 256 << 20;

pub(super) const JSON: &str = "application/json";
/// Content type of server-sent events.
pub(super) const EVENTS: &str = "text/event-stream";
const BYTES: &str = "application/octet-stream";

/// A request body, complete or streamed.
pub(super) type Body = UnsyncBoxBody<Bytes, io::Error>;

/// The server to call.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    authority: String,
    /// TLS settings, if the URL is HTTPS.
    secure: Option<TlsTarget>,
    key: Option<SecretValue>,
}

impl Server {
    /// Parses the server's URL from the flag, else from the environment.
    pub(crate) fn new(flag: Option<&str>, environment: &Environment) -> Result<Self, CliError> {
        let url = flag.or(environment.server.as_deref()).unwrap_or(DEFAULT_URL);
        let refused = |why: &str| CliError::invalid(format!("--server: '{}': {why}", url.escape_debug()));
        let (secure, rest) = match (url.strip_prefix("https://"), url.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (None, Some(rest)) => (false, rest),
            (None, None) => return Err(refused("must start with https:// or http://")),
        };
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]_".contains(&byte);
        if authority.is_empty() || !authority.bytes().all(plain) {
            return Err(refused("not a server URL; use https://HOST:PORT"));
        }
        let secure = secure.then(|| TlsTarget::new(host(authority), environment)).transpose()?;
        Ok(Self { authority: authority.to_owned(), secure, key: environment.api_key.clone() })
    }

    /// Returns the URL scheme and its default port.
    fn scheme(&self) -> (&'static str, u16) {
        if self.secure.is_some() { ("https", 443) } else { ("http", 80) }
    }

    /// Opens a connection.
    async fn connect(&self) -> io::Result<SendRequest<Body>> {
        let (_, port) = self.scheme();
        let address = if has_port(&self.authority) {
            self.authority.clone()
        } else {
            format!("{}:{port}", self.authority)
        };
        let stream = TcpStream::connect(address).await?;
        match &self.secure {
            Some(secure) => http_handshake(secure.connect(stream).await?).await,
            None => http_handshake(stream).await,
        }
    }

    /// Calls the server and returns the JSON response; an empty response is null.
    pub(crate) async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, CliError> {
        let response = self.send(method, path, JSON, body).await?;
        read(response).await
    }

    /// Gets a resource that may not exist.
    pub(crate) async fn find(&self, path: &str) -> Result<Option<Value>, CliError> {
        let response = self.forward(request(Method::GET, path, [JSON, JSON], empty_body())).await?;
        match response.status() {
            StatusCode::NOT_FOUND => Ok(None),
            _ => read(check_status(response).await?).await.map(Some),
        }
    }

    /// Calls the server and returns the response as a stream. An unsuccessful status is an error.
    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        accept: &'static str,
        body: Option<&Value>,
    ) -> Result<Response<Incoming>, CliError> {
        let body = body.map_or_else(empty_body, |body| bytes(body.to_string().into()));
        self.exchange(method, path, [accept, JSON], body).await
    }

    /// Calls the server with any body; `kinds` are the content types of the response and of the body.
    pub(super) async fn exchange(
        &self,
        method: Method,
        path: &str,
        kinds: [&'static str; 2],
        body: Body,
    ) -> Result<Response<Incoming>, CliError> {
        check_status(self.forward(request(method, path, kinds, body)).await?).await
    }

    /// Sends bytes and returns the JSON response.
    pub(super) async fn put(&self, method: Method, path: &str, body: Body) -> Result<Value, CliError> {
        read(self.exchange(method, path, [JSON, BYTES], body).await?).await
    }

    /// Opens a WebSocket.
    pub(super) async fn upgrade(&self, path: &str) -> Result<TokioIo<Upgraded>, CliError> {
        let key = generate_key();
        let accept = derive_accept_key(key.as_bytes());
        let mut request = request(Method::GET, path, [JSON, JSON], empty_body());
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
            return Err(CliError::host(
                "the server did not accept the WebSocket; does it have the same version as this program?",
            ));
        }
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(error_response(response).await);
        }
        let answered = response.headers().get(header::SEC_WEBSOCKET_ACCEPT);
        if answered.is_none_or(|answered| answered.as_bytes() != accept.as_bytes()) {
            return Err(CliError::host("the server's WebSocket handshake is invalid"));
        }
        let upgraded = hyper::upgrade::on(response).await;
        upgraded.map(TokioIo::new).map_err(|error| self.failed(&error.to_string()))
    }

    /// Sends a request with the API key and returns the response, whatever its status.
    pub(super) async fn forward(&self, mut request: Request<Body>) -> Result<Response<Incoming>, CliError> {
        insert(&mut request, header::HOST, &self.authority)?;
        request.headers_mut().remove(header::AUTHORIZATION);
        if let Some(key) = &self.key {
            insert(&mut request, header::AUTHORIZATION, &format!("Bearer {}", key.reveal()))?;
        }
        let unreachable = |why: &str| {
            self.failed(&format!(
                "{why}; start a server with 'belljar serve', or set its URL with --server or BELLJAR_SERVER"
            ))
        };
        let connected =
            timeout(CONNECT_TIMEOUT, self.connect()).await.map_err(|_| unreachable("no answer"))?;
        let mut sender = connected.map_err(|error| match error.kind() {
            io::ErrorKind::ConnectionRefused => unreachable(&error.to_string()),
            _ => self.failed(&tls::describe_error(&error)),
        })?;
        sender.send_request(request).await.map_err(|error| self.failed(&error.to_string()))
    }

    fn failed(&self, why: &str) -> CliError {
        CliError::host(format!("cannot call {}://{}: {why}", self.scheme().0, self.authority))
    }
}

/// Opens an HTTP connection over this stream.
async fn http_handshake(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
) -> io::Result<SendRequest<Body>> {
    let (sender, connection) =
        http1::handshake(TokioIo::new(EarlyResponseStream(stream))).await.map_err(io::Error::other)?;
    // Ends with the response; errors of the connection are reported there.
    tokio::spawn(connection.with_upgrades());
    Ok(sender)
}

fn request(method: Method, path: &str, [accept, kind]: [&'static str; 2], body: Body) -> Request<Body> {
    let mut request = Request::new(body);
    *request.method_mut() = method;
    // Paths are built from encoded parts, so they parse; the server would not know an invalid one either.
    *request.uri_mut() = path.parse().unwrap_or_default();
    request.headers_mut().insert(header::ACCEPT, HeaderValue::from_static(accept));
    request.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    request
}

fn insert(request: &mut Request<Body>, name: HeaderName, value: &str) -> Result<(), CliError> {
    let mut text = HeaderValue::from_str(value).map_err(|_| {
        CliError::invalid(format!("{name}: contains characters that are not allowed in a header"))
    })?;
    text.set_sensitive(name == header::AUTHORIZATION);
    request.headers_mut().insert(name, text);
    Ok(())
}

/// Creates a body from bytes.
pub(super) fn bytes(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

fn empty_body() -> Body {
    bytes(Bytes::new())
}

async fn check_status(response: Response<Incoming>) -> Result<Response<Incoming>, CliError> {
    if response.status().is_success() { Ok(response) } else { Err(error_response(response).await) }
}

/// Returns the host name or address, without port and without the brackets of an IPv6 address.
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

async fn read(response: Response<Incoming>) -> Result<Value, CliError> {
    let text = read_text(response).await?;
    if text.is_empty() { Ok(Value::Null) } else { parse(&text) }
}

/// Reads a response as text. A result object is not parsed as a value, because that would round its numbers.
pub(super) async fn read_text(response: Response<Incoming>) -> Result<String, CliError> {
    let limited = http_body_util::Limited::new(response.into_body(), MAX_RESPONSE_BYTES);
    let bytes = limited.collect().await.map_err(|error| unreadable(&error.to_string()))?.to_bytes();
    String::from_utf8(bytes.into()).map_err(|error| unreadable(&error.to_string()))
}

/// Parses JSON of the server.
pub(super) fn parse<T: DeserializeOwned>(json: &str) -> Result<T, CliError> {
    serde_json::from_str(json).map_err(|error| unreadable(&error.to_string()))
}

fn unreadable(why: &str) -> CliError {
    CliError::host(format!("cannot read the server's response: {why}"))
}

/// Converts an error response.
pub(super) async fn error_response(response: Response<Incoming>) -> CliError {
    let status = response.status();
    let answer = read(response).await.unwrap_or_default();
    let mut failure = server_error(&answer["error"], &format!("status {status}"));
    if status == StatusCode::UNAUTHORIZED {
        failure
            .message
            .push_str("; set BELLJAR_API_KEY to a key of this server (create one with: belljar key create)");
    }
    failure
}

/// Converts an error object of the server; `otherwise` is used if it has no message.
pub(super) fn server_error(error: &Value, otherwise: &str) -> CliError {
    let code =
        serde_json::from_value(error["code"].clone()).ok().filter(|code| ErrorCode::RUN.contains(code));
    let message = error["message"].as_str().unwrap_or(otherwise);
    CliError { code: code.unwrap_or(ErrorCode::SetupFailed), message: format!("server: {message}") }
}

/// Builds a URL query.
pub(super) fn query(pairs: &[(String, String)]) -> String {
    let pairs: Vec<_> =
        pairs.iter().map(|(name, value)| format!("{}={}", encode_part(name), encode_part(value))).collect();
    pairs.join("&")
}

/// Encodes text as one part of a URL path or query.
pub(crate) fn encode_part(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let encode = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(encode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_urls_are_validated() {
        let environment = Environment::default();
        for good in [
            "http://127.0.0.1:7117",
            "http://localhost:1/",
            "http://[::1]:7117",
            "https://localhost",
            "https://[::1]:1",
        ] {
            assert!(Server::new(Some(good), &environment).is_ok(), "{good}");
        }
        for bad in
            ["", "127.0.0.1", "ftp://x", "https://", "http://", "http://a/b", "http://a b", "http://u@h"]
        {
            assert!(Server::new(Some(bad), &environment).is_err(), "{bad}");
        }
        assert_eq!(["a", "a:1", "[::1]:1", "[::1]"].map(host), ["a", "a", "::1", "::1"]);
        assert_eq!(query(&[("metadata.a b".to_owned(), "é&=".to_owned())]), "metadata.a%20b=%C3%A9%26%3D");
    }
}
