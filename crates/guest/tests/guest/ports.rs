//! Connections to ports.

use belljar_guest::protocol::FailureKind;
use libtest_mimic::Trial;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::fixture::{GuestFixture, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("a_port_echoes", a_port_echoes),
        trial("either_side_ends_its_half", either_side_ends_its_half),
        trial("nobody_listens", a_closed_port_is_refused),
    ]
}

/// The test's namespaces share the host's network, so the test itself can listen.
async fn listen() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

async fn a_port_echoes(world: GuestFixture) {
    let (listener, port) = listen().await;
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let (mut reader, mut writer) = stream.split();
        tokio::io::copy(&mut reader, &mut writer).await.unwrap();
    });
    let bytes: Vec<u8> = (0..5_000_000_u32).map(|number| (number >> 4) as u8).collect();
    let (mut reader, mut writer) = tokio::io::split(world.guest.open_port(port).await.unwrap());
    let mut back = Vec::new();
    let (sent, received) = tokio::join!(
        async {
            writer.write_all(&bytes).await?;
            writer.shutdown().await
        },
        reader.read_to_end(&mut back)
    );
    sent.unwrap();
    received.unwrap();
    assert!(back == bytes);
}

async fn either_side_ends_its_half(world: GuestFixture) {
    let (listener, port) = listen().await;
    let (mut ours, theirs) = tokio::join!(world.guest.open_port(port), listener.accept());
    let (ours, mut theirs) = (ours.as_mut().unwrap(), theirs.unwrap().0);
    ours.write_all(b"question").await.unwrap();
    ours.shutdown().await.unwrap();
    let mut question = String::new();
    theirs.read_to_string(&mut question).await.unwrap();
    theirs.write_all(b"answer").await.unwrap();
    theirs.shutdown().await.unwrap();
    let mut answer = String::new();
    ours.read_to_string(&mut answer).await.unwrap();
    assert_eq!((question.as_str(), answer.as_str()), ("question", "answer"));
    // The other direction.
    let (ours, theirs) = tokio::join!(world.guest.open_port(port), listener.accept());
    let (mut ours, mut theirs) = (ours.unwrap(), theirs.unwrap().0);
    theirs.shutdown().await.unwrap();
    assert_eq!(ours.read(&mut [0; 1]).await.unwrap(), 0);
    ours.write_all(b"late").await.unwrap();
    ours.shutdown().await.unwrap();
    let mut late = String::new();
    theirs.read_to_string(&mut late).await.unwrap();
    assert_eq!(late, "late");
}

async fn a_closed_port_is_refused(world: GuestFixture) {
    let (listener, port) = listen().await;
    drop(listener);
    let refused = world.guest.open_port(port).await.unwrap_err();
    assert_eq!(refused.kind(), Some(FailureKind::Refused));
    assert_eq!(refused.to_string(), format!("port {port}: no program listens on this port"));
}
