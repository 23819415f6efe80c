//! `belljar image build`: the default image and others like it, by Docker from a registry's base, or from the distribution's
//! packages where there is no registry or no Docker.

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
  belljar image build                                   belljar/default: Python, pytest, requests, Node.js
  belljar image build --install numpy --apt git --tag team/tools
  belljar image build --base python:3.12-slim --tag team/py312
  belljar image build --into belljar                    without Docker
  belljar run --provider docker -c 'print(6 * 7)'       runs in belljar/default
  belljar run --image belljar/default job.py            the same natively, from Belljar's own images

Docker builds it from a Dockerfile that this program brings along. Where no registry can be reached the
same is made of Debian's packages, from the mirror of this machine, and imported; that takes mmdebstrap,
and root or a range of ids in /etc/subuid.";

/// `belljar image build`.
#[derive(Debug, Args)]
pub(super) struct BuildArgs {
    /// Name of the image
    #[arg(long, value_name = "NAME", default_value = "belljar/default")]
    tag: String,
    /// Image to build on: Debian, or one made of it; Docker pulls it [default: debian:bookworm-slim]
    #[arg(long, value_name = "IMAGE")]
    base: Option<String>,
    /// Python packages to add, by pip
    #[arg(long, value_name = "NAME", num_args = 1..)]
    install: Vec<String>,
    /// Debian packages to add
    #[arg(long, value_name = "NAME", num_args = 1..)]
    apt: Vec<String>,
    /// Who gets it [default: docker where its daemon answers]
    #[arg(long, value_name = "WHERE")]
    into: Option<Destination>,
    /// Docker's network for the build, as 'docker build --network' has it
    #[arg(long, value_name = "NAME")]
    network: Option<String>,
    #[command(flatten)]
    pub(super) store: StoreArgs,
}

/// Who gets an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Destination {
    /// Docker's daemon, for provider 'docker'
    Docker,
    /// Belljar's own images, for 'belljar run --image'
    Belljar,
}

/// Makes the image.
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
                let next = "name one that Docker has, or leave --base out to build from Debian's packages";
                return Err(Failure::host(format!("{why}; {next}")));
            }
            say::note(&format!("no base image ({why}); building from Debian's packages instead"));
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
            Err(why) => return Err(Failure::host(format!("{why}. It said last:\n{}", shown.said()))),
        };
        return in_docker(args, id, "base", shown);
    }
    let store = own.store()?;
    let root = debian::root(&recipe, certificates, &mut shown)?;
    let record = store.import_root(root, &recipe.name, &mut shown).await.map_err(failure)?;
    drop(shown);
    told(&record, "is built", args.store.json)
}

/// Docker, where it is to get the image.
async fn docker(
    args: &BuildArgs,
    config: &Config,
    shown: &mut Tail,
) -> Result<Option<os::ImageBuilder>, Failure> {
    if args.into == Some(Destination::Belljar) {
        return match args.base {
            None => Ok(None),
            Some(_) => Err(Failure::invalid(
                "--base is for Docker; Belljar's own images are built from Debian's packages, and others come with \
                 'belljar image pull'",
            )),
        };
    }
    shown.progress("asking Docker");
    let configured = config.providers.docker().unwrap_or_default();
    let image = args.base.clone().unwrap_or_else(|| BASE.to_owned());
    match os::ImageBuilder::connect(DockerSettings { image, pull: true, ..configured }).await {
        Ok(docker) => Ok(Some(docker)),
        Err(why) if args.into.is_some() || args.base.is_some() => Err(Failure::host(why)),
        Err(why) => {
            say::note(&format!("{why}; building for Belljar's own images instead"));
            Ok(None)
        }
    }
}

fn in_docker(args: &BuildArgs, id: String, from: &str, shown: Tail) -> Result<u8, Failure> {
    drop(shown);
    let name = &args.tag;
    match args.store.json {
        true => say::answer(&json!({ "name": name, "into": "docker", "id": id, "from": from }).to_string()),
        false => say::answer(&format!("Image {name} is built; Docker has it.")),
    }
    Ok(0)
}
