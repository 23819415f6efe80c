//! File change notifications by inotify. If the host does not read changes fast enough, they are dropped, and
//! an overflow is reported.

use std::collections::{HashMap, VecDeque};
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::fs::{CWD, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::World;
use super::channel::Sender;
use super::descriptor::Descriptor;
use super::files::Target;
use crate::protocol::{Change, ChangeKind, Event, Failure, FailureKind, Reply};

const WANTED: WatchFlags = WatchFlags::CREATE
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
    world: &World,
    target: &Target,
    recursive: bool,
    sender: &Sender,
) -> Result<Reply, Failure> {
    let bounds = (world.settings.changes as usize, world.settings.watched_folders as usize);
    let mut watch = Watch::new(target, recursive, bounds)?;
    watch.scan().await;
    sender.answer(&Reply::Ok);
    while !watch.over || !watch.waiting.is_empty() {
        let next = watch.waiting.front().cloned().map(Event::Change);
        tokio::select! {
            // Polled only if `next` is set.
            sent = async { sender.event(next.as_ref().unwrap_or(&NOTHING), &[]).await }, if next.is_some() => {
                sent?;
                watch.waiting.pop_front();
            }
            came = watch.read(), if !watch.over => watch.note(came).await,
        }
    }
    Ok(Reply::Ok)
}

/// A placeholder that is never sent.
const NOTHING: Event = Event::Lost { offset: 0, bytes: 0 };

/// An event from inotify.
struct Told {
    folder: i32,
    flags: ReadFlags,
    cookie: u32,
    name: Option<PathBuf>,
}

struct Watch<'a> {
    target: &'a Target,
    recursive: bool,
    kernel: Descriptor,
    /// Folders to be watched, and whether their entries are reported.
    coming: Vec<(PathBuf, bool)>,
    /// Watched folders relative to the target, by watch descriptor.
    folders: HashMap<i32, PathBuf>,
    root: i32,
    /// A folder that was just moved away; the next event may contain its new path.
    leaving: Option<(u32, PathBuf)>,
    waiting: VecDeque<Change>,
    most_waiting: usize,
    most_folders: usize,
    over: bool,
}

impl<'a> Watch<'a> {
    fn new(target: &'a Target, recursive: bool, bounds: (usize, usize)) -> Result<Self, Failure> {
        let kernel = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).map_err(|errno| {
            let busy = matches!(errno, Errno::MFILE | Errno::NFILE);
            let kind = if busy { FailureKind::Busy } else { FailureKind::Io };
            target.failure(kind, "too many watches")
        })?;
        let root =
            inotify::add_watch(&kernel, target.path(), WANTED).map_err(|errno| target.failed(errno))?;
        let kernel = Descriptor::new(kernel).map_err(|error| Failure::of_io(&error, target.said()))?;
        Ok(Self {
            coming: if recursive { vec![(PathBuf::new(), false)] } else { Vec::new() },
            target,
            recursive,
            kernel,
            folders: HashMap::from([(root, PathBuf::new())]),
            root,
            leaving: None,
            waiting: VecDeque::new(),
            most_waiting: bounds.0,
            most_folders: bounds.1,
            over: false,
        })
    }

    /// Waits for events.
    async fn read(&self) -> Vec<Told> {
        let Ok(mut ready) = self.kernel.readable().await else { return Vec::new() };
        let mut buffer = [MaybeUninit::uninit(); 8 << 10];
        let mut reader = Reader::new(self.kernel.fd(), &mut buffer);
        let mut told = Vec::new();
        loop {
            match reader.next() {
                Ok(event) => told.push(Told {
                    folder: event.wd(),
                    flags: event.events(),
                    cookie: event.cookie(),
                    name: event.file_name().map(|name| path_of(name.to_bytes())),
                }),
                Err(_) => {
                    ready.clear_ready();
                    return told;
                }
            }
            if reader.is_buffer_empty() {
                return told;
            }
        }
    }

    async fn note(&mut self, told: Vec<Told>) {
        for (number, told) in told.into_iter().enumerate() {
            self.note_one(told);
            self.scan().await;
            if number % BATCH == 0 {
                tokio::task::yield_now().await;
            }
        }
    }

    fn note_one(&mut self, told: Told) {
        if told.flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            return self.add(ChangeKind::Overflow, Path::new(""), false);
        }
        if told.flags.contains(ReadFlags::IGNORED) {
            self.folders.remove(&told.folder);
            return;
        }
        let arrived = self.arrives(&told);
        let Some(folder) = self.folders.get(&told.folder) else { return };
        let path = told.name.as_ref().map_or_else(|| folder.clone(), |name| folder.join(name));
        if told.flags.intersects(ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF) {
            // For all folders but the root, the parent's watch reports this.
            if told.folder == self.root {
                self.add(ChangeKind::Gone, Path::new(""), false);
                self.over = true;
            }
            return;
        }
        let directory = told.flags.contains(ReadFlags::ISDIR);
        if let Some(kind) = kind(told.flags, told.cookie) {
            self.add(kind, &path, directory);
            match arrived {
                Some(old) => self.move_along(&old, &path),
                None if directory && self.recursive => self.follow(kind, path),
                None => {}
            }
        }
    }

    /// Follows a created or moved folder. Its existing entries are reported, because they may be older than
    /// the watch.
    fn follow(&mut self, kind: ChangeKind, path: PathBuf) {
        match kind {
            ChangeKind::Created | ChangeKind::MovedTo(_) => self.coming.push((path, true)),
            ChangeKind::MovedFrom(cookie) => self.leaving = Some((cookie, path)),
            _ => {}
        }
    }

    /// Returns the previous path of a folder that arrives with this event. A folder that left the tree is no
    /// longer watched.
    fn arrives(&mut self, told: &Told) -> Option<PathBuf> {
        let (cookie, old) = self.leaving.take()?;
        let here = self.folders.contains_key(&told.folder);
        if here && told.flags.contains(ReadFlags::MOVED_TO) && told.cookie == cookie {
            return Some(old);
        }
        let kernel = self.kernel.fd();
        self.folders.retain(|number, folder| {
            let stays = !folder.starts_with(&old);
            if !stays {
                let _gone = inotify::remove_watch(kernel, *number);
            }
            stays
        });
        None
    }

    /// Updates the paths of moved folders; their watches stay valid.
    fn move_along(&mut self, old: &Path, new: &Path) {
        for folder in self.folders.values_mut() {
            if let Ok(rest) = folder.strip_prefix(old) {
                // Not `join("")`, which would leave a slash at the end.
                *folder = if rest.as_os_str().is_empty() { new.to_owned() } else { new.join(rest) };
            }
        }
    }

    /// Watches all pending folders, and recursively their subfolders.
    async fn scan(&mut self) {
        while let Some((folder, tell)) = self.coming.pop() {
            if !folder.as_os_str().is_empty() && !self.enter(&folder) {
                continue;
            }
            self.look_into(&folder, tell).await;
            tokio::task::yield_now().await;
        }
    }

    /// Watches one more folder; returns whether that succeeded.
    fn enter(&mut self, folder: &Path) -> bool {
        if self.folders.len() >= self.most_folders {
            self.add(ChangeKind::Overflow, Path::new(""), false);
            return false;
        }
        let flags = WANTED | WatchFlags::ONLYDIR | WatchFlags::DONT_FOLLOW;
        match inotify::add_watch(self.kernel.fd(), self.target.path().join(folder), flags) {
            Ok(number) => {
                self.folders.insert(number, folder.to_owned());
                true
            }
            Err(errno) => {
                // The user's limit of inotify watches is reached: some changes will be missed.
                if errno == Errno::NOSPC {
                    self.add(ChangeKind::Overflow, Path::new(""), false);
                }
                false
            }
        }
    }

    /// Queues the subfolders of a folder, and reports its entries if they may be older than the watch.
    async fn look_into(&mut self, folder: &Path, tell: bool) {
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
                self.add(ChangeKind::Created, &path, directory);
            }
            if directory && self.coming.len() <= self.most_folders {
                self.coming.push((path, tell));
            }
        }
    }

    /// Queues a change, or an overflow if the queue is full.
    fn add(&mut self, kind: ChangeKind, path: &Path, directory: bool) {
        let full = self.waiting.len() >= self.most_waiting && kind != ChangeKind::Gone;
        let kind = if full { ChangeKind::Overflow } else { kind };
        let path =
            if kind == ChangeKind::Overflow { String::new() } else { path.to_string_lossy().into_owned() };
        let change = Change { kind, path, directory: directory && kind != ChangeKind::Overflow };
        let repeats = matches!(kind, ChangeKind::Overflow | ChangeKind::Modified | ChangeKind::Attributes);
        if !repeats || self.waiting.back() != Some(&change) {
            self.waiting.push_back(change);
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
