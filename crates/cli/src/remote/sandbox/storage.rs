//! Volumes and snapshots, which outlive sandboxes.

use hyper::Method;
use serde_json::json;

use super::args::{SnapshotCommand, VolumeCommand};
use super::{call, sandbox_url, show};
use crate::error::CliError;
use crate::remote::for_each_name;
use crate::remote::http::{Server, encode_part};
use crate::remote::show::Columns;
use crate::say;

const VOLUMES: Columns = &["name", "size_bytes", "used_bytes", "created"];
const SNAPSHOTS: Columns = &["id", "sandbox", "label", "size_bytes", "ready", "created"];

pub(super) fn volume(server: &Server, command: VolumeCommand, json: bool) -> Result<u8, CliError> {
    match command {
        VolumeCommand::Create { name, size } => {
            let mut new = json!({"name": name});
            if let Some(size) = size {
                new["size_bytes"] = size.into();
            }
            show::print_object(&call(server, Method::POST, "/v1/volumes", Some(&new))?)
        }
        VolumeCommand::List => {
            show::print_list(&call(server, Method::GET, "/v1/volumes", None)?, "volumes", VOLUMES, json)
        }
        VolumeCommand::Rm { names } => for_each_name(&names, |name| {
            call(server, Method::DELETE, &format!("/v1/volumes/{}", encode_part(name)), None).map(drop)
        }),
    }
}

pub(super) fn snapshot(server: &Server, command: SnapshotCommand, json: bool) -> Result<u8, CliError> {
    match command {
        SnapshotCommand::Create { id, label } => {
            let new = label.map_or_else(|| json!({}), |label| json!({"label": label}));
            let made = call(server, Method::POST, &sandbox_url(&id, "/snapshots"), Some(&new))?;
            if json {
                return show::print_object(&made);
            }
            say::answer(made["id"].as_str().unwrap_or_default());
            Ok(0)
        }
        SnapshotCommand::List => {
            show::print_list(&call(server, Method::GET, "/v1/snapshots", None)?, "snapshots", SNAPSHOTS, json)
        }
        SnapshotCommand::Rm { ids } => for_each_name(&ids, |id| {
            call(server, Method::DELETE, &format!("/v1/snapshots/{}", encode_part(id)), None).map(drop)
        }),
    }
}
