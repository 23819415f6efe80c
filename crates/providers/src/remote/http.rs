//! Requests to a service: limited in time and size, and retried only if that is harmless.

use std::fmt;
use std::time::Duration;

use reqwest::header::RETRY_AFTER;
use reqwest::redirect::Policy;
use reqwest::{Client, RequestBuilder, Response, StatusCode, Url};
use serde_json::Value;

/// Delays before each retry.
const PAUSES: [Duration; 3] =
    [Duration::from_millis(200), Duration::from_millis(800), Duration::from_secs(3)];
/// A longer Retry-After is not waited for: the request fails.
const PATIENCE: Duration = Duration::from_secs(10);
const CONNECTING: Duration = Duration::from_secs(10);
/// More than any error message needs.
const MAX_ERROR: u64 = 64 << 10;
/// How much of it users see.
const MAX_SHOWN: usize = 300;

/// When a request may be retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    /// After any failure: the request is idempotent.
    Always,
    /// Only if it certainly had no effect: there was no connection, or the service asked to retry later.
    IfNothingHappened,
}

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Trouble {
    /// No connection was made.
    Unreachable { host: String, why: String },
    /// The request was sent, but its effect is unknown.
    Broken { host: String, why: String },
    /// The service refused the request.
    Refused { host: String, status: u16, message: String, later: Option<Duration> },
}

impl Trouble {
    pub(super) fn status(&self) -> Option<u16> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// Returns a hint that names the service's Retry-After, if there is one.
    pub(super) fn when(&self) -> String {
        match self {
            Self::Refused { later: Some(later), .. } => {
                format!("; retry in {} s", later.as_secs())
            }
            _ => String::new(),
        }
    }

    /// Returns the delay before a retry, or `None` if it may not be retried. `pause` is the default delay.
    fn wait(&self, again: Again, pause: Duration) -> Option<Duration> {
        match self {
            Self::Unreachable { .. } => Some(pause),
            Self::Broken { .. } => (again == Again::Always).then_some(pause),
            Self::Refused { status: 429, later, .. } => Some(later.unwrap_or(pause)),
            Self::Refused { status: 502..=504, later, .. } if again == Again::Always => {
                Some(later.unwrap_or(pause))
            }
            Self::Refused { .. } => None,
        }
        .filter(|wait| *wait <= PATIENCE)
    }
}

impl fmt::Display for Trouble {
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
pub(super) struct Http {
    pub(super) client: Client,
    /// Timeout for a response.
    answer: Duration,
}

impl Http {
    /// Creates a client that follows no redirects, because requests carry a key.
    pub(super) fn new(answer: Duration, base: &Url) -> Result<Self, String> {
        // Fails if the same provider is installed already.
        let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
        let builder = Client::builder()
            .connect_timeout(CONNECTING.min(answer))
            .redirect(Policy::none())
            .retry(reqwest::retry::never())
            .user_agent(concat!("belljar/", env!("CARGO_PKG_VERSION")));
        let builder = if is_near(base) { builder.no_proxy() } else { builder };
        let client = builder.build().map_err(|error| error.to_string())?;
        Ok(Self { client, answer })
    }

    /// Returns the timeout for a response to a request of this size, assuming at least one megabyte per
    /// second.
    pub(super) fn patience(&self, bytes: usize) -> Duration {
        self.answer + Duration::from_secs((bytes >> 20) as u64)
    }

    /// Sends a request, with retries, until it succeeds.
    pub(super) async fn send(&self, request: RequestBuilder, again: Again) -> Result<Response, Trouble> {
        self.send_for(request, again, self.answer).await
    }

    /// Sends a request like [`Http::send`], with a specific timeout.
    pub(super) async fn send_for(
        &self,
        request: RequestBuilder,
        again: Again,
        patience: Duration,
    ) -> Result<Response, Trouble> {
        for pause in PAUSES {
            let Some(copy) = request.try_clone() else { break };
            let trouble = match self.once(copy, patience).await {
                Ok(response) => return Ok(response),
                Err(trouble) => trouble,
            };
            match trouble.wait(again, pause) {
                Some(wait) => tokio::time::sleep(wait).await,
                None => return Err(trouble),
            }
        }
        self.once(request, patience).await
    }

    async fn once(&self, request: RequestBuilder, patience: Duration) -> Result<Response, Trouble> {
        let (client, request) = request.build_split();
        let request =
            request.map_err(|error| Trouble::Unreachable { host: String::new(), why: reason(&error) })?;
        let host = host_of(request.url());
        let response = match tokio::time::timeout(patience, client.execute(request)).await {
            Err(_) => return Err(Trouble::Broken { host, why: silence(patience) }),
            Ok(Err(error)) if error.is_connect() => {
                return Err(Trouble::Unreachable { host, why: reason(&error) });
            }
            Ok(Err(error)) => return Err(Trouble::Broken { host, why: reason(&error) }),
            Ok(Ok(response)) => response,
        };
        if response.status().is_success() {
            return Ok(response);
        }
        let (status, later) = (response.status(), later(&response));
        let body = self.body(response, MAX_ERROR).await.unwrap_or_default();
        Err(Trouble::Refused { host, status: status.as_u16(), message: message(&body, status), later })
    }

    /// Reads a response body up to a size limit.
    pub(super) async fn body(&self, mut response: Response, bound: u64) -> Result<Vec<u8>, Trouble> {
        let host = host_of(response.url());
        let broken = |why: String| Trouble::Broken { host: host.clone(), why };
        let mut body = Vec::new();
        loop {
            let chunk = tokio::time::timeout(self.answer, response.chunk()).await;
            match chunk.map_err(|_| broken(silence(self.answer)))?.map_err(|error| broken(reason(&error)))? {
                None => return Ok(body),
                Some(chunk) if (body.len() + chunk.len()) as u64 > bound => {
                    return Err(broken(format!("the response is longer than {bound} bytes")));
                }
                Some(chunk) => body.extend_from_slice(&chunk),
            }
        }
    }

    /// Reads a response body as JSON.
    pub(super) async fn json(&self, response: Response, bound: u64) -> Result<Value, Trouble> {
        let host = host_of(response.url());
        let body = self.body(response, bound).await?;
        serde_json::from_slice(&body)
            .map_err(|error| Trouble::Broken { host, why: format!("the response is not JSON: {error}") })
    }
}

fn silence(patience: Duration) -> String {
    format!("no response within {} s", patience.as_secs())
}

/// Parses a URL that a key may be sent to: over TLS, or to this machine.
pub(super) fn address(setting: &str, text: &str) -> Result<Url, String> {
    let url: Url = text.parse().map_err(|error| format!("{setting}: '{}': {error}", text.escape_debug()))?;
    match url.scheme() {
        "https" => Ok(url),
        "http" if is_near(&url) => Ok(url),
        _ => Err(format!("{setting}: must begin with https://; http:// is allowed only for this machine")),
    }
}

pub(super) fn is_near(url: &Url) -> bool {
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

fn later(response: &Response) -> Option<Duration> {
    let text = response.headers().get(RETRY_AFTER)?.to_str().ok()?;
    text.trim().parse().ok().map(Duration::from_secs)
}

/// Returns the service's error message as one line of limited length.
fn message(body: &[u8], status: StatusCode) -> String {
    let json: Option<Value> = serde_json::from_slice(body).ok();
    let said = json.as_ref().and_then(|json| json["message"].as_str()).map(str::to_owned);
    let said = said.unwrap_or_else(|| String::from_utf8_lossy(body).into_owned());
    let said = shown(&said);
    if said.is_empty() { status.canonical_reason().unwrap_or("no reason given").to_owned() } else { said }
}

/// Makes text from a service safe to print.
pub(super) fn shown(text: &str) -> String {
    let plain = text.trim().chars().map(|c| if c.is_control() { ' ' } else { c });
    plain.take(MAX_SHOWN).collect::<String>().trim().to_owned()
}

/// Returns the innermost cause: the outer ones only repeat the address.
fn reason(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    shown(&cause.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_did_nothing_is_sent_again() {
        let pause = Duration::from_millis(1);
        let refused = |status, later: Option<u64>| Trouble::Refused {
            host: "h".to_owned(),
            status,
            message: String::new(),
            later: later.map(Duration::from_secs),
        };
        let broken = Trouble::Broken { host: "h".to_owned(), why: String::new() };
        let once = |trouble: &Trouble| trouble.wait(Again::IfNothingHappened, pause);
        assert_eq!((once(&broken), broken.wait(Again::Always, pause)), (None, Some(pause)));
        assert_eq!((once(&refused(503, None)), once(&refused(429, None))), (None, Some(pause)));
        assert_eq!(refused(503, Some(2)).wait(Again::Always, pause), Some(Duration::from_secs(2)));
        assert_eq!(refused(429, Some(3_600)).wait(Again::Always, pause), None);
        assert_eq!(refused(401, None).wait(Again::Always, pause), None);
    }

    #[test]
    fn keys_travel_over_tls() {
        let wrong = |text| address("providers.e2b.api_url", text).unwrap_err();
        assert!(address("x", "https://api.e2b.app").is_ok() && address("x", "http://127.0.0.1:3000").is_ok());
        assert!(address("x", "http://[::1]:1").is_ok());
        for text in
            ["http://api.e2b.app", "http://127.0.0.1.example.com", "http://10.0.0.1", "ftp://localhost"]
        {
            assert!(wrong(text).starts_with("providers.e2b.api_url: must begin with https://"), "{text}");
        }
    }

    #[test]
    fn what_a_service_says_is_cut_and_plain() {
        let long = format!("{{\"message\":\"a\\u001bb{}\"}}", "x".repeat(1_000));
        let said = message(long.as_bytes(), StatusCode::BAD_REQUEST);
        assert!(said.starts_with("a b") && said.len() == MAX_SHOWN, "{said}");
        assert_eq!(message(b"", StatusCode::FORBIDDEN), "Forbidden");
    }
}
