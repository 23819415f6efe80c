//! One zygote, seen from the launcher: an interpreter that is started, imports what it is told to, and then has a child
//! in a jail for each request.
//!
//! ```text
//! starting ──FERTILE──▶ fertile ──too old, too many children, gone, or silent──▶ ended
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

/// How long an interpreter may take to start and import.
const START: Duration = Duration::from_secs(60);
/// How long it may be silent while a child is due.
const SILENCE: Duration = Duration::from_millis(500);
/// Children share what the zygote's address space looks like, so none has very many.
const MOST_CHILDREN: u64 = 10_000;
const OLDEST: Duration = Duration::from_secs(3_600);
const DISK_BYTES: u64 = 64 << 20;
/// Its own, and those of children that have not joined their own group yet.
const LIMITS: cgroup::Limits = cgroup::Limits { memory_bytes: 2 << 30, cpu_millis: 2_000, pids: 128 };
/// How many plots wait for a child to stand on them.
const MOST_PLOTS: usize = 16;
const MAX_COMPLAINT: usize = 4 << 10;

/// What is the same for all zygotes.
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

    /// For the one who collects what a child left.
    pub(super) fn collector(&self) -> &Filter {
        &self.collector
    }
}

/// What a zygote said.
pub(super) enum Said {
    /// Nothing of consequence.
    Nothing,
    /// It can have children now.
    Fertile,
    /// A module cannot be kept warm, for this reason; the zygote goes on without it, or has to be started anew.
    CannotImport { module: String, reason: String, start_anew: bool },
    /// It had the child that was asked for first.
    Born { number: u64, main: Process },
    /// It could not have the child that was asked for first.
    Barren(StepFailed),
    /// It is of no further use.
    Gone(String),
}

pub(super) struct Zygote {
    number: u64,
    pidfd: OwnedFd,
    pid: i32,
    line: OwnedFd,
    /// Its standard output and error.
    complaints: OwnedFd,
    /// Where a failed step of its set-up is told.
    told: OwnedFd,
    builder: Rc<JailBuilder>,
    fertile: bool,
    started: Instant,
    /// Children that are due, first asked for first.
    due: VecDeque<u64>,
    /// Descriptors that it had before any module was imported.
    open_before: usize,
    heard: Instant,
    children: u64,
    /// Where no child is at the moment.
    plots: Vec<Plot>,
    habits: Habits,
    /// Whether its children import modules ahead of time.
    children_prepare: bool,
}

impl Zygote {
    /// Starts an interpreter, and the builder of its jails.
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
        // An input that is at its end, and pipes for output, as a program would have them.
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
        // Where it is gone already, that is noticed when its line is looked at.
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

    /// A plot on which another child has stood, if there is one.
    pub(super) fn take_plot(&mut self) -> Option<Plot> {
        self.plots.pop()
    }

    /// Whether a plot was made for this zygote.
    pub(super) fn owns(&self, plot: &Plot) -> bool {
        plot.zygote == self.number
    }

    /// Takes a plot back where there is nothing left on it.
    pub(super) fn take_back(&mut self, plot: Plot) -> Result<(), Plot> {
        if self.plots.len() >= MOST_PLOTS || !plot.is_empty() {
            return Err(plot);
        }
        self.plots.push(plot);
        Ok(())
    }

    /// Looks at the memory of a child whose run is over, where there is something to learn from it.
    pub(super) fn look_at(&mut self, home: &Home, child: i32) {
        let common = self.habits.look_at(home, self.pid, child);
        if let Some(common) = common.filter(|common| !common.is_empty()) {
            let packet: Vec<u8> = common.iter().flat_map(bytes_of).copied().collect();
            // Where it is gone already, that is noticed when its line is looked at.
            let _told = wire::send_bytes(self.line.as_fd(), &packet, &[]);
        }
    }

    /// Gives up plots that nobody stands on.
    pub(super) fn clear_plots(&mut self, home: &Home) {
        self.plots.drain(..).for_each(|plot| home.ids.give_back(plot.taken));
    }

    /// Its number on the host.
    pub(super) fn pid(&self) -> i32 {
        self.pid
    }

    pub(super) fn is_fertile(&self) -> bool {
        self.fertile
    }

    /// Whether another one should take its place.
    pub(super) fn is_old(&self) -> bool {
        self.children >= MOST_CHILDREN || self.started.elapsed() >= OLDEST
    }

    /// How many children are due.
    pub(super) fn expecting(&self) -> usize {
        self.due.len()
    }

    pub(super) fn watched(&self) -> [BorrowedFd<'_>; 2] {
        [self.line.as_fd(), self.pidfd.as_fd()]
    }

    /// When it is too late for it to say something.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match (self.fertile, self.due.is_empty()) {
            (false, _) => Some(self.started + START),
            (true, false) => Some(self.heard + SILENCE),
            (true, true) => None,
        }
    }

    /// Asks for a child.
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

    /// Hears what it has to say. `proc` is the host's.
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
            return Said::Gone("it said something that nobody understands".to_owned());
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
            return Said::Gone("it said something that nobody understands".to_owned());
        };
        match sys::pid_of(proc, &main) {
            Ok(pid) => Said::Born { number: child, main: Process { pid, pidfd: main } },
            Err(_) => Said::Barren(StepFailed::new(Step::Fork, "(it was killed)", Errno::CHILD)),
        }
    }

    /// A module that has threads or open descriptors would not survive a fork, or would share them with every child.
    fn imported(&mut self, proc: &OwnedFd, module: String) -> Said {
        let count = |what: &str| {
            let path = format!("{}/{what}", self.pid);
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let folder = rustix::fs::openat(proc, path, flags, Mode::empty()).ok()?;
            // `.` and `..` are no threads.
            Some(Dir::read_from(&folder).ok()?.flatten().count().saturating_sub(2))
        };
        let (Some(threads), Some(open)) = (count("task"), count("fd")) else {
            return Said::Gone("its process cannot be looked at".to_owned());
        };
        if module.is_empty() {
            self.open_before = open;
        }
        let reason = match (threads, open.saturating_sub(self.open_before)) {
            (1, 0) => {
                // Where it is gone already, that is noticed when its line is looked at.
                let _told = wire::send_bytes(self.line.as_fd(), b"1", &[]);
                return Said::Nothing;
            }
            (1, 1) => "it keeps a descriptor open".to_owned(),
            (1, more) => format!("it keeps {more} descriptors open"),
            (2, _) => "it starts a thread when it is imported".to_owned(),
            (more, _) => format!("it starts {} threads when it is imported", more - 1),
        };
        if module.is_empty() {
            return Said::Gone(format!("{reason}, before it was asked to import anything"));
        }
        Said::CannotImport { module, reason, start_anew: true }
    }

    fn is_alive(&self) -> bool {
        !start::is_readable(self.pidfd.as_fd())
    }

    /// Why it ended, as far as it said so.
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
        words.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it ended without a word").to_owned()
    }

    /// Ends it; its children live on. Gives its process, for somebody to wait for.
    pub(super) fn end(mut self, home: &Home) -> OwnedFd {
        self.clear_plots(home);
        // Only a process that is gone already cannot be killed, and that is what is wanted.
        let _killed = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
        self.pidfd
    }
}

/// Clones a zygote into the namespace of its builder, as a child of the launcher. A process in between enters that
/// namespace, because the launcher could not leave it again.
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
                    // The launcher takes a missing answer for a failure.
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
            Err(StepFailed::new(Step::Namespaces, "of a zygote", errno))
        }
    }
}

/// Has a process be process 2 of the zygote's namespace, and end. Every child is process 2 of its jail, and libraries that
/// keep random numbers, such as OpenSSL, know a fork by its having another process id than the original.
fn use_up_second_pid() -> Result<(), Errno> {
    match sys::clone(0, None)? {
        Cloned::Child => sys::exit_now(0),
        Cloned::Parent { pidfd, .. } => sys::wait_for(pidfd.ok_or(Errno::NOSYS)?.as_fd()).map(drop),
    }
}

type Files = Vec<(&'static str, &'static [u8])>;

/// What a cold interpreter is started with to call `main`: a warm one runs the same, and so a program sees the same.
const PYTHON_RUNNER: &str = include_str!("../../../engine/src/runners/python.py");

/// What an interpreter finds in its inbox, how it is started, and in which environment.
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
            // One thread does everything; those that Node.js starts all the same wait for ever.
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
