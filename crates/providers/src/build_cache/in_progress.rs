//! Builds in progress: runs of the same code that start together wait for the first one to build it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use belljar_beneath::ContentDigest;
use tokio::sync::watch;

type BuildName = (String, ContentDigest);
type Builds = Mutex<HashMap<BuildName, watch::Receiver<()>>>;

/// The builds in progress.
#[derive(Debug, Clone, Default)]
pub(super) struct BuildsInProgress(Arc<Builds>);

/// The turn of a run whose code is not built yet.
#[derive(Debug)]
pub(crate) enum BuildTurn {
    /// It builds. Others wait until this is dropped.
    Own(OwnBuild),
    /// Another run builds it.
    OfAnother(OtherBuild),
}

/// A build that others may wait for. Dropping it ends their waiting, whether it succeeded or not.
#[derive(Debug)]
pub(crate) struct OwnBuild {
    builds: Arc<Builds>,
    name: BuildName,
    _ended: watch::Sender<()>,
}

/// The build of another run.
#[derive(Debug)]
pub(crate) struct OtherBuild(watch::Receiver<()>);

impl BuildsInProgress {
    /// Returns whose turn it is to build.
    pub(super) fn enter(&self, tenant: &str, key: &ContentDigest) -> BuildTurn {
        let name = (tenant.to_owned(), *key);
        let mut builds = lock(&self.0);
        if let Some(ended) = builds.get(&name) {
            return BuildTurn::OfAnother(OtherBuild(ended.clone()));
        }
        let (sender, ended) = watch::channel(());
        builds.insert(name.clone(), ended);
        BuildTurn::Own(OwnBuild { builds: Arc::clone(&self.0), name, _ended: sender })
    }
}

impl OtherBuild {
    /// Waits until the build has ended.
    pub(crate) async fn ended(mut self) {
        // Nothing is ever sent: the error is that the sender is gone.
        let _gone = self.0.changed().await;
    }
}

impl Drop for OwnBuild {
    fn drop(&mut self) {
        lock(&self.builds).remove(&self.name);
    }
}

fn lock(builds: &Builds) -> MutexGuard<'_, HashMap<BuildName, watch::Receiver<()>>> {
    builds.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_builds_and_the_others_wait() {
        let builds = BuildsInProgress::default();
        let key = |text: &[u8]| ContentDigest::from_parts("test", [text]);
        let BuildTurn::Own(own) = builds.enter("a", &key(b"1")) else { panic!("nobody builds it") };
        let other = |tenant, text: &[u8]| match builds.enter(tenant, &key(text)) {
            BuildTurn::OfAnother(other) => Some(other),
            BuildTurn::Own(_) => None,
        };
        assert!(other("b", b"1").is_none() && other("a", b"2").is_none());
        let waiting = tokio::spawn(other("a", b"1").unwrap().ended());
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(own);
        waiting.await.unwrap();
        assert!(other("a", b"1").is_none());
    }
}
