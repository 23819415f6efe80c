//! A cache of answers in memory, bounded in size and age.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use belljar_beneath::ContentDigest;

/// Maximum number of entries. At the limit the cache is cleared; each entry then costs one disk access again.
const MAX_ENTRIES: usize = 4_096;

#[derive(Debug)]
pub(crate) struct TtlCache<T> {
    answers: Mutex<HashMap<ContentDigest, (Instant, Arc<T>)>>,
    ttl: Duration,
}

impl<T> TtlCache<T> {
    pub(crate) fn new(ttl: Duration) -> Self {
        Self { answers: Mutex::default(), ttl }
    }

    pub(crate) fn get(&self, key: &ContentDigest) -> Option<Arc<T>> {
        let answers = self.lock();
        let (since, answer) = answers.get(key)?;
        (since.elapsed() < self.ttl).then(|| Arc::clone(answer))
    }

    pub(crate) fn put(&self, key: ContentDigest, answer: T) -> Arc<T> {
        let answer = Arc::new(answer);
        let mut answers = self.lock();
        if answers.len() >= MAX_ENTRIES {
            answers.clear();
        }
        answers.insert(key, (Instant::now(), Arc::clone(&answer)));
        answer
    }

    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ContentDigest, (Instant, Arc<T>)>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
