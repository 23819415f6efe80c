//! The launcher process, restarted when it dies.

use std::process::Child;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use belljar_engine::provider::ProviderError;
use belljar_jail::spec;

use super::SpawnedLauncher;
use super::connection::{HostSupport, LauncherConnection, launcher_lost};
use super::mismatches::Mismatches;

#[derive(Debug)]
pub(super) struct LauncherHandle {
    settings: spec::LauncherSettings,
    current: Mutex<Option<RunningLauncher>>,
    /// Held while the launcher is restarted, so that concurrent callers start only one.
    restart_lock: tokio::sync::Mutex<()>,
    /// Mismatches reported by this launcher and its predecessors.
    pub(super) mismatches: Arc<Mismatches>,
}

#[derive(Debug)]
struct RunningLauncher {
    connection: LauncherConnection,
    launcher: Child,
}

impl LauncherHandle {
    pub(super) async fn open(
        launched: SpawnedLauncher,
        settings: spec::LauncherSettings,
    ) -> Result<(Self, HostSupport), ProviderError> {
        let mismatches = Arc::new(Mismatches::default());
        let (connected, host) = connect(launched, settings, &mismatches).await?;
        let now = Mutex::new(Some(connected));
        Ok((Self { settings, current: now, restart_lock: tokio::sync::Mutex::new(()), mismatches }, host))
    }

    fn lock_current(&self) -> MutexGuard<'_, Option<RunningLauncher>> {
        // Each statement leaves the value consistent, so a panic elsewhere does not corrupt it.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the connection, or an error after it was closed.
    pub(super) fn connection(&self) -> Result<LauncherConnection, ProviderError> {
        self.lock_current().as_ref().map(|now| now.connection.clone()).ok_or_else(launcher_lost)
    }

    /// Starts a new launcher if the current one is gone.
    pub(super) async fn restart_if_lost(&self) -> Result<(), ProviderError> {
        let _one_at_a_time = self.restart_lock.lock().await;
        if !self.connection()?.is_lost() {
            return Ok(());
        }
        let (connected, _) = connect(SpawnedLauncher::start()?, self.settings, &self.mismatches).await?;
        let before = self.lock_current().replace(connected);
        if let Some(before) = before {
            reap(before.launcher).await;
        }
        Ok(())
    }

    /// Disconnects, and waits until the launcher has ended all runs and exited.
    pub(super) async fn close(&self) {
        let closed = self.lock_current().take();
        if let Some(closed) = closed {
            closed.connection.close();
            reap(closed.launcher).await;
        }
    }
}

async fn connect(
    launched: SpawnedLauncher,
    settings: spec::LauncherSettings,
    mismatches: &Arc<Mismatches>,
) -> Result<(RunningLauncher, HostSupport), ProviderError> {
    let (control, launcher) = launched.launcher.into_parts();
    let (connection, host) = LauncherConnection::open(control, Arc::clone(mismatches)).await?;
    connection.configure(settings).await?;
    Ok((RunningLauncher { connection, launcher }, host))
}

async fn reap(mut launcher: Child) {
    // Waiting blocks the thread, and the runtime may have only one.
    let _ended = tokio::task::spawn_blocking(move || launcher.wait()).await;
}
