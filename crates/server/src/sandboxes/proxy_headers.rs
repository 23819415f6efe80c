//! Filters the headers between a caller and a tenant's program.
//!
//! A program answers under this server's name, and browsers apply some headers to a whole site. Headers about
//! the program's own page are forwarded; headers about the site are not.

use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::{Response, StatusCode};

use crate::error::Error;

/// Gives a tenant's page an opaque origin, different from this server's and from other pages'.
const SANDBOX_POLICY: HeaderValue = HeaderValue::from_static("sandbox allow-scripts allow-forms");

/// Hop-by-hop headers (RFC 9110, 7.6.1).
const HOP_BY_HOP: [&str; 8] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    // Answered by this server, when it starts to read the body.
    "expect",
];

/// Request headers that a program must not see: credentials of this server, sent by the caller or its
/// browser.
const CREDENTIAL_HEADERS: [&str; 3] = ["authorization", "cookie", "cookie2"];

/// Response headers that a program must not set, because they affect the whole site or a proxy in front of
/// it.
const FORBIDDEN_HEADERS: [&str; 28] = [
    // Cookies of this site, which would reach other tenants' pages or the console.
    "set-cookie",
    "set-cookie2",
    // Deletes the site's data in the browser.
    "clear-site-data",
    // Change how browsers connect to this host, for months.
    "strict-transport-security",
    "public-key-pins",
    "expect-ct",
    // Redirect clients of this host to another server.
    "alt-svc",
    "alt-used",
    // Widens the scope of a service worker beyond its own directory.
    "service-worker-allowed",
    // Make browsers send reports about this site to a third party.
    "nel",
    "report-to",
    "reporting-endpoints",
    // Change what browsers send, store and share for this site.
    "accept-ch",
    "critical-ch",
    "origin-agent-cluster",
    "origin-trial",
    "use-as-dictionary",
    "set-login",
    "secure-session-registration",
    "sec-session-registration",
    // Prompts for a password under this server's name.
    "www-authenticate",
    "authentication-info",
    // Commands to a proxy in front, which nginx would answer with one of its own files.
    "x-sendfile",
    "x-lighttpd-send-file",
    "x-reproxy-url",
    "surrogate-control",
    "cdn-cache-control",
    // Set by this server.
    "x-request-id",
];

/// Prefixes of such headers: CORS permissions, and commands to proxies such as nginx.
const FORBIDDEN_PREFIXES: [&str; 3] = ["access-control-", "proxy-", "x-accel-"];

/// Returns whether a request asks for a WebSocket, the only supported upgrade.
pub(super) fn is_websocket(headers: &HeaderMap) -> bool {
    let has = |name, wanted: &str| {
        let values = headers.get_all(name).into_iter().filter_map(|value: &HeaderValue| value.to_str().ok());
        values.flat_map(|value| value.split(',')).any(|token| token.trim().eq_ignore_ascii_case(wanted))
    };
    has(header::CONNECTION, "upgrade") && has(header::UPGRADE, "websocket")
}

/// Prepares the headers of a request for the program.
pub(super) fn prepare_request_headers(headers: &mut HeaderMap, port: u16, prefix: &str, upgrade: bool) {
    let chunked = headers.contains_key(header::TRANSFER_ENCODING);
    drop_hops(headers);
    drop_all(headers, |name| CREDENTIAL_HEADERS.contains(&name) || name.starts_with("proxy-"));
    if chunked {
        headers.insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
    if upgrade {
        set_upgrade_headers(headers);
    }
    if let Some(host) = headers.remove(header::HOST) {
        headers.insert("x-forwarded-host", host);
    }
    // Both values consist of ASCII letters, digits and a few signs, so the conversion cannot fail.
    for (name, value) in [("host", format!("localhost:{port}")), ("x-forwarded-prefix", prefix.to_owned())] {
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(name, value);
        }
    }
}

/// Prepares the headers of a response for the caller.
pub(super) fn prepare_response_headers(headers: &mut HeaderMap, upgrade: bool) {
    drop_hops(headers);
    drop_all(headers, |name| {
        FORBIDDEN_HEADERS.contains(&name) || FORBIDDEN_PREFIXES.iter().any(|start| name.starts_with(start))
    });
    if upgrade {
        set_upgrade_headers(headers);
    }
}

/// Adds a separate policy header. Multiple policies only restrict each other, so the program's own cannot
/// weaken it.
pub(crate) fn add_sandbox_policy(headers: &mut HeaderMap) {
    headers.append(header::CONTENT_SECURITY_POLICY, SANDBOX_POLICY);
}

/// Refuses a response whose length is ambiguous (response splitting), and an upgrade that was not requested.
pub(super) fn check_framing<B>(answer: &Response<B>, upgrade: bool) -> Result<(), Error> {
    let headers = answer.headers();
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).into_iter();
    let lengths = headers.get_all(header::CONTENT_LENGTH).into_iter().count();
    let plain = |coding: &HeaderValue| coding.as_bytes().eq_ignore_ascii_case(b"chunked");
    let framed = match (codings.next(), codings.next()) {
        (None, None) => lengths <= 1 && headers.get(header::CONTENT_LENGTH).is_none_or(is_number),
        (Some(coding), None) => lengths == 0 && plain(coding),
        _ => false,
    };
    if !framed {
        return Err(Error::PortFailed("its length is ambiguous"));
    }
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS && !(upgrade && self::is_websocket(headers)) {
        return Err(Error::PortFailed("it switched to a protocol that was not requested"));
    }
    Ok(())
}

fn is_number(value: &HeaderValue) -> bool {
    !value.is_empty() && value.as_bytes().iter().all(u8::is_ascii_digit)
}

fn set_upgrade_headers(headers: &mut HeaderMap) {
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
}

/// Removes hop-by-hop headers, known ones and those listed in `Connection`. Messages are framed anew.
fn drop_hops(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .into_iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        // A content length is not hop-by-hop, even if listed.
        .filter(|name| *name != header::CONTENT_LENGTH)
        .collect();
    for name in named {
        headers.remove(name);
    }
    drop_all(headers, |name| HOP_BY_HOP.contains(&name));
}

fn drop_all(headers: &mut HeaderMap, unwanted: impl Fn(&str) -> bool) {
    let names: Vec<HeaderName> = headers.keys().filter(|name| unwanted(name.as_str())).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        let mut all = HeaderMap::new();
        pairs.iter().map(pair).for_each(|(name, value)| _ = all.append(name, value));
        all
    }

    fn names(headers: &HeaderMap) -> Vec<&str> {
        let mut names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn credentials_and_hop_by_hop_headers_are_removed() {
        let mut all = HeaderMap::new();
        for name in
            CREDENTIAL_HEADERS.into_iter().chain(["proxy-authorization", "proxy-x", "te", "x-hop", "accept"])
        {
            all.insert(HeaderName::from_static(name), HeaderValue::from_static("1"));
        }
        all.insert(header::CONNECTION, HeaderValue::from_static("close, X-Hop"));
        all.insert(header::HOST, HeaderValue::from_static("jar.test"));
        prepare_request_headers(&mut all, 80, "/v1/x", false);
        assert_eq!(names(&all), ["accept", "host", "x-forwarded-host", "x-forwarded-prefix"]);
        assert_eq!(
            (&all["host"], &all["x-forwarded-host"]),
            (&"localhost:80".parse().unwrap(), &"jar.test".parse().unwrap())
        );
    }

    #[test]
    fn site_wide_headers_are_removed() {
        let mut all = headers(&[
            ("content-type", "text/html"),
            ("content-security-policy", "sandbox allow-same-origin"),
        ]);
        for name in FORBIDDEN_HEADERS.into_iter().chain([
            "access-control-allow-origin",
            "x-accel-redirect",
            "proxy-authenticate",
        ]) {
            all.insert(HeaderName::from_static(name), HeaderValue::from_static("1"));
        }
        prepare_response_headers(&mut all, false);
        add_sandbox_policy(&mut all);
        assert_eq!(names(&all), ["content-security-policy", "content-type"]);
        assert_eq!(all.get_all(header::CONTENT_SECURITY_POLICY).iter().count(), 2);
    }

    #[test]
    fn ambiguous_lengths_are_refused() {
        let answer = |pairs: &[(&'static str, &'static str)], status: u16, upgraded| {
            let mut answer = Response::new(());
            *answer.headers_mut() = headers(pairs);
            *answer.status_mut() = StatusCode::from_u16(status).unwrap();
            check_framing(&answer, upgraded).is_ok()
        };
        assert!(answer(&[], 200, false) && answer(&[("content-length", "5")], 200, false));
        assert!(answer(&[("transfer-encoding", "Chunked")], 200, false));
        for wrong in [
            &[("content-length", "5"), ("content-length", "5")][..],
            &[("content-length", "5, 5")],
            &[("content-length", "+5")],
            &[("content-length", "5"), ("transfer-encoding", "chunked")],
            &[("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")],
            &[("transfer-encoding", "gzip, chunked")],
            &[("transfer-encoding", "xchunked")],
        ] {
            assert!(!answer(wrong, 200, false), "{wrong:?}");
        }
        let websocket = [("connection", "Upgrade"), ("upgrade", "WebSocket")];
        assert!(answer(&websocket, 101, true));
        assert!(!answer(&websocket, 101, false) && !answer(&[], 101, true));
    }
}
