//! A long-lived process: after many runs, neither it nor its launcher has more descriptors than after a few.

use std::sync::Arc;

use belljar_engine::Engine;
use belljar_engine::limits::Limits;
use belljar_engine::profile::Profiles;
use belljar_engine::provider::{Sink, SinkControl, Stream};
use belljar_engine::request::{HostPaths, Request};
use belljar_engine::warm::WarmSettings;
use belljar_providers::native::{Native, SpawnedLauncher};
use serde_json::{Value, json};

/// Runs until everything that is kept between runs exists.
const WARM_UP: usize = 20;
const RUNS: usize = 60;
/// Rounds of runs, one of which must add no descriptor.
const ROUNDS: usize = 6;

pub(crate) fn descriptors() -> Result<(), String> {
    let launched = SpawnedLauncher::start().map_err(|error| error.to_string())?;
    let launcher = newest_child().ok_or("no launcher process found")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    runtime.block_on(async {
        let native =
            Native::connect(launched, WarmSettings::default()).await.map_err(|error| error.to_string())?;
        let engine = Engine::new(Arc::new(native), Profiles::built_in(), Limits::CEILING);
        for number in 0..WARM_UP {
            execute(&engine, number).await?;
        }
        // On a busy machine more runs overlap, and the launcher keeps what the most of them needed at one time.
        // A leak grows with every round.
        let (mut most, mut grows) = (settled(launcher).await, true);
        for _ in 0..ROUNDS {
            for number in 0..RUNS {
                execute(&engine, number).await?;
            }
            let now = settled(launcher).await;
            println!("descriptors of this process and of its launcher: at most {most:?}, now {now:?}");
            grows = now.0 > most.0 || now.1 > most.1;
            if !grows {
                break;
            }
            most = (most.0.max(now.0), most.1.max(now.1));
        }
        engine.shut_down().await;
        if grows { Err(format!("still growing at {most:?}")) } else { Ok(()) }
    })
}

/// Executes a program that succeeds, fails, times out, exceeds a limit or is dropped midway, in turn.
async fn execute(engine: &Engine, number: usize) -> Result<(), String> {
    let script = ["echo fine", "exit 3", "sleep 60", "cat /dev/zero > /tmp/fill", "setsid sleep 60 & exit 0"];
    let request = json!({
        "command": ["sh", "-c", script[number % script.len()]],
        "limits": {"timeout_ms": 100, "disk_bytes": 4 << 20},
    });
    let request: Request = serde_json::from_value::<Value>(request)
        .and_then(serde_json::from_value)
        .map_err(|error| error.to_string())?;
    let admitted = engine.admit(request, HostPaths::default()).map_err(|error| error.to_string())?;
    let mut view = Blind;
    let run = engine.execute(format!("exec_{number}"), admitted, &mut view, Box::pin(std::future::pending()));
    if number % 7 == 6 {
        // Dropped midway, as when a client disconnects.
        let _dropped = tokio::time::timeout(std::time::Duration::from_millis(10), run).await;
        return Ok(());
    }
    run.await.map(drop).map_err(|error| error.to_string())
}

/// Counts descriptors of this process and of the launcher, once the number is stable.
async fn settled(launcher: u32) -> (usize, usize) {
    let own = std::process::id();
    let count = |pid: u32| std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
    let mut last = (count(own), count(launcher));
    for _ in 0..20 {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        let now = (count(own), count(launcher));
        if now == last {
            break;
        }
        last = now;
    }
    last
}

fn newest_child() -> Option<u32> {
    let own = std::process::id();
    let tasks = std::fs::read_dir("/proc/self/task").ok()?.flatten();
    let children = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let found = children.flat_map(|text| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
    found.filter_map(|pid| pid.parse().ok()).filter(|pid| *pid != own).max()
}

struct Blind;

impl Sink for Blind {
    fn output(&mut self, _stream: Stream, _bytes: &[u8]) -> SinkControl {
        SinkControl::Continue
    }
}
