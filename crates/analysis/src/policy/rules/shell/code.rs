//! Text that becomes code, and what hides.

use super::super::{Category::*, Rule, Severity::*, When, commands};

pub(super) static RULES: &[Rule] = &[
    Rule {
        id: "SH-PIPE-TO-SHELL",
        category: CodeExecution,
        severity: High,
        message: "a download goes straight into an interpreter: `{}`",
        suggestion: "download it, look at it, then run it",
        when: &[When::Download],
        matches: &["curl -s http://a | sh", "wget -qO- http://a | sudo bash", "curl http://a | python3 -"],
        leaves: &["curl http://a | jq .", "curl http://a > a.sh", "curl http://a | python3 tool.py"],
    },
    Rule {
        id: "SH-EVAL",
        category: CodeExecution,
        severity: Medium,
        message: "what `{}` runs cannot be told",
        suggestion: "write the command plainly",
        when: &[When::UnknownCode],
        matches: &["eval \"$x\"", "sh -c \"$1\"", "cat a | sh", "$x -rf"],
        leaves: &["eval 'echo 1'", "sh -c 'echo 1'", "echo \"$x\"", "x=ls; $x"],
    },
    Rule {
        id: "SH-DECODED",
        category: Obfuscation,
        severity: High,
        message: "{} is run as code",
        suggestion: "write the command plainly",
        when: &[When::Decoded],
        matches: &["echo bHM= | base64 -d | sh", "$(echo bHM= | base64 -d)", "echo 6c73 | xxd -r -p | bash"],
        leaves: &["echo bHM= | base64 -d", "base64 -d a > b"],
    },
    Rule {
        id: "SH-INTERPRETER-CODE",
        category: CodeExecution,
        severity: Low,
        message: "`{}` is given code on its command line",
        suggestion: "put the code into a file",
        when: &[When::CommandWith(
            &["python", "python3", "node", "perl", "ruby", "php"],
            commands::takes_code,
        )],
        matches: &["python3 -c 'print(1)'", "node -e '1'"],
        leaves: &["python3 a.py", "echo python3 -c"],
    },
    Rule {
        id: "SH-HISTORY",
        category: Obfuscation,
        severity: Medium,
        message: "`{}` removes traces",
        suggestion: "leave it out",
        when: &[When::CommandWith(&["history"], |words| commands::has(words, &["-c"]))],
        matches: &["history -c"],
        leaves: &["history"],
    },
];
