//! Files: writing, deletion and secrets.

use super::super::{Category::*, Matcher, PolicyRule, Severity::*, commands};

pub(super) static RULES: &[PolicyRule] = &[
    PolicyRule {
        id: "SH-RM-RECURSIVE",
        category: Filesystem,
        severity: Low,
        message: "`{}` deletes directories recursively",
        suggestion: "name the directory to delete",
        matchers: &[Matcher::CommandWith(&["rm"], commands::is_recursive)],
        matches: &["rm -rf build", "ls | xargs rm -r", "find . -name x -exec rm -rf {} +"],
        non_matches: &["rm a.txt", "echo rm -rf a"],
    },
    PolicyRule {
        id: "SH-FIND-DELETE",
        category: Filesystem,
        severity: Low,
        message: "`{} -delete` deletes everything it finds",
        suggestion: "check the matches first",
        matchers: &[Matcher::CommandWith(&["find"], commands::deletes_found)],
        matches: &["find . -name '*.pyc' -delete"],
        non_matches: &["find . -name delete"],
    },
    PolicyRule {
        id: "SH-XARGS-RM",
        category: Filesystem,
        severity: Low,
        message: "`{}` deletes everything it reads from the pipe",
        suggestion: "check the input first",
        matchers: &[Matcher::CommandWith(&["xargs"], |words| {
            commands::has_word(words, &["rm", "unlink", "shred"])
        })],
        matches: &["ls | xargs rm", "find . | xargs -0 rm -f"],
        non_matches: &["ls | xargs echo", "xargs grep rm_x"],
    },
    PolicyRule {
        id: "SH-WRITE",
        category: Filesystem,
        severity: Low,
        message: "writes to `{}`, outside the workspace",
        suggestion: "write below /workspace or /tmp",
        matchers: &[Matcher::Redirect(commands::is_absolute)],
        matches: &["echo a > /etc/hosts", "echo a >> /opt/x"],
        non_matches: &["echo a > out.txt", "echo a > /dev/null"],
    },
    PolicyRule {
        id: "SH-SETUID",
        category: Filesystem,
        severity: High,
        message: "`{}` sets the setuid or setgid bit",
        suggestion: "remove it; nothing in a sandbox needs it",
        matchers: &[Matcher::CommandWith(&["chmod"], commands::sets_id)],
        matches: &["chmod u+s a", "chmod 4755 a"],
        non_matches: &["chmod +x a", "chmod 0755 a", "chmod 755 a"],
    },
    PolicyRule {
        id: "SH-SECRET-FILE",
        category: Secrets,
        severity: High,
        message: "`{}` reads a file that contains secrets",
        suggestion: "pass the value as an argument",
        matchers: &[Matcher::CommandWith(
            &[
                "cat", "less", "more", "head", "tail", "cp", "base64", "xxd", "strings", "grep", "tar",
                "scp", "od",
            ],
            commands::names_secret,
        )],
        matches: &["cat /etc/shadow", "cat ~/.ssh/id_rsa", "cat /proc/1/environ"],
        non_matches: &["cat /etc/hosts", "echo /etc/shadow"],
    },
    PolicyRule {
        id: "SH-ENVIRONMENT",
        category: Secrets,
        severity: Info,
        message: "`{}` prints environment variables, which may contain secrets",
        suggestion: "print only the variables that you need",
        matchers: &[Matcher::CommandWith(&["env", "printenv", "export"], |words| words.is_empty())],
        matches: &["printenv", "env | sort"],
        non_matches: &["env A=1 ls", "export A=1"],
    },
];
