//! What *we* failed to do. What a program did is an [`Ending`](crate::outcome::Ending), never an error.

use thiserror::Error as ThisError;

use crate::finding::Finding;
use crate::images::ImagesError;
use crate::layer::Layer;
use crate::packages::PackagesError;
use crate::provider::ProviderError;

/// Whose move it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The request has to change.
    Caller,
    /// The same request may succeed later.
    Capacity,
    /// The machine, or Belljar itself.
    Host,
}

/// The closed list of `code` values in `{"error":{"code","message"}}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// A field is missing, malformed or contradicts another.
    InvalidRequest,
    /// A limit is zero, negative or above the ceiling.
    InvalidLimit,
    /// No such language.
    UnknownLanguage,
    /// A known language whose runtime the image does not have.
    LanguageUnavailable,
    /// No such profile.
    UnknownProfile,
    /// Known, but not possible with this provider or version.
    Unsupported,
    /// A demanded layer is not enforced here.
    LayerUnavailable,
    /// The sandbox could not be set up; nothing ran.
    SetupFailed,
    /// All sandboxes together used up their memory, and this one was ended for it; the same request may succeed later.
    SandboxMemoryExhausted,
    /// A policy does not let it run.
    Refused,
    /// There is no such set of packages, or none that may be installed; nothing ran.
    DependencyUnresolvable,
    /// A package could not be built; nothing ran.
    DependencyBuildFailed,
}

/// Why nothing ran.
#[derive(Debug, ThisError)]
pub enum Error {
    /// A field that cannot be used as it is.
    #[error("{field}: {message}")]
    Invalid {
        /// The field, as the request spells it.
        field: &'static str,
        /// What is wrong and what to do.
        message: String,
    },
    /// A limit outside its range.
    #[error("limits.{name}: {message}")]
    Limit {
        /// The limit, as the request spells it.
        name: &'static str,
        /// What is wrong and what to do.
        message: String,
    },
    /// A language nobody here speaks.
    #[error("language: unknown language '{given}'; known: {known}")]
    UnknownLanguage {
        /// What was asked for.
        given: String,
        /// All names, comma-separated.
        known: String,
    },
    /// A profile nobody defined.
    #[error("profile: unknown profile '{given}'; known: {known}")]
    UnknownProfile {
        /// What was asked for.
        given: String,
        /// All names, comma-separated.
        known: String,
    },
    /// A thing that this version or provider does not do.
    #[error("{field}: {message}")]
    Unsupported {
        /// The field, as the request spells it.
        field: &'static str,
        /// What is not possible, and what is.
        message: String,
    },
    /// `require` names a layer that would not be enforced.
    #[error("require: layer '{layer}' is not enforced here: {reason}")]
    LayerUnavailable {
        /// The layer.
        layer: Layer,
        /// Why, and what would mend it.
        reason: String,
    },
    /// A policy does not let it run. Of a whole execution this is no error but a result.
    #[error("{message}")]
    Refused {
        /// In one line.
        message: String,
        /// All that the policy minds.
        findings: Vec<Finding>,
    },
    /// The provider could not do its part.
    #[error(transparent)]
    Provider(#[from] ProviderError),
    /// The packages could not be made available.
    #[error(transparent)]
    Packages(#[from] PackagesError),
    /// There is no such image.
    #[error(transparent)]
    Images(#[from] ImagesError),
}

impl Error {
    pub(crate) fn invalid(field: &'static str, message: impl Into<String>) -> Self {
        Self::Invalid { field, message: message.into() }
    }

    /// The machine-readable name of this error.
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

    /// Whose move it is.
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
