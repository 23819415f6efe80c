//! Files: writing, destruction and secrets.

use super::super::{Category::*, Matcher, PolicyRule, Severity::*, commands};

pub(super) static RULES: &[PolicyRule] = &[
    PolicyRule {
        id: "PY-DELETE",
        category: Filesystem,
        severity: Medium,
        message: "`{}` deletes files",
        suggestion: "keep files in the workspace, which is deleted after the run",
        matchers: &[Matcher::Writes(
            &["os.remove", "os.unlink", "os.rmdir", "os.removedirs", "shutil.rmtree", "os.truncate"],
            commands::first_is_absolute,
        )],
        matches: &["import os\nos.remove('/etc/passwd')", "from shutil import rmtree as r\nr('/opt/x')"],
        non_matches: &["xs.remove('/a')", "import os\nos.remove('a.txt')", "import os\nos.remove(path)"],
    },
    PolicyRule {
        id: "PY-WRITE",
        category: Filesystem,
        severity: Low,
        message: "`{}` writes outside the workspace",
        suggestion: "write below /workspace or /tmp",
        matchers: &[
            Matcher::Writes(&["open"], commands::opens_to_write),
            Matcher::Writes(
                &["os.mkdir", "os.makedirs", "os.symlink", "os.link", "os.mkfifo", "os.mknod"],
                commands::first_is_absolute,
            ),
        ],
        matches: &[
            "open('/etc/hosts', 'w')",
            "open('/etc/hosts', mode='a')",
            "import io\nio.open('/x', 'wb')",
        ],
        non_matches: &["open('/etc/hosts')", "open('a.txt', 'w')", "webbrowser.open('/a', 'w')"],
    },
    PolicyRule {
        id: "PY-PERMISSIONS",
        category: Filesystem,
        severity: Low,
        message: "`{}` changes a file's permissions",
        suggestion: "leave them: the program owns the files that it creates",
        matchers: &[Matcher::Name(&[
            "os.chmod",
            "os.chown",
            "os.lchown",
            "os.fchmod",
            "os.setxattr",
            "shutil.chown",
        ])],
        matches: &["import os\nos.chmod('a', 0o777)"],
        non_matches: &["p.chmod(0o755)"],
    },
    PolicyRule {
        id: "PY-WIPE-ROOT",
        category: DestructiveCommand,
        severity: Critical,
        message: "`{}` would delete the whole system",
        suggestion: "name the directory to delete",
        matchers: &[Matcher::CallWith(&["shutil.rmtree", "os.removedirs"], commands::first_is_root)],
        matches: &["import shutil\nshutil.rmtree('/')", "from shutil import *\nrmtree('/' + 'etc')"],
        non_matches: &["import shutil\nshutil.rmtree('/tmp/x')", "import shutil\nshutil.rmtree('build')"],
    },
    PolicyRule {
        id: "PY-RAW-DISK",
        category: DestructiveCommand,
        severity: Critical,
        message: "`{}` would write to a raw disk",
        suggestion: "write to a file",
        matchers: &[
            Matcher::CallWith(&["open"], commands::opens_disk_to_write),
            Matcher::CallWith(&["os.open"], commands::first_is_disk),
        ],
        matches: &["open('/dev/sda', 'wb')", "import os\nos.open('/dev/nvme0n1', os.O_RDWR)"],
        non_matches: &["open('/dev/null', 'w')", "open('/dev/sda_notes.txt')"],
    },
    PolicyRule {
        id: "PY-ENVIRON",
        category: Secrets,
        severity: Info,
        message: "`{}` reads environment variables, which may contain secrets",
        suggestion: "pass the value as an argument",
        matchers: &[Matcher::Name(&["os.environ*", "os.getenv", "os.getenvb"])],
        matches: &["import os\nos.environ['A']", "from os import getenv\ngetenv('A')"],
        non_matches: &["env.environ"],
    },
    PolicyRule {
        id: "PY-SECRET-FILE",
        category: Secrets,
        severity: High,
        message: "`{}` reads a file that contains secrets",
        suggestion: "pass the value as an argument",
        matchers: &[Matcher::CallWith(&["open", "os.open", "pathlib.Path"], commands::first_is_secret)],
        matches: &["open('/etc/shadow')", "open('/root/.ssh/' + 'id_rsa')"],
        non_matches: &["open('/etc/hosts')", "print('/etc/shadow')"],
    },
];
