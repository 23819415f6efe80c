//! Changes of files, as they happen.

use std::path::{Component, Path};

use super::Guest;
use super::channel::{Came, Channel};
use super::error::GuestError;
use crate::protocol::{Change, Event, Reply, Request};

impl Guest {
    /// Tells of changes in a folder, or in all below it. What happens after this returns is told.
    ///
    /// # Errors
    /// As the guest tells.
    pub async fn watch(&self, path: &str, recursive: bool) -> Result<Watch, GuestError> {
        let mut channel = self.open(&Request::Watch { path: path.to_owned(), recursive }).await?;
        match channel.answer().await? {
            Reply::Ok => Ok(Watch { channel }),
            _ => Err(channel.wrong()),
        }
    }
}

/// Changes of a folder. Dropping it ends the watch.
#[derive(Debug)]
pub struct Watch {
    channel: Channel,
}

impl Watch {
    /// The next change; `None` when what was watched is gone.
    ///
    /// # Errors
    /// Why no more come.
    pub async fn next(&mut self) -> Result<Option<Change>, GuestError> {
        match self.channel.next().await? {
            Came::Event(Event::Change(change), rest) if rest.is_empty() && is_below(&change.path) => {
                Ok(Some(change))
            }
            Came::Done(Reply::Ok) => Ok(None),
            _ => Err(self.channel.wrong()),
        }
    }
}

fn is_below(path: &str) -> bool {
    Path::new(path).components().all(|component| matches!(component, Component::Normal(_)))
}
