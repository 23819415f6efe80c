//! Commands: endings, streaming and replayed output, input, signals, terminals, and persistent state.

use std::time::{Duration, Instant};

use belljar_engine::sandbox_handle::{
    AttachOptions, CommandEnding, FailureKind, OutputEvent, SandboxPhase, StartCommand, StdinMode,
    TerminalSize,
};
use serde_json::json;

use super::{Case, cases, collect, text, until};
use crate::fixture::{Fixture, Verdict, check};

pub(super) fn all() -> Vec<(&'static str, Case)> {
    cases![
        endings_are_exact,
        output_streams_as_it_comes,
        background_and_replay,
        input_is_fed,
        signals_reach_the_group,
        terminals_resize,
        state_stays_between_commands,
        environment_comes_from_the_sandbox,
        missing_programs_are_reported,
        two_sandboxes_are_isolated,
        ports_are_reachable,
    ]
}

async fn endings_are_exact(fixture: Fixture) -> Verdict {
    let open = fixture.open(json!({})).await?;
    check!(open.handle.state() == SandboxPhase::Running, open.handle);
    for (line, ending) in [
        ("exit 0", CommandEnding::Exited(0)),
        ("exit 7", CommandEnding::Exited(7)),
        ("exit 255", CommandEnding::Exited(255)),
        ("kill -11 $$", CommandEnding::Signalled(11)),
        ("kill -9 $$", CommandEnding::Signalled(9)),
    ] {
        let ran = open.shell(line).await?;
        check!(ran.ending == Some(ending), (line, ran));
    }
    let ran = open.shell("echo out; echo err >&2").await?;
    check!((ran.stdout.as_str(), ran.stderr.as_str()) == ("out\n", "err\n"), ran);
    let command = StartCommand { timeout_ms: Some(200), ..StartCommand::shell("sleep 100") };
    let started = Instant::now();
    let ran = open.run(command).await.map_err(text)?;
    check!(ran.ending == Some(CommandEnding::TimedOut) && started.elapsed() < Duration::from_secs(100), ran);
    open.close().await
}

async fn output_streams_as_it_comes(fixture: Fixture) -> Verdict {
    let open = fixture.open(json!({})).await?;
    // More writes than the check needs: a delayed reader sees two at once.
    let command = StartCommand::shell("for i in 1 2 3 4 5 6 7 8 9 10; do echo $i; sleep 0.2; done");
    let started = open.handle.commands().start_attached(command, AttachOptions::default()).await;
    let (_, mut output) = started.map_err(text)?;
    let mut arrivals = Vec::new();
    while let Some(event) = output.next().await.map_err(text)? {
        if let OutputEvent::Bytes { .. } = event {
            arrivals.push(Instant::now());
        }
    }
    let last = arrivals.len().saturating_sub(1);
    check!(arrivals.len() >= 3 && arrivals[last] - arrivals[0] > Duration::from_millis(200), arrivals);
    open.close().await
}

async fn background_and_replay(fixture: Fixture) -> Verdict {
    let open = fixture.open(json!({})).await?;
    let commands = open.handle.commands();
    let line = "echo one; while ! test -e go; do sleep 0.05; done; echo two";
    let process = commands.start(StartCommand::shell(line)).await.map_err(text)?;
    let running = commands.list().await.map_err(text)?;
    check!(running.len() == 1 && running[0].ending.is_none(), running);
    open.write_file("go", b"").await?;
    let first = collect(commands.attach(process, AttachOptions::default()).await.map_err(text)?).await;
    let first = first.map_err(text)?;
    check!(first.stdout == "one\ntwo\n" && first.ending == Some(CommandEnding::Exited(0)), first);
    // Attach after the end, from the middle of the output.
    let later = commands.attach(process, AttachOptions { from: 4, hold: false }).await.map_err(text)?;
    let later = collect(later).await.map_err(text)?;
    check!(later.stdout == "two\n" && later.ending == Some(CommandEnding::Exited(0)), later);
    let unknown =
        commands.attach(belljar_engine::sandbox_handle::ProcessId(999), AttachOptions::default()).await;
    check!(unknown.as_ref().is_err_and(|error| error.kind() == Some(FailureKind::NotFound)), unknown);
    open.close().await
}

async fn input_is_fed(fixture: Fixture) -> Verdict {
    let open = fixture.open(json!({})).await?;
    let commands = open.handle.commands();
    let command = StartCommand { stdin: StdinMode::Open, ..StartCommand::shell("tr a-z A-Z") };
    let started = commands.start_attached(command, AttachOptions::default()).await;
    let (process, output) = started.map_err(text)?;
    for piece in ["some ", "words"] {
        commands.write_stdin(process, piece.as_bytes()).await.map_err(text)?;
    }
    commands.close_stdin(process).await.map_err(text)?;
    let ran = collect(output).await.map_err(text)?;
    check!(ran.stdout == "SOME WORDS" && ran.ending == Some(CommandEnding::Exited(0)), ran);
    open.close().await
}

async fn signals_reach_the_group(fixture: Fixture) -> Verdict {
    let open = fixture.open(json!({})).await?;
    let commands = open.handle.commands();
    let process = commands.start(StartCommand::shell("sleep 100 & sleep 100")).await.map_err(text)?;
    commands.signal(process, 15).await.map_err(text)?;
    let ran = collect(commands.attach(process, AttachOptions::default()).await.map_err(text)?).await;
    check!(ran.as_ref().is_ok_and(|ran| ran.ending == Some(CommandEnding::Signalled(15))), ran);
    let late = commands.signal(process, 15).await;
    check!(late.as_ref().is_err_and(|error| error.kind() == Some(FailureKind::Ended)), late);
    until("all sleeping processes are gone", async || {
        Ok(open.shell_output("pgrep -c sleep || true").await? == "0")
    })
    .await?;
    open.close().await
}

async fn terminals_resize(fixture: Fixture) -> Verdict {
    let open = fixture.open(json!({})).await?;
    let commands = open.handle.commands();
    let size = TerminalSize { rows: 30, columns: 90 };
    let line = "stty size; read line; stty size; echo got $line; test -t 0 && test -t 1";
    let command = StartCommand { terminal: Some(size), ..StartCommand::shell(line) };
    let (process, output) =
        commands.start_attached(command, AttachOptions { from: 0, hold: true }).await.map_err(text)?;
    commands.resize(process, TerminalSize { rows: 10, columns: 20 }).await.map_err(text)?;
    commands.write_stdin(process, b"x\n").await.map_err(text)?;
    let ran = collect(output).await.map_err(text)?;
    check!(ran.stdout.contains("10 20\r\ngot x") && ran.ending == Some(CommandEnding::Exited(0)), ran);
    let plain = commands.start(StartCommand::shell("sleep 9")).await.map_err(text)?;
    let refused = commands.resize(plain, size).await;
    check!(refused.as_ref().is_err_and(|error| error.kind() == Some(FailureKind::Invalid)), refused);
    open.close().await
}

async fn state_stays_between_commands(fixture: Fixture) -> Verdict {
    let open = fixture.open(json!({})).await?;
    open.shell_output("echo kept > file; (sleep 100 &) ; echo $$ > /tmp/pid").await?;
    check!(
        open.shell_output("cat file; pwd; id -u; hostname").await? == "kept\n/workspace\n1000\nsandbox",
        "state"
    );
    until("the background process still runs", async || {
        Ok(open.shell_output("pgrep -c sleep || true").await? == "1")
    })
    .await?;
    open.close().await
}

async fn environment_comes_from_the_sandbox(fixture: Fixture) -> Verdict {
    let open = fixture.open(json!({"env": {"GREETING": "hi", "OTHER": "a"}})).await?;
    let mut command = StartCommand::shell("echo $GREETING $OTHER $HOME $USER; env | grep -c -i belljar");
    command.env = vec![("OTHER".to_owned(), "b".to_owned())];
    let ran = open.run(command).await.map_err(text)?;
    check!(ran.stdout == "hi b /home/sandbox sandbox\n0\n", ran);
    open.close().await
}

async fn missing_programs_are_reported(fixture: Fixture) -> Verdict {
    let open = fixture.open(json!({})).await?;
    let missing = open.run(StartCommand::program(["no-such-program"])).await;
    check!(missing.as_ref().is_err_and(|error| error.kind() == Some(FailureKind::NotFound)), missing);
    let nowhere = StartCommand { workdir: Some("/nope".to_owned()), ..StartCommand::program(["true"]) };
    check!(open.run(nowhere).await.is_err(), "a missing working directory");
    check!(open.shell_output("echo fine").await? == "fine", "the sandbox still works");
    open.close().await
}

async fn two_sandboxes_are_isolated(fixture: Fixture) -> Verdict {
    let (one, two) = (fixture.open(json!({})).await?, fixture.open(json!({})).await?);
    let map = "cut -c1-30 /proc/self/uid_map | tr -s ' '; id -u";
    one.shell_output("echo secret > /tmp/x; echo secret > /dev/shm/x; echo secret > x; (sleep 321 &)")
        .await?;
    for path in ["/tmp/x", "/dev/shm/x", "/workspace/x"] {
        check!(two.handle.files().stat(path, false).await.is_err(), path);
    }
    check!(two.shell_output("pgrep -c sleep || true").await? == "0", "processes of the other sandbox");
    if fixture.has(belljar_engine::layer::Layer::SeparateUid) {
        check!(one.shell_output(map).await? != two.shell_output(map).await?, "the same user");
    }
    one.shell_output("(python3 -m http.server 8000 --bind 127.0.0.1 >/dev/null 2>&1 &)").await?;
    until("the server listens", async || Ok(one.handle.open_port(8000).await.is_ok())).await?;
    let other = two.handle.open_port(8000).await;
    check!(other.as_ref().is_err_and(|error| error.kind() == Some(FailureKind::Refused)), other);
    one.close().await?;
    two.close().await
}

async fn ports_are_reachable(fixture: Fixture) -> Verdict {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let open = fixture.open(json!({})).await?;
    open.write_file("index.txt", b"over the port").await?;
    open.shell_output("(python3 -m http.server 8000 --bind 127.0.0.1 >/dev/null 2>&1 &)").await?;
    until("the server listens", async || Ok(open.handle.open_port(8000).await.is_ok())).await?;
    let mut port = open.handle.open_port(8000).await.map_err(text)?;
    port.write_all(b"GET /index.txt HTTP/1.0\r\n\r\n").await.map_err(text)?;
    let mut answer = String::new();
    port.read_to_string(&mut answer).await.map_err(text)?;
    check!(answer.starts_with("HTTP/1.0 200") && answer.ends_with("over the port"), answer);
    open.close().await
}
