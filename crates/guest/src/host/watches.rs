//! File change notifications.

use std::path::{Component, Path};

use super::Guest;
use super::channel::{ChannelEvent, HostChannel};
use super::error::GuestError;
use crate::protocol::{FileChange, GuestEvent, GuestReply, GuestRequest};

impl Guest {
    /// Watches a folder, optionally with all subfolders. Reports every change after this method returns.
    ///
    /// # Errors
    /// An error of the guest.
    pub async fn watch(&self, path: &str, recursive: bool) -> Result<FileWatch, GuestError> {
        let mut channel = self.open(&GuestRequest::Watch { path: path.to_owned(), recursive }).await?;
        match channel.answer().await? {
            GuestReply::Ok => Ok(FileWatch { channel }),
            _ => Err(channel.wrong_answer()),
        }
    }
}

/// The changes of a watched folder. Dropping it ends the watch.
#[derive(Debug)]
pub struct FileWatch {
    channel: HostChannel,
}

impl FileWatch {
    /// Returns the next change, or `None` if the watched folder is gone.
    ///
    /// # Errors
    /// The watch has failed.
    pub async fn next(&mut self) -> Result<Option<FileChange>, GuestError> {
        match self.channel.next().await? {
            ChannelEvent::Event(GuestEvent::Change(change), rest)
                if rest.is_empty() && is_below(&change.path) =>
            {
                Ok(Some(change))
            }
            ChannelEvent::Done(GuestReply::Ok) => Ok(None),
            _ => Err(self.channel.wrong_answer()),
        }
    }
}

fn is_below(path: &str) -> bool {
    Path::new(path).components().all(|component| matches!(component, Component::Normal(_)))
}
