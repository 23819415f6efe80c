//! One connection of a program: checks the rules, connects to the server, and relays.

use std::sync::Arc;

use super::stack::PendingFlow;
use crate::access::AccessControl;
use crate::relay::{self, Destination};

/// Serves a connection that a program opens. It is refused with a reset unless the server accepts it.
pub(super) async fn serve_flow(access: Arc<AccessControl>, pending: PendingFlow) {
    let limits = &access.limits;
    if !access.try_count(&access.counts.connections, limits.total_connections, "connections in total") {
        return;
    }
    let server = pending.flow().server;
    let (target, port) = (access.target_at(server.ip()), server.port());
    // Subscribe before checking, so that no later rule change is missed.
    let rules = access.rules.subscribe();
    if let Ok((server, address)) = access.connect_if_allowed(&target, port).await
        && let Some(client) = pending.accept()
    {
        let destination = Destination { access: &access, rules, address, target: &target, port };
        relay::relay_stream(destination, client, server).await;
    }
}
