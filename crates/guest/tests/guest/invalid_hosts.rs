//! Invalid hosts: whatever they send, the guest exits by itself and quietly.

use std::time::Duration;

use belljar_guest::protocol::{
    FrameKind, GuestFrame, GuestRequest, GuestSettings, Hello, MAGIC, VERSION, WINDOW_BYTES, encode,
};
use libtest_mimic::Trial;
use tokio::io::AsyncWriteExt;

use crate::fixture::{bare_trial, spawn};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        bare_trial("garbage_ends_a_guest", garbage_ends_a_guest),
        bare_trial("broken_rules_end_a_guest", broken_rules_end_a_guest),
    ]
}

fn bytes(frame: &GuestFrame) -> Vec<u8> {
    [frame.header().as_slice(), &frame.body].concat()
}

fn hello() -> Vec<u8> {
    let hello = Hello { magic: MAGIC, version: VERSION, settings: GuestSettings::default() };
    bytes(&GuestFrame { channel: 0, kind: FrameKind::Hello, body: encode(&hello) })
}

/// Sends bytes to a new guest, and waits for its exit.
async fn outcome(sent: &[u8]) -> Option<i32> {
    let (mut child, mut line) = spawn();
    let _sent = line.write_all(sent).await;
    let _ended = line.shutdown().await;
    for _ in 0..1000 {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    child.kill().unwrap();
    panic!("the guest is still running");
}

async fn garbage_ends_a_guest() {
    let mut seed = 0x1234_5678_9abc_def0_u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    for round in 0..24 {
        let mut sent = if round % 2 == 0 { Vec::new() } else { hello() };
        if round % 3 == 0 {
            sent.extend((0..500).map(|_| random() as u8));
        } else {
            // Well-formed frames with random content.
            for _ in 0..40 {
                let body: Vec<u8> = (0..random() % 40).map(|_| random() as u8).collect();
                sent.extend((body.len() as u32).to_le_bytes());
                sent.extend(((random() % 4) as u32).to_le_bytes());
                sent.push((random() % 9) as u8);
                sent.extend(body);
            }
        }
        let code = outcome(&sent).await;
        assert!(matches!(code, Some(0 | 1)), "round {round}: {code:?}");
    }
}

async fn broken_rules_end_a_guest() {
    let request = GuestRequest::Stdin { process: belljar_guest::protocol::ProcessId(1), close: false };
    let write = GuestRequest::Write { path: "/dev/null/x".into(), options: Default::default() };
    let open = |channel, request: &GuestRequest| {
        bytes(&GuestFrame { channel, kind: FrameKind::Request, body: encode(request) })
    };
    let data = |len| bytes(&GuestFrame { channel: 1, kind: FrameKind::Data, body: vec![0; len] });
    assert_eq!(outcome(&hello()).await, Some(0));
    assert_eq!(outcome(&[hello(), open(1, &request)].concat()).await, Some(0));
    assert_eq!(outcome(&[hello(), open(1, &write), data(10)].concat()).await, Some(0));
    let wait = GuestRequest::Watch { path: "/".into(), recursive: false };
    let open_twice = [hello(), open(1, &wait), open(1, &wait)].concat();
    assert_eq!(outcome(&open_twice).await, Some(1));
    let too_much =
        [hello(), open(1, &wait), data(WINDOW_BYTES as usize / 2), data(WINDOW_BYTES as usize / 2)].concat();
    assert_eq!(outcome(&too_much).await, Some(1));
    let credit = [hello(), open(1, &wait), bytes(&GuestFrame::credit(1, 1))].concat();
    assert_eq!(outcome(&credit).await, Some(1));
    assert_eq!(
        outcome(&[hello(), bytes(&GuestFrame::without_body(1, FrameKind::Done))].concat()).await,
        Some(0)
    );
}
