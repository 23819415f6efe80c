//! Proxies HTTP and WebSocket requests to a program that listens on a port of the sandbox's loopback
//! interface.
//!
//! ```text
//! caller ── request, without the caller's credentials ───────▶ open_port ─▶ 127.0.0.1:port inside
//!        ◀─ response, without headers reserved to this site ──┘            one connection per request
//! ```
//!
//! The responses come from a tenant's program, but under this server's name: `proxy_headers.rs` removes
//! headers it must not set. A route that serves them adds [`add_sandbox_policy`], and takes no cookie for a
//! credential: such a page never shares an origin with a session.

use std::future::Future;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{StatusCode, Uri};
use axum::response::Response;
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

use super::live_sandbox::SandboxInUse;
use super::proxy_headers;
use super::transfer::IdleTimeoutBody;
use crate::connection::{MAX_HEAD_BYTES, MAX_HEADERS};
use crate::error::Error;
use crate::http::problem::PassThrough;
use crate::streams::StreamSlot;

pub(crate) use super::proxy_headers::add_sandbox_policy;

/// One request to a port.
#[derive(Debug)]
pub(crate) struct PortRequest {
    pub(crate) used: SandboxInUse,
    pub(crate) port: u16,
    /// The request target for the program.
    pub(crate) target: Uri,
    /// The part of the path before the target, for `X-Forwarded-Prefix`.
    pub(crate) prefix: String,
    pub(crate) slot: StreamSlot,
}

impl PortRequest {
    /// Forwards a request, whose body may stall for `idle_timeout`, and returns the response.
    pub(crate) async fn forward(
        self,
        mut request: Request,
        idle_timeout: Duration,
    ) -> Result<Response, Error> {
        let client = proxy_headers::is_websocket(request.headers()).then(|| hyper::upgrade::on(&mut request));
        let time_limit = self.used.admitted.plan.limits.timeout;
        let (mut head, body) = request.into_parts();
        head.extensions.clear();
        head.uri = self.target.clone();
        head.version = hyper::Version::HTTP_11;
        proxy_headers::prepare_request_headers(&mut head.headers, self.port, &self.prefix, client.is_some());
        let body = IdleTimeoutBody::new(body, idle_timeout);
        let progress = body.progress();
        let asking = send_request(&self.used, self.port, hyper::Request::from_parts(head, body));
        let (mut answer, connection) = with_timeout(asking, progress, time_limit).await?;
        proxy_headers::check_framing(&answer, client.is_some())?;
        if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
            let program = hyper::upgrade::on(&mut answer);
            let Some(client) = client else { return Err(Error::Internal) };
            tokio::spawn(tunnel(client, program, (self.used, connection, self.slot)));
            return Ok(prepare_response(answer.map(|_| Body::empty()), true));
        }
        let kept = (self.used, connection, self.slot);
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
    let connection = PortConnection(tokio::spawn(async {
        // Errors reach the caller through `send_request` or the body.
        let _ = connection.with_upgrades().await;
    }));
    match sender.send_request(request).await {
        Ok(answer) => Ok((answer, connection)),
        Err(error) => Err(port_error(used, &error)),
    }
}

/// Maps an error to its cause: the caller, the sandbox or the program.
fn port_error(used: &SandboxInUse, error: &hyper::Error) -> Error {
    if error.is_user() {
        return Error::SlowBody;
    }
    if used.is_ended() {
        return used.ended_error();
    }
    Error::PortFailed(if error.is_parse() { "it is not HTTP" } else { "it closed the connection" })
}

/// Waits for a response, up to `time_limit` after the last part of the request was sent.
async fn with_timeout<T>(
    asking: impl Future<Output = Result<T, Error>>,
    mut progress: watch::Receiver<Instant>,
    time_limit: Duration,
) -> Result<T, Error> {
    let mut asking = std::pin::pin!(asking);
    loop {
        let last = *progress.borrow_and_update();
        tokio::select! {
            biased;
            answer = asking.as_mut() => return answer,
            // Fails once the request is complete and its sender is dropped.
            Ok(()) = progress.changed() => {}
            () = sleep_until(last + time_limit) => return Err(Error::PortTimeout),
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
