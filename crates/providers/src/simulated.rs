//! A provider that runs nothing and reports so, for developing an agent on a machine that cannot isolate. It
//! is used only when named explicitly.

use std::time::Duration;

use belljar_engine::layer::Layer;
use belljar_engine::outcome::{Ending, Kernel, Outcome, Receipt};
use belljar_engine::plan::{CodeSource, Plan, Program, Task};
use belljar_engine::provider::{
    BoxFuture, Capabilities, ImageChoice, MissingLayer, Provider, ProviderError, Sink, Stream,
};

/// Name in requests and receipts.
pub const NAME: &str = "simulated";

/// A provider that runs nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Simulated;

impl Provider for Simulated {
    fn name(&self) -> &'static str {
        NAME
    }

    /// Accepts host paths, host rules and images, because nothing uses them.
    fn capabilities(&self) -> Capabilities {
        let missing = |layer: &Layer| MissingLayer {
            layer: *layer,
            reason: "nothing runs here, so nothing is enforced".to_owned(),
            remedy: "choose another provider".to_owned(),
        };
        let missing = Layer::ALL.iter().map(missing).collect();
        Capabilities {
            missing,
            host_paths: true,
            single_hosts: true,
            images: ImageChoice::Unpacked,
            ..Capabilities::default()
        }
    }

    fn run<'a>(
        &'a self,
        _plan: &'a Plan,
        task: &'a Task,
        sink: &'a mut dyn Sink,
        _cancel: BoxFuture<'a, ()>,
    ) -> BoxFuture<'a, Result<Outcome, ProviderError>> {
        sink.output(Stream::Stdout, format!("simulated: {} was not run\n", describe(task)).as_bytes());
        let receipt = Receipt { simulated: true, ..Receipt::new(NAME, Kernel::Host) };
        Box::pin(std::future::ready(Ok(Outcome::new(Ending::Exited(0), Duration::ZERO, receipt))))
    }

    fn shut_down(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

fn describe(task: &Task) -> String {
    match &task.program {
        Program::Code { language, source: CodeSource::Text { code, .. }, .. } => {
            let lines = code.lines().count();
            format!("{} of {lines} line{}", language.name, if lines == 1 { "" } else { "s" })
        }
        Program::Code { language, source: CodeSource::Existing(_), .. } => {
            format!("{} in a file", language.name)
        }
        Program::Command(words) => {
            format!("the command '{}'", words.first().map(String::as_str).unwrap_or_default().escape_debug())
        }
    }
}
