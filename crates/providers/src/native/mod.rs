//! The native provider: the kernel of this machine, through the jail.

use std::path::PathBuf;

use belljar_engine::language::Language;
use belljar_engine::plan::Plan;
use belljar_engine::provider::{BoxFuture, Capabilities, Provider, ProviderError, Sandbox};

/// A launcher that was started and not yet spoken to. Started before any other thread, because it dies with the
/// thread that started it.
#[derive(Debug)]
pub struct Launched;

impl Launched {
    /// Starts the launcher: this same binary, executed anew.
    ///
    /// # Errors
    /// Names the step that failed.
    pub fn start() -> Result<Self, ProviderError> {
        Ok(Self)
    }
}

/// The native provider.
#[derive(Debug)]
pub struct Native;

/// Whether a language can be run in image `host`, and by which program.
#[derive(Debug)]
pub struct LanguageState {
    /// The language.
    pub language: &'static Language,
    /// The program that would run it.
    pub program: Option<PathBuf>,
}

impl Native {
    /// Connects to a launcher; needs a tokio runtime around it.
    ///
    /// # Errors
    /// Names the step of the launcher's own set-up that failed.
    pub async fn connect(_launched: Launched) -> Result<Self, ProviderError> {
        Ok(Self)
    }

    /// Every language and what would run it.
    pub fn languages(&self) -> Vec<LanguageState> {
        Vec::new()
    }
}

impl Provider for Native {
    fn name(&self) -> &'static str {
        "native"
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }
    fn open<'a>(&'a self, _plan: &'a Plan) -> BoxFuture<'a, Result<Box<dyn Sandbox>, ProviderError>> {
        Box::pin(async { Err(ProviderError::Lost { message: "not yet".to_owned() }) })
    }
    fn shut_down(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}
