//! Egress of a container that may reach individual hosts. The guest creates listening sockets in the
//! container's own network namespace before any tenant code runs, and sends them over a Unix socket in a
//! directory that only this user can enter, and that takes one caller. They are served here, like a jail's.

use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::Arc;

use belljar_egress::{Egress, EgressLimits, SystemResolver};
use belljar_engine::plan::Network;
use belljar_engine::provider::ProviderError;
use belljar_guest::GATE_SOCKET;
use bollard::models::Mount;
use tokio::net::UnixListener;

use super::guest_bundle::mount;
use crate::egress::receive_sockets;
use crate::program::unique_number;

/// Egress that waits for the container's sockets.
#[derive(Debug)]
pub(super) struct ContainerEgress {
    pub(super) egress: Egress,
    socket_dir: SocketDir,
}

/// A directory for the Unix socket, removed on drop.
#[derive(Debug)]
struct SocketDir(PathBuf);

impl Drop for SocketDir {
    fn drop(&mut self) {
        let _removed = std::fs::remove_dir_all(&self.0);
    }
}

impl SocketDir {
    fn create() -> io::Result<Self> {
        let folder =
            std::env::temp_dir().join(format!("belljar-gate-{}-{}", std::process::id(), unique_number()));
        DirBuilder::new().mode(0o700).create(&folder)?;
        Ok(Self(folder))
    }

    fn socket_path(&self) -> PathBuf {
        self.0.join("line")
    }
}

impl ContainerEgress {
    /// Creates the egress, if the network has individual hosts.
    pub(super) fn for_network(network: &Network) -> Result<Option<Self>, ProviderError> {
        let Network::Hosts(rules) = network else { return Ok(None) };
        let failed = |error: io::Error| ProviderError::setup("create the egress socket", error);
        let socket_dir = SocketDir::create().map_err(failed)?;
        let listener = UnixListener::bind(socket_dir.socket_path()).map_err(failed)?;
        // Any user inside the container may connect. The directory keeps everyone else out.
        std::fs::set_permissions(socket_dir.socket_path(), Permissions::from_mode(0o666)).map_err(failed)?;
        let egress = Egress::new(rules.clone(), EgressLimits::default(), Arc::new(SystemResolver));
        egress.serve(async move {
            let (stream, _) = listener.accept().await?;
            // The guest connects first. Later connections are refused.
            drop(listener);
            receive_sockets(stream).await
        });
        Ok(Some(Self { egress, socket_dir }))
    }

    /// Returns the mount that shows the socket in the container. Connecting needs no write access to the
    /// mount.
    pub(super) fn mount(&self) -> Mount {
        mount(&self.socket_dir.socket_path().to_string_lossy(), GATE_SOCKET, false)
    }
}
