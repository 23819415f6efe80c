//! `…/ports/{port}`: requests to a program that listens on a port of the sandbox's loopback interface.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};

use crate::app_state::AppState;
use crate::error::Error;
use crate::http::callers::SandboxCaller;
use crate::sandboxes::lifecycle;
use crate::sandboxes::port_proxy::{self, PortRequest};

/// A request of any method. Each form of the path has a function of its own for the API document.
type PortCall = (State<Arc<AppState>>, SandboxCaller, Request);

/// Redirects a request of any method to the URL with a slash at its end.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/ports/{port}", tag = "ports",
    params(("id" = String, Path, description = "Sandbox id"), ("port" = u16, Path, description = "Port number")),
    responses(
        (status = 308, description = "The URL with a slash, because relative links of a page start at its last one"),
        (status = 404, description = "No such sandbox in this tenant"),
    )
)]
pub(crate) async fn redirect(call: PortCall) -> Result<Response, Error> {
    pass(call).await
}

/// Forwards a request of any method to the root of a port of a sandbox, and returns the response.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/ports/{port}/", tag = "ports",
    params(("id" = String, Path, description = "Sandbox id"), ("port" = u16, Path, description = "Port number")),
    responses(
        (status = "default", description = "The program's response"),
        (status = 404, description = "No such sandbox in this tenant"),
        (status = 409, description = "No program listens on this port, or the sandbox is paused"),
        (status = 502, description = "The program does not answer in HTTP"),
        (status = 504, description = "The program did not answer in time"),
    )
)]
pub(crate) async fn pass_root(call: PortCall) -> Result<Response, Error> {
    pass(call).await
}

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
    (State(state), SandboxCaller(caller), request): PortCall,
) -> Result<Response, Error> {
    // A response may last arbitrarily long, so it needs a stream slot.
    let slot = state.streams.open(&caller.tenant)?;
    let path = PortPath::parse(request.uri())?;
    let used = lifecycle::find(&state, &caller, path.id).await?;
    let port = path.port()?;
    let Some(target) = path.target(request.uri())? else { return Ok(redirect_with_slash(request.uri())) };
    let prefix = format!("/v1/sandboxes/{}/ports/{port}", used.id);
    PortRequest { used, port, target, prefix, slot }.forward(request, state.settings.body_timeout).await
}

/// Gives every response of a port a policy that separates its page from this server's site. Also applies to
/// errors, which are shown at the page's URL.
pub(crate) async fn add_sandbox_policy(mut response: Response) -> Response {
    port_proxy::add_sandbox_policy(response.headers_mut());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_after_the_port_is_unchanged() {
        let at = |rest: &str| {
            let uri: Uri = format!("/v1/sandboxes/sbx_1/ports/80{rest}").parse().unwrap();
            let path = PortPath::parse(&uri).unwrap();
            assert_eq!((path.id, path.port().unwrap()), ("sbx_1", 80));
            path.target(&uri).unwrap().map(|target| target.to_string())
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
