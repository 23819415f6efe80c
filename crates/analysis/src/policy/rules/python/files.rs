//! Files: writing, destruction and secrets.

use super::super::{Category::*, Rule, Severity::*, When, commands};

pub(super) static RULES: &[Rule] = &[
    Rule {
        id: "PY-DELETE",
        category: Filesystem,
        severity: Medium,
        message: "`{}` deletes files",
        suggestion: "keep files in the workspace, which is deleted after the run",
        when: &[When::Writes(
            &["os.remove", "os.unlink", "os.rmdir", "os.removedirs", "shutil.rmtree", "os.truncate"],
            commands::first_is_absolute,
        )],
        matches: &["import os\nos.remove('/etc/passwd')", "from shutil import rmtree as r\nr('/opt/x')"],
        leaves: &["xs.remove('/a')", "import os\nos.remove('a.txt')", "import os\nos.remove(path)"],
    },
    Rule {
        id: "PY-WRITE",
        category: Filesystem,
        severity: Low,
        message: "`{}` writes outside the workspace",
        suggestion: "write below /workspace or /tmp",
        when: &[
            When::Writes(&["open"], commands::opens_to_write),
            When::Writes(
                &["os.mkdir", "os.makedirs", "os.symlink", "os.link", "os.mkfifo", "os.mknod"],
                commands::first_is_absolute,
            ),
        ],
        matches: &[
            "open('/etc/hosts', 'w')",
            "open('/etc/hosts', mode='a')",
            "import io\nio.open('/x', 'wb')",
        ],
        leaves: &["open('/etc/hosts')", "open('a.txt', 'w')", "webbrowser.open('/a', 'w')"],
    },
    Rule {
        id: "PY-PERMISSIONS",
        category: Filesystem,
        severity: Low,
        message: "`{}` changes a file's permissions",
        suggestion: "leave them: the program owns the files that it creates",
        when: &[When::Name(&[
            "os.chmod",
            "os.chown",
            "os.lchown",
            "os.fchmod",
            "os.setxattr",
            "shutil.chown",
        ])],
        matches: &["import os\nos.chmod('a', 0o777)"],
        leaves: &["p.chmod(0o755)"],
    },
    Rule {
        id: "PY-WIPE-ROOT",
        category: DestructiveCommand,
        severity: Critical,
        message: "`{}` would delete the whole system",
        suggestion: "name the directory to delete",
        when: &[When::CallWith(&["shutil.rmtree", "os.removedirs"], commands::first_is_root)],
        matches: &["import shutil\nshutil.rmtree('/')", "from shutil import *\nrmtree('/' + 'etc')"],
        leaves: &["import shutil\nshutil.rmtree('/tmp/x')", "import shutil\nshutil.rmtree('build')"],
    },
    Rule {
        id: "PY-RAW-DISK",
        category: DestructiveCommand,
        severity: Critical,
        message: "`{}` would write to a raw disk",
        suggestion: "write to a file",
        when: &[
            When::CallWith(&["open"], commands::opens_disk_to_write),
            When::CallWith(&["os.open"], commands::first_is_disk),
        ],
        matches: &["open('/dev/sda', 'wb')", "import os\nos.open('/dev/nvme0n1', os.O_RDWR)"],
        leaves: &["open('/dev/null', 'w')", "open('/dev/sda_notes.txt')"],
    },
    Rule {
        id: "PY-ENVIRON",
        category: Secrets,
        severity: Info,
        message: "`{}` reads environment variables, which may contain secrets",
        suggestion: "pass the value as an argument",
        when: &[When::Name(&["os.environ*", "os.getenv", "os.getenvb"])],
        matches: &["import os\nos.environ['A']", "from os import getenv\ngetenv('A')"],
        leaves: &["env.environ"],
    },
    Rule {
        id: "PY-SECRET-FILE",
        category: Secrets,
        severity: High,
        message: "`{}` reads a file that contains secrets",
        suggestion: "pass the value as an argument",
        when: &[When::CallWith(&["open", "os.open", "pathlib.Path"], commands::first_is_secret)],
        matches: &["open('/etc/shadow')", "open('/root/.ssh/' + 'id_rsa')"],
        leaves: &["open('/etc/hosts')", "print('/etc/shadow')"],
    },
];
