//! `belljar mcp` serves the tools to one client over standard input and output; `belljar tools` prints their
//! definitions.
//!
//! Only the protocol is written to standard output; messages for people go to standard error.

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use belljar_engine::Engine;
use belljar_engine::defaults::RequestDefaults;
use belljar_engine::provider::ImageChoice;
use belljar_tools::{DefinitionFormat, LocalBackend, ToolBackend, definitions};
use clap::{Args, ValueEnum};
use tokio::io::{AsyncRead, AsyncWriteExt};
use tokio::runtime::Handle;

use crate::config::Config;
use crate::env::Environment;
use crate::error::CliError;
use crate::identity;
use crate::intent::Intent;
use crate::os::Interrupts;
use crate::run_args::{LimitArgs, RunArgs};
use crate::{run, wire};

const EXAMPLES: &str = "\
Examples:
  claude mcp add belljar -- belljar mcp                 add it to Claude Code
  belljar mcp --network pypi.org,files.pythonhosted.org hosts that code may reach
  belljar mcp --profile data --memory 2G
  belljar mcp --image python:3.12-slim                  image for the code; pulled if missing

In other clients, configure: \"command\": \"belljar\", \"args\": [\"mcp\"].
When the client disconnects, everything that it started is stopped.";

const IMAGE_FOLDER_REFUSED: &str = "--image: a folder with an unpacked root works only with 'belljar run'; use 'host', a \
    name, an archive or an OCI layout, or set the folder in a profile";

/// Arguments of `belljar mcp`. They apply to every run, and a model cannot change them.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct McpArgs {
    #[command(flatten)]
    limits: LimitArgs,
    /// Network access of the code: none, internet (public addresses only), single hosts, or full (the host's
    /// own network: everything that this machine can reach) [default: none]
    #[arg(long, value_name = "internet|HOST,…")]
    network: Option<String>,
    /// Profile of limits and policy: default, terminal, data, or one from belljar.toml
    #[arg(long, value_name = "PROFILE")]
    profile: Option<String>,
    /// Provider that runs sandboxes [default: native]
    #[arg(long, value_name = "PROVIDER")]
    provider: Option<String>,
    /// Policy that checks code before it runs: off, audit, balanced, strict, ragflow, or one from
    /// belljar.toml
    /// [default: balanced]
    #[arg(long, value_name = "POLICY")]
    policy: Option<String>,
    /// Root file system: 'host', 'sealed', an image name such as python:3.12-slim, an archive or OCI layout
    /// [default: host]
    #[arg(long, value_name = "IMAGE")]
    image: Option<PathBuf>,
}

/// Arguments of `belljar tools`.
#[derive(Debug, Args)]
pub(crate) struct ToolsArgs {
    /// API that the definitions are for
    #[arg(long, value_name = "FORMAT", default_value = "json")]
    format: ToolFormat,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ToolFormat {
    Openai,
    Anthropic,
    Mcp,
    Json,
}

/// Serves until the client disconnects.
pub(crate) fn run(args: McpArgs, environment: &Environment, config: Config) -> Result<u8, CliError> {
    let config =
        Config { providers: config.providers.with_named(args.provider.as_deref(), environment), ..config };
    let defaults = defaults(args, environment)?;
    let named = defaults.request.provider.clone();
    wire::with_engine(named.as_deref(), &config, environment, async |wired| {
        // Other providers pull images themselves.
        if wired.engine.capabilities().images == ImageChoice::Unpacked {
            wired.ensure_image(&defaults.request, false).await?;
        }
        serve(&wired.engine, defaults).await
    })
}

/// Returns what every request inherits. As in a batch, each request names its own code.
fn defaults(args: McpArgs, environment: &Environment) -> Result<RequestDefaults, CliError> {
    let McpArgs { limits, network, profile, provider, policy, image } = args;
    let batch = Some(PathBuf::new());
    let args = RunArgs { limits, network, profile, provider, policy, image, batch, ..RunArgs::default() };
    let Intent { request, paths, .. } = Intent::from_args(args, environment)?;
    // Sandboxes take images by name; a folder that only applies to single runs would be surprising.
    if paths.image.is_some() {
        return Err(CliError::invalid(IMAGE_FOLDER_REFUSED));
    }
    Ok(RequestDefaults { request, paths })
}

async fn serve(engine: &Arc<Engine>, defaults: RequestDefaults) -> Result<u8, CliError> {
    defaults.check(engine)?;
    run::warn_of_missing_layers(&engine.capabilities(), false);
    let mut interrupts = Interrupts::listen()?;
    let alone = Arc::new(LocalBackend::new(Arc::clone(engine), defaults, identity::random_id));
    let served =
        belljar_tools::serve(Arc::clone(&alone) as Arc<dyn ToolBackend>, stdin(), tokio::io::stdout());
    tokio::select! {
        () = served => {}
        () = interrupts.next() => {}
    }
    alone.close_all().await;
    Ok(0)
}

/// Returns standard input, read by a thread that does not have to be joined at exit.
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

/// Prints the tool definitions.
pub(crate) fn tools(args: &ToolsArgs) -> Result<u8, CliError> {
    let format = match args.format {
        ToolFormat::Openai => DefinitionFormat::OpenAi,
        ToolFormat::Anthropic => DefinitionFormat::Anthropic,
        ToolFormat::Mcp => DefinitionFormat::Mcp,
        ToolFormat::Json => DefinitionFormat::Json,
    };
    let text = format!("{:#}\n", definitions(format));
    match io::stdout().lock().write_all(text.as_bytes()) {
        // A closed pipe is not a failure.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(CliError::host(format!("write to standard output: {error}")))
        }
        _ => Ok(0),
    }
}
