//! The build cache: code in compiled languages is built once, and what is stored is never trusted.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;
mod expect;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use common::server::Server;
use common::{Answer, belljar, finish};
use expect::skip;
use serde_json::{Value, json};
use tempfile::TempDir;

/// A program in each compiled language. It prints what it reads.
const PROGRAMS: [(&str, &str, &str); 5] = [
    ("c", "gcc", "#include <stdio.h>\nint main(void) { int c; while ((c = getchar()) != EOF) putchar(c); }"),
    ("cpp", "g++", "#include <iostream>\nint main() { std::cout << std::cin.rdbuf(); }"),
    ("rust", "rustc", "fn main() { std::io::copy(&mut std::io::stdin(), &mut std::io::stdout()).unwrap(); }"),
    ("go", "go", "package main\nimport (\"io\"; \"os\")\nfunc main() { io.Copy(os.Stdout, os.Stdin) }"),
    (
        "java",
        "javac",
        "import java.io.*;\nclass Copy { static class In {} public static void main(String[] a) throws IOException { new In(); System.in.transferTo(System.out); } }",
    ),
];

/// A cache of its own, with the layers of the machine: making Go's takes a minute.
struct Cache {
    folder: TempDir,
}

impl Cache {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn run(&self, language: &str, code: &str, flags: &[&str]) -> Answer {
        self.run_with(language, code, flags, &[])
    }

    fn run_with(&self, language: &str, code: &str, flags: &[&str], variables: &[(&str, &str)]) -> Answer {
        let mut command = belljar();
        command.args(["run", "--json", "--memory", "1G", "--language", language, "-c", code]);
        command.env("BELLJAR_BUILD_CACHE_FOLDER", self.folder.path().join("builds"));
        command.env("BELLJAR_LIMITS_TIMEOUT", "2m");
        finish(command.args(flags).envs(variables.iter().copied()))
    }

    /// Returns the files of all entries.
    fn entries(&self) -> Vec<PathBuf> {
        entries(&self.folder.path().join("builds"))
    }
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let tenants = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<_> = tenants
        .flat_map(|tenant| fs::read_dir(tenant.path()).unwrap().flatten())
        .map(|file| file.path())
        .collect();
    found.sort();
    found
}

fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).exists())
}

/// Identifies an entry: one that is stored again is another file.
fn inode(path: &Path) -> u64 {
    fs::metadata(path).unwrap().ino()
}

#[test]
fn each_language_is_built_once() {
    for (language, compiler, code) in PROGRAMS {
        if !has(compiler) {
            skip("each_language_is_built_once", &format!("{compiler} is not installed"));
            continue;
        }
        let cache = Cache::new();
        let input = cache.folder.path().join("input");
        fs::write(&input, "typed").unwrap();
        let flags = ["--stdin", input.to_str().unwrap()];
        let first = cache.run(language, code, &flags);
        assert_eq!((first.status(), first.text("stdout")), ("succeeded", "typed"), "{first:#?}");
        let entries = cache.entries();
        assert_eq!(entries.len(), 1, "{language}");
        let stored = inode(&entries[0]);
        let second = cache.run(language, code, &flags);
        assert_eq!((second.status(), second.text("stdout")), ("succeeded", "typed"), "{second:#?}");
        assert_eq!((cache.entries(), inode(&entries[0])), (entries, stored), "{language} was built again");
    }
}

const HELLO: &str = "#include <stdio.h>\nint main(void) { puts(\"hello\"); }";

#[test]
fn damaged_entries_are_built_again_and_never_run() {
    let cache = Cache::new();
    let other = "#include <stdio.h>\nint main(void) { puts(\"another\"); }";
    cache.run("c", other, &[]);
    let foreign = fs::read(&cache.entries()[0]).unwrap();
    fs::remove_file(&cache.entries()[0]).unwrap();
    assert_eq!(cache.run("c", HELLO, &[]).text("stdout"), "hello\n");
    let entry = cache.entries().remove(0);
    let good = fs::read(&entry).unwrap();
    let at = good.windows(5).position(|bytes| bytes == b"hello").unwrap();
    let mut tampered = good.clone();
    tampered[at] = b'j';
    for bad in [foreign.as_slice(), &tampered, &good[..good.len() / 2], &good[..good.len() - 1], b""] {
        fs::write(&entry, bad).unwrap();
        let answer = cache.run("c", HELLO, &[]);
        assert_eq!((answer.status(), answer.text("stdout")), ("succeeded", "hello\n"), "{answer:#?}");
        assert_eq!(fs::read(&entry).unwrap().len(), good.len(), "it was stored again");
    }
    fs::remove_file(&entry).unwrap();
    std::os::unix::fs::symlink("/bin/true", &entry).unwrap();
    assert_eq!(cache.run("c", HELLO, &[]).text("stdout"), "hello\n");
}

#[test]
fn everything_that_a_build_reads_is_part_of_the_key() {
    let cache = Cache::new();
    let code = "#include <stdio.h>\n#include \"word.h\"\nint main(void) { puts(WORD); }";
    let header = |word: &str| {
        let path = cache.folder.path().join(format!("{word}.h"));
        fs::write(&path, format!("#ifndef WORD\n#define WORD \"{word}\"\n#endif\n")).unwrap();
        format!("{}:word.h", path.display())
    };
    for word in ["one", "two", "one"] {
        let answer = cache.run("c", code, &["--file", &header(word)]);
        assert_eq!(answer.text("stdout"), format!("{word}\n"), "{answer:#?}");
    }
    assert_eq!(cache.entries().len(), 2);
    let path = [
        "--env",
        "CPATH=/workspace/three",
        "--file",
        &format!("{}/three.h:three/word.h", cache.folder.path().display()),
    ];
    header("three");
    let answer = cache.run("c", &code.replace("\"word.h\"", "<word.h>"), &path);
    assert_eq!(answer.text("stdout"), "three\n", "{answer:#?}");
}

#[test]
fn a_program_cannot_change_what_the_next_run_finds() {
    let cache = Cache::new();
    let code = "#include <stdio.h>\n#include <stdlib.h>\n#include <unistd.h>\nint main(int n, char **a) {\n\
        char self[4096]; ssize_t len = readlink(\"/proc/self/exe\", self, 4095); self[len] = 0;\n\
        printf(\"%d %d \", unlink(self), access(self, W_OK)); fflush(stdout);\n\
        system(\"for f in /home/sandbox/program /workspace/.belljar-build/program; do echo changed > $f; done 2>/dev/null; ls -A /workspace /home/sandbox | tr '\\\\n' ' '\");\n\
        return 0; }";
    let first = cache.run("c", code, &[]);
    let entry = fs::read(&cache.entries()[0]).unwrap();
    let second = cache.run("c", code, &[]);
    assert_eq!((first.status(), second.status()), ("succeeded", "succeeded"), "{first:#?}");
    assert_eq!(first.text("stdout"), second.text("stdout"));
    assert!(first.text("stdout").starts_with("-1 -1 "), "{first:#?}");
    assert_eq!(fs::read(&cache.entries()[0]).unwrap(), entry);
}

#[test]
fn compilers_speak_the_same_each_time() {
    let cache = Cache::new();
    let warns = "#warning look here\nint main(void) { return 3; }";
    let (first, second) = (cache.run("c", warns, &[]), cache.run("c", warns, &[]));
    assert!(first.text("stderr").contains("look here"), "{first:#?}");
    assert_eq!(first.text("stderr"), second.text("stderr"));
    assert_eq!((&first.json["exit_code"], &second.json["exit_code"]), (&json!(3), &json!(3)));
    let wrong = cache.run("c", "int main(void) { return x; }", &[]);
    assert_eq!((wrong.status(), &wrong.json["exit_code"]), ("failed", &json!(1)), "{wrong:#?}");
    assert!(wrong.text("stderr").contains("main.c:1:"), "{wrong:#?}");
    assert_eq!(cache.entries().len(), 1, "a failed build is not stored");
}

#[test]
fn programs_with_a_network_are_built_without_one() {
    let cache = Cache::new();
    let code = "#include <net/if.h>\n#include <stdio.h>\n#include <stdlib.h>\n#warning look here\n\
        int main(void) { puts(getenv(\"HTTP_PROXY\") || if_nametoindex(\"tun0\") ? \"gate\" : \"none\"); }";
    for (flags, printed) in [(&["--network", "internet"], "gate\n"), (&["--network", "full"], "none\n")] {
        let runs = [cache.run("c", code, flags), cache.run("c", code, flags)];
        for run in &runs {
            assert_eq!((run.status(), run.text("stdout")), ("succeeded", printed), "{run:#?}");
            assert_eq!(run.text("stderr").matches("warning: ").count(), 1, "{run:#?}");
        }
        assert_eq!(runs[0].text("stderr"), runs[1].text("stderr"));
    }
    // The variables of a proxy are part of what a build can see.
    let built = cache.entries().len();
    assert!((1..=2).contains(&built), "{built}");
    // Without a network the build fails, so it is repeated with one, and only that one is shown.
    let wrong = cache.run("c", "int main(void) { return x; }", &["--network", "internet"]);
    assert_eq!((wrong.status(), wrong.text("stderr").matches("error:").count()), ("failed", 1), "{wrong:#?}");
    assert_eq!(cache.entries().len(), built);
}

#[test]
fn a_deadline_includes_the_build() {
    let cache = Cache::new();
    let endless = "int main(void) { for (;;); }";
    for _ in 0..2 {
        let answer = cache.run("c", endless, &["--timeout", "3s"]);
        assert_eq!(answer.status(), "timed_out", "{answer:#?}");
        let took = answer.json["duration_ms"].as_f64().unwrap();
        assert!(took >= 2_900.0, "{took}");
    }
}

#[test]
fn the_cache_is_a_setting() {
    let cache = Cache::new();
    let answer = cache.run_with("c", HELLO, &[], &[("BELLJAR_BUILD_CACHE_MAX_BYTES", "0")]);
    assert_eq!((answer.text("stdout"), cache.entries().len()), ("hello\n", 0), "{answer:#?}");
    let workspace = cache.folder.path().to_str().unwrap();
    let answer = cache.run("c", HELLO, &["--workspace", workspace]);
    assert_eq!((answer.text("stdout"), cache.entries().len()), ("hello\n", 0), "{answer:#?}");
}

#[test]
fn the_size_is_bounded() {
    let cache = Cache::new();
    let bound = [("BELLJAR_BUILD_CACHE_MAX_BYTES", "1M")];
    for number in 0..40 {
        let code = format!(
            "char data[30000] = {{1}};\nint main(void) {{ return data[{number}] - {}; }}",
            u8::from(number == 0)
        );
        let answer = cache.run_with("c", &code, &[], &bound);
        assert_eq!(answer.status(), "succeeded", "{answer:#?}");
    }
    let sizes: Vec<u64> = cache.entries().iter().map(|path| fs::metadata(path).unwrap().len()).collect();
    let total: u64 = sizes.iter().sum();
    assert!(total <= 1 << 20 && sizes.len() > 5 && sizes.len() < 40, "{total} {}", sizes.len());
}

#[test]
fn tenants_share_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let other = server.tenant("other", json!({}));
    let body = json!({"language": "c", "code": HELLO}).to_string();
    let builds = folder.path().join("builds");
    let default = server.post("/v1/executions", &json!({"language": "c", "code": HELLO})).json();
    assert_eq!((&default["stdout"], entries(&builds).len()), (&json!("hello\n"), 1), "{default}");
    let theirs = server.call_as(
        &other,
        "POST",
        "/v1/executions",
        "content-type: application/json\r\n",
        body.as_bytes(),
    );
    let theirs: Value = theirs.json();
    assert_eq!((&theirs["stdout"], entries(&builds).len()), (&json!("hello\n"), 2), "{theirs}");
    let folders: Vec<_> = entries(&builds).iter().map(|path| path.parent().unwrap().to_owned()).collect();
    assert_ne!(folders[0], folders[1]);
}

#[test]
fn go_finds_its_standard_library_compiled() {
    if !has("go") {
        return skip("go_finds_its_standard_library_compiled", "go is not installed");
    }
    let cache = Cache::new();
    let code = "package main\nimport (\"fmt\"; \"net/http\"; \"os\")\nfunc main() { fmt.Println(http.StatusText(404), os.Getenv(\"GOCACHE\")) }";
    // The first run of the machine makes the library.
    cache.run("go", code, &[]);
    let again = cache.run("go", &code.replace("404", "403"), &[]);
    assert_eq!((again.status(), again.text("stdout")), ("succeeded", "Forbidden \n"), "{again:#?}");
    // Compiling net/http and what it needs takes more disk space than this program has.
    let little = cache.run("go", &code.replace("404", "402"), &["--disk", "64M"]);
    assert_eq!((little.status(), little.text("stdout")), ("succeeded", "Payment Required \n"), "{little:#?}");
}
