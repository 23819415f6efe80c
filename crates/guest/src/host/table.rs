//! The open channels and the dispatch of received frames. No function here waits.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::error::{Loss, Violation};
use crate::line::{Credit, Window};
use crate::protocol::{Event, Failure, Frame, Kind, Reply, decode, split};

/// A received item of a channel.
#[derive(Debug)]
pub(super) enum Item {
    Answer(Reply),
    Data(Vec<u8>),
    Event(Event, Vec<u8>, u32),
    End,
    Done(Result<Reply, Failure>),
}

#[derive(Debug)]
struct Entry {
    items: mpsc::UnboundedSender<Item>,
    credit: Arc<Credit>,
    window: Arc<Window>,
    answered: bool,
    ended: bool,
    /// Released when the guest is done with the channel, not when the caller is: a guest that never finishes
    /// only blocks its own sandbox.
    _slot: OwnedSemaphorePermit,
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<u32, Entry>,
    last: u32,
    lost: Option<Loss>,
}

/// The open channels of one guest.
#[derive(Debug, Default)]
pub(super) struct Table(Mutex<State>);

/// The caller's end of a channel.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) channel: u32,
    pub(super) items: mpsc::UnboundedReceiver<Item>,
    pub(super) credit: Arc<Credit>,
    pub(super) window: Arc<Window>,
}

impl Table {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a channel under an unused number.
    pub(super) fn open(&self, slot: OwnedSemaphorePermit) -> Result<Opened, Loss> {
        let mut state = self.state();
        if let Some(lost) = &state.lost {
            return Err(lost.clone());
        }
        loop {
            state.last = state.last.checked_add(1).unwrap_or(1);
            if !state.entries.contains_key(&state.last) {
                break;
            }
        }
        let channel = state.last;
        let (sender, items) = mpsc::unbounded_channel();
        let (credit, window) = (Arc::new(Credit::new()), Window::new(channel));
        let entry = Entry {
            items: sender,
            credit: Arc::clone(&credit),
            window: Arc::clone(&window),
            answered: false,
            ended: false,
            _slot: slot,
        };
        state.entries.insert(channel, entry);
        Ok(Opened { channel, items, credit, window })
    }

    /// Passes a frame to its channel.
    pub(super) fn deliver(&self, frame: Frame) -> Result<(), Violation> {
        let mut state = self.state();
        let channel = frame.channel;
        let Some(entry) = state.entries.get_mut(&channel) else {
            return Err(Violation::UnknownChannel(channel));
        };
        if let Some(item) = entry.take(frame)? {
            let done = matches!(item, Item::Done(_));
            // The caller may be gone. The channel stays open until the guest is done.
            let _listening = entry.items.send(item);
            if done {
                entry.credit.close();
                state.entries.remove(&channel);
            }
        }
        Ok(())
    }

    /// Marks the guest as gone and notifies all callers. The first reason is kept.
    pub(super) fn lose(&self, loss: Loss) {
        let mut state = self.state();
        state.lost.get_or_insert(loss);
        for (_, entry) in state.entries.drain() {
            entry.credit.close();
        }
    }

    /// Returns why the guest is gone.
    pub(super) fn loss(&self) -> Loss {
        self.state().lost.clone().unwrap_or(Loss::Ended)
    }
}

impl Entry {
    /// Checks a frame against the channel's state.
    fn take(&mut self, frame: Frame) -> Result<Option<Item>, Violation> {
        let (kind, cost) = (frame.kind, frame.cost());
        if kind.costs() {
            if self.ended {
                return Err(Violation::OutOfPlace(kind));
            }
            if !self.window.came(cost) {
                return Err(Violation::Overrun(frame.channel));
            }
        }
        let malformed = Violation::Malformed(kind);
        Ok(Some(match kind {
            Kind::Answer if !self.answered => {
                self.answered = true;
                Item::Answer(decode(&frame.body).ok_or(malformed)?)
            }
            Kind::Data => Item::Data(frame.body),
            Kind::Event => {
                let (event, rest) = split(&frame.body).ok_or(malformed)?;
                Item::Event(event, rest.to_vec(), cost)
            }
            Kind::End if !self.ended => {
                self.ended = true;
                Item::End
            }
            Kind::Credit => {
                let amount = frame.amount().ok_or(malformed)?;
                if !self.credit.add(amount) {
                    return Err(Violation::Credit(frame.channel));
                }
                return Ok(None);
            }
            Kind::Done => {
                let result: Result<Reply, Failure> = decode(&frame.body).ok_or(malformed)?;
                Item::Done(result.map_err(Failure::bounded))
            }
            Kind::Hello | Kind::Request | Kind::Cancel | Kind::Answer | Kind::End => {
                return Err(Violation::OutOfPlace(kind));
            }
        }))
    }
}
