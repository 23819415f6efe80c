//! Requests to a service: limited in time and size, and retried only if that is harmless.
//!
//! Reading, writing whole files and deleting have the same effect twice. Creating a machine carries a key or
//! name of ours, so it is retried as well. A command is retried only if the service was not reached, or asked
//! to retry later.

use std::fmt;
use std::time::Duration;

use reqwest::header::RETRY_AFTER;
use reqwest::redirect::Policy;
use reqwest::{Client, RequestBuilder, Response, StatusCode, Url};
use serde_json::Value;

/// Delays before each retry.
const RETRY_DELAYS: [Duration; 3] =
    [Duration::from_millis(200), Duration::from_millis(800), Duration::from_secs(3)];
/// A longer Retry-After is not waited for: the request fails.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// More than any error message needs.
const MAX_ERROR_BYTES: u64 = 64 << 10;
/// How much of it users see.
const MAX_MESSAGE_CHARS: usize = 300;

/// When a request may be retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RetryPolicy {
    /// After any failure: the request is idempotent.
    Always,
    /// Only if it certainly had no effect: there was no connection, or the service asked to retry later.
    IfUnprocessed,
}

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HttpError {
    /// No connection was made.
    Unreachable { host: String, why: String },
    /// The request was sent, but its effect is unknown.
    Broken { host: String, why: String },
    /// The service refused the request.
    Refused { host: String, status: u16, message: String, later: Option<Duration> },
}

impl HttpError {
    pub(super) fn status(&self) -> Option<u16> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// Returns a hint that names the service's Retry-After, if there is one.
    pub(super) fn retry_hint(&self) -> String {
        match self {
            Self::Refused { later: Some(later), .. } => {
                format!("; retry in {} s", later.as_secs())
            }
            _ => String::new(),
        }
    }

    /// Returns the delay before a retry, or `None` if it may not be retried. `pause` is the default delay.
    fn retry_delay(&self, again: RetryPolicy, pause: Duration) -> Option<Duration> {
        match self {
            Self::Unreachable { .. } => Some(pause),
            Self::Broken { .. } => (again == RetryPolicy::Always).then_some(pause),
            Self::Refused { status: 429, later, .. } => Some(later.unwrap_or(pause)),
            Self::Refused { status: 502..=504, later, .. } if again == RetryPolicy::Always => {
                Some(later.unwrap_or(pause))
            }
            Self::Refused { .. } => None,
        }
        .filter(|wait| *wait <= MAX_RETRY_AFTER)
    }
}

impl fmt::Display for HttpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable { host, why } => write!(f, "cannot connect to {host}: {why}"),
            Self::Broken { host, why } => write!(f, "the connection to {host} broke: {why}"),
            Self::Refused { host, status, message, .. } => {
                write!(f, "{host} responded with {status}: {message}")
            }
        }
    }
}

/// An HTTP client for one service.
#[derive(Debug)]
pub(super) struct HttpClient {
    pub(super) client: Client,
    /// Timeout for a response.
    response_timeout: Duration,
}

impl HttpClient {
    /// Creates a client that follows no redirects, because requests carry a key.
    pub(super) fn new(answer: Duration, base: &Url) -> Result<Self, String> {
        // Fails if the same provider is installed already.
        let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
        let builder = Client::builder()
            .connect_timeout(CONNECT_TIMEOUT.min(answer))
            .redirect(Policy::none())
            .retry(reqwest::retry::never())
            .user_agent(concat!("belljar/", env!("CARGO_PKG_VERSION")));
        let builder = if is_loopback(base) { builder.no_proxy() } else { builder };
        let client = builder.build().map_err(|error| error.to_string())?;
        Ok(Self { client, response_timeout: answer })
    }

    /// Returns the timeout for a response to a request of this size, assuming at least one megabyte per
    /// second.
    pub(super) fn timeout_for(&self, bytes: usize) -> Duration {
        self.response_timeout + Duration::from_secs((bytes >> 20) as u64)
    }

    /// Sends a request, with retries, until it succeeds.
    pub(super) async fn send(
        &self,
        request: RequestBuilder,
        again: RetryPolicy,
    ) -> Result<Response, HttpError> {
        self.send_with_timeout(request, again, self.response_timeout).await
    }

    /// Sends a request like [`HttpClient::send`], with a specific timeout.
    pub(super) async fn send_with_timeout(
        &self,
        request: RequestBuilder,
        again: RetryPolicy,
        timeout: Duration,
    ) -> Result<Response, HttpError> {
        for pause in RETRY_DELAYS {
            let Some(copy) = request.try_clone() else { break };
            let error = match self.send_once(copy, timeout).await {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            match error.retry_delay(again, pause) {
                Some(wait) => tokio::time::sleep(wait).await,
                None => return Err(error),
            }
        }
        self.send_once(request, timeout).await
    }

    async fn send_once(&self, request: RequestBuilder, timeout: Duration) -> Result<Response, HttpError> {
        let (client, request) = request.build_split();
        let request = request
            .map_err(|error| HttpError::Unreachable { host: String::new(), why: root_cause(&error) })?;
        let host = host_of(request.url());
        let response = match tokio::time::timeout(timeout, client.execute(request)).await {
            Err(_) => return Err(HttpError::Broken { host, why: timeout_message(timeout) }),
            Ok(Err(error)) if error.is_connect() => {
                return Err(HttpError::Unreachable { host, why: root_cause(&error) });
            }
            Ok(Err(error)) => return Err(HttpError::Broken { host, why: root_cause(&error) }),
            Ok(Ok(response)) => response,
        };
        if response.status().is_success() {
            return Ok(response);
        }
        let (status, later) = (response.status(), retry_after(&response));
        let body = self.body(response, MAX_ERROR_BYTES).await.unwrap_or_default();
        Err(HttpError::Refused {
            host,
            status: status.as_u16(),
            message: error_message(&body, status),
            later,
        })
    }

    /// Sends an idempotent request, and returns the response body up to a size limit.
    pub(super) async fn fetch(&self, request: RequestBuilder, bound: u64) -> Result<Vec<u8>, HttpError> {
        let response = self.send(request, RetryPolicy::Always).await?;
        self.body(response, bound).await
    }

    /// Reads a response body up to a size limit.
    pub(super) async fn body(&self, mut response: Response, bound: u64) -> Result<Vec<u8>, HttpError> {
        let host = host_of(response.url());
        let broken = |why: String| HttpError::Broken { host: host.clone(), why };
        let mut body = Vec::new();
        loop {
            let chunk = tokio::time::timeout(self.response_timeout, response.chunk()).await;
            match chunk
                .map_err(|_| broken(timeout_message(self.response_timeout)))?
                .map_err(|error| broken(root_cause(&error)))?
            {
                None => return Ok(body),
                Some(chunk) if (body.len() + chunk.len()) as u64 > bound => {
                    return Err(broken(format!("the response is longer than {bound} bytes")));
                }
                Some(chunk) => body.extend_from_slice(&chunk),
            }
        }
    }

    /// Reads a response body as JSON.
    pub(super) async fn json(&self, response: Response, bound: u64) -> Result<Value, HttpError> {
        let host = host_of(response.url());
        let body = self.body(response, bound).await?;
        serde_json::from_slice(&body)
            .map_err(|error| HttpError::Broken { host, why: format!("the response is not JSON: {error}") })
    }
}

fn timeout_message(timeout: Duration) -> String {
    format!("no response within {} s", timeout.as_secs())
}

/// Parses a URL that a key may be sent to: over TLS, or to this machine.
pub(super) fn parse_url(setting: &str, text: &str) -> Result<Url, String> {
    let url: Url = text.parse().map_err(|error| format!("{setting}: '{}': {error}", text.escape_debug()))?;
    match url.scheme() {
        "https" => Ok(url),
        "http" if is_loopback(&url) => Ok(url),
        _ => Err(format!("{setting}: must begin with https://; http:// is allowed only for this machine")),
    }
}

pub(super) fn is_loopback(url: &Url) -> bool {
    match url.host_str() {
        Some("localhost") => true,
        Some(host) => {
            host.trim_matches(['[', ']']).parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
        }
        None => false,
    }
}

/// Returns the host, with the port if it is not the default.
pub(super) fn host_of(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

fn retry_after(response: &Response) -> Option<Duration> {
    let text = response.headers().get(RETRY_AFTER)?.to_str().ok()?;
    text.trim().parse().ok().map(Duration::from_secs)
}

/// Returns the service's error message as one line of limited length.
fn error_message(body: &[u8], status: StatusCode) -> String {
    let json: Option<Value> = serde_json::from_slice(body).ok();
    let message = json.as_ref().and_then(|json| json["message"].as_str()).map(str::to_owned);
    let message = message.unwrap_or_else(|| String::from_utf8_lossy(body).into_owned());
    let message = sanitize(&message);
    if message.is_empty() {
        status.canonical_reason().unwrap_or("no reason given").to_owned()
    } else {
        message
    }
}

/// Makes text from a service safe to print.
pub(super) fn sanitize(text: &str) -> String {
    let plain = text.trim().chars().map(|c| if c.is_control() { ' ' } else { c });
    plain.take(MAX_MESSAGE_CHARS).collect::<String>().trim().to_owned()
}

/// Returns the innermost cause: the outer ones only repeat the address.
fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    sanitize(&cause.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_harmless_retries_are_made() {
        let pause = Duration::from_millis(1);
        let refused = |status, later: Option<u64>| HttpError::Refused {
            host: "h".to_owned(),
            status,
            message: String::new(),
            later: later.map(Duration::from_secs),
        };
        let broken = HttpError::Broken { host: "h".to_owned(), why: String::new() };
        let once = |error: &HttpError| error.retry_delay(RetryPolicy::IfUnprocessed, pause);
        assert_eq!((once(&broken), broken.retry_delay(RetryPolicy::Always, pause)), (None, Some(pause)));
        assert_eq!((once(&refused(503, None)), once(&refused(429, None))), (None, Some(pause)));
        assert_eq!(
            refused(503, Some(2)).retry_delay(RetryPolicy::Always, pause),
            Some(Duration::from_secs(2))
        );
        assert_eq!(refused(429, Some(3_600)).retry_delay(RetryPolicy::Always, pause), None);
        assert_eq!(refused(401, None).retry_delay(RetryPolicy::Always, pause), None);
    }

    #[test]
    fn keys_travel_over_tls() {
        let wrong = |text| parse_url("providers.e2b.api_url", text).unwrap_err();
        assert!(
            parse_url("x", "https://api.e2b.app").is_ok() && parse_url("x", "http://127.0.0.1:3000").is_ok()
        );
        assert!(parse_url("x", "http://[::1]:1").is_ok());
        for text in
            ["http://api.e2b.app", "http://127.0.0.1.example.com", "http://10.0.0.1", "ftp://localhost"]
        {
            assert!(wrong(text).starts_with("providers.e2b.api_url: must begin with https://"), "{text}");
        }
    }

    #[test]
    fn service_messages_are_truncated_and_sanitized() {
        let long = format!("{{\"message\":\"a\\u001bb{}\"}}", "x".repeat(1_000));
        let message = error_message(long.as_bytes(), StatusCode::BAD_REQUEST);
        assert!(message.starts_with("a b") && message.len() == MAX_MESSAGE_CHARS, "{message}");
        assert_eq!(error_message(b"", StatusCode::FORBIDDEN), "Forbidden");
    }
}
