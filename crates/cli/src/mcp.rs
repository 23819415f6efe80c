//! `belljar mcp`: the tools for one client over standard input and output. `belljar tools`: their definitions.
//!
//! Nothing but the protocol is ever written to standard output; what people should know goes to standard error.

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use belljar_engine::Engine;
use belljar_engine::defaults::Defaults;
use belljar_engine::provider::ImageChoice;
use belljar_tools::{Alone, Format, Hands, definitions};
use clap::{Args, ValueEnum};
use tokio::io::{AsyncRead, AsyncWriteExt};
use tokio::runtime::Handle;

use crate::args::{LimitArgs, RunArgs};
use crate::config::Config;
use crate::env::Environment;
use crate::failure::Failure;
use crate::identity;
use crate::intent::Intent;
use crate::os::Interrupts;
use crate::run;

const EXAMPLES: &str = "\
Examples:
  claude mcp add belljar -- belljar mcp                 for Claude Code
  belljar mcp --network pypi.org,files.pythonhosted.org what runs may reach
  belljar mcp --profile data --memory 2G
  belljar mcp --image python:3.12-slim                  fetched first, if it is not here

Other clients take a command and its arguments: \"command\": \"belljar\", \"args\": [\"mcp\"].
A client that goes away takes everything with it that it started.";

const FOLDER: &str = "--image: the folder of an unpacked root is for 'belljar run'; give 'host', a name, an archive or \
    an OCI layout, or name the folder in a profile";

/// `belljar mcp`. What is said here holds for every run: a model cannot change it.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct McpArgs {
    #[command(flatten)]
    limits: LimitArgs,
    /// What runs may reach [default: none]
    #[arg(long, value_name = "none|full|HOST,…")]
    network: Option<String>,
    /// default, terminal, data, or one of belljar.toml's
    #[arg(long, value_name = "P")]
    profile: Option<String>,
    /// Way to make sandboxes [default: native]
    #[arg(long, value_name = "P")]
    provider: Option<String>,
    /// How code is read before it runs: off, audit, balanced, strict, ragflow, or one of belljar.toml's
    /// [default: balanced]
    #[arg(long, value_name = "POLICY")]
    policy: Option<String>,
    /// 'host', 'sealed', a name such as python:3.12-slim, an archive or OCI layout [default: host]
    #[arg(long, value_name = "I")]
    image: Option<PathBuf>,
}

/// `belljar tools`.
#[derive(Debug, Args)]
pub(crate) struct ToolsArgs {
    /// In whose words
    #[arg(long, value_name = "FORMAT", default_value = "json")]
    format: Words,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Words {
    Openai,
    Anthropic,
    Mcp,
    Json,
}

/// Serves until the client goes away.
pub(crate) fn run(args: McpArgs, environment: &Environment, config: Config) -> Result<u8, Failure> {
    let config = Config { providers: config.providers.with(args.provider.as_deref(), environment), ..config };
    let defaults = defaults(args, environment)?;
    let named = defaults.request.provider.clone();
    let (own, sources) = run::images(&config, environment);
    run::on_provider(named.as_deref(), config, environment, async |engine| {
        // Others bring what they are asked for themselves.
        if engine.capabilities().images == ImageChoice::Unpacked {
            own.bring(&defaults.request, &sources, false).await?;
        }
        serve(engine, defaults).await
    })
}

/// As with a batch, each request says itself what runs.
fn defaults(args: McpArgs, environment: &Environment) -> Result<Defaults, Failure> {
    let McpArgs { limits, network, profile, provider, policy, image } = args;
    let batch = Some(PathBuf::new());
    let args = RunArgs { limits, network, profile, provider, policy, image, batch, ..RunArgs::default() };
    let Intent { request, paths, .. } = Intent::of(args, environment)?;
    // Sandboxes have their image by name, and one that only runs had would be a surprise.
    if paths.image.is_some() {
        return Err(Failure::invalid(FOLDER));
    }
    Ok(Defaults { request, paths })
}

async fn serve(engine: &Arc<Engine>, defaults: Defaults) -> Result<u8, Failure> {
    defaults.check(engine)?;
    run::warn_of_missing_layers(&engine.capabilities(), false);
    let mut interrupts = Interrupts::listen()?;
    let alone = Arc::new(Alone::new(Arc::clone(engine), defaults, identity::random));
    let served = belljar_tools::serve(Arc::clone(&alone) as Arc<dyn Hands>, stdin(), tokio::io::stdout());
    tokio::select! {
        () = served => {}
        () = interrupts.next() => {}
    }
    alone.close_all().await;
    Ok(0)
}

/// Standard input, read by a thread that nobody has to wait for at the end.
fn stdin() -> impl AsyncRead + Send + Unpin + 'static {
    let (mut to, from) = tokio::io::duplex(64 << 10);
    let runtime = Handle::current();
    thread::spawn(move || {
        let mut bytes = vec![0; 64 << 10];
        while let Ok(count @ 1..) = io::stdin().lock().read(&mut bytes) {
            if runtime.block_on(to.write_all(&bytes[..count])).is_err() {
                return;
            }
        }
    });
    from
}

/// Prints the definitions.
pub(crate) fn tools(args: &ToolsArgs) -> Result<u8, Failure> {
    let format = match args.format {
        Words::Openai => Format::OpenAi,
        Words::Anthropic => Format::Anthropic,
        Words::Mcp => Format::Mcp,
        Words::Json => Format::Json,
    };
    let text = format!("{:#}\n", definitions(format));
    match io::stdout().lock().write_all(text.as_bytes()) {
        // Whoever closed the pipe does not want the rest.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::host(format!("write to standard output: {error}")))
        }
        _ => Ok(0),
    }
}
