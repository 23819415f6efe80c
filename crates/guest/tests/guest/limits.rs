//! Memory stays bounded, whatever the peers read or do not read. `./test --all` transfers a gigabyte.

use std::pin::Pin;
use std::task::{Context, Poll};

use belljar_guest::protocol::{
    ArchiveFormat, AttachOptions, FailureKind, GuestSettings, StdinMode, WriteOptions,
};
use libtest_mimic::Trial;
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};

use crate::fixture::{GuestFixture, HAS_NAMESPACES, collect, shell, trial, trial_with, until};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("a_big_file_takes_no_memory", a_big_file_takes_no_memory),
        trial("a_stalled_reader_blocks_no_other_channel", a_stalled_reader_blocks_no_other_channel),
        trial(
            "a_process_that_ignores_stdin_blocks_no_other_channel",
            a_process_that_ignores_stdin_blocks_no_other_channel,
        ),
        trial("dropped_streams_leave_no_descriptors", dropped_streams_leave_no_descriptors)
            .with_ignored_flag(!*HAS_NAMESPACES),
        trial_with(
            "channels_are_bounded",
            GuestSettings { channels: 8, ..GuestSettings::default() },
            channels_are_bounded,
        ),
    ]
}

/// A reader of generated, numbered bytes.
struct Counting {
    at: u64,
    len: u64,
}

impl AsyncRead for Counting {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let len = (self.len - self.at).min(buffer.remaining() as u64);
        let filled = buffer.initialize_unfilled_to(len as usize);
        for (number, byte) in filled.iter_mut().enumerate() {
            *byte = ((self.at + number as u64) >> 3) as u8;
        }
        buffer.advance(len as usize);
        self.at += len;
        Poll::Ready(Ok(()))
    }
}

async fn a_big_file_takes_no_memory(world: GuestFixture) {
    let len = if std::env::var("BELLJAR_TEST_ALL").is_ok_and(|all| all == "1") { 1 << 30 } else { 64 << 20 };
    let written =
        world.guest.write_file("big", WriteOptions::default(), Counting { at: 0, len }).await.unwrap();
    assert_eq!(written, len);
    let (_, mut reader) = world.guest.read_file("big", 0, None).await.unwrap();
    let mut expected = Counting { at: 0, len };
    let (mut ours, mut theirs) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        let read = reader.read(&mut theirs).await.unwrap();
        if read == 0 {
            break;
        }
        expected.read_exact(&mut ours[..read]).await.unwrap();
        assert!(ours[..read] == theirs[..read]);
    }
    assert_eq!(expected.at, len);
    let most = world.memory_kb("VmHWM").await;
    assert!(most < 24 << 10, "{most} kB");
}

async fn a_stalled_reader_blocks_no_other_channel(world: GuestFixture) {
    world.shell("head -c 50000000 /dev/zero > big").await;
    let mut unread = Vec::new();
    for _ in 0..40 {
        unread.push(world.guest.read_file("big", 0, None).await.unwrap());
    }
    let (_, flood) = world.guest.start_attached(shell("yes"), AttachOptions::default()).await.unwrap();
    for _ in 0..20 {
        assert_eq!(world.shell("echo through").await.text(), "through");
    }
    // Forty windows are buffered on the host, none in the guest.
    let most = world.memory_kb("VmHWM").await;
    assert!(most < 40 << 10, "{most} kB");
    drop((unread, flood));
    assert_eq!(world.read("big").await.unwrap().len(), 50_000_000);
}

async fn a_process_that_ignores_stdin_blocks_no_other_channel(world: GuestFixture) {
    let command = belljar_guest::protocol::StartCommand { stdin: StdinMode::Open, ..shell("sleep 1000") };
    let process = world.guest.start(command).await.unwrap();
    let guest = world.guest.clone();
    let stuck = tokio::spawn(async move { guest.write_stdin(process, &vec![0; 8 << 20]).await });
    for _ in 0..10 {
        assert_eq!(world.shell("echo through").await.text(), "through");
    }
    assert!(!stuck.is_finished());
    world.guest.signal(process, 9).await.unwrap();
    assert_eq!(stuck.await.unwrap().unwrap_err().kind(), Some(FailureKind::Ended));
    let most = world.memory_kb("VmHWM").await;
    assert!(most < 24 << 10, "{most} kB");
}

async fn dropped_streams_leave_no_descriptors(world: GuestFixture) {
    world.shell("head -c 10000000 /dev/zero > big; mkdir d").await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let process = world.guest.start(shell("yes")).await.unwrap();
    let open = async || world.shell("ls /proc/1/fd | wc -l").await.text().parse::<u32>().unwrap();
    let before = open().await;
    for _ in 0..30 {
        let guest = &world.guest;
        let streams = tokio::join!(
            guest.read_file("big", 0, None),
            guest.create_file("new", WriteOptions { atomic: true, ..WriteOptions::default() }),
            guest.attach(process, AttachOptions { from: 0, hold: true }),
            guest.watch("d", true),
            guest.open_port(port),
            guest.download_archive("", ArchiveFormat::Tar),
            guest.stdin(process),
        );
        assert!(streams.0.is_ok() && streams.1.is_ok() && streams.2.is_ok() && streams.3.is_ok());
        assert!(streams.4.is_ok() && streams.5.is_ok() && streams.6.is_ok());
    }
    until("all descriptors are closed", async || open().await == before).await;
}

async fn channels_are_bounded(world: GuestFixture) {
    let mut attached = Vec::new();
    for _ in 0..8 {
        attached
            .push(world.guest.start_attached(shell("sleep 1000"), AttachOptions::default()).await.unwrap());
    }
    let guest = world.guest.clone();
    let waiting = tokio::spawn(async move { guest.stat("", false).await });
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    assert!(!waiting.is_finished());
    let (process, output) = attached.pop().unwrap();
    drop(output);
    waiting.await.unwrap().unwrap();
    world.guest.signal(process, 9).await.unwrap();
    let output = world.guest.attach(process, AttachOptions::default()).await.unwrap();
    collect(output).await.unwrap();
}
