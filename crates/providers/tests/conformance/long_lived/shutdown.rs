//! How sandboxes end, and that they leave nothing behind.

use std::sync::Arc;

use belljar_engine::sandbox_handle::{SandboxError, SandboxPhase, StartCommand};
use belljar_engine::warm::WarmPoolMode;
use serde_json::json;

use super::{Case, cases, host_processes, text, unique_mark, until};
use crate::fixture::{Fixture, Verdict, check};

pub(super) fn all() -> Vec<(&'static str, Case)> {
    cases![
        a_closed_sandbox_is_gone_at_once,
        a_dropped_sandbox_is_killed,
        nothing_is_left_behind,
        sandboxes_die_with_the_launcher,
        set_up_failures_are_reported,
        set_up_failures_leave_nothing_behind,
    ]
}

async fn a_closed_sandbox_is_gone_at_once(fixture: Fixture) -> Verdict {
    let open = fixture.open(json!({})).await?;
    let mark = unique_mark();
    open.shell_output(&format!("(setsid sh -c 'while :; do sleep 1; done' {mark} >/dev/null 2>&1 &)"))
        .await?;
    until("the process runs", async || Ok(host_processes(&mark).len() == 1)).await?;
    let waiting = tokio::spawn({
        let handle = Arc::clone(&open.handle);
        async move { handle.ended().await }
    });
    open.handle.close().await;
    check!(host_processes(&mark).is_empty(), mark);
    check!(open.handle.state() == SandboxPhase::Ended, open.handle);
    let why = waiting.await.map_err(text)?;
    check!(why == "the sandbox was closed", why);
    let asked = open.handle.commands().start(StartCommand::shell("true")).await;
    check!(matches!(&asked, Err(SandboxError::Gone(why)) if why == "the sandbox was closed"), asked);
    check!(
        open.handle.stats().await.is_err() && open.handle.pause().await.is_err(),
        "a closed sandbox answers nothing"
    );
    open.handle.close().await;
    Ok(())
}

async fn a_dropped_sandbox_is_killed(fixture: Fixture) -> Verdict {
    let open = fixture.open(json!({})).await?;
    let mark = unique_mark();
    open.shell_output(&format!("(sh -c 'while :; do sleep 1; done' {mark} &)")).await?;
    until("the process runs", async || Ok(host_processes(&mark).len() == 1)).await?;
    drop(open);
    until("the process is gone", async || Ok(host_processes(&mark).is_empty())).await
}

/// Counts the mounts and descriptors of this process.
fn own_resources() -> (usize, usize) {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default().lines().count();
    (mounts, descriptor_count(std::process::id()))
}

async fn nothing_is_left_behind(_: Fixture) -> Verdict {
    // Needs its own launcher in a separate process, because other cases run at the same time.
    let program = std::env::current_exe().map_err(text)?;
    let alone = tokio::task::spawn_blocking(move || {
        std::process::Command::new(program).env(LEAKS_ONLY, "1").output()
    });
    let output = alone.await.map_err(text)?.map_err(text)?;
    check!(output.status.success(), String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// The variable that makes this program check only what sandboxes leave behind.
pub(crate) const LEAKS_ONLY: &str = "BELLJAR_CONFORMANCE_LEAKS";

/// The part of [`nothing_is_left_behind`] that runs in a separate process.
pub(crate) fn leaks() -> Verdict {
    let fixture = Fixture::native(WarmPoolMode::Off);
    let verdict = fixture.clone().block_on(async {
        let round = async |fixture: &Fixture| {
            let open = fixture.open(json!({})).await?;
            open.shell_output("echo x > f; (sleep 77 &)").await?;
            let _port = open.handle.open_port(1).await;
            open.write_file("g", &[7; 100_000]).await?;
            open.close().await
        };
        round(&fixture).await?;
        let launcher = launchers().first().copied().ok_or("no launcher")?;
        let held = || (cgroup_count(launcher), descriptor_count(launcher), child_count(launcher));
        let (before, own) = (held(), own_resources());
        for _ in 0..10 {
            round(&fixture).await?;
            // Checked at once: when closing a sandbox returns, nothing of it is left.
            let after = held();
            check!(after == before, (before, after));
        }
        until("this process holds no more descriptors", async || {
            Ok(own_resources().0 == own.0 && own_resources().1 <= own.1)
        })
        .await?;
        Ok(())
    });
    fixture.shut_down();
    verdict
}

fn cgroup_count(launcher: u32) -> usize {
    let trees = std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten().map(|entry| entry.path());
    let homes = trees.flat_map(|tree| std::fs::read_dir(tree).into_iter().flatten().flatten());
    let own = homes
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(&format!("belljar-{launcher}-")));
    own.map(|home| {
        std::fs::read_dir(home.path()).into_iter().flatten().flatten().filter(|e| e.path().is_dir()).count()
    })
    .sum()
}

fn descriptor_count(process: u32) -> usize {
    std::fs::read_dir(format!("/proc/{process}/fd")).map_or(0, Iterator::count)
}

fn child_count(process: u32) -> usize {
    std::fs::read_to_string(format!("/proc/{process}/task/{process}/children"))
        .unwrap_or_default()
        .split(' ')
        .count()
}

/// Returns the launchers that this process started.
fn launchers() -> Vec<u32> {
    let me = format!("PPid:\t{}", std::process::id());
    let is_ours = |pid: &u32| {
        std::fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|status| status.contains(&me))
    };
    host_processes("belljar-launcher").into_iter().filter(is_ours).collect()
}

/// Runs in a separate process, whose launcher can be killed without affecting other cases.
async fn sandboxes_die_with_the_launcher(_: Fixture) -> Verdict {
    let program = std::env::current_exe().map_err(text)?;
    let alone = tokio::task::spawn_blocking(move || {
        std::process::Command::new(program).env(KILLED_ONLY, "1").output()
    });
    let output = alone.await.map_err(text)?.map_err(text)?;
    check!(output.status.success(), String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// The variable that makes this program check only what happens to sandboxes whose launcher dies.
pub(crate) const KILLED_ONLY: &str = "BELLJAR_CONFORMANCE_KILLED";

/// The part of [`sandboxes_die_with_the_launcher`] that runs in a separate process.
pub(crate) fn killed() -> Verdict {
    let fixture = Fixture::native(WarmPoolMode::Off);
    let verdict = fixture.clone().block_on(async {
        let (awake, asleep) = (fixture.open(json!({})).await?, fixture.open(json!({})).await?);
        let marks = (unique_mark(), unique_mark());
        for (open, mark) in [(&awake, &marks.0), (&asleep, &marks.1)] {
            open.shell_output(&format!("(sh -c 'while :; do sleep 1; done' {mark} &)")).await?;
        }
        let paused = asleep.handle.pause().await.is_ok();
        let launcher = launchers().first().copied().ok_or("no launcher")?;
        let killed = std::process::Command::new("kill").args(["-9", &launcher.to_string()]).status();
        check!(killed.as_ref().is_ok_and(std::process::ExitStatus::success), killed);
        until("the processes died with the launcher", async || Ok(host_processes(&marks.0).is_empty()))
            .await?;
        let why = awake.handle.ended().await;
        check!(why == "the launcher was killed", why);
        let asked = awake.handle.commands().list().await;
        check!(matches!(&asked, Err(SandboxError::Gone(why)) if why.contains("launcher")), asked);
        check!(asleep.handle.stats().await.is_err(), "a lost sandbox answers nothing");
        // The next sandbox gets a new launcher, which finds and kills what was paused when the first one
        // died.
        let next = fixture.open(json!({})).await?;
        check!(next.shell_output("echo fine").await? == "fine", "a new sandbox");
        let what = format!("the paused process ({paused}) is gone");
        until(&what, async || Ok(host_processes(&marks.1).is_empty())).await?;
        next.close().await
    });
    fixture.shut_down();
    verdict
}

/// The variable that makes this program open a single sandbox, with a fault at one step.
pub(crate) const FAULT_ONLY: &str = "BELLJAR_FAULT";

/// Returns whether opening a sandbox with a volume takes this step. Some belong to the launcher or to
/// one-shot runs.
fn takes_step(step: belljar_jail::Step) -> bool {
    use belljar_jail::Step;
    !matches!(step, Step::LauncherNamespaces | Step::LauncherRoot | Step::Fork | Step::Inbox | Step::Files)
}

/// Needs a launcher with fault injection: `--features faults`.
async fn set_up_failures_leave_nothing_behind(fixture: Fixture) -> Verdict {
    if !cfg!(feature = "faults") || !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    for step in belljar_jail::Step::ALL.iter().filter(|step| takes_step(**step)) {
        if matches!(step, belljar_jail::Step::Landlock)
            && !fixture.has(belljar_engine::layer::Layer::Landlock)
        {
            continue;
        }
        let program = std::env::current_exe().map_err(text)?;
        let mut command = std::process::Command::new(program);
        command.env(FAULT_ONLY, format!("fail:{step:?}"));
        let output = tokio::task::spawn_blocking(move || command.output()).await.map_err(text)?;
        let said = String::from_utf8_lossy(&output.map_err(text)?.stderr).into_owned();
        check!(said.contains(step.name()) && said.contains("ENOSPC"), (step, said));
    }
    Ok(())
}

/// The part of [`set_up_failures_leave_nothing_behind`] that runs in a separate process. Always
/// fails, with an error that must name the step.
pub(crate) fn fault() -> Verdict {
    let fixture = Fixture::native(WarmPoolMode::Off);
    let opened = fixture.clone().block_on(async {
        let folder = tempfile::tempdir().map_err(text)?;
        let request = json!({"volumes": [{"name": "v", "path": "/data"}]});
        let admitted = fixture.engine().admit_sandbox(serde_json::from_value(request).map_err(text)?, None);
        let path = folder.path().to_owned();
        let admitted = admitted.map_err(text)?.with_volumes(move |_| Some(path.clone())).map_err(text)?;
        let error = fixture.open_admitted(admitted).await.err().ok_or("the sandbox opened")?;
        let launcher = launchers().first().copied().ok_or("no launcher")?;
        until("nothing is left", async || Ok(child_count(launcher) <= 1 && cgroup_count(launcher) == 0))
            .await?;
        Err(error)
    });
    fixture.shut_down();
    opened
}

async fn set_up_failures_are_reported(fixture: Fixture) -> Verdict {
    let request =
        serde_json::from_value(json!({"volumes": [{"name": "v", "path": "/data"}]})).map_err(text)?;
    let admitted = fixture.engine().admit_sandbox(request, None).map_err(text)?;
    let admitted = admitted.with_volumes(|_| Some("/nonexistent/folder".into())).map_err(text)?;
    let error = fixture.open_admitted(admitted).await.err();
    check!(error.as_deref().is_some_and(|error| error.contains("/nonexistent/folder")), error);
    let error = fixture.open(json!({"limits": {"memory_bytes": 0}})).await.err();
    check!(error.as_deref().is_some_and(|error| error.starts_with("limits.memory_bytes")), error);
    Ok(())
}
