//! `belljar image build`: builds the default image and similar ones, with Docker from a base image, or from
//! Debian packages without a registry or Docker.

mod debian;
mod log;
mod recipe;

use belljar_engine::provider::Sink;
use belljar_providers::settings::DockerSettings;
use clap::{Args, ValueEnum};
use serde_json::json;

use self::log::BuildLog;
use self::recipe::{BASE, CHANGES, ImageRecipe};
use super::local::to_cli_error;
use super::{LocalImages, StoreArgs, print_image};
use crate::config::Config;
use crate::env::Environment;
use crate::error::CliError;
use crate::{os, say};

pub(super) const EXAMPLES: &str = "\
Examples:
  belljar image build                                   build belljar/default, the default image
  belljar image build --install numpy --apt jq --tag team/tools
  belljar image build --base python:3.12-slim --tag team/py312
  belljar image build --into belljar                    build for Belljar itself, without Docker
  belljar run --provider docker -c 'print(6 * 7)'       run in belljar/default with Docker
  belljar run --image belljar/default job.py            run in it with the native provider

Docker builds the image from a built-in Dockerfile. If no registry can be reached, the image is built
from Debian packages instead, from this machine's mirror. That needs mmdebstrap, and root or a range
of ids in /etc/subuid.";

/// Arguments of `belljar image build`.
#[derive(Debug, Args)]
pub(super) struct BuildArgs {
    /// Name of the new image
    #[arg(long, value_name = "NAME", default_value = "belljar/default")]
    tag: String,
    /// Base image, Debian or derived from it; Docker pulls it [default: debian:bookworm-slim]
    #[arg(long, value_name = "IMAGE")]
    base: Option<String>,
    /// Add Python packages with pip
    #[arg(long, value_name = "NAME", num_args = 1..)]
    install: Vec<String>,
    /// Add Debian packages
    #[arg(long, value_name = "NAME", num_args = 1..)]
    apt: Vec<String>,
    /// Where to store the image [default: docker if its daemon answers]
    #[arg(long, value_name = "WHERE")]
    into: Option<ImageDestination>,
    /// Docker's network for the build, like 'docker build --network'
    #[arg(long, value_name = "NAME")]
    network: Option<String>,
    #[command(flatten)]
    pub(super) store: StoreArgs,
}

/// Where a built image is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ImageDestination {
    /// In Docker, for provider 'docker'
    Docker,
    /// In Belljar's image store, for 'belljar run --image'
    Belljar,
}

/// Builds the image.
pub(super) async fn run(
    args: &BuildArgs,
    environment: &Environment,
    config: &Config,
    stored: &LocalImages,
) -> Result<u8, CliError> {
    let recipe = ImageRecipe::new(&args.tag, &args.apt, &args.install)?;
    let certificates = environment.ca_cert.as_deref();
    let mut shown = BuildLog::new(args.store.json);
    if let Some(docker) = connect_docker(args, config, &mut shown).await? {
        if let Err(why) = docker.ensure_image(&mut shown).await {
            if args.base.is_some() {
                let next = "use a base image that Docker has, or omit --base to build from Debian packages";
                return Err(CliError::host(format!("{why}; {next}")));
            }
            say::note(&format!("no base image ({why}); building from Debian packages instead"));
            let root = debian::root(&recipe, certificates, &mut shown)?;
            let id = docker.import(root, recipe.name.as_str(), &CHANGES, &mut shown).await;
            return print_docker_image(args, id.map_err(CliError::host)?, "packages", shown);
        }
        let arguments = recipe.dockerfile_arguments(args.base.as_deref().unwrap_or(BASE));
        let built = docker.build(
            ImageRecipe::build_context()?,
            recipe.name.as_str(),
            arguments,
            args.network.clone(),
            &mut shown,
        );
        let id = match built.await {
            Ok(id) => id,
            Err(why) => {
                return Err(CliError::host(format!("{why}. Its last output:\n{}", shown.last_lines())));
            }
        };
        return print_docker_image(args, id, "base", shown);
    }
    let store = stored.store()?;
    let root = debian::root(&recipe, certificates, &mut shown)?;
    let record = store.import_root(root, &recipe.name, &mut shown).await.map_err(to_cli_error)?;
    drop(shown);
    print_image(&record, "Built", args.store.json)
}

/// Connects to Docker, if the image is to be stored there.
async fn connect_docker(
    args: &BuildArgs,
    config: &Config,
    shown: &mut BuildLog,
) -> Result<Option<os::ImageBuilder>, CliError> {
    if args.into == Some(ImageDestination::Belljar) {
        return match args.base {
            None => Ok(None),
            Some(_) => Err(CliError::invalid(
                "--base needs Docker; Belljar's own images are built from Debian packages; get other images \
                 with: belljar image pull",
            )),
        };
    }
    shown.progress("connecting to Docker");
    let configured = config.providers.docker().unwrap_or_default();
    let image = args.base.clone().unwrap_or_else(|| BASE.to_owned());
    match os::ImageBuilder::connect(DockerSettings { image, pull: true, ..configured }).await {
        Ok(docker) => Ok(Some(docker)),
        Err(why) if args.into.is_some() || args.base.is_some() => Err(CliError::host(why)),
        Err(why) => {
            say::note(&format!("{why}; building for Belljar's own image store instead"));
            Ok(None)
        }
    }
}

fn print_docker_image(args: &BuildArgs, id: String, from: &str, shown: BuildLog) -> Result<u8, CliError> {
    drop(shown);
    let name = &args.tag;
    match args.store.json {
        true => say::answer(&json!({ "name": name, "into": "docker", "id": id, "from": from }).to_string()),
        false => say::answer(&format!("Built image {name}, stored in Docker.")),
    }
    Ok(0)
}
