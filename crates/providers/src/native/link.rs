//! The launcher, which is started anew when it is gone.

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
    /// Held while another launcher is started, so that all who need one start one only.
    renewing: tokio::sync::Mutex<()>,
    /// What launchers told, this one and those before it.
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
        // It holds a connection or none after every statement, so a panic elsewhere does not spoil it.
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The line to the launcher; an error once it was closed.
    pub(super) fn connection(&self) -> Result<Connection, ProviderError> {
        self.now().as_ref().map(|now| now.connection.clone()).ok_or_else(lost)
    }

    /// Starts another launcher in place of one that is gone.
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

    /// Hangs up, and waits until the launcher has ended everything and itself.
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
    // Waiting blocks, and a runtime may have one thread only.
    let _ended = tokio::task::spawn_blocking(move || launcher.wait()).await;
}
