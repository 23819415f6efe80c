//! File change notifications.

use std::path::{Component, Path};

use super::Guest;
use super::channel::{Came, Channel};
use super::error::GuestError;
use crate::protocol::{Change, Event, Reply, Request};

impl Guest {
    /// Watches a folder, optionally with all subfolders. Reports every change after this method returns.
    ///
    /// # Errors
    /// An error of the guest.
    pub async fn watch(&self, path: &str, recursive: bool) -> Result<Watch, GuestError> {
        let mut channel = self.open(&Request::Watch { path: path.to_owned(), recursive }).await?;
        match channel.answer().await? {
            Reply::Ok => Ok(Watch { channel }),
            _ => Err(channel.wrong()),
        }
    }
}

/// The changes of a watched folder. Dropping it ends the watch.
#[derive(Debug)]
pub struct Watch {
    channel: Channel,
}

impl Watch {
    /// Returns the next change, or `None` if the watched folder is gone.
    ///
    /// # Errors
    /// The watch has failed.
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
