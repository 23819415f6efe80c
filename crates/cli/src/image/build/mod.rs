//! `belljar image build`: builds the default image and similar ones, with Docker from a base image, or from
//! Debian packages without a registry or Docker.

mod debian;
mod recipe;
mod tail;

use belljar_engine::provider::Sink;
use belljar_providers::settings::DockerSettings;
use clap::{Args, ValueEnum};
use serde_json::json;

use self::recipe::{BASE, CHANGES, Recipe};
use self::tail::Tail;
use super::own::failure;
use super::{Own, StoreArgs, told};
use crate::config::Config;
use crate::env::Environment;
use crate::failure::Failure;
use crate::{os, say};

pub(super) const EXAMPLES: &str = "\
Examples:
  belljar image build                                   build belljar/default, the default image
  belljar image build --install numpy --apt git --tag team/tools
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
    into: Option<Destination>,
    /// Docker's network for the build, like 'docker build --network'
    #[arg(long, value_name = "NAME")]
    network: Option<String>,
    #[command(flatten)]
    pub(super) store: StoreArgs,
}

/// Where a built image is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Destination {
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
    own: &Own,
) -> Result<u8, Failure> {
    let recipe = Recipe::new(&args.tag, &args.apt, &args.install)?;
    let certificates = environment.ca_cert.as_deref();
    let mut shown = Tail::new(args.store.json);
    if let Some(docker) = docker(args, config, &mut shown).await? {
        if let Err(why) = docker.bring(&mut shown).await {
            if args.base.is_some() {
                let next = "use a base image that Docker has, or omit --base to build from Debian packages";
                return Err(Failure::host(format!("{why}; {next}")));
            }
            say::note(&format!("no base image ({why}); building from Debian packages instead"));
            let root = debian::root(&recipe, certificates, &mut shown)?;
            let id = docker.import(root, recipe.name.as_str(), &CHANGES, &mut shown).await;
            return in_docker(args, id.map_err(Failure::host)?, "packages", shown);
        }
        let arguments = recipe.arguments(args.base.as_deref().unwrap_or(BASE));
        let built = docker.build(
            Recipe::context()?,
            recipe.name.as_str(),
            arguments,
            args.network.clone(),
            &mut shown,
        );
        let id = match built.await {
            Ok(id) => id,
            Err(why) => return Err(Failure::host(format!("{why}. Its last output:\n{}", shown.said()))),
        };
        return in_docker(args, id, "base", shown);
    }
    let store = own.store()?;
    let root = debian::root(&recipe, certificates, &mut shown)?;
    let record = store.import_root(root, &recipe.name, &mut shown).await.map_err(failure)?;
    drop(shown);
    told(&record, "Built", args.store.json)
}

/// Connects to Docker, if the image is to be stored there.
async fn docker(
    args: &BuildArgs,
    config: &Config,
    shown: &mut Tail,
) -> Result<Option<os::ImageBuilder>, Failure> {
    if args.into == Some(Destination::Belljar) {
        return match args.base {
            None => Ok(None),
            Some(_) => Err(Failure::invalid(
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
        Err(why) if args.into.is_some() || args.base.is_some() => Err(Failure::host(why)),
        Err(why) => {
            say::note(&format!("{why}; building for Belljar's own image store instead"));
            Ok(None)
        }
    }
}

fn in_docker(args: &BuildArgs, id: String, from: &str, shown: Tail) -> Result<u8, Failure> {
    drop(shown);
    let name = &args.tag;
    match args.store.json {
        true => say::answer(&json!({ "name": name, "into": "docker", "id": id, "from": from }).to_string()),
        false => say::answer(&format!("Built image {name}, stored in Docker.")),
    }
    Ok(0)
}
