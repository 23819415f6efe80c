//! `belljar image`: manages images without a daemon, and seals the host's own files as an image.

mod build;
mod local;
pub(crate) mod settings;

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use belljar_engine::quantity::show_bytes;
use belljar_images::{ImageName, ImageRecord, ImageStore, Login, pull};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::config::Config;
use crate::env::Environment;
use crate::error::CliError;
use crate::table::{format_age, table_text, table_with};
use crate::view::ProgressView;
use crate::{os, say};

use local::to_cli_error;
pub(crate) use local::{AllowedImages, ImageSources, LocalImages, set_image};

const PULL_EXAMPLES: &str = "\
Examples:
  belljar image pull python:3.12-slim                   pull an image by name, as with Docker
  belljar image pull registry.example/team/tool@sha256:…  pull exactly this image
  belljar image pull saved.tar                          import the output of 'docker save' with its tags, or an OCI layout
  belljar image pull --username me --password-stdin registry.example/tool < token
  belljar run --image python:3.12-slim job.py           run in an image; a missing one is pulled

Credentials of 'docker login' are used, unless a credential helper stores them; BELLJAR_REGISTRY_USER and
BELLJAR_REGISTRY_PASSWORD replace the flags. Mirrors are set in [images] of belljar.toml.";

const SEAL_EXAMPLES: &str = "\
Examples:
  belljar image seal                                    copy the files that image 'host' shows
  belljar run --image sealed job.py                     run on the copy

Sandboxes on it share no file, lock or memory page with this machine's own files. The copy does not
change: seal again after updates. Files that not every user may read are left out.";

/// Arguments of `belljar image`.
#[derive(Debug, Args)]
pub(crate) struct ImageArgs {
    #[command(subcommand)]
    command: ImageCommand,
}

#[derive(Debug, Subcommand)]
enum ImageCommand {
    /// Builds the default image, or a variation of it
    #[command(after_help = build::EXAMPLES)]
    Build(build::BuildArgs),
    /// Lists images
    List(StoreArgs),
    /// Pulls an image, verifies it and unpacks it
    #[command(after_help = PULL_EXAMPLES)]
    Pull {
        /// Image name, or an archive or OCI layout on this machine
        #[arg(value_name = "IMAGE")]
        image: PathBuf,
        /// User name for the image's registry
        #[arg(long, value_name = "NAME")]
        username: Option<String>,
        /// Read the registry password from standard input
        #[arg(long)]
        password_stdin: bool,
        #[command(flatten)]
        store: StoreArgs,
    },
    /// Removes images; files that runs still use are removed later
    Rm {
        /// Names of the images
        #[arg(value_name = "IMAGE", required = true)]
        images: Vec<String>,
        #[command(flatten)]
        store: StoreArgs,
    },
    /// Copies this machine's programs and libraries into image 'sealed'
    #[command(after_help = SEAL_EXAMPLES)]
    Seal(StoreArgs),
}

#[derive(Debug, Args)]
struct StoreArgs {
    /// Image store; a server's is 'images' in its data folder [default: images.folder]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl ImageArgs {
    fn store(&self) -> &StoreArgs {
        match &self.command {
            ImageCommand::Build(build) => &build.store,
            ImageCommand::List(store)
            | ImageCommand::Pull { store, .. }
            | ImageCommand::Rm { store, .. }
            | ImageCommand::Seal(store) => store,
        }
    }

    pub(crate) fn json(&self) -> bool {
        self.store().json
    }
}

/// Runs the given subcommand.
pub(crate) fn run(args: &ImageArgs, environment: &Environment, config: &Config) -> Result<u8, CliError> {
    let json = args.json();
    let stored = LocalImages::of(&config.images, args.store().folder.as_deref());
    match &args.command {
        ImageCommand::Build(build) => {
            os::runtime()?.block_on(build::run(build, environment, config, &stored))
        }
        ImageCommand::List(_) => list(stored.store()?, json),
        ImageCommand::Pull { image, username, password_stdin, .. } => {
            let login = login(username.clone(), *password_stdin, environment)?;
            let sources = ImageSources::of(&config.images, environment);
            os::runtime()?.block_on(fetch(stored.store()?, image, sources, login, json))
        }
        ImageCommand::Rm { images, .. } => os::runtime()?.block_on(remove(stored.store()?, images, json)),
        ImageCommand::Seal(_) => os::runtime()?.block_on(seal(stored.store()?, json)),
    }
}

fn list(store: &ImageStore, json: bool) -> Result<u8, CliError> {
    let images = store.list().map_err(to_cli_error)?;
    if json {
        say::answer(&json!({ "images": images.iter().map(object).collect::<Vec<_>>() }).to_string());
        return Ok(0);
    }
    if images.is_empty() {
        say::answer("No images; get one with: belljar image pull NAME, or belljar image seal");
        return Ok(0);
    }
    let mut table = table_with(["IMAGE", "DIGEST", "SIZE", "ADDED"]);
    for image in &images {
        let digest = image.digest.map(|digest| digest.to_string().chars().take(12).collect());
        let digest: String = digest.unwrap_or_else(|| "-".to_owned());
        table.add_row([display_name(image), digest, show_bytes(image.bytes), format_age(image.created)]);
    }
    say::answer(&table_text(&table));
    Ok(0)
}

fn object(image: &ImageRecord) -> Value {
    let digest = image.digest.map(|digest| format!("sha256:{digest}"));
    json!({ "name": image.name, "digest": digest, "bytes": image.bytes, "created": image.created })
}

/// Formats an image's name in its short form, escaped for a terminal.
fn display_name(image: &ImageRecord) -> String {
    let name = ImageName::parse(&image.name).map_or_else(|_| image.name.clone(), |name| name.to_string());
    say::printable(&name)
}

async fn fetch(
    store: &ImageStore,
    image: &Path,
    sources: ImageSources,
    login: Option<Login>,
    json: bool,
) -> Result<u8, CliError> {
    let mut progress = ProgressView::new(false);
    let records = if ImageStore::is_packed(image) {
        store.load(image, &mut progress).await
    } else {
        let name = ImageName::parse(&image.to_string_lossy()).map_err(to_cli_error)?;
        let ImageSources { registries, credentials } = sources.with(&name, login);
        pull(store, &name, &registries, &credentials, &mut progress).await.map(|record| vec![record])
    };
    let records = records.map_err(to_cli_error)?;
    drop(progress);
    match records.as_slice() {
        [record] => print_image(record, "Stored", json),
        several if json => {
            say::answer(&json!({ "images": several.iter().map(object).collect::<Vec<_>>() }).to_string());
            Ok(0)
        }
        several => several.iter().try_fold(0, |_, record| print_image(record, "Stored", false)),
    }
}

fn print_image(record: &ImageRecord, what: &str, json: bool) -> Result<u8, CliError> {
    match json {
        true => say::answer(&object(record).to_string()),
        false => {
            say::answer(&format!("{what} image {}, {}.", display_name(record), show_bytes(record.bytes)))
        }
    }
    Ok(0)
}

fn login(user: Option<String>, stdin: bool, environment: &Environment) -> Result<Option<Login>, CliError> {
    let Some(user) = user.or_else(|| environment.registry_user.clone()) else { return Ok(None) };
    let password = match stdin {
        true => {
            let mut text = String::new();
            let read = io::stdin().take(64 << 10).read_to_string(&mut text);
            read.map_err(|error| CliError::invalid(format!("--password-stdin: {error}")))?;
            text.trim_end_matches(['\r', '\n']).to_owned()
        }
        false => match &environment.registry_password {
            Some(password) => password.reveal().to_owned(),
            None => {
                return Err(CliError::invalid(
                    "--username needs a password: add --password-stdin, or set BELLJAR_REGISTRY_PASSWORD",
                ));
            }
        },
    };
    Ok(Some(Login { user, password }))
}

async fn remove(store: &ImageStore, images: &[String], json: bool) -> Result<u8, CliError> {
    let (mut roots, mut used) = (0, 0);
    for image in images {
        let path = Path::new(image);
        let name =
            if ImageStore::is_packed(path) { ImageName::from_path(path) } else { ImageName::parse(image) };
        let removed = store.remove(&name.map_err(to_cli_error)?).await.map_err(to_cli_error)?;
        (roots, used) = (roots + removed.roots, removed.in_use);
    }
    match json {
        true => say::answer(&json!({ "removed": images, "roots": roots, "in_use": used }).to_string()),
        false if used > 0 => {
            say::answer("Removed. Files that runs still use are removed with the next image change.")
        }
        false => say::answer("Removed."),
    }
    Ok(0)
}

async fn seal(store: &ImageStore, json: bool) -> Result<u8, CliError> {
    let mut progress = ProgressView::new(json);
    belljar_engine::provider::Sink::progress(&mut progress, "copying this machine's programs and libraries");
    let record = store.seal(os::host_image_parts()?).await.map_err(to_cli_error)?;
    drop(progress);
    print_image(&record, "Sealed", json)
}
