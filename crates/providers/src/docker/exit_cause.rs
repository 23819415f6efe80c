//! Why a container ended while in use. A limit is the run's own ending; any other cause is a failure of the
//! provider.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use belljar_engine::outcome::{Kernel, Limit};
use bollard::Docker as Client;
use bollard::models::EventMessage;
use bollard::query_parameters::EventsOptions;
use futures_util::StreamExt;

use super::daemon::Daemon;

/// Time allowed for the daemon to report the event.
const EVENT_TIMEOUT: Duration = Duration::from_secs(5);
/// gVisor's exit status when it cannot create another thread. A program that kills its own sandbox causes a
/// different one.
const GVISOR_THREAD_FAILURE: &str = "2";

/// The reason why a container ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ExitCause {
    /// Out of memory. In gVisor the kernel kills the whole sandbox, because one process holds the memory of
    /// every program.
    Memory,
    /// Out of threads: gVisor runs several for each thread of a program.
    Processes,
    /// Ended for an unknown reason.
    Ended,
    /// The daemon does not answer, for this reason.
    Unreachable(String),
}

impl ExitCause {
    /// Returns the limit that was hit.
    pub(super) fn limit(&self) -> Option<Limit> {
        match self {
            Self::Memory => Some(Limit::Memory),
            Self::Processes => Some(Limit::Processes),
            Self::Ended | Self::Unreachable(_) => None,
        }
    }
}

impl fmt::Display for ExitCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("out of memory (limits.memory_bytes)"),
            Self::Processes => f.write_str("gVisor could not create more processes (limits.processes)"),
            Self::Ended => f.write_str("the container was killed, or it ran out of memory"),
            Self::Unreachable(why) => write!(f, "the Docker daemon became unreachable: {why}"),
        }
    }
}

impl Daemon {
    /// Returns why a container ended. It is removed automatically when it ends, so only the daemon's event
    /// log still knows.
    pub(super) async fn exit_cause(&self, id: &str) -> ExitCause {
        let client = match self.connection().await {
            Ok(connected) => &connected.client,
            Err(error) => return ExitCause::Unreachable(error.to_string()),
        };
        if let Err(error) = client.ping().await {
            return ExitCause::Unreachable(self.explain("ping the daemon", &error).to_string());
        }
        let events = tokio::time::timeout(EVENT_TIMEOUT, read_end_events(client, id)).await;
        let (memory, status) = events.unwrap_or_default();
        let gvisor = super::kernel(&self.settings) == Kernel::Gvisor;
        match status.as_deref() {
            _ if memory => ExitCause::Memory,
            Some(GVISOR_THREAD_FAILURE) if gvisor => ExitCause::Processes,
            _ => ExitCause::Ended,
        }
    }
}

/// Returns whether the container ran out of memory, and its exit status.
async fn read_end_events(client: &Client, id: &str) -> (bool, Option<String>) {
    let filter = |name: &str, values: &[&str]| {
        (name.to_owned(), values.iter().map(|value| (*value).to_owned()).collect::<Vec<_>>())
    };
    let filters = HashMap::from([filter("container", &[id]), filter("event", &["oom", "die"])]);
    let all = EventsOptions { since: Some("1".to_owned()), filters: Some(filters), ..Default::default() };
    let mut events = Box::pin(client.events(Some(all)));
    let mut memory = false;
    while let Some(Ok(EventMessage { action, actor, .. })) = events.next().await {
        match action.as_deref() {
            Some("oom") => memory = true,
            _ => return (memory, actor.and_then(|actor| actor.attributes?.remove("exitCode"))),
        }
    }
    (memory, None)
}
