//! The escape programs in Docker, with runc and with gVisor. Checks that cannot hold there are listed, and
//! nothing else may differ; SECURITY.md explains why none of them is an escape.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use libtest_mimic::Trial;

use super::programs::{Verdict, held, name_of, only_known};
use crate::common::{Answer, belljar, finish};
use crate::dockerd::{Dockerd, IMAGE};

/// Docker's runtime names and the names used here.
const RUNTIMES: [(&str, &str); 2] = [("runc", "docker"), ("runsc", "gvisor")];

/// Checks that fail in both runtimes.
const OTHERWISE: &[(&str, &[&str])] = &[
    ("disk_sparse", &["all places are one disk"]),
    ("kernel_settings", &["/sys is empty"]),
    ("more_rights", &["programs have the same user"]),
    ("other_processes", &["/proc/1/cmdline", "/proc/1/status", "end PID 1"]),
    (
        "own_world",
        &[
            "the user is its own",
            "there are no further groups",
            "no user is the host's root",
            "the maps are one user each",
            "they are pipes",
        ],
    ),
    (
        "write_outside",
        &[
            "/ is read-only and without set-id",
            "/usr is read-only and without set-id",
            "/etc is read-only and without set-id",
        ],
    ),
];
/// Checks that fail only in gVisor: it emulates what they look at, and none of it belongs to the host.
const IN_GVISOR: &[(&str, &[&str])] = &[
    ("devices", &["/dev holds only these"]),
    ("disk_names", &["names end"]),
    ("kernel_settings", &["/proc/cmdline shows nothing"]),
    ("more_rights", &["be more urgent"]),
    (
        "write_outside",
        &[
            "raise the own score",
            "/workspace is without set-id and devices",
            "/tmp is without set-id and devices",
            "/home/sandbox is without set-id and devices",
            "/dev/shm is without set-id and devices",
            "so is every mount that can be written",
        ],
    ),
];
/// Programs that do not apply to Docker: the host's files are not mounted; there is no single disk for all
/// writable paths; killing one process does not end all; runc kills a process that uses x32 numbers instead
/// of returning an errno; and the image has no Node.js.
const NOT_TRIED: &[&str] =
    &["host_files", "disk_bytes", "memory_across_processes", "x32_numbers", "javascript"];
/// Programs that do not apply to gVisor: they need what its `/proc` does not show, exceed their time limit on
/// its `ptrace` platform, or use the 32-bit entry or socket options, which gVisor's own kernel handles like
/// everything else.
const NOT_TRIED_IN_GVISOR: &[&str] =
    &["own_world", "other_processes", "refused_calls", "old_entry", "socket_options"];

/// A Docker daemon and the configuration of each of its runtimes.
pub(crate) struct Daemon {
    docker: Dockerd,
    folder: tempfile::TempDir,
}

impl Daemon {
    /// Returns `None` in the first tier, and without Docker.
    pub(crate) fn start() -> Option<Self> {
        if std::env::var_os("BELLJAR_TEST_ALL").is_none_or(|value| value != "1") {
            println!("skipped: programs in Docker: only with ./test --all");
            return None;
        }
        let started = Dockerd::start().map_err(|why| println!("skipped: programs in Docker: {why}"));
        let (docker, folder) = (started.ok()?, tempfile::tempdir().expect("a folder"));
        for (runtime, _) in RUNTIMES {
            let host = docker.host();
            let text =
                format!("[providers.docker]\nhost = {host:?}\nimage = {IMAGE:?}\nruntime = {runtime:?}\n");
            std::fs::write(folder.path().join(runtime), text).expect("a file");
        }
        Some(Self { docker, folder })
    }

    /// Returns a trial for every program in every runtime.
    pub(crate) fn trials(&self, programs: &[PathBuf]) -> Vec<Trial> {
        let mut trials = Vec::new();
        for (runtime, shown) in RUNTIMES {
            let gvisor = runtime == "runsc";
            let left_out =
                |name: &str| NOT_TRIED.contains(&name) || gvisor && NOT_TRIED_IN_GVISOR.contains(&name);
            for program in programs.iter().filter(|program| !left_out(&name_of(program))) {
                let program = program.clone();
                let config = self.folder.path().join(runtime);
                trials.push(Trial::test(format!("{shown}::{}", name_of(&program)), move || {
                    let verdict = held(&program, |arguments| run(&config, arguments));
                    as_listed(&name_of(&program), gvisor, verdict).map_err(Into::into)
                }));
            }
        }
        let (host, config) = (self.docker.host(), self.folder.path().join("runsc"));
        trials.push(Trial::test("gvisor::judged_from_outside", move || {
            from_outside(&host, &config).map_err(Into::into)
        }));
        trials
    }
}

/// Checks that a program's changes to its priority, OOM score and devices inside gVisor are invisible to the
/// host.
fn from_outside(host: &str, config: &Path) -> Verdict {
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/escape/in_gvisor/emulated.py");
    let arguments = ["run", "--no-deps", "--quiet", "--provider", "docker", program];
    let mut command = belljar();
    let command = command.env("BELLJAR_CONFIG", config).args(arguments).stdout(Stdio::piped());
    let mut running = command.spawn().map_err(|error| error.to_string())?;
    let mut said = String::new();
    let heard = running.stdout.take().map(|stdout| BufReader::new(stdout).read_line(&mut said));
    let seen = seen_on_the_host(host);
    let _asked = Command::new("kill").args(["-s", "INT", &running.id().to_string()]).status();
    let _ended = running.wait();
    if !matches!(heard, Some(Ok(_))) || said != "did True True True True\n" {
        return Err(format!("it does otherwise than it did: {said:?}"));
    }
    let (processes, wrong) = seen?;
    if processes < 2 || !wrong.is_empty() {
        return Err(format!("of {processes} processes on the host: {wrong:?}"));
    }
    Ok(())
}

/// Returns the number of processes in all gVisor sandboxes of a daemon, and what is wrong with them.
fn seen_on_the_host(host: &str) -> Result<(usize, Vec<String>), String> {
    let listed = Command::new("docker").args(["--host", host, "ps", "--no-trunc", "--quiet"]).output();
    let listed = listed.map_err(|error| error.to_string())?.stdout;
    let ids: Vec<String> = String::from_utf8_lossy(&listed).lines().map(str::to_owned).collect();
    let processes = processes_of(&ids).map_err(|error| error.to_string())?;
    Ok((processes.len(), processes.into_iter().flat_map(host_sees).collect()))
}

/// Returns the sandbox processes of these containers and all their descendants.
fn processes_of(ids: &[String]) -> std::io::Result<BTreeSet<u32>> {
    let numbers =
        std::fs::read_dir("/proc")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let (mut theirs, mut others): (BTreeSet<u32>, BTreeSet<u32>) = numbers.partition(|pid| {
        let line = about(*pid, "cmdline");
        line.contains("runsc-sandbox") && ids.iter().any(|id| line.contains(id.as_str()))
    });
    loop {
        let known = theirs.len();
        others.retain(|pid| {
            let parent = field(*pid, 4).and_then(|parent| parent.parse().ok());
            let is_theirs = parent.is_some_and(|parent: u32| theirs.contains(&parent));
            if is_theirs {
                theirs.insert(*pid);
            }
            !is_theirs
        });
        if theirs.len() == known {
            return Ok(theirs);
        }
    }
}

/// Returns the properties of a process that no sandboxed process may have.
fn host_sees(pid: u32) -> Vec<String> {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let open = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let devices = open.filter(|file| ["/dev/fuse", "/dev/net/tun"].map(Path::new).contains(&file.as_path()));
    let mut wrong: Vec<String> = devices.map(|file| format!("{pid} has {}", file.display())).collect();
    let (nice, score) = (field(pid, 19), about(pid, "oom_score_adj"));
    if nice.as_deref().is_some_and(|nice| nice.starts_with('-')) || score.starts_with('-') {
        wrong.push(format!("{pid} has priority {nice:?} and score {score:?}"));
    }
    wrong
}

fn about(pid: u32, name: &str) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default()
}

/// Returns a field of `/proc/PID/stat`, numbered as in `man proc`.
fn field(pid: u32, number: usize) -> Option<String> {
    let stat = about(pid, "stat");
    let (_, from_third) = stat.rsplit_once(") ")?;
    from_third.split_whitespace().nth(number - 3).map(str::to_owned)
}

/// Accepts a verdict if only listed checks failed.
fn as_listed(name: &str, gvisor: bool, verdict: Verdict) -> Verdict {
    let lists = [Some(OTHERWISE), gvisor.then_some(IN_GVISOR)];
    let known: Vec<&str> = lists
        .into_iter()
        .flatten()
        .flatten()
        .filter(|(program, _)| *program == name)
        .flat_map(|(_, checks)| checks.iter().copied())
        .collect();
    only_known(&known, verdict)
}

fn run(config: &Path, arguments: Vec<String>) -> Answer {
    let mut command = belljar();
    command.env("BELLJAR_CONFIG", config).args(["run", "--json", "--no-deps", "--provider", "docker"]);
    let [program, rest @ ..] = arguments.as_slice() else { unreachable!("a program comes first") };
    if !program.ends_with(".c") {
        return finish(command.arg(program).args(rest));
    }
    // The image has no compiler.
    let folder = tempfile::tempdir().expect("a folder");
    let compiled = folder.path().join("program");
    let built = Command::new("gcc").args(["-static", "-O1", "-w", "-o"]).arg(&compiled).arg(program).status();
    assert!(built.is_ok_and(|built| built.success()), "gcc compiles {program}");
    command.args(rest).arg("--file").arg(format!("{}:program", compiled.display()));
    finish(command.args(["--", "./program"]))
}
