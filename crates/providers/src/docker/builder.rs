//! Builds Docker images from a Dockerfile, or imports them from a root file system archive.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek};
use std::time::Duration;

use belljar_engine::provider::{ProviderError, Sink};
use bollard::errors::Error;
use bollard::query_parameters::{BuildImageOptions, CreateImageOptions};
use bollard::{Docker as Client, body_full, body_try_stream};
use futures_util::{StreamExt, stream};

use super::Settings;
use super::daemon::Daemon;

/// Timeout for making an image. The daemon answers an import only when it is done.
const IMAGE_TIMEOUT: Duration = Duration::from_secs(3_600);
const CHUNK_BYTES: usize = 256 << 10;

/// Builds and imports images. Its error messages are for users and name a remedy.
#[derive(Debug)]
pub struct ImageBuilder {
    daemon: Daemon,
    client: Client,
}

impl ImageBuilder {
    /// Connects to the daemon.
    ///
    /// # Errors
    /// Returns a message if the daemon cannot be reached.
    pub async fn connect(settings: Settings) -> Result<Self, String> {
        let daemon = Daemon::new(settings);
        let client =
            daemon.connection().await.map_err(error_text)?.client.clone().with_timeout(IMAGE_TIMEOUT);
        Ok(Self { daemon, client })
    }

    /// Ensures that the configured image exists, pulling it if the settings allow.
    ///
    /// # Errors
    /// Returns a message if the image is missing and cannot be pulled.
    pub async fn ensure_image(&self, sink: &mut dyn Sink) -> Result<(), String> {
        let connected = self.daemon.connection().await.map_err(error_text)?;
        self.daemon.image(connected, &self.daemon.settings.image, sink).await.map(drop).map_err(error_text)
    }

    /// Builds an image from an archive that contains a Dockerfile. Returns its id.
    ///
    /// # Errors
    /// Returns a message that names the failed step. Output up to that point went to the sink.
    pub async fn build(
        &self,
        context: Vec<u8>,
        name: &str,
        arguments: HashMap<String, String>,
        network: Option<String>,
        sink: &mut dyn Sink,
    ) -> Result<String, String> {
        let options = BuildImageOptions {
            dockerfile: "Dockerfile".to_owned(),
            t: Some(name.to_owned()),
            buildargs: Some(arguments),
            networkmode: network,
            rm: true,
            forcerm: true,
            ..Default::default()
        };
        let mut steps = self.client.build_image(options, None, Some(body_full(context.into())));
        while let Some(step) = steps.next().await {
            let step = step.map_err(|error| self.explain_build_error(&error))?;
            let output = step.stream.or(step.status).unwrap_or_default();
            output.lines().for_each(|line| sink.progress(strip_colors(line)));
        }
        self.image_id(name).await
    }

    /// Imports a root file system archive as an image, applying Dockerfile instructions. Returns its id.
    ///
    /// # Errors
    /// Returns a message that names the failed step.
    pub async fn import(
        &self,
        mut root: File,
        name: &str,
        changes: &[&str],
        sink: &mut dyn Sink,
    ) -> Result<String, String> {
        sink.progress("importing the image");
        root.rewind().map_err(|error| format!("read the archive: {error}"))?;
        let options = CreateImageOptions {
            from_src: Some("-".to_owned()),
            repo: Some(name.to_owned()),
            changes: changes.iter().map(|change| (*change).to_owned()).collect(),
            ..Default::default()
        };
        // Reading blocks the thread, but nothing else runs meanwhile.
        let chunks = stream::iter(std::iter::from_fn(move || {
            let mut chunk = Vec::with_capacity(CHUNK_BYTES);
            match root.by_ref().take(CHUNK_BYTES as u64).read_to_end(&mut chunk) {
                Ok(0) => None,
                Ok(_) => Some(Ok(chunk.into())),
                Err(error) => Some(Err(error)),
            }
        }));
        let mut steps = self.client.create_image(Some(options), Some(body_try_stream(chunks)), None);
        while let Some(step) = steps.next().await {
            step.map_err(|error| error_text(self.daemon.explain("import the image", &error)))?;
        }
        self.image_id(name).await
    }

    /// Docker's message repeats the whole failed step, which is less useful than its output.
    fn explain_build_error(&self, error: &Error) -> String {
        match error {
            Error::DockerStreamError { error } => match error.rsplit_once("' returned ") {
                Some((_, code)) => format!("build the image: a Dockerfile step returned {code}"),
                None => format!("build the image: {error}"),
            },
            _ => error_text(self.daemon.explain("build the image", error)),
        }
    }

    async fn image_id(&self, name: &str) -> Result<String, String> {
        let image = self.client.inspect_image(name).await;
        let image = image.map_err(|error| error_text(self.daemon.explain("find the image", &error)))?;
        Ok(image.id.unwrap_or_default())
    }
}

/// Strips the color codes in which Docker prints errors.
fn strip_colors(line: &str) -> &str {
    let line = line.trim_start_matches("\u{1b}[0m").trim_start_matches("\u{1b}[91m");
    line.trim_end_matches("\u{1b}[0m")
}

fn error_text(error: ProviderError) -> String {
    error.to_string()
}
