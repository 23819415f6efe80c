//! A host without an isolation layer: the server does not start unless degraded mode is allowed; then every
//! receipt lists the layers in force.

use std::process::{Command, Stdio};

use crate::common::is_root;
use crate::common::server::{KEY, Server};
use crate::expect::skip;

/// Runs the arguments without cgroups.
const WITHOUT_GROUPS: &str = "umount --recursive /sys/fs/cgroup && exec \"$@\"";
const GROUPS: [&str; 2] = ["cgroup.memory", "cgroup.pids"];

fn serve_without_groups(flags: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", WITHOUT_GROUPS, "sh"]);
    command.args([env!("CARGO_BIN_EXE_belljar"), "serve"]).args(flags);
    command
}

#[test]
fn a_missing_layer_refuses_the_start_unless_it_is_allowed() {
    if !is_root() {
        let test = "a_missing_layer_refuses_the_start_unless_it_is_allowed";
        return skip(test, "only root can take control groups away");
    }
    let folder = tempfile::tempdir().unwrap();
    let mut refused = serve_without_groups(&["--listen", "127.0.0.1:0", "--data-dir"]);
    refused.arg(folder.path()).env("BELLJAR_ADMIN_KEY", KEY).stdin(Stdio::null());
    let output = refused.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(125), &b""[..]), "{said}");
    assert!(said.contains("not enforced on this machine: ") && said.contains("--allow-degraded"), "{said}");
    for layer in GROUPS {
        assert!(said.contains(layer), "{layer}: {said}");
    }

    let server = Server::by(serve_without_groups(&["--allow-degraded"]), folder.path());
    let (status, result) = server.run(r#"{"language":"bash","code":"echo it runs"}"#);
    assert_eq!((status.as_str(), &result["stdout"]), ("200", &"it runs\n".into()), "{result}");
    let receipt = result["receipt"]["isolation"].as_array().unwrap();
    let holds = |layer: &str| receipt.iter().any(|held| held == layer);
    assert!(holds("seccomp") && !GROUPS.iter().any(|layer| holds(layer)), "{receipt:?}");
    let demanded = r#"{"command":["true"],"require":["cgroup.memory"]}"#;
    let (status, refused) = server.run(demanded);
    assert_eq!((status.as_str(), &refused["error"]["code"]), ("422", &"layer_unavailable".into()));
}
