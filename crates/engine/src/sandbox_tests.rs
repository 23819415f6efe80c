use serde_json::json;

use super::*;
use crate::plan::{Network, Program};
use crate::profile::Profiles;
use crate::provider::Capabilities;
use crate::sandbox_handle::SandboxCapabilities;

fn with<T>(cannot_pause: Option<&str>, act: impl FnOnce(&AdmissionRules<'_>) -> T) -> T {
    let capabilities = Capabilities {
        sandboxes: Some(SandboxCapabilities {
            cannot_pause: cannot_pause.map(str::to_owned),
            ..SandboxCapabilities::default()
        }),
        host_paths: true,
        package_layers: true,
        single_hosts: true,
        images: crate::provider::ImageChoice::Unpacked,
        ..Capabilities::default()
    };
    act(&AdmissionRules::of_provider(&SelectedProvider::with_capabilities(capabilities)))
}

fn admit_with_profile(request: SandboxRequest, rules: &AdmissionRules<'_>) -> Result<AdmittedSandbox, Error> {
    let profiles = Profiles::built_in();
    let profile = profiles.of_request(request.profile.as_deref())?;
    admit_sandbox(request, profile, rules)
}

fn admitted(request: Value) -> Result<AdmittedSandbox, String> {
    let request = serde_json::from_value(request).map_err(|error| error.to_string())?;
    with(None, |rules| admit_with_profile(request, rules)).map_err(|error| error.to_string())
}

fn refused(request: Value) -> String {
    admitted(request).unwrap_err()
}

#[test]
fn all_fields_are_optional() {
    let sandbox = admitted(json!({})).unwrap();
    assert_eq!((sandbox.timeout, sandbox.on_timeout), (DEFAULT_SANDBOX_TIMEOUT, OnTimeout::Kill));
    assert_eq!(sandbox.plan.limits, Limits { timeout: DEFAULT_COMMAND_TIMEOUT, ..Limits::DEFAULT });
    assert_eq!(sandbox.plan.network, Network::None);
    let terminal =
        admitted(json!({"profile": "terminal", "env": {"A": "b"}, "on_timeout": "pause"})).unwrap();
    assert_eq!(terminal.plan.limits.timeout.as_secs(), 120);
    assert_eq!((terminal.plan.env["A"].as_str(), terminal.on_timeout), ("b", OnTimeout::Pause));
}

#[test]
fn invalid_values_are_refused_and_never_clamped() {
    assert!(refused(json!({"timeout_ms": 0})).contains("timeout_ms: must be above zero"));
    assert!(refused(json!({"timeout_ms": -5})).contains("timeout_ms: must be above zero"));
    assert!(refused(json!({"timeout_ms": 1_i64 << 60})).contains("above the ceiling of"));
    assert!(refused(json!({"limits": {"memory_bytes": 0}})).contains("limits.memory_bytes"));
    assert!(refused(json!({"image": "nope"})).contains("unknown image"));
    assert!(refused(json!({"playground": "/"})).contains("unknown field `playground`"));
    assert!(refused(json!({"on_timeout": "sleep"})).contains("unknown variant `sleep`"));
    assert!(refused(json!({"env": {"A=B": ""}})).contains("is not a valid variable"));
    let request = SandboxRequest { on_timeout: OnTimeout::Pause, ..SandboxRequest::default() };
    let why = with(Some("no freezer"), |rules| admit_with_profile(request, rules)).unwrap_err().to_string();
    assert_eq!(why, "on_timeout: sandboxes cannot be paused here: no freezer");
}

#[test]
fn volume_names_and_mount_points_are_checked() {
    let volume = |name: &str, path: &str| json!({"volumes": [{"name": name, "path": path}]});
    for path in ["/data", "/data/x", "/workspace/cache", "/mnt/a"] {
        assert!(admitted(volume("cache", path)).is_ok(), "{path}");
    }
    for path in ["data", "/", "/workspace", "/usr/lib", "/tmp/x", "/data/../etc", "/data//x", "/run/belljar"]
    {
        assert!(refused(volume("cache", path)).starts_with("volumes: "), "{path}");
    }
    for name in ["", "..", ".x", "a/b", "A", "-a", "a\0", &"x".repeat(65)] {
        assert!(refused(volume(name, "/data")).contains("is not a valid volume name"), "{name}");
    }
    let twice = json!({"volumes": [{"name": "a", "path": "/data/x"}, {"name": "b", "path": "/data"}]});
    assert!(refused(twice).contains("overlaps with another volume"));
    for neither in [json!([{"path": "/data"}]), json!([{"name": "a", "host": "b", "path": "/data"}])] {
        assert!(refused(json!({"volumes": neither})).contains("needs either"));
    }
    assert!(
        refused(json!({"volumes": [{"host": "/etc", "path": "/data"}]}))
            .contains("is not a valid volume name")
    );
    let host = admitted(json!({"volumes": [{"host": "sets", "path": "/data"}]})).unwrap();
    assert!(host.with_volumes(|_| None).unwrap_err().to_string().contains("no host folder 'sets'"));
    let sandbox = admitted(volume("cache", "/data")).unwrap();
    assert!(sandbox.clone().with_volumes(|_| None).unwrap_err().to_string().contains("no volume 'cache'"));
    let sandbox =
        sandbox.with_volumes(|volume| Some(format!("/srv/{}", volume.name.as_deref()?).into())).unwrap();
    assert_eq!(sandbox.plan.mounts[0].source, PathBuf::from("/srv/cache"));
    assert!(sandbox.plan.mounts[0].writable);
}

#[test]
fn tasks_in_a_sandbox_have_its_limits() {
    let sandbox = admitted(json!({"env": {"A": "1", "B": "1"}, "limits": {"disk_bytes": 1 << 20}})).unwrap();
    let inside = |request: Value| {
        let request = serde_json::from_value(request).unwrap();
        with(None, |rules| admit_in_sandbox(&sandbox, request, rules)).map_err(|error| error.to_string())
    };
    let task = inside(json!({"command": ["ls"], "env": {"B": "2"}, "limits": {"timeout_ms": 5}})).unwrap();
    assert_eq!((task.task.env["A"].as_str(), task.task.env["B"].as_str()), ("1", "2"));
    assert_eq!(task.plan.limits, Limits { timeout: Duration::from_millis(5), ..sandbox.plan.limits });
    assert!(matches!(task.task.program, Program::Command(_)));
    for (field, request) in [
        ("image", json!({"image": "host"})),
        ("network", json!({"network": {"mode": "full"}})),
        ("profile", json!({"profile": "data"})),
        ("limits.memory_bytes", json!({"limits": {"memory_bytes": 1 << 30}})),
        ("limits.timeout_ms", json!({"limits": {"timeout_ms": 0}})),
    ] {
        let mut whole = json!({"command": ["ls"]});
        whole.as_object_mut().unwrap().extend(request.as_object().unwrap().clone());
        assert!(inside(whole).unwrap_err().starts_with(field), "{field}");
    }
    let much = json!({"command": ["ls"], "files": [{"path": "a", "content": "x".repeat(2 << 20)}]});
    assert!(inside(much).unwrap_err().contains("do not fit"));
}

#[test]
fn tasks_in_a_sandbox_may_need_more_packages() {
    let profile = json!({"dependencies": {"packages": ["six"]}});
    let sandbox = admitted(profile).unwrap();
    let code = |dependencies: Value| {
        let request = json!({"language": "python", "code": "1", "dependencies": dependencies});
        serde_json::from_value(request).unwrap()
    };
    let inside = |dependencies| with(None, |rules| admit_in_sandbox(&sandbox, code(dependencies), rules));
    let more = inside(json!({"packages": ["idna"]})).unwrap().packages;
    assert_eq!((more.detect, more.packages), (true, vec!["idna".to_owned()]));
    assert!(!inside(json!({"detect": false})).unwrap().packages.detect);

    let fixed = SelectedProvider::with_capabilities(Capabilities {
        sandboxes: Some(SandboxCapabilities {
            cannot_pause: None,
            cannot_add_packages: Some("name them when you create it".to_owned()),
            ..SandboxCapabilities::default()
        }),
        package_layers: true,
        ..Capabilities::default()
    });
    let rules = AdmissionRules::of_provider(&fixed);
    let sandbox = admit_with_profile(SandboxRequest::default(), &rules).unwrap();
    let inside = |dependencies| admit_in_sandbox(&sandbox, code(dependencies), &rules);
    assert!(!inside(json!({})).unwrap().packages.detect, "code runs with what is there");
    for (dependencies, field) in
        [(json!({"packages": ["six"]}), "packages"), (json!({"detect": true}), "detect")]
    {
        let why = inside(dependencies).unwrap_err().to_string();
        assert_eq!(why, format!("dependencies.{field}: name them when you create it"));
    }
}

#[test]
fn sandboxes_need_provider_capabilities() {
    let provider = SelectedProvider::with_capabilities(Capabilities {
        sandboxes: Some(SandboxCapabilities::default()),
        ..Capabilities::default()
    });
    let rules = AdmissionRules::of_provider(&provider);
    let refused = |request: Value| {
        let request = serde_json::from_value(request).unwrap();
        admit_with_profile(request, &rules).unwrap_err().to_string()
    };
    let volume = refused(json!({"volumes": [{"name": "cache", "path": "/data/cache"}]}));
    assert!(volume.starts_with("volumes: provider 'fake' cannot mount host folders or volumes"), "{volume}");
    assert!(volume.contains("'host_paths'"), "{volume}");
    let packages = refused(json!({"dependencies": {"packages": ["numpy"]}}));
    assert!(
        packages.contains("dependencies.packages") && packages.contains("'package_layers'"),
        "{packages}"
    );
    let image = refused(json!({"image": "python:3"}));
    assert!(image.contains("'named_images'"), "{image}");
    let hosts = refused(json!({"network": {"mode": "hosts", "hosts": ["pypi.org"]}}));
    assert!(hosts.contains("'single_hosts'"), "{hosts}");
    // Tasks in an open sandbox do not need these capabilities again.
    let sandbox = admit_with_profile(serde_json::from_value(json!({})).unwrap(), &rules).unwrap();
    let task = serde_json::from_value(json!({"language": "python", "code": "1"})).unwrap();
    assert!(admit_in_sandbox(&sandbox, task, &rules).is_ok());
}
