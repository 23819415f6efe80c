//! Measures sandboxes: opening one and its first command, idle memory, and file throughput.
#![expect(clippy::print_stdout, reason = "the example prints its measurements")]

use std::error::Error;
use std::time::{Duration, Instant};

use belljar_engine::Engine;
use belljar_engine::limits::Limits;
use belljar_engine::profile::Profiles;
use belljar_engine::provider::DiscardSink;
use belljar_engine::sandbox::SandboxRequest;
use belljar_engine::sandbox_handle::{AttachOptions, SandboxHandle, StartCommand};
use belljar_engine::warm::{WarmPoolMode, WarmSettings};
use belljar_providers::native::{Native, SpawnedLauncher, run_if_asked};
use tokio::io::AsyncReadExt;

type Answer<T> = Result<T, Box<dyn Error>>;
const OPENED: usize = 60;
const IDLE: usize = 100;
const FILE: u64 = 10 << 20;

fn main() -> Answer<()> {
    run_if_asked();
    let launched = SpawnedLauncher::start()?;
    tokio::runtime::Runtime::new()?.block_on(measure(launched))
}

async fn measure(launched: SpawnedLauncher) -> Answer<()> {
    let native = Native::connect(launched, WarmSettings::default().with_mode(WarmPoolMode::Off)).await?;
    let engine = Engine::new(std::sync::Arc::new(native), Profiles::built_in(), Limits::CEILING);
    let mut times = Vec::new();
    for _ in 0..OPENED {
        let start = Instant::now();
        let sandbox = open(&engine).await?;
        let opened = start.elapsed();
        command(&*sandbox).await?;
        times.push((start.elapsed(), opened));
        sandbox.close().await;
    }
    times.sort();
    let (both, opened) = times[OPENED / 2];
    println!(
        "open and first command: p50 {both:?} (opened after {opened:?}), p95 {:?}",
        times[OPENED * 95 / 100].0
    );
    let sandbox = open(&engine).await?;
    bytes(&*sandbox).await?;
    sandbox.close().await;
    idle(&engine).await?;
    engine.shut_down().await;
    Ok(())
}

async fn open(engine: &Engine) -> Answer<Box<dyn SandboxHandle>> {
    let mut admitted = engine.admit_sandbox(SandboxRequest::default(), None)?;
    Ok(engine.open_sandbox(&mut admitted, &mut DiscardSink).await?.0)
}

async fn command(sandbox: &dyn SandboxHandle) -> Answer<()> {
    let command = StartCommand::program(["true"]);
    let (_, mut output) = sandbox.commands().start_attached(command, AttachOptions::default()).await?;
    while output.next().await?.is_some() {}
    Ok(())
}

async fn bytes(sandbox: &dyn SandboxHandle) -> Answer<()> {
    let (mut up, mut down) = (Vec::new(), Vec::new());
    for _ in 0..9 {
        let start = Instant::now();
        let source = Box::pin(tokio::io::repeat(7).take(FILE));
        sandbox.files().write("file", Default::default(), source).await?;
        up.push(start.elapsed());
        let start = Instant::now();
        let (_, mut source) = sandbox.files().read("file", 0, None).await?;
        tokio::io::copy(&mut source, &mut tokio::io::sink()).await?;
        down.push(start.elapsed());
    }
    let rate = |mut times: Vec<Duration>| {
        times.sort();
        FILE as f64 / 1e6 / times[times.len() / 2].as_secs_f64()
    };
    println!("10 MB file: up {:.0} MB/s, down {:.0} MB/s (p50)", rate(up), rate(down));
    Ok(())
}

async fn idle(engine: &Engine) -> Answer<()> {
    let before = available_kb();
    let start = Instant::now();
    let mut all = Vec::new();
    for _ in 0..IDLE {
        let sandbox = open(engine).await?;
        command(&*sandbox).await?;
        all.push(sandbox);
    }
    let took = start.elapsed();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut counted = 0;
    for sandbox in &all {
        counted += sandbox.stats().await?.memory_bytes.unwrap_or(0);
    }
    let each = before.saturating_sub(available_kb()) / IDLE as u64;
    println!(
        "{IDLE} idle sandboxes, opened in {took:?}: {each} kB each by free memory, {} kB by their cgroups",
        counted / 1024 / IDLE as u64
    );
    let start = Instant::now();
    for sandbox in &all {
        sandbox.close().await;
    }
    println!("closed in {:?}", start.elapsed());
    Ok(())
}

fn available_kb() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("MemAvailable:")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kb| kb.parse().ok()).unwrap_or(0)
}
