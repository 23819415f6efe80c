//! Images of the command line: interprets `--image`, and pulls the image before anything runs.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use belljar_engine::images::{ImagesError, StoredImages};
use belljar_engine::plan::StoredImage;
use belljar_engine::request::{HostPaths, Request};
use belljar_images::{
    ImageBounds, ImageError, ImageName, ImageStore, Login, RegistryCredentials, RegistrySettings, pull,
};

use super::settings::ImageSettings;
use crate::env::Environment;
use crate::error::CliError;
use crate::view::ProgressView;

/// Interprets `--image`: `host`, the folder of a root, an archive on this machine, or an image name.
pub(crate) fn set_image(given: &Path, request: &mut Request, paths: &mut HostPaths) -> Result<(), CliError> {
    let text = given.to_str().unwrap_or_default();
    if ImageStore::is_packed(given) {
        request.image = Some(ImageName::from_path(given).map_err(to_cli_error)?.as_str().to_owned());
    } else if text == "host" {
        request.image = Some(text.to_owned());
    } else if given.is_dir() || text.is_empty() || text.starts_with(['/', '.']) {
        paths.image = Some(given.to_owned());
    } else {
        request.image = Some(ImageName::parse(text).map_err(to_cli_error)?.as_str().to_owned());
    }
    Ok(())
}

/// The image store of one folder, opened on first use.
#[derive(Debug)]
pub(crate) struct LocalImages {
    store_folder: Result<std::path::PathBuf, String>,
    store: OnceLock<ImageStore>,
}

impl LocalImages {
    /// Creates it for the folder of the flag, the settings or the user's cache.
    pub(crate) fn of(settings: &ImageSettings, flag: Option<&Path>) -> Arc<Self> {
        let store_folder = settings.folder(flag).map_err(|failure| failure.message);
        Arc::new(Self { store_folder, store: OnceLock::new() })
    }

    pub(super) fn store(&self) -> Result<&ImageStore, CliError> {
        if let Some(store) = self.store.get() {
            return Ok(store);
        }
        let store_folder = self.store_folder.as_ref().map_err(CliError::invalid)?;
        let opened = ImageStore::open(store_folder, ImageBounds::default()).map_err(to_cli_error)?;
        Ok(self.store.get_or_init(|| opened))
    }

    /// Imports or pulls the image of a request, if it is not stored yet.
    pub(crate) async fn ensure_stored(
        &self,
        request: &Request,
        from: &ImageSources,
        quiet: bool,
    ) -> Result<(), CliError> {
        let Some(name) = request.image.as_deref().filter(|name| *name != "host") else { return Ok(()) };
        let (store, mut shown) = (self.store()?, ProgressView::new(quiet));
        if name.starts_with('/') {
            return store.import(Path::new(name), &mut shown).await.map(drop).map_err(to_cli_error);
        }
        let name = ImageName::parse(name).map_err(to_cli_error)?;
        if store.find(&name).map_err(to_cli_error)?.is_some() {
            return Ok(());
        }
        if name.as_str() == ImageName::SEALED {
            return Err(CliError::invalid(
                "image: there is no sealed image yet; create it with: belljar image seal",
            ));
        }
        pull(store, &name, &from.registries, &from.credentials, &mut shown)
            .await
            .map(drop)
            .map_err(to_cli_error)
    }
}

impl StoredImages for LocalImages {
    fn find(&self, name: &str) -> Result<StoredImage, ImagesError> {
        let store = self.store().map_err(|failure| ImagesError::Host(failure.message))?;
        StoredImages::find(store, name)
    }
}

/// The images that the administrator allows requests to name.
#[derive(Debug)]
pub(crate) struct AllowedImages {
    stored: Arc<LocalImages>,
    settings: ImageSettings,
}

impl AllowedImages {
    /// Returns `None` if no image is allowed.
    pub(crate) fn of(settings: &ImageSettings, folder: &Path) -> Option<Arc<Self>> {
        let stored = LocalImages::of(settings, Some(folder));
        (!settings.allow.is_empty()).then(|| Arc::new(Self { stored, settings: settings.clone() }))
    }
}

impl StoredImages for AllowedImages {
    fn find(&self, name: &str) -> Result<StoredImage, ImagesError> {
        let known = ImageName::parse(name).ok().filter(|name| self.settings.allow.contains(name));
        match known {
            Some(name) => self.stored.find(name.as_str()),
            None => {
                let name = name.chars().take(200).collect::<String>();
                Err(ImagesError::Unknown(format!(
                    "'{}' is not an image that this server allows; an administrator can add it to \
                     images.allow",
                    name.escape_debug()
                )))
            }
        }
    }
}

/// Registries to pull from, and the credentials for them.
#[derive(Debug, Default)]
pub(crate) struct ImageSources {
    pub(super) registries: RegistrySettings,
    pub(super) credentials: RegistryCredentials,
}

impl ImageSources {
    /// Reads the credentials of `docker login`, trusted certificates and the environment.
    pub(crate) fn of(settings: &ImageSettings, environment: &Environment) -> Self {
        let mut registries = settings.registries.clone();
        registries.authorities = environment.ca_cert.as_deref().and_then(|path| std::fs::read(path).ok());
        let docker = environment.docker_config.as_ref().map(|folder| folder.join("config.json"));
        let text = docker.and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
        Self { registries, credentials: RegistryCredentials::from_docker_config(&text) }
    }

    /// Adds a login for an image's own registry.
    pub(super) fn with(mut self, name: &ImageName, login: Option<Login>) -> Self {
        if let Some((registry, login)) = name.as_str().split('/').next().zip(login) {
            self.credentials = self.credentials.with(registry, login);
        }
        self
    }
}

pub(super) fn to_cli_error(error: ImageError) -> CliError {
    match error.fault() {
        belljar_engine::Fault::Host => CliError::host(format!("image: {error}")),
        _ => CliError::invalid(format!("image: {error}")),
    }
}
