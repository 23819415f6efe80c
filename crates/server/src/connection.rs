//! One connection: HTTP/1.1, optionally over TLS. A slow peer is cut off after a timeout: `head_timeout` for
//! the TLS handshake, a request head and an idle connection, `body_timeout` for accepting a write.
//!
//! HTTP/1.1 only: what HTTP/2 would save is small compared with a run, and its request floods need no defense
//! here.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::time::{Sleep, sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::app_state::AppState;
use crate::connections::ConnectionSlot;
use crate::last_answer;
use crate::revocation::ConnectionHandle;
use crate::settings::Settings;

/// Maximum length of a request head.
pub(crate) const MAX_HEAD_BYTES: usize = 64 << 10;
/// How long a client may take to accept the answer to a request whose key became invalid.
const LAST_ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of request headers.
pub(crate) const MAX_HEADERS: usize = 100;

/// Resources that a connection holds until its stream is closed, also after an upgrade to a WebSocket.
#[derive(Debug)]
pub(crate) struct ConnectionResources {
    /// The connection's slot; `None` once the stream is shut down.
    pub(crate) slot: Option<Arc<ConnectionSlot>>,
    /// Tells the server that this connection is still open.
    pub(crate) _alive: mpsc::Sender<()>,
}

/// Serves a connection until it ends. On shutdown, answers the request in progress and closes.
pub(crate) async fn serve(
    stream: TcpStream,
    taken: ConnectionResources,
    handle: Arc<ConnectionHandle>,
    tls: Option<TlsAcceptor>,
    router: Router,
    state: Arc<AppState>,
    mut ending: watch::Receiver<bool>,
) {
    // Send small responses immediately.
    let _ = stream.set_nodelay(true);
    let settings = &state.settings;
    let stream = TimeoutStream::new(stream, taken, Arc::clone(&handle), settings.body_timeout);
    let routes = ConnectionService { routes: TowerToHyperService::new(router), handle };
    let Some(tls) = tls else { return serve_http(stream, routes, settings, ending).await };
    let handshake = timeout(settings.head_timeout, tls.accept(stream));
    let stream = tokio::select! {
        shaken = handshake => shaken,
        // No request is in progress yet.
        _ = ending.wait_for(|ending| *ending) => return,
    };
    if let Ok(Ok(stream)) = stream {
        serve_http(stream, routes, settings, ending).await;
    }
}

async fn serve_http(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    routes: ConnectionService,
    settings: &Settings,
    mut ending: watch::Receiver<bool>,
) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(settings.head_timeout)
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(MAX_HEADERS)
        .serve_connection(TokioIo::new(stream), routes)
        .with_upgrades();
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        // Connection errors concern only the client.
        _ = connection.as_mut() => return,
        _ = ending.wait_for(|ending| *ending) => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

/// The router for one connection. Adds the connection's handle to every request.
#[derive(Debug)]
struct ConnectionService {
    routes: TowerToHyperService<Router>,
    handle: Arc<ConnectionHandle>,
}

impl Service<Request<Incoming>> for ConnectionService {
    type Response = <TowerToHyperService<Router> as Service<Request<Incoming>>>::Response;
    type Error = <TowerToHyperService<Router> as Service<Request<Incoming>>>::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        request.extensions_mut().insert(Arc::clone(&self.handle));
        Box::pin(last_answer::answer(Arc::clone(&self.handle), self.routes.call(request)))
    }
}

/// A stream that fails if its peer accepts no data for too long, or once the connection must end. If its request can
/// be answered then, it reads nothing more, and fails after [`LAST_ANSWER_TIMEOUT`].
#[derive(Debug)]
struct TimeoutStream {
    stream: TcpStream,
    write_timeout: Duration,
    deadline: Option<Pin<Box<Sleep>>>,
    last_answer_deadline: Option<Pin<Box<Sleep>>>,
    handle: Arc<ConnectionHandle>,
    taken: ConnectionResources,
}

impl TimeoutStream {
    fn new(
        stream: TcpStream,
        taken: ConnectionResources,
        handle: Arc<ConnectionHandle>,
        time_limit: Duration,
    ) -> Self {
        Self { stream, write_timeout: time_limit, deadline: None, last_answer_deadline: None, handle, taken }
    }

    /// Returns whether the connection must end after an answer; fails if it must end now.
    fn must_end(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        if !self.handle.poll_closed(cx) {
            return Ok(false);
        }
        let deadline = self.last_answer_deadline.get_or_insert_with(|| Box::pin(sleep(LAST_ANSWER_TIMEOUT)));
        if !self.handle.can_answer() || deadline.as_mut().poll(cx).is_ready() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        Ok(true)
    }

    /// Measures the time since the first pending write, until a write makes progress.
    fn with_write_timeout<T>(
        &mut self,
        cx: &mut Context<'_>,
        poll: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            self.deadline = None;
            return poll;
        }
        let time_limit = self.write_timeout;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep(time_limit)));
        match deadline.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for TimeoutStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.must_end(cx)? {
            true if self.handle.is_answered() => Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into())),
            true => Poll::Pending,
            false => Pin::new(&mut self.stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for TimeoutStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.must_end(cx)?;
        let poll = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.with_write_timeout(cx, poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.must_end(cx)?;
        let poll = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.with_write_timeout(cx, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A client that sees the end may reconnect at once, and must find the slot free.
        self.taken.slot = None;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
