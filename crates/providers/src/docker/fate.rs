//! Why a container ended under whoever used it.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use belljar_engine::outcome::{Kernel, Limit};
use bollard::Docker as Client;
use bollard::models::EventMessage;
use bollard::query_parameters::EventsOptions;
use futures_util::StreamExt;

use super::daemon::Daemon;

/// How long the daemon may take to notice.
const NOTICING: Duration = Duration::from_secs(5);
/// How gVisor itself ends when it may not have another thread; a program that ends its own sandbox does so otherwise.
const NO_MORE_THREADS: &str = "2";

/// Why nobody in a container answers any more.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// The kernel ended all of it: in gVisor the memory of every program is one process's.
    Memory,
    /// gVisor has several threads for each of its programs'.
    Processes,
    /// Somebody ended it, and nobody says who.
    Ended,
    /// The daemon does not answer, for this reason.
    Unreachable(String),
}

impl Fate {
    /// The limit that it reached.
    pub(super) fn limit(&self) -> Option<Limit> {
        match self {
            Self::Memory => Some(Limit::Memory),
            Self::Processes => Some(Limit::Processes),
            Self::Ended | Self::Unreachable(_) => None,
        }
    }
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("its memory ran out (limits.memory_bytes)"),
            Self::Processes => f.write_str("gVisor had no room for more processes (limits.processes)"),
            Self::Ended => {
                f.write_str("its container was ended, by somebody else or because its memory ran out")
            }
            Self::Unreachable(why) => write!(f, "Docker's daemon went away under it: {why}"),
        }
    }
}

impl Daemon {
    /// What became of a container. It removes itself when it ends, so that nobody but the daemon's list of events still knows.
    pub(super) async fn fate(&self, id: &str) -> Fate {
        let client = match self.connected().await {
            Ok(connected) => &connected.client,
            Err(error) => return Fate::Unreachable(error.to_string()),
        };
        if let Err(error) = client.ping().await {
            return Fate::Unreachable(self.explain("ask for it", &error).to_string());
        }
        let told = tokio::time::timeout(NOTICING, last_words(client, id)).await;
        let (memory, status) = told.unwrap_or_default();
        let gvisor = super::kernel(&self.settings) == Kernel::Gvisor;
        match status.as_deref() {
            _ if memory => Fate::Memory,
            Some(NO_MORE_THREADS) if gvisor => Fate::Processes,
            _ => Fate::Ended,
        }
    }
}

/// Whether its memory ran out, and its exit status.
async fn last_words(client: &Client, id: &str) -> (bool, Option<String>) {
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
