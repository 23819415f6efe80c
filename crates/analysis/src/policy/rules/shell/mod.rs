//! Rules for shell commands, including those that other languages start.

mod code;
mod destructive;
mod files;
mod network;
mod process;

use super::{PolicyRule, shared};

pub(crate) static RULES: &[&[PolicyRule]] =
    &[destructive::RULES, files::RULES, code::RULES, network::RULES, process::RULES, SHARED];

static SHARED: &[PolicyRule] = &[
    shared::fork_bomb(
        "SH-FORK-BOMB",
        &[":(){ :|:& };:", "f() { f | f & }; f", "bomb() { bomb & bomb; }; bomb"],
        &[
            "f() { echo a | cat & }; f",
            "fib() { if [ $1 -lt 2 ]; then echo 1; return; fi; a=$(fib 1); b=$(fib 2); }; fib 3",
        ],
    ),
    shared::syntax("SH-SYNTAX", &["if then", "echo \"a"], &["echo a"]),
    shared::unread("SH-UNREAD", &["echo $((1))"]),
];
