//! The launcher process, restarted when it dies.

use std::process::Child;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use belljar_engine::provider::ProviderError;
use belljar_jail::spec;

use super::Launched;
use super::connection::{Connection, Host, lost};
use super::mismatches::Mismatches;

#[derive(Debug)]
pub(super) struct Link {
    settings: spec::Settings,
    now: Mutex<Option<Connected>>,
    /// Held while the launcher is restarted, so that concurrent callers start only one.
    renewing: tokio::sync::Mutex<()>,
    /// Mismatches reported by this launcher and its predecessors.
    pub(super) mismatches: Arc<Mismatches>,
}

#[derive(Debug)]
struct Connected {
    connection: Connection,
    launcher: Child,
}

impl Link {
    pub(super) async fn open(
        launched: Launched,
        settings: spec::Settings,
    ) -> Result<(Self, Host), ProviderError> {
        let mismatches = Arc::new(Mismatches::default());
        let (connected, host) = connect(launched, settings, &mismatches).await?;
        let now = Mutex::new(Some(connected));
        Ok((Self { settings, now, renewing: tokio::sync::Mutex::new(()), mismatches }, host))
    }

    fn now(&self) -> MutexGuard<'_, Option<Connected>> {
        // Each statement leaves the value consistent, so a panic elsewhere does not corrupt it.
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the connection, or an error after it was closed.
    pub(super) fn connection(&self) -> Result<Connection, ProviderError> {
        self.now().as_ref().map(|now| now.connection.clone()).ok_or_else(lost)
    }

    /// Starts a new launcher if the current one is gone.
    pub(super) async fn renew(&self) -> Result<(), ProviderError> {
        let _one_at_a_time = self.renewing.lock().await;
        if !self.connection()?.is_lost() {
            return Ok(());
        }
        let (connected, _) = connect(Launched::start()?, self.settings, &self.mismatches).await?;
        let before = self.now().replace(connected);
        if let Some(before) = before {
            wait_for(before.launcher).await;
        }
        Ok(())
    }

    /// Disconnects, and waits until the launcher has ended all runs and exited.
    pub(super) async fn close(&self) {
        let closed = self.now().take();
        if let Some(closed) = closed {
            closed.connection.close();
            wait_for(closed.launcher).await;
        }
    }
}

async fn connect(
    launched: Launched,
    settings: spec::Settings,
    mismatches: &Arc<Mismatches>,
) -> Result<(Connected, Host), ProviderError> {
    let (control, launcher) = launched.launcher.into_parts();
    let (connection, host) = Connection::open(control, Arc::clone(mismatches)).await?;
    connection.configure(settings).await?;
    Ok((Connected { connection, launcher }, host))
}

async fn wait_for(mut launcher: Child) {
    // Waiting blocks the thread, and the runtime may have only one.
    let _ended = tokio::task::spawn_blocking(move || launcher.wait()).await;
}
