//! Fuzz targets for request bodies: any input gives a plan or an error that names a field. `cargo test` runs
//! each for one second, the group `fuzz` of `./test --all` for five minutes.

use std::time::Duration;

use bolero::{TypeGenerator, check, produce};
use serde_json::{Map, Value, json};

use super::*;
use crate::network::{HostRules, TargetHost};
use crate::profile::Profiles;
use crate::sandbox::SandboxRequest;

fn test_time() -> Duration {
    let full = std::env::var("BELLJAR_TEST_SIZE").is_ok_and(|size| size == "full");
    Duration::from_secs(if full { 300 } else { 1 })
}

/// Request fields, which get values of any type.
const FIELDS: &[&str] = &[
    "language",
    "code",
    "command",
    "stdin",
    "env",
    "limits",
    "network",
    "profile",
    "policy",
    "files",
    "mounts",
    "arguments",
    "timeout_ms",
    "memory_bytes",
    "cpus",
    "mode",
    "hosts",
    "packages",
    "dependencies",
    "require",
    "wait",
    "odd",
];
const TEXTS: &[&str] = &[
    "python",
    "bash",
    "hosts",
    "full",
    "none",
    "default",
    "../../etc",
    "a\0b",
    "*.example.com:443",
    "10.0.0.0/8",
    "",
];

#[derive(Debug, Clone, TypeGenerator)]
enum JsonPiece {
    Null,
    Flag(bool),
    Number(i64),
    Real(f64),
    Text(String),
    Known(u8),
    OpenObject(u8),
    OpenList,
    Close,
}

/// Builds a value from pieces, nested as they say.
fn value(pieces: &mut std::slice::Iter<'_, JsonPiece>, depth: u32) -> Option<Value> {
    let fits = |depth: u32| depth < 20;
    Some(match pieces.next()? {
        JsonPiece::Null => Value::Null,
        JsonPiece::Flag(flag) => json!(flag),
        JsonPiece::Number(number) => json!(number),
        JsonPiece::Real(number) => json!(number),
        JsonPiece::Text(text) => json!(text),
        JsonPiece::Known(at) => json!(TEXTS[usize::from(*at) % TEXTS.len()]),
        JsonPiece::OpenObject(at) if fits(depth) => {
            let mut object = Map::new();
            let mut at = usize::from(*at);
            while let Some(inner) = value(pieces, depth + 1) {
                object.insert(FIELDS[at % FIELDS.len()].to_owned(), inner);
                at += 1;
            }
            Value::Object(object)
        }
        JsonPiece::OpenList if fits(depth) => {
            let mut list = Vec::new();
            while let Some(inner) = value(pieces, depth + 1) {
                list.push(inner);
            }
            Value::Array(list)
        }
        JsonPiece::OpenObject(_) | JsonPiece::OpenList | JsonPiece::Close => return None,
    })
}

fn read(body: &[u8]) {
    let _any = serde_json::from_slice::<SandboxRequest>(body).is_ok();
    if let Ok(request) = serde_json::from_slice::<Request>(body) {
        let chosen = SelectedProvider::with_capabilities(Capabilities {
            single_hosts: true,
            ..Capabilities::default()
        });
        let rules =
            AdmissionRules { network_ceiling: NetworkCeiling::Names, ..AdmissionRules::of_provider(&chosen) };
        let profiles = Profiles::built_in();
        let Ok(profile) = profiles.of_request(request.profile.as_deref()) else { return };
        let _any = admit(request, HostPaths::default(), profile, &rules)
            .map(drop)
            .map_err(|error| error.to_string());
    }
}

#[test]
fn fuzz_bodies() {
    check!().with_test_time(test_time()).with_generator(produce::<Vec<JsonPiece>>()).for_each(|pieces| {
        let mut pieces = pieces.iter();
        let mut object = Map::new();
        for field in FIELDS {
            if let Some(value) = value(&mut pieces, 0) {
                object.insert((*field).to_owned(), value);
            }
        }
        read(Value::Object(object).to_string().as_bytes());
    });
}

#[test]
fn fuzz_bytes_of_bodies() {
    check!().with_test_time(test_time()).with_generator(produce::<Vec<u8>>()).for_each(|body| read(body));
}

#[test]
fn fuzz_hosts() {
    check!().with_test_time(test_time()).with_generator(produce::<(u8, String)>()).for_each(|(at, text)| {
        let given = format!("{}{text}", TEXTS[usize::from(*at) % TEXTS.len()]);
        if let Ok(rules) = HostRules::parse(&[&given]) {
            let written = rules.hosts();
            assert_eq!(HostRules::parse(&written).map(|again| again.hosts()), Ok(written), "{given}");
        }
        let _any = (PrivateRanges::parse(&[&given]), given.parse::<TargetHost>());
    });
}
