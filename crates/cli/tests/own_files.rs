//! Belljar's own files and frames are not in the program's workspace, names and stack traces.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;
mod expect;

use std::fs;
use std::path::Path;

use common::server::Server;
use common::warm::Conversation;
use common::{Answer, run};
use expect::skip;
use serde_json::{Value, json};

/// Programs that list the workspace with everything hidden in it.
const LISTERS: &[(&str, &str)] = &[
    ("python", "import os\nprint(*sorted(os.listdir('/workspace')))"),
    ("javascript", "console.log(require('fs').readdirSync('/workspace').sort().join(' '))"),
    ("javascript", "import fs from 'fs'\nconsole.log(fs.readdirSync('/workspace').sort().join(' '))"),
    ("bash", "shopt -s dotglob nullglob; cd /workspace; echo *"),
    ("perl", "opendir(D, '/workspace'); print join(' ', sort grep { !/^\\.\\.?$/ } readdir D), \"\\n\""),
];

fn in_folder(folder: &Path, arguments: &[&str]) -> Answer {
    run([&["--workspace", folder.to_str().unwrap()], arguments].concat())
}

/// Writes files that programs use, and returns their names.
fn furnish(write: &mut dyn FnMut(&str, &str)) -> &'static str {
    write("helper.py", "x = 5\n");
    write("lib.js", "exports.x = 5\n");
    write("lib.mjs", "export const x = 5\n");
    write("lib.php", "<?php $x = 5;\n");
    write("lib.rb", "X = 5\n");
    write("value.h", "#define X 5\n");
    "helper.py lib.js lib.mjs lib.php lib.rb value.h"
}

/// Code that imports files of the workspace, and prints 5.
const IMPORTS: &[(&str, &str)] = &[
    ("python", "import helper\nprint(helper.x)"),
    ("javascript", "console.log(require('./lib').x, require.main === module)"),
    (
        "javascript",
        "import { x } from './lib.mjs'\nimport lib from './lib.js'\nconsole.log(x === lib.x && x, true)",
    ),
    ("javascript", "import('./lib.mjs').then(({ x }) => console.log(x, require.main === module))"),
    ("ruby", "require_relative 'lib'\nputs X if [__FILE__, __dir__] == ['/workspace/main.rb', '/workspace']"),
    ("ruby", "require_relative 'lib'\nputs X if $0 == __FILE__ && DATA.read == 'é'\n__END__\né"),
    ("php", "<?php\ndeclare(strict_types=1);\nrequire __DIR__ . '/lib.php';\nprint \"$x\\n\";"),
    (
        "php",
        "#!/usr/bin/php\n<?php\ninclude 'lib.php';\nif (__LINE__ === 4 && __FILE__ === $argv[0]) print \"$x\\n\";",
    ),
    ("c", "#include <stdio.h>\n#include \"value.h\"\nint main(void) { printf(\"%d\\n\", X); }"),
];

fn prints_five(result: &Value, code: &str) {
    if result["error"]["code"] == "language_unavailable" {
        return skip("own_files", result["error"]["message"].as_str().unwrap_or_default());
    }
    let printed = result["stdout"].as_str().unwrap_or_default();
    assert!(printed == "5\n" || printed == "5 true\n", "{code}\n{result}");
}

#[test]
fn a_host_workspace_has_only_the_users_files() {
    let folder = tempfile::tempdir().unwrap();
    let names = furnish(&mut |name, content| fs::write(folder.path().join(name), content).unwrap());
    for (language, code) in LISTERS {
        let answer = in_folder(folder.path(), &["--language", language, "-c", code]);
        assert_eq!(answer.text("stdout"), format!("{names}\n"), "{code}\n{answer:?}");
    }
    for (language, code) in IMPORTS {
        prints_five(&in_folder(folder.path(), &["--language", language, "-c", code]).json, code);
    }
    for (language, code) in
        [("python", "import helper\ndef main(n): return helper.x + n"), ("javascript", MAIN_IN_JAVASCRIPT)]
    {
        let answer = in_folder(folder.path(), &["--language", language, "-c", code, "--args", "{\"n\": 2}"]);
        assert_eq!(answer.json["result"]["value"], 7, "{answer:?}");
    }
    // A file of the workspace is called where it is.
    fs::write(folder.path().join("job.py"), "import helper\ndef main(): return [helper.x, __file__]\n")
        .unwrap();
    let job = folder.path().join("job.py");
    let answer = in_folder(folder.path(), &[job.to_str().unwrap(), "--args", "{}"]);
    assert_eq!(answer.json["result"]["value"], json!([5, "/workspace/job.py"]), "{answer:?}");
}

const MAIN_IN_JAVASCRIPT: &str = "const { x } = require('./lib')\nfunction main({ n }) { return x + n }";

#[test]
fn a_sandbox_has_only_the_users_files_and_no_process_id_in_names() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let sandbox = server.sandbox(&json!({}));
    let execute = |request: Value| server.post(&format!("{sandbox}/executions"), &request).json();
    let mut files = Vec::new();
    let names = furnish(&mut |name, content| files.push(json!({"path": name, "content": content})));
    execute(json!({"language": "bash", "code": "true", "files": files}));
    for (language, code) in LISTERS {
        let result = execute(json!({"language": language, "code": code}));
        assert_eq!(result["stdout"], format!("artifacts {names}\n"), "{code}\n{result}");
    }
    for (language, code) in IMPORTS {
        prints_five(&execute(json!({"language": language, "code": code})), code);
    }
    let server_id = server.child.id().to_string();
    let code = "import glob, os, sys\nprint(sys.argv, __file__, os.listdir('/tmp'), sorted(os.environ))";
    let result = execute(json!({"language": "python", "code": code}));
    let printed = result["stdout"].as_str().unwrap();
    let has_id = printed.split(|c: char| !c.is_ascii_digit()).any(|number| number == server_id);
    assert!(!has_id && !printed.contains("PYTHONPATH"), "{server_id} {result}");
    // Nothing stays.
    let left =
        execute(json!({"language": "bash", "code": "ls -A /tmp | grep -v -F \"$(basename $(dirname $0))\""}));
    assert_eq!(left["stdout"], "", "{left}");
}

/// Code that fails, and how many files its stack trace names.
const FAILING: &[(&str, &str)] = &[
    ("python", "def main():\n    raise ValueError('no')"),
    ("python", "async def main():\n    raise ValueError('no')"),
    ("python", "def main(x): pass"),
    ("python", "raise ValueError('no')"),
    ("javascript", "function main() { throw new Error('no') }"),
    ("javascript", "async function main() { await null; throw new Error('no') }"),
    ("javascript", "throw new Error('no')"),
];

/// Code that fails, in languages that have no arguments.
const FAILING_FROM_WORKSPACE: &[(&str, &str)] = &[
    ("ruby", "def f = raise('no')\nf"),
    ("php", "<?php\nfunction f() { throw new Exception('no'); }\nf();"),
];

fn has_no_frames_of_ours(result: &Value) {
    let trace = result["stderr"].as_str().unwrap();
    assert!(
        result["status"] == "failed"
            && !trace.contains("runner.")
            && !trace.contains("/run/belljar")
            && !trace.contains("asyncio"),
        "{trace}"
    );
    assert!(trace.contains("no") || trace.contains("main() missing"), "{trace}");
}

#[test]
fn stack_traces_have_only_frames_of_the_program() {
    for (language, code) in FAILING {
        has_no_frames_of_ours(&run(["--language", language, "-c", code, "--args", "{}"]).json);
    }
    let folder = tempfile::tempdir().unwrap();
    for (language, code) in FAILING_FROM_WORKSPACE {
        let answer = in_folder(folder.path(), &["--language", language, "-c", code]);
        if answer.error_code().is_empty() {
            has_no_frames_of_ours(&answer.json);
            assert!(answer.text("stderr").contains("/workspace/main."), "{answer:?}");
        }
    }
    for language in ["python", "javascript"] {
        let mut batch = Conversation::start("mode = \"pool\"", "", ["--language", language, "-c", "0"]);
        for (_, code) in FAILING.iter().filter(|(own, _)| *own == language) {
            has_no_frames_of_ours(&batch.ask_warm("pool", &json!({"code": code, "arguments": {}})));
        }
    }
}
