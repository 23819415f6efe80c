//! Lock files beside the code determine versions, and downloads are verified against their hashes.

use std::path::Path;

use crate::common::Answer;
use crate::fixture::{Kit, PackageFixture, all_tests};

const IDNA: &str = "sha256:90b77e79eaa3eba6de819a0c442c0b4ceefc341a7a2ab77d7562bf49f425c5c2";
const MS: &str =
    "sha512-sGkPx+VjMtmA6MX27oA4FBFELFCZZ4S4XqeGOXCv68tT+jb3vk/RyaKWP0PTKyWtmLSM0b+adUTEvbs1PEaH2w==";

const PYTHON: [&str; 2] = ["-c", "import idna; print(idna.__version__)"];
const NODE: [&str; 4] =
    ["--language", "js", "-c", "require('ms'); console.log(require('ms/package.json').version)"];

/// Runs code with a file beside it.
fn beside(fixture: &PackageFixture, file: &str, text: &str, arguments: &[&str]) -> Answer {
    let path = fixture.folder().join(file);
    std::fs::write(&path, text).expect("a file of the test's own");
    let arguments = [&["--file", Path::new(&path).to_str().expect("a path")], arguments].concat();
    fixture.run(&arguments)
}

/// Both kits in the second tier; otherwise only the fast one.
fn kits() -> &'static [Kit] {
    if all_tests() { &[Kit::Fast, Kit::Usual] } else { &[Kit::Fast] }
}

fn refused(answer: &Answer, why: &str) {
    assert_eq!((answer.code, answer.error_code()), (Some(125), "dependency_unresolvable"), "{}", answer.json);
    assert!(answer.error_message().contains(why), "{}", answer.json);
}

#[test]
fn a_python_lock_pins_versions_and_files() {
    for kit in kits() {
        let fixture = fixture!(*kit);
        let pinned = |hash: &str| {
            let from = "source = { registry = 'https://pypi.org/simple' }";
            format!(
                "[[package]]\nname = 'idna'\nversion = '3.4'\n{from}\nwheels = [{{ url = 'x', hash = \
                 '{hash}' }}]\n"
            )
        };
        let project =
            "[[package]]\nname = 'job'\nsource = { virtual = '.' }\ndependencies = [{ name = 'idna' }]\n";
        // As a direct requirement, and as a dependency of another package.
        let texts = [format!("{project}{}", pinned(IDNA)), pinned(IDNA)];
        for text in &texts[usize::from(!all_tests())..] {
            let answer = beside(&fixture, "uv.lock", text, &PYTHON);
            assert_eq!(answer.lines(), ["3.4"], "{kit:?} {}", answer.json);
        }
        let layers = fixture.layers().len();
        let changed = IDNA.replace("sha256:90", "sha256:91");
        refused(&beside(&fixture, "uv.lock", &pinned(&changed), &PYTHON), "other files in the registry");
        let conflict = [&["--dep", "idna==3.3"][..], &PYTHON].concat();
        refused(&beside(&fixture, "uv.lock", &pinned(IDNA), &conflict), "idna");
        assert_eq!(fixture.layers().len(), layers);
    }
}

#[test]
fn a_javascript_lock_pins_versions_and_files() {
    for kit in kits() {
        let fixture = fixture!(*kit);
        let npm = |hash: &str| {
            format!(
                r#"{{"lockfileVersion": 3, "packages": {{"": {{"dependencies": {{"ms": "^2"}}}}, "node_modules/ms": {{"version": "2.1.2", "integrity": "{hash}"}}}}}}"#
            )
        };
        let bun = format!(
            r#"{{"lockfileVersion": 1, "workspaces": {{"": {{"dependencies": {{"ms": "^2",}}}}}}, "packages": {{"ms": ["ms@2.1.2", "", {{}}, "{MS}"],}}}}"#
        );
        for (file, text) in [("package-lock.json", npm(MS)), ("bun.lock", bun)] {
            let answer = beside(&fixture, file, &text, &NODE);
            assert_eq!(answer.lines(), ["2.1.2"], "{kit:?} {}", answer.json);
        }
        // The right file is in the installer's cache by now, but it does not match this lock.
        let changed = beside(&fixture, "package-lock.json", &npm(&MS.replace("sGk", "sGl")), &NODE);
        assert_eq!(
            (changed.code, changed.error_code()),
            (Some(125), "dependency_unresolvable"),
            "{}",
            changed.json
        );
        assert_eq!(fixture.layers().len(), 1);
    }
}

#[test]
fn invalid_locks_and_foreign_sources_are_refused() {
    let fixture = fixture!(Kit::Fast);
    refused(&beside(&fixture, "poetry.lock", "[[package]", &PYTHON), "poetry.lock: ");
    let elsewhere =
        "[[package]]\nname = 'idna'\nversion = '3.4'\nsource = { git = 'https://example.com/idna#abc' }\n";
    refused(&beside(&fixture, "uv.lock", elsewhere, &PYTHON), "a URL, a path or a repository");
    let both = [&["--file", "pylock.toml"][..], &PYTHON].concat();
    let mut command = fixture.command();
    for file in ["uv.lock", "pylock.toml"] {
        std::fs::write(fixture.folder().join(file), "").expect("a file of the test's own");
    }
    command.current_dir(fixture.folder()).args(["run", "--json", "--file", "uv.lock"]).args(both);
    refused(&crate::common::finish(&mut command), "the request has both uv.lock and pylock.toml");
}
