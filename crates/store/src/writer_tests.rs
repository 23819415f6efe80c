//! Groups, bounds and error handling of the writer.

use std::sync::mpsc as std_mpsc;
use std::thread;

use rusqlite::params;

use super::*;
use crate::open::{self, StoreOptions};
use crate::wal;

/// A writer on its own thread, and the directory of its database.
struct TestWriter {
    queue: WriteQueue,
    folder: tempfile::TempDir,
    thread: thread::JoinHandle<()>,
}

fn test_writer(writes: u16, bytes: usize, options: &StoreOptions) -> TestWriter {
    let folder = tempfile::tempdir().unwrap();
    let connection = open::open_writer(&folder.path().join("belljar.db"), options).unwrap();
    let (queue, receiver) = WriteQueue::new(NonZeroU16::new(writes).unwrap(), bytes);
    let (watch, copier) = wal::monitor();
    let second = open::open_checkpointer(&folder.path().join("belljar.db"), options).unwrap();
    thread::spawn(move || copier.run(&second));
    let thread = thread::spawn(move || run(&connection, receiver, &watch));
    TestWriter { queue, folder, thread }
}

impl TestWriter {
    /// Blocks the writer in the middle of a write until the returned sender is used.
    fn block(&self) -> std_mpsc::Sender<()> {
        let (go, wait) = std_mpsc::channel();
        let (begun, has_begun) = std_mpsc::channel();
        let work = move |_: &Connection| {
            let _ = begun.send(());
            let _ = wait.recv();
            Ok(())
        };
        drop(self.queue.try_enqueue(0, work).unwrap());
        has_begun.recv().unwrap();
        go
    }

    fn put(&self, name: &str, bytes: usize) -> Result<WriteReply<()>, Error> {
        let (name, value) = (name.to_owned(), "x".repeat(bytes));
        self.queue.try_enqueue(bytes, move |db| {
            db.execute("INSERT INTO settings (name, value) VALUES (?, ?)", params![name, value])?;
            Ok(())
        })
    }

    fn names(self) -> Vec<String> {
        drop(self.queue);
        self.thread.join().unwrap();
        let connection = open::open_reader(&self.folder.path().join("belljar.db")).unwrap();
        let mut statement = connection.prepare("SELECT name FROM settings ORDER BY name").unwrap();
        statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    }
}

#[tokio::test]
async fn a_full_queue_refuses_new_writes_and_delays_records() {
    let bench = test_writer(2, 1 << 20, &StoreOptions::default());
    let go = bench.block();
    let waiting = [bench.put("a", 1).unwrap(), bench.put("b", 1).unwrap()];
    assert!(matches!(bench.put("c", 1), Err(Error::QueueFull)));
    let queue = bench.queue.clone();
    let owed = tokio::spawn(async move { queue.enqueue(0, |_| Ok(7)).await?.await.unwrap() });
    tokio::task::yield_now().await;
    assert!(!owed.is_finished());
    go.send(()).unwrap();
    assert_eq!(owed.await.unwrap().unwrap(), 7);
    for answer in waiting {
        answer.await.unwrap().unwrap();
    }
    assert_eq!(bench.names(), ["a", "b"]);
}

#[tokio::test]
async fn queued_bytes_are_bounded() {
    let bench = test_writer(100, 64 << 10, &StoreOptions::default());
    let go = bench.block();
    let waiting = bench.put("a", 60 << 10).unwrap();
    assert!(matches!(bench.put("b", 10 << 10), Err(Error::QueueFull)));
    go.send(()).unwrap();
    waiting.await.unwrap().unwrap();
    // Larger than the whole queue: admitted once the queue is empty.
    bench.put("c", 200 << 10).unwrap().await.unwrap().unwrap();
    assert_eq!(bench.names(), ["a", "c"]);
}

#[tokio::test]
async fn a_failed_write_is_rolled_back_alone() {
    let bench = test_writer(100, 1 << 20, &StoreOptions::default());
    let go = bench.block();
    let good = bench.put("good", 1).unwrap();
    let half = bench.queue.try_enqueue(0, |db| -> Result<(), Error> {
        db.execute("INSERT INTO settings (name, value) VALUES ('half', '')", [])?;
        db.execute("INSERT INTO settings (name, value) VALUES ('good', '')", [])?;
        Ok(())
    });
    let after = bench.put("later", 1).unwrap();
    go.send(()).unwrap();
    good.await.unwrap().unwrap();
    assert!(half.unwrap().await.unwrap().is_err());
    after.await.unwrap().unwrap();
    assert_eq!(bench.names(), ["good", "later"]);
}

#[tokio::test]
async fn a_write_too_large_for_the_disk_fails_alone() {
    let bench =
        test_writer(100, 64 << 20, &StoreOptions { max_bytes: Some(2 << 20), ..StoreOptions::default() });
    let go = bench.block();
    let first = bench.put("first", 1_000).unwrap();
    let big = bench.put("big", 4 << 20).unwrap();
    let last = bench.put("last", 1_000).unwrap();
    go.send(()).unwrap();
    first.await.unwrap().unwrap();
    assert!(matches!(big.await.unwrap(), Err(Error::NoSpace)));
    last.await.unwrap().unwrap();
    bench.put("healed", 1_000).unwrap().await.unwrap().unwrap();
    assert_eq!(bench.names(), ["first", "healed", "last"]);
}

#[tokio::test]
async fn queued_writes_complete_without_a_waiting_caller() {
    let bench = test_writer(100, 1 << 20, &StoreOptions::default());
    drop(bench.put("a", 1).unwrap());
    assert_eq!(bench.names(), ["a"]);
}

#[tokio::test]
async fn the_wal_stays_bounded() {
    let bench = test_writer(100, 64 << 20, &StoreOptions::default());
    for round in 0..800 {
        bench.put(&format!("{round:03}"), 100_000).unwrap().await.unwrap().unwrap();
    }
    let log = std::fs::metadata(bench.folder.path().join("belljar.db-wal")).unwrap().len();
    assert!(log < 40 << 20, "{log} of 80 MB written");
    assert_eq!(bench.names().len(), 800);
}
