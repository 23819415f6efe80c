//! `belljar sandbox watch`: prints file changes, one per line.

use hyper::Method;
use serde_json::Value;

use super::sandbox_url;
use crate::error::CliError;
use crate::os::{self, Interrupts};
use crate::remote::events::EventStream;
use crate::remote::http::{EVENTS, Server, query, server_error};
use crate::say;

pub(super) fn watch(
    server: &Server,
    id: &str,
    path: &str,
    recursive: bool,
    json: bool,
) -> Result<u8, CliError> {
    let asked = [("path".to_owned(), path.to_owned()), ("recursive".to_owned(), recursive.to_string())];
    let url = sandbox_url(id, &format!("/files/watch?{}", query(&asked)));
    os::runtime()?.block_on(async {
        let mut interrupts = Interrupts::listen()?;
        tokio::select! {
            ended = follow(server, &url, json) => ended.map(|()| 0),
            () = interrupts.next() => Ok(130),
        }
    })
}

async fn follow(server: &Server, url: &str, json: bool) -> Result<(), CliError> {
    let mut events = EventStream::new(server.send(Method::GET, url, EVENTS, None).await?);
    while let Some((name, data)) = events.next().await? {
        match name.as_str() {
            "change" => say::answer(&if json { data.to_string() } else { line(&data) }),
            "error" => return Err(server_error(&data["error"], "the watch ended")),
            _ => {}
        }
    }
    Ok(())
}

/// Formats a change. File names come from tenants, so they are escaped.
fn line(change: &Value) -> String {
    let text = |name: &str| say::printable(change[name].as_str().unwrap_or_default());
    let slash = if change["directory"] == true { "/" } else { "" };
    format!("{} {}{slash}", text("kind"), text("path"))
}
