//! Injects a failure at each step of the set-up: nothing may run, the error must name the step, and nothing
//! may be left.
#![cfg(target_os = "linux")]

mod common;

use std::path::Path;
use std::time::Duration;

use belljar_jail::Step;
use common::host::{Snapshot, left_after};
use common::{Answer, run_with_fault};

/// Runs a jail that takes every step: a workspace folder, a mount, arguments, a file, its own network.
fn run_everything(fault: &str, playground: &Path, mounted: &Path) -> Answer {
    let code = "def main():\n    open('marker', 'w').close()\n    return 1";
    let mount = format!("{}:/data", mounted.display());
    let file = format!("{}:copied.txt", mounted.join("note.txt").display());
    let workspace = playground.display().to_string();
    let arguments =
        ["-c", code, "--args", "{}", "--workspace", &workspace, "--mount", &mount, "--file", &file];
    run_with_fault(fault, &arguments)
}

/// Returns why a step cannot fail on this host, if it is not taken.
fn not_taken(step: Step, usual: &Answer) -> Option<&'static str> {
    match step {
        Step::Guest => Some("only living sandboxes take it; the conformance suite has them fail"),
        Step::NetworkDevice => Some("only a network with a gate takes it; the test below has it fail"),
        Step::Landlock if !usual.has_layer("landlock") => Some("this kernel has no landlock"),
        Step::Cgroup
            if !["memory", "cpu", "pids"].iter().any(|c| usual.has_layer(&format!("cgroup.{c}"))) =>
        {
            Some("this user has no cgroups")
        }
        _ => None,
    }
}

fn folders() -> (tempfile::TempDir, tempfile::TempDir) {
    let mounted = tempfile::tempdir().expect("a folder of the test's own");
    std::fs::write(mounted.path().join("note.txt"), "note").expect("a folder of the test's own");
    (tempfile::tempdir().expect("a folder of the test's own"), mounted)
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder of the test's own").flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Serializes tests that inspect the whole host for leftovers.
fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Steps are tested one after another, because each inspects the whole host for leftovers.
#[test]
fn a_failure_at_any_step_runs_nothing_and_leaves_nothing() {
    let _alone = alone();
    let (playground, mounted) = folders();
    let usual = run_everything("", playground.path(), mounted.path());
    assert_eq!(usual.status(), "succeeded", "the run succeeds without a fault: {}", usual.json);
    assert!(playground.path().join("marker").exists(), "the marker exists without a fault");

    let mut wrong = Vec::new();
    for step in Step::ALL {
        if let Some(why) = not_taken(*step, &usual) {
            println!("skipped: {step:?}: {why}");
            continue;
        }
        wrong.extend(fail_at(*step).into_iter().map(|what| format!("{step:?}: {what}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn fail_at(step: Step) -> Vec<String> {
    let (playground, mounted) = folders();
    let before = Snapshot::take();
    let answer = run_everything(&format!("fail:{step:?}"), playground.path(), mounted.path());
    let mut wrong = Vec::new();
    if (answer.code, answer.error_code()) != (Some(125), "setup_failed") {
        wrong.push(format!("it is not a failed set-up: {:?} {}", answer.code, answer.json));
    }
    let message = answer.error_message();
    if !message.contains(step.name()) || !message.contains("ENOSPC (No space left on device)") {
        wrong.push(format!("the step and its cause are not named: {message}"));
    }
    let planted = names(playground.path());
    if !planted.iter().all(|name| name == "copied.txt") {
        wrong.push(format!("the playground holds {planted:?}"));
    }
    let left = left_after(&before, Duration::from_secs(60));
    if !left.is_empty() {
        wrong.push(format!("left behind: {left:?}"));
    }
    wrong
}

/// PID 1 confines itself after it has started the program's process, which must wait for that, however fast
/// it is.
#[test]
fn the_program_waits_until_its_supervisor_is_confined() {
    let _alone = alone();
    for attempt in 0..20 {
        let folder = tempfile::tempdir().unwrap();
        let workspace = folder.path().to_str().unwrap();
        let arguments = ["--workspace", workspace, "--", "/bin/sh", "-c", ": > marker"];
        let answer = run_with_fault("fail:Init", &arguments);
        assert_eq!((answer.code, answer.error_code()), (Some(125), "setup_failed"), "{}", answer.json);
        assert!(!folder.path().join("marker").exists(), "the program ran at attempt {attempt}");
    }
}

/// A step that fails because of the host, not because of an injected fault.
#[test]
fn a_real_failure_is_named_too() {
    let _alone = alone();
    let before = Snapshot::take();
    let answer = run_with_fault("", &["--", "/no/such/program"]);
    assert_eq!((answer.code, answer.error_code()), (Some(125), "invalid_request"), "{}", answer.json);
    assert!(answer.error_message().contains("execute /no/such/program: ENOENT"), "{}", answer.json);
    let answer = run_with_fault("", &["--workdir", "/nowhere", "--", "true"]);
    assert_eq!((answer.code, answer.error_code()), (Some(125), "invalid_request"), "{}", answer.json);
    assert!(answer.error_message().contains("enter folder /nowhere: ENOENT"), "{}", answer.json);
    assert_eq!(left_after(&before, Duration::from_secs(60)), Vec::<String>::new());
}

/// A host may have the file of TUN devices and still not allow to create one.
#[test]
fn without_a_tun_device_programs_reach_the_network_by_the_proxy() {
    let _alone = alone();
    let code = "import os; print('HTTP_PROXY' in os.environ)";
    let arguments = ["--network", "internet", "-c", code];
    let gate = |answer: &Answer| answer.json["receipt"]["network"]["enforced_by"].to_string();
    let usual = run_with_fault("", &arguments);
    if !gate(&usual).contains("tun") {
        println!("skipped: this host has no TUN devices");
        return;
    }
    let answer = run_with_fault("fail:NetworkDevice", &arguments);
    assert_eq!((answer.status(), answer.text("stdout")), ("succeeded", "True\n"), "{}", answer.json);
    assert!(!gate(&answer).contains("tun"), "{}", answer.json);
}
