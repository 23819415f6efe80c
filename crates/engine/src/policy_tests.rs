use serde_json::{Value, json};

use super::*;
use crate::admit::{AdmissionRules, admit};
use crate::profile::{Profile, Profiles};
use crate::provider::Capabilities;
use crate::provider_set::SelectedProvider;
use crate::request::{HostPaths, Request};

fn judged_with(request: Value, paths: HostPaths, floor: Option<&str>) -> Verdict {
    let request: Request = serde_json::from_value(request).unwrap();
    let capabilities = Capabilities { host_paths: true, ..Capabilities::default() };
    let mut profiles = Profiles::built_in();
    profiles.insert("narrow".to_owned(), Profile { policy: Some("strict".to_owned()), ..Profile::default() });
    profiles.insert("wide".to_owned(), Profile { policy: Some("off".to_owned()), ..Profile::default() });
    let provider = SelectedProvider::with_capabilities(capabilities);
    let rules = AdmissionRules { policy_floor: floor, ..AdmissionRules::of_provider(&provider) };
    let profile = profiles.of_request(request.profile.as_deref()).unwrap();
    admit(request, paths, profile, &rules).unwrap().verdict
}

fn judged(request: Value) -> Verdict {
    judged_with(request, HostPaths::default(), None)
}

fn refused(request: Value) -> Option<String> {
    judged(request).refusal
}

const SHELL: &str = "import os\nos.system('ls')";

#[test]
fn balanced_is_the_default_policy() {
    let bomb = json!({"language": "bash", "code": ":(){ :|:& };:"});
    assert_eq!(refused(bomb).unwrap(), "Security validation failed: dangerous code 'fork bomb' (line 1)");
    assert_eq!(refused(json!({"language": "python", "code": SHELL})), None);
    let warned = judged(json!({"language": "python", "code": "import requests\nrequests.get('http://a')"}));
    assert_eq!((warned.findings.len(), warned.findings[0].line), (1, Some(2)));
    assert!(warned.findings[0].message.ends_with("this run has no network"), "{warned:?}");
}

#[test]
fn requests_cannot_loosen_profile_or_tenant_policies() {
    let with = |policy: &str, profile: &str| {
        refused(json!({"language": "python", "code": SHELL, "policy": policy, "profile": profile}))
    };
    assert!(with("strict", "default").is_some());
    assert!(with("off", "default").is_none() && with("audit", "default").is_none());
    // The profile's policy applies if the request selects none, and in addition to the one that it selects.
    assert!(refused(json!({"language": "python", "code": SHELL, "profile": "narrow"})).is_some());
    assert!(with("off", "narrow").is_some());
    assert!(with("strict", "wide").is_some());
    let bomb = json!({"language": "bash", "code": ":(){ :|:& };:", "profile": "wide"});
    assert_eq!(refused(bomb), None);
    // The tenant's policy applies to every profile and every request.
    let under = |policy: &str| {
        let request = json!({"language": "python", "code": SHELL, "policy": policy, "profile": "wide"});
        judged_with(request, HostPaths::default(), Some("strict")).refusal
    };
    assert_eq!(under("off").unwrap(), "Security validation failed: dangerous call 'os.system' (line 2)");
}

#[test]
fn unknown_policies_are_refused() {
    let policies = Policies::default();
    let error = select_policies(&policies, Some("lax"), None, None).unwrap_err().to_string();
    assert_eq!(error, "policy: unknown policy 'lax'; known: audit, balanced, off, ragflow, strict");
    assert!(select_policies(&policies, None, None, Some("gone")).is_err());
}

#[test]
fn commands_are_checked_with_their_code_and_stdin() {
    for command in [
        json!({"command": ["rm", "-rf", "/"]}),
        json!({"command": ["bash", "-c", "rm -rf /"]}),
        json!({"command": ["python3", "-c", "import shutil\nshutil.rmtree('/')"]}),
        json!({"command": ["node", "-e", "require('fs').rmSync('/', {recursive: true})"]}),
        json!({"command": ["bash"], "stdin": "rm -rf /"}),
        json!({"command": ["python3", "-"], "stdin": "import shutil\nshutil.rmtree('/')"}),
        json!({"command": ["env", "A=1", "sh", "-c", "python3 -c 'import os; os.system(\"rm -rf /\")'"]}),
    ] {
        assert!(refused(command.clone()).is_some(), "{command}");
    }
    for command in [
        json!({"command": ["echo", "rm -rf /"]}),
        json!({"command": ["cat"], "stdin": "rm -rf /"}),
        json!({"command": ["python3", "tool.py"], "stdin": "rm -rf /"}),
    ] {
        assert_eq!(refused(command.clone()), None, "{command}");
    }
}

#[test]
fn input_files_are_checked_and_named() {
    let files = json!([{"path": "lib/a.py", "content": "import shutil\nshutil.rmtree('/')"},
        {"path": "notes.txt", "content": "rm -rf /"}]);
    let verdict = judged(json!({"command": ["python3", "lib/a.py"], "files": files}));
    assert!(verdict.findings.iter().all(|finding| finding.message.starts_with("lib/a.py: ")), "{verdict:?}");
    assert!(verdict.findings.iter().any(|finding| finding.rule == "PY-WIPE-ROOT"), "{verdict:?}");
    assert!(verdict.refusal.unwrap().ends_with(" of lib/a.py"));
    let long = json!([{"path": "a.py", "content": "x = 1\n".repeat(200_000)}]);
    let request = json!({"command": ["python3", "a.py"], "files": long, "policy": "strict"});
    assert!(refused(request).unwrap().contains("more than 256 KB"));
}

#[test]
fn code_in_a_host_workspace_is_checked() {
    let paths = HostPaths { source_in_workspace: Some("a.py".to_owned()), ..HostPaths::default() };
    let request = json!({"language": "python", "code": "import shutil\nshutil.rmtree('/')"});
    assert!(judged_with(request, paths, None).refusal.is_some());
}

#[test]
fn execution_settings_affect_findings() {
    let network = |mode: &str| {
        let code = "import socket\nsocket.socket()";
        judged(json!({"language": "python", "code": code, "network": {"mode": mode}})).findings.len()
    };
    assert_eq!((network("none"), network("full")), (1, 0));
    let mount = |text: &str, path: &str| {
        let mounts = vec![crate::admit::parse_mount(text).unwrap()];
        let paths = HostPaths { mounts, ..HostPaths::default() };
        let code = format!("open('{path}', 'w')");
        judged_with(json!({"language": "python", "code": code}), paths, None).findings.len()
    };
    assert_eq!((mount("/srv:/data:rw", "/data/x"), mount("/srv:/data", "/data/x")), (0, 1));
    assert_eq!((mount("/srv:/workspace/in:ro", "/workspace/in/x"), mount("/srv:/data", "/tmp/x")), (1, 0));
}

#[test]
fn findings_of_many_files_are_bounded() {
    let noisy = "import requests\nrequests.get('http://a')\n".repeat(5);
    let files: Vec<Value> =
        (0..200).map(|number| json!({"path": format!("{number}.py"), "content": noisy})).collect();
    let judged = judged(json!({"language": "python", "code": "1", "files": files}));
    assert_eq!(judged.findings.len(), MAX_FINDINGS);
}
