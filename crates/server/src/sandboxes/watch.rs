//! Changes of files, as they happen.
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
use belljar_engine::living::{Change, ChangeKind, Changes};
use futures_util::stream;
use serde_json::json;
use tokio::time::sleep;

use super::open::Used;
use super::paths;
use crate::error::Error;
use crate::events::{self, HEARTBEAT};
use crate::query::Query;
use crate::schema;
use crate::world::World;

/// Tells of changes in a folder, or in all below it, from when it answers.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/files/watch", tag = "files",
    params(
        ("id" = String, Path),
        ("path" = String, Query, description = "The folder; absolute, or relative to /workspace"),
        ("recursive" = Option<bool>, Query, description = "All below it as well"),
    ),
    responses(
        (status = 200, description = "Events `change`, each with a schema `Change`", body = String, content_type = "text/event-stream"),
        (status = 404, description = "No such folder or sandbox", body = schema::Problem),
        (status = 429, description = "There are as many as there may be in one sandbox", body = schema::Problem),
    )
)]
pub(crate) async fn start(
    State(world): State<Arc<World>>,
    used: Used,
    query: RawQuery,
) -> Result<Response, Error> {
    let place = world.streams.open(&used.tenant)?;
    let query = Query::parse(query, &["path", "recursive"])?;
    let recursive = query.parsed("recursive")?.unwrap_or(false);
    let changes = used.living.files().watch(paths::of(&query)?, recursive).await?;
    let watching = Watching { changes: Some(changes), _used: used };
    let events = stream::unfold(watching, |mut watching| async {
        let event = watching.next().await?;
        Some((Ok::<_, Infallible>(event), watching))
    });
    Ok(place.within(events::as_events(Body::from_stream(events))))
}

struct Watching {
    /// None when there will be no more.
    changes: Option<Box<dyn Changes>>,
    /// It is not idle meanwhile.
    _used: Used,
}

impl Watching {
    async fn next(&mut self) -> Option<Bytes> {
        let next = tokio::select! {
            biased;
            next = self.changes.as_mut()?.next() => next,
            () = sleep(HEARTBEAT) => return Some(Bytes::from_static(b": still watching\n\n")),
        };
        match next {
            Ok(change) => change.map(|change| events::event("change", shown(&change).as_bytes())),
            Err(error) => {
                self.changes = None;
                Some(events::event("error", events::problem(&error.into()).as_bytes()))
            }
        }
    }
}

fn shown(change: &Change) -> String {
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
    json!({"kind": kind, "path": change.path, "directory": change.directory, "move": number}).to_string()
}
