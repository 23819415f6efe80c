//! Hostile guests: every protocol violation, and random bytes.

use std::time::Duration;

use proptest::prelude::{Just, Strategy, any, prop_oneof};
use tokio::io::{AsyncWriteExt, DuplexStream};

use super::{Guest, GuestError, Loss, Violation};
use crate::protocol::{
    Attach, Ending, Event, Failure, FailureKind, Frame, Hello, Kind, MAGIC, Page, ProcessId, Reply, Settings,
    StartCommand, Stream, VERSION, WINDOW, encode,
};

fn hello(version: u32) -> Frame {
    let hello = Hello { magic: MAGIC, version, settings: Settings::default() };
    Frame { channel: 0, kind: Kind::Hello, body: encode(&hello) }
}

fn frame(channel: u32, kind: Kind, body: Vec<u8>) -> Frame {
    Frame { channel, kind, body }
}

async fn send(line: &mut DuplexStream, frames: &[Frame]) {
    for frame in frames {
        let _heard = line.write_all(&frame.header()).await;
        let _heard = line.write_all(&frame.body).await;
    }
}

/// Connects to a guest that sends these frames regardless of requests. The returned end keeps the connection
/// open.
async fn facing(frames: &[Frame]) -> (Guest, DuplexStream) {
    let (ours, mut theirs) = tokio::io::duplex(8 << 20);
    send(&mut theirs, &[hello(VERSION)]).await;
    let guest = Guest::connect(ours, Settings::default()).await.unwrap();
    // Channel 1 is open before any frame for it arrives.
    let asking = guest.open(&crate::protocol::Request::Processes).await.unwrap();
    send(&mut theirs, frames).await;
    std::mem::forget(asking);
    (guest, theirs)
}

async fn loss_after(frames: &[Frame]) -> Loss {
    let (guest, _line) = facing(frames).await;
    tokio::time::timeout(Duration::from_secs(10), guest.gone()).await.expect("the guest is not disconnected")
}

#[tokio::test]
async fn broken_rules_end_the_connection() {
    let data = |len| frame(1, Kind::Data, vec![0; len]);
    let ok = || encode(&Reply::Ok);
    let cases = [
        (vec![frame(9, Kind::Data, vec![])], Violation::UnknownChannel(9)),
        (vec![frame(1, Kind::Request, vec![])], Violation::OutOfPlace(Kind::Request)),
        (vec![frame(1, Kind::Cancel, vec![])], Violation::OutOfPlace(Kind::Cancel)),
        (vec![frame(1, Kind::Hello, vec![])], Violation::OutOfPlace(Kind::Hello)),
        (vec![frame(1, Kind::Answer, vec![0xff; 9])], Violation::Malformed(Kind::Answer)),
        (
            vec![frame(1, Kind::Answer, ok()), frame(1, Kind::Answer, ok())],
            Violation::OutOfPlace(Kind::Answer),
        ),
        (vec![frame(1, Kind::Event, vec![0xff])], Violation::Malformed(Kind::Event)),
        (vec![frame(1, Kind::Done, vec![0, 0, 0])], Violation::Malformed(Kind::Done)),
        (vec![frame(1, Kind::End, vec![]), data(1)], Violation::OutOfPlace(Kind::Data)),
        (vec![frame(1, Kind::End, vec![]), frame(1, Kind::End, vec![])], Violation::OutOfPlace(Kind::End)),
        (vec![data(WINDOW as usize / 2), data(WINDOW as usize / 2)], Violation::Overrun(1)),
        (vec![Frame::credit(1, 1)], Violation::Credit(1)),
        (vec![frame(1, Kind::Credit, vec![1])], Violation::Malformed(Kind::Credit)),
    ];
    for (frames, expected) in cases {
        assert_eq!(loss_after(&frames).await, Loss::Violation(expected));
    }
    let tiny: Vec<_> = (0..5000).map(|_| data(0)).collect();
    assert_eq!(loss_after(&tiny).await, Loss::Violation(Violation::Overrun(1)));
}

#[tokio::test]
async fn strangers_are_not_guests() {
    let first = async |frames: &[Frame]| {
        let (ours, mut theirs) = tokio::io::duplex(1 << 16);
        send(&mut theirs, frames).await;
        drop(theirs.shutdown().await);
        match Guest::connect(ours, Settings::default()).await {
            Err(GuestError::Gone(loss)) => loss,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(first(&[]).await, Loss::Ended);
    assert_eq!(first(&[hello(VERSION + 1)]).await, Loss::Violation(Violation::Version(VERSION + 1)));
    assert_eq!(first(&[frame(0, Kind::Hello, vec![1])]).await, Loss::Violation(Violation::NoHello));
    assert_eq!(first(&[frame(0, Kind::Done, vec![])]).await, Loss::Violation(Violation::NoHello));
}

/// Returns the result of a request for which the guest sends these frames, on channel 2.
async fn asked<T>(frames: Vec<Frame>, ask: impl AsyncFnOnce(Guest) -> T) -> T {
    let (guest, mut line) = facing(&[]).await;
    let answering = async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        send(&mut line, &frames).await;
    };
    let answer = async { tokio::time::timeout(Duration::from_secs(10), ask(guest)).await.expect("hangs") };
    tokio::join!(answer, answering).0
}

fn done(reply: Reply) -> Frame {
    frame(2, Kind::Done, encode(&Ok::<_, Failure>(reply)))
}

#[tokio::test]
async fn answers_must_fit_the_question() {
    let wrong =
        |error: GuestError| matches!(error, GuestError::Gone(Loss::Violation(Violation::WrongAnswer)));
    let stat = async |guest: Guest| guest.stat("f", false).await.unwrap_err();
    assert!(wrong(asked(vec![done(Reply::Ok)], stat).await));
    assert!(wrong(asked(vec![frame(2, Kind::Data, vec![1])], stat).await));
    let metadata = crate::protocol::Metadata {
        kind: crate::protocol::FileKind::File,
        size: 0,
        mode: 0,
        modified_ms: 0,
        target: None,
    };
    for name in ["..", "a/b", "", "\0"] {
        let entry = crate::protocol::Entry { name: name.to_owned(), metadata: metadata.clone() };
        let page = done(Reply::Page(Page { entries: vec![entry], next: None }));
        assert!(wrong(asked(vec![page], async |guest| guest.list("", None, 9).await.unwrap_err()).await));
    }
    let far = Event::Output { stream: Stream::Stdout, offset: 7 };
    let frames = vec![
        frame(2, Kind::Answer, encode(&Reply::Started(ProcessId(1)))),
        frame(2, Kind::Event, encode(&far)),
    ];
    let attached = asked(frames, async |guest| {
        let started = guest.start_attached(StartCommand::shell("true"), Attach::default()).await;
        started.unwrap().1.next().await.unwrap_err()
    });
    assert!(wrong(attached.await));
}

#[tokio::test]
async fn long_texts_are_cut() {
    let failure = Failure::new(FailureKind::NotFound, "é".repeat(50_000), "x".repeat(50_000));
    let frames = vec![frame(2, Kind::Done, encode(&Err::<Reply, _>(failure)))];
    let error = asked(frames, async |guest| guest.stat("f", false).await.unwrap_err()).await;
    assert_eq!(error.kind(), Some(FailureKind::NotFound));
    assert!(error.to_string().len() < 20_000);
}

fn any_frame() -> impl Strategy<Value = Frame> {
    let kind = prop_oneof![
        Just(Kind::Answer),
        Just(Kind::Data),
        Just(Kind::Event),
        Just(Kind::End),
        Just(Kind::Credit),
        Just(Kind::Done),
    ];
    let reply = prop_oneof![
        Just(encode(&Reply::Started(ProcessId(3)))),
        Just(encode(&Event::Lost { offset: 0, bytes: u64::MAX })),
        Just(encode(&Ok::<_, Failure>(Reply::Ended { ending: Ending::Exited(0), output_bytes: 1 }))),
        proptest::collection::vec(any::<u8>(), 0..40),
    ];
    (1..4_u32, kind, reply).prop_map(|(channel, kind, body)| Frame { channel, kind, body })
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
            let asking = async {
                let started = guest.start_attached(StartCommand::shell("true"), Attach::default()).await;
                if let Ok((_, mut output)) = started {
                    while let Ok(Some(_)) = output.next().await {}
                }
                let _any = guest.watch("", true).await;
            };
            let telling = async {
                tokio::task::yield_now().await;
                send(&mut line, &frames).await;
                let _heard = line.write_all(&garbage).await;
                drop(line);
            };
            tokio::time::timeout(Duration::from_secs(20), async { tokio::join!(asking, telling) })
                .await
                .expect("hangs");
        });
    }
}
