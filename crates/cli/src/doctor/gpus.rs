//! Whether programs can have GPUs, and what to do if they cannot.

use belljar_providers::settings::DockerSettings;
use serde::Serialize;

use crate::error::CliError;
use crate::os;

const NOT_CONFIGURED: &str = "provider native has none; provider docker gives them to requests with `gpus` on a machine \
     with the NVIDIA Container Toolkit: belljar run --provider docker --gpus all, or gpus = true in [providers.docker]";
const NOT_ALLOWED: &str =
    "Docker has the NVIDIA runtime; set gpus = true in [providers.docker] to let requests use it";

/// Whether programs can have GPUs.
#[derive(Debug, Serialize)]
pub(super) struct GpuCheck {
    pub(super) available: bool,
    /// Which provider has them, or why there are none and what to do.
    pub(super) what: String,
}

impl GpuCheck {
    /// Returns the check of a machine without provider Docker.
    pub(super) fn without_docker() -> Self {
        Self { available: false, what: NOT_CONFIGURED.to_owned() }
    }

    /// Asks the Docker daemon.
    pub(super) fn of_docker(settings: DockerSettings) -> Result<Self, CliError> {
        let (is_allowed, is_gvisor) = (settings.gpus, is_gvisor(&settings));
        let checked = os::runtime()?.block_on(os::check_docker_gpus(settings));
        let what = match checked {
            Err(error) => error,
            Ok(()) if is_gvisor => "gVisor shows its programs no GPU; use runtime 'runc'".to_owned(),
            Ok(()) if !is_allowed => NOT_ALLOWED.to_owned(),
            Ok(()) => {
                let what = "provider docker gives them to requests with `gpus`".to_owned();
                return Ok(Self { available: true, what });
            }
        };
        Ok(Self { available: false, what })
    }
}

fn is_gvisor(settings: &DockerSettings) -> bool {
    settings.runtime.as_deref().is_some_and(|name| name.starts_with("runsc"))
}
