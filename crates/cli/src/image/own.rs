//! Images of the command line: interprets `--image`, and pulls the image before anything runs.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use belljar_engine::images::{Images, ImagesError};
use belljar_engine::packages::Progress;
use belljar_engine::plan::Stored;
use belljar_engine::provider::Sink;
use belljar_engine::request::{HostPaths, Request};
use belljar_images::{Bounds, Credentials, ImageError, Login, Name, Registries, Store, pull};

use super::ImageSettings;
use crate::env::Environment;
use crate::failure::Failure;
use crate::view::Installing;

/// Interprets `--image`: `host`, the folder of a root, an archive on this machine, or an image name.
pub(crate) fn meant(given: &Path, request: &mut Request, paths: &mut HostPaths) -> Result<(), Failure> {
    let text = given.to_str().unwrap_or_default();
    if Store::is_packed(given) {
        request.image = Some(Name::of_path(given).map_err(failure)?.as_str().to_owned());
    } else if text == "host" {
        request.image = Some(text.to_owned());
    } else if given.is_dir() || text.is_empty() || text.starts_with(['/', '.']) {
        paths.image = Some(given.to_owned());
    } else {
        request.image = Some(Name::parse(text).map_err(failure)?.as_str().to_owned());
    }
    Ok(())
}

/// The image store of one folder, opened on first use.
#[derive(Debug)]
pub(crate) struct Own {
    place: Result<std::path::PathBuf, String>,
    store: OnceLock<Store>,
}

impl Own {
    /// Creates it for the folder of the flag, the settings or the user's cache.
    pub(crate) fn of(settings: &ImageSettings, flag: Option<&Path>, environment: &Environment) -> Arc<Self> {
        let place = settings.folder(flag, environment).map_err(|failure| failure.message);
        Arc::new(Self { place, store: OnceLock::new() })
    }

    pub(super) fn store(&self) -> Result<&Store, Failure> {
        if let Some(store) = self.store.get() {
            return Ok(store);
        }
        let place = self.place.as_ref().map_err(Failure::invalid)?;
        let opened = Store::open(place, Bounds::default()).map_err(failure)?;
        Ok(self.store.get_or_init(|| opened))
    }

    /// Imports or pulls the image of a request, if it is not stored yet.
    pub(crate) async fn bring(&self, request: &Request, from: &Sources, quiet: bool) -> Result<(), Failure> {
        let Some(name) = request.image.as_deref().filter(|name| *name != "host") else { return Ok(()) };
        let (store, mut shown) = (self.store()?, Shown(Installing::new(quiet)));
        if name.starts_with('/') {
            return store.import(Path::new(name), &mut shown).await.map(drop).map_err(failure);
        }
        let name = Name::parse(name).map_err(failure)?;
        if store.find(&name).map_err(failure)?.is_some() {
            return Ok(());
        }
        if name.as_str() == Name::SEALED {
            return Err(Failure::invalid(
                "image: there is no sealed image yet; create it with: belljar image seal",
            ));
        }
        pull(store, &name, &from.registries, &from.credentials, &mut shown).await.map(drop).map_err(failure)
    }
}

impl Images for Own {
    fn find(&self, name: &str) -> Result<Stored, ImagesError> {
        let store = self.store().map_err(|failure| ImagesError::Host(failure.message))?;
        Images::find(store, name)
    }
}

/// The images that the administrator allows requests to name.
#[derive(Debug)]
pub(crate) struct Listed {
    own: Arc<Own>,
    settings: ImageSettings,
}

impl Listed {
    /// Returns `None` if no image is allowed.
    pub(crate) fn of(
        settings: &ImageSettings,
        folder: &Path,
        environment: &Environment,
    ) -> Option<Arc<Self>> {
        let own = Own::of(settings, Some(folder), environment);
        (!settings.allow.is_empty()).then(|| Arc::new(Self { own, settings: settings.clone() }))
    }
}

impl Images for Listed {
    fn find(&self, name: &str) -> Result<Stored, ImagesError> {
        let known = Name::parse(name).ok().filter(|name| self.settings.allow.contains(name));
        match known {
            Some(name) => self.own.find(name.as_str()),
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
pub(crate) struct Sources {
    pub(super) registries: Registries,
    pub(super) credentials: Credentials,
}

impl Sources {
    /// Reads the credentials of `docker login`, trusted certificates and the environment.
    pub(crate) fn of(settings: &ImageSettings, environment: &Environment) -> Self {
        let mut registries = settings.registries.clone();
        registries.authorities = environment.ca_cert.as_deref().and_then(|path| std::fs::read(path).ok());
        let docker = environment.docker_config.as_ref().map(|folder| folder.join("config.json"));
        let text = docker.and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
        Self { registries, credentials: Credentials::of_docker(&text) }
    }

    /// Adds a login for an image's own registry.
    pub(super) fn with(mut self, name: &Name, login: Option<Login>) -> Self {
        if let Some((registry, login)) = name.as_str().split('/').next().zip(login) {
            self.credentials = self.credentials.with(registry, login);
        }
        self
    }
}

/// Shows the progress of a pull.
pub(super) struct Shown(pub(super) Installing);

impl Progress for Shown {
    fn at(&mut self, what: &str) {
        self.0.progress(what);
    }
}

pub(super) fn failure(error: ImageError) -> Failure {
    match error.fault() {
        belljar_engine::Fault::Host => Failure::host(format!("image: {error}")),
        _ => Failure::invalid(format!("image: {error}")),
    }
}
