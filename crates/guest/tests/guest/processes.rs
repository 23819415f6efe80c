//! Commands: exact endings, repeatable output, limits.

use std::time::{Duration, Instant};

use belljar_guest::host::OutputEvent;
use belljar_guest::protocol::{
    AttachOptions, CommandEnding, CommandLine, FailureKind, GuestSettings, ProcessId, StartCommand,
    StdinMode, Stream,
};
use libtest_mimic::Trial;

use crate::fixture::{CollectedOutput, GuestFixture, collect, run, shell, trial, trial_with, until};

pub(crate) fn trials() -> Vec<Trial> {
    let few = GuestSettings { processes: 2, ..GuestSettings::default() };
    vec![
        trial("endings_are_exact", endings_are_exact),
        trial("streams_are_apart", streams_are_apart),
        trial("a_program_gets_what_it_was_given", a_program_gets_what_it_was_given),
        trial("start_failures_are_explained", start_failures_are_explained),
        trial("output_can_be_read_again", output_can_be_read_again),
        trial("lost_output_is_reported", lost_output_is_reported),
        trial("a_holding_viewer_loses_no_output", a_holding_viewer_loses_no_output),
        trial("output_left_in_the_pipe_is_read", output_left_in_the_pipe_is_read),
        trial("two_viewers_see_the_same", two_viewers_see_the_same),
        trial("input_is_written_and_closed", input_is_written_and_closed),
        trial("a_signal_reaches_the_group", a_signal_reaches_the_group),
        trial("a_timeout_kills_the_process", a_timeout_kills_the_process),
        trial("the_end_is_awaited_without_output", the_end_is_awaited_without_output),
        trial("an_ended_process_has_all_its_output", an_ended_process_has_all_its_output),
        trial("background_output_does_not_delay_the_ending", background_output_does_not_delay_the_ending),
        trial_with("old_processes_are_forgotten", few, old_processes_are_forgotten),
    ]
}

async fn endings_are_exact(world: GuestFixture) {
    for code in [0, 1, 7, 126, 255] {
        let ran = world.shell(&format!("exit {code}")).await;
        assert_eq!(ran.ending, Some(CommandEnding::Exited(code)));
    }
    for signal in [2, 6, 9, 11, 15] {
        let ran = world.shell(&format!("kill -{signal} $$")).await;
        assert_eq!(ran.ending, Some(CommandEnding::Signalled(signal)));
    }
}

async fn the_end_is_awaited_without_output(world: GuestFixture) {
    let process = world.guest.start(shell("while :; do echo written; done")).await.unwrap();
    let short = world.guest.start(shell("exit 0")).await.unwrap();
    world.guest.wait_for_end(short).await.unwrap();
    let (ended, signalled) = tokio::join!(world.guest.wait_for_end(process), world.guest.signal(process, 9));
    ended.unwrap();
    signalled.unwrap();
    let listed = world.guest.processes().await.unwrap();
    assert!(listed.iter().all(|info| info.ending.is_some()), "{listed:?}");
    // A process that has already ended, and one that never existed.
    world.guest.wait_for_end(process).await.unwrap();
    let unknown = world.guest.wait_for_end(ProcessId(99)).await.unwrap_err();
    assert!(unknown.to_string().contains("no such process"), "{unknown}");
}

async fn an_ended_process_has_all_its_output(world: GuestFixture) {
    // As much as the pipes hold, so that it is all unread when the process ends.
    let line = "head -c 65536 /dev/zero; head -c 65536 /dev/zero >&2";
    for _ in 0..100 {
        let process = world.guest.start(shell(line)).await.unwrap();
        world.guest.wait_for_end(process).await.unwrap();
        let listed = world.guest.processes().await.unwrap();
        let info = listed.iter().find(|info| info.id == process).unwrap();
        assert_eq!((info.ending, info.output_bytes), (Some(CommandEnding::Exited(0)), 2 * 65_536));
    }
}

async fn streams_are_apart(world: GuestFixture) {
    let ran = world.shell("echo out; echo err >&2").await;
    assert_eq!((ran.stdout.as_slice(), ran.stderr.as_slice()), (b"out\n".as_slice(), b"err\n".as_slice()));
    let (_, mut output) = world
        .guest
        .start_attached(shell("printf abc; sleep 1; printf de >&2"), AttachOptions::default())
        .await
        .unwrap();
    let first = output.next().await.unwrap();
    assert_eq!(first, Some(OutputEvent::Bytes { stream: Stream::Stdout, offset: 0, bytes: b"abc".to_vec() }));
    let second = output.next().await.unwrap();
    assert_eq!(second, Some(OutputEvent::Bytes { stream: Stream::Stderr, offset: 3, bytes: b"de".to_vec() }));
    let last = output.next().await.unwrap();
    assert_eq!(last, Some(OutputEvent::Ended { ending: CommandEnding::Exited(0), output_bytes: 5 }));
    assert_eq!(output.next().await.unwrap(), None);
}

async fn a_program_gets_what_it_was_given(world: GuestFixture) {
    let mut command = StartCommand::program(["env"]);
    command.env = vec![("PATH".into(), "/usr/bin:/bin".into()), ("A".into(), "b c".into())];
    let ran = run(&world.guest, command).await.unwrap();
    assert_eq!(ran.text(), "A=b c\nPATH=/usr/bin:/bin");
    std::fs::create_dir(world.folder.path().join("sub")).unwrap();
    let mut command = shell("pwd; ls /proc/self/fd | wc -l; kill -PIPE $$");
    command.workdir = Some("sub".into());
    let ran = run(&world.guest, command).await.unwrap();
    // One of the four is the folder that `ls` lists.
    assert_eq!(ran.text(), format!("{}/sub\n4", world.folder.path().display()));
    // A signal that the guest ignores is not ignored in programs.
    assert_eq!(ran.ending, Some(CommandEnding::Signalled(13)));
}

async fn start_failures_are_explained(world: GuestFixture) {
    let kind = async |command| run(&world.guest, command).await.unwrap_err().kind().unwrap();
    assert_eq!(kind(StartCommand::program(["no-such-program"])).await, FailureKind::NotFound);
    assert_eq!(kind(StartCommand::program(["/etc/passwd"])).await, FailureKind::Denied);
    assert_eq!(kind(StartCommand::program(Vec::<String>::new())).await, FailureKind::Invalid);
    assert_eq!(
        kind(StartCommand { workdir: Some("gone".into()), ..shell("true") }).await,
        FailureKind::NotFound
    );
    assert_eq!(kind(StartCommand { keep_bytes: 1, ..shell("true") }).await, FailureKind::Invalid);
    let odd = vec![("A=B".to_owned(), String::new())];
    assert_eq!(kind(StartCommand { env: odd, ..shell("true") }).await, FailureKind::Invalid);
    let nul = CommandLine::Shell("echo \0".into());
    assert_eq!(kind(StartCommand { command: nul, ..shell("true") }).await, FailureKind::Invalid);
    assert!(matches!(
        run(&world.guest, shell(&"x".repeat(300 << 10))).await,
        Err(belljar_guest::GuestError::RequestTooLarge)
    ));
}

async fn output_can_be_read_again(world: GuestFixture) {
    let process = world.guest.start(shell("seq 1 1000; exit 3")).await.unwrap();
    let expected: String = (1..=1000).map(|number| format!("{number}\n")).collect();
    until("the process has ended", async || world.guest.processes().await.unwrap()[0].ending.is_some()).await;
    for from in [0, 1, 2000, expected.len()] {
        let attach = AttachOptions { from: from as u64, hold: false };
        let ran = collect(world.guest.attach(process, attach).await.unwrap()).await.unwrap();
        assert_eq!(ran.text(), expected[from..].trim_end());
        assert_eq!(ran.ending, Some(CommandEnding::Exited(3)));
    }
    let beyond = world.guest.attach(process, AttachOptions { from: 1 << 40, hold: false }).await;
    assert_eq!(beyond.unwrap_err().kind(), Some(FailureKind::Invalid));
}

async fn lost_output_is_reported(world: GuestFixture) {
    let command = StartCommand { keep_bytes: 40 << 10, ..shell("head -c 1000000 /dev/zero; printf end") };
    let process = world.guest.start(command).await.unwrap();
    until("the process has ended", async || world.guest.processes().await.unwrap()[0].ending.is_some()).await;
    let ran = collect(world.guest.attach(process, AttachOptions::default()).await.unwrap()).await.unwrap();
    assert!(ran.lost > 900_000, "{}", ran.lost);
    assert_eq!(ran.lost + ran.stdout.len() as u64, 1_000_003);
    assert!(ran.stdout.ends_with(b"\0end"));
}

async fn a_holding_viewer_loses_no_output(world: GuestFixture) {
    let command = StartCommand { keep_bytes: 40 << 10, ..shell("seq 1 400000; seq 1 9 >&2") };
    let attach = AttachOptions { from: 0, hold: true };
    let (_, output) = world.guest.start_attached(command, attach).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let ran = collect(output).await.unwrap();
    let expected: String = (1..=400_000).map(|number| format!("{number}\n")).collect();
    assert_eq!(ran.lost, 0);
    assert!(ran.stdout == expected.as_bytes(), "{} bytes", ran.stdout.len());
    assert_eq!(ran.stderr.len(), 18);
}

async fn output_left_in_the_pipe_is_read(world: GuestFixture) {
    // More than the window and the ring hold together, but the pipe holds the rest.
    let command = StartCommand { keep_bytes: 40 << 10, ..shell("head -c 335000 /dev/zero") };
    let (_, output) =
        world.guest.start_attached(command, AttachOptions { from: 0, hold: true }).await.unwrap();
    until("the process has ended", async || world.guest.processes().await.unwrap()[0].ending.is_some()).await;
    let ran = collect(output).await.unwrap();
    assert_eq!((ran.stdout.len(), ran.lost), (335_000, 0));
}

async fn two_viewers_see_the_same(world: GuestFixture) {
    let line = "for i in 1 2 3 4 5; do echo $i; sleep 0.05; done";
    let (process, first) = world.guest.start_attached(shell(line), AttachOptions::default()).await.unwrap();
    let second = world.guest.attach(process, AttachOptions::default()).await.unwrap();
    let gone = world.guest.attach(process, AttachOptions::default()).await.unwrap();
    drop(gone);
    let (first, second) = tokio::join!(collect(first), collect(second));
    let first = first.unwrap();
    assert_eq!(first, second.unwrap());
    assert_eq!(first.text(), "1\n2\n3\n4\n5");
}

async fn input_is_written_and_closed(world: GuestFixture) {
    let command = StartCommand { stdin: StdinMode::Open, ..shell("cat") };
    let hold = AttachOptions { from: 0, hold: true };
    let (process, output) = world.guest.start_attached(command, hold).await.unwrap();
    let bytes: Vec<u8> = (0..2_000_000_u32).map(|number| number as u8).collect();
    let feeding = async {
        let mut writer = world.guest.stdin(process).await.unwrap();
        writer.write(&bytes).await.unwrap();
        writer.finish().await.unwrap();
        world.guest.write_stdin(process, b"more").await.unwrap();
        world.guest.close_stdin(process).await.unwrap();
    };
    let (ran, ()) = tokio::join!(collect(output), feeding);
    let ran: CollectedOutput = ran.unwrap();
    assert!(ran.stdout == [bytes.as_slice(), b"more"].concat());
    assert_eq!(ran.ending, Some(CommandEnding::Exited(0)));
    assert_eq!(world.guest.write_stdin(process, b"x").await.unwrap_err().kind(), Some(FailureKind::Ended));
}

async fn a_signal_reaches_the_group(world: GuestFixture) {
    let command = shell("sleep 1000 & echo $!; wait");
    let (process, mut output) = world.guest.start_attached(command, AttachOptions::default()).await.unwrap();
    let Some(OutputEvent::Bytes { bytes, .. }) = output.next().await.unwrap() else { panic!("no PID") };
    let number = String::from_utf8(bytes).unwrap();
    world.guest.signal(process, 15).await.unwrap();
    let ran = collect(output).await.unwrap();
    assert_eq!(ran.ending, Some(CommandEnding::Signalled(15)));
    let gone = format!("kill -0 {} 2>/dev/null", number.trim());
    until("the child is gone", async || world.shell(&gone).await.ending == Some(CommandEnding::Exited(1)))
        .await;
    assert_eq!(world.guest.signal(process, 15).await.unwrap_err().kind(), Some(FailureKind::Ended));
    let sleeper = world.guest.start(shell("sleep 1000")).await.unwrap();
    assert_eq!(world.guest.signal(sleeper, 99).await.unwrap_err().kind(), Some(FailureKind::Invalid));
}

async fn a_timeout_kills_the_process(world: GuestFixture) {
    let start = Instant::now();
    let command = StartCommand { timeout_ms: Some(2_000), ..shell("echo a; trap '' TERM; sleep 100") };
    let ran = run(&world.guest, command).await.unwrap();
    assert_eq!((ran.text(), ran.ending), ("a", Some(CommandEnding::TimedOut)));
    assert!(start.elapsed() >= Duration::from_secs(2) && start.elapsed() < Duration::from_secs(100));
    let command = StartCommand { timeout_ms: Some(10_000), ..shell("exit 4") };
    assert_eq!(run(&world.guest, command).await.unwrap().ending, Some(CommandEnding::Exited(4)));
}

async fn background_output_does_not_delay_the_ending(world: GuestFixture) {
    let command = shell("(sleep 5; echo late; sleep 100) & echo early");
    let (process, output) = world.guest.start_attached(command, AttachOptions::default()).await.unwrap();
    assert_eq!(collect(output).await.unwrap().text(), "early");
    // Writing to a pipe without a reader does not kill it, and its output is kept.
    let seen = async || {
        let output = world.guest.attach(process, AttachOptions::default()).await.unwrap();
        collect(output).await.unwrap().text() == "early\nlate"
    };
    until("the late output is kept", seen).await;
}

async fn old_processes_are_forgotten(world: GuestFixture) {
    let first = world.guest.start(shell("true")).await.unwrap();
    until("the process has ended", async || world.guest.processes().await.unwrap()[0].ending.is_some()).await;
    let second = world.guest.start(shell("sleep 100")).await.unwrap();
    let third = world.guest.start(shell("sleep 100")).await.unwrap();
    assert_eq!(
        world.guest.attach(first, AttachOptions::default()).await.unwrap_err().kind(),
        Some(FailureKind::NotFound)
    );
    let fourth = world.guest.start(shell("true")).await;
    assert_eq!(fourth.unwrap_err().kind(), Some(FailureKind::Busy));
    let listed: Vec<_> = world.guest.processes().await.unwrap().iter().map(|process| process.id).collect();
    assert_eq!(listed, [second, third]);
}
