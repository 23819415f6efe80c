//! Two kinds of providers: the fake native one, and a cloud provider with a secret, which outputs its label.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use belljar_engine::Error;
use belljar_engine::catalog::{ProviderCatalog, ProviderSettings, unknown_provider};
use belljar_engine::outcome::{Ending, Kernel, Outcome, Receipt};
use belljar_engine::plan::{CodeSource, Plan, Program, Task};
use belljar_engine::provider::{BoxFuture, Capabilities, Provider, ProviderError, Sink, Stream};
use belljar_server::InitialProviders;
use belljar_store::SealingKey;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::fake_provider::script_provider;

/// The catalog of both kinds, with every cloud provider that was built, by label.
#[derive(Debug, Default)]
pub(crate) struct FakeCatalog(Mutex<BTreeMap<String, Arc<FakeCloud>>>);

impl FakeCatalog {
    pub(crate) fn has(&self, label: &str) -> bool {
        self.0.lock().unwrap().contains_key(label)
    }

    pub(crate) fn cloud(&self, label: &str) -> Arc<FakeCloud> {
        Arc::clone(&self.0.lock().unwrap()[label])
    }
}

pub(crate) fn providers(kinds: &Arc<FakeCatalog>, key: &str) -> InitialProviders {
    let key = key.parse::<SealingKey>().map_err(|error| error.to_string());
    InitialProviders {
        catalog: Arc::clone(kinds) as _,
        seeds: BTreeMap::new(),
        usual: "native".to_owned(),
        key,
    }
}

impl ProviderCatalog for FakeCatalog {
    fn names(&self) -> Vec<&'static str> {
        vec!["cloud", "native"]
    }

    fn exists_unconfigured(&self, name: &str) -> bool {
        name == "native"
    }

    fn schema(&self, name: &str) -> Result<Value, Error> {
        match name {
            "native" => Ok(json!({"type": "object", "properties": {}})),
            "cloud" => Ok(json!({"type": "object", "required": ["label", "token"], "properties": {
                "label": {"type": "string", "maxLength": 9},
                "token": {"type": "string", "writeOnly": true, "format": "password"},
                "domain": {"type": "string", "default": "cloud.example", "x-destination": true},
                "pool": {"type": "integer", "minimum": 0, "maximum": 8, "default": 1},
                "region": {"type": "string", "readOnly": true, "const": "here"},
            }})),
            _ => Err(unknown_provider(name, &self.names())),
        }
    }

    fn build(&self, name: &str, settings: &ProviderSettings) -> Result<Arc<dyn Provider>, Error> {
        if name == "native" {
            return Ok(Arc::new(script_provider()));
        }
        let text = |field: &str| settings[field].as_str().unwrap().to_owned();
        let (label, token) = (text("label"), text("token"));
        let cloud = Arc::new(FakeCloud {
            label,
            token,
            go: Semaphore::new(0),
            breaks: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        });
        self.0.lock().unwrap().insert(cloud.label.clone(), Arc::clone(&cloud));
        Ok(Arc::new(CloudProvider(cloud)))
    }
}

/// A cloud provider. With the label `down`, its self-test fails with a message that contains its secret; with
/// the label `useless`, its self-test passes, but nothing can be set up.
#[derive(Debug)]
pub(crate) struct FakeCloud {
    pub(crate) label: String,
    pub(crate) token: String,
    /// Every run of the script `wait` takes one permit.
    pub(crate) go: Semaphore,
    /// Fails every run from now on, with nothing run, while its self-test passes.
    pub(crate) breaks: AtomicBool,
    ended: AtomicBool,
}

impl FakeCloud {
    pub(crate) async fn has_ended(&self) {
        while !self.ended.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) fn ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    fn works(&self) -> Result<(), ProviderError> {
        match self.label.as_str() {
            "down" => {
                Err(ProviderError::setup("ask the cloud", format!("token {} is not accepted", self.token)))
            }
            _ => Ok(()),
        }
    }

    async fn run(&self, task: &Task, sink: &mut dyn Sink) -> Result<Outcome, ProviderError> {
        if self.label == "useless" || self.breaks.load(Ordering::SeqCst) {
            let cause = format!("/srv/machines is full, said token {}", self.token);
            return Err(ProviderError::setup("create a machine", cause));
        }
        self.works()?;
        if matches!(&task.program, Program::Code { source: CodeSource::Text { code, .. }, .. } if &**code == "wait")
        {
            self.go.acquire().await.unwrap().forget();
        }
        sink.output(Stream::Stdout, self.label.as_bytes());
        Ok(Outcome::new(Ending::Exited(0), Duration::ZERO, Receipt::new("cloud", Kernel::Remote)))
    }
}

#[derive(Debug)]
struct CloudProvider(Arc<FakeCloud>);

impl Provider for CloudProvider {
    fn name(&self) -> &'static str {
        "cloud"
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }
    fn run<'a>(
        &'a self,
        _plan: &'a Plan,
        task: &'a Task,
        sink: &'a mut dyn Sink,
        _cancel: BoxFuture<'a, ()>,
    ) -> BoxFuture<'a, Result<Outcome, ProviderError>> {
        Box::pin(self.0.run(task, sink))
    }
    fn self_test(&self) -> BoxFuture<'_, Result<(), ProviderError>> {
        Box::pin(std::future::ready(self.0.works()))
    }
    fn shut_down(&self) -> BoxFuture<'_, ()> {
        self.0.ended.store(true, Ordering::SeqCst);
        Box::pin(std::future::ready(()))
    }
}
