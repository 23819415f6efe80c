//! The port that the engine uses: state, tasks, ports, pausing, halting, hosts and the end.

use belljar_egress::Egress;
use belljar_engine::finding::Finding;
use belljar_engine::limits::Limits;
use belljar_engine::network::{GateKind, HostRules};
use belljar_engine::outcome::{Outcome, Receipt};
use belljar_engine::packages::PackageLayer;
use belljar_engine::plan::{Network, Task};
use belljar_engine::provider::{BoxFuture, Sink};
use belljar_engine::sandbox_handle::{
    ByteStream, Commands, Files, NetworkStats, SandboxError, SandboxFuture, SandboxHandle, SandboxPhase,
    SandboxStats,
};

use super::GuestSandbox;

impl SandboxHandle for GuestSandbox {
    fn state(&self) -> SandboxPhase {
        match (self.guest.is_gone(), self.is_paused()) {
            (true, _) => SandboxPhase::Ended,
            (false, true) => SandboxPhase::Paused,
            (false, false) => SandboxPhase::Running,
        }
    }

    fn commands(&self) -> &dyn Commands {
        self
    }

    fn files(&self) -> &dyn Files {
        self
    }

    fn run<'a>(
        &'a self,
        task: &'a Task,
        limits: &'a Limits,
        sink: &'a mut dyn Sink,
        cancel: BoxFuture<'a, ()>,
    ) -> SandboxFuture<'a, Outcome> {
        Box::pin(self.run_task(task, limits, sink, cancel))
    }

    fn attach_packages<'a>(&'a self, layers: &'a [PackageLayer]) -> SandboxFuture<'a, ()> {
        Box::pin(async move {
            self.backend.attach_packages(layers).await?;
            self.record_attached(layers);
            Ok(())
        })
    }

    fn open_port(&self, port: u16) -> SandboxFuture<'_, ByteStream> {
        Box::pin(async move {
            let stream = self.convert_result(self.running_guest()?.open_port(port).await).await?;
            Ok(Box::pin(stream) as ByteStream)
        })
    }

    fn pause(&self) -> SandboxFuture<'_, ()> {
        Box::pin(self.set_paused(true))
    }

    fn resume(&self) -> SandboxFuture<'_, ()> {
        Box::pin(self.set_paused(false))
    }

    fn halt(&self, why: String) -> SandboxFuture<'_, ()> {
        // First stop new commands from starting. One that has just started is found when the caller repeats
        // this.
        self.halted.send_replace(Some(why));
        Box::pin(async { self.convert_result(self.running_guest()?.end_all().await).await })
    }

    fn release(&self) {
        self.halted.send_replace(None);
    }

    fn halt_reason(&self) -> Option<String> {
        self.halt_cause()
    }

    fn receipt(&self) -> SandboxFuture<'_, Receipt> {
        Box::pin(self.receipt_with_network())
    }

    fn stats(&self) -> SandboxFuture<'_, SandboxStats> {
        self.backend.stats()
    }

    fn denial_findings(&self) -> SandboxFuture<'_, Vec<Finding>> {
        Box::pin(self.sandbox_denials())
    }

    fn network_stats(&self) -> Option<NetworkStats> {
        self.egress.as_ref().map(network_stats)
    }

    fn set_hosts(&self, rules: HostRules) -> Result<(), SandboxError> {
        let egress = self.egress.as_ref().ok_or_else(SandboxError::hosts_not_changeable)?;
        if egress.kind() == GateKind::Tun && rules.allows_host_loopback() {
            return Err(SandboxError::host_loopback_not_reachable());
        }
        egress.set_rules(rules);
        Ok(())
    }

    fn ended(&self) -> BoxFuture<'_, String> {
        Box::pin(async {
            self.guest.gone().await;
            self.backend.exit_cause().await
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.backend.close().await;
            if let Some(egress) = &self.egress {
                egress.close().await;
            }
        })
    }
}

impl GuestSandbox {
    /// Returns the backend's receipt, with the network as it is now.
    pub(super) async fn receipt_with_network(&self) -> Result<Receipt, SandboxError> {
        let receipt = self.backend.receipt().await?;
        // A backend that has a network of its own instead of the host's says so.
        if receipt.network.is_some() {
            return Ok(receipt);
        }
        let network = match &self.egress {
            Some(egress) => Network::from_rules(egress.rules()).receipt(egress.kind()),
            None => self.plan.network.receipt(GateKind::Proxy),
        };
        Ok(Receipt { network: Some(network), ..receipt })
    }
}

fn network_stats(egress: &Egress) -> NetworkStats {
    let traffic = egress.traffic();
    NetworkStats {
        rules: egress.rules(),
        refused: egress.findings(),
        connections: traffic.connections,
        sent_bytes: traffic.sent_bytes,
        received_bytes: traffic.received_bytes,
    }
}
