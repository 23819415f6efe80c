//! A separate server for each test.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use belljar_engine::Engine;
use belljar_engine::limits::Limits;
use belljar_engine::profile::Profiles;
use belljar_server::{AppState, Error, InitialProviders, Listeners, Settings, prepare, run};
use belljar_store::{SealingKey, Store, StoreOptions};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::catalog::providers;
use crate::client::HttpTestClient;
use crate::fake_places::FakePlaces;
use crate::fake_provider::script_provider;

pub(crate) const ADMIN: &str = "an-admin-key-of-more-than-32-bytes-for-tests";

pub(crate) struct ServerHarness {
    pub(crate) address: std::net::SocketAddr,
    pub(crate) folder: Option<TempDir>,
    stop: Option<oneshot::Sender<()>>,
    serving: JoinHandle<()>,
}

impl ServerHarness {
    pub(crate) async fn new() -> Self {
        Self::with(|_| {}).await
    }

    pub(crate) async fn with(change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = Settings::default();
        change(&mut settings);
        let folder = tempfile::tempdir().unwrap();
        let state = test_state(folder.path(), settings).await;
        Self::serve(state, folder).await
    }

    pub(crate) async fn serve(state: Arc<AppState>, folder: TempDir) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::serve_on(listener.into(), state, folder)
    }

    pub(crate) fn serve_on(listeners: Listeners, state: Arc<AppState>, folder: TempDir) -> Self {
        let address = listeners.api.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let serving = tokio::spawn(run(listeners, state, async {
            // An error means that the server was dropped because the test is over.
            let _ = stopped.await;
        }));
        Self { address, folder: Some(folder), stop: Some(stop), serving }
    }

    pub(crate) fn client(&self) -> HttpTestClient {
        HttpTestClient::new(self.address, Some(ADMIN))
    }

    pub(crate) fn without_key(&self) -> HttpTestClient {
        HttpTestClient::new(self.address, None)
    }

    pub(crate) fn with_key(&self, key: &str) -> HttpTestClient {
        HttpTestClient::new(self.address, Some(key))
    }

    /// Creates a tenant with a key that may run code.
    pub(crate) async fn tenant(&self, name: &str, quotas: serde_json::Value) -> HttpTestClient {
        let admin = self.client();
        let new = serde_json::json!({"name": name, "quotas": quotas});
        assert_eq!(admin.post("/v1/tenants", &new).await.status, 201);
        let key = admin.post(&format!("/v1/tenants/{name}/keys"), &serde_json::json!({})).await;
        assert_eq!(key.status, 201);
        self.with_key(key.json()["key"].as_str().unwrap())
    }

    /// Requests shutdown; [`ServerHarness::ended`] waits for it.
    pub(crate) fn stop(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
    }

    pub(crate) async fn ended(self) -> TempDir {
        self.serving.await.unwrap();
        self.folder.unwrap()
    }
}

pub(crate) async fn test_state(folder: &Path, settings: Settings) -> Arc<AppState> {
    let key = SealingKey::generate().unwrap();
    test_state_with(folder, settings, providers(&Arc::default(), &key)).await.unwrap()
}

pub(crate) async fn test_state_with(
    folder: &Path,
    settings: Settings,
    providers: InitialProviders,
) -> Result<Arc<AppState>, Error> {
    let store = Arc::new(open_released_store(&folder.join("belljar.db")).await);
    let engine = Arc::new(Engine::new(Arc::new(script_provider()), Profiles::built_in(), Limits::CEILING));
    let host_storage = Arc::new(FakePlaces::default());
    let key = Some(ADMIN.parse().unwrap());
    Ok(prepare(engine, store, host_storage, Profiles::built_in(), providers, settings, key).await?.0)
}

/// Opens the store, as soon as an earlier server has released it.
pub(crate) async fn open_released_store(path: &Path) -> Store {
    for _ in 0..1_000 {
        match Store::open(path, &StoreOptions::default()) {
            Err(belljar_store::Error::Locked { .. }) => tokio::time::sleep(Duration::from_millis(10)).await,
            store => return store.unwrap(),
        }
    }
    panic!("an earlier server still holds the store");
}
