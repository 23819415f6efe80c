//! Rules for JavaScript and TypeScript.

mod code;
mod files;
mod introspection;
mod network;
mod process;

use super::{PolicyRule, shared};

pub(crate) static RULES: &[&[PolicyRule]] =
    &[process::RULES, code::RULES, network::RULES, files::RULES, introspection::RULES, SHARED];

static SHARED: &[PolicyRule] = &[
    shared::unknown_import(
        "JS-UNKNOWN-IMPORT",
        &["require(x + y)", "import(name())"],
        &["require('a')", "import('a')"],
    ),
    shared::fork_bomb(
        "JS-FORK-BOMB",
        &["const { fork } = require('child_process'); while (true) fork(__filename)"],
        &["while (true) { step(); break }", "const { fork } = require('child_process'); fork('a')"],
    ),
    shared::assembled(
        "JS-ASSEMBLED",
        &[
            "require('child_' + 'process')",
            "globalThis['ev' + 'al']('1')",
            "import('f' + 's')",
            "require(['f', 's'].join(''))",
            "require(Buffer.from('ZnM=', 'base64').toString())",
            "require(atob('ZnM='))",
            "require(String.fromCharCode(102, 115))",
        ],
        &["require('fs')", "const a = 'b' + 'c'", "import('./page.js')"],
    ),
    shared::listed_module(
        "JS-LISTED-MODULE",
        &["import fs from 'node:fs'", "require('worker_threads')", "import('child_process')"],
        &["import 'path'", "import 'fs-extra'"],
    ),
    shared::listed_call(
        "JS-LISTED-CALL",
        &["eval('1')", "new Function('1')", "process.binding('a')"],
        &["model.eval()", "1 + 2"],
    ),
    shared::syntax("JS-SYNTAX", &["function (", "let let = 1 +"], &["let a = 1"]),
    shared::unread("JS-UNREAD", &["x = ((1))"]),
];
