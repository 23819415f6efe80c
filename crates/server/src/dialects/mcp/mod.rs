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

use std::borrow::Cow;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRequest, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::Response;
use axum::routing::post;
use axum::{Extension, Router};
use belljar_store::TenantName;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde::Deserialize;

use self::sessions::{McpSession, McpSessions};
use crate::app_state::AppState;
use crate::authentication::Caller;
use crate::error::Error;
use crate::http::body::JsonBody;
use crate::http::callers::RunCaller;
use crate::http::dialect::{Dialect, bearer_key};
use crate::http::problem::{self, PassThrough};
use crate::uncancellable::run_uncancellable;

pub(crate) static DIALECT: Dialect = Dialect {
    name: "mcp",
    prefix: Some("/mcp"),
    own_listener: true,
    key: bearer_key,
    // For requests that do not reach the protocol; its own errors pass through.
    render_error: problem::render,
    // The protocol requires it.
    checks_all_origins: true,
    exposed_headers: &[SESSION_HEADER],
    routes: |state| {
        let methods = post(send).get(receive).delete(end_session);
        Router::new().route("/", methods.layer(Extension(Arc::new(McpEndpoint::new(state)))))
    },
};

/// Tag of its operations in the OpenAPI document.
pub(crate) const TAG: &str = "mcp";

/// Header that names a session, in requests and in the response that starts it.
const SESSION_HEADER: &str = "mcp-session-id";

/// The MCP service of one listener, and its sessions.
pub(crate) struct McpEndpoint {
    service: StreamableHttpService<belljar_tools::McpServer<McpSession>, LocalSessionManager>,
    sessions: McpSessions,
}

impl McpEndpoint {
    /// Creates the endpoint. Its streams end when the server does.
    fn new(state: &Arc<AppState>) -> Self {
        // The middleware has already checked `Host` and `Origin`, and bodies are read within bounds before
        // they get here.
        let config = StreamableHttpServerConfig::default()
            .disable_allowed_hosts()
            .with_max_request_body_bytes(usize::MAX);
        let ending = config.cancellation_token.clone();
        let (factory, live_executions) = (Arc::downgrade(state), Arc::clone(&state.live_executions));
        let sessions = McpSessions::default();
        let manager = sessions.manager();
        tokio::spawn(async move {
            live_executions.closing().await;
            live_executions.idle().await;
            ending.cancel();
            drop(manager);
        });
        let session = move || {
            factory.upgrade().map(McpSession::new).map(belljar_tools::McpServer).ok_or_else(shut_down_error)
        };
        Self { service: StreamableHttpService::new(session, sessions.manager(), config), sessions }
    }
}

fn shut_down_error() -> std::io::Error {
    std::io::Error::other("the server has shut down")
}

/// A request of any method. Each method has a function of its own for the API document.
type McpCall = (State<Arc<AppState>>, Extension<Arc<McpEndpoint>>, RunCaller, Request);

/// Sends a message of the Model Context Protocol (streamable HTTP transport). The first one, `initialize`, starts
/// a session.
#[utoipa::path(post, path = "/mcp", tag = TAG, request_body = serde_json::Value,
    params(("mcp-session-id" = Option<String>, Header, description = "The session; absent to start one")),
    responses((status = 200, description = "The response: JSON, or events. `mcp-session-id` names a new session",
        body = String, content_type = "text/event-stream"),
        (status = 202, description = "The message needs no response")))]
pub(crate) async fn send(call: McpCall) -> Result<Response, Error> {
    handle(call).await
}

/// Opens the event stream of an MCP session, for messages from the server.
#[utoipa::path(get, path = "/mcp", tag = TAG,
    params(("mcp-session-id" = String, Header, description = "The session")),
    responses((status = 200, description = "The events, until the client disconnects",
        body = String, content_type = "text/event-stream")))]
pub(crate) async fn receive(call: McpCall) -> Result<Response, Error> {
    handle(call).await
}

/// Ends an MCP session.
#[utoipa::path(delete, path = "/mcp", tag = TAG,
    params(("mcp-session-id" = String, Header, description = "The session")),
    responses((status = 204, description = "The session has ended")))]
pub(crate) async fn end_session(call: McpCall) -> Result<Response, Error> {
    handle(call).await
}

async fn handle(
    (State(state), Extension(endpoint), RunCaller(caller), request): McpCall,
) -> Result<Response, Error> {
    if state.live_executions.is_closed() {
        return Err(Error::ShuttingDown);
    }
    let session = session_id(request.headers());
    if let Some(session) = &session {
        endpoint.sessions.check(session, &caller.tenant)?;
    }
    let tenant = caller.tenant.clone();
    // A GET opens an event stream that lasts until the client disconnects.
    let slot = if request.method() == Method::GET { Some(state.streams.open(&tenant)?) } else { None };
    let ends = request.method() == Method::DELETE;
    let (request, begins) = prepare_request(&state, caller, request).await?;
    let mut response = if begins {
        run_uncancellable(start_session(Arc::clone(&endpoint), tenant, request)).await?
    } else {
        endpoint.service.handle(request).await.map(Body::new)
    };
    if let Some(session) = session.filter(|_| ends) {
        endpoint.sessions.end(&session);
        // Clients expect this status for an ended session.
        *response.status_mut() = StatusCode::NO_CONTENT;
    }
    // Errors are in the format of the protocol, so the middleware must not replace them.
    response.extensions_mut().insert(PassThrough);
    Ok(match slot {
        Some(slot) => slot.hold_during(response),
        None => response,
    })
}

/// Starts a session if the limits allow it. Runs uncancellably, so that every session has an owner.
async fn start_session(
    endpoint: Arc<McpEndpoint>,
    tenant: TenantName,
    request: Request,
) -> Result<Response, Error> {
    let slot = endpoint.sessions.reserve_slot(tenant).await?;
    let response = endpoint.service.handle(request).await.map(Body::new);
    if let Some(session) = session_id(response.headers()) {
        slot.activate(session);
    }
    Ok(response)
}

/// Reads the body within bounds and replaces the key by the caller. Also returns whether the request starts a
/// session.
async fn prepare_request(
    state: &Arc<AppState>,
    caller: Caller,
    request: Request,
) -> Result<(Request, bool), Error> {
    let (mut parts, body) = request.into_parts();
    parts.headers.remove(header::AUTHORIZATION);
    let mut request = Request::from_parts(parts.clone(), body);
    let mut begins = false;
    if parts.method == Method::POST {
        let JsonBody { bytes, reservation } = JsonBody::from_request(request, state).await?;
        belljar_engine::json::check_shape(&bytes)?;
        begins = begins_session(&bytes);
        // The memory counts for the tenant until the request has been handled.
        parts.extensions.insert(Arc::new(reservation.into_request()?));
        request = Request::from_parts(parts, Body::from(bytes));
    }
    request.extensions_mut().insert(caller);
    Ok((request, begins))
}

fn begins_session(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Message<'a> {
        #[serde(borrow)]
        method: Cow<'a, str>,
    }
    // An unreadable message counts as starting a session, however the MCP library interprets it.
    serde_json::from_slice::<Message<'_>>(body).map_or(true, |message| message.method == "initialize")
}

fn session_id(headers: &HeaderMap) -> Option<String> {
    headers.get(SESSION_HEADER).and_then(|value| value.to_str().ok()).map(str::to_owned)
}
