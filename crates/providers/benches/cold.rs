//! A cold start through the jail beside the same command without any isolation, taken in turns in one run.
//!
//! ```text
//! cargo bench -p belljar-providers --bench cold [-- ROUNDS [PAUSE_MS]]
//! ```
//!
//! Between rounds there is a pause, in which the launcher tidies up and makes the next shell, as it would between the
//! requests of an agent; 0 measures a client that never waits, where that work competes with the next run.
//!
//! Control: the same interpreter, arguments and environment, started by `posix_spawn` and read to the end. Every
//! run's output is checked: a crash is very fast.
#![expect(clippy::print_stdout, reason = "a benchmark prints its table")]

use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_engine::Engine;
use belljar_engine::limits::Limits;
use belljar_engine::profile::Profiles;
use belljar_engine::provider::{Flow, Sink, Stream};
use belljar_engine::request::{HostPaths, Request};
use belljar_providers::native::{Launched, Native, Settings};

struct Quiet;

impl Sink for Quiet {
    fn output(&mut self, _stream: Stream, _bytes: &[u8]) -> Flow {
        Flow::Continue
    }
}

struct Contender {
    name: &'static str,
    command: Vec<String>,
    expected: &'static str,
}

fn main() -> ExitCode {
    belljar_jail::launcher::run_if_asked();
    let mut numbers = std::env::args().skip(1).filter_map(|word| word.parse().ok());
    let rounds: u64 = numbers.next().unwrap_or(300);
    let pause = Duration::from_millis(numbers.next().unwrap_or(15));
    let launched = Launched::start().expect("the launcher starts");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let native =
        runtime.block_on(Native::connect(launched, Settings::default())).expect("the launcher works here");
    let program = |name: &str| {
        let found = native.languages().into_iter().find(|state| state.language.name == name);
        found.and_then(|state| state.program).and_then(|path| path.to_str().map(str::to_owned))
    };
    let contenders: Vec<Contender> =
        [("python", "-c", "print(1)"), ("bash", "-c", "echo 1"), ("javascript", "-p", "1")]
            .into_iter()
            .filter_map(|(name, flag, code)| {
                let command = vec![program(name)?, flag.to_owned(), code.to_owned()];
                Some(Contender { name, command, expected: "1\n" })
            })
            .collect();
    let engine = Engine::new(Arc::new(native), Profiles::shipped(), Limits::CEILING);
    println!(
        "{:<12} {:>12} {:>12} {:>12} {:>12} {:>7}",
        "", "bare p50", "bare p99", "jail p50", "jail p99", "ratio"
    );
    for contender in &contenders {
        compare(contender, rounds, pause, &engine, &runtime);
    }
    runtime.block_on(engine.shut_down());
    ExitCode::SUCCESS
}

fn compare(
    contender: &Contender,
    rounds: u64,
    pause: Duration,
    engine: &Engine,
    runtime: &tokio::runtime::Runtime,
) {
    let (mut bare, mut jailed) = (Vec::new(), Vec::new());
    for round in 0..rounds + 20 {
        let control = run_bare(contender);
        let jail = run_jailed(contender, engine, runtime);
        std::thread::sleep(pause);
        // The first rounds fill caches and spares for both.
        if round >= 20 {
            bare.push(control);
            jailed.push(jail);
        }
    }
    bare.sort_unstable();
    jailed.sort_unstable();
    let at = |times: &[Duration], share: f64| {
        times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3
    };
    let [b50, b99, j50, j99] = [at(&bare, 0.5), at(&bare, 0.99), at(&jailed, 0.5), at(&jailed, 0.99)];
    let ratio = j50 / b50;
    println!("{:<12} {b50:>9.2} ms {b99:>9.2} ms {j50:>9.2} ms {j99:>9.2} ms {ratio:>6.2}×", contender.name);
}

fn run_bare(contender: &Contender) -> Duration {
    let started = Instant::now();
    let output = Command::new(&contender.command[0])
        .args(&contender.command[1..])
        .env_clear()
        .envs([("PATH", "/usr/bin:/bin"), ("HOME", "/tmp"), ("LANG", "C.UTF-8"), ("OMP_NUM_THREADS", "1")])
        .stdin(Stdio::null())
        .output()
        .expect("the control starts");
    let took = started.elapsed();
    assert_eq!(String::from_utf8_lossy(&output.stdout), contender.expected);
    took
}

fn run_jailed(contender: &Contender, engine: &Engine, runtime: &tokio::runtime::Runtime) -> Duration {
    let started = Instant::now();
    let request = Request { command: Some(contender.command.clone()), ..Request::default() };
    let admitted = engine.admit(request, HostPaths::default()).expect("admitted");
    let mut view = Quiet;
    let run = engine.execute(String::new(), admitted, &mut view, Box::pin(std::future::pending()));
    let report = runtime.block_on(run).expect("it runs");
    let took = started.elapsed();
    assert_eq!(report.stdout, contender.expected, "{report:?}");
    took
}
