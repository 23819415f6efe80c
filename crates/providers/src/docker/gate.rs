//! Egress of a container that may reach individual hosts. The guest creates listening sockets in the
//! container's own network namespace before any tenant code runs, and sends them over a Unix socket in a
//! directory that only this user can enter. They are served here, like a jail's.

use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::Arc;

use belljar_egress::{Bounds, Egress, System};
use belljar_engine::plan::Network;
use belljar_engine::provider::ProviderError;
use belljar_guest::GATE;
use bollard::models::Mount;
use tokio::net::UnixListener;

use super::shape::mount;
use crate::native::gate::doors;
use crate::native::run::unique_name;

/// Egress that waits for the container's sockets.
#[derive(Debug)]
pub(super) struct Gate {
    pub(super) egress: Egress,
    nook: Nook,
}

/// A directory for the Unix socket, removed on drop.
#[derive(Debug)]
struct Nook(PathBuf);

impl Drop for Nook {
    fn drop(&mut self) {
        let _removed = std::fs::remove_dir_all(&self.0);
    }
}

impl Nook {
    fn make() -> io::Result<Self> {
        let folder = std::env::temp_dir().join(format!("belljar-gate-{}", unique_name()));
        DirBuilder::new().mode(0o700).create(&folder)?;
        Ok(Self(folder))
    }

    fn socket(&self) -> PathBuf {
        self.0.join("line")
    }
}

impl Gate {
    /// Creates the egress, if the network has individual hosts.
    pub(super) fn of(network: &Network) -> Result<Option<Self>, ProviderError> {
        let Network::Hosts(rules) = network else { return Ok(None) };
        let failed = |error: io::Error| ProviderError::Setup {
            step: "create the egress socket".to_owned(),
            cause: error.to_string(),
        };
        let nook = Nook::make().map_err(failed)?;
        let listener = UnixListener::bind(nook.socket()).map_err(failed)?;
        // Any user inside the container may connect. The directory keeps everyone else out.
        std::fs::set_permissions(nook.socket(), Permissions::from_mode(0o666)).map_err(failed)?;
        let egress = Egress::new(rules.clone(), Bounds::default(), Arc::new(System));
        egress.serve(async move {
            let (line, _) = listener.accept().await?;
            // The guest connects first. Later connections are refused.
            drop(listener);
            doors(line).await
        });
        Ok(Some(Self { egress, nook }))
    }

    /// Returns the mount that shows the socket in the container. Connecting needs no write access to the
    /// mount.
    pub(super) fn mount(&self) -> Mount {
        mount(&self.nook.socket().to_string_lossy(), GATE, false)
    }
}
