//! A small HTTP client: one connection for one call, to the server that was named.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use belljar_engine::ErrorCode;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Method, Request, Response, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::tls::{self, Secure};
use crate::env::{Environment, Hidden};
use crate::failure::Failure;

const USUAL: &str = "http://127.0.0.1:7117";
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest answer that is taken: the longest result, and some.
const LONGEST: usize = 256 << 20;

/// What is sent.
pub(super) type Outgoing = UnsyncBoxBody<Bytes, Infallible>;

/// The server to call.
#[derive(Debug)]
pub(super) struct Server {
    authority: String,
    /// Where HTTPS is spoken.
    secure: Option<Secure>,
    key: Option<Hidden>,
}

impl Server {
    /// The flag counts, then the environment.
    pub(super) fn of(flag: Option<&str>, environment: &Environment) -> Result<Self, Failure> {
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
    async fn connect(&self) -> io::Result<SendRequest<Outgoing>> {
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
    pub(super) async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, Failure> {
        let response = self.send(method, path, "application/json", body).await?;
        read(response).await
    }

    /// Calls, and gives the answer as it comes. What is no success is an error.
    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        accept: &str,
        body: Option<&Value>,
    ) -> Result<Response<Incoming>, Failure> {
        let body = body.map_or(Bytes::new(), |body| body.to_string().into());
        self.exchange(method, path, [accept, "application/json"], Full::new(body).boxed_unsync()).await
    }

    /// The same with any body; the kinds are those of the answer and of the body.
    pub(super) async fn exchange(
        &self,
        method: Method,
        path: &str,
        [accept, kind]: [&str; 2],
        body: Outgoing,
    ) -> Result<Response<Incoming>, Failure> {
        let failed =
            |why: String| Failure::host(format!("call {}://{}: {why}", self.scheme().0, self.authority));
        let connecting = timeout(PATIENCE, self.connect());
        let connected = connecting.await.map_err(|_| failed("no answer".to_owned()))?;
        let mut sender = connected.map_err(|error| failed(tls::advised(&error)))?;
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, &self.authority)
            .header(header::ACCEPT, accept)
            .header(header::CONTENT_TYPE, kind);
        if let Some(key) = &self.key {
            request = request.header(header::AUTHORIZATION, format!("Bearer {}", key.reveal()));
        }
        let request = request.body(body).map_err(|error| failed(error.to_string()))?;
        let response = sender.send_request(request).await.map_err(|error| failed(error.to_string()))?;
        if response.status().is_success() { Ok(response) } else { Err(refusal(response).await) }
    }
}

/// What is asked for goes out over this stream.
async fn greet(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
) -> io::Result<SendRequest<Outgoing>> {
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    // Ends with the answer; what goes wrong on it is seen there.
    tokio::spawn(connection);
    Ok(sender)
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

async fn refusal(response: Response<Incoming>) -> Failure {
    let status = response.status();
    let answer = read(response).await.unwrap_or_default();
    refused(&answer["error"], &format!("the server answered {status}"))
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
pub(super) fn part(text: &str) -> String {
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
