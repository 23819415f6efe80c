//! The Docker daemon: connecting to it, and explaining its errors.

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

use super::process_identity::ProcessIdentity;
use super::user_ids::{MAX_CONTAINERS, UserIds};
use super::{Settings, guest_bundle::GuestBundle};

/// Timeout for an answer of the daemon. Pulling an image streams and is not subject to it.
const REQUEST_TIMEOUT_SECONDS: u64 = 120;
/// The step that fails while the daemon does not answer.
const REACH_STEP: &str = "reach the Docker daemon";
/// The default address of the daemon.
const DEFAULT_HOST: &str = "unix:///var/run/docker.sock";
/// How many failed removals are remembered. The next process finds the others.
const MAX_PENDING_REMOVALS: usize = 1_024;
/// Time allowed at shutdown for removing all containers.
const SHUTDOWN_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);

/// The runtime that the NVIDIA Container Toolkit adds to a daemon.
const GPU_RUNTIME: &str = "nvidia";

/// The label that names the process a container belongs to.
pub(super) const OWNER_LABEL: &str = "dev.belljar.owner";

/// The daemon. The connection is made on first use.
#[derive(Debug)]
pub(super) struct Daemon {
    pub(super) settings: Settings,
    pub(super) users: UserIds,
    pub(super) container_slots: Arc<Semaphore>,
    host: String,
    connection: OnceCell<DaemonConnection>,
    /// Containers whose removal failed because the daemon could not be reached.
    pending_removals: Mutex<Vec<String>>,
}

/// A connection to the daemon, and what was learned on connecting.
#[derive(Debug)]
pub(super) struct DaemonConnection {
    pub(super) client: Client,
    pub(super) bundle: GuestBundle,
    pub(super) owner: ProcessIdentity,
    /// Whether user ids are remapped.
    pub(super) maps_users: bool,
}

impl Daemon {
    pub(super) fn new(settings: Settings) -> Self {
        let named = settings.host.clone().or_else(|| std::env::var("DOCKER_HOST").ok());
        let host = named.filter(|host| !host.is_empty()).unwrap_or_else(|| DEFAULT_HOST.to_owned());
        Self {
            settings,
            users: UserIds::default(),
            container_slots: Arc::new(Semaphore::new(MAX_CONTAINERS)),
            host,
            connection: OnceCell::new(),
            pending_removals: Mutex::default(),
        }
    }

    /// Returns the connection, connecting on first use. Connecting removes the containers of dead processes.
    pub(super) async fn connection(&self) -> Result<&DaemonConnection, ProviderError> {
        self.connection.get_or_try_init(|| self.connect()).await
    }

    async fn connect(&self) -> Result<DaemonConnection, ProviderError> {
        let step = REACH_STEP;
        if !self.host.starts_with("unix://") {
            return Err(ProviderError::Setup {
                step: step.to_owned(),
                cause: format!(
                    "'{}' is not a local socket, but containers mount local files; use unix:///PATH",
                    self.host.escape_debug()
                ),
            });
        }
        let explain = |error| self.explain(step, &error);
        let client =
            Client::connect_with_unix(&self.host, REQUEST_TIMEOUT_SECONDS, bollard::API_DEFAULT_VERSION);
        let client = client.map_err(explain)?.negotiate_version().await.map_err(explain)?;
        let info = client.info().await.map_err(explain)?;
        let maps = |option: &String| option.contains("name=userns") || option.contains("name=rootless");
        let maps_users = info.security_options.iter().flatten().any(maps);
        let connected = DaemonConnection {
            client,
            bundle: GuestBundle::from_current_process()?,
            owner: ProcessIdentity::this_process(),
            maps_users,
        };
        self.remove_orphans(&connected).await?;
        Ok(connected)
    }

    /// Removes containers whose process is gone.
    async fn remove_orphans(&self, connected: &DaemonConnection) -> Result<(), ProviderError> {
        let filters = HashMap::from([("label".to_owned(), vec![OWNER_LABEL.to_owned()])]);
        let options = ListContainersOptions { all: true, filters: Some(filters), ..Default::default() };
        let listed = connected.client.list_containers(Some(options)).await;
        for container in listed.map_err(|error| self.explain("list containers", &error))? {
            let owner = container.labels.as_ref().and_then(|labels| labels.get(OWNER_LABEL));
            if owner.is_some_and(|owner| connected.owner.is_owner_gone(owner)) {
                // On failure, the next process retries.
                let _gone =
                    remove_container(&connected.client, container.id.as_deref().unwrap_or_default()).await;
            }
        }
        Ok(())
    }

    /// Checks that the daemon knows the configured runtime.
    pub(super) async fn check_runtime(&self, connected: &DaemonConnection) -> Result<(), ProviderError> {
        // The daemon finds these by name and does not list them.
        let is_listed = |name: &&str| !name.starts_with("io.containerd.") && !name.starts_with('/');
        let Some(runtime) = self.settings.runtime.as_deref().filter(is_listed) else { return Ok(()) };
        let known = self.runtimes(connected).await?;
        if known.iter().any(|known| known == runtime) {
            return Ok(());
        }
        let cause = format!(
            "the Docker daemon does not know it; it knows: {}. Install it and add it to 'runtimes' in daemon.json, or \
             set another 'runtime' in [providers.docker]",
            known.join(", ")
        );
        Err(ProviderError::setup(format!("use runtime '{}'", runtime.escape_debug()), cause))
    }

    /// Returns the names of the daemon's runtimes.
    async fn runtimes(&self, connected: &DaemonConnection) -> Result<Vec<String>, ProviderError> {
        let info = connected.client.info().await.map_err(|error| self.explain(REACH_STEP, &error))?;
        let mut known: Vec<String> = info.runtimes.unwrap_or_default().into_keys().collect();
        known.sort();
        Ok(known)
    }

    /// Checks that the daemon can give GPUs to containers.
    pub(super) async fn check_gpus(&self, connected: &DaemonConnection) -> Result<(), ProviderError> {
        let known = self.runtimes(connected).await?;
        if known.iter().any(|known| known == GPU_RUNTIME) {
            return Ok(());
        }
        let message = format!(
            "the Docker daemon has no runtime '{GPU_RUNTIME}' (it has: {}), so containers get no GPU; install the \
             NVIDIA Container Toolkit, then: sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl \
             restart docker",
            known.join(", ")
        );
        Err(ProviderError::unsupported("gpus", message))
    }

    /// Turns an error into a message with a remedy.
    pub(super) fn explain(&self, step: &str, error: &Error) -> ProviderError {
        let host = &self.host;
        let kind = io_kind(error);
        let absent = matches!(error, Error::SocketNotFoundError(_));
        let cause = match kind {
            Some(io::ErrorKind::PermissionDenied) => format!(
                "this user may not access {host}; add the user to the group of that socket \
                 (usually: sudo usermod -aG docker $USER, and log in again)"
            ),
            Some(io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => self.unreachable_message(),
            _ if absent => self.unreachable_message(),
            _ => match error {
                Error::DockerResponseServerError { message, .. } => {
                    format!("Docker answered: {}", message.trim())
                }
                Error::RequestTimeoutError => {
                    format!(
                        "the daemon at {host} did not answer within {REQUEST_TIMEOUT_SECONDS} s; see its log"
                    )
                }
                // The connection ended between two responses, or during one.
                Error::HyperLegacyError { .. } | Error::HyperResponseError { .. } => {
                    format!("the daemon at {host} disconnected: {error}; try again when it is running")
                }
                _ if kind.is_some() => {
                    format!("the daemon at {host} disconnected: {error}; try again when it is running")
                }
                other => other.to_string(),
            },
        };
        ProviderError::setup(step, cause)
    }

    fn unreachable_message(&self) -> String {
        format!(
            "no Docker daemon at {}; start Docker (usually: sudo systemctl start docker), or set its \
             address: DOCKER_HOST, or host in [providers.docker]",
            self.host
        )
    }

    /// Removes a container, now or once the daemon can be reached again.
    pub(super) async fn remove(&self, id: &str) {
        let gone = match self.connection().await {
            Ok(connected) => remove_container(&connected.client, id).await,
            Err(_) => false,
        };
        let mut left = self.pending_removals.lock().unwrap_or_else(PoisonError::into_inner);
        if !gone && left.len() < MAX_PENDING_REMOVALS {
            left.push(id.to_owned());
        }
    }

    /// Retries failed removals.
    pub(super) async fn retry_removals(&self) {
        let left = std::mem::take(&mut *self.pending_removals.lock().unwrap_or_else(PoisonError::into_inner));
        for id in left {
            self.remove(&id).await;
        }
    }

    /// Waits until every container is removed.
    pub(super) async fn wait_for_removals(&self) {
        self.retry_removals().await;
        let all = self.container_slots.acquire_many(MAX_CONTAINERS as u32);
        // On failure, the next process retries.
        let _gone = tokio::time::timeout(SHUTDOWN_TIMEOUT, all).await;
        // Prevents new containers.
        self.container_slots.close();
        // A removal that was in progress above may have failed.
        self.retry_removals().await;
    }
}

/// Returns the system error behind a client error.
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

/// Removes a container, running or not, and waits until it is gone. Returns whether it is.
async fn remove_container(client: &Client, id: &str) -> bool {
    let options = RemoveContainerOptions { force: true, v: true, ..Default::default() };
    match client.remove_container(id, Some(options)).await {
        Ok(()) | Err(Error::DockerResponseServerError { status_code: 404, .. }) => true,
        Err(Error::DockerResponseServerError { status_code: 409, .. }) => {
            // Docker is already removing it, because its first process exited.
            let options = WaitContainerOptions { condition: "removed".to_owned() };
            let mut gone = std::pin::pin!(client.wait_container(id, Some(options)));
            let _gone = gone.next().await;
            true
        }
        Err(_) => false,
    }
}
