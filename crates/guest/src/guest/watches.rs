//! File change notifications by inotify. If the host does not read changes fast enough, they are dropped, and
//! an overflow is reported.

use std::collections::{HashMap, VecDeque};
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::fs::{CWD, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::GuestContext;
use super::channel::ChannelSender;
use super::descriptor::Descriptor;
use super::files::TargetPath;
use crate::protocol::{ChangeKind, Failure, FailureKind, FileChange, GuestEvent, GuestReply};

const WATCH_FLAGS: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF);
/// Number of events or folders handled before other tasks run.
const BATCH: usize = 32;

pub(super) async fn watch(
    world: &GuestContext,
    target: &TargetPath,
    recursive: bool,
    sender: &ChannelSender,
) -> Result<GuestReply, Failure> {
    let bounds = (world.settings.queued_changes as usize, world.settings.watched_folders as usize);
    let mut watch = InotifyWatch::new(target, recursive, bounds)?;
    watch.watch_pending().await;
    sender.answer(&GuestReply::Ok);
    while !watch.has_ended || !watch.queued_changes.is_empty() {
        let next = watch.queued_changes.front().cloned().map(GuestEvent::Change);
        tokio::select! {
            // Polled only if `next` is set.
            sent = async { sender.event(next.as_ref().unwrap_or(&PLACEHOLDER_EVENT), &[]).await }, if next.is_some() => {
                sent?;
                watch.queued_changes.pop_front();
            }
            came = watch.read(), if !watch.has_ended => watch.handle_events(came).await,
        }
    }
    Ok(GuestReply::Ok)
}

/// A placeholder that is never sent.
const PLACEHOLDER_EVENT: GuestEvent = GuestEvent::Lost { offset: 0, bytes: 0 };

/// An event from inotify.
struct InotifyEvent {
    folder: i32,
    flags: ReadFlags,
    cookie: u32,
    name: Option<PathBuf>,
}

struct InotifyWatch<'a> {
    target: &'a TargetPath,
    recursive: bool,
    kernel: Descriptor,
    /// Folders to be watched, and whether their entries are reported.
    pending_folders: Vec<(PathBuf, bool)>,
    /// Watched folders relative to the target, by watch descriptor.
    folders: HashMap<i32, PathBuf>,
    root: i32,
    /// A folder that was just moved away; the next event may contain its new path.
    moved_away: Option<(u32, PathBuf)>,
    queued_changes: VecDeque<FileChange>,
    max_queued_changes: usize,
    max_folders: usize,
    has_ended: bool,
}

impl<'a> InotifyWatch<'a> {
    fn new(target: &'a TargetPath, recursive: bool, bounds: (usize, usize)) -> Result<Self, Failure> {
        let kernel = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).map_err(|errno| {
            let busy = matches!(errno, Errno::MFILE | Errno::NFILE);
            let kind = if busy { FailureKind::Busy } else { FailureKind::Io };
            target.failure(kind, "too many watches")
        })?;
        let root = inotify::add_watch(&kernel, target.path(), WATCH_FLAGS)
            .map_err(|errno| target.os_failure(errno))?;
        let kernel = Descriptor::new(kernel).map_err(|error| Failure::from_io(&error, target.given()))?;
        Ok(Self {
            pending_folders: if recursive { vec![(PathBuf::new(), false)] } else { Vec::new() },
            target,
            recursive,
            kernel,
            folders: HashMap::from([(root, PathBuf::new())]),
            root,
            moved_away: None,
            queued_changes: VecDeque::new(),
            max_queued_changes: bounds.0,
            max_folders: bounds.1,
            has_ended: false,
        })
    }

    /// Waits for events.
    async fn read(&self) -> Vec<InotifyEvent> {
        let Ok(mut ready) = self.kernel.readable().await else { return Vec::new() };
        let mut buffer = [MaybeUninit::uninit(); 8 << 10];
        let mut reader = Reader::new(self.kernel.fd(), &mut buffer);
        let mut events = Vec::new();
        loop {
            match reader.next() {
                Ok(event) => events.push(InotifyEvent {
                    folder: event.wd(),
                    flags: event.events(),
                    cookie: event.cookie(),
                    name: event.file_name().map(|name| path_of(name.to_bytes())),
                }),
                Err(_) => {
                    ready.clear_ready();
                    return events;
                }
            }
            if reader.is_buffer_empty() {
                return events;
            }
        }
    }

    async fn handle_events(&mut self, events: Vec<InotifyEvent>) {
        for (number, event) in events.into_iter().enumerate() {
            self.handle_event(event);
            self.watch_pending().await;
            if number % BATCH == 0 {
                tokio::task::yield_now().await;
            }
        }
    }

    fn handle_event(&mut self, event: InotifyEvent) {
        if event.flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            return self.queue_change(ChangeKind::Overflow, Path::new(""), false);
        }
        if event.flags.contains(ReadFlags::IGNORED) {
            self.folders.remove(&event.folder);
            return;
        }
        let arrived = self.previous_path(&event);
        let Some(folder) = self.folders.get(&event.folder) else { return };
        let path = event.name.as_ref().map_or_else(|| folder.clone(), |name| folder.join(name));
        if event.flags.intersects(ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF) {
            // For all folders but the root, the parent's watch reports this.
            if event.folder == self.root {
                self.queue_change(ChangeKind::Gone, Path::new(""), false);
                self.has_ended = true;
            }
            return;
        }
        let directory = event.flags.contains(ReadFlags::ISDIR);
        if let Some(kind) = kind(event.flags, event.cookie) {
            self.queue_change(kind, &path, directory);
            match arrived {
                Some(old) => self.update_paths(&old, &path),
                None if directory && self.recursive => self.follow(kind, path),
                None => {}
            }
        }
    }

    /// Follows a created or moved folder. Its existing entries are reported, because they may be older than
    /// the watch.
    fn follow(&mut self, kind: ChangeKind, path: PathBuf) {
        match kind {
            ChangeKind::Created | ChangeKind::MovedTo(_) => self.pending_folders.push((path, true)),
            ChangeKind::MovedFrom(cookie) => self.moved_away = Some((cookie, path)),
            _ => {}
        }
    }

    /// Returns the previous path of a folder that arrives with this event. A folder that left the tree is no
    /// longer watched.
    fn previous_path(&mut self, event: &InotifyEvent) -> Option<PathBuf> {
        let (cookie, old) = self.moved_away.take()?;
        let here = self.folders.contains_key(&event.folder);
        if here && event.flags.contains(ReadFlags::MOVED_TO) && event.cookie == cookie {
            return Some(old);
        }
        let kernel = self.kernel.fd();
        self.folders.retain(|number, folder| {
            let is_elsewhere = !folder.starts_with(&old);
            if !is_elsewhere {
                let _gone = inotify::remove_watch(kernel, *number);
            }
            is_elsewhere
        });
        None
    }

    /// Updates the paths of moved folders; their watches stay valid.
    fn update_paths(&mut self, old: &Path, new: &Path) {
        for folder in self.folders.values_mut() {
            if let Ok(rest) = folder.strip_prefix(old) {
                // Not `join("")`, which would leave a slash at the end.
                *folder = if rest.as_os_str().is_empty() { new.to_owned() } else { new.join(rest) };
            }
        }
    }

    /// Watches all pending folders, and recursively their subfolders.
    async fn watch_pending(&mut self) {
        while let Some((folder, tell)) = self.pending_folders.pop() {
            if !folder.as_os_str().is_empty() && !self.watch_folder(&folder) {
                continue;
            }
            self.queue_subfolders(&folder, tell).await;
            tokio::task::yield_now().await;
        }
    }

    /// Watches one more folder; returns whether that succeeded.
    fn watch_folder(&mut self, folder: &Path) -> bool {
        if self.folders.len() >= self.max_folders {
            self.queue_change(ChangeKind::Overflow, Path::new(""), false);
            return false;
        }
        let flags = WATCH_FLAGS | WatchFlags::ONLYDIR | WatchFlags::DONT_FOLLOW;
        match inotify::add_watch(self.kernel.fd(), self.target.path().join(folder), flags) {
            Ok(number) => {
                self.folders.insert(number, folder.to_owned());
                true
            }
            Err(errno) => {
                // The user's limit of inotify watches is reached: some changes will be missed.
                if errno == Errno::NOSPC {
                    self.queue_change(ChangeKind::Overflow, Path::new(""), false);
                }
                false
            }
        }
    }

    /// Queues the subfolders of a folder, and reports its entries if they may be older than the watch.
    async fn queue_subfolders(&mut self, folder: &Path, tell: bool) {
        let flags =
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(fd) = rustix::fs::openat(CWD, self.target.path().join(folder), flags, Mode::empty()) else {
            return;
        };
        let Ok(entries) = Dir::read_from(fd) else { return };
        for (number, entry) in entries.flatten().enumerate() {
            if number % (16 * BATCH) == 0 {
                tokio::task::yield_now().await;
            }
            if entry.file_name() == c"." || entry.file_name() == c".." {
                continue;
            }
            let directory = entry.file_type() == FileType::Directory;
            let path = folder.join(path_of(entry.file_name().to_bytes()));
            if tell {
                self.queue_change(ChangeKind::Created, &path, directory);
            }
            if directory && self.pending_folders.len() <= self.max_folders {
                self.pending_folders.push((path, tell));
            }
        }
    }

    /// Queues a change, or an overflow if the queue is full.
    fn queue_change(&mut self, kind: ChangeKind, path: &Path, directory: bool) {
        let full = self.queued_changes.len() >= self.max_queued_changes && kind != ChangeKind::Gone;
        let kind = if full { ChangeKind::Overflow } else { kind };
        let path =
            if kind == ChangeKind::Overflow { String::new() } else { path.to_string_lossy().into_owned() };
        let change = FileChange { kind, path, directory: directory && kind != ChangeKind::Overflow };
        let repeats = matches!(kind, ChangeKind::Overflow | ChangeKind::Modified | ChangeKind::Attributes);
        if !repeats || self.queued_changes.back() != Some(&change) {
            self.queued_changes.push_back(change);
        }
    }
}

fn path_of(name: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    PathBuf::from(std::ffi::OsStr::from_bytes(name))
}

fn kind(flags: ReadFlags, cookie: u32) -> Option<ChangeKind> {
    [
        (ReadFlags::CREATE, ChangeKind::Created),
        (ReadFlags::MODIFY, ChangeKind::Modified),
        (ReadFlags::DELETE, ChangeKind::Removed),
        (ReadFlags::MOVED_FROM, ChangeKind::MovedFrom(cookie)),
        (ReadFlags::MOVED_TO, ChangeKind::MovedTo(cookie)),
        (ReadFlags::ATTRIB, ChangeKind::Attributes),
    ]
    .into_iter()
    .find_map(|(flag, kind)| flags.contains(flag).then_some(kind))
}
