//! The sockets the server listens on. The metrics listener has two routes and asks for no key.

use std::sync::Arc;

use tokio::net::TcpListener;

use crate::tls::Tls;

/// Listeners of the server.
#[derive(Debug)]
pub struct Listeners {
    /// Serves all routes.
    pub api: TcpListener,
    /// TLS for `api`; `None` for plain HTTP.
    pub tls: Option<Arc<Tls>>,
    /// Serves only metrics and health, without a key.
    pub metrics: Option<TcpListener>,
}

/// Serves plain HTTP on one listener, without a metrics listener.
impl From<TcpListener> for Listeners {
    fn from(api: TcpListener) -> Self {
        Self { api, tls: None, metrics: None }
    }
}
