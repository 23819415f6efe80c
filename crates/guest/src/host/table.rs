//! The open channels and the dispatch of received frames. No function here waits.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::error::{DisconnectReason, Violation};
use crate::flow_control::{ReceiveWindow, SendCredit};
use crate::protocol::{Failure, FrameKind, GuestEvent, GuestFrame, GuestReply, decode, decode_prefix};

/// A received item of a channel.
#[derive(Debug)]
pub(super) enum ChannelItem {
    Answer(GuestReply),
    Data(Vec<u8>),
    Event(GuestEvent, Vec<u8>, u32),
    End,
    Done(Result<GuestReply, Failure>),
}

#[derive(Debug)]
struct ChannelEntry {
    items: mpsc::UnboundedSender<ChannelItem>,
    credit: Arc<SendCredit>,
    window: Arc<ReceiveWindow>,
    answered: bool,
    ended: bool,
    /// Released when the guest is done with the channel, not when the caller is: a guest that never finishes
    /// only blocks its own sandbox.
    _slot: OwnedSemaphorePermit,
}

#[derive(Debug, Default)]
struct TableState {
    entries: HashMap<u32, ChannelEntry>,
    last: u32,
    lost: Option<DisconnectReason>,
}

/// The open channels of one guest.
#[derive(Debug, Default)]
pub(super) struct ChannelTable(Mutex<TableState>);

/// The caller's end of a channel.
#[derive(Debug)]
pub(super) struct ChannelHandle {
    pub(super) channel: u32,
    pub(super) items: mpsc::UnboundedReceiver<ChannelItem>,
    pub(super) credit: Arc<SendCredit>,
    pub(super) window: Arc<ReceiveWindow>,
}

impl ChannelTable {
    fn state(&self) -> MutexGuard<'_, TableState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a channel under an unused number.
    pub(super) fn open(&self, slot: OwnedSemaphorePermit) -> Result<ChannelHandle, DisconnectReason> {
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
        let (credit, window) = (Arc::new(SendCredit::new()), ReceiveWindow::new(channel));
        let entry = ChannelEntry {
            items: sender,
            credit: Arc::clone(&credit),
            window: Arc::clone(&window),
            answered: false,
            ended: false,
            _slot: slot,
        };
        state.entries.insert(channel, entry);
        Ok(ChannelHandle { channel, items, credit, window })
    }

    /// Passes a frame to its channel.
    pub(super) fn deliver(&self, frame: GuestFrame) -> Result<(), Violation> {
        let mut state = self.state();
        let channel = frame.channel;
        let Some(entry) = state.entries.get_mut(&channel) else {
            return Err(Violation::UnknownChannel(channel));
        };
        if let Some(item) = entry.check_frame(frame)? {
            let done = matches!(item, ChannelItem::Done(_));
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
    pub(super) fn disconnect(&self, loss: DisconnectReason) {
        let mut state = self.state();
        state.lost.get_or_insert(loss);
        for (_, entry) in state.entries.drain() {
            entry.credit.close();
        }
    }

    /// Returns why the guest is gone.
    pub(super) fn loss(&self) -> DisconnectReason {
        self.state().lost.clone().unwrap_or(DisconnectReason::Ended)
    }
}

impl ChannelEntry {
    /// Checks a frame against the channel's state.
    fn check_frame(&mut self, frame: GuestFrame) -> Result<Option<ChannelItem>, Violation> {
        let (kind, cost) = (frame.kind, frame.cost());
        if kind.needs_credit() {
            if self.ended {
                return Err(Violation::OutOfPlace(kind));
            }
            if !self.window.try_receive(cost) {
                return Err(Violation::Overrun(frame.channel));
            }
        }
        let malformed = Violation::Malformed(kind);
        Ok(Some(match kind {
            FrameKind::Answer if !self.answered => {
                self.answered = true;
                ChannelItem::Answer(decode(&frame.body).ok_or(malformed)?)
            }
            FrameKind::Data => ChannelItem::Data(frame.body),
            FrameKind::Event => {
                let (event, rest) = decode_prefix(&frame.body).ok_or(malformed)?;
                ChannelItem::Event(event, rest.to_vec(), cost)
            }
            FrameKind::End if !self.ended => {
                self.ended = true;
                ChannelItem::End
            }
            FrameKind::Credit => {
                let amount = frame.credit_amount().ok_or(malformed)?;
                if !self.credit.add(amount) {
                    return Err(Violation::Credit(frame.channel));
                }
                return Ok(None);
            }
            FrameKind::Done => {
                let result: Result<GuestReply, Failure> = decode(&frame.body).ok_or(malformed)?;
                ChannelItem::Done(result.map_err(Failure::truncated))
            }
            FrameKind::Hello
            | FrameKind::Request
            | FrameKind::Cancel
            | FrameKind::Answer
            | FrameKind::End => {
                return Err(Violation::OutOfPlace(kind));
            }
        }))
    }
}
