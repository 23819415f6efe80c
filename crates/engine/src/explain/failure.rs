//! Explains why a program failed, from its standard error and the settings of its execution.

use super::clue::{self, ErrorClue, KernelError};
use super::denials::{disk_full_finding, processes_finding};
use super::error::last_error_line;
use super::rules::{
    DIRECT_CONNECTION, MEMORY, NO_ACCESS, NO_MODULE, NO_NETWORK, NOT_SHARED, OPEN_FILES, READ_ONLY, SYSCALL,
};
use crate::Capture;
use crate::finding::{Finding, MAX_FINDINGS};
use crate::layer::Layer;
use crate::limits;
use crate::outcome::{Ending, Outcome};
use crate::plan::{Image, Mount, Network, Plan, WORKSPACE};
use crate::quantity::show_bytes;
use crate::sandbox_handle;

/// Directories that every program may write to, besides writable mounts.
const WRITABLE_FOLDERS: &[&str] = &[WORKSPACE, "/tmp", "/home/sandbox", "/dev/shm"];
/// Directories where users keep files on a host; none of them is visible in a sandbox.
const USER_FOLDERS: &[&str] = &["/home", "/root", "/Users", "/Volumes", "/mnt", "/media", "/srv"];
/// Directories of kernel file systems.
const KERNEL_FOLDERS: &[&str] = &["/proc", "/sys"];
/// Number of lines read, from the end.
const MAX_STDERR_LINES: usize = 200;
/// Number of characters of a path that are shown.
const MAX_PATH_CHARS: usize = 200;

/// Adds findings from the standard error of a failed execution.
pub(crate) fn explain_failure(outcome: &mut Outcome, plan: &Plan, stderr: &Capture) {
    if matches!(outcome.ending, Ending::Exited(1..)) {
        add_stderr_findings(&mut outcome.findings, plan, &outcome.receipt.isolation, stderr);
    }
}

/// Adds findings from the standard error of a failed command in a long-lived sandbox.
pub fn explain_command(
    findings: &mut Vec<Finding>,
    ending: Option<sandbox_handle::CommandEnding>,
    (plan, isolation): (&Plan, &[Layer]),
    stderr: &Capture,
) {
    if matches!(ending, Some(sandbox_handle::CommandEnding::Exited(1..))) {
        add_stderr_findings(findings, plan, isolation, stderr);
    }
}

fn add_stderr_findings(findings: &mut Vec<Finding>, plan: &Plan, isolation: &[Layer], stderr: &Capture) {
    let stderr = stderr.bytes();
    let stderr = String::from_utf8_lossy(&stderr);
    let refused = findings.iter().any(|finding| finding.rule == SYSCALL.id);
    let failure = FailedExecution { plan, isolation, call_refused: refused };
    let complaint = last_error_line(&stderr);
    let clue = complaint.as_deref().and_then(clue::parse);
    let module = || complaint.as_deref().and_then(clue::missing_module).map(no_module);
    let found =
        clue.and_then(|clue| failure.finding_for(&clue)).or_else(module).or_else(|| failure.network(&stderr));
    // Each rule is reported once: a finding observed from outside says the same.
    findings.extend(found.filter(|found| findings.iter().all(|known| known.rule != found.rule)));
    findings.truncate(MAX_FINDINGS);
}

/// A failed program, with the plan and isolation of its execution.
struct FailedExecution<'a> {
    plan: &'a Plan,
    isolation: &'a [Layer],
    /// Whether the seccomp filter refused a call.
    call_refused: bool,
}

impl FailedExecution<'_> {
    fn finding_for(&self, clue: &ErrorClue<'_>) -> Option<Finding> {
        let limits = &self.plan.limits;
        match (clue.error, clue.path) {
            (KernelError::ReadOnly, path) => Some(self.read_only(path)),
            // The finding about the refused call says more.
            (KernelError::NotPermitted, _) if self.call_refused => None,
            (KernelError::Denied | KernelError::NotPermitted, Some(path)) => self.no_access(path),
            (KernelError::NotFound, Some(path)) => self.not_shared(path),
            (KernelError::NoSpace, _) => Some(disk_full_finding("no space left on the disk", limits)),
            (KernelError::FileTooLarge, _) => Some(disk_full_finding("a file grew too large", limits)),
            (KernelError::TooManyOpenFiles, _) => Some(open_files()),
            // With a memory cgroup, exceeding the limit kills the process; a refused allocation was
            // impossible anyway.
            (KernelError::NoMemory, _) => (!self.has(Layer::CgroupMemory)).then(|| self.memory()),
            // With a pids cgroup, refused forks are already reported.
            (KernelError::NoProcesses, _) => {
                (!self.has(Layer::CgroupPids)).then(|| processes_finding(None, limits))
            }
            (KernelError::Denied | KernelError::NotPermitted | KernelError::NotFound, None) => None,
        }
    }

    fn has(&self, layer: Layer) -> bool {
        self.isolation.contains(&layer)
    }

    /// Returns the innermost mount that contains a path.
    fn mount(&self, path: &str) -> Option<&Mount> {
        let mounts = self.plan.mounts.iter().filter(|mount| is_inside(path, &mount.destination));
        mounts.max_by_key(|mount| mount.destination.len())
    }

    fn is_writable(&self, path: &str) -> bool {
        self.mount(path).map_or_else(
            || WRITABLE_FOLDERS.iter().any(|place| is_inside(path, place)),
            |mount| mount.writable,
        )
    }

    fn read_only(&self, path: Option<&str>) -> Finding {
        let path = path.map(normalize_path);
        let what = path.as_deref().map_or("a file".to_owned(), quote_path);
        if let Some(mount) = path.as_deref().and_then(|path| self.mount(path)).filter(|mount| !mount.writable)
        {
            let at = &mount.destination;
            let message = format!("{what} could not be written: {at} is mounted read-only");
            let suggestion = format!("mount it with --mount SRC:{at}:rw, or write below {WORKSPACE} or /tmp");
            return READ_ONLY.finding(message, suggestion, format!("mount {at}:ro"));
        }
        if path.as_deref().is_some_and(is_kernel_path) {
            return READ_ONLY.finding(
                kernel_path_message(&what),
                NO_SETTING.to_owned(),
                "mount_ns".to_owned(),
            );
        }
        let message = format!("{what} could not be written: the sandbox's root is read-only");
        READ_ONLY.finding(message, self.writable_hint(), "read_only_root".to_owned())
    }

    /// Suggests where the program may write instead.
    fn writable_hint(&self) -> String {
        let mounted = self.plan.mounts.iter().filter(|mount| mount.writable);
        let mounted: String = mounted.map(|mount| format!(", {}", mount.destination)).collect();
        format!(
            "write below {WORKSPACE}, /tmp or home{mounted}; or mount a folder there: --mount SRC:DEST:rw"
        )
    }

    /// Explains a denied access, unless the path is writable: then the program itself is the cause.
    fn no_access(&self, path: &str) -> Option<Finding> {
        let path = normalize_path(path);
        if self.is_writable(&path) {
            return None;
        }
        let what = quote_path(&path);
        if is_kernel_path(&path) {
            return Some(NO_ACCESS.finding(
                kernel_path_message(&what),
                NO_SETTING.to_owned(),
                "mount_ns, landlock".to_owned(),
            ));
        }
        let message = format!(
            "{what} is not accessible: outside {WORKSPACE}, /tmp and home the sandbox user can only read \
                 world-readable files and cannot write"
        );
        let suggestion = format!("{}; to read a host file: --file SRC:DEST", self.writable_hint());
        Some(NO_ACCESS.finding(message, suggestion, "read_only_root, landlock".to_owned()))
    }

    fn not_shared(&self, path: &str) -> Option<Finding> {
        let path = normalize_path(path);
        let peoples = USER_FOLDERS.iter().any(|place| is_inside(&path, place));
        if self.plan.image != Image::Host
            || !peoples
            || self.is_writable(&path)
            || self.mount(&path).is_some()
        {
            return None;
        }
        let message = format!(
            "{} is not in the sandbox: it sees only the host files that were given to it",
            quote_path(&path)
        );
        let suggestion =
            "pass the file with --file SRC:DEST, or mount its folder with --mount SRC:DEST".to_owned();
        Some(NOT_SHARED.finding(message, suggestion, "mount_ns".to_owned()))
    }

    fn memory(&self) -> Finding {
        let limit = self.plan.limits.memory_bytes;
        MEMORY.finding(
            format!("a memory allocation was refused: the limit of a process is {}", show_bytes(limit)),
            "use less, or raise limits.memory_bytes (--memory)".to_owned(),
            format!("limits.memory_bytes = {limit}"),
        )
    }

    fn network(&self, stderr: &str) -> Option<Finding> {
        match &self.plan.network {
            Network::None => no_network(stderr),
            Network::Hosts(_) | Network::Internet(_) => self.direct_connection(stderr),
            Network::Full => None,
        }
    }

    /// Explains a connection that a program opened itself: only the gate, a proxy, leads out.
    fn direct_connection(&self, stderr: &str) -> Option<Finding> {
        let host = find_host(stderr, clue::host_without_route)?;
        let to = host.map(|host| format!(" to '{host}'")).unwrap_or_default();
        let mode = self.plan.network.mode();
        Some(DIRECT_CONNECTION.finding(
            format!(
                "this program opened a connection{to} directly; with network '{mode}' only the proxy in HTTP_PROXY, \
                 HTTPS_PROXY and ALL_PROXY leads out"
            ),
            "use a client or an option that reads these variables; for other protocols than HTTP, the same proxy \
             speaks SOCKS5"
                .to_owned(),
            format!("network.mode = {mode}"),
        ))
    }
}

fn no_network(stderr: &str) -> Option<Finding> {
    let host = find_host(stderr, clue::unreachable_host)?;
    let (what, setting) = match &host {
        Some(host) => (format!("'{host}'"), host.as_str()),
        None => ("a host".to_owned(), "HOST"),
    };
    Some(NO_NETWORK.finding(
        format!("{what} could not be reached: this execution has no network"),
        format!(
            "allow it with --network {setting} (network.hosts), or everything public with --network internet"
        ),
        "network.mode = none".to_owned(),
    ))
}

/// Returns `Some` if one of the last lines is about a host, with the last host that is named.
fn find_host(stderr: &str, parse: fn(&str) -> Option<Option<String>>) -> Option<Option<String>> {
    let lines = || stderr.lines().rev().take(MAX_STDERR_LINES).filter_map(parse);
    let named = lines().find_map(|host| host);
    lines().next().map(|_| named)
}

fn open_files() -> Finding {
    let most = limits::MAX_OPEN_FILES;
    OPEN_FILES.finding(
        format!("a file could not be opened: a process may have {most} files open"),
        "no setting raises the limit; close files after use".to_owned(),
        format!("rlimits, {most} open files"),
    )
}

fn no_module(name: &str) -> Finding {
    NO_MODULE.finding(
        format!("{} is not installed in this sandbox", quote_path(name)),
        "name its package: --dep NAME (dependencies.packages), also when you create a sandbox; imports of code \
         are installed, imports of files that a command runs are not"
            .to_owned(),
        "dependencies.packages".to_owned(),
    )
}

const NO_SETTING: &str = "no setting allows it";

fn is_kernel_path(path: &str) -> bool {
    KERNEL_FOLDERS.iter().any(|place| is_inside(path, place))
}

fn kernel_path_message(what: &str) -> String {
    format!(
        "{what} is not accessible: a sandbox sees only its own part of the kernel's files and cannot change them"
    )
}

fn is_inside(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Removes `.` and `..` from a path, without following links: this crate does not touch the disk.
fn normalize_path(path: &str) -> String {
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

/// Quotes a path for a message. The path is untrusted: only harmless characters are kept.
fn quote_path(path: &str) -> String {
    // Excludes terminal control characters and bidirectional overrides.
    let harmless = |letter: &char| letter.is_alphanumeric() || letter.is_ascii_graphic() || *letter == ' ';
    let letters =
        path.chars().take(MAX_PATH_CHARS).map(|letter| Some(letter).filter(harmless).unwrap_or('\u{fffd}'));
    format!("'{}'", letters.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;

    fn plan(mounts: Vec<Mount>) -> Plan {
        Plan {
            package_layers: Vec::new(),
            package_lease: None,
            image: Image::Host,
            host_workspace: None,
            mounts,
            limits: Limits::DEFAULT,
            root: crate::plan::RootAccess::ReadOnly,
            disk_storage: crate::plan::DiskStorage::Memory,
            artifacts: crate::artifact::ArtifactLimits::DEFAULT,
            result_bytes: crate::outcome::DEFAULT_RESULT_BYTES,
            network: Network::None,
            gpus: None,
            require: Vec::new(),
            tenant: String::new(),
            env: Default::default(),
            preimports: Vec::new(),
            frequent_imports: Vec::new(),
        }
    }

    fn about(line: &str, plan: &Plan, isolation: &[Layer], refused: bool) -> Option<String> {
        let failure = FailedExecution { plan, isolation, call_refused: refused };
        failure.finding_for(&clue::parse(line)?).map(|finding| finding.rule)
    }

    #[test]
    fn mounts_decide_about_paths_inside_them() {
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
    fn cgroup_denials_replace_stderr_clues() {
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
    fn missing_modules_have_a_hint() {
        let module = |line| clue::missing_module(line).map(no_module).map(|finding| finding.message);
        let hint = |name: &str| Some(format!("'{name}' is not installed in this sandbox"));
        assert_eq!(module("ModuleNotFoundError: No module named 'six'"), hint("six"));
        assert_eq!(module("Error: Cannot find module '@a/b'"), hint("@a/b"));
        let esm =
            "Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'is-odd' imported from /workspace/main.mjs";
        assert_eq!(module(esm), hint("is-odd"));
        for other in
            ["Error: Cannot find module './a'", "Error: Cannot find module '/a/b'", "Cannot find module '"]
        {
            assert_eq!(module(other), None, "{other}");
        }
    }

    #[test]
    fn a_refused_call_replaces_its_errno_finding() {
        let (plan, line) = (plan(Vec::new()), "[Errno 1] Operation not permitted: '/x'");
        assert_eq!(about(line, &plan, &[], false).as_deref(), Some("sandbox-no-access"));
        assert_eq!(about(line, &plan, &[], true), None);
    }
}
