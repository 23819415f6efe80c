//! Hostile guests: every protocol violation, and random bytes.

use std::time::Duration;

use proptest::prelude::{Just, Strategy, any, prop_oneof};
use tokio::io::{AsyncWriteExt, DuplexStream};

use super::{DisconnectReason, Guest, GuestError, Violation};
use crate::protocol::{
    AttachOptions, CommandEnding, DirectoryPage, Failure, FailureKind, FrameKind, GuestEvent, GuestFrame,
    GuestReply, GuestSettings, Hello, MAGIC, ProcessId, StartCommand, Stream, VERSION, WINDOW_BYTES, encode,
};

fn hello(version: u32) -> GuestFrame {
    let hello = Hello { magic: MAGIC, version, settings: GuestSettings::default() };
    GuestFrame { channel: 0, kind: FrameKind::Hello, body: encode(&hello) }
}

fn frame(channel: u32, kind: FrameKind, body: Vec<u8>) -> GuestFrame {
    GuestFrame { channel, kind, body }
}

async fn send(line: &mut DuplexStream, frames: &[GuestFrame]) {
    for frame in frames {
        let _sent = line.write_all(&frame.header()).await;
        let _sent = line.write_all(&frame.body).await;
    }
}

/// Connects to a guest that sends these frames regardless of requests. The returned end keeps the connection
/// open.
async fn facing(frames: &[GuestFrame]) -> (Guest, DuplexStream) {
    let (ours, mut theirs) = tokio::io::duplex(8 << 20);
    send(&mut theirs, &[hello(VERSION)]).await;
    let guest = Guest::connect(ours, GuestSettings::default()).await.unwrap();
    // Channel 1 is open before any frame for it arrives.
    let requests = guest.open(&crate::protocol::GuestRequest::Processes).await.unwrap();
    send(&mut theirs, frames).await;
    std::mem::forget(requests);
    (guest, theirs)
}

async fn loss_after(frames: &[GuestFrame]) -> DisconnectReason {
    let (guest, _line) = facing(frames).await;
    tokio::time::timeout(Duration::from_secs(10), guest.gone()).await.expect("the guest is not disconnected")
}

#[tokio::test]
async fn protocol_violations_end_the_connection() {
    let data = |len| frame(1, FrameKind::Data, vec![0; len]);
    let ok = || encode(&GuestReply::Ok);
    let cases = [
        (vec![frame(9, FrameKind::Data, vec![])], Violation::UnknownChannel(9)),
        (vec![frame(1, FrameKind::Request, vec![])], Violation::OutOfPlace(FrameKind::Request)),
        (vec![frame(1, FrameKind::Cancel, vec![])], Violation::OutOfPlace(FrameKind::Cancel)),
        (vec![frame(1, FrameKind::Hello, vec![])], Violation::OutOfPlace(FrameKind::Hello)),
        (vec![frame(1, FrameKind::Answer, vec![0xff; 9])], Violation::Malformed(FrameKind::Answer)),
        (
            vec![frame(1, FrameKind::Answer, ok()), frame(1, FrameKind::Answer, ok())],
            Violation::OutOfPlace(FrameKind::Answer),
        ),
        (vec![frame(1, FrameKind::Event, vec![0xff])], Violation::Malformed(FrameKind::Event)),
        (vec![frame(1, FrameKind::Done, vec![0, 0, 0])], Violation::Malformed(FrameKind::Done)),
        (vec![frame(1, FrameKind::End, vec![]), data(1)], Violation::OutOfPlace(FrameKind::Data)),
        (
            vec![frame(1, FrameKind::End, vec![]), frame(1, FrameKind::End, vec![])],
            Violation::OutOfPlace(FrameKind::End),
        ),
        (vec![data(WINDOW_BYTES as usize / 2), data(WINDOW_BYTES as usize / 2)], Violation::Overrun(1)),
        (vec![GuestFrame::credit(1, 1)], Violation::Credit(1)),
        (vec![frame(1, FrameKind::Credit, vec![1])], Violation::Malformed(FrameKind::Credit)),
    ];
    for (frames, expected) in cases {
        assert_eq!(loss_after(&frames).await, DisconnectReason::Violation(expected));
    }
    let tiny: Vec<_> = (0..5000).map(|_| data(0)).collect();
    assert_eq!(loss_after(&tiny).await, DisconnectReason::Violation(Violation::Overrun(1)));
}

#[tokio::test]
async fn invalid_hellos_are_refused() {
    let first = async |frames: &[GuestFrame]| {
        let (ours, mut theirs) = tokio::io::duplex(1 << 16);
        send(&mut theirs, frames).await;
        drop(theirs.shutdown().await);
        match Guest::connect(ours, GuestSettings::default()).await {
            Err(GuestError::Gone(loss)) => loss,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(first(&[]).await, DisconnectReason::Ended);
    assert_eq!(
        first(&[hello(VERSION + 1)]).await,
        DisconnectReason::Violation(Violation::Version(VERSION + 1))
    );
    assert_eq!(
        first(&[frame(0, FrameKind::Hello, vec![1])]).await,
        DisconnectReason::Violation(Violation::NoHello)
    );
    assert_eq!(
        first(&[frame(0, FrameKind::Done, vec![])]).await,
        DisconnectReason::Violation(Violation::NoHello)
    );
}

/// Returns the result of a request for which the guest sends these frames, on channel 2.
async fn with_guest_that_answers<T>(frames: Vec<GuestFrame>, ask: impl AsyncFnOnce(Guest) -> T) -> T {
    let (guest, mut line) = facing(&[]).await;
    let answering = async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        send(&mut line, &frames).await;
    };
    let answer = async { tokio::time::timeout(Duration::from_secs(10), ask(guest)).await.expect("hangs") };
    tokio::join!(answer, answering).0
}

fn done(reply: GuestReply) -> GuestFrame {
    frame(2, FrameKind::Done, encode(&Ok::<_, Failure>(reply)))
}

#[tokio::test]
async fn answers_must_match_the_request() {
    let wrong = |error: GuestError| {
        matches!(error, GuestError::Gone(DisconnectReason::Violation(Violation::WrongAnswer)))
    };
    let stat = async |guest: Guest| guest.stat("f", false).await.unwrap_err();
    assert!(wrong(with_guest_that_answers(vec![done(GuestReply::Ok)], stat).await));
    assert!(wrong(with_guest_that_answers(vec![frame(2, FrameKind::Data, vec![1])], stat).await));
    let metadata = crate::protocol::FileMetadata {
        kind: crate::protocol::FileKind::File,
        size: 0,
        mode: 0,
        modified_ms: 0,
        target: None,
    };
    for name in ["..", "a/b", "", "\0"] {
        let entry = crate::protocol::DirectoryEntry { name: name.to_owned(), metadata: metadata.clone() };
        let page = done(GuestReply::Page(DirectoryPage { entries: vec![entry], next: None }));
        assert!(wrong(
            with_guest_that_answers(vec![page], async |guest| guest.list("", None, 9).await.unwrap_err())
                .await
        ));
    }
    let far = GuestEvent::Output { stream: Stream::Stdout, offset: 7 };
    let frames = vec![
        frame(2, FrameKind::Answer, encode(&GuestReply::Started(ProcessId(1)))),
        frame(2, FrameKind::Event, encode(&far)),
    ];
    let attached = with_guest_that_answers(frames, async |guest| {
        let started = guest.start_attached(StartCommand::shell("true"), AttachOptions::default()).await;
        started.unwrap().1.next().await.unwrap_err()
    });
    assert!(wrong(attached.await));
}

#[tokio::test]
async fn long_messages_are_truncated() {
    let failure = Failure::new(FailureKind::NotFound, "é".repeat(50_000), "x".repeat(50_000));
    let frames = vec![frame(2, FrameKind::Done, encode(&Err::<GuestReply, _>(failure)))];
    let error =
        with_guest_that_answers(frames, async |guest| guest.stat("f", false).await.unwrap_err()).await;
    assert_eq!(error.kind(), Some(FailureKind::NotFound));
    assert!(error.to_string().len() < 20_000);
}

fn any_frame() -> impl Strategy<Value = GuestFrame> {
    let kind = prop_oneof![
        Just(FrameKind::Answer),
        Just(FrameKind::Data),
        Just(FrameKind::Event),
        Just(FrameKind::End),
        Just(FrameKind::Credit),
        Just(FrameKind::Done),
    ];
    let reply = prop_oneof![
        Just(encode(&GuestReply::Started(ProcessId(3)))),
        Just(encode(&GuestEvent::Lost { offset: 0, bytes: u64::MAX })),
        Just(encode(&Ok::<_, Failure>(GuestReply::Ended {
            ending: CommandEnding::Exited(0),
            output_bytes: 1
        }))),
        proptest::collection::vec(any::<u8>(), 0..40),
    ];
    (1..4_u32, kind, reply).prop_map(|(channel, kind, body)| GuestFrame { channel, kind, body })
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(200))]

    #[test]
    fn no_guest_makes_a_host_panic_or_hang(
        frames in proptest::collection::vec(any_frame(), 0..30),
        garbage in proptest::collection::vec(any::<u8>(), 0..100),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (guest, mut line) = facing(&[]).await;
            let requests = async {
                let started = guest.start_attached(StartCommand::shell("true"), AttachOptions::default()).await;
                if let Ok((_, mut output)) = started {
                    while let Ok(Some(_)) = output.next().await {}
                }
                let _any = guest.watch("", true).await;
            };
            let replies = async {
                tokio::task::yield_now().await;
                send(&mut line, &frames).await;
                let _sent = line.write_all(&garbage).await;
                drop(line);
            };
            tokio::time::timeout(Duration::from_secs(20), async { tokio::join!(requests, replies) })
                .await
                .expect("hangs");
        });
    }
}
