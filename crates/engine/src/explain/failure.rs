//! Why a program failed, as far as its own words and the settings of its run tell.

use super::clue::{self, Clue, Trouble};
use super::error::last_complaint;
use super::kept::{disk_full, processes};
use super::rules::{MEMORY, NO_ACCESS, NO_NETWORK, NOT_SHARED, OPEN_FILES, READ_ONLY, SYSCALL};
use crate::Capture;
use crate::finding::{Finding, MAX_FINDINGS};
use crate::layer::Layer;
use crate::limits;
use crate::living;
use crate::outcome::{Ending, Outcome};
use crate::plan::{Image, Mount, Network, Plan, WORKSPACE};
use crate::quantity::show_bytes;

/// What everybody may write to; beside it, what is mounted for that.
const WRITABLE: &[&str] = &[WORKSPACE, "/tmp", "/home/sandbox", "/dev/shm"];
/// Where people have their files on a host, of which a sandbox shows none.
const PEOPLES: &[&str] = &["/home", "/root", "/Users", "/Volumes", "/mnt", "/media", "/srv"];
/// Where the kernel shows itself.
const KERNELS: &[&str] = &["/proc", "/sys"];
/// So many lines from the end are read.
const LINES: usize = 200;
/// No more of a path is shown.
const SHOWN: usize = 200;

/// Adds to what is known of a run what it said itself, where it failed.
pub(crate) fn explain(outcome: &mut Outcome, plan: &Plan, stderr: &Capture) {
    if matches!(outcome.ending, Ending::Exited(1..)) {
        add_own_words(&mut outcome.findings, plan, &outcome.receipt.isolation, stderr);
    }
}

/// Adds to what is known of a command in a sandbox that stays what it said itself, where it failed.
pub fn explain_command(
    findings: &mut Vec<Finding>,
    ending: Option<living::Ending>,
    (plan, isolation): (&Plan, &[Layer]),
    stderr: &Capture,
) {
    if matches!(ending, Some(living::Ending::Exited(1..))) {
        add_own_words(findings, plan, isolation, stderr);
    }
}

fn add_own_words(findings: &mut Vec<Finding>, plan: &Plan, isolation: &[Layer], stderr: &Capture) {
    let stderr = stderr.bytes();
    let stderr = String::from_utf8_lossy(&stderr);
    let refused = findings.iter().any(|finding| finding.rule == SYSCALL.id);
    let failure = Failure { plan, isolation, refused };
    let complaint = last_complaint(&stderr);
    let clue = complaint.as_deref().and_then(clue::read);
    let found = clue.and_then(|clue| failure.about(&clue)).or_else(|| failure.network(&stderr));
    // One kind is told of once: what was seen from outside says the same.
    findings.extend(found.filter(|found| findings.iter().all(|known| known.rule != found.rule)));
    findings.truncate(MAX_FINDINGS);
}

/// A program that failed, and what held for it.
struct Failure<'a> {
    plan: &'a Plan,
    isolation: &'a [Layer],
    /// Whether the filter refused it something.
    refused: bool,
}

impl Failure<'_> {
    fn about(&self, clue: &Clue<'_>) -> Option<Finding> {
        let limits = &self.plan.limits;
        match (clue.trouble, clue.path) {
            (Trouble::ReadOnly, path) => Some(self.read_only(path)),
            // The call that was refused says more.
            (Trouble::NotPermitted, _) if self.refused => None,
            (Trouble::Denied | Trouble::NotPermitted, Some(path)) => self.no_access(path),
            (Trouble::NotThere, Some(path)) => self.not_shared(path),
            (Trouble::NoSpace, _) => Some(disk_full("no space was left", limits)),
            (Trouble::TooLong, _) => Some(disk_full("a file grew too long", limits)),
            (Trouble::OpenFiles, _) => Some(open_files()),
            // Where a control group holds it, whoever takes too much is ended, and what was refused was impossible.
            (Trouble::NoMemory, _) => (!self.has(Layer::CgroupMemory)).then(|| self.memory()),
            // Where a control group counts, it has said so.
            (Trouble::NoProcess, _) => (!self.has(Layer::CgroupPids)).then(|| processes(None, limits)),
            (Trouble::Denied | Trouble::NotPermitted | Trouble::NotThere, None) => None,
        }
    }

    fn has(&self, layer: Layer) -> bool {
        self.isolation.contains(&layer)
    }

    /// The mount that a path is in.
    fn mount(&self, path: &str) -> Option<&Mount> {
        let mounts = self.plan.mounts.iter().filter(|mount| lies_in(path, &mount.destination));
        mounts.max_by_key(|mount| mount.destination.len())
    }

    fn is_writable(&self, path: &str) -> bool {
        self.mount(path)
            .map_or_else(|| WRITABLE.iter().any(|place| lies_in(path, place)), |mount| mount.writable)
    }

    fn read_only(&self, path: Option<&str>) -> Finding {
        let path = path.map(plain);
        let what = path.as_deref().map_or("a file".to_owned(), shown);
        if let Some(mount) = path.as_deref().and_then(|path| self.mount(path)).filter(|mount| !mount.writable)
        {
            let at = &mount.destination;
            let message = format!("{what} could not be written: {at} is mounted read-only");
            let suggestion = format!("mount it with --mount SRC:{at}:rw, or write below {WORKSPACE} or /tmp");
            return READ_ONLY.finding(message, suggestion, format!("mount {at}:ro"));
        }
        if path.as_deref().is_some_and(is_the_kernels) {
            return READ_ONLY.finding(kernels(&what), NO_SETTING.to_owned(), "mount_ns".to_owned());
        }
        let message = format!("{what} could not be written: the sandbox's root is read-only");
        READ_ONLY.finding(message, self.elsewhere(), "read_only_root".to_owned())
    }

    /// Where a program may write.
    fn elsewhere(&self) -> String {
        let mounted = self.plan.mounts.iter().filter(|mount| mount.writable);
        let mounted: String = mounted.map(|mount| format!(", {}", mount.destination)).collect();
        format!(
            "write below {WORKSPACE}, /tmp or home{mounted}; or have a folder mounted there: --mount SRC:DEST:rw"
        )
    }

    /// Where the program may write, what it cannot open is its own doing.
    fn no_access(&self, path: &str) -> Option<Finding> {
        let path = plain(path);
        if self.is_writable(&path) {
            return None;
        }
        let what = shown(&path);
        if is_the_kernels(&path) {
            return Some(NO_ACCESS.finding(
                kernels(&what),
                NO_SETTING.to_owned(),
                "mount_ns, landlock".to_owned(),
            ));
        }
        let message = format!(
            "{what} was out of reach: outside of {WORKSPACE}, /tmp and home the sandbox user reads what everybody may \
             read, and writes nothing"
        );
        let suggestion = format!("{}; to read a file of the host's: --file SRC:DEST", self.elsewhere());
        Some(NO_ACCESS.finding(message, suggestion, "read_only_root, landlock".to_owned()))
    }

    fn not_shared(&self, path: &str) -> Option<Finding> {
        let path = plain(path);
        let peoples = PEOPLES.iter().any(|place| lies_in(&path, place));
        if self.plan.image != Image::Host
            || !peoples
            || self.is_writable(&path)
            || self.mount(&path).is_some()
        {
            return None;
        }
        let message = format!(
            "{} is not in the sandbox: of the host's files it sees none that were not given to it",
            shown(&path)
        );
        let suggestion = "give it with --file SRC:DEST, or its folder with --mount SRC:DEST".to_owned();
        Some(NOT_SHARED.finding(message, suggestion, "mount_ns".to_owned()))
    }

    fn memory(&self) -> Finding {
        let limit = self.plan.limits.memory_bytes;
        MEMORY.finding(
            format!("memory was refused: a process may have {}", show_bytes(limit)),
            "use less, or raise limits.memory_bytes (--memory)".to_owned(),
            format!("limits.memory_bytes = {limit}"),
        )
    }

    fn network(&self, stderr: &str) -> Option<Finding> {
        if self.plan.network != Network::None {
            return None;
        }
        let lines = || stderr.lines().rev().take(LINES).filter_map(clue::unreached);
        let host = lines().find_map(|host| host);
        lines().next()?;
        let (what, setting) = match &host {
            Some(host) => (format!("'{host}'"), host.as_str()),
            None => ("a host".to_owned(), "HOST"),
        };
        Some(NO_NETWORK.finding(
            format!("{what} could not be reached: this run has no network"),
            format!("allow it with --network {setting} (network.hosts), or everything with --network full"),
            "network.mode = none".to_owned(),
        ))
    }
}

fn open_files() -> Finding {
    let most = limits::OPEN_FILES;
    OPEN_FILES.finding(
        format!("a file could not be opened: a process may have {most} open at one time"),
        "no setting raises it; close files when they are done with".to_owned(),
        format!("rlimits, {most} open files"),
    )
}

const NO_SETTING: &str = "no setting allows it";

fn is_the_kernels(path: &str) -> bool {
    KERNELS.iter().any(|place| lies_in(path, place))
}

fn kernels(what: &str) -> String {
    format!("{what} was out of reach: of the kernel a sandbox sees its own part, and changes nothing")
}

fn lies_in(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// A path without `.` and `..`. Links are not followed: nobody here looks at a disk.
fn plain(path: &str) -> String {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

/// A path of the program's, which may be anything, as part of a sentence.
fn shown(path: &str) -> String {
    // Neither what moves a terminal's cursor nor what turns the direction of text.
    let harmless = |letter: &char| letter.is_alphanumeric() || letter.is_ascii_graphic() || *letter == ' ';
    let letters = path.chars().take(SHOWN).map(|letter| Some(letter).filter(harmless).unwrap_or('\u{fffd}'));
    format!("'{}'", letters.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;

    fn plan(mounts: Vec<Mount>) -> Plan {
        Plan {
            package_layers: Vec::new(),
            held: None,
            image: Image::Host,
            playground: None,
            mounts,
            limits: Limits::DEFAULT,
            network: Network::None,
            require: Vec::new(),
            tenant: String::new(),
            env: Default::default(),
            preimports: Vec::new(),
            frequent_imports: Vec::new(),
        }
    }

    fn about(line: &str, plan: &Plan, isolation: &[Layer], refused: bool) -> Option<String> {
        let failure = Failure { plan, isolation, refused };
        failure.about(&clue::read(line)?).map(|finding| finding.rule)
    }

    #[test]
    fn mounts_decide_about_what_is_in_them() {
        let mount = |destination: &str, writable| Mount {
            source: "/".into(),
            destination: destination.to_owned(),
            writable,
        };
        let plan = plan(vec![mount("/data", false), mount("/data/out", true), mount("/home/ada", false)]);
        let rule = |line: &str| about(line, &plan, &[], false).unwrap_or_default();
        assert_eq!(rule("[Errno 13] Permission denied: '/data/a'"), "sandbox-no-access");
        assert_eq!(rule("[Errno 13] Permission denied: '/data/out/a'"), "");
        assert_eq!(rule("[Errno 13] Permission denied: '/data/outer'"), "sandbox-no-access");
        assert_eq!(rule("[Errno 13] Permission denied: '/workspace/../etc/a'"), "sandbox-no-access");
        assert_eq!(rule("[Errno 2] No such file or directory: '/home/ada/a'"), "");
        assert_eq!(rule("[Errno 2] No such file or directory: '/home/bob/a'"), "sandbox-not-shared");
        assert_eq!(rule("[Errno 2] No such file or directory: '/home/sandbox/a'"), "");
        assert_eq!(rule("[Errno 2] No such file or directory: '/homes/a'"), "");
    }

    #[test]
    fn a_control_group_knows_better() {
        let plan = plan(Vec::new());
        for (line, layer, rule) in [
            ("MemoryError", Layer::CgroupMemory, "sandbox-memory"),
            ("RuntimeError: can't start new thread", Layer::CgroupPids, "sandbox-processes"),
        ] {
            assert_eq!(about(line, &plan, &[], false).as_deref(), Some(rule));
            assert_eq!(about(line, &plan, &[layer], false), None);
        }
    }

    #[test]
    fn a_refused_call_says_more_than_its_errno() {
        let (plan, line) = (plan(Vec::new()), "[Errno 1] Operation not permitted: '/x'");
        assert_eq!(about(line, &plan, &[], false).as_deref(), Some("sandbox-no-access"));
        assert_eq!(about(line, &plan, &[], true), None);
    }
}
