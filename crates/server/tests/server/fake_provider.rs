//! A fake provider that interprets scripts of one command per line: `print TEXT`, `sleep MS`, `cpu MS`,
//! `fail`, `broken`, `flood BYTES`.

use std::time::{Duration, Instant};

use belljar_engine::outcome::{Ending, Kernel, Outcome, Receipt, Usage, Warmth};
use belljar_engine::plan::{CodeSource, Plan, Program, Task};
use belljar_engine::provider::{
    BoxFuture, Capabilities, ImageChoice, PoolMetrics, Provider, ProviderError, Sandbox, Sink, Stream,
};

#[derive(Debug)]
pub(crate) struct ScriptProvider;

impl Provider for ScriptProvider {
    fn name(&self) -> &'static str {
        "native"
    }

    fn capabilities(&self) -> Capabilities {
        let images = ImageChoice::Unpacked;
        Capabilities {
            host_paths: true,
            package_layers: true,
            single_hosts: true,
            images,
            ..Capabilities::default()
        }
    }

    fn open<'a>(&'a self, _plan: &'a Plan) -> BoxFuture<'a, Result<Box<dyn Sandbox>, ProviderError>> {
        Box::pin(async { Ok(Box::new(ScriptSandbox) as Box<dyn Sandbox>) })
    }

    fn pools(&self) -> BoxFuture<'_, Vec<PoolMetrics>> {
        let pool = |name: &str, hits| PoolMetrics {
            name: name.to_owned(),
            tenant: "secret-tenant".to_owned(),
            size: 2,
            hits,
            refill_ms: 1.5,
            ..PoolMetrics::default()
        };
        Box::pin(async move { vec![pool("python", 3), pool("python+secret", 4)] })
    }

    fn shut_down(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

#[derive(Debug)]
struct ScriptSandbox;

impl Sandbox for ScriptSandbox {
    fn run<'a>(
        &'a mut self,
        task: &'a Task,
        sink: &'a mut dyn Sink,
        cancel: BoxFuture<'a, ()>,
    ) -> BoxFuture<'a, Result<Outcome, ProviderError>> {
        Box::pin(async move {
            let started = Instant::now();
            let mut usage = Usage::default();
            let ending = tokio::select! {
                ending = play(script(task), sink, &mut usage) => ending?,
                () = cancel => Ending::Cancelled,
            };
            let receipt = Receipt {
                provider: "native",
                kernel: Kernel::Host,
                isolation: Vec::new(),
                warm: Warmth::Pool,
                simulated: false,
                instead_of: None,
                service: None,
            };
            let duration = started.elapsed();
            Ok(Outcome {
                ending,
                duration,
                usage,
                result: None,
                artifacts: Vec::new(),
                findings: Vec::new(),
                receipt,
            })
        })
    }
}

fn script(task: &Task) -> &str {
    match &task.program {
        Program::Code { source: CodeSource::Text { code, .. }, .. } => code,
        _ => "",
    }
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
            "broken" => {
                let (step, cause) = ("mount /srv/secret/path".to_owned(), "no".to_owned());
                return Err(ProviderError::Setup { step, cause });
            }
            _ => {}
        }
    }
    Ok(Ending::Exited(0))
}
