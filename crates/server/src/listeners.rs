//! The sockets the server listens on. The metrics listener has two routes and asks for no key.

use std::sync::Arc;

use tokio::net::TcpListener;

use crate::dialects::DIALECTS;
use crate::error::Error;
use crate::http::dialect::Dialect;
use crate::tls::Tls;

/// Listeners of the server.
#[derive(Debug)]
pub struct Listeners {
    /// Serves all routes.
    pub api: TcpListener,
    /// Listeners that serve one dialect each.
    pub dialects: Vec<DialectListener>,
    /// TLS for `api` and `dialects`; `None` for plain HTTP.
    pub tls: Option<Arc<Tls>>,
    /// Serves only metrics and health, without a key.
    pub metrics: Option<TcpListener>,
}

/// A listener that serves one dialect at the root.
#[derive(Debug)]
pub struct DialectListener {
    pub(crate) dialect: &'static Dialect,
    pub(crate) listener: TcpListener,
}

impl DialectListener {
    /// Serves the dialect of this name on a listener.
    ///
    /// # Errors
    /// There is no such dialect, or it cannot have a listener of its own.
    pub fn new(name: &str, listener: TcpListener) -> Result<Self, Error> {
        let known = DIALECTS.iter().filter(|dialect| dialect.own_listener);
        match known.clone().find(|dialect| dialect.name == name) {
            Some(&dialect) => Ok(Self { dialect, listener }),
            None => {
                let known: Vec<_> = known.map(|dialect| dialect.name).collect();
                let message =
                    format!("no such dialect: '{}'; known: {}", name.escape_debug(), known.join(", "));
                Err(Error::Invalid { field: "dialect", message })
            }
        }
    }
}

/// Serves plain HTTP on one listener, without any other listeners.
impl From<TcpListener> for Listeners {
    fn from(api: TcpListener) -> Self {
        Self { api, dialects: Vec::new(), tls: None, metrics: None }
    }
}
