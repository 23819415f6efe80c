//! Runs of every kind through the binary, several at once.

use std::collections::BTreeMap;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};

use super::{resident, warm};
use crate::common;
use crate::common::host::{Snapshot, alive_with, left_after};

/// Number of runs in the first tier, and in the group `soak`.
const RUNS: [usize; 2] = [500, 5_000];
const AT_A_TIME: usize = 4;
/// How long leftovers may take to disappear.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) fn main() -> ExitCode {
    // This binary is its own launcher in the second case.
    belljar_jail::launcher::run_if_asked();
    let mut arguments = Arguments::from_args();
    // Each case inspects the whole host.
    arguments.test_threads = Some(1);
    if let Some(why) = common::unusable() {
        println!("skipped: {why}");
        return if common::is_root() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    }
    let own_world = common::own_world::enter();
    let trials = vec![
        Trial::test("mixed_runs_leave_nothing", || mixed_runs().map_err(Failed::from)),
        Trial::test("warm_runs_leave_nothing", || warm::warm_runs().map_err(Failed::from)),
        Trial::test("a_resident_process_keeps_no_descriptor", || {
            resident::descriptors().map_err(Failed::from)
        }),
    ];
    let ended = libtest_mimic::run(&arguments, trials);
    drop(own_world);
    ended.exit_code()
}

/// A kind of run: name, flags, shell script, and allowed endings.
struct Kind {
    name: &'static str,
    flags: &'static [&'static str],
    script: &'static str,
    endings: &'static [&'static str],
}

/// All kinds. `$0` is a token by which the test finds its processes.
const KINDS: &[Kind] = &[
    Kind { name: "success", flags: &[], script: "echo fine", endings: &["succeeded"] },
    Kind { name: "failure", flags: &[], script: "echo bad >&2; exit 3", endings: &["failed"] },
    Kind { name: "signal", flags: &[], script: "kill -SEGV $$", endings: &["failed"] },
    Kind {
        name: "artifacts",
        flags: &[],
        script: "echo 1 > artifacts/a.csv; mkfifo artifacts/b.csv; sleep 60 & true",
        endings: &["succeeded"],
    },
    Kind {
        name: "time-out",
        flags: &["--timeout", "100ms"],
        script: "sleep 60; true",
        endings: &["timed_out"],
    },
    Kind {
        name: "short time-out",
        flags: &["--timeout", "50ms"],
        script: "while :; do :; done",
        endings: &["timed_out"],
    },
    Kind {
        name: "out of memory",
        flags: &["--memory", "16M", "--timeout", "10s"],
        script: "a=0123456789abcdef; while :; do a=$a$a; done",
        endings: &["limit_exceeded", "failed"],
    },
    Kind {
        name: "fork bomb",
        flags: &["--timeout", "200ms", "--processes", "24"],
        script: "f() { f | f & f; }; f 2>/dev/null; while :; do :; done",
        endings: &["timed_out", "failed", "limit_exceeded", "succeeded"],
    },
    Kind {
        name: "flood",
        flags: &["--timeout", "100ms", "--output", "4K"],
        script: "while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done",
        endings: &["timed_out"],
    },
    Kind {
        name: "daemon",
        flags: &[],
        script: "(setsid sh -c 'trap \"\" TERM HUP; exec sleep 300' $0 &) & exit 0",
        endings: &["succeeded"],
    },
    Kind {
        name: "disk full",
        flags: &["--disk", "4M"],
        script: "cat /dev/zero > /tmp/fill",
        endings: &["limit_exceeded"],
    },
    Kind {
        name: "stopped",
        flags: &["--timeout", "100ms"],
        script: "sh -c 'kill -STOP $$' $0 & kill -STOP $$",
        endings: &["timed_out"],
    },
    // Killed by the test while it sleeps.
    Kind { name: "killed", flags: &[], script: "sleep 60; true", endings: &[] },
];

fn mixed_runs() -> Result<(), String> {
    // Create what is created once and stays, such as the file of user ids.
    common::run(["--", "true"]);
    let runs = RUNS[usize::from(std::env::var("BELLJAR_TEST_SIZE").is_ok_and(|size| size == "full"))];
    let before = Snapshot::take();
    let token = format!("leaktest{}", std::process::id());
    let counts = Mutex::new(BTreeMap::<String, usize>::new());
    let wrong = Mutex::new(Vec::new());
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= runs {
                        return;
                    }
                    let kind = &KINDS[number % KINDS.len()];
                    match perform(kind, &token, number) {
                        Ok(ending) => {
                            let mut counts = counts.lock().expect("nobody panicked");
                            *counts.entry(format!("{}: {ending}", kind.name)).or_default() += 1;
                        }
                        Err(what) => {
                            wrong.lock().expect("nobody panicked").push(format!("{}: {what}", kind.name))
                        }
                    }
                }
            });
        }
    });
    println!("{runs} runs: {:?}", counts.into_inner().expect("nobody panicked"));
    let wrong = wrong.into_inner().expect("nobody panicked");
    if !wrong.is_empty() {
        return Err(wrong.join("\n"));
    }
    let alive = alive_with(&token, PATIENCE);
    if !alive.is_empty() {
        return Err(format!("processes that live on: {alive:?}"));
    }
    // A killed launcher cannot clean up; the next one does.
    common::run(["--", "true"]);
    let left = left_after(&before, PATIENCE);
    if left.is_empty() { Ok(()) } else { Err(format!("left behind: {left:#?}")) }
}

/// Performs one run and returns its ending.
fn perform(kind: &Kind, token: &str, number: usize) -> Result<String, String> {
    // The test is about the jail, so the policy must not refuse the fork bomb.
    let program = ["--policy", "off", "--", "sh", "-c", kind.script, token];
    if kind.endings.is_empty() {
        return kill_midway(&program, number);
    }
    let answer = common::run([kind.flags, &program].concat());
    let ending = answer.status().to_owned();
    if kind.endings.contains(&ending.as_str()) { Ok(ending) } else { Err(answer.json.to_string()) }
}

/// Kills the binary at varying moments: from before its first step to long after its last.
fn kill_midway(program: &[&str], number: usize) -> Result<String, String> {
    let mut command: Command = common::belljar();
    command.args(["run", "--json"]).args(program).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child: Child = command.spawn().map_err(|error| error.to_string())?;
    std::thread::sleep(Duration::from_millis(number as u64 * 7 % 90));
    child.kill().and_then(|()| child.wait()).map_err(|error| error.to_string())?;
    Ok("killed".to_owned())
}
