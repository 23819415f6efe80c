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

use super::ear::Ear;
use super::home::Home;
use super::plot::Plot;
use super::run::Run;
use super::start::{self, Lodging, Parts, Remains};
use super::zygote::Zygote;
use crate::bare::message::{Birth, BirthStep, MAX_LIMITS, MAX_OPTIONS, Word, from_bytes, kind};
use crate::bare::rights::ResourceLimit;
use crate::cgroup::{Controller, Group};
use crate::inside;
use crate::spec::{ArtifactRules, INNER_INIT_UID, INNER_UID, Jail, Limits, Usage, Warmth};
use crate::step::{Step, StepFailed, step};
use crate::template::Root;
use crate::wire;
use crate::{fault, sys};

/// How long a process that was never heard of may take to end by itself.
const UNHEARD: Duration = Duration::from_millis(100);

/// What waits for a child to be ready.
pub(super) struct Pending {
    pub(super) run: u64,
    pub(super) jail: Box<Jail>,
    pub(super) fds: Vec<OwnedFd>,
    pub(super) started: Instant,
}

impl Pending {
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.jail.limits.timeout.and_then(|timeout| self.started.checked_add(timeout))
    }
}

/// A child that is due or waits.
pub(super) struct Child {
    pub(super) number: u64,
    pub(super) limits: Limits,
    group: Option<Group>,
    plot: Plot,
    /// PID 1 ends when this is closed.
    leash: OwnedFd,
    /// Until it runs.
    line: OwnedFd,
    born: Option<Born>,
    /// The workspace, through which the launcher looks at the disk without a path in it; there when it is ready.
    disk: Option<OwnedFd>,
    listener: Option<OwnedFd>,
    asked: Instant,
    /// From being asked for to being ready.
    pub(super) took: Duration,
    pub(super) memory_bytes: u64,
    cpu_before: Duration,
}

/// What there is as soon as a child is born.
pub(super) struct Born {
    pub(super) main: Process,
    pub(super) init: Process,
}

/// A process of a jail.
pub(super) struct Process {
    pub(super) pid: i32,
    pub(super) pidfd: OwnedFd,
}

impl Process {
    fn kill(&self) {
        // Only a process that is gone already cannot be killed, and that is what is wanted.
        let _killed = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    fn is_gone(&self) -> bool {
        start::is_readable(self.pidfd.as_fd())
    }
}

impl Child {
    /// Asks for a child.
    pub(super) fn ask_for(
        number: u64,
        home: &mut Home,
        zygote: &mut Zygote,
        root: &Root,
        limits: &Limits,
        awaited: bool,
    ) -> Result<Self, StepFailed> {
        let asked = Instant::now();
        let plot = zygote.take_plot(home, root)?;
        match Self::send_for(number, home, zygote, &plot, limits, awaited) {
            Ok((group, leash, line)) => Ok(Self {
                number,
                limits: *limits,
                group,
                plot,
                leash,
                line,
                born: None,
                disk: None,
                listener: None,
                asked,
                took: Duration::ZERO,
                memory_bytes: 0,
                cpu_before: Duration::ZERO,
            }),
            Err(failed) => {
                home.ids.give_back(plot.taken);
                Err(failed)
            }
        }
    }

    fn send_for(
        number: u64,
        home: &Home,
        zygote: &mut Zygote,
        plot: &Plot,
        limits: &Limits,
        awaited: bool,
    ) -> Result<(Option<Group>, OwnedFd, OwnedFd), StepFailed> {
        let group = home.make_group(0)?;
        if let Some(group) = &group {
            start::limit_group(group, &start::group_limits(limits, 0))?;
        }
        let (ours, theirs) = step(Step::Namespaces, "", start::line)?;
        let (leash, end) =
            step(Step::Namespaces, "", || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC))
                .map(|(end, leash)| (leash, end))?;
        let birth = birth(home, plot.taken.separate(), limits, awaited);
        let mut fds = vec![plot.user.as_fd(), plot.network.as_fd(), plot.mounts.as_fd()];
        fds.extend([end.as_fd(), theirs.as_fd()]);
        if let Some(group) = &group {
            fds.extend(group.doors().map_err(start::group_failed)?);
        }
        zygote.ask(number, &birth, &fds)?;
        Ok((group, leash, ours))
    }

    /// The zygote had it.
    pub(super) fn born(&mut self, born: Born) {
        self.born = Some(born);
    }

    /// What to watch while it is due.
    pub(super) fn watched(&self) -> BorrowedFd<'_> {
        self.line.as_fd()
    }

    /// Hears whether it is ready.
    pub(super) fn hear(&mut self, home: &Home) -> Result<(), StepFailed> {
        let mut packet = [0; 2 << 10];
        let line = &self.line;
        let (len, fds) = match wire::receive_bytes_now(line.as_fd(), &mut packet) {
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            heard => heard.map_err(|errno| StepFailed::new(Step::Order, "", errno))?,
        };
        match from_bytes::<Word>(&packet[..len]) {
            Some((word, _)) if word.kind == kind::READY => {
                let mut fds = fds.into_iter();
                self.disk = fds.next();
                self.listener = fds.next();
                self.settle(home);
                Ok(())
            }
            Some((word, detail)) => Err(failure_of(word, detail)),
            None => Err(StepFailed::new(Step::Fork, "(it was killed)", Errno::CHILD)),
        }
    }

    fn settle(&mut self, home: &Home) {
        self.took = self.asked.elapsed();
        self.memory_bytes = self.group.as_ref().and_then(Group::memory).unwrap_or(0);
        let counted = self.group.as_ref().and_then(|group| group.usage().cpu);
        let seen = || self.born.as_ref().map(|born| seen(home, born.main.pid).cpu);
        self.cpu_before = counted.or_else(seen).unwrap_or_default();
    }

    /// Whether it can be told what to run.
    pub(super) fn is_ready(&self) -> bool {
        self.disk.is_some() && self.born.is_some()
    }

    /// Whether it still waits and is well.
    pub(super) fn is_well(&self) -> bool {
        self.born.as_ref().is_some_and(|born| !born.main.is_gone() && !born.init.is_gone())
    }

    /// Its number on the host. Its PID 1 has no memory of its own.
    pub(super) fn pid(&self) -> Option<u32> {
        self.born.as_ref().map(|born| born.main.pid as u32)
    }

    /// Whether a process is its own or its PID 1.
    pub(super) fn knows(&self, pid: u32) -> bool {
        self.born.iter().flat_map(|born| [&born.main, &born.init]).any(|process| process.pid as u32 == pid)
    }

    /// Tells it what to run. On failure it is of no further use.
    pub(super) fn order(
        mut self,
        home: &Home,
        pending: &mut Pending,
        warmth: Warmth,
    ) -> Result<Run, Box<(StepFailed, Child)>> {
        if let Err(failed) = self.tell(pending) {
            return Err(Box::new((failed, self)));
        }
        let (Some(born), Some(disk)) = (self.born.take(), self.disk.take()) else {
            return Err(Box::new((StepFailed::new(Step::Order, "", Errno::BADF), self)));
        };
        let jail = &pending.jail;
        let layers = start::layers(home, jail, self.plot.taken);
        let lodging = Lodging::Plot(Box::new(self.plot));
        let remains = Remains { group: self.group, lodging };
        let parts = Parts { pid: born.init.pid, pidfd: born.init.pidfd, told: None, remains };
        let child = RunningChild {
            pid: born.main.pid,
            pidfd: born.main.pidfd,
            reaped: None,
            line: self.line,
            _leash: self.leash,
            disk,
            collector: pending.fds.drain(programs(pending)..).next(),
            rules: jail.artifacts.clone(),
            cpu_before: self.cpu_before,
        };
        let run = Run::new(parts, layers, pending.started, &jail.limits);
        Ok(run.with_child(child, warmth).with_ear(Ear::of(self.listener)))
    }

    fn tell(&mut self, pending: &Pending) -> Result<(), StepFailed> {
        start::hand_over(&pending.fds, self.plot.taken)?;
        let fds: Vec<_> = pending.fds[..programs(pending)].iter().map(AsFd::as_fd).collect();
        step(Step::Order, "", || wire::send_bytes(self.line.as_fd(), pending.jail.workdir.as_bytes(), &fds))
    }

    /// Ends it.
    pub(super) fn discard(self) -> Dying {
        if let Some(born) = &self.born {
            born.main.kill();
            born.init.kill();
        }
        let remains = Remains { group: self.group, lodging: Lodging::Plot(Box::new(self.plot)) };
        let (main, init) = self.born.map(|born| (born.main, born.init)).unzip();
        Dying { main, init, remains: Some(remains), known_at: Instant::now() }
    }
}

/// How many of the descriptors are the program's. The artifacts pipe, the last one, is the collector's.
fn programs(pending: &Pending) -> usize {
    pending.fds.len() - usize::from(pending.jail.artifacts.is_some())
}

/// A child that was killed. PID 1 is gone when the launcher has waited for everybody else in there.
pub(super) struct Dying {
    main: Option<Process>,
    init: Option<Process>,
    remains: Option<Remains>,
    known_at: Instant,
}

impl Dying {
    /// Waits for what has ended; what is left to tidy up when nothing lives any more.
    pub(super) fn bury(&mut self) -> Option<Remains> {
        for process in [&mut self.main, &mut self.init] {
            if process.as_ref().is_some_and(Process::is_gone)
                && let Some(process) = process.take()
            {
                let _reaped = sys::wait_for(process.pidfd.as_fd());
            }
        }
        let gone = self.main.is_none() && self.init.is_none();
        // One that was never heard of has lost its leash and its line, which takes it no time to notice.
        if gone && self.known_at.elapsed() >= UNHEARD { self.remains.take() } else { None }
    }

    pub(super) fn knows(&self, pid: i32) -> bool {
        [&self.main, &self.init].into_iter().flatten().any(|process| process.pid == pid)
    }

    /// Its processes are not known: the zygote ended before it could tell.
    pub(super) fn has_stray(&self) -> bool {
        self.main.is_none() || self.init.is_none()
    }
}

fn birth(home: &Home, separate: bool, wanted: &Limits, awaited: bool) -> Birth {
    use crate::bare::message::without;
    use crate::spec::Layer;
    let ours = inside::processes_of_ours(separate, home.has(Controller::Pids));
    let resources = inside::resource_limits(wanted, ours, !home.has(Controller::Memory));
    let mut limits = [ResourceLimit::default(); MAX_LIMITS];
    limits[..resources.len()].copy_from_slice(&resources);
    let options = inside::disk_options(wanted.disk_bytes);
    let mut disk = [0; MAX_OPTIONS];
    disk[..options.len()].copy_from_slice(options.as_bytes());
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
        init_uid: if separate { INNER_INIT_UID } else { INNER_UID },
        awaited: awaited.into(),
        limits_len: resources.len() as u32,
        limits,
        disk,
        without,
        fail: failing.map_or(0, |step| step as u32),
    }
}

/// A child's step in the words of all steps.
pub(super) fn step_of(step: BirthStep) -> Step {
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
        BirthStep::Hostname => Step::Hostname,
        BirthStep::Disk => Step::Disk,
        BirthStep::Proc => Step::Proc,
        BirthStep::Masks => Step::Masks,
        BirthStep::Terminals => Step::Terminals,
        BirthStep::Init => Step::Init,
        BirthStep::Fork => Step::Fork,
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
pub(super) struct RunningChild {
    pid: i32,
    pub(super) pidfd: OwnedFd,
    /// As `wait` gives it, once it was waited for.
    reaped: Option<i32>,
    line: OwnedFd,
    /// PID 1 ends when this is closed.
    _leash: OwnedFd,
    disk: OwnedFd,
    /// Where artifacts go.
    collector: Option<OwnedFd>,
    rules: Option<ArtifactRules>,
    pub(super) cpu_before: Duration,
}

impl RunningChild {
    /// Waits for it; it has ended, or everybody in its jail has.
    pub(super) fn reap(&mut self) -> i32 {
        *self.reaped.get_or_insert_with(|| sys::put_an_end_to(self.pidfd.as_fd()).unwrap_or(libc::SIGKILL))
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

    pub(super) fn take_collector_pipe(&mut self) -> Option<OwnedFd> {
        self.collector.take()
    }

    pub(super) fn artifact_rules(&self) -> Option<&ArtifactRules> {
        self.rules.as_ref()
    }

    pub(super) fn disk(&self) -> &OwnedFd {
        &self.disk
    }
}
