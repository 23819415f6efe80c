//! Enforces the size of volumes from outside the sandbox: measures the volumes a sandbox can write, and halts
//! the sandbox while they exceed their size.
//!
//! ```text
//! rest ─▶ measure ─▶ fits: released                           rest: 20 times as long as measuring, at least
//!   ▲        └─────▶ too much: halted ─▶ still grows: ended   TICK; shorter if the disk fills by as much as
//!   └──────────────────────┘                                was left in a volume
//! ```

use std::time::Duration;

use belljar_engine::host_storage::{HostStorageError, VolumeMeasurement, VolumeUsage};
use belljar_engine::sandbox_handle::{SandboxError, SandboxPhase};
use belljar_store::Volume;
use tokio::time::{Instant, sleep, timeout};

use super::mounts::MountedVolume;
use crate::app_state::AppState;
use crate::sandboxes::live_sandbox::LiveSandbox;

/// Interval of checks of the free disk space, which are cheap, and the shortest rest.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Rest after a measurement, as a multiple of its duration: measuring takes at most 1/20 of a CPU per
/// sandbox.
const REST_FACTOR: u32 = 20;
/// Rest factor while a volume seems to be filling up: measuring then takes at most a third of a CPU.
const SHORT_REST_FACTOR: u32 = 2;
/// Free space in bytes that tenants may not use, because the database needs it.
const RESERVE_BYTES: u64 = 256 << 20;
/// How long a sandbox may take to confirm that it is halted.
const HALT_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a volume may grow while its sandbox is halted, before the sandbox is ended.
const MAX_GROWTHS_WHILE_HALTED: usize = 3;

/// Monitors the volumes that one sandbox can write.
#[derive(Debug)]
pub(crate) struct VolumeMonitor {
    volumes: Vec<Volume>,
    took: Duration,
    /// Free disk space, and the smallest space left in a volume, at the last measurement.
    free: u64,
    left: u64,
    /// Total size while halted, and how often it grew since.
    halted: Option<(u64, usize)>,
}

/// The result of a measurement.
enum VolumeUse {
    Fits,
    TooMuch { why: String, bytes: u64 },
}

impl VolumeMonitor {
    /// Creates a monitor for the writable volumes; `None` if there are none.
    pub(crate) fn for_mounts(mounts: &[MountedVolume]) -> Option<Self> {
        let written = mounts.iter().filter(|mount| mount.writable);
        let volumes: Vec<_> = written.map(|mount| mount.volume.clone()).collect();
        let monitor = Self { volumes, took: Duration::ZERO, free: 0, left: 0, halted: None };
        (!monitor.volumes.is_empty()).then_some(monitor)
    }

    /// Monitors until the sandbox ends. Returns whether it must be ended because halting it does not help.
    pub(crate) async fn run(mut self, state: &AppState, open: &LiveSandbox) -> bool {
        loop {
            tokio::select! {
                () = open.wait_for_end() => return false,
                () = self.rest(state) => {}
            }
            // A sandbox that is not running writes nothing.
            if open.living.state() == SandboxPhase::Running && !self.enforce(state, open).await {
                return true;
            }
        }
    }

    async fn rest(&self, state: &AppState) {
        let since = Instant::now();
        loop {
            sleep(POLL_INTERVAL).await;
            let free = state.host_storage.free_bytes().await.unwrap_or(self.free);
            let filling = free < RESERVE_BYTES || self.free.saturating_sub(free) > self.left;
            let rest = self.took * if filling { SHORT_REST_FACTOR } else { REST_FACTOR };
            if since.elapsed() >= rest {
                return;
            }
        }
    }

    /// Measures, and halts or releases the sandbox. Returns false if halting does not help.
    pub(crate) async fn enforce(&mut self, state: &AppState, open: &LiveSandbox) -> bool {
        let seen = match self.measure(state).await {
            Ok(seen) => seen,
            Err(error) => {
                tracing::error!(sandbox = %open.id, %error, "cannot measure the volumes of a sandbox");
                VolumeUse::TooMuch { why: "its volumes cannot be measured".to_owned(), bytes: 0 }
            }
        };
        match seen {
            VolumeUse::Fits => {
                if self.halted.take().is_some() {
                    open.living.release();
                }
                true
            }
            VolumeUse::TooMuch { why, bytes } => self.halt(open, why, bytes).await,
        }
    }

    async fn halt(&mut self, open: &LiveSandbox, why: String, bytes: u64) -> bool {
        let (before, grown) = self.halted.unwrap_or((u64::MAX, 0));
        if self.halted.is_none() {
            tracing::warn!(sandbox = %open.id, tenant = %open.tenant, why, "sandbox halted");
        }
        let grown = if bytes > before { grown + 1 } else { 0 };
        self.halted = Some((bytes, grown));
        let obeys = match timeout(HALT_TIMEOUT, open.living.halt(why)).await {
            Ok(halted) => matches!(halted, Ok(()) | Err(SandboxError::Paused | SandboxError::Gone(_))),
            // A paused sandbox confirms later; any other is assumed not to be halted.
            Err(_) => open.living.state() == SandboxPhase::Paused,
        };
        obeys && grown < MAX_GROWTHS_WHILE_HALTED
    }

    async fn measure(&mut self, state: &AppState) -> Result<VolumeUse, HostStorageError> {
        let (mut why, mut all) = (None, 0);
        (self.took, self.left) = (Duration::ZERO, u64::MAX);
        self.free = state.host_storage.free_bytes().await?;
        for volume in &self.volumes {
            // While halted, measure completely, to see whether the volume still grows.
            let most = if self.halted.is_some() { u64::MAX } else { volume.size_bytes };
            let VolumeMeasurement { usage: held, took } =
                state.host_storage.measure_volume(volume.id.as_str(), most).await?;
            self.took += took;
            let bytes = match held {
                VolumeUsage::Bytes(bytes) => Some(bytes),
                _ => None,
            };
            state.volume_mounts.set_used_bytes(&volume.id, bytes);
            all += bytes.unwrap_or_default();
            self.left = self.left.min(volume.size_bytes.saturating_sub(bytes.unwrap_or(u64::MAX)));
            if let Some(reason) = held.excess_reason(volume.size_bytes) {
                why.get_or_insert_with(|| format!("volume '{}' {reason}", volume.name));
            }
        }
        if self.free < RESERVE_BYTES {
            why.get_or_insert_with(|| "the server's disk is nearly full".to_owned());
        }
        Ok(why.map_or(VolumeUse::Fits, |why| VolumeUse::TooMuch { why, bytes: all }))
    }
}
