//! Limits are enforced, programs are killed before the sandbox, and paused sandboxes use no CPU.

use std::time::Duration;

use belljar_engine::layer::Layer;
use belljar_engine::sandbox_handle::{
    AttachOptions, CommandEnding, FailureKind, SandboxError, SandboxPhase, StartCommand, WriteOptions,
};
use serde_json::json;

use super::{Case, cases, collect, host_processes, text, unique_mark, until};
use crate::fixture::{Fixture, Verdict, check};

pub(super) fn all() -> Vec<(&'static str, Case)> {
    cases![
        running_out_of_memory_kills_the_program_only,
        forks_run_out_and_come_back,
        the_disk_is_full_and_empty_again,
        the_cpu_limit_is_enforced,
        a_paused_sandbox_uses_no_cpu,
        a_paused_sandbox_can_be_closed,
        statistics_are_current,
        a_halted_sandbox_starts_and_writes_nothing,
        a_snapshot_is_consistent,
    ]
}

const HOG: &str = "python3 -c 'b = bytearray(300 << 20)\nfor i in range(0, len(b), 4096): b[i] = 1'";

async fn running_out_of_memory_kills_the_program_only(fixture: Fixture) -> Verdict {
    if !fixture.has(Layer::CgroupMemory) {
        return Ok(());
    }
    let open = fixture.open(json!({"limits": {"memory_bytes": 64 << 20}})).await?;
    open.shell_output("echo kept > file; (sleep 555 &)").await?;
    for round in 1..=3 {
        let ran = open.shell(HOG).await?;
        check!(
            ran.ending == Some(CommandEnding::Exited(137)) || ran.ending == Some(CommandEnding::Signalled(9)),
            ran
        );
        check!(open.shell_output("cat file; pgrep -c sleep").await? == "kept\n1", round);
    }
    // Many small processes together: any may be killed, but never PID 1.
    let many = "for i in 1 2 3 4 5 6 7 8; do python3 -c 'b = bytearray(30 << 20)\nfor i in range(0, len(b), 4096): b[i] = 1\nimport time; time.sleep(1)' & done; wait";
    open.shell(many).await?;
    check!(open.handle.state() == SandboxPhase::Running, open.handle);
    let stats = open.handle.stats().await.map_err(text)?;
    check!(stats.memory_kills >= 4, stats);
    open.close().await
}

async fn forks_run_out_and_come_back(fixture: Fixture) -> Verdict {
    let open = fixture.open(json!({"limits": {"processes": 12}})).await?;
    let commands = open.handle.commands();
    let bomb = StartCommand::shell("exec bash -c 'while :; do sleep 100 & done 2>/dev/null'");
    let bomb = commands.start(bomb).await.map_err(text)?;
    let refused = async || {
        let started = commands.start(StartCommand::shell("true")).await;
        Ok(started.is_err_and(|error| error.kind() == Some(FailureKind::Busy)))
    };
    until("forks have run out", refused).await?;
    // Operations that need no new process still work.
    open.write_file("f", b"x").await?;
    let stats = open.handle.stats().await.map_err(text)?;
    check!(stats.processes.is_none_or(|count| count <= 12), stats);
    commands.signal(bomb, 9).await.map_err(text)?;
    until("a process can be started again", async || {
        Ok(commands.start(StartCommand::shell("true")).await.is_ok())
    })
    .await?;
    open.close().await
}

async fn the_disk_is_full_and_empty_again(fixture: Fixture) -> Verdict {
    let open = fixture.open(json!({"limits": {"disk_bytes": 4 << 20}})).await?;
    let source = Box::pin(tokio::io::repeat(1));
    let full = open.handle.files().write("full", WriteOptions::default(), source).await;
    check!(
        full.as_ref()
            .is_err_and(|error| matches!(error.kind(), Some(FailureKind::NoSpace | FailureKind::TooLarge))),
        full
    );
    let ran = open.shell("head -c 3M /dev/zero > /tmp/a && head -c 3M /dev/zero > /dev/shm/b").await?;
    check!(ran.ending == Some(CommandEnding::Exited(1)) && ran.stderr.contains("No space"), ran);
    open.shell_output("rm -f full /tmp/a /dev/shm/b; head -c 3M /dev/zero > again").await?;
    open.close().await
}

async fn the_cpu_limit_is_enforced(fixture: Fixture) -> Verdict {
    if !fixture.has(Layer::CgroupCpu) {
        return Ok(());
    }
    let open = fixture.open(json!({"limits": {"cpus": 0.2}})).await?;
    let before = open.handle.stats().await.map_err(text)?.cpu.unwrap_or_default();
    let started = std::time::Instant::now();
    let busy = "timeout 1 sh -c 'while :; do :; done'";
    open.shell(busy).await?;
    let used = open.handle.stats().await.map_err(text)?.cpu.unwrap_or_default() - before;
    check!(used < started.elapsed().mul_f64(0.6), (used, started.elapsed()));
    open.close().await
}

fn can_pause(fixture: &Fixture) -> bool {
    fixture
        .engine()
        .capabilities()
        .sandboxes
        .as_ref()
        .is_some_and(|sandboxes| sandboxes.cannot_pause.is_none())
}

async fn a_paused_sandbox_uses_no_cpu(fixture: Fixture) -> Verdict {
    let open = fixture.open(json!({})).await?;
    let handle = &open.handle;
    if !can_pause(&fixture) {
        let refused = handle.pause().await;
        check!(
            matches!(refused, Err(SandboxError::Provider(_))) && handle.state() == SandboxPhase::Running,
            refused
        );
        return open.close().await;
    }
    // One program that resumes itself whatever signal arrives, and one that counts.
    let spin = "trap '' TERM INT HUP CONT TSTP; while :; do kill -CONT $$; done";
    handle.commands().start(StartCommand::shell(spin)).await.map_err(text)?;
    let count = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done";
    let counter = handle.commands().start(StartCommand::shell(count)).await.map_err(text)?;
    tokio::time::sleep(Duration::from_millis(200)).await;
    handle.pause().await.map_err(text)?;
    check!(handle.state() == SandboxPhase::Paused, handle);
    let cpu = async || handle.stats().await.map(|stats| stats.cpu).map_err(text);
    let before = cpu().await?;
    tokio::time::sleep(Duration::from_millis(700)).await;
    check!(cpu().await? == before, (before, cpu().await));
    let asked = handle.commands().list().await;
    check!(matches!(asked, Err(SandboxError::Paused)), asked);
    handle.pause().await.map_err(text)?;
    handle.resume().await.map_err(text)?;
    check!(handle.state() == SandboxPhase::Running, handle);
    let lines = async || {
        let list = handle.commands().list().await.map_err(text)?;
        Ok::<_, String>(
            list.iter().find(|process| process.id == counter).map_or(0, |process| process.output_bytes),
        )
    };
    let seen = lines().await?;
    until("the counter continues", async || Ok(lines().await? > seen)).await?;
    check!(cpu().await? > before, "no CPU time after resuming");
    open.close().await
}

async fn a_paused_sandbox_can_be_closed(fixture: Fixture) -> Verdict {
    if !can_pause(&fixture) {
        return Ok(());
    }
    let open = fixture.open(json!({})).await?;
    let mark = super::unique_mark();
    open.shell_output(&format!("(sh -c 'while :; do :; done' {mark} &)")).await?;
    until("the process runs", async || Ok(super::host_processes(&mark).len() == 1)).await?;
    open.handle.pause().await.map_err(text)?;
    open.handle.close().await;
    check!(super::host_processes(&mark).is_empty(), mark);
    check!(open.handle.state() == SandboxPhase::Ended, open.handle);
    Ok(())
}

async fn statistics_are_current(fixture: Fixture) -> Verdict {
    let open = fixture.open(json!({})).await?;
    let idle = open.handle.stats().await.map_err(text)?;
    let hold = "b = bytearray(40 << 20)\nfor i in range(0, len(b), 4096): b[i] = 1\nprint('ready', flush=True)\nimport time; time.sleep(100)";
    let command = StartCommand::program(["python3", "-c", hold]);
    let started = open.handle.commands().start_attached(command, AttachOptions::default()).await;
    let (process, mut output) = started.map_err(text)?;
    output.next().await.map_err(text)?;
    let busy = open.handle.stats().await.map_err(text)?;
    check!(
        busy.memory_bytes.is_none_or(|bytes| bytes > idle.memory_bytes.unwrap_or(0) + (40 << 20)),
        (idle, busy)
    );
    check!(
        busy.processes.is_none_or(|count| count == 1) && idle.processes.is_none_or(|count| count == 0),
        (idle, busy)
    );
    check!(busy.cpu.is_none_or(|cpu| Some(cpu) > idle.cpu), (idle, busy));
    open.handle.commands().signal(process, 9).await.map_err(text)?;
    let ran = collect(output).await.map_err(text)?;
    check!(ran.ending == Some(CommandEnding::Signalled(9)), ran);
    open.close().await
}

/// All processes except the guest are killed, whatever their group, and files can still be read and removed.
async fn a_halted_sandbox_starts_and_writes_nothing(fixture: Fixture) -> Verdict {
    let open = fixture.open(json!({})).await?;
    let mark = unique_mark();
    open.shell_output(&format!("echo kept > file; (setsid sh -c 'sleep 555; : {mark}' &) ; exit 0")).await?;
    let (handle, attach) = (&open.handle, AttachOptions { from: 0, hold: true });
    let (_, output) =
        handle.commands().start_attached(StartCommand::shell("sleep 555"), attach).await.map_err(text)?;
    // A write that does not end by itself.
    let (mut sender, source) = tokio::io::duplex(64);
    let write = async { handle.files().write("long", WriteOptions::default(), Box::pin(source)).await };
    let halt = async {
        use tokio::io::AsyncWriteExt;
        sender.write_all(b"begun").await.map_err(text)?;
        until("the file is being written", async || Ok(handle.files().stat("long", true).await.is_ok()))
            .await?;
        handle.halt("too much".to_owned()).await.map_err(text)
    };
    let (written, halted) = tokio::join!(write, halt);
    halted?;
    check!(matches!(&written, Err(SandboxError::Halted(why)) if why == "too much"), written);
    check!(collect(output).await.map_err(text)?.ending == Some(CommandEnding::Signalled(9)), "the command");
    until("the daemon is dead", async || Ok(host_processes(&mark).is_empty())).await?;
    let refused = handle.commands().start(StartCommand::shell("true")).await;
    check!(matches!(refused, Err(SandboxError::Halted(_))), refused);
    let refused = handle.files().make_folder("d", true, None).await;
    check!(matches!(refused, Err(SandboxError::Halted(_))), refused);
    check!(open.read_file("file", 0, None).await? == b"kept\n", "the file can be read");
    handle.files().remove("file", false).await.map_err(text)?;
    check!(handle.state() == SandboxPhase::Running && handle.halt_reason().is_some(), handle);
    handle.release();
    check!(open.shell_output("ls file || echo gone").await? == "gone", "the sandbox works again");
    open.close().await
}

/// A snapshot is consistent, and processes continue afterwards even if it is not read to the end.
async fn a_snapshot_is_consistent(fixture: Fixture) -> Verdict {
    use tokio::io::AsyncReadExt;
    let open = fixture.open(json!({})).await?;
    open.shell_output(
        "head -c 30000000 /dev/zero > z; (setsid sh -c 'while :; do echo >> n; sleep 0.01; done' &) ; exit 0",
    )
    .await?;
    let size = async || open.handle.files().stat("n", true).await.map(|found| found.size).map_err(text);
    until("the counter runs", async || Ok(size().await.unwrap_or(0) > 3)).await?;
    let mut source = open.handle.files().snapshot().await.map_err(text)?;
    let before = size().await?;
    tokio::time::sleep(Duration::from_millis(200)).await;
    check!(size().await? == before, "the counter stands still");
    let mut bytes = Vec::new();
    source.read_to_end(&mut bytes).await.map_err(text)?;
    check!(bytes.len() > 30_000_000, bytes.len());
    until("the counter continues", async || Ok(size().await? > before)).await?;
    drop(open.handle.files().snapshot().await.map_err(text)?);
    let before = size().await?;
    until("the counter continues again", async || Ok(size().await? > before)).await?;
    open.close().await
}
