//! Resolves names like every other program on this host: with its resolver and its `/etc/hosts`.

use std::fmt::Debug;
use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::{Arc, LazyLock};

use belljar_engine::provider::BoxFuture;
use tokio::sync::Semaphore;

/// Resolves names to addresses.
pub trait Resolve: Debug + Send + Sync {
    /// Returns all addresses of a name, preferred ones first.
    fn resolve(&self, name: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>>;
}

/// The host's own resolver.
#[derive(Debug)]
pub struct SystemResolver;

/// Limits lookup threads across all sandboxes. The resolver cannot be interrupted, so an abandoned lookup
/// still occupies a thread.
static LOOKUP_THREADS: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(64)));

impl Resolve for SystemResolver {
    fn resolve(&self, name: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        Box::pin(async move {
            let thread = Arc::clone(&LOOKUP_THREADS).acquire_owned().await.map_err(io::Error::other)?;
            let found = tokio::task::spawn_blocking(move || {
                let found = (name.as_str(), 0).to_socket_addrs();
                drop(thread);
                found.map(|found| found.map(|address| address.ip()).collect())
            });
            found.await.map_err(io::Error::other)?
        })
    }
}
