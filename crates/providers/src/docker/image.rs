//! Docker images: finding and pulling them, and the environment variables that they set.

use belljar_engine::images::{ImageVariables, MAX_VARIABLES_BYTES};
use belljar_engine::provider::{ProviderError, Sink};
use bollard::errors::Error;
use bollard::models::ImageInspect;
use bollard::query_parameters::CreateImageOptions;
use futures_util::StreamExt;

use super::daemon::{Daemon, DaemonConnection};

/// An image known to Docker.
#[derive(Debug, Clone)]
pub(super) struct DockerImage {
    pub(super) id: String,
    pub(super) variables: ImageVariables,
}

impl DockerImage {
    fn from_inspect(name: &str, inspected: ImageInspect) -> Result<Self, ProviderError> {
        let lines = inspected.config.and_then(|config| config.env).unwrap_or_default();
        let variables = ImageVariables::parse(&lines).ok_or_else(|| ProviderError::Setup {
            step: format!("use image {}", name.escape_debug()),
            cause: format!("the image sets more than {MAX_VARIABLES_BYTES} bytes of environment variables"),
        })?;
        Ok(Self { id: inspected.id.unwrap_or_default(), variables })
    }
}

impl Daemon {
    /// Returns an image, pulling it if the settings allow.
    pub(super) async fn image(
        &self,
        connected: &DaemonConnection,
        name: &str,
        sink: &mut dyn Sink,
    ) -> Result<DockerImage, ProviderError> {
        match connected.client.inspect_image(name).await {
            Ok(image) => return DockerImage::from_inspect(name, image),
            Err(Error::DockerResponseServerError { status_code: 404, .. }) if self.settings.pull => {}
            Err(Error::DockerResponseServerError { status_code: 404, .. }) => {
                return Err(ProviderError::Setup {
                    step: format!("find image {}", name.escape_debug()),
                    cause: format!(
                        "Docker does not have this image; build it: belljar image build --tag {name}, or \
                         pull it: docker pull {name}, or allow pulling: pull = true in [providers.docker], or \
                         configure another: image = \"NAME\""
                    ),
                });
            }
            Err(error) => return Err(self.explain(&format!("find image {name}"), &error)),
        }
        self.pull(connected, name, sink).await?;
        let pulled = connected.client.inspect_image(name).await;
        let pulled = pulled.map_err(|error| self.explain(&format!("find image {name}"), &error))?;
        DockerImage::from_inspect(name, pulled)
    }

    async fn pull(
        &self,
        connected: &DaemonConnection,
        name: &str,
        sink: &mut dyn Sink,
    ) -> Result<(), ProviderError> {
        let tagged = name.rsplit('/').next().is_some_and(|last| last.contains([':', '@']));
        let from_image = if tagged { name.to_owned() } else { format!("{name}:latest") };
        let options = CreateImageOptions { from_image: Some(from_image), ..Default::default() };
        sink.progress(&format!("pulling image {name}"));
        let mut steps = connected.client.create_image(Some(options), None, None);
        while let Some(step) = steps.next().await {
            let step = step.map_err(|error| self.explain(&format!("pull image {name}"), &error))?;
            if let Some(status) = step.status.filter(|_| step.id.is_some()) {
                sink.progress(&format!("{}: {status}", step.id.unwrap_or_default()));
            }
        }
        Ok(())
    }
}
