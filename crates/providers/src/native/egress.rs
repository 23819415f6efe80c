//! Egress of a jail whose network has a gate. PID 1 sends listening sockets or a TUN device, which are served
//! here until the run or the sandbox is over.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use belljar_egress::{Egress, EgressLimits, SystemResolver};
use belljar_engine::network::GateKind;
use belljar_engine::plan::Network;
use belljar_engine::provider::ProviderError;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use tokio::net::UnixStream;

use crate::egress::receive_sockets;

/// Egress that waits for the jail's sockets.
#[derive(Debug)]
pub(super) struct JailEgress {
    egress: Egress,
    child_socket: OwnedFd,
}

impl JailEgress {
    /// Creates the egress, if the network has a gate.
    pub(super) fn for_network(
        network: &Network,
        kind: GateKind,
        tenant: &str,
    ) -> Result<Option<Self>, ProviderError> {
        let Some(rules) = network.gate_rules() else { return Ok(None) };
        let failed = |error: io::Error| ProviderError::setup("create the egress socket", error);
        let (ours, theirs) = socket_pair().map_err(failed)?;
        let resolver = Arc::new(SystemResolver::for_tenant(tenant));
        let egress = Egress::new(kind, rules.clone(), EgressLimits::default(), resolver);
        egress.serve(receive_sockets(ours, kind));
        Ok(Some(Self { egress, child_socket: theirs }))
    }

    /// Returns the descriptor to send with the start request.
    pub(super) fn child_fd(&self) -> BorrowedFd<'_> {
        self.child_socket.as_fd()
    }

    /// Closes the jail's end after the start request was sent.
    pub(super) fn into_egress(self) -> Egress {
        self.egress
    }
}

fn socket_pair() -> io::Result<(UnixStream, OwnedFd)> {
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::io::ioctl_fionbio(&ours, true)?;
    Ok((UnixStream::from_std(ours.into())?, theirs))
}

/// Returns the resolv.conf for inside the sandbox.
pub(super) fn resolv_conf() -> String {
    "# answers only for reachable hosts\nnameserver 127.0.0.1\noptions timeout:5 attempts:2\n".to_owned()
}
