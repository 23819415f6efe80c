//! Errors: why Belljar could not run a request. What a program did is an [`Ending`](crate::outcome::Ending),
//! never an error.

pub use belljar_model::error_code::ErrorCode;
use thiserror::Error as ThisError;

use crate::finding::Finding;
use crate::images::ImagesError;
use crate::layer::Layer;
use crate::packages::PackagesError;
use crate::provider::ProviderError;

/// The party that has to act on an error: the caller, a later retry, or the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The request has to change.
    Caller,
    /// Resources are exhausted; retrying the request later may succeed.
    Capacity,
    /// The machine or Belljar itself is at fault.
    Host,
}

/// Why a request was refused or could not run.
#[derive(Debug, ThisError)]
pub enum Error {
    /// A field is invalid.
    #[error("{field}: {message}")]
    Invalid {
        /// The field, as the request spells it.
        field: &'static str,
        /// The problem, and how to fix it.
        message: String,
    },
    /// A limit is outside its range.
    #[error("limits.{name}: {message}")]
    Limit {
        /// The limit, as the request spells it.
        name: &'static str,
        /// The problem, and how to fix it.
        message: String,
    },
    /// The language is unknown.
    #[error("language: unknown language '{given}'; known: {known}")]
    UnknownLanguage {
        /// The name in the request.
        given: String,
        /// All known names, comma-separated.
        known: String,
    },
    /// The profile is not defined.
    #[error("profile: unknown profile '{given}'; known: {known}")]
    UnknownProfile {
        /// The name in the request.
        given: String,
        /// All known names, comma-separated.
        known: String,
    },
    /// Not supported by this version or provider.
    #[error("{field}: {message}")]
    Unsupported {
        /// The field, as the request spells it.
        field: &'static str,
        /// Says what is not possible, and what is.
        message: String,
    },
    /// A layer in `require` would not be enforced.
    #[error("require: layer '{layer}' is not enforced here: {reason}")]
    LayerUnavailable {
        /// The layer.
        layer: Layer,
        /// The reason, and how to fix it.
        reason: String,
    },
    /// A policy refused a command. A refused execution is a result, not an error.
    #[error("{message}")]
    Refused {
        /// The refusal, in one line.
        message: String,
        /// All findings of the policy.
        findings: Vec<Finding>,
    },
    /// The provider failed.
    #[error(transparent)]
    Provider(#[from] ProviderError),
    /// The packages could not be provided.
    #[error(transparent)]
    Packages(#[from] PackagesError),
    /// The image could not be used.
    #[error(transparent)]
    Images(#[from] ImagesError),
}

impl Error {
    pub(crate) fn invalid(field: &'static str, message: impl Into<String>) -> Self {
        Self::Invalid { field, message: message.into() }
    }

    /// Returns the machine-readable code of this error.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Invalid { .. } => ErrorCode::InvalidRequest,
            Self::Limit { .. } => ErrorCode::InvalidLimit,
            Self::UnknownLanguage { .. } => ErrorCode::UnknownLanguage,
            Self::UnknownProfile { .. } => ErrorCode::UnknownProfile,
            Self::Unsupported { .. } => ErrorCode::Unsupported,
            Self::LayerUnavailable { .. } => ErrorCode::LayerUnavailable,
            Self::Refused { .. } => ErrorCode::Refused,
            Self::Provider(ProviderError::Invalid { .. }) => ErrorCode::InvalidRequest,
            Self::Provider(ProviderError::LanguageMissing { .. }) => ErrorCode::LanguageUnavailable,
            Self::Provider(ProviderError::Unsupported { .. }) => ErrorCode::Unsupported,
            Self::Provider(ProviderError::Setup { .. } | ProviderError::Lost { .. }) => {
                ErrorCode::SetupFailed
            }
            Self::Provider(ProviderError::SandboxMemoryExhausted) => ErrorCode::SandboxMemoryExhausted,
            Self::Packages(PackagesError::Unresolvable(_)) => ErrorCode::DependencyUnresolvable,
            Self::Packages(PackagesError::BuildFailed(_)) => ErrorCode::DependencyBuildFailed,
            Self::Packages(PackagesError::Host(_)) | Self::Images(ImagesError::Host(_)) => {
                ErrorCode::SetupFailed
            }
            Self::Images(ImagesError::Unknown(_)) => ErrorCode::InvalidRequest,
        }
    }

    /// Returns whether the provider failed before anything of the request ran, so that another one may run it.
    pub(crate) fn is_setup_failure(&self) -> bool {
        matches!(
            self,
            Self::Provider(ProviderError::Setup { .. })
                | Self::Packages(PackagesError::Host(_))
                | Self::Images(ImagesError::Host(_))
        )
    }

    /// The party that has to act on an error: the caller, a later retry, or the host.
    pub fn fault(&self) -> Fault {
        match self.code() {
            ErrorCode::SetupFailed | ErrorCode::LanguageUnavailable | ErrorCode::LayerUnavailable => {
                Fault::Host
            }
            ErrorCode::SandboxMemoryExhausted => Fault::Capacity,
            _ => Fault::Caller,
        }
    }
}
