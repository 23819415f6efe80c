//! `belljar sandbox ports`: forwards HTTP and WebSocket to a port of a sandbox, and lists listening ports.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::sleep;

use super::{call, sandbox_url};
use crate::error::CliError;
use crate::os::{self, Interrupts};
use crate::remote::http::{Body, Server, bytes};
use crate::say;

/// Maximum number of concurrent connections.
const MAX_CONNECTIONS: usize = 256;
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(50);

/// Headers of a single connection, or between this machine and its client, that are not forwarded.
const DROPPED_HEADERS: [HeaderName; 8] = [
    header::CONNECTION,
    header::UPGRADE,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::PROXY_AUTHORIZATION,
    header::HOST,
    header::COOKIE,
];

pub(super) fn forward(
    server: &Server,
    id: &str,
    port: u16,
    listen: SocketAddr,
    json: bool,
) -> Result<u8, CliError> {
    let base = sandbox_url(id, &format!("/ports/{port}"));
    let relay =
        Arc::new(PortRelay { server: server.clone(), base, loopback_only: listen.ip().is_loopback() });
    os::runtime()?.block_on(async {
        let mut interrupts = Interrupts::listen()?;
        // Report a missing sandbox now, not when a page is opened.
        server.call(Method::GET, &sandbox_url(id, ""), None).await?;
        let failed = |error: io::Error| CliError::host(format!("cannot listen on {listen}: {error}"));
        let listener = TcpListener::bind(listen).await.map_err(failed)?;
        let url = format!("http://{}", listener.local_addr().map_err(failed)?);
        say::answer(&if json { json!({"url": url}).to_string() } else { url });
        tokio::select! {
            () = accept(&listener, &relay) => Ok(0),
            () = interrupts.next() => Ok(130),
        }
    })
}

async fn accept(listener: &TcpListener, relay: &Arc<PortRelay>) {
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    while let Ok(place) = Arc::clone(&room).acquire_owned().await {
        let Ok((stream, _)) = listener.accept().await else {
            // The peer may be gone before it is accepted, or file descriptors short for a moment; neither is
            // a reason to stop.
            sleep(ACCEPT_RETRY_PAUSE).await;
            continue;
        };
        let relay = Arc::clone(relay);
        tokio::spawn(async move {
            serve(stream, relay).await;
            drop(place);
        });
    }
}

async fn serve(stream: TcpStream, relay: Arc<PortRelay>) {
    let service = service_fn(|request| {
        let relay = Arc::clone(&relay);
        async move { Ok::<_, Infallible>(relay.pass(request).await) }
    });
    // An error on a connection concerns only its two ends.
    let _ended = http1::Builder::new().serve_connection(TokioIo::new(stream), service).with_upgrades().await;
}

struct PortRelay {
    server: Server,
    /// URL path of the port on the server.
    base: String,
    /// Whether only this machine can connect.
    loopback_only: bool,
}

impl PortRelay {
    async fn pass(&self, mut request: Request<Incoming>) -> Response<Body> {
        if self.loopback_only && !names_this_machine(request.headers()) {
            return plain_response(StatusCode::MISDIRECTED_REQUEST, "use 127.0.0.1 or localhost");
        }
        remove_own_origin(request.headers_mut());
        let upgrade = upgrade_protocol(request.headers());
        let ours = upgrade.is_some().then(|| hyper::upgrade::on(&mut request));
        let (head, body) = request.into_parts();
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        let Ok(uri) = format!("{}{path}", self.base).parse() else {
            return plain_response(StatusCode::BAD_REQUEST, "no such path");
        };
        let mut inner = Request::new(body.map_err(io::Error::other).boxed_unsync());
        (*inner.method_mut(), *inner.uri_mut()) = (head.method, uri);
        *inner.headers_mut() = forwarded_headers(head.headers, upgrade.as_ref());
        match self.server.forward(inner).await {
            Ok(response) => self.answer(response, ours),
            Err(failure) => plain_response(StatusCode::BAD_GATEWAY, &failure.message),
        }
    }

    fn answer(&self, mut response: Response<Incoming>, ours: Option<OnUpgrade>) -> Response<Body> {
        let upgrade = upgrade_protocol(response.headers());
        if let (StatusCode::SWITCHING_PROTOCOLS, Some(ours)) = (response.status(), ours) {
            tokio::spawn(join(ours, hyper::upgrade::on(&mut response)));
        }
        let (head, body) = response.into_parts();
        let mut outer = Response::new(body.map_err(io::Error::other).boxed_unsync());
        *outer.status_mut() = head.status;
        *outer.headers_mut() = forwarded_headers(head.headers, upgrade.as_ref());
        self.rewrite_location(outer.headers_mut());
        outer
    }

    /// Rewrites a redirect that contains the server's path of the port; here the port is at the root.
    fn rewrite_location(&self, headers: &mut HeaderMap) {
        let place = headers.get(header::LOCATION).and_then(|place| place.to_str().ok());
        let here = place.and_then(|place| place.strip_prefix(&self.base)).map(str::to_owned);
        if let Some(here) = here.filter(|here| here.is_empty() || here.starts_with('/')) {
            let here = if here.is_empty() { "/" } else { &here };
            headers.extend(HeaderValue::from_str(here).map(|here| (header::LOCATION, here)));
        }
    }
}

/// Returns whether the `Host` header names this machine. Another name that resolves here would let its pages
/// read the responses (DNS rebinding).
fn names_this_machine(headers: &HeaderMap) -> bool {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let name = host.rsplit_once(':').filter(|(_, port)| !port.contains(']')).map_or(host, |(name, _)| name);
    name == "localhost" || name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
}

/// Removes the page's own `Origin`. The server refuses requests of other sites, and the page has no origin
/// there.
fn remove_own_origin(headers: &mut HeaderMap) {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let own = text(header::HOST).map(|host| format!("http://{host}"));
    if text(header::ORIGIN).is_some_and(|origin| origin == "null" || Some(origin) == own.as_deref()) {
        headers.remove(header::ORIGIN);
    }
}

/// Returns the protocol that a connection is to be upgraded to.
fn upgrade_protocol(headers: &HeaderMap) -> Option<HeaderValue> {
    let connection = headers.get(header::CONNECTION)?.to_str().ok()?;
    let asked = connection.split(',').any(|word| word.trim().eq_ignore_ascii_case("upgrade"));
    headers.get(header::UPGRADE).filter(|_| asked).cloned()
}

fn forwarded_headers(mut headers: HeaderMap, upgrade: Option<&HeaderValue>) -> HeaderMap {
    for name in DROPPED_HEADERS {
        headers.remove(name);
    }
    headers.remove("keep-alive");
    if let Some(protocol) = upgrade {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, protocol.clone());
    }
    headers
}

async fn join(ours: OnUpgrade, theirs: OnUpgrade) {
    let (Ok(ours), Ok(theirs)) = tokio::join!(ours, theirs) else { return };
    let (mut ours, mut theirs) = (TokioIo::new(ours), TokioIo::new(theirs));
    // Ends as soon as one side ends.
    let _ended = tokio::io::copy_bidirectional(&mut ours, &mut theirs).await;
}

fn plain_response(status: StatusCode, message: &str) -> Response<Body> {
    let mut response = Response::new(bytes(Bytes::from(format!("belljar: {message}\n"))));
    *response.status_mut() = status;
    response
}

pub(super) fn list(server: &Server, id: &str, json: bool) -> Result<u8, CliError> {
    let read = json!({"command": ["cat", "/proc/net/tcp", "/proc/net/tcp6"]});
    let table = call(server, Method::POST, &sandbox_url(id, "/commands"), Some(&read))?;
    let ports = listening_ports(table["stdout"].as_str().unwrap_or_default());
    if json {
        say::answer(&json!({"ports": ports}).to_string());
    } else {
        ports.iter().for_each(|port| say::answer(&port.to_string()));
    }
    Ok(0)
}

/// Returns the listening ports in the kernel's tables.
fn listening_ports(tables: &str) -> BTreeSet<u16> {
    let port = |line: &str| {
        let fields: Vec<_> = line.split_whitespace().take(4).collect();
        let [_, local, _, "0A"] = fields[..] else { return None };
        u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok()
    };
    tables.lines().filter_map(port).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listening_ports_are_parsed() {
        let tables = "  sl  local_address rem_address   st tx_queue\n   \
                      0: 0100007F:1F40 00000000:0000 0A 00000000:00000000\n   \
                      1: 0100007F:1F41 0100007F:1F40 01 00000000:00000000\n   \
                      0: 00000000000000000000000000000000:0050 00000000000000000000000000000000:0000 0A 0:0\n";
        assert_eq!(listening_ports(tables), BTreeSet::from([80, 8_000]));
    }

    #[test]
    fn foreign_hosts_and_origins_are_detected() {
        let of = |host: &'static str, origin: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::from_static(host));
            headers.insert(header::ORIGIN, HeaderValue::from_static(origin));
            let here = names_this_machine(&headers);
            remove_own_origin(&mut headers);
            (here, headers.contains_key(header::ORIGIN))
        };
        assert_eq!(of("127.0.0.1:80", "http://127.0.0.1:80"), (true, false));
        assert_eq!(of("localhost:80", "null"), (true, false));
        assert_eq!(of("[::1]:80", "http://evil.test"), (true, true));
        assert_eq!(of("[::1]", "http://127.0.0.1:81"), (true, true));
        assert_eq!(of("evil.test:80", "http://evil.test:81"), (false, true));
    }

    #[test]
    fn hop_by_hop_headers_are_dropped() {
        let mut headers = HeaderMap::new();
        for (name, value) in
            [("connection", "Upgrade, x"), ("upgrade", "websocket"), ("cookie", "a"), ("x-a", "b")]
        {
            headers.insert(name, HeaderValue::from_static(value));
        }
        let upgrade = upgrade_protocol(&headers);
        let kept = forwarded_headers(headers.clone(), upgrade.as_ref());
        assert_eq!(kept.len(), 3);
        assert_eq!(
            forwarded_headers(headers, None).keys().map(HeaderName::as_str).collect::<Vec<_>>(),
            ["x-a"]
        );
    }
}
