//! Creating, listing, changing and removing sandboxes.

use std::io::{self, IsTerminal};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use belljar_engine::limits::LimitsSpec;
use belljar_engine::quantity::{show_bytes, show_duration};
use hyper::Method;
use serde_json::{Map, Value, json};

use super::args::{CreateArgs, ListArgs, RmArgs};
use super::{call, sandbox_url, show as shown};
use crate::error::CliError;
use crate::intent::{parse_network, parse_variable};
use crate::os::{self, Interrupts};
use crate::remote::confirm::confirm_removal;
use crate::remote::http::Server;
use crate::remote::show::{Columns, format_duration};
use crate::remote::{for_each_name, list_query};
use crate::say;
use crate::table::plain_table;

const URL: &str = "/v1/sandboxes";
const SANDBOXES: Columns = &["id", "state", "image", "age", "ends", "metadata"];
const MAX_PAGE_SIZE: u32 = 200;

pub(super) fn create(server: &Server, args: CreateArgs, json: bool) -> Result<u8, CliError> {
    let opened = call(server, Method::POST, URL, Some(&request(args)?))?;
    if json {
        return shown::print_object(&opened);
    }
    say::answer(opened["id"].as_str().unwrap_or_default());
    Ok(0)
}

/// Builds the request. Absent options are omitted, so that the server applies its defaults.
fn request(args: CreateArgs) -> Result<Value, CliError> {
    let limits = LimitsSpec {
        memory_bytes: args.memory,
        cpus: args.cpus,
        disk_bytes: args.disk,
        processes: args.processes,
        ..LimitsSpec::default()
    };
    let variables = args.variables.iter().map(|text| parse_variable(text));
    let variables: Map<_, _> =
        variables.map(|pair| pair.map(|(k, v)| (k, v.into()))).collect::<Result<_, _>>()?;
    let volumes: Vec<_> = args.volumes.iter().map(|text| volume(text)).collect::<Result<_, _>>()?;
    let metadata: Map<_, _> = args.metadata.into_iter().map(|(key, value)| (key, value.into())).collect();
    let mut request = json!({"limits": limits, "env": variables, "volumes": volumes, "metadata": metadata});
    let packages = (!args.packages.is_empty()).then(|| json!({"packages": args.packages}));
    let fields = [
        ("dependencies", packages),
        ("image", args.image.map(Value::from)),
        ("profile", args.profile.map(Value::from)),
        ("policy", args.policy.map(Value::from)),
        ("timeout_ms", args.timeout.map(Value::from)),
        ("life_ms", args.life.map(Value::from)),
        ("root", args.root.map(Value::from)),
        ("disk_storage", args.disk_storage.map(Value::from)),
        ("on_timeout", args.on_timeout.map(Value::from)),
        ("network", args.network.map(|text| json!(parse_network(&text)))),
        ("gpus", args.gpus.map(|gpus| json!(gpus))),
        ("snapshot", args.snapshot.map(Value::from)),
    ];
    for (name, value) in fields.into_iter().filter_map(|(name, value)| Some((name, value?))) {
        request[name] = value;
    }
    Ok(request)
}

fn volume(text: &str) -> Result<Value, CliError> {
    let (rest, read_only) = text.strip_suffix(":ro").map_or((text, false), |rest| (rest, true));
    match rest.split_once(':') {
        Some((name, path)) if !name.is_empty() && path.starts_with('/') => {
            Ok(json!({"name": name, "path": path, "read_only": read_only}))
        }
        _ => Err(CliError::invalid(format!(
            "--volume: '{}': use NAME:/PATH or NAME:/PATH:ro",
            text.escape_debug()
        ))),
    }
}

pub(super) fn list(server: &Server, args: ListArgs, json: bool) -> Result<u8, CliError> {
    let query = list_query(args.limit, [("state", args.state), ("cursor", args.cursor)], args.metadata);
    let mut page = call(server, Method::GET, &format!("{URL}?{query}"), None)?;
    if !json {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        page["sandboxes"].as_array_mut().into_iter().flatten().for_each(|sandbox| add_times(sandbox, now));
    }
    shown::print_list(&page, "sandboxes", SANDBOXES, json)
}

/// Adds columns for age and end in human-readable form. A halted sandbox shows why instead of when it expires.
fn add_times(sandbox: &mut Value, now: Duration) {
    let at = |name: &str| sandbox[name].as_u64().map(Duration::from_millis);
    let age = at("created").map(|created| format_duration(now.saturating_sub(created)));
    let ends = match sandbox["halted"].as_str() {
        Some(why) => Some(why.to_owned()),
        None => at("expires").map(|expires| format!("in {}", format_duration(expires.saturating_sub(now)))),
    };
    (sandbox["age"], sandbox["ends"]) = (json!(age), json!(ends));
}

pub(super) fn show(server: &Server, id: &str) -> Result<u8, CliError> {
    shown::print_object(&call(server, Method::GET, &sandbox_url(id, ""), None)?)
}

pub(super) fn remove(server: &Server, args: RmArgs, json: bool) -> Result<u8, CliError> {
    let ids = if args.all { all_ids(server)? } else { args.ids };
    if args.all && !ids.is_empty() && !args.yes {
        confirm_removal(&format!("{} sandboxes with everything in them", ids.len()))?;
    }
    for_each_name(&ids, |id| {
        let ended = call(server, Method::DELETE, &sandbox_url(id, ""), None)?;
        say::answer(&if json { ended.to_string() } else { id.to_owned() });
        Ok(())
    })
}

fn all_ids(server: &Server) -> Result<Vec<String>, CliError> {
    let (mut ids, mut cursor) = (Vec::new(), None);
    loop {
        let query = list_query(MAX_PAGE_SIZE, [("cursor", cursor)], Vec::new());
        let page = call(server, Method::GET, &format!("{URL}?{query}"), None)?;
        let found = page["sandboxes"].as_array().into_iter().flatten();
        ids.extend(found.filter_map(|sandbox| sandbox["id"].as_str().map(str::to_owned)));
        let Some(next) = page["next_cursor"].as_str() else { return Ok(ids) };
        cursor = Some(next.to_owned());
    }
}

pub(super) fn extend(server: &Server, id: &str, timeout_ms: i64, json: bool) -> Result<u8, CliError> {
    let extended =
        call(server, Method::POST, &sandbox_url(id, "/extend"), Some(&json!({"timeout_ms": timeout_ms})))?;
    if json { shown::print_object(&extended) } else { Ok(0) }
}

/// Shows the network access; changes it first, if a new one is given.
pub(super) fn network_access(server: &Server, id: &str, hosts: &[String]) -> Result<u8, CliError> {
    let url = sandbox_url(id, "/network");
    shown::print_object(&match hosts {
        [] => call(server, Method::GET, &url, None)?,
        hosts => call(server, Method::PUT, &url, Some(&json!(parse_network(&hosts.join(",")))))?,
    })
}

/// Pauses or resumes a sandbox.
pub(super) fn pause_or_resume(server: &Server, id: &str, act: &str, json: bool) -> Result<u8, CliError> {
    let turned = call(server, Method::POST, &sandbox_url(id, &format!("/{act}")), None)?;
    if json { shown::print_object(&turned) } else { Ok(0) }
}

pub(super) fn stats(server: &Server, id: &str, watch: bool, json: bool) -> Result<u8, CliError> {
    let url = sandbox_url(id, "/stats");
    if !watch {
        print_stats(&call(server, Method::GET, &url, None)?, json);
        return Ok(0);
    }
    let redraws = io::stdout().is_terminal() && !json;
    os::runtime()?.block_on(async {
        let mut interrupts = Interrupts::listen()?;
        loop {
            let stats = server.call(Method::GET, &url, None).await?;
            if redraws {
                say::clear();
            }
            print_stats(&stats, json);
            tokio::select! {
                () = tokio::time::sleep(Duration::from_secs(1)) => {}
                () = interrupts.next() => return Ok(130),
            }
        }
    })
}

fn print_stats(stats: &Value, json: bool) {
    if json {
        return say::answer(&stats.to_string());
    }
    let mut table = plain_table();
    for (name, value) in stats.as_object().into_iter().flatten() {
        table.add_row([name.replace('_', " ").replace(" bytes", "").replace(" ms", ""), figure(name, value)]);
    }
    say::answer(&table.to_string());
}

/// Formats a number with its unit, if its name has one.
fn figure(name: &str, value: &Value) -> String {
    match value.as_u64() {
        Some(bytes) if name.ends_with("_bytes") => show_bytes(bytes),
        Some(millis) if name.ends_with("_ms") => show_duration(Duration::from_millis(millis)),
        _ if value.is_null() => "-".to_owned(),
        _ => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_units() {
        assert_eq!(figure("memory_bytes", &json!(2 << 20)), "2 MB");
        assert_eq!(
            (figure("processes", &json!(3)), figure("cpu_ms", &Value::Null)),
            ("3".into(), "-".into())
        );
    }

    #[test]
    fn volume_arguments_are_parsed() {
        assert_eq!(volume("a:/b").unwrap(), json!({"name": "a", "path": "/b", "read_only": false}));
        assert_eq!(volume("a:/b:ro").unwrap(), json!({"name": "a", "path": "/b", "read_only": true}));
        for bad in ["", "a", "a:", ":/b", "a:b", "a:ro"] {
            assert!(volume(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_are_human_readable() {
        let mut sandbox = json!({"created": 0, "expires": 7_200_000, "ended": null});
        add_times(&mut sandbox, Duration::from_secs(90));
        assert_eq!((&sandbox["age"], &sandbox["ends"]), (&json!("1m"), &json!("in 1h")));
        sandbox["halted"] = json!("expired: not used for 5m");
        add_times(&mut sandbox, Duration::from_secs(90));
        assert_eq!(sandbox["ends"], json!("expired: not used for 5m"));
    }
}
