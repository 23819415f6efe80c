//! A dialect: one HTTP API over the server's operations. `dialects/mod.rs` lists all of them.

use std::sync::Arc;

use axum::Router;
use axum::http::{HeaderMap, Uri, header};
use axum::response::Response;

use super::request_id::RequestId;
use crate::app_state::AppState;
use crate::error::Error;

/// An HTTP API over the server's operations.
#[derive(Debug)]
pub(crate) struct Dialect {
    pub(crate) name: &'static str,
    /// The path below which it is served on the main port: empty for the root, `None` if it is not served
    /// there.
    pub(crate) prefix: Option<&'static str>,
    /// Whether it can have a listener of its own, where it is served at the root.
    pub(crate) own_listener: bool,
    /// Returns the API key in a request; `None` without one. A malformed key is a key that no tenant has, so
    /// that it is refused even where no key is needed. A cookie is never a key: pages of tenants' programs
    /// are served under the same host name.
    pub(crate) key: fn(&HeaderMap, &Uri) -> Option<String>,
    /// Returns the status, the body and the headers of an error response. Headers that every client
    /// understands, such as `Retry-After`, are there already.
    pub(crate) render_error: fn(&Error, &RequestId) -> Response,
    /// Whether the `Origin` of every request is checked, also of one that only reads.
    pub(crate) checks_all_origins: bool,
    /// Response headers that pages of allowed origins may read.
    pub(crate) exposed_headers: &'static [&'static str],
    /// Returns its routes, with paths below the prefix.
    pub(crate) routes: fn(&Arc<AppState>) -> Router<Arc<AppState>>,
}

/// Returns the key of `Authorization: Bearer KEY`.
pub(crate) fn bearer_key(headers: &HeaderMap, _uri: &Uri) -> Option<String> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().unwrap_or_default();
    match value.split_once(' ') {
        Some((scheme, key)) if scheme.eq_ignore_ascii_case("bearer") => Some(key.trim().to_owned()),
        _ => Some(String::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_malformed_header_is_not_a_missing_key() {
        let key = |value: &'static [u8]| {
            let value = axum::http::HeaderValue::from_bytes(value).unwrap();
            bearer_key(&HeaderMap::from_iter([(header::AUTHORIZATION, value)]), &Uri::default())
        };
        assert_eq!(bearer_key(&HeaderMap::new(), &Uri::default()), None);
        assert_eq!(key(b"bearer  bj_1 ").as_deref(), Some("bj_1"));
        for malformed in [&b"bj_1"[..], b"Basic bj_1", b"Bearer", b"", b"Bearer \xff"] {
            assert_eq!(key(malformed).as_deref(), Some(""), "{malformed:?}");
        }
    }
}
