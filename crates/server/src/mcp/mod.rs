//! `/mcp`: the tools over MCP's streamable HTTP transport, authenticated by API key.
//!
//! ```text
//! POST initialize ─▶ a session: its tenant, and the sandboxes opened in it
//!   ─▶ its tool calls ─▶ TenantBackend ─▶ the same run queue, quotas and records as /v1
//! DELETE, or idle for too long ─▶ the session ends, and its sandboxes with it
//! ```
//!
//! Since its revision 2026-07-28, the protocol has no sessions. Sandboxes then end when their lifetime does,
//! like those of `/v1`. A session of another tenant is reported as an unknown one.

mod sessions;
mod tenant_backend;

use std::borrow::Cow;
use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::{FromRequest, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::Response;
use belljar_store::TenantName;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde::Deserialize;

use self::sessions::McpSession;
use crate::app_state::AppState;
use crate::authentication::{Caller, RunCaller};
use crate::body::JsonBody;
use crate::error::Error;
use crate::sandboxes::PassThrough;
use crate::uncancellable::run_uncancellable;

pub(crate) use sessions::McpSessions;
pub(crate) use tenant_backend::TenantBackend;

/// Header that names a session, in requests and in the response that starts it.
const SESSION_HEADER: &str = "mcp-session-id";

/// The MCP service, created once per server.
pub(crate) type McpService = StreamableHttpService<belljar_tools::McpServer<McpSession>, LocalSessionManager>;

/// Creates the MCP service. Its streams end when the server does.
pub(crate) fn service(world: &Arc<AppState>) -> McpService {
    // The middleware has already checked `Host` and `Origin`, and bodies are read within bounds before they
    // get here.
    let config =
        StreamableHttpServerConfig::default().disable_allowed_hosts().with_max_request_body_bytes(usize::MAX);
    let ending = config.cancellation_token.clone();
    let (factory, last) = (Arc::downgrade(world), Arc::clone(world));
    tokio::spawn(async move {
        last.live.closing().await;
        last.live.idle().await;
        ending.cancel();
    });
    let desk = move || {
        factory.upgrade().map(McpSession::new).map(belljar_tools::McpServer).ok_or_else(shut_down_error)
    };
    StreamableHttpService::new(desk, world.mcp.manager(), config)
}

fn shut_down_error() -> std::io::Error {
    std::io::Error::other("the server has shut down")
}

/// Handles all MCP requests.
pub(crate) async fn pass(
    State(world): State<Arc<AppState>>,
    Extension(service): Extension<Arc<McpService>>,
    RunCaller(caller): RunCaller,
    request: Request,
) -> Result<Response, Error> {
    if world.live.is_closed() {
        return Err(Error::ShuttingDown);
    }
    let session = session_id(request.headers());
    if let Some(session) = &session {
        world.mcp.check(session, &caller.tenant)?;
    }
    let tenant = caller.tenant.clone();
    // A GET opens an event stream that lasts until the client disconnects.
    let place = if request.method() == Method::GET { Some(world.streams.open(&tenant)?) } else { None };
    let ends = request.method() == Method::DELETE;
    let (request, begins) = prepare_request(&world, caller, request).await?;
    let mut response = if begins {
        run_uncancellable(start_session(Arc::clone(&world), service, tenant, request)).await?
    } else {
        service.handle(request).await.map(Body::new)
    };
    if let Some(session) = session.filter(|_| ends) {
        world.mcp.end(&session);
        // Clients expect this status for an ended session.
        *response.status_mut() = StatusCode::NO_CONTENT;
    }
    // Errors are in the format of the protocol, so the middleware must not replace them.
    response.extensions_mut().insert(PassThrough);
    Ok(match place {
        Some(place) => place.hold_during(response),
        None => response,
    })
}

/// Starts a session if the limits allow it. Runs uncancellably, so that every session has an owner.
async fn start_session(
    world: Arc<AppState>,
    service: Arc<McpService>,
    tenant: TenantName,
    request: Request,
) -> Result<Response, Error> {
    let room = world.mcp.reserve_slot(tenant).await?;
    let response = service.handle(request).await.map(Body::new);
    if let Some(session) = session_id(response.headers()) {
        room.activate(session);
    }
    Ok(response)
}

/// Reads the body within bounds and replaces the key by the caller. Also returns whether the request starts a
/// session.
async fn prepare_request(
    world: &Arc<AppState>,
    caller: Caller,
    request: Request,
) -> Result<(Request, bool), Error> {
    let (mut parts, body) = request.into_parts();
    parts.headers.remove(header::AUTHORIZATION);
    let mut request = Request::from_parts(parts.clone(), body);
    let mut begins = false;
    if parts.method == Method::POST {
        let JsonBody { bytes, hold } = JsonBody::from_request(request, world).await?;
        belljar_engine::json::check_shape(&bytes)?;
        begins = begins_session(&bytes);
        // The memory counts for the tenant until the request has been handled.
        parts.extensions.insert(Arc::new(hold.into_request()?));
        request = Request::from_parts(parts, Body::from(bytes));
    }
    request.extensions_mut().insert(caller);
    Ok((request, begins))
}

fn begins_session(message: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Named<'a> {
        #[serde(borrow)]
        method: Cow<'a, str>,
    }
    // An unreadable message counts as starting a session, however the MCP library interprets it.
    serde_json::from_slice::<Named<'_>>(message).map_or(true, |named| named.method == "initialize")
}

fn session_id(headers: &HeaderMap) -> Option<String> {
    headers.get(SESSION_HEADER).and_then(|value| value.to_str().ok()).map(str::to_owned)
}
