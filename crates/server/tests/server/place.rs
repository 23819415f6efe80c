//! A separate server for each test.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use belljar_engine::Engine;
use belljar_engine::limits::Limits;
use belljar_engine::profile::Profiles;
use belljar_server::{Doors, Error, Providers, Settings, World, prepare, run};
use belljar_store::{Options, SealingKey, Store};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::catalog::providers;
use crate::client::Client;
use crate::player::Player;
use crate::shelf::Shelf;

pub(crate) const ADMIN: &str = "an-admin-key-of-more-than-32-bytes-for-tests";

pub(crate) struct Place {
    pub(crate) address: std::net::SocketAddr,
    pub(crate) folder: Option<TempDir>,
    stop: Option<oneshot::Sender<()>>,
    serving: JoinHandle<()>,
}

impl Place {
    pub(crate) async fn new() -> Self {
        Self::with(|_| {}).await
    }

    pub(crate) async fn with(change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = Settings::default();
        change(&mut settings);
        let folder = tempfile::tempdir().unwrap();
        let world = world(folder.path(), settings).await;
        Self::serve(world, folder).await
    }

    pub(crate) async fn serve(world: Arc<World>, folder: TempDir) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::behind(listener.into(), world, folder)
    }

    pub(crate) fn behind(doors: Doors, world: Arc<World>, folder: TempDir) -> Self {
        let address = doors.api.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let serving = tokio::spawn(run(doors, world, async {
            // An error means that the server was dropped because the test is over.
            let _ = stopped.await;
        }));
        Self { address, folder: Some(folder), stop: Some(stop), serving }
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(self.address, Some(ADMIN))
    }

    pub(crate) fn without_key(&self) -> Client {
        Client::new(self.address, None)
    }

    pub(crate) fn with_key(&self, key: &str) -> Client {
        Client::new(self.address, Some(key))
    }

    /// Creates a tenant with a key that may run code.
    pub(crate) async fn tenant(&self, name: &str, quotas: serde_json::Value) -> Client {
        let admin = self.client();
        let new = serde_json::json!({"name": name, "quotas": quotas});
        assert_eq!(admin.post("/v1/tenants", &new).await.status, 201);
        let key = admin.post(&format!("/v1/tenants/{name}/keys"), &serde_json::json!({})).await;
        assert_eq!(key.status, 201);
        self.with_key(key.json()["key"].as_str().unwrap())
    }

    /// Requests shutdown; [`Place::ended`] waits for it.
    pub(crate) fn stop(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
    }

    pub(crate) async fn ended(self) -> TempDir {
        self.serving.await.unwrap();
        self.folder.unwrap()
    }
}

pub(crate) async fn world(folder: &Path, settings: Settings) -> Arc<World> {
    let key = SealingKey::generate().unwrap();
    world_with(folder, settings, providers(&Arc::default(), &key)).await.unwrap()
}

pub(crate) async fn world_with(
    folder: &Path,
    settings: Settings,
    providers: Providers,
) -> Result<Arc<World>, Error> {
    let store = Arc::new(free(&folder.join("belljar.db")).await);
    let engine = Arc::new(Engine::new(Arc::new(Player), Profiles::shipped(), Limits::CEILING));
    let places = Arc::new(Shelf::default());
    let key = Some(ADMIN.parse().unwrap());
    Ok(prepare(engine, store, places, Profiles::shipped(), providers, settings, key).await?.0)
}

/// Opens the store, as soon as an earlier server has released it.
async fn free(path: &Path) -> Store {
    for _ in 0..1_000 {
        match Store::open(path, &Options::default()) {
            Err(belljar_store::Error::Locked { .. }) => tokio::time::sleep(Duration::from_millis(10)).await,
            store => return store.unwrap(),
        }
    }
    panic!("an earlier server still holds the store");
}
