//! A zygote, as the launcher sees it: an interpreter that imports the requested modules and then forks
//! children into jails.
//!
//! ```text
//! starting ──ready message──▶ ready ──too old, too many forks, exited, or unresponsive──▶ ended
//! ```

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::fs::{Dir, Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use rustix::process::Signal;

use super::builder::JailBuilder;
use super::child::Process;
use super::habits::Habits;
use super::home::Home;
use super::ids::Taken;
use super::lineage::Lineage;
use super::oom_score::{self, OomScores, Standing};
use super::plot::Plot;
use super::start;
use crate::bare::message::{Birth, BirthStep, Delivered, Word, bytes_of, from_bytes, kind};
use crate::cgroup::{self, Group};
use crate::inside::{self, Ground, Nest};
use crate::seccomp::{Filter, Wearer};
use crate::spec::{INBOX, Interpreter, Tongue};
use crate::step::{Step, StepFailed, step};
use crate::sys::{self, Cloned};
use crate::template::Root;
use crate::wire;

/// Time limit for an interpreter to start and import.
const START: Duration = Duration::from_secs(60);
/// Time limit for the answer to a fork request.
const SILENCE: Duration = Duration::from_millis(500);
/// Maximum forks of one zygote. It is limited because all children share the zygote's address space layout.
const MOST_CHILDREN: u64 = 10_000;
const OLDEST: Duration = Duration::from_secs(3_600);
const DISK_BYTES: u64 = 64 << 20;
/// Cgroup limits of the zygote. They include its children until these have joined their own cgroups.
const LIMITS: cgroup::Limits = cgroup::Limits { memory_bytes: 2 << 30, cpu_millis: 2_000, pids: 128 };
/// Maximum namespace sets kept for reuse.
const MOST_PLOTS: usize = 16;
const MAX_COMPLAINT: usize = 4 << 10;

/// The seccomp filters of warm jails, which are the same for all zygotes.
pub(super) struct Filters {
    zygote: Filter,
    child: Filter,
    host: Filter,
    collector: Filter,
}

impl Filters {
    pub(super) fn new() -> Self {
        Self {
            zygote: Filter::for_this_machine(Wearer::Zygote),
            child: Filter::for_this_machine(Wearer::Child),
            host: Filter::for_this_machine(Wearer::Host),
            collector: Filter::for_this_machine(Wearer::Collector),
        }
    }

    /// Returns the filter of the process that collects a child's artifacts.
    pub(super) fn collector(&self) -> &Filter {
        &self.collector
    }
}

/// An event of a zygote.
pub(super) enum Said {
    /// No event.
    Nothing,
    /// The zygote accepts fork requests from now on.
    Fertile,
    /// A module cannot be preimported. The zygote goes on without it, or must be restarted without it.
    CannotImport { module: String, reason: String, start_anew: bool },
    /// The oldest fork request succeeded.
    Born { number: u64, main: Process },
    /// The oldest fork request failed.
    Barren(StepFailed),
    /// The zygote exited, or cannot be used any more, for this reason.
    Gone(String),
}

/// A running zygote.
pub(super) struct Zygote {
    number: u64,
    pidfd: OwnedFd,
    pid: i32,
    line: OwnedFd,
    /// The pipe of its standard output and error.
    complaints: OwnedFd,
    /// The pipe through which a failed setup step is reported.
    told: OwnedFd,
    builder: Rc<JailBuilder>,
    fertile: bool,
    started: Instant,
    /// Numbers of the children in outstanding fork requests, oldest first.
    due: VecDeque<u64>,
    /// Number of descriptors open before any module was imported.
    open_before: usize,
    heard: Instant,
    children: u64,
    /// Unused namespace sets, kept for the next jails.
    plots: Vec<Plot>,
    habits: Habits,
    /// Whether its idle children preimport modules.
    children_prepare: bool,
}

impl Zygote {
    /// Starts an interpreter and the builder of its jails.
    pub(super) fn start(
        number: u64,
        home: &mut Home,
        filters: &Filters,
        root: &Root,
        interpreter: &Interpreter,
    ) -> Result<(Self, Lineage), StepFailed> {
        let taken = step(Step::UserId, "", || home.ids.take(false))?;
        Self::start_as(number, home, filters, root, interpreter, taken)
            .inspect_err(|_| home.ids.give_back(taken))
    }

    fn start_as(
        number: u64,
        home: &Home,
        filters: &Filters,
        root: &Root,
        interpreter: &Interpreter,
        taken: Taken,
    ) -> Result<(Self, Lineage), StepFailed> {
        let builder = Rc::new(JailBuilder::start(home, &filters.host, root, taken.uid)?);
        let group = home.make_group(0)?;
        if let Some(group) = &group {
            start::limit_group(group, &LIMITS)?;
        }
        let pipe = || step(Step::Namespaces, "", || rustix::pipe::pipe_with(PipeFlags::CLOEXEC));
        let ((told, report), (complaints, errors)) = (pipe()?, pipe()?);
        let (line, theirs) = step(Step::Namespaces, "", sys::line)?;
        // Standard input at end of file, and pipes for output, as a program has them.
        let (input, _) = pipe()?;
        let output = step(Step::Namespaces, "", || rustix::io::dup(&errors))?;
        let (files, command, env) = equip(interpreter);
        let nest = Nest {
            ground: Ground {
                tree: &root.tree,
                root: &root.path,
                binds: &[],
                owner: (taken.uid, taken.gid),
                disk_bytes: Some(DISK_BYTES),
            },
            groups: group.as_ref().map_or(&[], Group::join_fds),
            report,
            streams: [input, output, errors],
            line: theirs,
            filter: &filters.zygote,
            limits: &inside::zygote_limits(),
            landlock: home.landlock,
            hidden: &interpreter.hidden,
            files: &files,
            command: &command,
            env: &env,
        };
        let pidfd = clone_into_namespace(&builder, &nest, group.as_ref().and_then(Group::clone_into))?;
        drop(nest);
        let pid = step(Step::Namespaces, "", || home.pid_of(&pidfd))?;
        oom_score::set_oom_score(home, pid, OomScores::of(Standing::WithinShare, false).main);
        let now = Instant::now();
        let zygote = Self {
            number,
            pidfd,
            pid,
            line,
            complaints,
            told,
            builder: Rc::clone(&builder),
            fertile: false,
            started: now,
            due: VecDeque::new(),
            open_before: 0,
            heard: now,
            children: 0,
            plots: Vec::new(),
            habits: Habits::default(),
            children_prepare: !interpreter.frequent_imports.is_empty(),
        };
        // If the zygote has already exited, the next poll of its connection notices.
        let _told = wire::send_bytes(zygote.line.as_fd(), filters.child.bytes(), &[]);
        Ok((zygote, Lineage::new(number, builder, group, taken)))
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn children_prepare(&self) -> bool {
        self.children_prepare
    }

    pub(super) fn builder(&self) -> &Rc<JailBuilder> {
        &self.builder
    }

    /// Removes and returns a namespace set that an earlier jail used, if there is one.
    pub(super) fn take_plot(&mut self) -> Option<Plot> {
        self.plots.pop()
    }

    /// Returns whether a namespace set was created for this zygote.
    pub(super) fn owns(&self, plot: &Plot) -> bool {
        plot.zygote == self.number
    }

    /// Keeps a namespace set for reuse, or returns it if it is not empty or enough are kept.
    pub(super) fn take_back(&mut self, plot: Plot) -> Result<(), Plot> {
        if self.plots.len() >= MOST_PLOTS || !plot.is_empty() {
            return Err(plot);
        }
        self.plots.push(plot);
        Ok(())
    }

    /// Samples the memory of a child whose run is over, and sends the zygote the pages to prefault, once two
    /// samples agree.
    pub(super) fn look_at(&mut self, home: &Home, child: i32) {
        let common = self.habits.look_at(home, self.pid, child);
        if let Some(common) = common.filter(|common| !common.is_empty()) {
            let packet: Vec<u8> = common.iter().flat_map(bytes_of).copied().collect();
            // If the zygote has already exited, the next poll of its connection notices.
            let _told = wire::send_bytes(self.line.as_fd(), &packet, &[]);
        }
    }

    /// Releases the namespace sets that are kept for reuse.
    pub(super) fn clear_plots(&mut self, home: &Home) {
        self.plots.drain(..).for_each(|plot| home.ids.give_back(plot.taken));
    }

    /// Returns its pid on the host.
    pub(super) fn pid(&self) -> i32 {
        self.pid
    }

    pub(super) fn is_fertile(&self) -> bool {
        self.fertile
    }

    /// Returns whether it should be replaced, because of its age or the number of its forks.
    pub(super) fn is_old(&self) -> bool {
        self.children >= MOST_CHILDREN || self.started.elapsed() >= OLDEST
    }

    /// Returns the number of outstanding fork requests.
    pub(super) fn expecting(&self) -> usize {
        self.due.len()
    }

    pub(super) fn watched(&self) -> [BorrowedFd<'_>; 2] {
        [self.line.as_fd(), self.pidfd.as_fd()]
    }

    /// Returns when it must have answered.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match (self.fertile, self.due.is_empty()) {
            (false, _) => Some(self.started + START),
            (true, false) => Some(self.heard + SILENCE),
            (true, true) => None,
        }
    }

    /// Sends a fork request.
    pub(super) fn ask(
        &mut self,
        child: u64,
        birth: &Birth,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), StepFailed> {
        step(Step::Order, "", || wire::send_bytes(self.line.as_fd(), bytes_of(birth), fds))?;
        if self.due.is_empty() {
            self.heard = Instant::now();
        }
        self.due.push_back(child);
        self.children += 1;
        Ok(())
    }

    /// Receives one message without blocking. `proc` is the host's `/proc`.
    pub(super) fn hear(&mut self, proc: &OwnedFd) -> Said {
        let mut packet = [0; 2 << 10];
        let heard = match wire::receive_bytes_now(self.line.as_fd(), &mut packet) {
            Ok((0, _)) => return Said::Gone(self.last_words()),
            Ok(heard) => heard,
            Err(Errno::AGAIN | Errno::INTR) if self.is_alive() => return Said::Nothing,
            Err(_) => return Said::Gone(self.last_words()),
        };
        let (len, fds) = heard;
        if self.fertile {
            return self.delivered(proc, &packet[..len], fds);
        }
        let Some((word, text)) = from_bytes::<Word>(&packet[..len]) else { return Said::Nothing };
        let text = String::from_utf8_lossy(text).into_owned();
        match word.kind {
            kind::FERTILE => {
                self.fertile = true;
                Said::Fertile
            }
            kind::IMPORTED => self.imported(proc, text),
            _ => {
                let (module, reason) = text.split_once(": ").unwrap_or((&text, "it cannot be imported"));
                Said::CannotImport { module: module.into(), reason: reason.into(), start_anew: false }
            }
        }
    }

    fn delivered(&mut self, proc: &OwnedFd, packet: &[u8], fds: Vec<OwnedFd>) -> Said {
        let (Some((delivered, _)), Some(child)) = (from_bytes::<Delivered>(packet), self.due.pop_front())
        else {
            return Said::Gone("the interpreter sent an invalid message".to_owned());
        };
        self.heard = Instant::now();
        let mut fds = fds.into_iter();
        if let Some(between) = fds.next() {
            let _reaped = sys::put_an_end_to(between.as_fd());
        }
        if delivered.errno != 0 {
            for process in fds {
                let _reaped = sys::put_an_end_to(process.as_fd());
            }
            let step = BirthStep::of(delivered.step).unwrap_or(BirthStep::Fork);
            return Said::Barren(inside::failure_of(step, sys::told_errno(delivered.errno)));
        }
        let Some(main) = fds.next() else {
            return Said::Gone("the interpreter sent an invalid message".to_owned());
        };
        match sys::pid_of(proc, &main) {
            Ok(pid) => Said::Born { number: child, main: Process { pid, pidfd: main } },
            Err(_) => Said::Barren(StepFailed::new(Step::Fork, "(it was killed)", Errno::CHILD)),
        }
    }

    /// Checks the zygote after an import. A module that started threads would not survive a fork, and one
    /// that keeps descriptors open would share them with every child.
    fn imported(&mut self, proc: &OwnedFd, module: String) -> Said {
        let count = |what: &str| {
            let path = format!("{}/{what}", self.pid);
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let folder = rustix::fs::openat(proc, path, flags, Mode::empty()).ok()?;
            // Without `.` and `..`.
            Some(Dir::read_from(&folder).ok()?.flatten().count().saturating_sub(2))
        };
        let (Some(threads), Some(open)) = (count("task"), count("fd")) else {
            return Said::Gone("the interpreter's process cannot be inspected".to_owned());
        };
        if module.is_empty() {
            self.open_before = open;
        }
        let reason = match (threads, open.saturating_sub(self.open_before)) {
            (1, 0) => {
                // If the zygote has already exited, the next poll of its connection notices.
                let _told = wire::send_bytes(self.line.as_fd(), b"1", &[]);
                return Said::Nothing;
            }
            (1, 1) => "it leaves a file descriptor open".to_owned(),
            (1, more) => format!("it leaves {more} file descriptors open"),
            (2, _) => "it starts a thread".to_owned(),
            (more, _) => format!("it starts {} threads", more - 1),
        };
        if module.is_empty() {
            return Said::Gone(format!("{reason} before it imports anything"));
        }
        Said::CannotImport { module, reason, start_anew: true }
    }

    fn is_alive(&self) -> bool {
        !start::is_readable(self.pidfd.as_fd())
    }

    /// Returns why it ended: a failed setup step, or the last line of its output.
    fn last_words(&self) -> String {
        if let Some(failed) = inside::read_failure(self.told.as_fd()) {
            return failed.to_string();
        }
        let mut words = vec![0; MAX_COMPLAINT];
        let read = match start::is_readable(self.complaints.as_fd()) {
            true => rustix::io::read(&self.complaints, &mut words).unwrap_or(0),
            false => 0,
        };
        let words = String::from_utf8_lossy(&words[..read]);
        let last_line = words.lines().rfind(|line| !line.trim().is_empty());
        last_line.unwrap_or("the interpreter exited without an error message").to_owned()
    }

    /// Kills it and returns its process, which must be reaped. Its children live on.
    pub(super) fn end(mut self, home: &Home) -> OwnedFd {
        self.clear_plots(home);
        // This fails only if the process has already exited.
        let _killed = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
        self.pidfd
    }
}

/// Clones a zygote into the pid namespace of its builder, as a child of the launcher. An intermediate process
/// enters that namespace, because the launcher could not leave it again.
fn clone_into_namespace(
    builder: &JailBuilder,
    nest: &Nest<'_>,
    group: Option<BorrowedFd<'_>>,
) -> Result<OwnedFd, StepFailed> {
    let (ours, theirs) = step(Step::Namespaces, "", sys::line)?;
    let between = match step(Step::Namespaces, "", || sys::clone(0, None))? {
        Cloned::Child => {
            let flags = libc::CLONE_NEWNS | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
            let cloned = sys::setns(builder.namespace(), libc::CLONE_NEWPID)
                .and_then(|()| use_up_second_pid())
                .and_then(|()| sys::clone_sibling(flags, group));
            match cloned {
                Ok(Cloned::Child) => inside::enter_nest(nest),
                Ok(Cloned::Parent { pidfd: Some(pidfd), .. }) => {
                    // The launcher treats a missing answer as a failure.
                    let _sent = wire::send_bytes(theirs.as_fd(), b"1", &[pidfd.as_fd()]);
                    sys::exit_now(0)
                }
                Ok(Cloned::Parent { .. }) => sys::exit_now(Errno::NOSYS.raw_os_error()),
                Err(errno) => sys::exit_now(errno.raw_os_error()),
            }
        }
        Cloned::Parent { pid, .. } => pid,
    };
    drop(theirs);
    let received = wire::receive_bytes(ours.as_fd(), &mut [0]);
    let status = step(Step::Namespaces, "", || sys::wait(between))?.status;
    match received.ok().and_then(|(_, fds)| fds.into_iter().next()) {
        Some(pidfd) => Ok(pidfd),
        None => {
            let errno = sys::told_errno(libc::WEXITSTATUS(status));
            Err(StepFailed::new(Step::Namespaces, "for a zygote", errno))
        }
    }
}

/// Uses up pid 2 in the zygote's namespace, so that no zygote has it. Every child has pid 2 in its jail, and
/// libraries with a random number generator, such as OpenSSL, detect a fork by a changed pid.
fn use_up_second_pid() -> Result<(), Errno> {
    match sys::clone(0, None)? {
        Cloned::Child => sys::exit_now(0),
        Cloned::Parent { pidfd, .. } => sys::wait_for(pidfd.ok_or(Errno::NOSYS)?.as_fd()).map(drop),
    }
}

type Files = Vec<(&'static str, &'static [u8])>;

/// The script with which a cold interpreter calls `main`. Warm interpreters run it too, so that programs see
/// no difference.
const PYTHON_RUNNER: &str = include_str!("../../../engine/src/runners/python.py");

/// Returns the files in an interpreter's inbox, its command line and its environment.
fn equip(interpreter: &Interpreter) -> (Files, Vec<String>, Vec<String>) {
    let script = format!("{INBOX}/zygote");
    let mut command = vec![interpreter.program.clone()];
    let mut env = interpreter.env.clone();
    let mut files = Files::new();
    let (text, object): (&str, &[u8]) = match interpreter.tongue {
        Tongue::Python => {
            command.push(script);
            command.extend(interpreter.preimports.iter().cloned());
            command.push("--".to_owned());
            command.extend(interpreter.frequent_imports.iter().cloned());
            files.push(("runner.py", PYTHON_RUNNER.as_bytes()));
            (include_str!("../bare/python.py"), include_bytes!(concat!(env!("OUT_DIR"), "/python.so")))
        }
        Tongue::Node => {
            // One thread does all the work; threads that Node.js starts regardless stay blocked.
            command.extend(["--single-threaded", "--v8-pool-size=0"].map(str::to_owned));
            command.push(script);
            env.push(format!("LD_PRELOAD={INBOX}/zygote.so"));
            (include_str!("../bare/node.js"), include_bytes!(concat!(env!("OUT_DIR"), "/node.so")))
        }
    };
    files.extend([("zygote", text.as_bytes()), ("zygote.so", object)]);
    (files, command, env)
}

#[cfg(test)]
#[path = "zygote_fuzz_tests.rs"]
mod fuzz_tests;
