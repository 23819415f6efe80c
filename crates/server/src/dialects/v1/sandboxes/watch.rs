//! Streams changes of files.
//!
//! ```text
//! event: change
//! data: {"kind":"created","path":"a/b.txt","directory":false,"move":null}
//! ```

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{RawQuery, State};
use axum::response::Response;
use belljar_engine::sandbox_handle::{ChangeKind, ChangeStream, FileChange};
use futures_util::stream;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::time::sleep;

use super::paths;
use crate::app_state::AppState;
use crate::error::Error;
use crate::http::events::{self, HEARTBEAT};
use crate::http::problem::error_json;
use crate::http::query::Query;
use crate::sandboxes::live_sandbox::SandboxInUse;

/// Streams changes in a directory as events, from the time of the response on.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/files/watch", tag = "files",
    params(
        ("id" = String, Path, description = "Sandbox id"),
        ("path" = String, Query, description = "Path of the directory: absolute, or relative to /workspace"),
        ("recursive" = Option<bool>, Query, description = "Whether to include all subdirectories"),
    ),
    responses(
        (status = 200, description = "Events `change`, each with the schema `Change`", body = String,
            content_type = "text/event-stream"),
        (status = 404, description = "No such directory or sandbox"),
        (status = 429, description = "The sandbox has the maximum number of watches"),
    )
)]
pub(crate) async fn start(
    State(state): State<Arc<AppState>>,
    used: SandboxInUse,
    query: RawQuery,
) -> Result<Response, Error> {
    let slot = state.streams.open(&used.tenant)?;
    let query = Query::parse(query, &["path", "recursive"])?;
    let recursive = query.parsed("recursive")?.unwrap_or(false);
    let changes = used.living.files().watch(paths::from_query(&query)?, recursive).await?;
    let watching = FileWatchEvents { changes: Some(changes), _used: used };
    let events = stream::unfold(watching, |mut watching| async {
        let event = watching.next().await?;
        Some((Ok::<_, Infallible>(event), watching))
    });
    Ok(slot.hold_during(events::as_events(Body::from_stream(events))))
}

struct FileWatchEvents {
    /// `None` after the last event.
    changes: Option<Box<dyn ChangeStream>>,
    /// Keeps the sandbox in use, so that it is not idle.
    _used: SandboxInUse,
}

impl FileWatchEvents {
    async fn next(&mut self) -> Option<Bytes> {
        let next = tokio::select! {
            biased;
            next = self.changes.as_mut()?.next() => next,
            () = sleep(HEARTBEAT) => return Some(Bytes::from_static(b": still watching\n\n")),
        };
        match next {
            Ok(change) => change.map(|change| events::typed_event("change", &ChangeEvent::from(change))),
            Err(error) => {
                self.changes = None;
                Some(events::event("error", error_json(&error.into()).as_bytes()))
            }
        }
    }
}

/// A change of a file, sent as an event `change`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Change")]
pub(crate) struct ChangeEvent {
    /// Whether it is a directory.
    directory: bool,
    /// Type of change: created, modified, removed, `moved_from`, `moved_to`, attributes, overflow or gone.
    kind: &'static str,
    /// Number that pairs the `moved_from` and `moved_to` of one move.
    r#move: Option<u32>,
    /// Path relative to the watched directory; empty for the directory itself.
    path: String,
}

impl From<FileChange> for ChangeEvent {
    fn from(change: FileChange) -> Self {
        let (kind, number) = match change.kind {
            ChangeKind::Created => ("created", None),
            ChangeKind::Modified => ("modified", None),
            ChangeKind::Removed => ("removed", None),
            ChangeKind::MovedFrom(number) => ("moved_from", Some(number)),
            ChangeKind::MovedTo(number) => ("moved_to", Some(number)),
            ChangeKind::Attributes => ("attributes", None),
            ChangeKind::Overflow => ("overflow", None),
            ChangeKind::Gone => ("gone", None),
        };
        Self { directory: change.directory, kind, r#move: number, path: change.path }
    }
}
