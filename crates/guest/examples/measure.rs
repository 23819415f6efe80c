//! Measures a guest: the round trip of a tiny command, file transfer in both directions, and memory when
//! idle.
//!
//! ```console
//! $ cargo run --release -p belljar-guest --example measure
//! ```
#![expect(clippy::print_stdout, reason = "this example prints measurements")]

#[cfg(target_os = "linux")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    belljar_guest::run_if_asked();
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?
        .block_on(linux::measure())
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("a guest requires Linux");
}

#[cfg(target_os = "linux")]
mod linux {
    use std::error::Error;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream as StdUnixStream;
    use std::process::{Child, Command};
    use std::time::{Duration, Instant};

    use belljar_guest::Guest;
    use belljar_guest::protocol::{AttachOptions, GuestSettings, StartCommand, WriteOptions};
    use tokio::net::UnixStream;

    const ROUNDS: usize = 300;
    const FILE: usize = 10_000_000;

    /// Starts this program again as a guest, with its connection as descriptor 3.
    fn spawn() -> Result<(Child, UnixStream), Box<dyn Error>> {
        let (ours, theirs) = StdUnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let script = r#"exec -a belljar-guest "$0" 3<&0 0</dev/null"#;
        let mut command = Command::new("bash");
        command.args(["-c", script]).arg(std::env::current_exe()?).stdin(OwnedFd::from(theirs));
        Ok((command.spawn()?, UnixStream::from_std(ours)?))
    }

    pub(crate) async fn measure() -> Result<(), Box<dyn Error>> {
        let folder = tempfile::tempdir()?;
        let workdir = folder.path().to_string_lossy().into_owned();
        let started = Instant::now();
        let (mut child, line) = spawn()?;
        let guest = Guest::connect(line, GuestSettings { workdir, ..GuestSettings::default() }).await?;
        println!("guest up                     {:>10.2?}", started.elapsed());
        tokio::time::sleep(Duration::from_millis(100)).await;
        println!("idle guest                   {:>10}", memory(&child)?);
        report("stat", async || guest.stat("", false).await.map(drop).map_err(Into::into)).await?;
        report("start `true`, see its end", async || run(&guest, &["/bin/true"]).await).await?;
        report("start `sh -c true`", async || run(&guest, &["/bin/sh", "-c", "true"]).await).await?;
        report("bare fork and exec of `true`", async || {
            Command::new("/bin/true").status().map(drop).map_err(Into::into)
        })
        .await?;
        files(&guest).await?;
        println!("guest after all that         {:>10}", memory(&child)?);
        drop(guest);
        child.wait()?;
        Ok(())
    }

    async fn run(guest: &Guest, argv: &[&str]) -> Result<(), Box<dyn Error>> {
        let command = StartCommand::program(argv.iter().copied());
        let (_, mut output) = guest.start_attached(command, AttachOptions::default()).await?;
        while output.next().await?.is_some() {}
        Ok(())
    }

    async fn report(
        name: &str,
        mut once: impl AsyncFnMut() -> Result<(), Box<dyn Error>>,
    ) -> Result<(), Box<dyn Error>> {
        let mut times = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            let start = Instant::now();
            once().await?;
            times.push(start.elapsed());
        }
        times.sort();
        println!("{name:<28} {:>10.2?} p50 {:>10.2?} p99", times[ROUNDS / 2], times[ROUNDS * 99 / 100]);
        Ok(())
    }

    async fn files(guest: &Guest) -> Result<(), Box<dyn Error>> {
        let bytes = vec![7; FILE];
        let (mut up, mut down) = (Vec::new(), Vec::new());
        for _ in 0..10 {
            let start = Instant::now();
            guest.write_file("file", WriteOptions::default(), bytes.as_slice()).await?;
            up.push(start.elapsed());
            let start = Instant::now();
            let mut reader = guest.read_file("file", 0, None).await?.1;
            let mut len = 0;
            while let Some(chunk) = reader.next_chunk().await? {
                len += chunk.len();
            }
            down.push(start.elapsed());
            assert_eq!(len, FILE);
        }
        for (name, mut times) in [("10 MB up", up), ("10 MB down", down)] {
            times.sort();
            let median = times[times.len() / 2];
            println!("{name:<28} {:>7.0} MB/s", FILE as f64 / 1e6 / median.as_secs_f64());
        }
        Ok(())
    }

    fn memory(child: &Child) -> Result<String, Box<dyn Error>> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id()))?;
        let of = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap_or_default();
            line.split_whitespace().nth(1).unwrap_or("?").to_owned()
        };
        Ok(format!("{} kB resident, {} kB of its own", of("VmRSS"), of("RssAnon")))
    }
}
