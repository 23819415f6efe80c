//! The dialects: HTTP APIs over the same operations (`executions`, `sandboxes`, `storage`).
//!
//! A dialect is a folder with its routes, wire types and a [`Dialect`], which says how it finds the key of a
//! request and how it renders errors. To add one, add its folder and a row to [`DIALECTS`].

pub(crate) mod mcp;
pub(crate) mod v1;

use crate::http::dialect::Dialect;

/// All dialects.
pub(crate) static DIALECTS: &[&Dialect] = &[&v1::DIALECT, &mcp::DIALECT];

/// Returns the dialect to which a path on the main port belongs.
pub(crate) fn by_path(path: &str) -> &'static Dialect {
    let below = |prefix: &str| {
        !prefix.is_empty()
            && path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    DIALECTS.iter().find(|dialect| dialect.prefix.is_some_and(below)).copied().unwrap_or(&v1::DIALECT)
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri, header};

    use super::*;

    #[test]
    fn the_path_decides_the_dialect() {
        for (path, name) in [
            ("/v1/executions", "v1"),
            ("/healthz", "v1"),
            ("/", "v1"),
            ("/mcp", "mcp"),
            ("/mcp/more", "mcp"),
            ("/mcpx", "v1"),
            ("/v1/mcp", "v1"),
        ] {
            assert_eq!(by_path(path).name, name, "{path}");
        }
    }

    #[test]
    fn names_and_prefixes_are_unique() {
        for (index, dialect) in DIALECTS.iter().enumerate() {
            let others = &DIALECTS[index + 1..];
            assert!(others.iter().all(|other| other.name != dialect.name), "{}", dialect.name);
            assert!(dialect.prefix.is_some() || dialect.own_listener, "{} is served nowhere", dialect.name);
            let same = |other: &&Dialect| other.prefix.is_some() && other.prefix == dialect.prefix;
            assert!(!others.iter().any(same), "{}", dialect.name);
        }
    }

    /// Pages of tenants' programs are served under this server's name, so no cookie may be a credential.
    #[test]
    fn no_dialect_takes_a_key_from_a_cookie() {
        let key = "bj_1";
        let names = ["authorization", "key", "token", "session", "x-api-key", "api_key", "e2b"];
        for dialect in DIALECTS {
            for name in names {
                let cookie = HeaderValue::try_from(format!("{name}={key}; {name}=Bearer {key}")).unwrap();
                for header in [header::COOKIE, HeaderName::from_static("cookie2")] {
                    let headers = HeaderMap::from_iter([(header, cookie.clone())]);
                    assert_eq!((dialect.key)(&headers, &Uri::from_static("/")), None, "{}", dialect.name);
                }
            }
        }
    }
}
