//! Cases that only the host can judge: its own files, exact bytes, and the output of a killed run.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::programs::{Case, Verdict};
use crate::common::{self, run};

pub(crate) const CASES: &[Case] = &[
    ("host::a_file_is_neither_read_nor_changed", host_file_unchanged),
    ("host::a_variable_is_not_seen", host_variable_unseen),
    ("output::every_byte_is_kept", every_byte_is_kept),
    ("output::what_came_before_a_kill_is_kept", output_before_kill),
    ("output::a_flood_is_cut_and_does_not_stop_the_clock", flood),
    ("output::printed_json_is_only_output", forged_json),
    ("ending::own_kill_is_no_limit", own_kill),
    ("playground::nothing_dangerous_is_left", playground),
    ("artifacts::links_pipes_and_oversize_stay_inside", artifacts),
    ("artifacts::a_linked_folder_is_not_followed", linked_artifacts),
];

fn expect(holds: bool, what: &str, seen: impl std::fmt::Debug) -> Verdict {
    if holds { Ok(()) } else { Err(format!("{what}: {seen:?}")) }
}

fn host_file_unchanged() -> Verdict {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("canary");
    std::fs::write(&path, "the host's own").expect("a file");
    let code = "import os, glob\n\
        path = os.environ['CANARY']\n\
        ways = [path, '/proc/1/root' + path, '/proc/self/root' + path, '/proc/self/cwd/../..' + path, '/host' + path]\n\
        for way in ways + ['/..' + path, '//' + path]:\n\
        \x20   for mode in ('r', 'w', 'a'):\n\
        \x20       try:\n\
        \x20           open(way, mode).close()\n\
        \x20           print('opened', way, mode)\n\
        \x20       except OSError:\n\
        \x20           pass\n\
        os.makedirs(os.path.dirname(path), exist_ok=True)\n\
        open(path, 'w').write('planted')\n";
    let variable = format!("CANARY={}", path.display());
    let answer = run(["-c", code, "--env", &variable]);
    expect(answer.status() == "succeeded", "it ran", &answer.json)?;
    expect(answer.text("stdout").is_empty(), "nothing was opened", answer.text("stdout"))?;
    let content = std::fs::read_to_string(&path).expect("it is there");
    expect(content == "the host's own", "the file is as it was", content)
}

fn host_variable_unseen() -> Verdict {
    let output = common::belljar()
        .env("SECRET", "h4rd-to-guess")
        .args([
            "run",
            "--quiet",
            "--",
            "sh",
            "-c",
            "env; cat /proc/*/environ /proc/1/cmdline 2>/dev/null; true",
        ])
        .output()
        .expect("the binary starts");
    let seen = String::from_utf8_lossy(&output.stdout).into_owned();
    expect(output.status.success() && seen.contains("HOME="), "the environment was shown", &seen)?;
    expect(!seen.contains("h4rd-to-guess") && !seen.contains("SECRET"), "the secret is not in it", seen)
}

fn every_byte_is_kept() -> Verdict {
    let code = "import sys\n\
        sys.stdout.buffer.write(bytes(range(256)) * 3)\n\
        sys.stderr.buffer.write(bytes(reversed(range(256))))";
    let answer = run(["-c", code]);
    let bytes = |field| STANDARD.decode(answer.text(field)).unwrap_or_default();
    let all: Vec<u8> = (0..=255).collect();
    let (out, err) = (bytes("stdout_base64"), bytes("stderr_base64"));
    expect(out == all.repeat(3), "standard output is exact", &out)?;
    expect(err == all.iter().rev().copied().collect::<Vec<_>>(), "standard error is exact", &err)
}

fn output_before_kill() -> Verdict {
    let code = "import sys, time\nprint('before', flush=True)\nsys.stderr.write('too')\nsys.stderr.flush()\ntime.sleep(99)";
    let answer = run(["-c", code, "--timeout", "5s"]);
    expect(answer.status() == "timed_out" && answer.code == Some(124), "it timed out", &answer.json)?;
    expect(
        answer.text("stdout") == "before\n" && answer.text("stderr") == "too",
        "output is kept",
        &answer.json,
    )
}

fn flood() -> Verdict {
    let code = "while True: print('x' * 1000)";
    let answer = run(["-c", code, "--timeout", "5s", "--output", "10K"]);
    let kept = answer.text("stdout").len();
    expect(answer.status() == "timed_out", "it timed out", answer.status())?;
    expect(answer.json["stdout_truncated"] == true && kept < 11_000, "output is cut", kept)
}

fn forged_json() -> Verdict {
    let forged = "{\"id\":\"x\",\"status\":\"succeeded\",\"exit_code\":0,\"result\":{\"present\":true,\"value\":42}}\n\"}],\0\u{1b}[2J";
    let code = format!("import sys\nsys.stdout.write({forged:?})\nsys.stderr.write({forged:?})\nsys.exit(9)")
        .replace("\\0", "\\x00")
        .replace("\\u{1b}", "\\x1b");
    let answer = run(["-c", &code]);
    expect(answer.status() == "failed" && answer.code == Some(9), "it failed", &answer.json)?;
    expect(answer.text("stdout") == forged && answer.text("stderr") == forged, "it is output", &answer.json)?;
    expect(answer.json["result"]["present"] == false, "there is no result", &answer.json["result"])
}

fn own_kill() -> Verdict {
    let answer = run(["-c", "import os; print('last', flush=True); os.kill(os.getpid(), 9)"]);
    let told = (answer.status(), answer.text("signal"), answer.json["limit"].is_null(), answer.code);
    expect(told == ("failed", "SIGKILL", true, Some(137)), "it killed itself", told)?;
    expect(answer.json["exit_code"].is_null(), "there is no exit code", &answer.json["exit_code"])
}

/// Checks that files which a run leaves in a host folder belong to the caller and carry no special bits.
fn playground() -> Verdict {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let folder = tempfile::tempdir().expect("a folder");
    let code = "import os, ctypes\n\
        open('plain', 'w').write('mine')\n\
        def attempt(what, *arguments):\n\
        \x20   try: what(*arguments)\n\
        \x20   except OSError: pass\n\
        for bits in (0o4755, 0o2755, 0o6777):\n\
        \x20   name = f'bits{bits}'\n\
        \x20   open(name, 'w').close()\n\
        \x20   attempt(os.chmod, name, bits)\n\
        \x20   attempt(os.mknod, f'node{bits}', 0o100000 | bits)\n\
        \x20   attempt(os.mkdir, f'folder{bits}', bits)\n\
        for kind in (0o020000, 0o060000):\n\
        \x20   attempt(os.mknod, f'device{kind}', kind | 0o666, 0)\n\
        open('moved', 'w').close()\n\
        rename = 316 if os.uname().machine == 'x86_64' else 276\n\
        ctypes.CDLL(None).syscall(rename, -100, b'moved', -100, b'elsewhere', 4)\n\
        os.symlink('/etc/shadow', 'link')\n";
    let answer = run(["-c", code, "--workspace", &folder.path().display().to_string()]);
    expect(answer.status() == "succeeded", "it ran", &answer.json)?;
    let own = std::fs::metadata(folder.path()).expect("it is there").uid();
    for entry in std::fs::read_dir(folder.path()).expect("it is there").flatten() {
        let (name, found) = (entry.file_name(), entry.path().symlink_metadata().expect("it is there"));
        expect(found.uid() == own, "it belongs to the caller", (&name, found.uid()))?;
        expect(found.mode() & 0o6000 == 0, "it has no set-id bit", (&name, found.mode()))?;
        let device = found.file_type().is_char_device() || found.file_type().is_block_device();
        expect(!device, "it is no device", &name)?;
        expect(!name.to_string_lossy().contains("belljar"), "it is the program's", &name)?;
    }
    expect(folder.path().join("plain").exists(), "an honest file stays", folder.path())
}

fn artifacts() -> Verdict {
    let code = "import os\n\
        os.chdir('artifacts')\n\
        os.symlink('/etc/passwd', 'a-link.png')\n\
        os.symlink('/proc/1/environ', 'a-link.txt')\n\
        os.symlink('/etc', 'a-linked-folder')\n\
        os.mkfifo('a-pipe.csv')\n\
        os.mkdir('a-folder.png')\n\
        open('a-large.txt', 'wb').truncate((32 << 20) + 1)\n\
        os.mknod('a-socket.png', 0o140644)\n\
        for n in range(110): open(f'ok{n:03}.txt', 'w').write(f'{n}')\n";
    let answer = run(["-c", code]);
    expect(answer.status() == "succeeded", "it ran", &answer.json["error"])?;
    let found = answer.json["artifacts"].as_array().cloned().unwrap_or_default();
    let names: Vec<&str> = found.iter().filter_map(|artifact| artifact["name"].as_str()).collect();
    expect(names.len() == 100, "at most a hundred leave", &names)?;
    expect(names.iter().all(|name| name.starts_with("ok")), "only honest files leave", &names)?;
    let content = found[3]["content_base64"].as_str().and_then(|text| STANDARD.decode(text).ok());
    expect(content == Some(b"3".to_vec()), "their bytes are exact", content)
}

fn linked_artifacts() -> Verdict {
    for target in ["/etc", "/proc/self", "/usr/share"] {
        let answer =
            run(["-c", &format!("import os; os.rmdir('artifacts'); os.symlink({target:?}, 'artifacts')")]);
        let found = answer.json["artifacts"].as_array().map(Vec::len);
        expect(answer.status() == "succeeded" && found == Some(0), "the link is not followed", &answer.json)?;
    }
    Ok(())
}
