//! Proxies HTTP and WebSocket requests to a program that listens on a port of the sandbox's loopback
//! interface.
//!
//! ```text
//! caller ── request, without the caller's credentials ───────▶ open_port ─▶ 127.0.0.1:port inside
//!        ◀─ response, without headers reserved to this site ──┘            one connection per request
//! ```
//!
//! The responses come from a tenant's program, but under this server's name: `proxy_headers.rs` removes
//! headers it must not set.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncWriteExt, copy, split};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::lifecycle;
use super::live_sandbox::SandboxInUse;
use super::proxy_headers::{self, PassThrough};
use super::transfer::IdleTimeoutBody;
use crate::app_state::AppState;
use crate::authentication::SandboxCaller;
use crate::connection::{MAX_HEAD_BYTES, MAX_HEADERS};
use crate::error::Error;
use crate::streams::StreamSlot;

/// Forwards a request of any method to a port of a sandbox, and returns the response.
///
/// HTTP/1.1 and WebSocket.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/ports/{port}/{rest}", tag = "ports",
    params(
        ("id" = String, Path, description = "Sandbox id"),
        ("port" = u16, Path, description = "Port number"),
        ("rest" = String, Path, description = "Path for the program, forwarded unchanged, with the query. \
            `X-Forwarded-Prefix` contains the part of the path before it"),
    ),
    responses(
        (status = "default", description = "The program's response"),
        (status = 404, description = "No such sandbox in this tenant"),
        (status = 409, description = "No program listens on this port, or the sandbox is paused"),
        (status = 502, description = "The program does not answer in HTTP"),
        (status = 504, description = "The program did not answer in time"),
    )
)]
pub(crate) async fn pass(
    State(world): State<Arc<AppState>>,
    SandboxCaller(caller): SandboxCaller,
    request: Request,
) -> Response {
    let passed = async {
        // A response may last arbitrarily long, so it needs a stream slot.
        let place = world.streams.open(&caller.tenant)?;
        let way = PortPath::parse(request.uri())?;
        let used = lifecycle::find(&world, &caller, way.id).await?;
        let port = way.port()?;
        match way.target(request.uri())? {
            Some(target) => PortRequest { used, port, target, place }.forward(&world, request).await,
            None => Ok(redirect_with_slash(request.uri())),
        }
    };
    let mut response = passed.await.unwrap_or_else(IntoResponse::into_response);
    proxy_headers::add_sandbox_policy(response.headers_mut());
    response
}

/// The parts of a port's URL. `rest` is kept byte for byte, because only the program interprets it.
#[derive(Debug)]
struct PortPath<'a> {
    id: &'a str,
    port: &'a str,
    rest: Option<&'a str>,
}

impl<'a> PortPath<'a> {
    fn parse(uri: &'a Uri) -> Result<Self, Error> {
        let mut parts = uri.path().splitn(7, '/');
        match (parts.nth(3), parts.nth(1)) {
            (Some(id), Some(port)) => Ok(Self { id, port, rest: parts.next() }),
            _ => Err(Error::NotFound("path")),
        }
    }

    /// Parses the port in canonical form, so that every port has exactly one URL.
    fn port(&self) -> Result<u16, Error> {
        let port = self.port.parse().ok().filter(|port: &u16| *port > 0 && port.to_string() == self.port);
        port.ok_or_else(|| invalid("port", "must be a number from 1 to 65535"))
    }

    /// Returns the request target for the program, or `None` if the URL ends after the port without a slash.
    fn target(&self, uri: &Uri) -> Result<Option<Uri>, Error> {
        let Some(rest) = self.rest else { return Ok(None) };
        let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
        let target = format!("/{rest}{query}").parse().map_err(|_| invalid("path", "is not a valid path"))?;
        Ok(Some(target))
    }
}

fn invalid(field: &'static str, message: &str) -> Error {
    Error::Invalid { field, message: message.to_owned() }
}

/// Redirects to the URL with a slash, because relative links of a page start at the last slash.
fn redirect_with_slash(uri: &Uri) -> Response {
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    (StatusCode::PERMANENT_REDIRECT, [(header::LOCATION, format!("{}/{query}", uri.path()))]).into_response()
}

/// One request to a port.
#[derive(Debug)]
struct PortRequest {
    used: SandboxInUse,
    port: u16,
    target: Uri,
    place: StreamSlot,
}

impl PortRequest {
    async fn forward(self, world: &AppState, mut request: Request) -> Result<Response, Error> {
        let client = proxy_headers::is_websocket(request.headers()).then(|| hyper::upgrade::on(&mut request));
        let patience = self.used.admitted.plan.limits.timeout;
        let prefix = format!("/v1/sandboxes/{}/ports/{}", self.used.id, self.port);
        let (mut head, body) = request.into_parts();
        head.extensions.clear();
        head.uri = self.target.clone();
        head.version = hyper::Version::HTTP_11;
        proxy_headers::prepare_request_headers(&mut head.headers, self.port, &prefix, client.is_some());
        let body = IdleTimeoutBody::new(body, world.settings.body_timeout);
        let progress = body.progress();
        let asking = send_request(&self.used, self.port, hyper::Request::from_parts(head, body));
        let (mut answer, line) = with_timeout(asking, progress, patience).await?;
        proxy_headers::check_framing(&answer, client.is_some())?;
        if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
            let program = hyper::upgrade::on(&mut answer);
            let Some(client) = client else { return Err(Error::Internal) };
            tokio::spawn(tunnel(client, program, (self.used, line, self.place)));
            return Ok(prepare_response(answer.map(|_| Body::empty()), true));
        }
        let kept = (self.used, line, self.place);
        Ok(prepare_response(answer.map(|body| streamed(body, kept)), false))
    }
}

fn prepare_response(mut answer: Response, upgrade: bool) -> Response {
    proxy_headers::prepare_response_headers(answer.headers_mut(), upgrade);
    *answer.version_mut() = hyper::Version::HTTP_11;
    answer.extensions_mut().clear();
    answer.extensions_mut().insert(PassThrough);
    answer
}

/// A connection to a program. Dropping it closes the connection.
#[derive(Debug)]
struct PortConnection(JoinHandle<()>);

impl Drop for PortConnection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn send_request(
    used: &SandboxInUse,
    port: u16,
    request: hyper::Request<IdleTimeoutBody>,
) -> Result<(hyper::Response<Incoming>, PortConnection), Error> {
    let stream = used.living.open_port(port).await?;
    let mut builder = http1::Builder::new();
    builder.max_headers(MAX_HEADERS).max_buf_size(MAX_HEAD_BYTES);
    let shaken = builder.handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = shaken.map_err(|_| Error::PortFailed("it closed the connection"))?;
    let line = PortConnection(tokio::spawn(async {
        // Errors reach the caller through `send_request` or the body.
        let _ = connection.with_upgrades().await;
    }));
    match sender.send_request(request).await {
        Ok(answer) => Ok((answer, line)),
        Err(error) => Err(port_error(used, &error)),
    }
}

/// Maps an error to its cause: the caller, the sandbox or the program.
fn port_error(used: &SandboxInUse, error: &hyper::Error) -> Error {
    if error.is_user() {
        return Error::SlowBody;
    }
    if used.is_ended() {
        return Error::SandboxEnded;
    }
    Error::PortFailed(if error.is_parse() { "it is not HTTP" } else { "it closed the connection" })
}

/// Waits for a response, up to `patience` after the last part of the request was sent.
async fn with_timeout<T>(
    asking: impl Future<Output = Result<T, Error>>,
    mut progress: watch::Receiver<Instant>,
    patience: Duration,
) -> Result<T, Error> {
    let mut asking = std::pin::pin!(asking);
    loop {
        let last = *progress.borrow_and_update();
        tokio::select! {
            biased;
            answer = asking.as_mut() => return answer,
            // Fails once the request is complete and its sender is dropped.
            Ok(()) = progress.changed() => {}
            () = sleep_until(last + patience) => return Err(Error::PortTimeout),
        }
    }
}

/// Returns the body of a response. Holds what it needs until it ends, and omits trailers.
fn streamed(body: Incoming, kept: (SandboxInUse, PortConnection, StreamSlot)) -> Body {
    Body::from_stream(body.into_data_stream().map(move |piece| {
        let _ = &kept;
        piece
    }))
}

/// Copies bytes in both directions until either side or the sandbox ends. A WebSocket is never half-closed.
async fn tunnel(client: OnUpgrade, program: OnUpgrade, kept: (SandboxInUse, PortConnection, StreamSlot)) {
    let talking = async {
        let (client, program) = tokio::try_join!(client, program)?;
        let (mut from_client, mut to_client) = split(TokioIo::new(client));
        let (mut from_program, mut to_program) = split(TokioIo::new(program));
        tokio::select! {
            _ = copy(&mut from_client, &mut to_program) => {}
            _ = copy(&mut from_program, &mut to_client) => {}
        }
        // Fails if the client is already gone.
        let _ = to_client.shutdown().await;
        Ok::<_, hyper::Error>(())
    };
    tokio::select! {
        _ = talking => {}
        () = kept.0.wait_for_end() => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_after_the_port_is_unchanged() {
        let at = |rest: &str| {
            let uri: Uri = format!("/v1/sandboxes/sbx_1/ports/80{rest}").parse().unwrap();
            let way = PortPath::parse(&uri).unwrap();
            assert_eq!((way.id, way.port().unwrap()), ("sbx_1", 80));
            way.target(&uri).unwrap().map(|target| target.to_string())
        };
        assert_eq!(at(""), None);
        assert_eq!(at("?a=b"), None);
        for same in ["/", "/?a=%2F", "/a%2Fb//c/../d;x?y=%20&z", "//evil.test/x", "/%2e%2e/%ff", "/?"] {
            assert_eq!(at(same).as_deref(), Some(same));
        }
        let location =
            |text: &str| redirect_with_slash(&text.parse().unwrap()).headers()[header::LOCATION].clone();
        assert_eq!(location("/v1/sandboxes/s/ports/80?a=%20"), "/v1/sandboxes/s/ports/80/?a=%20");
    }
}
