//! The gate of a container that may reach single hosts. The guest makes listening sockets in the container's own network,
//! before anything of the tenant's is there, and sends them over a socket in a folder that only this user can enter; they
//! are served here, as a jail's are.

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

/// A gate that is about to be made.
#[derive(Debug)]
pub(super) struct Gate {
    pub(super) egress: Egress,
    nook: Nook,
}

/// A folder with a socket in it; gone when this is dropped.
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
    /// Where the network has one.
    pub(super) fn of(network: &Network) -> Result<Option<Self>, ProviderError> {
        let Network::Hosts(rules) = network else { return Ok(None) };
        let failed = |error: io::Error| ProviderError::Setup {
            step: "make a line for the network's gate".to_owned(),
            cause: error.to_string(),
        };
        let nook = Nook::make().map_err(failed)?;
        let listener = UnixListener::bind(nook.socket()).map_err(failed)?;
        // Whoever is in the container may; nobody else comes through the folder.
        std::fs::set_permissions(nook.socket(), Permissions::from_mode(0o666)).map_err(failed)?;
        let egress = Egress::new(rules.clone(), Bounds::default(), Arc::new(System));
        egress.serve(async move {
            let (line, _) = listener.accept().await?;
            // The guest was first. Nobody is heard after it.
            drop(listener);
            doors(line).await
        });
        Ok(Some(Self { egress, nook }))
    }

    /// Its line, as the container sees it: to be called needs no right to write.
    pub(super) fn mount(&self) -> Mount {
        mount(&self.nook.socket().to_string_lossy(), GATE, false)
    }
}
