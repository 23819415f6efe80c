//! Other programs and workers.

use super::super::{Category::*, Matcher, PolicyRule, Severity::*};

pub(super) static RULES: &[PolicyRule] = &[
    PolicyRule {
        id: "JS-CHILD-PROCESS",
        category: Process,
        severity: High,
        message: "`{}` starts another program",
        suggestion: "use a package instead, if there is one",
        matchers: &[Matcher::Name(&[
            "child_process.exec*",
            "child_process.spawn*",
            "child_process.fork",
            "bun.$*",
            "Bun.$*",
        ])],
        matches: &[
            "require('child_process').exec('ls')",
            "const { exec: e } = require('node:child_process'); e('ls')",
            "import { spawn as s } from 'child_process'; s('ls')",
            "const cp = require('child_' + 'process'); cp.execSync('ls')",
            "(await import('node:child_process')).exec('x')",
            "import cp from 'child_process'; cp.spawn('a')",
            "process.mainModule.require('child_process').exec('x')",
        ],
        non_matches: &[
            "/a/.exec('a')",
            "const exec = x => x; exec('a')",
            "const s = 'child_process.exec'",
            "db.exec('select 1')",
        ],
    },
    PolicyRule {
        id: "JS-CHILD-PROCESS-IMPORT",
        category: Process,
        severity: Medium,
        message: "the module `{}` starts programs",
        suggestion: "use a package instead, if there is one",
        matchers: &[Matcher::Import(&["child_process"])],
        matches: &[
            "import 'node:child_process'",
            "require('child_' + 'process')",
            "export * from 'child_process'",
            "import(`child_${'process'}`)",
        ],
        non_matches: &["import 'child_process_promise'", "// require('child_process')"],
    },
    PolicyRule {
        id: "JS-WORKER",
        category: Process,
        severity: Low,
        message: "`{}` starts a thread or process",
        suggestion: "keep the number of workers small",
        matchers: &[Matcher::Name(&[
            "worker_threads.Worker",
            "cluster.fork",
            "Worker",
            "Bun.spawn",
            "Bun.spawnSync",
            "Deno.Command",
            "Deno.run",
        ])],
        matches: &[
            "const { Worker } = require('worker_threads'); new Worker('a')",
            "import cluster from 'cluster'; cluster.fork()",
        ],
        non_matches: &["class Worker {}; new Worker()"],
    },
    PolicyRule {
        id: "JS-KILL",
        category: Process,
        severity: Medium,
        message: "`{}` sends a signal to a process",
        suggestion: "call kill() on the child process that you started",
        matchers: &[Matcher::Name(&["process.kill", "process.abort"])],
        matches: &["process.kill(1)"],
        non_matches: &["child.kill()"],
    },
];
