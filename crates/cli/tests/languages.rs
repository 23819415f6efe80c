//! Runs programs in every supported language: hello, an exit status, an error, and arguments of `main` where
//! supported.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot be prepared fails")]

mod common;
mod expect;

use std::os::unix::fs::symlink;
use std::path::Path;

use belljar_engine::language::LANGUAGES;
use common::{Answer, belljar, finish, run};
use expect::{Expect, everything, packages, run_code, skip};
use serde_json::json;

/// Three programs in a language, and the error that its runtime reports for the last one.
struct Case {
    hello: &'static str,
    exit_seven: &'static str,
    mistake: &'static str,
    complaint: &'static str,
    /// Whether it runs only in the second tier.
    big: bool,
}

const fn case(
    hello: &'static str,
    exit_seven: &'static str,
    mistake: &'static str,
    complaint: &'static str,
) -> Case {
    Case { hello, exit_seven, mistake, complaint, big: false }
}

const fn big(case: Case) -> Case {
    Case { big: true, ..case }
}

macro_rules! languages {
    ($($name:ident => $case:expr;)+) => {
        const TESTED: &[&str] = &[$(stringify!($name)),+];
        $(#[test] fn $name() { check(stringify!($name), &$case); })+
    };
}

languages! {
    python => case("print('hello')", "raise SystemExit(7)", "def", "SyntaxError");
    javascript => case("console.log('hello')", "process.exit(7)", "let = =", "SyntaxError");
    typescript => big(case(
        "const word: string = 'hello'; console.log(word)",
        "const status: number = 7; process.exit(status)",
        "let = =",
        "rror",
    ));
    bash => case("echo hello", "exit 7", "if", "syntax error");
    ruby => case("puts 'hello'", "exit 7", "def", "syntax error");
    perl => case("print qq(hello\\n)", "exit 7", "my $x = ;", "syntax error");
    php => case("<?php echo \"hello\\n\";", "<?php exit(7);", "<?php echo 1 +;", "syntax error");
    lua => case("print('hello')", "os.exit(7)", "x = = 1", "unexpected symbol");
    r => big(case("cat('hello\\n')", "quit(status = 7)", "x <- ", "unexpected end of input"));
    go => big(case(
        "package main\nimport \"fmt\"\nfunc main() { fmt.Println(\"hello\") }",
        "package main\nimport \"os\"\nfunc main() { os.Exit(7) }",
        "package main\nfunc main() { x }",
        "undefined: x",
    ));
    rust => big(case(
        "fn main() { println!(\"hello\"); }",
        "fn main() { std::process::exit(7) }",
        "fn main() { x }",
        "cannot find value `x`",
    ));
    c => case(
        "#include <stdio.h>\nint main(void) { puts(\"hello\"); }",
        "int main(void) { return 7; }",
        "int main(void) { return x; }",
        "'x' undeclared",
    );
    cpp => case(
        "#include <iostream>\nint main() { std::cout << \"hello\" << std::endl; }",
        "int main() { return 7; }",
        "int main() { return x; }",
        "'x' was not declared",
    );
    java => big(case(
        "public class Main { public static void main(String[] a) { System.out.println(\"hello\"); } }",
        "public class Main { public static void main(String[] a) { System.exit(7); } }",
        "public class Main { public static void main(String[] a) { x; } }",
        "not a statement",
    ));
}

#[test]
fn every_supported_language_is_tested() {
    let listed: Vec<_> = LANGUAGES.iter().map(|language| language.name).collect();
    assert_eq!(TESTED, listed);
}

/// Runs code with the memory that compilers need. A runtime installed by `./test --all` is found through
/// `PATH`.
fn run_roomy(language: &str, code: &str, further: &[&str]) -> Answer {
    let roomy =
        ["--timeout", "5m", "--memory", "2G", "--disk", "1G", "--processes", "256", "--env", "LC_ALL=C"];
    let mut command = belljar();
    command.args(["run", "--json", "--language", language, "-c", code]).args(roomy).args(further);
    if let (true, Some(folder)) = (language == "typescript", packages("node/node_modules/.bin")) {
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", folder.display()));
    }
    finish(&mut command)
}

/// Returns whether a language can be tested here; prints why not.
fn is_here(name: &str, case_is_big: bool) -> bool {
    if case_is_big && !everything() {
        skip(name, "a big toolchain; only with ./test --all");
        return false;
    }
    let tried = run_roomy(name, " ", &[]);
    let missing = tried.error_code() == "language_unavailable";
    if missing {
        skip(name, tried.error_message());
    }
    !missing
}

fn check(name: &str, case: &Case) {
    if !is_here(name, case.big) {
        return;
    }
    run_roomy(name, case.hello, &[]).printed("hello\n");
    let exit = run_roomy(name, case.exit_seven, &[]);
    assert_eq!(
        (exit.status(), exit.code, &exit.json["exit_code"]),
        ("failed", Some(7), &json!(7)),
        "{exit:#?}"
    );
    let mistake = run_roomy(name, case.mistake, &[]);
    mistake.failed_with(case.complaint);
    assert_eq!(mistake.text("stdout"), "");
    assert!(!mistake.text("error").is_empty());
}

// ── Arguments and results ────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn python_main() {
    let call = |code, arguments| run_code("python", code, &["--args", arguments]);
    let plain = call("def main(a, b=2): print('seen'); return {'sum': a + b}", r#"{"a": 40}"#);
    assert_eq!((plain.text("stdout"), plain.value()), ("seen\n", Some(&json!({"sum": 42}))), "{plain:#?}");
    let asynchronous = "import asyncio\nasync def main(x):\n    await asyncio.sleep(0)\n    return [x]";
    assert_eq!(call(asynchronous, r#"{"x": "\u00e9"}"#).value(), Some(&json!(["é"])));
    assert_eq!(call("def main(**all): return all", r#"{"n": null}"#).value(), Some(&json!({"n": null})));
    assert_eq!(call("def main(): pass", "{}").value(), Some(&json!(null)));

    call("x = 1", "{}").failed_with("NameError: name 'main' is not defined");
    let unexpected = call("def main(): pass", r#"{"x": 1}"#);
    unexpected.failed_with("TypeError: main() got an unexpected keyword argument 'x'");
    assert_eq!(unexpected.value(), None);
    call("def main(x): pass", "{}").failed_with("TypeError: main() missing 1 required positional argument");
    call("def main(): return object()", "{}")
        .failed_with("TypeError: result is a value of type object, which JSON does not have");
}

#[test]
fn printed_output_is_not_a_result() {
    let code = "def main(): print('{\"present\": true, \"value\": 1}'); raise SystemExit(0)";
    assert_eq!(run_code("python", code, &["--args", "{}"]).succeeded().value(), None);
    assert_eq!(
        run_code("python", "def main(): return 1", &[]).succeeded().value(),
        None,
        "main was not called"
    );
}

#[test]
fn javascript_main() {
    let call = |code| run_code("javascript", code, &["--args", r#"{"n": 41}"#]);
    for code in [
        "function main(args) { return args.n + 1 }",
        "const main = ({ n }) => n + 1",
        "async function main(args) { await null; return args.n + 1 }",
        "module.exports = { main: (args) => args.n + 1 }",
        "module.exports.main = async (args) => args.n + 1",
        "module.exports = (args) => args.n + 1",
    ] {
        assert_eq!(call(code).value(), Some(&json!(42)), "{code}");
    }
    assert_eq!(call("function main() {}").succeeded().value(), Some(&json!(null)), "undefined is null");
    call("const x = 1").failed_with("ReferenceError: main is not defined");
    call("function main(args) { return args.no.such }").failed_with("TypeError");
}

const MODULES: &[&str] = &[
    "export function main(args) { return args.n + 1 }",
    "export async function main({ n }) { return await n + 1 }",
    "export default function (args) { return args.n + 1 }",
    "import os from 'node:os'; const main = (args) => args.n + (os.EOL === '\\n' ? 1 : 0); export { main }",
    "const start = await Promise.resolve(1); function main(args) { return args.n + start }",
];

#[test]
fn javascript_modules() {
    let probe = run_code("javascript", "export const x = 1", &[]);
    if probe.text("stderr").contains("Unexpected token 'export'") {
        return skip("javascript_modules", "this Node.js takes modules for .mjs files only; 20.19 or later");
    }
    for code in MODULES {
        let ran = run_code("javascript", code, &["--args", r#"{"n": 41}"#]);
        assert_eq!(ran.value(), Some(&json!(42)), "{ran:#?}");
    }
}

#[test]
fn javascript_file_extensions_select_the_module_kind() {
    let folder = tempfile::tempdir().unwrap();
    let call = |name: &str, code: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, code).unwrap();
        run([path.to_str().unwrap(), "--args", r#"{"n": 41}"#])
    };
    for code in MODULES {
        assert_eq!(call("a.mjs", code).value(), Some(&json!(42)), "{code}");
    }
    assert_eq!(call("a.cjs", "exports.main = (args) => args.n + 1").value(), Some(&json!(42)));
    call("b.mjs", "module.exports = { main() {} }").failed_with("ReferenceError");
    call("b.cjs", "export function main() {}").failed_with("SyntaxError");
}

#[test]
fn typescript_main() {
    if !is_here("typescript_main", true) {
        return;
    }
    for code in [
        "function main(args: { n: number }): number { return args.n + 1 }",
        "export async function main(args: { n: number }): Promise<number> { return args.n + 1 }",
        "export default (args: { n: number }) => args.n + 1",
    ] {
        let ran = run_roomy("typescript", code, &["--args", r#"{"n": 41}"#]);
        assert_eq!(ran.value(), Some(&json!(42)), "{ran:#?}");
    }
}

/// Uses the first TypeScript runtime in the table; the tests above use the second, because distributions ship
/// an older Node.js.
#[test]
fn typescript_by_nodejs_itself() {
    let name = "typescript_by_nodejs_itself";
    if !everything() {
        return skip(name, "needs a newer Node.js; only with ./test --all");
    }
    let Some(folder) = packages("newer-node/node_modules/node/bin") else {
        return skip(name, "no newer Node.js is installed");
    };
    let path = format!("{}:/usr/bin:/bin", folder.display());
    let code = "const version: string = process.version; console.log(version.startsWith('v24'))";
    let mut command = belljar();
    command.env("PATH", path).args(["run", "--json", "--language", "typescript", "-c", code]);
    finish(&mut command).printed("true\n");
}

#[test]
fn bash_gets_its_arguments_as_variables() {
    let arguments = r#"{"name": "Ada L", "n": 3, "list": [1, "a"], "flag": true, "none": null}"#;
    let ran = run_code("bash", r#"echo "$name|$n|$list|$flag|$none""#, &["--args", arguments]);
    ran.printed("Ada L|3|[1,\"a\"]|true|null\n");
    assert_eq!(ran.value(), None);
}

#[test]
fn languages_without_arguments_refuse_them() {
    run_code("perl", "1", &["--args", "{}"]).refused_with("arg");
}

// ── Programs and images ──────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn a_plain_program_runs() {
    run(["--", "printf", "%s|", "a b", "--json", ""]).printed("a b|--json||");
    let status = run(["--", "sh", "-c", "exit 9"]);
    assert_eq!((status.status(), status.code), ("failed", Some(9)));
    run(["--env", "WORD=hi", "--workdir", "/tmp", "--", "sh", "-c", "echo $WORD $PWD"]).printed("hi /tmp\n");
    let none = run(["--", "no-such-program"]);
    assert_eq!((none.code, none.error_message().contains("no-such-program")), (Some(125), true), "{none:#?}");
}

/// Creates a root with only a static BusyBox, if this machine has one.
fn tiny_root(folder: &Path) -> bool {
    let busybox = ["/bin/busybox", "/usr/bin/busybox"].iter().map(Path::new).find(|path| path.exists());
    std::fs::create_dir_all(folder.join("bin")).unwrap();
    let Some(busybox) = busybox else { return false };
    std::fs::copy(busybox, folder.join("bin/busybox")).unwrap();
    ["sh", "uname", "ls", "cat"].iter().all(|name| symlink("busybox", folder.join("bin").join(name)).is_ok())
}

#[test]
fn a_missing_language_names_its_package() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("bin")).unwrap();
    let root = folder.path().to_str().unwrap();
    for language in LANGUAGES {
        let ran = run_code(language.name, "1", &["--image", root]);
        ran.refused_with(language.install);
        assert_eq!(ran.error_code(), "language_unavailable");
    }
}

#[test]
fn an_unpacked_root_is_the_root() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_str().unwrap();
    if !tiny_root(folder.path()) {
        return skip(
            "an_unpacked_root_is_the_root",
            "busybox is not installed: apt-get install busybox-static",
        );
    }
    let ran =
        run(["--image", root, "--", "sh", "-c", "uname && ls / && cat note && ! ls /usr /etc 2>/dev/null"]);
    if ran.error_message().contains("ENOENT") {
        return skip(
            "an_unpacked_root_is_the_root",
            "this busybox is not static: apt-get install busybox-static",
        );
    }
    assert_eq!(ran.status(), "failed", "the note does not exist: {ran:#?}");
    let note = folder.path().join("note");
    std::fs::write(&note, "inside\n").unwrap();
    let note = note.to_str().unwrap();
    run([
        "--image",
        root,
        "--file",
        note,
        "--",
        "sh",
        "-c",
        "uname && cat note && ! ls /usr /etc 2>/dev/null",
    ])
    .printed("Linux\ninside\n");
}

#[test]
fn an_unpacked_debian_has_its_own_interpreters() {
    let test = "an_unpacked_debian_has_its_own_interpreters";
    if !everything() {
        return skip(test, "takes long; only with ./test --all");
    }
    let Some(root) = packages("root") else {
        return skip(test, "no debootstrap root exists: ./test --all creates it");
    };
    let image = ["--image", root.to_str().unwrap()];
    let code = "import os, sys; print(sys.executable, os.path.exists('/etc/debian_version'), os.getcwd())";
    run_code("python", code, &image).printed("/usr/bin/python3 True /workspace\n");
    run_code("python", "def main(n): return n + 1", &[&image[..], &["--args", r#"{"n": 41}"#]].concat())
        .succeeded();
    run_code("perl", "print qq(hello\\n)", &image).printed("hello\n");
    run_code("bash", "touch /usr/x /x || grep -c . /etc/os-release > /dev/null && echo fine", &image)
        .printed("fine\n");
    run_code("ruby", "1", &image).refused_with("apt-get install ruby");
}
