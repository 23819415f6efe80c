//! Errors of a service, for users: what went wrong there, and which setting to check.

use std::fmt::Display;

use belljar_engine::provider::ProviderError;

use super::http::HttpError;

/// A service, and its settings as error messages name them.
#[derive(Debug)]
pub(super) struct ServiceErrors {
    /// Name of the service.
    pub(super) service: &'static str,
    /// Name of the provider, which its settings are below.
    pub(super) provider: &'static str,
    /// The settings to check when the service refuses the credentials.
    pub(super) credentials: &'static str,
    /// The settings to check when the service cannot be reached.
    pub(super) address: &'static str,
    /// The template, and where it must exist.
    pub(super) template: String,
}

impl ServiceErrors {
    /// Explains an error of a request to the API.
    pub(super) fn explain(&self, step: &str, error: &HttpError) -> ProviderError {
        let Self { service, provider, credentials, address, template } = self;
        let hint = match error {
            HttpError::Unreachable { .. } => format!("; check the network, and {address}"),
            HttpError::Broken { .. } => String::new(),
            HttpError::Refused { status, .. } => match status {
                401 | 403 => format!("; check {credentials}"),
                402 => format!("; the {service} account has no credit left"),
                404 => {
                    format!("; check that template {template}, or set providers.{provider}.template")
                }
                429 => format!(
                    "; raise the quota at {service}, or lower providers.{provider}.sandboxes{}",
                    error.retry_hint()
                ),
                _ => String::new(),
            },
        };
        self.failed(step, format!("{error}{hint}"))
    }

    /// Returns the error for a step that failed.
    pub(super) fn failed(&self, step: &str, cause: impl Display) -> ProviderError {
        ProviderError::setup(format!("{step} at {}", self.service), cause)
    }

    /// Returns the error for a request to a sandbox that failed during a run.
    pub(super) fn sandbox_failed(&self, error: &HttpError) -> ProviderError {
        match error {
            HttpError::Refused { status: 502, .. } => self.lost(format_args!("is gone ({error})")),
            _ => self.lost(format_args!("failed: {error}")),
        }
    }

    /// Returns the error for a sandbox that was lost during a run.
    pub(super) fn lost(&self, what: impl Display) -> ProviderError {
        ProviderError::lost(format_args!("the sandbox at {} {what}", self.service))
    }
}
