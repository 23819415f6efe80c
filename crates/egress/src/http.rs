//! HTTP as sent to a proxy, parsed strictly: a request that two parsers could read differently is refused.
//!
//! One request per connection. A plain request is forwarded with a head rebuilt from the parsed fields and
//! with exactly the announced body: nothing after it reaches the server.

use belljar_engine::network::{TargetHost, parse_port};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::proxy_request::{ProxyProtocol, ProxyRequest};

const MAX_HEADERS: usize = 100;
/// Headers between client and proxy only, and those that are rebuilt.
const HOP_BY_HOP_HEADERS: &[&str] = &[
    "connection",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "upgrade",
];

/// Builds a response of the proxy itself.
pub(crate) fn build_response(status: &str, message: &str) -> Vec<u8> {
    let body = format!("belljar: {message}\n");
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

pub(crate) const CONNECT_RESPONSE: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

fn bad_request(message: &str) -> Vec<u8> {
    build_response("400 Bad Request", message)
}

/// Reads and parses a request head. An error holds the answer to send instead.
pub(crate) async fn read_request(client: &mut TcpStream, bound: usize) -> Result<ProxyRequest, Vec<u8>> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        if bytes.len() >= bound {
            return Err(build_response(
                "431 Request Header Fields Too Large",
                "the request head is too long",
            ));
        }
        let room = (bound - bytes.len()).min(4 << 10);
        let mut reader = client.take(room as u64);
        match reader.read_buf(&mut bytes).await {
            Ok(0) | Err(_) => return Err(Vec::new()),
            Ok(_) => {}
        }
    };
    let early = bytes.split_off(end);
    let mut request = parse_head(&bytes)?;
    request.early = early;
    Ok(request)
}

/// Parses a request head.
fn parse_head(head: &[u8]) -> Result<ProxyRequest, Vec<u8>> {
    // Lines end in CR LF, and neither character occurs elsewhere.
    let text = std::str::from_utf8(head).map_err(|_| bad_request("the request head is not UTF-8"))?;
    if text.replace("\r\n", "").contains(['\r', '\n', '\0']) {
        return Err(bad_request("the request head has a stray line break or NUL"));
    }
    let mut fields = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut fields);
    match request.parse(head) {
        Ok(httparse::Status::Complete(len)) if len == head.len() => {}
        _ => return Err(bad_request("not a valid HTTP/1.1 request")),
    }
    let (Some(method), Some(url)) = (request.method, request.path) else {
        return Err(bad_request("not a valid HTTP/1.1 request"));
    };
    if !url.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(bad_request("the request target has invalid characters"));
    }
    let body = body_length(request.headers)?;
    if method == "CONNECT" {
        if body != 0 {
            return Err(bad_request("CONNECT must not have a body"));
        }
        let (target, port) = parse_authority(url)?;
        let port = port.ok_or_else(|| bad_request("CONNECT needs HOST:PORT"))?;
        return Ok(ProxyRequest { target, port, protocol: ProxyProtocol::Connect, early: Vec::new() });
    }
    let (authority_text, path) = split_absolute_url(url)?;
    let (target, port) = parse_authority(authority_text)?;
    let port = port.unwrap_or(80);
    let host = if port == 80 { target.to_string() } else { format!("{target}:{port}") };
    let head = rewrite_head(method, &path, &host, request.headers)?;
    Ok(ProxyRequest { target, port, protocol: ProxyProtocol::Http { head, body }, early: Vec::new() })
}

/// Returns the length of the body. Refuses a body whose length is not announced.
fn body_length(fields: &[httparse::Header<'_>]) -> Result<u64, Vec<u8>> {
    let named = |name: &str| fields.iter().filter(move |field| field.name.eq_ignore_ascii_case(name)).count();
    if named("transfer-encoding") > 0 {
        return Err(build_response(
            "411 Length Required",
            "send Content-Length instead of Transfer-Encoding, or use https",
        ));
    }
    if named("content-length") > 1 || named("host") > 1 {
        return Err(bad_request("duplicate Host or Content-Length"));
    }
    let Some(field) = fields.iter().find(|field| field.name.eq_ignore_ascii_case("content-length")) else {
        return Ok(0);
    };
    let digits = !field.value.is_empty() && field.value.iter().all(u8::is_ascii_digit);
    let length = std::str::from_utf8(field.value).ok().filter(|_| digits).and_then(|text| text.parse().ok());
    length.ok_or_else(|| bad_request("Content-Length is not a number"))
}

/// Splits `http://AUTHORITY/PATH` into authority and path.
fn split_absolute_url(url: &str) -> Result<(&str, String), Vec<u8>> {
    let (scheme, rest) = url
        .split_once("://")
        .ok_or_else(|| bad_request("this is a proxy: the request target must be http://…"))?;
    if !scheme.eq_ignore_ascii_case("http") {
        return Err(bad_request("only http:// is supported here; use CONNECT for everything else"));
    }
    if rest.contains('#') {
        return Err(bad_request("the URL has a fragment"));
    }
    let at = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(at);
    Ok((authority, if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }))
}

/// Parses `HOST`, `HOST:PORT` or `[IPV6]:PORT`.
fn parse_authority(text: &str) -> Result<(TargetHost, Option<u16>), Vec<u8>> {
    let split = text.rfind(':').filter(|at| !text[*at..].contains(']'));
    let (host, port) = split.map_or((text, None), |at| (&text[..at], Some(&text[at + 1..])));
    if host.contains(':') && !host.starts_with('[') {
        return Err(bad_request("an IPv6 address needs brackets"));
    }
    let target = host.parse().map_err(|why: String| bad_request(&format!("the host {why}")))?;
    let port = port.map(parse_port).transpose().map_err(|why| bad_request(&why))?;
    Ok((target, port))
}

fn rewrite_head(
    method: &str,
    path: &str,
    host: &str,
    fields: &[httparse::Header<'_>],
) -> Result<Vec<u8>, Vec<u8>> {
    // Headers that the client names in Connection are hop-by-hop too.
    let mut dropped: Vec<String> = HOP_BY_HOP_HEADERS.iter().map(|name| (*name).to_owned()).collect();
    for field in fields.iter().filter(|field| field.name.eq_ignore_ascii_case("connection")) {
        let names = std::str::from_utf8(field.value).map_err(|_| bad_request("Connection is not UTF-8"))?;
        dropped.extend(names.split(',').map(|name| name.trim().to_ascii_lowercase()));
    }
    // Content-Length is always forwarded.
    dropped.retain(|name| name != "content-length");
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n").into_bytes();
    for field in fields {
        if !dropped.iter().any(|name| field.name.eq_ignore_ascii_case(name)) {
            head.extend_from_slice(field.name.as_bytes());
            head.extend_from_slice(b": ");
            head.extend_from_slice(field.value);
            head.extend_from_slice(b"\r\n");
        }
    }
    head.extend_from_slice(b"Connection: close\r\n\r\n");
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_valid_head(head: &str) -> ProxyRequest {
        parse_head(head.as_bytes()).map_err(|answer| String::from_utf8(answer).unwrap()).unwrap()
    }

    #[test]
    fn a_plain_request_is_rebuilt() {
        let request = parse_valid_head(
            "POST HTTP://Example.com:8080?q=1 HTTP/1.1\r\nHost: other.com\r\nProxy-Authorization: x\r\nX-A: 1\r\n\
             Connection: keep-alive, X-B, Content-Length\r\nX-B: 2\r\nContent-Length: 3\r\n\r\n",
        );
        assert_eq!((request.target.to_string().as_str(), request.port), ("example.com", 8080));
        let ProxyProtocol::Http { head, body } = request.protocol else { panic!("not a plain request") };
        let expected = "POST /?q=1 HTTP/1.1\r\nHost: example.com:8080\r\nX-A: 1\r\nContent-Length: 3\r\nConnection: close\r\n\r\n";
        assert_eq!((String::from_utf8(head).unwrap().as_str(), body), (expected, 3));
    }

    #[test]
    fn ambiguous_requests_are_refused() {
        let refused = [
            "GET / HTTP/1.1\r\nHost: a.com\r\n\r\n",
            "GET https://a.com/ HTTP/1.1\r\n\r\n",
            "GET ftp://a.com/ HTTP/1.1\r\n\r\n",
            "GET http://u:p@a.com/ HTTP/1.1\r\n\r\n",
            "GET http://a.com#b.com/ HTTP/1.1\r\n\r\n",
            "GET http://a.com\\@b.com/ HTTP/1.1\r\n\r\n",
            "GET http:///x HTTP/1.1\r\n\r\n",
            "GET http://a.com:/ HTTP/1.1\r\n\r\n",
            "GET http://a.com:80:80/ HTTP/1.1\r\n\r\n",
            "GET http://127.1/ HTTP/1.1\r\n\r\n",
            "GET http://::1/ HTTP/1.1\r\n\r\n",
            "GET http://a.com/ HTTP/2.0\r\n\r\n",
            "GET http://a.com/\r\n\r\n",
            "GET http://a.com/ HTTP/1.1\nX: 1\r\n\r\n",
            "GET http://a.com/ HTTP/1.1\r\nX: 1\n\r\n\r\n",
            "GET http://a.com/ HTTP/1.1\r\nX: 1\rY: 2\r\n\r\n",
            "GET http://a.com/ HTTP/1.1\r\n X: 1\r\n\r\n",
            "GET http://a.com/ HTTP/1.1\r\nX: 1\r\n 2\r\n\r\n",
            "GET http://a.com/ HTTP/1.1\r\nX : 1\r\n\r\n",
            "GET http://a.com/ HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
            "POST http://a.com/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            "POST http://a.com/ HTTP/1.1\r\nContent-Length: +1\r\n\r\n",
            "POST http://a.com/ HTTP/1.1\r\nContent-Length: 1, 1\r\n\r\n",
            "POST http://a.com/ HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
            "POST http://a.com/ HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            "POST http://a.com/ HTTP/1.1\r\nTransfer-Encoding : chunked\r\n\r\n",
            "CONNECT a.com HTTP/1.1\r\n\r\n",
            "CONNECT http://a.com:443 HTTP/1.1\r\n\r\n",
            "CONNECT a.com:443/ HTTP/1.1\r\n\r\n",
            "CONNECT ::1:443 HTTP/1.1\r\n\r\n",
            "CONNECT a.com:99999 HTTP/1.1\r\n\r\n",
            "CONNECT a.com:443 HTTP/1.1\r\nContent-Length: 5\r\n\r\n",
            "\u{16}\u{3}\u{1}\r\n\r\n",
        ];
        for head in refused {
            assert!(parse_head(head.as_bytes()).is_err(), "{head:?}");
        }
        assert_eq!(parse_valid_head("CONNECT [::1]:443 HTTP/1.1\r\n\r\n").target.to_string(), "[::1]");
        assert_eq!(parse_valid_head("CONNECT A.com.:443 HTTP/1.0\r\n\r\n").target.to_string(), "a.com");
    }
}
