//! The operator's HTTP proxy, through which the egress proxy reaches allowed hosts. Programs in a sandbox
//! never talk to it directly.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::{TargetHost, parse_port};

/// An HTTP proxy that supports `CONNECT`.
#[derive(Clone, PartialEq, Eq)]
pub struct UpstreamProxy {
    target: TargetHost,
    port: u16,
    /// The value of `Proxy-Authorization`.
    authorization: Option<String>,
    /// Hosts that bypass the proxy, as in `NO_PROXY`.
    bypass: Vec<String>,
}

/// Omits the credentials.
impl fmt::Debug for UpstreamProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proxy({}:{})", self.target, self.port)
    }
}

impl UpstreamProxy {
    /// Parses `http://[USER:PASSWORD@]HOST[:PORT]`, and a list of hosts that bypass the proxy.
    ///
    /// # Errors
    /// Says what is invalid, without the credentials.
    pub fn parse(url: &str, no_proxy: &str) -> Result<Self, String> {
        let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
        if !scheme.eq_ignore_ascii_case("http") {
            let scheme = scheme.escape_debug();
            return Err(format!("proxy scheme '{scheme}' is not supported; use http://"));
        }
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let (login, place) = match authority.rsplit_once('@') {
            Some((login, place)) => (Some(login), place),
            None => (None, authority),
        };
        let split = place.rfind(':').filter(|at| !place[*at..].contains(']'));
        let (host, port) = split.map_or((place, None), |at| (&place[..at], Some(&place[at + 1..])));
        let target = host.parse().map_err(|why| format!("the proxy's host {why}"))?;
        let port = port.map_or(Ok(80), parse_port)?;
        let authorization = login.map(|login| format!("Basic {}", STANDARD.encode(percent_decode(login))));
        let direct = no_proxy.split(',').map(|one| one.trim().to_ascii_lowercase());
        let direct = direct.filter(|one| !one.is_empty()).collect();
        Ok(Self { target, port, authorization, bypass: direct })
    }

    /// Returns the host of the proxy.
    pub fn target(&self) -> &TargetHost {
        &self.target
    }

    /// Returns the port of the proxy.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns whether a host bypasses the proxy.
    pub fn is_bypassed_for(&self, target: &TargetHost) -> bool {
        let host = target.to_string();
        self.bypass.iter().any(|one| {
            let name = one.trim_start_matches("*.").trim_start_matches('.');
            one == "*" || host == name || host.strip_suffix(name).is_some_and(|rest| rest.ends_with('.'))
        })
    }

    /// Returns the `CONNECT` request for a connection to a host.
    pub fn connect_request(&self, target: &TargetHost, port: u16) -> String {
        let login = self.authorization.iter().map(|value| format!("Proxy-Authorization: {value}\r\n"));
        let login: String = login.collect();
        format!("CONNECT {target}:{port} HTTP/1.1\r\nHost: {target}:{port}\r\n{login}\r\n")
    }
}

/// Decodes percent-encoding.
fn percent_decode(text: &str) -> Vec<u8> {
    let (bytes, mut out, mut at) = (text.as_bytes(), Vec::new(), 0);
    while let Some(byte) = bytes.get(at) {
        let digits = text.get(at + 1..at + 3).filter(|_| *byte == b'%');
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(value) => {
                out.push(value);
                at += 3;
            }
            None => {
                out.push(*byte);
                at += 1;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxy_requests_have_credentials_and_debug_output_has_none() {
        let proxy =
            UpstreamProxy::parse("http://ann:p%40w@proxy.example:3128/", "internal.example,.corp, 10.0.0.1")
                .unwrap();
        let asked = proxy.connect_request(&"pypi.org".parse().unwrap(), 443);
        let login = STANDARD.encode("ann:p@w");
        let head = "CONNECT pypi.org:443 HTTP/1.1\r\nHost: pypi.org:443\r\n";
        assert_eq!(asked, format!("{head}Proxy-Authorization: Basic {login}\r\n\r\n"));
        assert_eq!(format!("{proxy:?}"), "Proxy(proxy.example:3128)");
        let bypassed = |host: &str| proxy.is_bypassed_for(&host.parse().unwrap());
        assert!(bypassed("internal.example") && bypassed("a.corp") && bypassed("10.0.0.1"));
        assert!(!bypassed("pypi.org") && !bypassed("notinternal.example"));
        for wrong in ["socks5://a.example:1", "https://a.example", "http://:1", "http://a.example:x"] {
            assert!(UpstreamProxy::parse(wrong, "").is_err(), "{wrong}");
        }
    }
}
