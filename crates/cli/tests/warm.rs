//! Warm runs must be indistinguishable from cold ones to the program, except by the receipt and the clock.
#![cfg(target_os = "linux")]

mod common;

use std::collections::HashSet;
use std::fs;

use common::warm::Conversation;
use common::{Answer, run};
use serde_json::{Value, json};

const MODES: [&str; 2] = ["pool", "fork"];

/// Runs each line cold and with every warm mode, and returns the differences.
fn differences(language: &str, lines: &[Value], seen: fn(&Value) -> Vec<Value>) -> Vec<String> {
    let modes = ["off", "pool", "fork"];
    let mut conversations = modes.map(|mode| {
        Conversation::start(&format!("mode = \"{mode}\""), "", ["--language", language, "-c", "0"])
    });
    let mut different = Vec::new();
    for line in lines {
        let mut cold = None;
        for (mode, conversation) in modes.iter().zip(&mut conversations) {
            let result = match *mode {
                "off" => conversation.ask(line),
                warm => conversation.ask_warm(warm, line),
            };
            let now = (seen(&result), result["receipt"]["isolation"].clone());
            let cold = cold.get_or_insert_with(|| now.clone());
            if *cold != now {
                different.push(format!("{line}\n  cold {:?}\n  {mode} {:?}", cold.0, now.0));
            }
        }
    }
    different
}

/// Asserts the same output, status and error for cold and warm runs.
#[track_caller]
fn same(language: &str, lines: &[Value]) {
    let different = differences(language, lines, |result| {
        ["status", "exit_code", "signal", "stdout", "stderr", "error", "result", "artifacts", "findings"]
            .map(|field| result[field].clone())
            .to_vec()
    });
    assert!(different.is_empty(), "{}", different.join("\n"));
}

fn with_input(codes: &[&str]) -> Vec<Value> {
    codes.iter().map(|code| json!({"code": code, "stdin": "in\n"})).collect()
}

#[test]
fn warm_python_behaves_like_cold_python() {
    let mut lines = with_input(&[
        "import sys, os; print(sys.argv, sys.path[0], __name__, __file__, os.getcwd(), sys.flags, \
         sys.stdin.read())",
        "import os; print(sorted(os.environ.items())); print(os.listdir('.'), \
         os.listdir(os.environ['HOME']))",
        "import __main__, sys; print(sorted(vars(__main__))); print(__main__ is sys.modules['__main__'])",
        "import os, stat; print([stat.S_IFMT(os.fstat(fd).st_mode) for fd in (0, 1, 2)], \
         os.listdir('/proc/self/fd')[:3])",
        "def f():\n    raise ValueError('no')\nf()",
        "1 +",
        "import sys; sys.exit('bye')",
        "import sys; sys.exit(259)",
        "raise KeyboardInterrupt",
        "import os; os._exit(7)",
        "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
        "import atexit, threading, time\natexit.register(print, 'last')\n\
         threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()\nprint('main')",
        "class A:\n    def __del__(self): print('gone')\na = A()\nopen('f', 'w').write('x')",
        "import os\npid = os.fork()\nif pid == 0: print('child'); raise \
         SystemExit(3)\nprint(os.waitpid(pid, 0)[1])",
        "import subprocess, sys; print(subprocess.run([sys.executable, '-c', 'print(6*7)'], \
         capture_output=True).stdout)",
        "import multiprocessing as m\nif __name__ == '__main__':\n    with m.Pool(2) as p: print(p.map(abs, \
         [-1, -2]))",
        "import os; os.execv('/bin/echo', ['echo', 'another'])",
        "open('artifacts/a.txt', 'w').write('kept')",
        "print('é', input())",
    ]);
    lines.extend([
        json!({"code": "def main(n): return {'n': n + 1}", "arguments": {"n": 1}}),
        json!({"code": "async def main(n): return n", "arguments": {"n": 1}}),
        json!({"code": "import helper; print(helper.x)", "files": [{"path": "helper.py", "content": "x = 5"}]}),
        json!({"code": "import os; print(os.environ['A'], os.getcwd())", "env": {"A": "b"}, "workdir": "/tmp"}),
    ]);
    same("python", &lines);
}

/// A warm program sees no frames below its own, wherever it looks and until it exits; with arguments, only
/// the caller of `main`.
#[test]
fn a_warm_program_has_the_stack_of_a_cold_one() {
    let inspect = fs::read_to_string(common::beside("warm/stack.py")).expect("a file of the tests");
    let script = format!("{inspect}\nlook('module')\nlook_elsewhere()\nlook_at_the_end()\n");
    let main = format!("{inspect}\nlook('module')\ndef main():\n    look('main')\n    look_at_the_end()\n");
    let failing = "def main(n):\n    try:\n        1 / n\n    except ZeroDivisionError:\n        raise ValueError('no')\n";
    let traced =
        "import sys\nsys.settrace(lambda frame, *_: print(frame.f_code.co_filename, frame.f_code.co_name))\n";
    let mut lines = with_input(&[
        script.as_str(),
        &format!("{script}raise ValueError('shown')"),
        &format!("{script}raise SystemExit('shown')"),
        &format!("{inspect}\nsys.excepthook = lambda *_: look('hook')\nraise ValueError"),
        traced,
        "import sys, atexit\natexit.register(lambda: print(sys.last_value))\nraise ValueError('kept')",
        "import sys\nprint([name for name in dir(sys) if name.startswith('last_')], sys.excepthook is \
         sys.__excepthook__)",
        "import sys, warnings\nwarnings.warn('one', stacklevel=1)\nwarnings.warn('above', stacklevel=2)",
        "import atexit\natexit.register(int, 'no number')\natexit.register(print, 'first')",
        "import atexit, sys\natexit.register(print, 'still')\nraise KeyboardInterrupt",
        "class A:\n    def __del__(self): print(f())\ndef f(): return 'gone'\na = A()",
        "import sys; print(sys.orig_argv)",
        "globals()[5] = 6\nimport sys; del sys.modules['__main__']; sys.stdout = None; print('nowhere')",
    ]);
    let with_arguments = |code: &str, arguments: Value| json!({"code": code, "arguments": arguments});
    lines.extend([
        with_arguments(&main, json!({})),
        with_arguments(failing, json!({"n": 0})),
        with_arguments(&failing.replace("def", "async def"), json!({"n": 0})),
        with_arguments("import sys\ndef main(): sys.exit(3)", json!({})),
        with_arguments("def main(): raise KeyboardInterrupt", json!({})),
        with_arguments("def main(): return {1}", json!({})),
        with_arguments("def main(): return", json!({"n": 0})),
        with_arguments("1 +", json!({})),
        with_arguments("x = 1", json!({})),
        with_arguments(
            "import __main__, sys\ndef main(): return sorted(vars(__main__)), sys.argv, sys.path[0]",
            json!({}),
        ),
    ]);
    same("python", &lines);
}

#[test]
fn warm_javascript_behaves_like_cold_javascript() {
    let mut lines = with_input(&[
        "console.log(process.argv.slice(1), process.execArgv, require.main === module, __filename, \
         process.cwd())",
        "console.log(Object.entries(process.env).sort())",
        "console.log(process.pid > 0, process.ppid >= 0, typeof process.uptime())",
        "process.stdin.on('data', (d) => console.log(String(d)))",
        "process.on('exit', (code) => console.log('exit', code)); process.exitCode = 5",
        "process.exit(9)",
        "setTimeout(() => console.log('later'), 50); Promise.resolve().then(() => console.log('soon')); \
         console.log('now')",
        "const fs = require('fs'); fs.promises.writeFile('f', 'x').then(() => \
         console.log(fs.readFileSync('f', 'utf8')))",
        "const { Worker } = require('worker_threads'); new Worker('require(\"worker_threads\").parentPort.postMessage(4)', \
         { eval: true }).on('message', console.log)",
        "console.log(require('child_process').execFileSync(process.execPath, ['-p', '6*7']).toString())",
        "import fs from 'fs'; import path from 'node:path'; console.log(typeof fs.readFileSync, await \
         Promise.resolve(path.sep))",
        "console.log(require('crypto').createHash('sha256').update('a').digest('hex'), \
         require('zlib').gzipSync('a').length)",
        "const http = require('http'); const s = http.createServer((q, r) => r.end('ok')).listen(0, () => \
         http.get({ port: s.address().port }, (r) => r.on('data', (d) => { console.log(String(d)); \
         s.close(); })))",
    ]);
    lines.push(json!({"code": "function main(a) { return { n: a.n + 1 } }", "arguments": {"n": 1}}));
    same("javascript", &lines);
    // The output of an exception differs below the program's own frames.
    let codes = ["throw new TypeError('no')", "Promise.reject(new RangeError('no'))", "null.x", "let a ="];
    let different = differences("javascript", &with_input(&codes), |result| {
        let first = result["stderr"].as_str().unwrap_or("").lines().take(4).map(Value::from);
        first.chain([result["exit_code"].clone(), result["error"].clone()]).collect()
    });
    assert!(different.is_empty(), "{}", different.join("\n"));
}

/// Forks are copies, so random state must be reseeded in each.
#[test]
fn forks_are_reseeded() {
    let python = "import random, uuid, secrets, tempfile, os, ssl\n\
        print(random.random(), uuid.uuid4(), uuid.uuid1(), secrets.token_hex(8), tempfile.mktemp(), ssl.RAND_bytes(8).hex(), \
        random.SystemRandom().random(), os.urandom(8).hex())";
    let javascript = "const c = require('crypto');\n\
        console.log([Math.random(), Math.random(), c.randomUUID(), c.randomBytes(8).toString('hex'), \
        c.getRandomValues(new Uint32Array(1))[0]].join(' '))";
    for (language, code) in [("python", python), ("javascript", javascript)] {
        for mode in MODES {
            let settings = format!("mode = \"{mode}\"");
            let mut conversation = Conversation::start(&settings, "", ["--language", language, "-c", "0"]);
            let mut seen = HashSet::new();
            for _ in 0..8 {
                let result = conversation.ask_warm(mode, &json!({"code": code}));
                let words = result["stdout"].as_str().expect("text").split_whitespace().map(str::to_owned);
                let fresh: Vec<bool> = words.map(|word| seen.insert(word)).collect();
                assert!(fresh.len() > 4 && fresh.iter().all(|fresh| *fresh), "{language} {mode}: {result}");
            }
        }
    }
}

#[test]
fn interpreter_variables_make_a_run_cold() {
    for (language, variable, probe) in [
        ("python", "PYTHONHASHSEED", "print(hash('a'))"),
        ("javascript", "NODE_OPTIONS", "console.log(process.env.NODE_OPTIONS)"),
    ] {
        let value = if language == "python" { "7" } else { "--no-warnings" };
        let mut conversation = Conversation::start("", "", ["--language", language, "-c", "0"]);
        conversation.until("pool");
        let result = conversation.ask(&json!({"code": probe, "env": {variable: value}}));
        assert_eq!(result["receipt"]["warm"], false, "{result}");
        let Answer { json, .. } =
            run(["--language", language, "-c", probe, "--env", &format!("{variable}={value}")]);
        assert_eq!(result["stdout"], json["stdout"], "{language}");
    }
}

/// A warm interpreter was started before it was confined, so no variable may load code into it.
#[test]
fn a_profile_with_code_loading_variables_runs_cold() {
    let names = ["PYTHONPATH", "PYTHONUSERBASE", "PYTHONSTARTUP", "LD_LIBRARY_PATH", "NODE_PATH"];
    let tables = names.map(|name| format!("[profiles.{name}.env]\n{name} = \"/nowhere\"\n")).concat();
    let settings = format!("mode = \"pool\"\n[profiles.plain.env]\nA = \"b\"\n{tables}");
    let mut conversation = Conversation::start(&settings, "", ["--language", "python", "-c", "0"]);
    let mut ask = |profile: &str| {
        let result =
            conversation.ask(&json!({"code": "import os; print(len(os.environ) > 1)", "profile": profile}));
        assert_eq!(result["stdout"], "True\n", "{profile} {result}");
        result["receipt"]["warm"].clone()
    };
    let is_warm = (0..500).any(|_| {
        for name in names {
            assert_eq!(ask(name), json!(false), "{name}");
        }
        ask("plain") != json!(false)
    });
    assert!(is_warm, "another profile's interpreters were warm");
}

#[test]
fn a_single_run_starts_no_zygote() {
    let answer = run(["-c", "print(1)"]);
    assert_eq!((answer.text("stdout"), &answer.json["receipt"]["warm"]), ("1\n", &json!(false)));
}

#[test]
fn invalid_warm_settings_are_refused() {
    for (text, names) in [
        ("mode = \"hot\"", "hot"),
        ("memory = \"much\"", "warm.memory"),
        ("idle = \"0s\"", "warm.idle"),
        ("colour = 1", "colour"),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("belljar.toml");
        std::fs::write(&path, format!("[warm]\n{text}\n")).expect("a file");
        let output = common::belljar().arg("--config").arg(&path).args(["run", "-c", "0"]).output();
        let output = output.expect("the binary starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(125) && said.contains(names), "{text}: {said}");
    }
}
