//! A host folder as the workspace, further mounts, and files that are copied in.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot be prepared fails")]

mod common;
mod expect;

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use common::{Answer, finish, is_root, run};
use expect::{Expect, run_code, skip};
use tempfile::TempDir;

/// A folder with a workspace folder in it, owned by another user, and files that the program must not see.
struct Ground {
    folder: TempDir,
    owner: (u32, u32),
}

impl Ground {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        fs::create_dir(folder.path().join("work")).unwrap();
        fs::write(folder.path().join("private"), "private").unwrap();
        let own = folder.path().metadata().unwrap();
        // Only root can create a folder of another user.
        let owner = if is_root() { (12_345, 12_346) } else { (own.uid(), own.gid()) };
        let ground = Self { folder, owner };
        ground.give_to_owner(&ground.work(""));
        ground
    }

    fn work(&self, path: &str) -> PathBuf {
        self.folder.path().join("work").join(path)
    }

    fn write(&self, path: &str, content: &str) -> String {
        fs::write(self.work(path), content).unwrap();
        self.give_to_owner(&self.work(path));
        self.work(path).to_str().unwrap().to_owned()
    }

    fn give_to_owner(&self, path: &Path) {
        std::os::unix::fs::chown(path, Some(self.owner.0), Some(self.owner.1)).unwrap();
    }

    fn run(&self, arguments: &[&str]) -> Answer {
        run([&["--workspace", self.work("").to_str().unwrap()], arguments].concat())
    }

    fn bash(&self, code: &str) -> Answer {
        self.run(&["--language", "bash", "-c", code])
    }

    /// Returns everything below the workspace folder, sorted.
    fn entries(&self) -> Vec<PathBuf> {
        let (mut found, mut waiting) = (Vec::new(), vec![self.work("")]);
        while let Some(folder) = waiting.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.symlink_metadata().unwrap().is_dir() {
                    waiting.push(path.clone());
                }
                found.push(path);
            }
        }
        found.sort();
        found
    }

    fn names(&self) -> Vec<String> {
        let base = self.work("");
        let name = |path: &PathBuf| path.strip_prefix(&base).unwrap().display().to_string();
        self.entries().iter().map(name).collect()
    }
}

#[test]
fn a_run_creates_changes_and_deletes_workspace_files() {
    let ground = Ground::new();
    ground.write("changed", "old");
    ground.write("deleted", "old");
    ground
        .bash("pwd; cat changed; echo new > changed; rm deleted; mkdir -p a/b; echo x > a/b/c")
        .printed("/workspace\nold");
    assert_eq!(ground.names(), ["a", "a/b", "a/b/c", "changed"]);
    assert_eq!(fs::read_to_string(ground.work("changed")).unwrap(), "new\n");
}

#[test]
fn new_files_belong_to_the_folders_owner() {
    let ground = Ground::new();
    ground.write("kept", "old");
    ground
        .bash(
            "test -O kept && echo >> kept && mkdir d && touch d/f && ln -s f d/l && mkfifo p && cp kept copy",
        )
        .succeeded();
    for path in ground.entries() {
        let found = path.symlink_metadata().unwrap();
        assert_eq!((found.uid(), found.gid()), ground.owner, "{}", path.display());
    }
}

#[test]
fn new_files_have_no_special_bits() {
    let ground = Ground::new();
    let code = "
import os, stat, subprocess
def tries(*attempts):
    for attempt in attempts:
        try: attempt()
        except OSError as error: print(error.errno)
        else: print('done')
open('tool', 'w').close(); os.mkdir('folder')
tries(lambda: os.chmod('tool', 0o4755), lambda: os.chmod('tool', 0o2755), lambda: os.chmod('folder', 0o2777),
      lambda: os.close(os.open('direct', os.O_CREAT, 0o6755)),
      lambda: os.mknod('block', stat.S_IFBLK | 0o666, os.makedev(8, 0)),
      lambda: os.mknod('null', stat.S_IFCHR | 0o666, os.makedev(1, 3)),
      lambda: os.mknod('white', stat.S_IFCHR | 0o666, os.makedev(0, 0)))
assert subprocess.run(['chmod', 'u+s', 'tool'], stderr=subprocess.DEVNULL).returncode
";
    let answer = ground.run(&["-c", code]);
    answer.printed("1\n1\n1\n1\n1\n1\n1\n");
    for path in ground.entries() {
        let found = path.symlink_metadata().unwrap();
        assert_eq!(found.mode() & 0o6000, 0, "{}", path.display());
        assert!(found.is_file() || found.is_dir(), "{}", path.display());
    }
}

#[test]
fn existing_set_id_bits_have_no_effect_inside() {
    let ground = Ground::new();
    fs::copy("/usr/bin/id", ground.work("id")).unwrap();
    ground.give_to_owner(&ground.work("id"));
    fs::set_permissions(ground.work("id"), Permissions::from_mode(0o6755)).unwrap();
    ground
        .bash("test \"$(./id -u)\" = \"$(id -u)\" && grep -q nosuid <(grep ' /workspace ' /proc/self/mounts)")
        .succeeded();
}

#[test]
fn writes_outside_the_workspace_are_refused() {
    let ground = Ground::new();
    symlink(ground.folder.path(), ground.work("out")).unwrap();
    let private = ground.folder.path().join("private");
    let code = format!(
        "for path in /usr/x /etc/x /x /workspace/../x {0} out/private out/x; do (echo x > $path) 2>/dev/null && echo $path; done
         cat {0} out/private ../private 2>/dev/null; rm -rf out/* ../* 2>/dev/null; true",
        private.display()
    );
    ground.bash(&code).printed("");
    assert_eq!(fs::read_to_string(private).unwrap(), "private");
    let mut beside: Vec<_> =
        fs::read_dir(ground.folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    beside.sort();
    assert_eq!(beside, ["private", "work"]);
}

#[test]
fn unsuitable_workspace_folders_are_refused() {
    let ground = Ground::new();
    let link = ground.folder.path().join("link");
    symlink(ground.work(""), &link).unwrap();
    let home = std::env::var("HOME").unwrap();
    let file = ground.folder.path().join("private");
    for (path, reason) in [
        ("/", "is a system folder"),
        ("/usr", "is a system folder"),
        ("/etc/ssl", "is a system folder"),
        ("/tmp", "is a system folder"),
        (home.as_str(), "folder"),
        (link.to_str().unwrap(), "is a symbolic link"),
        (file.to_str().unwrap(), "is not a folder"),
        ("/nonexistent", "No such file"),
    ] {
        let answer = run(["--workspace", path, "--", "touch", "/workspace/x"]);
        answer.refused_with(reason);
    }
    assert_eq!(ground.names(), Vec::<String>::new());
}

#[test]
fn code_leaves_no_file_behind() {
    let ground = Ground::new();
    ground.write("main.py", "print('the folder has its own')");
    ground.run(&["-c", "import os; print(os.listdir())"]).printed("['main.py']\n");
    ground.run(&["-c", "def main(x): return x", "--args", "{\"x\": 1}"]).succeeded();
    let timed_out = ground.run(&["-c", "while True: pass", "--timeout", "300ms"]);
    assert_eq!(timed_out.status(), "timed_out");
    assert_eq!(ground.names(), ["main.py"]);
    assert_eq!(fs::read_to_string(ground.work("main.py")).unwrap(), "print('the folder has its own')");
}

#[test]
fn a_file_of_the_folder_runs_in_place() {
    let ground = Ground::new();
    fs::create_dir(ground.work("package")).unwrap();
    ground.write("package/beside.py", "WORD = 'beside'");
    let file = ground.write("package/tool.py", "import beside; print(__file__, beside.WORD)");
    ground.run(&[&file]).printed("/workspace/package/tool.py beside\n");
    let script = ground.write("run.sh", "echo $0");
    ground.run(&[&script]).printed("/workspace/run.sh\n");
    let module = ground.write("sum.js", "exports.main = ({ a, b }) => a + b");
    assert_eq!(ground.run(&[&module, "--args", "{\"a\": 1, \"b\": 2}"]).value(), Some(&3.into()));
    assert_eq!(ground.names(), ["package", "package/beside.py", "package/tool.py", "run.sh", "sum.js"]);
}

/// Only root can mount something here; an ordinary user's kernel would not let it hide a mount below.
#[test]
fn mounts_below_the_workspace_are_hidden() {
    if !is_root() {
        return skip("mounts_below_the_workspace_are_hidden", "only root can mount a file system");
    }
    let ground = Ground::new();
    fs::create_dir(ground.work("below")).unwrap();
    let script = "mount -t tmpfs none \"$1/below\" && touch \"$1/below/secret\" && \
        exec \"$0\" run --json --workspace \"$1\" -- ls below";
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_belljar")]).arg(ground.work(""));
    finish(&mut command).printed("");
}

#[test]
fn a_disk_quota_cannot_be_required_for_a_host_folder() {
    let ground = Ground::new();
    ground.run(&["--require", "disk_quota", "-c", "1"]).refused_with("disk_quota");
    let answer = ground.run(&["-c", "1"]);
    assert!(!answer.succeeded().has_layer("disk_quota") && answer.has_layer("read_only_root"));
}

// ── Mounts ───────────────────────────────────────────────────────────────────────────────────────────────────────

fn with_mount(mount: &str, code: &str) -> Answer {
    run_code("bash", code, &["--mount", mount])
}

#[test]
fn mounts_are_read_only_unless_asked_for() {
    let ground = Ground::new();
    ground.write("data", "1");
    let source = ground.work("").display().to_string();
    let source = source.trim_end_matches('/');
    for mount in
        [format!("{source}:/data"), format!("{source}:/opt/deep/data:ro"), format!("{source}:/tmp/x/data")]
    {
        let inside = mount.split(':').nth(1).unwrap();
        let code = format!(
            "cat {inside}/data; (echo 2 > {inside}/data) 2>&1 | grep -o 'Read-only'; touch {inside}/new; true"
        );
        with_mount(&mount, &code).printed("1Read-only\n");
    }
    assert_eq!(
        (ground.names(), fs::read_to_string(ground.work("data")).unwrap()),
        (vec!["data".into()], "1".into())
    );
    let answer = with_mount(&format!("{source}:/data:rw"), "echo 2 > /data/data; touch /data/new");
    assert!(!answer.succeeded().has_layer("disk_quota"));
    assert_eq!(ground.names(), ["data", "new"]);
    assert_eq!(ground.work("new").metadata().unwrap().uid(), ground.owner.0);
}

#[test]
fn a_single_file_is_mounted() {
    let ground = Ground::new();
    let file = ground.write("data.csv", "a,b\n");
    ground.write("beside", "not shown");
    for inside in ["/data.csv", "/workspace/in/data.csv", "/home/sandbox/data.csv"] {
        let code = format!("cat {inside}; ls $(dirname {inside}) | grep -c beside; true");
        with_mount(&format!("{file}:{inside}"), &code).printed("a,b\n0\n");
    }
    with_mount(&format!("{file}:/data.csv:rw"), "echo c,d >> /data.csv").succeeded();
    assert_eq!(fs::read_to_string(file).unwrap(), "a,b\nc,d\n");
}

#[test]
fn mounts_are_checked() {
    let ground = Ground::new();
    let source = ground.folder.path().join("work").display().to_string();
    let link = ground.folder.path().join("link");
    symlink(&source, &link).unwrap();
    let link = link.display().to_string();
    for (mount, reason) in [
        (format!("{source}:relative"), "absolute"),
        (format!("{source}:/a/../b"), "'..'"),
        (format!("{source}:/proc/x"), "reserved by Belljar"),
        (format!("{source}:/dev/shm/x"), "reserved by Belljar"),
        (format!("{source}:/workspace"), "reserved by Belljar"),
        (source.clone(), "no destination"),
        (format!("{link}:/data"), "is a symbolic link"),
        ("/nonexistent:/data".to_owned(), "No such file"),
        ("/:/host".to_owned(), "is a system folder"),
        ("/usr:/data:rw".to_owned(), "is a system folder"),
        ("/dev/null:/data".to_owned(), "neither a folder nor a regular file"),
    ] {
        with_mount(&mount, "true").refused_with(reason);
    }
}

// ── Files ────────────────────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn files_are_copied_with_their_modes() {
    let ground = Ground::new();
    let file = ground.write("tool", "#!/bin/sh\necho runs\n");
    fs::set_permissions(&file, Permissions::from_mode(0o750)).unwrap();
    let deep = format!("{file}:bin/deep/tool");
    let code = "stat -c %a tool bin/deep/tool; ./bin/deep/tool; echo changed > tool";
    run_code("bash", code, &["--file", &file, "--file", &deep]).printed("750\n750\nruns\n");
    assert_eq!(fs::read_to_string(&file).unwrap(), "#!/bin/sh\necho runs\n");
}

#[test]
fn a_folder_is_copied_whole_and_links_are_not_followed() {
    let ground = Ground::new();
    fs::create_dir_all(ground.work("data/deep")).unwrap();
    fs::write(ground.work("data/deep/b"), b"\xff\x00").unwrap();
    fs::write(ground.work("data/a"), "").unwrap();
    symlink("/etc/passwd", ground.work("data/link")).unwrap();
    let folder = ground.work("data").display().to_string();
    let code = "find . -type f -o -type l | grep -v main.sh | sort; od -An -tx1 */deep/b";
    run_code("bash", code, &["--file", &folder]).printed("./data/a\n./data/deep/b\n ff 00\n");
    run_code("bash", code, &["--file", &format!("{folder}:in")]).printed("./in/a\n./in/deep/b\n ff 00\n");
}

#[test]
fn file_destinations_stay_inside() {
    let ground = Ground::new();
    let file = ground.write("f", "x");
    for destination in ["../f", "/etc/f", "a/../../f", "a/./f", ""] {
        let answer = run_code("bash", "true", &["--file", &format!("{file}:{destination}")]);
        assert_eq!(answer.code, Some(125), "{destination}: {answer:#?}");
    }
    // A symbolic link in the workspace must not lead a copied file out of it.
    symlink("..", ground.work("out")).unwrap();
    let answer = ground.run(&["--file", &format!("{file}:out/escaped"), "--", "true"]);
    assert_eq!(answer.code, Some(125), "{answer:#?}");
    assert!(!ground.folder.path().join("escaped").exists());
}
