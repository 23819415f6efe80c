//! Docker's daemon: found, asked, and explained where it does not do what it should.

use std::collections::HashMap;
use std::error::Error as _;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use belljar_engine::provider::ProviderError;
use bollard::Docker as Client;
use bollard::errors::Error;
use bollard::query_parameters::{ListContainersOptions, RemoveContainerOptions, WaitContainerOptions};
use futures_util::StreamExt;
use tokio::sync::{OnceCell, Semaphore};

use super::owner::Owner;
use super::users::Users;
use super::{Settings, kit::Kit};

/// How long the daemon may take for an answer. Pulling an image streams, and is not an answer.
const PATIENCE_SECONDS: u64 = 120;
/// Where it listens if nobody says otherwise.
const USUAL_HOST: &str = "unix:///var/run/docker.sock";
/// Containers of this process at one time, those that are being removed included.
pub(super) const MAX_CONTAINERS: usize = 128;
/// So many are remembered that could not be removed; the next process finds the others.
const MAX_LEFT: usize = 1_024;
/// How long it may take at the end until they are gone.
const FAREWELL: std::time::Duration = std::time::Duration::from_secs(60);

/// Whose containers are whose.
pub(super) const OWNER_LABEL: &str = "dev.belljar.owner";

/// The daemon, which is spoken to when somebody first needs it.
#[derive(Debug)]
pub(super) struct Daemon {
    pub(super) settings: Settings,
    pub(super) users: Users,
    pub(super) room: Arc<Semaphore>,
    host: String,
    connected: OnceCell<Connected>,
    /// Containers that are to go and could not be removed, because the daemon was away.
    left: Mutex<Vec<String>>,
}

/// What is known of it once it has answered.
#[derive(Debug)]
pub(super) struct Connected {
    pub(super) client: Client,
    pub(super) kit: Kit,
    pub(super) owner: Owner,
    /// Whether ids inside are others outside.
    pub(super) maps_users: bool,
}

impl Daemon {
    pub(super) fn new(settings: Settings) -> Self {
        let named = settings.host.clone().or_else(|| std::env::var("DOCKER_HOST").ok());
        let host = named.filter(|host| !host.is_empty()).unwrap_or_else(|| USUAL_HOST.to_owned());
        Self {
            settings,
            users: Users::default(),
            room: Arc::new(Semaphore::new(MAX_CONTAINERS)),
            host,
            connected: OnceCell::new(),
            left: Mutex::default(),
        }
    }

    /// The daemon as it answered first; what former processes left there is removed then.
    pub(super) async fn connected(&self) -> Result<&Connected, ProviderError> {
        self.connected.get_or_try_init(|| self.connect()).await
    }

    async fn connect(&self) -> Result<Connected, ProviderError> {
        let step = "reach Docker's daemon";
        if !self.host.starts_with("unix://") {
            return Err(ProviderError::Setup {
                step: step.to_owned(),
                cause: format!(
                    "'{}' is not on this machine, and containers are given files of it; name a socket: unix:///PATH",
                    self.host.escape_debug()
                ),
            });
        }
        let explain = |error| self.explain(step, &error);
        let client = Client::connect_with_unix(&self.host, PATIENCE_SECONDS, bollard::API_DEFAULT_VERSION);
        let client = client.map_err(explain)?.negotiate_version().await.map_err(explain)?;
        let info = client.info().await.map_err(explain)?;
        let maps = |option: &String| option.contains("name=userns") || option.contains("name=rootless");
        let maps_users = info.security_options.iter().flatten().any(maps);
        let connected =
            Connected { client, kit: Kit::of_this_process()?, owner: Owner::this_process(), maps_users };
        self.sweep(&connected).await?;
        Ok(connected)
    }

    /// Removes containers of processes that are no more.
    async fn sweep(&self, connected: &Connected) -> Result<(), ProviderError> {
        let filters = HashMap::from([("label".to_owned(), vec![OWNER_LABEL.to_owned()])]);
        let options = ListContainersOptions { all: true, filters: Some(filters), ..Default::default() };
        let listed = connected.client.list_containers(Some(options)).await;
        for container in listed.map_err(|error| self.explain("list containers", &error))? {
            let owner = container.labels.as_ref().and_then(|labels| labels.get(OWNER_LABEL));
            if owner.is_some_and(|owner| connected.owner.outlived(owner)) {
                // One that cannot be removed is found by the next process.
                let _gone = remove(&connected.client, container.id.as_deref().unwrap_or_default()).await;
            }
        }
        Ok(())
    }

    /// What went wrong, and what to do about it.
    pub(super) fn explain(&self, step: &str, error: &Error) -> ProviderError {
        let host = &self.host;
        let kind = io_kind(error);
        let absent = matches!(error, Error::SocketNotFoundError(_));
        let cause = match kind {
            Some(io::ErrorKind::PermissionDenied) => format!(
                "this user may not talk to {host}; add it to the group of that socket \
                 (usually: sudo usermod -aG docker $USER, and log in again)"
            ),
            Some(io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => self.not_there(),
            _ if absent => self.not_there(),
            _ => match error {
                Error::DockerResponseServerError { message, .. } => {
                    format!("Docker says: {}", message.trim())
                }
                Error::RequestTimeoutError => {
                    format!("the daemon at {host} did not answer in {PATIENCE_SECONDS} s; see its log")
                }
                // The client is between two answers when the connection ends, or amid one.
                Error::HyperLegacyError { .. } | Error::HyperResponseError { .. } => {
                    format!("the daemon at {host} went away: {error}; try again when it is back")
                }
                _ if kind.is_some() => {
                    format!("the daemon at {host} went away: {error}; try again when it is back")
                }
                other => other.to_string(),
            },
        };
        ProviderError::Setup { step: step.to_owned(), cause }
    }

    fn not_there(&self) -> String {
        format!(
            "nobody answers at {}; start Docker (usually: sudo systemctl start docker), or say where it is: \
             DOCKER_HOST, or host in [providers.docker]",
            self.host
        )
    }

    /// Removes a container, now or when the daemon is next spoken to.
    pub(super) async fn remove(&self, id: &str) {
        let gone = match self.connected().await {
            Ok(connected) => remove(&connected.client, id).await,
            Err(_) => false,
        };
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        if !gone && left.len() < MAX_LEFT {
            left.push(id.to_owned());
        }
    }

    /// Removes what could not be removed before.
    pub(super) async fn clear(&self) {
        let left = std::mem::take(&mut *self.left.lock().unwrap_or_else(PoisonError::into_inner));
        for id in left {
            self.remove(&id).await;
        }
    }

    /// Waits until no container is left.
    pub(super) async fn farewell(&self) {
        self.clear().await;
        let all = self.room.acquire_many(MAX_CONTAINERS as u32);
        // One that cannot be removed is found by the next process.
        let _gone = tokio::time::timeout(FAREWELL, all).await;
        // Nobody makes another one.
        self.room.close();
    }
}

/// The error of the system behind an error of the client.
fn io_kind(error: &Error) -> Option<io::ErrorKind> {
    let mut source = error.source();
    if let Error::IOError { err } = error {
        return Some(err.kind());
    }
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return Some(error.kind());
        }
        source = error.source();
    }
    None
}

/// Removes a container, whatever it does, and waits until it is gone; whether it is.
async fn remove(client: &Client, id: &str) -> bool {
    let options = RemoveContainerOptions { force: true, v: true, ..Default::default() };
    match client.remove_container(id, Some(options)).await {
        Ok(()) | Err(Error::DockerResponseServerError { status_code: 404, .. }) => true,
        Err(Error::DockerResponseServerError { status_code: 409, .. }) => {
            // Docker is at it already, because its first process ended.
            let options = WaitContainerOptions { condition: "removed".to_owned() };
            let mut gone = std::pin::pin!(client.wait_container(id, Some(options)));
            let _gone = gone.next().await;
            true
        }
        Err(_) => false,
    }
}
