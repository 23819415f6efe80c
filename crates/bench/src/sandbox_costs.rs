//! Costs of sandboxes over HTTP: opening one and running its first command, moving a file, and keeping an
//! idle one.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use hyper::Method;
use hyper::body::Bytes;
use serde::Serialize;
use serde_json::{Value, json};

use crate::error::BenchError;
use crate::progress::ProgressLine;
use crate::sample::{Sample, percentile};
use crate::server::BenchServer;

const OPENINGS: usize = 50;
const FILE_BYTES: usize = 10 << 20;
const FILES: usize = 20;
const IDLE_SANDBOXES: usize = 50;
/// Time for a newly opened sandbox to finish its start-up work.
const SETTLING: Duration = Duration::from_millis(500);

/// The measured costs of sandboxes.
#[derive(Debug, Serialize)]
pub(crate) struct SandboxCosts {
    /// From the request for a sandbox to the end of its first command.
    pub(crate) first_command_p50_ms: f64,
    pub(crate) first_command_p99_ms: f64,
    /// Megabytes per second for a 10 MiB file; the median.
    pub(crate) upload: f64,
    pub(crate) download: f64,
    /// Memory of one idle sandbox, including what the server and its launcher hold for it.
    pub(crate) idle_bytes: Option<u64>,
}

/// Measures all of them.
pub(crate) async fn measure_sandboxes(
    served: &BenchServer,
    progress: &mut ProgressLine,
) -> Result<SandboxCosts, BenchError> {
    progress.show("sandboxes: opening");
    let mut openings = Vec::new();
    for counted in 0..=OPENINGS {
        let took = time_first_command(served).await?;
        openings.extend((counted > 0).then_some(Sample { took, warmth: None }));
    }
    progress.show("sandboxes: files");
    let (upload, download) = time_files(served).await?;
    progress.show("sandboxes: waiting");
    let idle_bytes = idle_memory(served).await?;
    let millis = |share| percentile(&openings, share).map_or(0.0, |took| took.as_secs_f64() * 1e3);
    Ok(SandboxCosts {
        first_command_p50_ms: millis(0.5),
        first_command_p99_ms: millis(0.99),
        upload,
        download,
        idle_bytes,
    })
}

async fn time_first_command(served: &BenchServer) -> Result<Duration, BenchError> {
    let started = Instant::now();
    let place = open(served).await?;
    let command = json!({"command": ["true"]});
    let ran = post(served, &format!("{place}/commands"), &command).await?;
    let took = started.elapsed();
    close(served, &place).await?;
    match ran["exit_code"].as_i64() {
        Some(0) => Ok(took),
        _ => Err(BenchError::machine(format!("command 'true' failed in a benchmark sandbox: {ran}"))),
    }
}

/// Measures upload and download in megabytes per second.
async fn time_files(served: &BenchServer) -> Result<(f64, f64), BenchError> {
    let place = open(served).await?;
    let path = format!("{place}/files?path=ten");
    let bytes = Bytes::from((0..FILE_BYTES).map(|at| ((at * 31) >> 7) as u8).collect::<Vec<_>>());
    let (mut there, mut back) = (Vec::new(), Vec::new());
    for _ in 0..FILES {
        let started = Instant::now();
        served.call(Method::PUT, &path, bytes.clone()).await?.json()?;
        there.push(Sample { took: started.elapsed(), warmth: None });
        let started = Instant::now();
        let answer = served.call(Method::GET, &path, Bytes::new()).await?;
        back.push(Sample { took: started.elapsed(), warmth: None });
        if answer.body != bytes {
            return Err(BenchError::machine(
                "a file read back from a benchmark sandbox has different content",
            ));
        }
    }
    close(served, &place).await?;
    let rate = |samples: &[Sample]| {
        percentile(samples, 0.5).map_or(0.0, |took| FILE_BYTES as f64 / 1e6 / took.as_secs_f64())
    };
    Ok((rate(&there), rate(&back)))
}

/// Measures the memory of one idle sandbox among many.
async fn idle_memory(served: &BenchServer) -> Result<Option<u64>, BenchError> {
    let before = memory_below(served.pid());
    let mut places = Vec::new();
    for _ in 0..IDLE_SANDBOXES {
        places.push(open(served).await?);
    }
    tokio::time::sleep(SETTLING).await;
    let after = memory_below(served.pid());
    for place in &places {
        close(served, place).await?;
    }
    Ok(before.zip(after).map(|(before, after)| after.saturating_sub(before) / IDLE_SANDBOXES as u64))
}

async fn open(served: &BenchServer) -> Result<String, BenchError> {
    let sandbox = post(served, "/v1/sandboxes", &json!({})).await?;
    Ok(format!("/v1/sandboxes/{}", sandbox["id"].as_str().unwrap_or_default()))
}

async fn post(served: &BenchServer, path: &str, body: &Value) -> Result<Value, BenchError> {
    served.call(Method::POST, path, body.to_string().into()).await?.json()
}

async fn close(served: &BenchServer, place: &str) -> Result<(), BenchError> {
    served.call(Method::DELETE, place, Bytes::new()).await?.json().map(drop)
}

/// Returns the memory of a process and all its descendants: a page shared by n processes counts 1/n for each.
fn memory_below(root: u32) -> Option<u64> {
    let parents = parents();
    let below = |pid: &u32| {
        let mut ancestor = Some(*pid);
        while let Some(pid) = ancestor.filter(|pid| *pid != root) {
            ancestor = parents.get(&pid).copied();
        }
        ancestor.is_some()
    };
    // A process that exited meanwhile uses no memory.
    let sizes: Vec<u64> =
        parents.keys().filter(|pid| below(pid)).filter_map(|pid| crate::idle_memory::pss(*pid)).collect();
    (!sizes.is_empty()).then(|| sizes.iter().sum())
}

fn parents() -> BTreeMap<u32, u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    numbers
        .filter_map(|pid| Some((pid, parent(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?)))
        .collect()
}

/// Parses the parent pid. A program's name may contain blanks and parentheses; the fields follow the last
/// one.
fn parent(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parent_is_found_behind_any_name() {
        assert_eq!(parent("7 (a) b (c)) S 42 7 7 0"), Some(42));
        assert_eq!(parent("7"), None);
    }

    #[test]
    fn this_process_uses_memory() {
        assert!(memory_below(std::process::id()).is_none_or(|bytes| bytes > 0));
    }
}
