//! A fake provider that interprets scripts of one command per line: `print TEXT`, `sleep MS`, `cpu MS`,
//! `fail`, `broken`, `flood BYTES`, `artifact NAME BYTES`. The script `stdin` is in standard input.

use std::time::{Duration, Instant};

use belljar_engine::outcome::{Artifact, Ending, Kernel, Outcome, Receipt, Usage, Warmth};
use belljar_engine::plan::{CodeSource, Program, Task};
use belljar_engine::provider::{
    BoxFuture, Capabilities, ImageChoice, PoolMetrics, ProviderError, Sink, Stream,
};
use belljar_engine::testing::FakeProvider;

pub(crate) fn script_provider() -> FakeProvider {
    let pool = |name: &str, hits| PoolMetrics {
        name: name.to_owned(),
        tenant: "secret-tenant".to_owned(),
        size: 2,
        hits,
        refill_ms: 1.5,
        ..PoolMetrics::default()
    };
    let capabilities = Capabilities {
        host_paths: true,
        package_layers: true,
        single_hosts: true,
        images: ImageChoice::Unpacked,
        ..Capabilities::default()
    };
    FakeProvider::new("native", |_, task, sink, cancel| Box::pin(run(task, sink, cancel)))
        .with_capabilities(capabilities)
        .with_pools(vec![pool("python", 3), pool("python+secret", 4)])
}

async fn run(task: &Task, sink: &mut dyn Sink, cancel: BoxFuture<'_, ()>) -> Result<Outcome, ProviderError> {
    let started = Instant::now();
    let mut usage = Usage::default();
    let artifacts = artifacts(script(task));
    let ending = tokio::select! {
        ending = play(script(task), sink, &mut usage) => ending?,
        () = cancel => Ending::Cancelled,
    };
    let receipt = Receipt { warm: Warmth::Pool, ..Receipt::new("native", Kernel::Host) };
    Ok(Outcome { usage, artifacts, ..Outcome::new(ending, started.elapsed(), receipt) })
}

fn script(task: &Task) -> &str {
    match &task.program {
        Program::Code { source: CodeSource::Text { code, .. }, .. } if code == "stdin" => {
            std::str::from_utf8(&task.stdin).unwrap()
        }
        Program::Code { source: CodeSource::Text { code, .. }, .. } => code,
        _ => "",
    }
}

fn artifacts(script: &str) -> Vec<Artifact> {
    let lines = script.lines().filter_map(|line| line.strip_prefix("artifact ")?.split_once(' '));
    lines
        .map(|(name, size)| Artifact { name: name.to_owned(), content: vec![b'x'; size.parse().unwrap()] })
        .collect()
}

async fn play(script: &str, sink: &mut dyn Sink, usage: &mut Usage) -> Result<Ending, ProviderError> {
    for line in script.lines() {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "print" => drop(sink.output(Stream::Stdout, format!("{rest}\n").as_bytes())),
            "sleep" => tokio::time::sleep(Duration::from_millis(rest.parse().unwrap())).await,
            "cpu" => usage.cpu = Duration::from_millis(rest.parse().unwrap()),
            "fail" => return Ok(Ending::Exited(3)),
            "flood" => drop(sink.output(Stream::Stdout, &vec![b'x'; rest.parse().unwrap()])),
            "broken" => return Err(ProviderError::setup("mount /srv/secret/path", "no")),
            _ => {}
        }
    }
    Ok(Ending::Exited(0))
}
