//! Where the server listens.

use std::sync::Arc;

use tokio::net::TcpListener;

use crate::tls::Tls;

/// The ways in.
#[derive(Debug)]
pub struct Doors {
    /// For everything.
    pub api: TcpListener,
    /// What is spoken there, where it is not plain HTTP.
    pub tls: Option<Arc<Tls>>,
    /// For metrics and health alone, without a key.
    pub metrics: Option<TcpListener>,
}

/// Plain HTTP, and nothing else.
impl From<TcpListener> for Doors {
    fn from(api: TcpListener) -> Self {
        Self { api, tls: None, metrics: None }
    }
}
