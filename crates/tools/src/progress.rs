//! Forwards progress messages from work to its caller.

use std::pin::pin;

use belljar_engine::packages::Progress;
use tokio::sync::watch;

/// Sends progress messages to [`forward_progress`]; only the latest one is kept.
#[derive(Debug, Default)]
pub struct ProgressSender(pub watch::Sender<String>);

impl Progress for ProgressSender {
    fn report(&mut self, what: &str) {
        self.0.send_replace(what.to_owned());
    }
}

/// Waits for work and passes its progress messages on meanwhile.
pub async fn forward_progress<T, Passed: Future<Output = ()>>(
    mut messages: watch::Receiver<String>,
    work: impl Future<Output = T>,
    mut pass_on: impl FnMut(String) -> Passed,
) -> T {
    let mut work = pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return done,
            Ok(()) = messages.changed() => {
                let what = messages.borrow_and_update().clone();
                pass_on(what).await;
            }
        }
    }
}
