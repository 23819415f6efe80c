//! Dispatches frames from the host. Each request has its own task; no function here waits.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, spawn_local};

use super::channel::{Channel, Incoming, Receiver, Sender};
use super::{World, archives, files, ports, process, watches};
use crate::line::{Credit, Outbox, Window};
use crate::protocol::{Failure, FailureKind, Frame, Kind, Reply, Request, decode};

#[derive(Debug)]
struct Entry {
    incoming: mpsc::UnboundedSender<Incoming>,
    credit: Arc<Credit>,
    window: Arc<Window>,
    cancel: Option<oneshot::Sender<()>>,
    ended: bool,
}

/// The open channels.
#[derive(Debug)]
pub(super) struct Dispatch {
    world: Rc<World>,
    outbox: Outbox,
    entries: Rc<RefCell<HashMap<u32, Entry>>>,
}

impl Dispatch {
    pub(super) fn new(world: Rc<World>, outbox: Outbox) -> Self {
        Self { world, outbox, entries: Rc::default() }
    }

    /// Passes a frame to its channel; returns `None` on a protocol violation.
    pub(super) fn take(&self, frame: Frame) -> Option<()> {
        if frame.kind == Kind::Request {
            return self.open(frame.channel, decode(&frame.body)?);
        }
        let mut entries = self.entries.borrow_mut();
        // The host may have sent this before it knew that the channel is done.
        let Some(entry) = entries.get_mut(&frame.channel) else { return Some(()) };
        match frame.kind {
            Kind::Data | Kind::End if entry.ended => return None,
            Kind::Data => {
                entry.window.came(frame.cost()).then_some(())?;
                let _done = entry.incoming.send(Incoming::Data(frame.body));
            }
            Kind::End => {
                entry.ended = true;
                let _done = entry.incoming.send(Incoming::End);
            }
            Kind::Credit => entry.credit.add(frame.amount()?).then_some(())?,
            Kind::Cancel => {
                let _done = entry.cancel.take().map(|cancel| cancel.send(()));
            }
            Kind::Hello | Kind::Request | Kind::Answer | Kind::Event | Kind::Done => return None,
        }
        Some(())
    }

    fn open(&self, number: u32, request: Request) -> Option<()> {
        let (incoming, receiver) = mpsc::unbounded_channel();
        let (cancel, cancelled) = oneshot::channel();
        let (credit, window) = (Arc::new(Credit::new()), Window::new(number));
        let mut channel = Channel {
            sender: Sender { channel: number, outbox: self.outbox.clone(), credit: Arc::clone(&credit) },
            receiver: Receiver {
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
        entries.insert(number, Entry { incoming, credit, window, cancel: Some(cancel), ended: false });
        let sender = channel.sender.clone();
        let world = Rc::clone(&self.world);
        let work = spawn_local(async move { answer(&world, request, &mut channel).await });
        let entries = Rc::clone(&self.entries);
        spawn_local(async move {
            let result = finish(work, cancelled).await;
            entries.borrow_mut().remove(&number);
            sender.done(&result.map_err(Failure::bounded));
        });
        Some(())
    }
}

/// Waits for a request's task or aborts it. Always returns a result, even if the task panics.
async fn finish(
    mut work: JoinHandle<Result<Reply, Failure>>,
    cancelled: oneshot::Receiver<()>,
) -> Result<Reply, Failure> {
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
async fn answer(world: &Rc<World>, request: Request, channel: &mut Channel) -> Result<Reply, Failure> {
    let place = files::Place::new(&world.settings.workdir);
    match request {
        Request::Start { command, attach } => process::start(world, command, attach, &channel.sender).await,
        Request::Attach { process, attach } => process::attach(world, process, attach, &channel.sender).await,
        Request::Stdin { process, close } => {
            process::write(world, process, close, &mut channel.receiver).await
        }
        Request::Signal { process, signal } => process::signal(world, process, signal),
        Request::Resize { process, size } => process::resize(world, process, size),
        Request::Processes => Ok(Reply::Processes(world.processes.list())),
        Request::EndAll => process::end_all(),
        Request::Stat { path, follow } => files::stat(&place.at(path)?, follow),
        Request::Read { path, offset, len } => {
            files::read(&place.at(path)?, offset, len, &channel.sender).await
        }
        Request::Write { path, options } => files::write(&place.at(path)?, &options, channel).await,
        Request::List { path, after, limit } => files::list(&place.at(path)?, after, limit).await,
        Request::MakeFolder { path, parents, permissions } => {
            files::make_folder(&place.at(path)?, parents, permissions)
        }
        Request::Move { from, to, replace } => files::rename(&place.at(from)?, &place.at(to)?, replace),
        Request::Remove { path, recursive } => files::remove(&place.at(path)?, recursive).await,
        Request::SetMode { path, mode } => files::set_mode(&place.at(path)?, mode),
        Request::Unpack { path, format, limits } => {
            archives::unpack(world, &place.at(path)?, format, limits, &mut channel.receiver).await
        }
        Request::Pack { path, format } => {
            archives::pack(world, &place.at(path)?, format, &channel.sender).await
        }
        Request::Snapshot => archives::snapshot(world, &place.at(String::new())?, &channel.sender).await,
        Request::Watch { path, recursive } => {
            watches::watch(world, &place.at(path)?, recursive, &channel.sender).await
        }
        Request::Port { port } => ports::connect(port, channel).await,
        Request::Space { path } => files::space(&place.at(path)?),
    }
}
