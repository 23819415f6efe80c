//! A zygote's child in a jail: from being asked for, over waiting for something to run, to being a run.
//!
//! ```text
//! asked for ──Born──▶ ┐
//!           ──READY─▶ ┴▶ waiting ──order──▶ a run
//! ```

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Signal;

use super::home::Home;
use super::ids::Taken;
use super::runs::Run;
use super::start::{self, Party, Waiting, Wanted};
use super::zygote::Zygote;
use crate::bare::message::{Birth, BirthStep, MAX_LIMITS, Word, from_bytes, kind};
use crate::bare::rights::ResourceLimit;
use crate::cgroup::{Controller, Group};
use crate::inside;
use crate::seccomp::Filter;
use crate::spec::{INNER_UID, Jail, Limits, Network, Usage, Warmth};
use crate::step::{Step, StepFailed, step};
use crate::template::Root;
use crate::wire;
use crate::{fault, sys};

/// What waits for a child to be ready.
pub(super) struct Pending {
    pub(super) run: u64,
    pub(super) jail: Box<Jail>,
    pub(super) fds: Vec<OwnedFd>,
    pub(super) started: Instant,
}

/// A child that is due or waits.
pub(super) struct Guest {
    pub(super) number: u64,
    pub(super) limits: Limits,
    shell: Waiting,
    /// Until it runs.
    line: Option<OwnedFd>,
    main: Option<Main>,
    ready: bool,
    listener: Option<OwnedFd>,
    disk: Option<OwnedFd>,
    asked: Instant,
    /// From being asked for to being ready.
    pub(super) took: Duration,
    pub(super) memory_bytes: u64,
    cpu_before: Duration,
}

/// The child's process.
struct Main {
    pid: i32,
    pidfd: OwnedFd,
}

/// What a jail holds itself to; all guests of one shelf have the same.
pub(super) struct House<'a> {
    pub(super) root: &'a Root,
    pub(super) limits: &'a Limits,
}

impl Guest {
    /// Makes a shell and asks for a child in it.
    pub(super) fn ask_for(
        number: u64,
        home: &mut Home,
        filter: &Filter,
        zygote: &mut Zygote,
        house: &House<'_>,
        awaited: bool,
    ) -> Result<Self, StepFailed> {
        let asked = Instant::now();
        let party = Party::Guest { owner: zygote.owner(), disk_bytes: house.limits.disk_bytes };
        let binds = Vec::new();
        let wanted = Wanted { root: house.root, network: Network::Own, binds, party };
        let mut shell = start::prepare(home, filter, &wanted)?;
        match Self::send_for(number, home, zygote, &mut shell, house.limits, awaited) {
            Ok(line) => Ok(Self {
                number,
                limits: *house.limits,
                shell,
                line: Some(line),
                main: None,
                ready: false,
                listener: None,
                disk: None,
                asked,
                took: Duration::ZERO,
                memory_bytes: 0,
                cpu_before: Duration::ZERO,
            }),
            Err(failed) => {
                let (group, taken) = shell.discard();
                home.ids.give_back(taken);
                drop(group);
                Err(failed)
            }
        }
    }

    fn send_for(
        number: u64,
        home: &Home,
        zygote: &mut Zygote,
        shell: &mut Waiting,
        limits: &Limits,
        awaited: bool,
    ) -> Result<OwnedFd, StepFailed> {
        shell.limit(start::group_limits(limits, 1))?;
        let (ours, theirs) = step(Step::Namespaces, "", start::line)?;
        let door = shell.take_door().ok_or_else(|| StepFailed::new(Step::Namespaces, "", Errno::BADF))?;
        let doors = match shell.group() {
            Some(group) => group.doors().map_err(start::group_failed)?,
            None => Vec::new(),
        };
        let ours_processes = inside::processes_of_ours(shell.taken().separate(), home.has(Controller::Pids));
        let resources = inside::resource_limits(limits, ours_processes, !home.has(Controller::Memory));
        let birth = birth(&resources, awaited);
        let mut fds: Vec<BorrowedFd<'_>> = door.namespaces.iter().map(AsFd::as_fd).collect();
        fds.extend([door.place.as_fd(), theirs.as_fd()]);
        fds.extend(doors.iter().map(AsFd::as_fd));
        zygote.ask(number, &birth, &fds)?;
        Ok(ours)
    }

    /// The zygote had it.
    pub(super) fn born(&mut self, pid: i32, pidfd: OwnedFd) {
        self.main = Some(Main { pid, pidfd });
    }

    /// What to watch while it is due: its line, and what PID 1 may have to say.
    pub(super) fn watched(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.line.iter().map(AsFd::as_fd).chain([self.shell.told()])
    }

    /// Hears whether it is ready.
    pub(super) fn hear(&mut self, home: &Home) -> Result<(), StepFailed> {
        if start::is_readable(self.shell.told()) {
            let failed = inside::read_failure(self.shell.told());
            return Err(
                failed.unwrap_or_else(|| StepFailed::new(Step::Init, "(it was killed)", Errno::CHILD))
            );
        }
        let mut packet = [0; 2 << 10];
        let Some(line) = &self.line else { return Ok(()) };
        let (len, fds) = match wire::receive_bytes_now(line.as_fd(), &mut packet) {
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            heard => heard.map_err(|errno| StepFailed::new(Step::Order, "", errno))?,
        };
        match from_bytes::<Word>(&packet[..len]) {
            Some((word, _)) if word.kind == kind::READY => self.settle(home, fds.into_iter().next()),
            Some((word, detail)) => Err(failure_of(word, detail)),
            None => Err(StepFailed::new(Step::Fork, "(it was killed)", Errno::CHILD)),
        }
    }

    fn settle(&mut self, home: &Home, listener: Option<OwnedFd>) -> Result<(), StepFailed> {
        self.ready = true;
        self.listener = listener;
        self.disk = Some(step(Step::Disk, "", || {
            let (_, disk) = wire::receive_bytes_now(self.shell.orders(), &mut [0; 8])?;
            disk.into_iter().next().ok_or(Errno::BADF)
        })?);
        self.took = self.asked.elapsed();
        let group = self.shell.group();
        self.memory_bytes = group.and_then(Group::memory).unwrap_or(0);
        let counted = group.and_then(|group| group.usage().cpu);
        let seen = || self.main.as_ref().map(|main| seen(home, main.pid).cpu);
        self.cpu_before = counted.or_else(seen).unwrap_or_default();
        Ok(())
    }

    /// Whether it can be told what to run.
    pub(super) fn is_ready(&self) -> bool {
        self.ready && self.main.is_some()
    }

    /// Whether it still waits and is well.
    pub(super) fn is_well(&self) -> bool {
        let gone = self.main.as_ref().is_none_or(|main| start::is_readable(main.pidfd.as_fd()));
        !gone && self.shell.is_well()
    }

    /// Host numbers of its process and of its PID 1.
    pub(super) fn processes(&self) -> Vec<u32> {
        let main = self.main.as_ref().map(|main| main.pid as u32);
        main.into_iter().chain([self.shell.pid() as u32]).collect()
    }

    /// Tells it what to run. On failure it is of no further use.
    pub(super) fn order(
        mut self,
        home: &Home,
        pending: &mut Pending,
        warmth: Warmth,
    ) -> Result<Run, Box<(StepFailed, Guest)>> {
        match self.tell(pending) {
            Ok(party) => {
                let jail = &pending.jail;
                let layers = start::layers(home, jail, self.shell.taken());
                Ok(Run::of_guest(self.shell, party, layers, pending.started, jail.limits.timeout, warmth))
            }
            Err(failed) => Err(Box::new((failed, self))),
        }
    }

    fn tell(&mut self, pending: &mut Pending) -> Result<RunningGuest, StepFailed> {
        let lost = || StepFailed::new(Step::Order, "", Errno::BADF);
        self.shell.hand_over(&pending.fds)?;
        // The artifacts pipe, the last one, is PID 1's; all others are the program's.
        let programs = pending.fds.len() - usize::from(pending.jail.artifacts.is_some());
        let fds: Vec<_> = pending.fds[..programs].iter().map(AsFd::as_fd).collect();
        step(Step::Order, "", || {
            let line = self.line.as_ref().ok_or(Errno::BADF)?;
            wire::send_bytes(line.as_fd(), pending.jail.workdir.as_bytes(), &fds)
        })?;
        let (main, disk) = (self.main.take().ok_or_else(lost)?, self.disk.take().ok_or_else(lost)?);
        Ok(RunningGuest {
            pid: main.pid,
            pidfd: main.pidfd,
            reaped: None,
            listener: self.listener.take(),
            line: self.line.take().ok_or_else(lost)?,
            disk,
            collector: pending.fds.drain(programs..).next(),
            jail: pending.jail.clone(),
            cpu_before: self.cpu_before,
        })
    }

    /// Ends it.
    pub(super) fn discard(self) -> Dying {
        let pid = self.shell.pid();
        let parts = self.shell.into_parts();
        let main = self.main.map(|main| main.pidfd);
        for process in main.iter().chain([&parts.pidfd]) {
            // Only a process that is gone already cannot be killed, and that is what is wanted.
            let _killed = rustix::process::pidfd_send_signal(process, Signal::KILL);
        }
        Dying { main, pid, init: parts.pidfd, group: parts.group, taken: parts.taken }
    }
}

/// A guest that was killed. PID 1 is gone when the launcher has waited for everybody else in there.
pub(super) struct Dying {
    main: Option<OwnedFd>,
    pub(super) pid: i32,
    init: OwnedFd,
    group: Option<Group>,
    taken: Taken,
}

impl Dying {
    /// Waits for what has ended; what is left to tidy up when nothing lives any more.
    pub(super) fn bury(&mut self) -> Option<(Option<Group>, Taken)> {
        let ended = |process: &OwnedFd| {
            start::is_readable(process.as_fd()) && sys::wait_for(process.as_fd()).map_or(true, |_| true)
        };
        if self.main.as_ref().is_some_and(ended) {
            self.main = None;
        }
        ended(&self.init).then(|| (self.group.take(), self.taken))
    }

    /// The process of the program is not known: the zygote ended before it could tell.
    pub(super) fn has_stray(&self) -> bool {
        self.main.is_none()
    }
}

fn birth(resources: &[ResourceLimit], awaited: bool) -> Birth {
    use crate::bare::message::without;
    use crate::spec::Layer;
    let mut limits = [ResourceLimit::default(); MAX_LIMITS];
    limits[..resources.len()].copy_from_slice(resources);
    let layers = [
        (Layer::Rlimits, without::RLIMITS),
        (Layer::NoCapabilities, without::CAPABILITIES),
        (Layer::NoNewPrivs, without::NO_NEW_PRIVS),
        (Layer::Landlock, without::LANDLOCK),
        (Layer::Seccomp, without::SECCOMP),
        (Layer::CgroupNs, without::CGROUP_NAMESPACE),
    ];
    let without =
        layers.iter().filter(|(layer, _)| fault::without(*layer)).fold(0, |all, (_, bit)| all | bit);
    let failing = (1..).map_while(BirthStep::of).find(|step| fault::inject(step_of(*step)).is_err());
    Birth {
        uid: INNER_UID,
        awaited: awaited.into(),
        limits_len: resources.len() as u32,
        limits,
        without,
        fail: failing.map_or(0, |step| step as u32),
        unused: 0,
    }
}

/// A child's step in the words of all steps.
fn step_of(step: BirthStep) -> Step {
    match step {
        BirthStep::Namespaces => Step::Namespaces,
        BirthStep::JoinCgroup => Step::JoinCgroup,
        BirthStep::CgroupNamespace => Step::CgroupNamespace,
        BirthStep::Rlimits => Step::Rlimits,
        BirthStep::Ids => Step::Ids,
        BirthStep::Capabilities => Step::Capabilities,
        BirthStep::NoNewPrivs => Step::NoNewPrivs,
        BirthStep::Landlock => Step::Landlock,
        BirthStep::Seccomp => Step::Seccomp,
        BirthStep::Order => Step::Order,
        BirthStep::Files => Step::Files,
        BirthStep::Workdir => Step::Workdir,
        BirthStep::Stdio => Step::Stdio,
    }
}

fn failure_of(word: Word, detail: &[u8]) -> StepFailed {
    let step = BirthStep::of(word.step).map_or(Step::Fork, step_of);
    StepFailed::new(step, String::from_utf8_lossy(detail), Errno::from_raw_os_error(word.errno))
}

/// What a process has used so far, and the children that it waited for, where no control group counts.
fn seen(home: &Home, pid: i32) -> Usage {
    let read = |file: &str| -> Option<String> {
        let path = format!("{pid}/{file}");
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&home.proc, path, flags, Mode::empty()).ok()?;
        let mut text = [0; 2 << 10];
        let len = rustix::io::read(&file, &mut text).ok()?;
        String::from_utf8(text[..len].to_vec()).ok()
    };
    let first = |text: String| text.split_whitespace().next()?.parse().ok();
    let own = read("schedstat").and_then(first).map_or(Duration::ZERO, Duration::from_nanos);
    // The kernel counts these in hundredths of a second; behind the name, which may hold anything, they are 14 and 15.
    let ticks = read("stat").and_then(|text| {
        let (_, fields) = text.rsplit_once(')')?;
        let of_children = fields.split_whitespace().skip(13).take(2);
        Some(of_children.filter_map(|ticks| ticks.parse::<u64>().ok()).sum::<u64>())
    });
    let peak = read("status").and_then(|text| {
        let kilobytes = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        kilobytes.split_whitespace().next()?.parse::<u64>().ok()
    });
    Usage {
        cpu: own + Duration::from_millis(10 * ticks.unwrap_or(0)),
        peak_memory_bytes: peak.unwrap_or(0) << 10,
        peak_processes: None,
    }
}

/// A child that was told what to run.
pub(super) struct RunningGuest {
    pid: i32,
    pub(super) pidfd: OwnedFd,
    /// As `wait` gives it, once it was waited for.
    reaped: Option<i32>,
    pub(super) listener: Option<OwnedFd>,
    line: OwnedFd,
    disk: OwnedFd,
    collector: Option<OwnedFd>,
    jail: Box<Jail>,
    pub(super) cpu_before: Duration,
}

impl RunningGuest {
    /// Hears the filter: whether the program is about to end, and with which status, as `wait` would give it.
    pub(super) fn leaving(&mut self) -> Option<i32> {
        let listener = self.listener.as_ref()?;
        match sys::hear_call(listener.as_fd()) {
            Ok(call) if call.pid == self.pid => Some((call.first_argument as i32 & 0xff) << 8),
            Ok(call) => {
                // One of its children, which ends as it likes.
                sys::let_pass(listener.as_fd(), call.id);
                None
            }
            // Whoever made the call is gone.
            Err(Errno::NOENT | Errno::INTR) => None,
            Err(_) => {
                self.listener = None;
                None
            }
        }
    }

    /// Waits for it; it has ended.
    pub(super) fn reap(&mut self) -> i32 {
        *self.reaped.get_or_insert_with(|| sys::wait_for(self.pidfd.as_fd()).unwrap_or(libc::SIGKILL))
    }

    pub(super) fn pid(&self) -> i32 {
        self.pid
    }

    /// What it has used so far, as far as `/proc` tells; before it was waited for.
    pub(super) fn usage(&self, home: &Home) -> Usage {
        seen(home, self.pid)
    }

    pub(super) fn is_reaped(&self) -> bool {
        self.reaped.is_some()
    }

    pub(super) fn kill(&self) {
        let _killed = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    /// A step that failed after the order.
    pub(super) fn failure(&self) -> Option<StepFailed> {
        let mut packet = [0; 2 << 10];
        let (len, _) = wire::receive_bytes_now(self.line.as_fd(), &mut packet).ok()?;
        from_bytes::<Word>(&packet[..len]).map(|(word, detail)| failure_of(word, detail))
    }

    /// No block or no inode is left.
    pub(super) fn disk_is_full(&self) -> bool {
        rustix::fs::fstatfs(&self.disk).is_ok_and(|disk| disk.f_bfree == 0 || disk.f_ffree == 0)
    }

    /// Whether the program left something to collect: one name, looked up without following anything.
    pub(super) fn left_artifacts(&self) -> bool {
        self.collector.is_some()
            && rustix::fs::statat(&self.disk, "artifacts", AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Has PID 1 collect what the program left.
    pub(super) fn collect(&mut self, orders: BorrowedFd<'_>) -> Result<(), Errno> {
        let collector = self.collector.take().ok_or(Errno::BADF)?;
        wire::send(orders, &*self.jail, &[collector.as_fd()])
    }
}
