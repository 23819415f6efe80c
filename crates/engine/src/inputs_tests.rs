//! Inputs give the same tasks, verdicts and errors as separate requests.

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::profile::{Profile, Profiles};
use crate::testing::FakeProvider;

fn engine() -> Engine {
    let fake = FakeProvider::new("fake", |_, _, _, _| unreachable!("nothing runs here"));
    let mut profiles = Profiles::built_in();
    let env = [("A", "profile"), ("B", "profile")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    profiles.insert("own".to_owned(), Profile { env: BTreeMap::from(env), ..Profile::default() });
    Engine::new(Arc::new(fake), profiles, Limits::CEILING)
}

fn parsed(request: &Value) -> Request {
    serde_json::from_value(request.clone()).unwrap()
}

fn admitted(request: &Value) -> AdmittedProgram {
    engine().admit_program(parsed(request), HostPaths::default(), TenantRules::default()).unwrap()
}

fn input(value: Value) -> Input {
    serde_json::from_value(value).unwrap()
}

/// Returns the request that an input amounts to.
fn merged(request: &Value, input: &Value) -> Value {
    let mut merged = request.clone();
    for (name, value) in input.as_object().unwrap() {
        match (&mut merged[name], value) {
            (Value::Object(all), Value::Object(own)) if name == "env" => all.extend(own.clone()),
            (Value::Array(all), Value::Array(own)) => {
                all.retain(|file| own.iter().all(|own| own["path"] != file["path"]));
                all.extend(own.clone());
            }
            (field, value) => *field = value.clone(),
        }
    }
    merged
}

fn shared() -> Value {
    json!({"language": "python", "code": "def main(n): return n", "arguments": {"n": 0}, "stdin": "base",
           "profile": "own", "env": {"A": "request", "C": "request"}, "metadata": {"m": 1},
           "files": [{"path": "a", "content": "1"}, {"path": "run.sh", "content": "echo 1"}],
           "limits": {"disk_bytes": 65_536}})
}

#[test]
fn an_input_gives_the_task_of_a_request_with_it() {
    let program = admitted(&shared());
    for own in [
        json!({}),
        json!({"arguments": {"n": 1e300}}),
        json!({"stdin": ""}),
        json!({"stdin_base64": "AP8="}),
        json!({"env": {"A": "input", "D": "input"}}),
        json!({"files": [{"path": "a", "content": "2"}, {"path": "b/c", "content_base64": "AA==", "mode": "0600"}]}),
    ] {
        let mut alone = merged(&shared(), &own);
        if own.get("stdin_base64").is_some() {
            alone.as_object_mut().unwrap().remove("stdin");
        }
        let alone = engine().admit(parsed(&alone), HostPaths::default()).unwrap();
        let with_input = program.with_input(&input(own.clone())).unwrap();
        assert_eq!(format!("{:?}", with_input.task), format!("{:?}", alone.task), "{own}");
        assert_eq!(format!("{:?}", with_input.plan), format!("{:?}", alone.plan), "{own}");
        assert_eq!(format!("{:?}", with_input.verdict), format!("{:?}", alone.verdict), "{own}");
        assert_eq!(with_input.metadata, alone.metadata);
    }
}

#[test]
fn what_an_input_adds_is_checked_by_the_policies() {
    let bomb = ":(){ :|:& };:";
    let refusal = |program: &AdmittedProgram, own: Value| {
        let admitted = program.with_input(&input(own)).unwrap();
        admitted.verdict().refusal.clone()
    };
    let code = admitted(&shared());
    let file = json!({"files": [{"path": "x.sh", "content": bomb}]});
    assert!(refusal(&code, file.clone()).unwrap().contains("fork bomb"));
    assert_eq!(refusal(&code, json!({"stdin": bomb})), None);
    // It also replaces the verdict on what it replaces.
    let with_bomb =
        admitted(&json!({"language": "python", "code": "1", "files": [{"path": "x.sh", "content": bomb}]}));
    assert!(refusal(&with_bomb, json!({})).is_some());
    assert_eq!(refusal(&with_bomb, json!({"files": [{"path": "x.sh", "content": "echo"}]})), None);
    let shell = admitted(&json!({"command": ["sh"], "stdin": "echo"}));
    assert!(refusal(&shell, json!({"stdin": bomb})).unwrap().contains("fork bomb"));
    assert!(refusal(&shell, file).is_some());
    assert_eq!(refusal(&shell, json!({})), None);
    let off = admitted(&json!({"command": ["sh"], "policy": "off"}));
    assert_eq!(refusal(&off, json!({"stdin": bomb})), None);
    assert!(!shell.is_quick(&input(json!({"stdin": bomb}))) && shell.is_quick(&input(json!({}))));
    assert!(code.is_quick(&input(json!({"stdin": bomb}))));
    assert!(!code.is_quick(&input(json!({"files": [{"path": "x.sh", "content": bomb}]}))));
}

#[test]
fn a_wrong_input_has_the_error_of_a_request_with_it() {
    let program = admitted(&shared());
    let long = "x".repeat(40_000);
    for own in [
        json!({"files": [{"path": "../a", "content": ""}]}),
        json!({"files": [{"path": "a"}]}),
        json!({"files": [{"path": "b", "content": ""}, {"path": "b", "content": ""}]}),
        json!({"files": [{"path": "main.py", "content": ""}]}),
        json!({"files": [{"path": "b", "content": "x".repeat(65_530)}]}),
        json!({"env": {"A=": ""}}),
        json!({"env": {"D": long, "E": long}}),
        json!({"stdin": "a", "stdin_base64": "YQ=="}),
    ] {
        let alone = engine().admit(parsed(&merged(&shared(), &own)), HostPaths::default()).unwrap_err();
        let error = program.with_input(&input(own.clone())).unwrap_err();
        assert_eq!((error.code(), error.to_string()), (alone.code(), alone.to_string()), "{own}");
    }
    // Just within the limits.
    let fits = json!({"files": [{"path": "a", "content": ""}, {"path": "b", "content": "x".repeat(65_530)}]});
    program.with_input(&input(fits)).unwrap();
}

#[test]
fn variables_count_together_with_the_shared_ones() {
    let long = "x".repeat(40_000);
    let program = admitted(&json!({"language": "bash", "code": "1", "env": {"A": long}}));
    let error = program.with_input(&input(json!({"env": {"B": long}}))).unwrap_err();
    assert_eq!(error.to_string(), "env: more than 64 KB; put it into a file instead");
    program.with_input(&input(json!({"env": {"A": long}}))).unwrap();
    let command = admitted(&json!({"command": ["cat"]}));
    let error = command.with_input(&input(json!({"arguments": {}}))).unwrap_err();
    assert_eq!(error.to_string(), "arguments: cannot be combined with command");
}

#[test]
fn a_request_with_inputs_is_refused_where_one_execution_is_expected() {
    let refused = |request: Value| {
        engine().admit(parsed(&request), HostPaths::default()).map(drop).unwrap_err().to_string()
    };
    let mut request = shared();
    request["inputs"] = json!([{}]);
    assert!(refused(request).starts_with("inputs: one program runs with many inputs by POST /v1/executions"));
    let mut request = shared();
    request["jobs"] = json!(2);
    assert!(refused(request).starts_with("jobs: "));
    let folder = HostPaths { host_workspace: Some("/".into()), ..HostPaths::default() };
    let refused = engine().admit_program(parsed(&shared()), folder, TenantRules::default()).unwrap_err();
    assert!(refused.to_string().starts_with("inputs: cannot share a folder"));
}
