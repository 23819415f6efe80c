//! Egress of a container whose network has a gate. The guest creates listening sockets in the
//! container's own network namespace before any tenant code runs, and sends them over a Unix socket in a
//! directory that only this user can enter, and that takes one caller. They are served here, like a jail's.

use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::Arc;

use belljar_beneath::random_name;
use belljar_egress::{Egress, EgressLimits, SystemResolver};
use belljar_engine::network::GateKind;
use belljar_engine::plan::Network;
use belljar_engine::provider::ProviderError;
use belljar_guest::GATE_SOCKET;
use bollard::models::Mount;
use tokio::net::UnixListener;

use super::guest_bundle::mount;
use crate::egress::{NODE_PRELOAD, NODE_PRELOAD_PATH, receive_sockets};

/// Egress that waits for the container's sockets.
#[derive(Debug)]
pub(super) struct ContainerEgress {
    pub(super) egress: Egress,
    socket_dir: SocketDir,
}

/// A directory for the Unix socket and the module for Node.js, removed on drop.
#[derive(Debug)]
struct SocketDir(PathBuf);

impl Drop for SocketDir {
    fn drop(&mut self) {
        let _removed = std::fs::remove_dir_all(&self.0);
    }
}

impl SocketDir {
    fn create() -> io::Result<Self> {
        let name = random_name().map_err(io::Error::other)?;
        let folder = std::env::temp_dir().join(format!("belljar-gate-{name}"));
        DirBuilder::new().mode(0o700).create(&folder)?;
        Ok(Self(folder))
    }

    fn socket_path(&self) -> PathBuf {
        self.0.join("line")
    }

    fn node_preload_path(&self) -> PathBuf {
        self.0.join("node_proxy.cjs")
    }
}

impl ContainerEgress {
    /// Creates the egress, if the network has a gate.
    pub(super) fn for_network(network: &Network, tenant: &str) -> Result<Option<Self>, ProviderError> {
        let Some(rules) = network.gate_rules() else { return Ok(None) };
        let failed = |error: io::Error| ProviderError::setup("create the egress socket", error);
        let socket_dir = SocketDir::create().map_err(failed)?;
        let listener = UnixListener::bind(socket_dir.socket_path()).map_err(failed)?;
        std::fs::write(socket_dir.node_preload_path(), NODE_PRELOAD).map_err(failed)?;
        std::fs::set_permissions(socket_dir.node_preload_path(), Permissions::from_mode(0o444))
            .map_err(failed)?;
        // Any user inside the container may connect. The directory keeps everyone else out.
        std::fs::set_permissions(socket_dir.socket_path(), Permissions::from_mode(0o666)).map_err(failed)?;
        let resolver = Arc::new(SystemResolver::for_tenant(tenant));
        let egress = Egress::new(GateKind::Proxy, rules.clone(), EgressLimits::default(), resolver);
        egress.serve(async move {
            let (stream, _) = listener.accept().await?;
            // The guest connects first. Later connections are refused.
            drop(listener);
            receive_sockets(stream, GateKind::Proxy).await
        });
        Ok(Some(Self { egress, socket_dir }))
    }

    /// Returns the mounts that show the socket and the module for Node.js in the container. Connecting needs
    /// no write access to the mount.
    pub(super) fn mounts(&self) -> [Mount; 2] {
        let shown = [
            (self.socket_dir.socket_path(), GATE_SOCKET),
            (self.socket_dir.node_preload_path(), NODE_PRELOAD_PATH),
        ];
        shown.map(|(path, inside)| mount(&path.to_string_lossy(), inside, false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_the_directory_tells_nothing_about_this_process() {
        let (one, other) = (SocketDir::create().unwrap(), SocketDir::create().unwrap());
        for directory in [&one, &other] {
            let name = directory.0.file_name().unwrap().to_str().unwrap();
            let random = name.strip_prefix("belljar-gate-").unwrap();
            assert!(random.len() == 16 && random.bytes().all(|byte| byte.is_ascii_hexdigit()), "{name}");
        }
        assert_ne!(one.0, other.0);
    }
}
