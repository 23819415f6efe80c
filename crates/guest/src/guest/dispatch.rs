//! Dispatches frames from the host. Each request has its own task; no function here waits.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, spawn_local};

use super::channel::{ChannelReceiver, ChannelSender, GuestChannel, Incoming};
use super::{GuestContext, archives, files, ports, process, watches};
use crate::flow_control::{FrameSender, ReceiveWindow, SendCredit};
use crate::protocol::{Failure, FailureKind, FrameKind, GuestFrame, GuestReply, GuestRequest, decode};

#[derive(Debug)]
struct OpenChannel {
    incoming: mpsc::UnboundedSender<Incoming>,
    credit: Arc<SendCredit>,
    window: Arc<ReceiveWindow>,
    cancel: Option<oneshot::Sender<()>>,
    ended: bool,
}

/// The open channels.
#[derive(Debug)]
pub(super) struct Dispatch {
    world: Rc<GuestContext>,
    outbox: FrameSender,
    entries: Rc<RefCell<HashMap<u32, OpenChannel>>>,
}

impl Dispatch {
    pub(super) fn new(world: Rc<GuestContext>, outbox: FrameSender) -> Self {
        Self { world, outbox, entries: Rc::default() }
    }

    /// Passes a frame to its channel; returns `None` on a protocol violation.
    pub(super) fn handle_frame(&self, frame: GuestFrame) -> Option<()> {
        if frame.kind == FrameKind::Request {
            return self.open(frame.channel, decode(&frame.body)?);
        }
        let mut entries = self.entries.borrow_mut();
        // The host may have sent this before it knew that the channel is done.
        let Some(entry) = entries.get_mut(&frame.channel) else { return Some(()) };
        match frame.kind {
            FrameKind::Data | FrameKind::End if entry.ended => return None,
            FrameKind::Data => {
                entry.window.try_receive(frame.cost()).then_some(())?;
                let _done = entry.incoming.send(Incoming::Data(frame.body));
            }
            FrameKind::End => {
                entry.ended = true;
                let _done = entry.incoming.send(Incoming::End);
            }
            FrameKind::Credit => entry.credit.add(frame.credit_amount()?).then_some(())?,
            FrameKind::Cancel => {
                let _done = entry.cancel.take().map(|cancel| cancel.send(()));
            }
            FrameKind::Hello
            | FrameKind::Request
            | FrameKind::Answer
            | FrameKind::Event
            | FrameKind::Done => return None,
        }
        Some(())
    }

    fn open(&self, number: u32, request: GuestRequest) -> Option<()> {
        let (incoming, receiver) = mpsc::unbounded_channel();
        let (cancel, cancelled) = oneshot::channel();
        let (credit, window) = (Arc::new(SendCredit::new()), ReceiveWindow::new(number));
        let mut channel = GuestChannel {
            sender: ChannelSender {
                channel: number,
                outbox: self.outbox.clone(),
                credit: Arc::clone(&credit),
            },
            receiver: ChannelReceiver {
                outbox: self.outbox.clone(),
                window: Arc::clone(&window),
                incoming: receiver,
                ended: false,
            },
        };
        let mut entries = self.entries.borrow_mut();
        let full = entries.len() >= self.world.settings.channels as usize;
        if full || entries.contains_key(&number) {
            return None;
        }
        entries.insert(number, OpenChannel { incoming, credit, window, cancel: Some(cancel), ended: false });
        let sender = channel.sender.clone();
        let world = Rc::clone(&self.world);
        let work = spawn_local(async move { execute_request(&world, request, &mut channel).await });
        let entries = Rc::clone(&self.entries);
        spawn_local(async move {
            let result = await_result(work, cancelled).await;
            entries.borrow_mut().remove(&number);
            sender.done(&result.map_err(Failure::truncated));
        });
        Some(())
    }
}

/// Waits for a request's task or aborts it. Always returns a result, even if the task panics.
async fn await_result(
    mut work: JoinHandle<Result<GuestReply, Failure>>,
    cancelled: oneshot::Receiver<()>,
) -> Result<GuestReply, Failure> {
    let joined = tokio::select! {
        joined = &mut work => joined,
        Ok(()) = cancelled => {
            work.abort();
            work.await
        }
    };
    joined.unwrap_or_else(|error| {
        let (kind, message) = if error.is_cancelled() {
            (FailureKind::Cancelled, "cancelled")
        } else {
            (FailureKind::Io, "internal error in the guest (please report this bug)")
        };
        Err(Failure::new(kind, "request", message))
    })
}

/// Executes a request.
async fn execute_request(
    world: &Rc<GuestContext>,
    request: GuestRequest,
    channel: &mut GuestChannel,
) -> Result<GuestReply, Failure> {
    let base = files::WorkDir::new(&world.settings.workdir);
    match request {
        GuestRequest::Start { command, attach } => {
            process::start(world, command, attach, &channel.sender).await
        }
        GuestRequest::Attach { process, attach } => {
            process::attach(world, process, attach, &channel.sender).await
        }
        GuestRequest::Stdin { process, close } => {
            process::write(world, process, close, &mut channel.receiver).await
        }
        GuestRequest::Signal { process, signal } => process::signal(world, process, signal),
        GuestRequest::Resize { process, size } => process::resize(world, process, size),
        GuestRequest::WaitForEnd { process } => process::wait_for_end(world, process).await,
        GuestRequest::Processes => Ok(GuestReply::Processes(world.processes.list())),
        GuestRequest::EndAll => process::end_all(),
        GuestRequest::Stat { path, follow } => files::stat(&base.resolve(path)?, follow),
        GuestRequest::Read { path, offset, len } => {
            files::read(&base.resolve(path)?, offset, len, &channel.sender).await
        }
        GuestRequest::Write { path, options } => files::write(&base.resolve(path)?, &options, channel).await,
        GuestRequest::List { path, after, limit } => files::list(&base.resolve(path)?, after, limit).await,
        GuestRequest::MakeFolder { path, parents, permissions } => {
            files::make_folder(&base.resolve(path)?, parents, permissions)
        }
        GuestRequest::Move { from, to, replace } => {
            files::rename(&base.resolve(from)?, &base.resolve(to)?, replace)
        }
        GuestRequest::Remove { path, recursive } => files::remove(&base.resolve(path)?, recursive).await,
        GuestRequest::SetMode { path, mode } => files::set_mode(&base.resolve(path)?, mode),
        GuestRequest::Unpack { path, format, limits } => {
            archives::unpack(world, &base.resolve(path)?, format, limits, &mut channel.receiver).await
        }
        GuestRequest::Pack { path, format } => {
            archives::pack(world, &base.resolve(path)?, format, &channel.sender).await
        }
        GuestRequest::Snapshot => {
            archives::snapshot(world, &base.resolve(String::new())?, &channel.sender).await
        }
        GuestRequest::Watch { path, recursive } => {
            watches::watch(world, &base.resolve(path)?, recursive, &channel.sender).await
        }
        GuestRequest::Port { port } => ports::connect(port, channel).await,
        GuestRequest::Space { path } => files::space(&base.resolve(path)?),
    }
}
