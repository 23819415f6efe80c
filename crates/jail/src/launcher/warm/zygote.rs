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

use belljar_zygote::message::{ForkReply, ForkRequest, SetupStep, StatusMessage, bytes_of, from_bytes, kind};
use rustix::fs::{Dir, Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use rustix::process::Signal;

use super::builder::JailBuilder;
use super::namespaces::NamespaceSet;
use super::prefault::PageStats;
use super::zygote_resources::ZygoteResources;
use crate::cgroup::{self, Group};
use crate::inside::{self, MountPlan, ZygoteSetup};
use crate::launcher::ids::lease::IdLease;
use crate::launcher::limits;
use crate::launcher::oom_score::{self, OomScores, Standing};
use crate::launcher::process::ProcessHandle;
use crate::launcher::setup::LauncherContext;
use crate::root_trees::BuiltRoot;
use crate::seccomp::{FilterFor, SeccompFilter};
use crate::spec::{INBOX, WarmInterpreter, WarmLanguage};
use crate::step::{Step, StepFailed, step};
use crate::sys::{self, CloneResult};
use crate::wire;

/// Time limit for an interpreter to start and import.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit for the answer to a fork request.
const FORK_TIMEOUT: Duration = Duration::from_millis(500);
/// Maximum forks of one zygote. It is limited because all children share the zygote's address space layout.
const MAX_FORKS: u64 = 10_000;
const MAX_AGE: Duration = Duration::from_secs(3_600);
const DISK_BYTES: u64 = 64 << 20;
/// Cgroup limits of the zygote. They include its children until these have joined their own cgroups.
const LIMITS: cgroup::GroupLimits =
    cgroup::GroupLimits { memory_bytes: 2 << 30, cpu_millis: 2_000, pids: 128 };
/// Maximum namespace sets kept for reuse.
const MAX_NAMESPACE_SETS: usize = 16;
const MAX_OUTPUT_BYTES: usize = 4 << 10;

/// The seccomp filters of warm jails, which are the same for all zygotes.
pub(super) struct WarmFilters {
    zygote: SeccompFilter,
    child: SeccompFilter,
    warm_init: SeccompFilter,
    collector: SeccompFilter,
}

impl WarmFilters {
    pub(super) fn new() -> Self {
        Self {
            zygote: SeccompFilter::for_this_machine(FilterFor::Zygote),
            child: SeccompFilter::for_this_machine(FilterFor::Child),
            warm_init: SeccompFilter::for_this_machine(FilterFor::WarmInit),
            collector: SeccompFilter::for_this_machine(FilterFor::Collector),
        }
    }

    /// Returns the filter of the process that collects a child's artifacts.
    pub(super) fn collector(&self) -> &SeccompFilter {
        &self.collector
    }
}

/// An event of a zygote.
pub(super) enum ZygoteEvent {
    /// No event.
    Nothing,
    /// The zygote accepts fork requests from now on.
    Ready,
    /// A module cannot be preimported. The zygote goes on without it, or must be restarted without it.
    CannotImport { module: String, reason: String, needs_restart: bool },
    /// The oldest fork request succeeded.
    Forked { number: u64, main: ProcessHandle },
    /// The oldest fork request failed.
    ForkFailed(StepFailed),
    /// The zygote exited, or cannot be used any more, for this reason.
    Failed(String),
}

/// A running zygote.
pub(super) struct Zygote {
    number: u64,
    pidfd: OwnedFd,
    pid: i32,
    socket: OwnedFd,
    /// The pipe of its standard output and error.
    output: OwnedFd,
    /// The pipe through which a failed setup step is reported.
    report: OwnedFd,
    builder: Rc<JailBuilder>,
    ready: bool,
    started: Instant,
    /// Numbers of the children in outstanding fork requests, oldest first.
    outstanding_forks: VecDeque<u64>,
    /// Number of descriptors open before any module was imported.
    fds_before_imports: usize,
    last_answer: Instant,
    fork_count: u64,
    /// Unused namespace sets, kept for the next jails.
    namespace_sets: Vec<NamespaceSet>,
    page_stats: PageStats,
    /// Whether its idle children preimport modules.
    children_preimport: bool,
}

impl Zygote {
    /// Starts an interpreter and the builder of its jails.
    pub(super) fn start(
        number: u64,
        context: &mut LauncherContext,
        filters: &WarmFilters,
        root: &BuiltRoot,
        interpreter: &WarmInterpreter,
    ) -> Result<(Self, ZygoteResources), StepFailed> {
        let ids = step(Step::UserId, "", || context.ids.lease(false))?;
        Self::start_with_ids(number, context, filters, root, interpreter, ids)
            .inspect_err(|_| context.ids.release(ids))
    }

    fn start_with_ids(
        number: u64,
        context: &LauncherContext,
        filters: &WarmFilters,
        root: &BuiltRoot,
        interpreter: &WarmInterpreter,
        ids: IdLease,
    ) -> Result<(Self, ZygoteResources), StepFailed> {
        let builder = Rc::new(JailBuilder::start(context, &filters.warm_init, root, ids.uid)?);
        let group = context.create_cgroup(0)?;
        if let Some(group) = &group {
            limits::set_group_limits(group, &LIMITS)?;
        }
        let pipe = || step(Step::Namespaces, "", || rustix::pipe::pipe_with(PipeFlags::CLOEXEC));
        let ((report, report_writer), (output, stderr)) = (pipe()?, pipe()?);
        let (socket, theirs) = step(Step::Namespaces, "", sys::packet_socketpair)?;
        // Standard input at end of file, and pipes for output, as a program has them.
        let (input, _) = pipe()?;
        let stdout = step(Step::Namespaces, "", || rustix::io::dup(&stderr))?;
        let (files, command, env) = interpreter_setup(interpreter);
        let setup = ZygoteSetup {
            mounts: MountPlan {
                tree: &root.tree,
                root_path: &root.path,
                binds: &[],
                owner: (ids.uid, ids.gid),
                disk_bytes: Some(DISK_BYTES),
                disk_mount: None,
                lower_mount: None,
            },
            cgroup_join_fds: group.as_ref().map_or(&[], Group::v1_join_fds),
            report: report_writer,
            streams: [input, stdout, stderr],
            launcher_socket: theirs,
            filter: &filters.zygote,
            limits: &inside::zygote_limits(),
            has_landlock: context.has_landlock,
            hidden: &interpreter.hidden,
            files: &files,
            command: &command,
            env: &env,
        };
        let pidfd = clone_into_namespace(&builder, &setup, group.as_ref().and_then(Group::v2_dir_fd))?;
        drop(setup);
        let pid = step(Step::Namespaces, "", || context.pid_of(&pidfd))?;
        oom_score::set_oom_score(context, pid, OomScores::for_standing(Standing::WithinShare, false).main);
        let now = Instant::now();
        let zygote = Self {
            number,
            pidfd,
            pid,
            socket,
            output,
            report,
            builder: Rc::clone(&builder),
            ready: false,
            started: now,
            outstanding_forks: VecDeque::new(),
            fds_before_imports: 0,
            last_answer: now,
            fork_count: 0,
            namespace_sets: Vec::new(),
            page_stats: PageStats::default(),
            children_preimport: !interpreter.frequent_imports.is_empty(),
        };
        // If the zygote has already exited, the next poll of its connection notices.
        let _sent = wire::send_bytes(zygote.socket.as_fd(), filters.child.bytes(), &[]);
        Ok((zygote, ZygoteResources::new(number, builder, group, ids)))
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn children_preimport(&self) -> bool {
        self.children_preimport
    }

    pub(super) fn builder(&self) -> &Rc<JailBuilder> {
        &self.builder
    }

    /// Removes and returns a namespace set that an earlier jail used, if there is one.
    pub(super) fn take_namespace_set(&mut self) -> Option<NamespaceSet> {
        self.namespace_sets.pop()
    }

    /// Returns whether a namespace set was created for this zygote.
    pub(super) fn owns(&self, namespace_set: &NamespaceSet) -> bool {
        namespace_set.zygote == self.number
    }

    /// Keeps a namespace set for reuse, or returns it if it is not empty or enough are kept.
    pub(super) fn keep_namespace_set(&mut self, namespace_set: NamespaceSet) -> Result<(), NamespaceSet> {
        if self.namespace_sets.len() >= MAX_NAMESPACE_SETS || !namespace_set.is_empty() {
            return Err(namespace_set);
        }
        self.namespace_sets.push(namespace_set);
        Ok(())
    }

    /// Samples the memory of a child whose run is over, and sends the zygote the pages to prefault, once two
    /// samples agree.
    pub(super) fn sample_memory(&mut self, context: &LauncherContext, child: i32) {
        let common = self.page_stats.sample(context, self.pid, child);
        if let Some(common) = common.filter(|common| !common.is_empty()) {
            let packet: Vec<u8> = common.iter().flat_map(bytes_of).copied().collect();
            // If the zygote has already exited, the next poll of its connection notices.
            let _sent = wire::send_bytes(self.socket.as_fd(), &packet, &[]);
        }
    }

    /// Releases the namespace sets that are kept for reuse.
    pub(super) fn release_namespace_sets(&mut self, context: &LauncherContext) {
        self.namespace_sets.drain(..).for_each(|namespace_set| context.ids.release(namespace_set.ids));
    }

    /// Returns its pid on the host.
    pub(super) fn pid(&self) -> i32 {
        self.pid
    }

    pub(super) fn is_ready(&self) -> bool {
        self.ready
    }

    /// Returns whether it should be replaced, because of its age or the number of its forks.
    pub(super) fn is_old(&self) -> bool {
        self.fork_count >= MAX_FORKS || self.started.elapsed() >= MAX_AGE
    }

    /// Returns the number of outstanding fork requests.
    pub(super) fn outstanding_forks(&self) -> usize {
        self.outstanding_forks.len()
    }

    pub(super) fn watched(&self) -> [BorrowedFd<'_>; 2] {
        [self.socket.as_fd(), self.pidfd.as_fd()]
    }

    /// Returns when it must have answered.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match (self.ready, self.outstanding_forks.is_empty()) {
            (false, _) => Some(self.started + START_TIMEOUT),
            (true, false) => Some(self.last_answer + FORK_TIMEOUT),
            (true, true) => None,
        }
    }

    /// Sends a fork request.
    pub(super) fn request_fork(
        &mut self,
        child: u64,
        request: &ForkRequest,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), StepFailed> {
        step(Step::Task, "", || wire::send_bytes(self.socket.as_fd(), bytes_of(request), fds))?;
        if self.outstanding_forks.is_empty() {
            self.last_answer = Instant::now();
        }
        self.outstanding_forks.push_back(child);
        self.fork_count += 1;
        Ok(())
    }

    /// Receives one message without blocking. `proc` is the host's `/proc`.
    pub(super) fn receive(&mut self, proc: &OwnedFd) -> ZygoteEvent {
        let mut packet = [0; 2 << 10];
        let received = match wire::try_receive_bytes(self.socket.as_fd(), &mut packet) {
            Ok((0, _)) => return ZygoteEvent::Failed(self.failure_reason()),
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) if self.is_alive() => return ZygoteEvent::Nothing,
            Err(_) => return ZygoteEvent::Failed(self.failure_reason()),
        };
        let (len, fds) = received;
        if self.ready {
            return self.handle_fork_result(proc, &packet[..len], fds);
        }
        let Some((message, text)) = from_bytes::<StatusMessage>(&packet[..len]) else {
            return ZygoteEvent::Nothing;
        };
        let text = String::from_utf8_lossy(text).into_owned();
        match message.kind {
            kind::ZYGOTE_READY => {
                self.ready = true;
                ZygoteEvent::Ready
            }
            kind::IMPORTED => self.check_import(proc, text),
            _ => {
                let (module, reason) = text.split_once(": ").unwrap_or((&text, "it cannot be imported"));
                ZygoteEvent::CannotImport {
                    module: module.into(),
                    reason: reason.into(),
                    needs_restart: false,
                }
            }
        }
    }

    fn handle_fork_result(&mut self, proc: &OwnedFd, packet: &[u8], fds: Vec<OwnedFd>) -> ZygoteEvent {
        let (Some((reply, _)), Some(child)) =
            (from_bytes::<ForkReply>(packet), self.outstanding_forks.pop_front())
        else {
            return ZygoteEvent::Failed("the interpreter sent an invalid message".to_owned());
        };
        self.last_answer = Instant::now();
        let mut fds = fds.into_iter();
        if let Some(intermediate) = fds.next() {
            let _reaped = sys::kill_and_reap(intermediate.as_fd());
        }
        if reply.errno != 0 {
            for process in fds {
                let _reaped = sys::kill_and_reap(process.as_fd());
            }
            let step = SetupStep::from_number(reply.step).unwrap_or(SetupStep::Fork);
            return ZygoteEvent::ForkFailed(inside::setup_failure(step, sys::errno_from_peer(reply.errno)));
        }
        let Some(main) = fds.next() else {
            return ZygoteEvent::Failed("the interpreter sent an invalid message".to_owned());
        };
        match sys::pid_in_procfs(proc, &main) {
            Ok(pid) => ZygoteEvent::Forked { number: child, main: ProcessHandle { pid, pidfd: main } },
            Err(_) => ZygoteEvent::ForkFailed(StepFailed::new(Step::Fork, "(it was killed)", Errno::CHILD)),
        }
    }

    /// Checks the zygote after an import. A module that started threads would not survive a fork, and one
    /// that keeps descriptors open would share them with every child.
    fn check_import(&mut self, proc: &OwnedFd, module: String) -> ZygoteEvent {
        let count = |what: &str| {
            let path = format!("{}/{what}", self.pid);
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let folder = rustix::fs::openat(proc, path, flags, Mode::empty()).ok()?;
            // Without `.` and `..`.
            Some(Dir::read_from(&folder).ok()?.flatten().count().saturating_sub(2))
        };
        let (Some(threads), Some(open)) = (count("task"), count("fd")) else {
            return ZygoteEvent::Failed("the interpreter's process cannot be inspected".to_owned());
        };
        if module.is_empty() {
            self.fds_before_imports = open;
        }
        let reason = match (threads, open.saturating_sub(self.fds_before_imports)) {
            (1, 0) => {
                // If the zygote has already exited, the next poll of its connection notices.
                let _sent = wire::send_bytes(self.socket.as_fd(), b"1", &[]);
                return ZygoteEvent::Nothing;
            }
            (1, 1) => "it leaves a file descriptor open".to_owned(),
            (1, more) => format!("it leaves {more} file descriptors open"),
            (2, _) => "it starts a thread".to_owned(),
            (more, _) => format!("it starts {} threads", more - 1),
        };
        if module.is_empty() {
            return ZygoteEvent::Failed(format!("{reason} before it imports anything"));
        }
        ZygoteEvent::CannotImport { module, reason, needs_restart: true }
    }

    fn is_alive(&self) -> bool {
        !sys::is_readable(self.pidfd.as_fd())
    }

    /// Returns why it ended: a failed setup step, or the last line of its output.
    fn failure_reason(&self) -> String {
        if let Some(failed) = inside::read_reported_failure(self.report.as_fd()) {
            return failed.to_string();
        }
        let mut output = vec![0; MAX_OUTPUT_BYTES];
        let read = match sys::is_readable(self.output.as_fd()) {
            true => rustix::io::read(&self.output, &mut output).unwrap_or(0),
            false => 0,
        };
        let output = String::from_utf8_lossy(&output[..read]);
        let last_line = output.lines().rfind(|line| !line.trim().is_empty());
        last_line.unwrap_or("the interpreter exited without an error message").to_owned()
    }

    /// Kills it and returns its process, which must be reaped. Its children live on.
    pub(super) fn kill(mut self, context: &LauncherContext) -> OwnedFd {
        self.release_namespace_sets(context);
        // This fails only if the process has already exited.
        let _killed = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
        self.pidfd
    }
}

/// Clones a zygote into the pid namespace of its builder, as a child of the launcher. An intermediate process
/// enters that namespace, because the launcher could not leave it again.
fn clone_into_namespace(
    builder: &JailBuilder,
    setup: &ZygoteSetup<'_>,
    group: Option<BorrowedFd<'_>>,
) -> Result<OwnedFd, StepFailed> {
    let (ours, theirs) = step(Step::Namespaces, "", sys::packet_socketpair)?;
    let intermediate = match step(Step::Namespaces, "", || sys::clone(0, None))? {
        CloneResult::Child => {
            let flags = libc::CLONE_NEWNS | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
            let cloned = sys::setns(builder.namespace(), libc::CLONE_NEWPID)
                .and_then(|()| use_up_second_pid())
                .and_then(|()| sys::clone_sibling(flags, group));
            match cloned {
                Ok(CloneResult::Child) => inside::run_zygote(setup),
                Ok(CloneResult::Parent { pidfd: Some(pidfd), .. }) => {
                    // The launcher treats a missing answer as a failure.
                    let _sent = wire::send_bytes(theirs.as_fd(), b"1", &[pidfd.as_fd()]);
                    sys::exit_now(0)
                }
                Ok(CloneResult::Parent { .. }) => sys::exit_now(Errno::NOSYS.raw_os_error()),
                Err(errno) => sys::exit_now(errno.raw_os_error()),
            }
        }
        CloneResult::Parent { pid, .. } => pid,
    };
    drop(theirs);
    let received = wire::receive_bytes(ours.as_fd(), &mut [0]);
    let status = step(Step::Namespaces, "", || sys::wait_child(intermediate))?.status;
    match received.ok().and_then(|(_, fds)| fds.into_iter().next()) {
        Some(pidfd) => Ok(pidfd),
        None => {
            let errno = sys::errno_from_peer(libc::WEXITSTATUS(status));
            Err(StepFailed::new(Step::Namespaces, "for a zygote", errno))
        }
    }
}

/// Uses up pid 2 in the zygote's namespace, so that no zygote has it. Every child has pid 2 in its jail, and
/// libraries with a random number generator, such as OpenSSL, detect a fork by a changed pid.
fn use_up_second_pid() -> Result<(), Errno> {
    match sys::clone(0, None)? {
        CloneResult::Child => sys::exit_now(0),
        CloneResult::Parent { pidfd, .. } => sys::wait_pidfd(pidfd.ok_or(Errno::NOSYS)?.as_fd()).map(drop),
    }
}

type Files = Vec<(&'static str, &'static [u8])>;

/// The scripts that prepare a cold interpreter and call `main`. Warm interpreters run them too, so that programs
/// see no difference.
const PYTHON_RUNNER: &str = include_str!("../../../../engine/src/runners/python.py");
const PYTHON_STARTUP: &str = concat!(
    "FIGURES = r'''",
    include_str!("../../../../engine/src/runners/figures.py"),
    "'''\n",
    include_str!("../../../../engine/src/runners/startup.py")
);
const NODE_RUNNER: &str = include_str!("../../../../engine/src/runners/javascript.cjs");

/// Returns the files in an interpreter's inbox, its command line and its environment.
fn interpreter_setup(interpreter: &WarmInterpreter) -> (Files, Vec<String>, Vec<String>) {
    let script = format!("{INBOX}/zygote");
    let mut command = vec![interpreter.program.clone()];
    let mut env = interpreter.env.clone();
    let mut files = Files::new();
    let (text, object): (&str, &[u8]) = match interpreter.language {
        WarmLanguage::Python => {
            command.push(script);
            command.extend(interpreter.preimports.iter().cloned());
            command.push("--".to_owned());
            command.extend(interpreter.frequent_imports.iter().cloned());
            files.push(("runner.py", PYTHON_RUNNER.as_bytes()));
            files.push(("sitecustomize.py", PYTHON_STARTUP.as_bytes()));
            (
                include_str!("../../../../zygote/src/python/warm_up.py"),
                include_bytes!(concat!(env!("OUT_DIR"), "/python.so")),
            )
        }
        WarmLanguage::Node => {
            // One thread does all the work; threads that Node.js starts regardless stay blocked.
            command.extend(["--single-threaded", "--v8-pool-size=0"].map(str::to_owned));
            command.push(script);
            env.push(format!("LD_PRELOAD={INBOX}/zygote.so"));
            files.push(("runner.cjs", NODE_RUNNER.as_bytes()));
            (
                include_str!("../../../../zygote/src/node/warm_up.js"),
                include_bytes!(concat!(env!("OUT_DIR"), "/node.so")),
            )
        }
    };
    files.extend([("zygote", text.as_bytes()), ("zygote.so", object)]);
    (files, command, env)
}

#[cfg(test)]
#[path = "zygote_fuzz_tests.rs"]
mod fuzz_tests;
