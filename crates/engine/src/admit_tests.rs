use super::*;
use crate::plan::{CodeSource, Program};
use crate::profile::Profiles;

fn check(json: serde_json::Value) -> Result<AdmittedRequest, Error> {
    check_with(json, HostPaths::default())
}

fn check_with(json: serde_json::Value, paths: HostPaths) -> Result<AdmittedRequest, Error> {
    let capabilities = Capabilities {
        missing: vec![crate::provider::MissingLayer {
            layer: Layer::CgroupCpu,
            reason: "no cpu controller".to_owned(),
            remedy: "mount it".to_owned(),
        }],
        host_paths: true,
        package_layers: true,
        single_hosts: true,
        images: ImageChoice::Unpacked,
        ..Capabilities::default()
    };
    check_by(capabilities, json, paths)
}

fn check_by(
    capabilities: Capabilities,
    json: serde_json::Value,
    paths: HostPaths,
) -> Result<AdmittedRequest, Error> {
    let request: Request = serde_json::from_value(json).unwrap();
    check_among(&Profiles::built_in(), capabilities, request, paths)
}

fn check_among(
    profiles: &Profiles,
    capabilities: Capabilities,
    request: Request,
    paths: HostPaths,
) -> Result<AdmittedRequest, Error> {
    let profile = profiles.of_request(request.profile.as_deref())?;
    let provider = SelectedProvider::with_capabilities(capabilities);
    admit(request, paths, profile, &AdmissionRules::of_provider(&provider))
}

fn refused(json: serde_json::Value) -> String {
    check(json).unwrap_err().to_string()
}

use serde_json::json;

#[test]
fn language_and_code_are_enough() {
    let admitted = check(json!({"language": "py", "code": "print(1)"})).unwrap();
    assert_eq!(admitted.plan.limits, Limits::DEFAULT);
    assert_eq!(admitted.plan.network, Network::None);
    assert_eq!(admitted.task.workdir, "/workspace");
}

#[test]
fn unknown_fields_are_refused_by_name() {
    let error = serde_json::from_value::<Request>(json!({"language": "py", "codes": "1"})).unwrap_err();
    assert!(error.to_string().contains("codes"));
}

#[test]
fn invalid_code_is_refused() {
    assert!(refused(json!({"language": "py", "code": " \n"})).contains("code: is empty"));
    assert!(refused(json!({"language": "py"})).contains("code: is missing"));
    assert!(refused(json!({"code": "1"})).contains("language: is missing"));
    assert!(refused(json!({"language": "klingon", "code": "1"})).contains("unknown language 'klingon'"));
    assert!(refused(json!({"language": "py", "code_base64": "/w=="})).contains("is not UTF-8 (byte 0)"));
    assert!(refused(json!({"language": "py", "code_base64": "*"})).contains("not base64"));
    assert!(
        refused(json!({"language": "py", "code": "x".repeat(100 << 20)}))
            .contains("100 MB is more than 16 MB")
    );
    assert!(refused(json!({"language": "py", "code": "1", "code_base64": "MQ=="})).contains("both"));
    assert!(refused(json!({"command": []})).contains("command: is empty"));
    assert!(refused(json!({"command": ["ls"], "language": "py"})).contains("cannot be combined"));
}

#[test]
fn paths_outside_the_workspace_are_refused() {
    for (path, why) in [
        ("../a", "would leave"),
        ("a/../../b", "would leave"),
        ("/etc/passwd", "is absolute"),
        ("a\0b", "NUL"),
        ("", "empty or '.' component"),
        ("a//b", "empty or '.' component"),
        ("./a", "empty or '.' component"),
    ] {
        let error = refused(json!({"language": "py", "code": "1", "files": [{"path": path, "content": ""}]}));
        assert!(error.contains(why), "{path:?}: {error}");
    }
    let twice = json!([{"path": "a", "content": ""}, {"path": "a", "content": ""}]);
    assert!(refused(json!({"language": "py", "code": "1", "files": twice})).contains("listed twice"));
    let main = json!([{"path": "main.py", "content": ""}]);
    assert!(refused(json!({"language": "py", "code": "1", "files": main})).contains("code is written to"));
    let setuid = json!([{"path": "a", "content": "", "mode": "4755"}]);
    assert!(refused(json!({"language": "py", "code": "1", "files": setuid})).contains("0000 to 0777"));
}

#[test]
fn missing_or_unknown_layers_are_refused() {
    assert!(
        refused(json!({"language": "py", "code": "1", "require": ["glass"]}))
            .contains("unknown layer 'glass'")
    );
    let error = refused(json!({"language": "py", "code": "1", "require": ["cgroup.cpu"]}));
    assert_eq!(error, "require: layer 'cgroup.cpu' is not enforced here: no cpu controller; mount it");
    assert!(check(json!({"language": "py", "code": "1", "require": ["seccomp"]})).is_ok());
}

#[test]
fn network_modes() {
    let with = |network| json!({"language": "py", "code": "1", "network": network});
    assert_eq!(check(with(json!({"mode": "full"}))).unwrap().plan.network, Network::Full);
    assert!(
        refused(with(json!({"mode": "hosts", "hosts": ["https://a"]})))
            .contains("network.hosts: 'https://a' is a URL")
    );
    assert!(refused(with(json!({"mode": "hosts"}))).contains("network.hosts: is empty"));
    assert!(refused(with(json!({"mode": "most"}))).contains("use none, hosts, internet or full"));
}

#[test]
fn a_network_mode_may_be_a_plain_string() {
    let with = |network| json!({"language": "py", "code": "1", "network": network});
    let mode = |network| check(with(network)).unwrap().plan.network.mode();
    for plain in ["none", "internet", "full"] {
        assert_eq!((mode(json!(plain)), mode(json!({"mode": plain}))), (plain, plain));
    }
    assert!(refused(with(json!("hosts"))).contains("network.hosts: is empty; name a host"));
    assert!(refused(with(json!("pypi.org"))).contains(r#"{"mode": "hosts", "hosts": ["pypi.org"]}"#));
    assert!(
        refused(with(json!({"mode": "internet", "hosts": ["a.com"]})))
            .contains("only allowed with mode 'hosts'")
    );
    let wrong = |network| serde_json::from_value::<Request>(with(network)).unwrap_err().to_string();
    assert!(wrong(json!({"mode": "none", "host": []})).contains("unknown field `host`"));
    assert!(wrong(json!(true)).contains("a network mode, or an object"));
}

#[test]
fn metadata_is_echoed_exactly_or_refused() {
    let with = |json: &str| {
        let request = format!("{{\"language\": \"python\", \"code\": \"1\", \"metadata\": {json}}}");
        serde_json::from_str(&request).unwrap()
    };
    assert!(check(with("{\"id\": 18446744073709551615, \"x\": [0.1, -5]}")).is_ok());
    let refused = refused(with("{\"a\": {\"id\": 123456789012345678901234567890}}"));
    assert_eq!(refused, "metadata: 'a' has an integer beyond 64 bits; pass it as a string");
}

#[test]
fn arguments_must_fit_the_language() {
    assert!(check(json!({"language": "bash", "code": "1", "arguments": {"a_1": 1}})).is_ok());
    assert!(
        refused(json!({"language": "bash", "code": "1", "arguments": {"1a": 1}}))
            .contains("name of a variable")
    );
    assert!(
        refused(json!({"language": "perl", "code": "1", "arguments": {}})).contains("not supported for perl")
    );
}

#[test]
fn mounts() {
    let mount = parse_mount("/data/a:b:/in/x:rw").unwrap();
    assert_eq!(
        (mount.source.to_str(), &*mount.destination, mount.writable),
        (Some("/data/a:b"), "/in/x", true)
    );
    assert!(!parse_mount("rel:/x").unwrap().writable);
    for bad in [
        "/a",
        ":/x",
        "/a:x",
        "/a:/x/../y",
        "/a:/proc/x",
        "/a:/workspace",
        "/a:/home/sandbox",
        "/a:/run/belljar",
        "/a:/",
    ] {
        assert!(parse_mount(bad).is_err(), "{bad}");
    }
}

#[test]
fn code_in_a_host_workspace_is_not_copied() {
    let paths = HostPaths { source_in_workspace: Some("src/a.py".to_owned()), ..HostPaths::default() };
    let admitted = check_with(json!({"language": "py", "code": "1"}), paths).unwrap();
    let Program::Code { source, .. } = admitted.task.program else { panic!() };
    assert_eq!(source, CodeSource::Existing("src/a.py".to_owned()));
}

#[test]
fn a_million_random_paths_stay_in_the_workspace() {
    use std::path::{Component, Path};
    const PIECES: [&str; 16] = [
        "..", ".", "/", "//", "\0", "\\", "a", "..a", "a..", "%2e%2e", "%2f", "\u{ff0e}", " ", "\n", "~", "-",
    ];
    let (mut state, mut accepted) = (7_117_u64, 0);
    for _ in 0..1_000_000 {
        let mut name = String::new();
        for _ in 0..=state % 7 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            name += PIECES[(state >> 60) as usize];
        }
        if check_relative(&name).is_ok() {
            accepted += 1;
            let below = Path::new(&name).components().all(|part| matches!(part, Component::Normal(_)));
            assert!(below && !name.is_empty() && !name.contains('\0'), "{name:?}");
        }
    }
    assert!(accepted > 100_000, "{accepted}");
}

#[test]
fn unsupported_capabilities_are_refused_by_name() {
    let refused = |json, paths| check_by(Capabilities::default(), json, paths).unwrap_err().to_string();
    let program = || json!({"command": ["true"]});
    let with = |field: &str, value: serde_json::Value| {
        let mut request = program();
        request[field] = value;
        refused(request, HostPaths::default())
    };
    let playground = HostPaths { host_workspace: Some("/srv".into()), ..HostPaths::default() };
    let mounts = HostPaths { mounts: vec![parse_mount("/srv:/data").unwrap()], ..HostPaths::default() };
    let folder = HostPaths { image: Some("/srv".into()), ..HostPaths::default() };
    for (said, name) in [
        (refused(program(), playground), "workspace: provider 'fake' cannot mount host folders"),
        (refused(program(), mounts), "'host_paths'"),
        (refused(program(), folder), "'unpacked_images'"),
        (with("image", json!("host")), "'unpacked_images'"),
        (with("image", json!("python:3")), "'named_images'"),
        (with("network", json!({"mode": "hosts", "hosts": ["pypi.org"]})), "'single_hosts'"),
        (
            with("network", json!("internet")),
            "use network 'none' or 'full' with it (it does not support 'single_hosts'",
        ),
        (with("dependencies", json!({"packages": ["numpy"]})), "'package_layers'"),
    ] {
        assert!(said.contains(name), "{said}");
    }
    assert!(check_by(Capabilities::default(), program(), HostPaths::default()).is_ok());
}

#[test]
fn only_allowed_provider_images_can_be_named() {
    let image = |others: &[&str], name: serde_json::Value| {
        let others = others.iter().map(|other| (*other).to_owned()).collect();
        let images = ImageChoice::Named { default_image: "python:3".to_owned(), allowed: others };
        let request = json!({"command": ["true"], "image": name});
        let admitted =
            check_by(Capabilities { images, ..Capabilities::default() }, request, HostPaths::default());
        admitted.map(|admitted| admitted.plan.image).map_err(|error| error.to_string())
    };
    let named = |name: &str| Ok(Image::Named(name.to_owned()));
    assert_eq!(image(&[], json!(null)), named("python:3"));
    assert_eq!(image(&[], json!("python:3")), named("python:3"));
    assert_eq!(image(&["node:22"], json!("node:22")), named("node:22"));
    assert_eq!(
        image(&["*"], json!("reg.example:5000/a/b@sha256:00")),
        named("reg.example:5000/a/b@sha256:00")
    );
    assert!(image(&["node:22"], json!("node")).unwrap_err().contains("may not use image"));
    assert!(image(&["*"], json!("host")).unwrap_err().contains("'unpacked_images'"));
    for bad in ["--privileged", "a b", "/etc", "", "é", &"a".repeat(600)] {
        assert!(image(&["*"], json!(bad)).unwrap_err().contains("is not a valid image name"), "{bad}");
    }
}

/// A `belljar.toml` in the current folder may have come with the code, so its profiles are not the
/// operator's.
#[test]
fn profiles_that_came_with_the_code_do_not_reach_zygotes() {
    let written: crate::profile::Profile = serde_json::from_value(json!({
        "packages": ["six"], "preimports": ["six"], "env": {"PYTHONWARNINGS": "error", "A": "b"},
    }))
    .unwrap();
    for came_with_code in [false, true] {
        let mut profiles = Profiles::built_in();
        profiles.insert("p".to_owned(), crate::profile::Profile { came_with_code, ..written.clone() });
        let request = serde_json::from_value(json!({"profile": "p", "language": "py", "code": "1"})).unwrap();
        let capabilities = Capabilities { package_layers: true, ..Capabilities::default() };
        let admitted = check_among(&profiles, capabilities, request, HostPaths::default()).unwrap();
        let (mine, theirs) = if came_with_code { (0, 1) } else { (1, 0) };
        assert_eq!(
            (admitted.packages.profile_packages.len(), admitted.packages.packages.len()),
            (mine, theirs)
        );
        assert_eq!((admitted.plan.preimports.len(), admitted.plan.env.len()), (mine, 2 * mine));
        assert_eq!(admitted.task.env["A"], "b", "programs still get the variables");
    }
    let unknown = serde_json::from_value::<crate::profile::Profile>(json!({"came_with_code": false}));
    assert!(unknown.is_err(), "a profile file cannot set came_with_code");
}
