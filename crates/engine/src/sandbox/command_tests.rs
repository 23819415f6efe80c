use serde_json::{Value, json};

use super::*;
use crate::limits::Limits;
use crate::profile::Profiles;
use crate::provider::Capabilities;
use crate::provider_set::SelectedProvider;
use crate::sandbox::admit_sandbox;
use crate::sandbox_handle::SandboxCapabilities;

fn admitted_in(sandbox: Value, request: Value) -> Result<AdmittedCommand, String> {
    let capabilities =
        Capabilities { sandboxes: Some(SandboxCapabilities::default()), ..Capabilities::default() };
    let profiles = Profiles::built_in();
    let ceiling = Limits { timeout: std::time::Duration::from_secs(600), ..Limits::CEILING };
    let provider = SelectedProvider::with_capabilities(capabilities);
    let rules = AdmissionRules { ceiling: &ceiling, ..AdmissionRules::of_provider(&provider) };
    let sandbox = serde_json::from_value(sandbox).unwrap();
    let sandbox = admit_sandbox(sandbox, profiles.of_request(None).unwrap(), &rules).unwrap();
    let request = serde_json::from_value(request).map_err(|error| error.to_string())?;
    admit_command(&sandbox, request, &rules).map_err(|error| error.to_string())
}

fn admitted(request: Value) -> Result<AdmittedCommand, String> {
    admitted_in(json!({"limits": {"timeout_ms": 5000}}), request)
}

#[test]
fn absent_fields_have_defaults() {
    let line = admitted(json!({"shell": "a | b"})).unwrap();
    let usual = StartCommand { timeout_ms: Some(5_000), ..StartCommand::shell("a | b") };
    assert_eq!((line.start, line.stdin, line.close_stdin), (usual, None, false));
    let background = admitted(json!({"command": ["a", "-b"], "background": true})).unwrap();
    assert_eq!(background.start, StartCommand::program(["a", "-b"]));
    assert!(background.background);
    let fed = admitted(json!({"command": ["a"], "stdin": "x"})).unwrap();
    assert_eq!((fed.start.stdin, fed.stdin, fed.close_stdin), (StdinMode::Open, Some(b"x".to_vec()), true));
    let open = admitted(json!({"command": ["a"], "stdin": "", "stdin_open": true})).unwrap();
    assert_eq!((open.start.stdin, open.close_stdin), (StdinMode::Open, false));
    // A sandbox with little memory keeps less.
    let small = json!({"limits": {"memory_bytes": 8 << 20}});
    assert_eq!(admitted_in(small, json!({"shell": "a"})).unwrap().start.keep_bytes, 128 << 10);
}

#[test]
fn invalid_fields_are_refused_by_name() {
    let cases = [
        (json!({}), "command: is missing"),
        (json!({"command": ["a"], "shell": "b"}), "shell: cannot be combined"),
        (json!({"command": []}), "command: is empty"),
        (json!({"command": ["", "a"]}), "command: is empty"),
        (json!({"shell": ""}), "shell: is empty"),
        (json!({"command": ["a\0b"]}), "command: has a NUL"),
        (json!({"shell": "a".repeat(70_000)}), "shell: has a NUL or more"),
        (json!({"shell": "a", "env": {"A=B": ""}}), "env: 'A=B'"),
        (json!({"shell": "a", "env": {"A": "\0"}}), "env: 'A'"),
        (json!({"shell": "a", "env": {"A": "x".repeat(70_000)}}), "env: more than 64 KB"),
        (json!({"shell": "a", "workdir": "a\0"}), "workdir:"),
        (json!({"shell": "a", "timeout_ms": 0}), "timeout_ms: must be above zero"),
        (json!({"shell": "a", "timeout_ms": -1}), "timeout_ms: must be above zero"),
        (json!({"shell": "a", "timeout_ms": 601_000}), "timeout_ms: 601 s is above the ceiling"),
        (json!({"shell": "a", "keep_bytes": 1}), "keep_bytes: must be from 64 KB to 64 MB"),
        (json!({"shell": "a", "keep_bytes": -1}), "keep_bytes:"),
        (json!({"shell": "a", "keep_bytes": 1_u64 << 32}), "keep_bytes:"),
        (json!({"shell": "a", "terminal": {"rows": 0, "columns": 80}}), "terminal: rows and columns"),
        (json!({"shell": "a", "terminal": {"rows": -1, "columns": 80}}), "invalid value"),
        (json!({"shell": "a", "background": true, "stdin": "x".repeat(70_000)}), "stdin: more than 64 KB"),
        (json!({"shell": "a", "tty": true}), "unknown field `tty`"),
    ];
    for (request, wanted) in cases {
        let shown: String = request.to_string().chars().take(80).collect();
        let refused = admitted(request).unwrap_err();
        assert!(refused.contains(wanted), "{shown}: {refused}");
    }
    // The sandbox's variables count as well.
    let full = json!({"env": {"A": "x".repeat(60_000)}});
    let more = json!({"shell": "a", "env": {"B": "x".repeat(6_000)}});
    assert!(admitted_in(full, more).unwrap_err().contains("env: more than 64 KB"));
}

#[test]
fn signals_by_name_or_number() {
    let admit = |value: Value| {
        serde_json::from_value::<SignalSpec>(value).ok().and_then(|spec| admit_signal(&spec).ok())
    };
    for two in [json!("SIGINT"), json!("INT"), json!(2)] {
        assert_eq!(admit(two), Some(2));
    }
    for none in [json!(0), json!(-9), json!(64), json!(1_u64 << 33), json!("int"), json!("SIG"), json!(null)]
    {
        assert_eq!(admit(none.clone()), None, "{none}");
    }
}
