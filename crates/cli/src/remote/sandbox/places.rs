//! Volumes and snapshots, which outlive sandboxes.

use hyper::Method;
use serde_json::json;

use super::args::{SnapshotCommand, VolumeCommand};
use super::life::each;
use super::{at, call, show};
use crate::failure::Failure;
use crate::remote::http::{Server, part};
use crate::remote::show::Columns;
use crate::say;

const VOLUMES: Columns = &["name", "size_bytes", "used_bytes", "created"];
const SNAPSHOTS: Columns = &["id", "sandbox", "label", "size_bytes", "ready", "created"];

pub(super) fn volume(server: &Server, command: VolumeCommand, json: bool) -> Result<u8, Failure> {
    match command {
        VolumeCommand::Create { name, size } => {
            let mut new = json!({"name": name});
            if let Some(size) = size {
                new["size_bytes"] = size.into();
            }
            show::one(&call(server, Method::POST, "/v1/volumes", Some(&new))?)
        }
        VolumeCommand::List => {
            show::list(&call(server, Method::GET, "/v1/volumes", None)?, "volumes", VOLUMES, json)
        }
        VolumeCommand::Rm { names } => each(&names, |name| {
            call(server, Method::DELETE, &format!("/v1/volumes/{}", part(name)), None).map(drop)
        }),
    }
}

pub(super) fn snapshot(server: &Server, command: SnapshotCommand, json: bool) -> Result<u8, Failure> {
    match command {
        SnapshotCommand::Create { id, label } => {
            let new = label.map_or_else(|| json!({}), |label| json!({"label": label}));
            let made = call(server, Method::POST, &at(&id, "/snapshots"), Some(&new))?;
            if json {
                return show::one(&made);
            }
            say::answer(made["id"].as_str().unwrap_or_default());
            Ok(0)
        }
        SnapshotCommand::List => {
            show::list(&call(server, Method::GET, "/v1/snapshots", None)?, "snapshots", SNAPSHOTS, json)
        }
        SnapshotCommand::Rm { ids } => each(&ids, |id| {
            call(server, Method::DELETE, &format!("/v1/snapshots/{}", part(id)), None).map(drop)
        }),
    }
}
