//! Interpreters pre-started in pooled containers: programs cannot tell, and receive all of their input.

use std::time::Duration;

use belljar_engine::outcome::Warmth;
use belljar_engine::report::{Report, Status};
use belljar_providers::docker::Settings;
use serde_json::{Value, json};

use crate::docker::{at, wait_for};
use crate::fixture::{Fixture, Verdict, check};

/// How long a pooled container stays idle, and how a program sees that. A newly started interpreter is
/// younger.
const WAITED: Duration = Duration::from_secs(3);
const OLD: &str = "process.uptime() > 2.5";
/// Counts the Node.js processes.
const COUNT: &str =
    "import glob\nprint([open(p).read().strip() for p in glob.glob('/proc/[0-9]*/comm')].count('node'))";

/// Runs a request in a pooled container.
fn run_in_pooled_container(fixture: &Fixture, request: &Value) -> Result<Report, String> {
    wait_for("an idle container", || fixture.pools().iter().any(|pool| pool.size == 1))?;
    std::thread::sleep(WAITED);
    let report = fixture.run(request.clone())?;
    check!(report.warmth() == Warmth::Pool, report);
    Ok(report)
}

pub(crate) fn prestarted_interpreters(host: String) -> Verdict {
    let fixture = Fixture::docker(Settings { pool: 1, ..at(host) });
    let program = |code: &str| json!({"language": "javascript", "code": code});
    // The first run must not hang on missing input.
    check!(fixture.run(program("console.log(1)"))?.stdout == "1\n", "cold");

    // The process looks as usual, and so do its threads and children.
    let look = format!(
        "const {{ Worker, isMainThread }} = require('worker_threads');\n\
         if (process.argv[2] === 'child') process.exit(3);\n\
         if (!isMainThread) throw new Error('the thread ran the main file');\n\
         console.log({OLD}, process.execArgv, process.argv.slice(1), require.main === module, Object.keys(require.cache));\n\
         new Worker('console.log(\"a thread\")', {{ eval: true }}).on('exit', () => \n\
         require('child_process').fork(__filename, ['child']).on('exit', (code) => console.log('a fork', code)));"
    );
    let report = run_in_pooled_container(&fixture, &program(&look))?;
    let expected = "true [] [ '/workspace/main.js' ] true [ '/workspace/main.js' ]\na thread\na fork 3\n";
    check!(report.stdout == expected, report);

    let mut read =
        program(&format!("console.log({OLD}, JSON.stringify(require('fs').readFileSync(0, 'utf8')))"));
    check!(run_in_pooled_container(&fixture, &read)?.stdout == "true \"\"\n", "nothing to read");
    read["stdin"] = json!("+given\n");
    check!(run_in_pooled_container(&fixture, &read)?.stdout == "true \"+given\\n\"\n", "something to read");

    // Arguments make it a different command, which the pre-started interpreter cannot run; the next one can.
    let mut called = program(&format!("function main({{a}}) {{ return [a + 1, {OLD}] }}"));
    called["arguments"] = json!({"a": 1});
    check!(
        run_in_pooled_container(&fixture, &called)?.result.value == json!([2, false]),
        "called, without a matching interpreter"
    );
    check!(run_in_pooled_container(&fixture, &called)?.result.value == json!([2, true]), "called");
    let mut given = program(&format!("console.log({OLD}, process.env.GIVEN)"));
    given["env"] = json!({"GIVEN": "yes"});
    check!(run_in_pooled_container(&fixture, &given)?.stdout == "false yes\n", "with a variable");
    // The variable may be a secret: no interpreter is pre-started with it, where the next run could see it.
    check!(run_in_pooled_container(&fixture, &given)?.stdout == "false yes\n", "the variable was kept");

    // A different program must not find the pre-started interpreter.
    let python = json!({"language": "python", "code": COUNT});
    check!(run_in_pooled_container(&fixture, &python)?.stdout == "0\n", "an interpreter is left");

    // Limits count from the start of the program.
    let mut endless = program("console.log('on'); for (;;);");
    endless["limits"] = json!({"timeout_ms": 1000});
    check!(fixture.run(endless.clone())?.status == Status::TimedOut, "a cold run times out");
    let report = run_in_pooled_container(&fixture, &endless)?;
    check!(report.status == Status::TimedOut && report.stdout == "on\n", report);
    let report = run_in_pooled_container(&fixture, &program("throw new Error('mine')"))?;
    check!(report.exit_code == Some(1) && report.stderr.contains("/workspace/main.js:1"), report);
    fixture.shut_down();
    Ok(())
}
