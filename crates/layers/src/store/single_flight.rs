//! Single flight: concurrent requests for the same work share one execution.
//!
//! Between processes, a lock has the same effect (`LayerStore::lock_work`).

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use belljar_beneath::ContentDigest;
use tokio::sync::OnceCell;

type Cells<T> = HashMap<ContentDigest, Weak<OnceCell<T>>>;

/// Work in progress in this process. An entry is removed when its last caller is gone.
#[derive(Debug)]
pub struct SingleFlight<T> {
    cells: Mutex<Cells<T>>,
}

impl<T> Default for SingleFlight<T> {
    fn default() -> Self {
        Self { cells: Mutex::default() }
    }
}

impl<T: Clone> SingleFlight<T> {
    /// Runs the work, or waits for a caller that already runs it and returns the same result, including an
    /// error. If the running caller is dropped, a waiting one starts again.
    pub async fn run(&self, what: &ContentDigest, work: impl Future<Output = T>) -> T {
        // Dropped after the cell, also when the caller is dropped.
        let _leave = FlightCleanup { flights: self, what };
        let cell = self.join(what);
        cell.get_or_init(|| work).await.clone()
    }
}

impl<T> SingleFlight<T> {
    fn join(&self, what: &ContentDigest) -> Arc<OnceCell<T>> {
        let mut cells = self.lock();
        if let Some(cell) = cells.get(what).and_then(Weak::upgrade) {
            return cell;
        }
        let cell = Arc::new(OnceCell::new());
        cells.insert(*what, Arc::downgrade(&cell));
        cell
    }

    fn lock(&self) -> MutexGuard<'_, Cells<T>> {
        self.cells.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes the entry when its last caller is gone.
struct FlightCleanup<'a, T> {
    flights: &'a SingleFlight<T>,
    what: &'a ContentDigest,
}

impl<T> Drop for FlightCleanup<'_, T> {
    fn drop(&mut self) {
        let mut cells = self.flights.lock();
        if cells.get(self.what).is_some_and(|cell| cell.strong_count() == 0) {
            cells.remove(self.what);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Semaphore;

    use super::*;

    fn what() -> ContentDigest {
        ContentDigest::from_parts("test", ["x"])
    }

    /// A hundred callers that arrive before the work is done.
    async fn hundred(outcome: Result<u8, &'static str>) -> (usize, Vec<Result<u8, &'static str>>) {
        let flights = Arc::new(SingleFlight::default());
        let (begun, gate) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
        let tasks: Vec<_> = (0..100)
            .map(|_| {
                let (flights, begun, gate) = (Arc::clone(&flights), Arc::clone(&begun), Arc::clone(&gate));
                tokio::spawn(async move {
                    let work = async {
                        begun.fetch_add(1, Ordering::SeqCst);
                        drop(gate.acquire().await);
                        outcome
                    };
                    flights.run(&what(), work).await
                })
            })
            .collect();
        while flights.lock().get(&what()).map_or(0, Weak::strong_count) < 100 {
            tokio::task::yield_now().await;
        }
        gate.add_permits(100);
        let mut outcomes = Vec::new();
        for task in tasks {
            outcomes.push(task.await.unwrap());
        }
        assert!(flights.lock().is_empty());
        (begun.load(Ordering::SeqCst), outcomes)
    }

    #[tokio::test]
    async fn a_hundred_callers_share_one_execution() {
        assert_eq!(hundred(Ok(7)).await, (1, vec![Ok(7); 100]));
    }

    #[tokio::test]
    async fn all_callers_get_the_error() {
        assert_eq!(hundred(Err("no such package")).await, (1, vec![Err("no such package"); 100]));
    }

    #[tokio::test]
    async fn a_waiting_caller_takes_over_from_a_dropped_one() {
        let flights = Arc::new(SingleFlight::default());
        let begun = Arc::new(Semaphore::new(0));
        let first = tokio::spawn({
            let (flights, begun) = (Arc::clone(&flights), Arc::clone(&begun));
            async move {
                let forever = async {
                    begun.add_permits(1);
                    std::future::pending::<u8>().await
                };
                flights.run(&what(), forever).await
            }
        });
        drop(begun.acquire().await.unwrap());
        let second = tokio::spawn({
            let flights = Arc::clone(&flights);
            async move { flights.run(&what(), async { 2 }).await }
        });
        while flights.lock().get(&what()).map_or(0, Weak::strong_count) < 2 {
            tokio::task::yield_now().await;
        }
        first.abort();
        assert_eq!(second.await.unwrap(), 2);
        assert!(flights.lock().is_empty());
    }
}
