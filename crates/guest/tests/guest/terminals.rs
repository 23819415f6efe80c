//! Terminals.

use std::time::Duration;

use belljar_guest::host::{OutputEvent, ProcessOutput};
use belljar_guest::protocol::{AttachOptions, CommandEnding, FailureKind, StartCommand, TerminalSize};
use libtest_mimic::Trial;

use crate::fixture::{GuestFixture, collect, run, shell, trial};

const SMALL: TerminalSize = TerminalSize { rows: 24, columns: 80 };
const LARGE: TerminalSize = TerminalSize { rows: 50, columns: 132 };

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("a_terminal_has_its_size", a_terminal_has_its_size),
        trial("a_terminal_is_resized", a_terminal_is_resized),
        trial("keys_are_signals", keys_are_signals),
        trial("viewers_come_and_go", viewers_come_and_go),
    ]
}

fn terminal(line: &str) -> StartCommand {
    StartCommand { terminal: Some(SMALL), ..shell(line) }
}

async fn a_terminal_has_its_size(world: GuestFixture) {
    let ran = run(&world.guest, terminal("stty size; tty; test -t 0 -a -t 1 -a -t 2")).await.unwrap();
    assert!(ran.text().starts_with("24 80\r\n/dev/pts/"), "{:?}", ran.text());
    assert_eq!(ran.ending, Some(CommandEnding::Exited(0)));
    let plain = world.guest.start(shell("sleep 100")).await.unwrap();
    assert_eq!(world.guest.resize(plain, LARGE).await.unwrap_err().kind(), Some(FailureKind::Invalid));
}

async fn a_terminal_is_resized(world: GuestFixture) {
    let line = "trap 'stty size; exit 0' WINCH; echo ready; while :; do sleep 0.05; done";
    let (process, mut output) =
        world.guest.start_attached(terminal(line), AttachOptions::default()).await.unwrap();
    await_text(&mut output, "ready").await;
    world.guest.resize(process, LARGE).await.unwrap();
    assert_eq!(collect(output).await.unwrap().text(), "50 132");
}

/// Reads until the output contains a text.
async fn await_text(output: &mut ProcessOutput, text: &str) {
    let mut seen = String::new();
    while !seen.contains(text) {
        match output.next().await.unwrap() {
            Some(OutputEvent::Bytes { bytes, .. }) => seen.push_str(&String::from_utf8_lossy(&bytes)),
            other => panic!("{other:?} after {seen:?}"),
        }
    }
}

async fn keys_are_signals(world: GuestFixture) {
    let (process, mut output) = world
        .guest
        .start_attached(terminal("echo ready; exec sleep 100"), AttachOptions::default())
        .await
        .unwrap();
    await_text(&mut output, "ready").await;
    world.guest.write_stdin(process, &[3]).await.unwrap();
    assert_eq!(collect(output).await.unwrap().ending, Some(CommandEnding::Signalled(2)));
    let (process, output) =
        world.guest.start_attached(terminal("cat"), AttachOptions::default()).await.unwrap();
    world.guest.write_stdin(process, b"hello\n").await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    world.guest.close_stdin(process).await.unwrap();
    let ran = collect(output).await.unwrap();
    assert_eq!((ran.text(), ran.ending), ("hello\r\nhello", Some(CommandEnding::Exited(0))));
}

async fn viewers_come_and_go(world: GuestFixture) {
    let (process, mut first) = world
        .guest
        .start_attached(terminal("read a; echo one $a; read b; echo two $b"), AttachOptions::default())
        .await
        .unwrap();
    let second = world.guest.attach(process, AttachOptions::default()).await.unwrap();
    world.guest.write_stdin(process, b"x\n").await.unwrap();
    await_text(&mut first, "one x").await;
    let seen = first.offset();
    drop(first);
    world.guest.write_stdin(process, b"y\n").await.unwrap();
    let again = world.guest.attach(process, AttachOptions { from: seen, hold: false }).await.unwrap();
    let (second, again) = (collect(second).await.unwrap(), collect(again).await.unwrap());
    assert!(second.text().contains("one x") && second.text().ends_with("two y"));
    assert!(!again.text().contains("one x") && again.text().ends_with("two y"));
}
