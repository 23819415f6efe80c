//! Lock files as tools write them, and invalid ones.

use super::*;

fn read(file: &str, text: &str) -> LockFile {
    LockFile::parse_file(file, text).unwrap().unwrap()
}

fn shown(all: &[Requirement]) -> Vec<String> {
    all.iter().map(ToString::to_string).collect()
}

fn hash(digit: &str) -> String {
    format!("sha256:{}", digit.repeat(64))
}

#[test]
fn uv_lock_has_roots_and_versions_per_python() {
    let text = format!(
        "version = 1\nrequires-python = '>=3.9'\n\
         [[package]]\nname = 'job'\nversion = '0.1.0'\nsource = {{ virtual = '.' }}\n\
         dependencies = [{{ name = 'numpy', version = '2.0', marker = \"python_version >= '3.10'\" }}, {{ name = 'uvicorn', extra = ['standard'] }}]\n\
         [package.dev-dependencies]\ndev = [{{ name = 'pytest' }}]\n\
         [[package]]\nname = 'numpy'\nversion = '1.26'\nsource = {{ registry = 'https://pypi.org/simple' }}\nresolution-markers = [\"python_version < '3.10'\"]\n\
         [[package]]\nname = 'numpy'\nversion = '2.0'\nsource = {{ registry = 'https://pypi.org/simple' }}\nresolution-markers = [\"python_version >= '3.10'\"]\n\
         sdist = {{ url = 'https://x/y', hash = '{}' }}\nwheels = [{{ url = 'https://x/z', hash = '{}' }}]\n\
         [[package]]\nname = 'uvicorn'\nversion = '0.3'\nsource = {{ registry = 'https://pypi.org/simple' }}\n\
         [[package]]\nname = 'pytest'\nversion = '8.0'\nsource = {{ registry = 'https://pypi.org/simple' }}\n",
        hash("a"),
        hash("b")
    );
    let lock = read("uv.lock", &text);
    assert_eq!(shown(&lock.roots), ["numpy==2.0 ; python_version >= '3.10'", "uvicorn[standard]==0.3"]);
    let pins = [
        "numpy==1.26 ; (python_version < '3.10')",
        "numpy==2.0 ; (python_version >= '3.10')",
        "uvicorn==0.3",
    ];
    assert_eq!(shown(&lock.pins)[..3], pins);
    assert_eq!(lock.pins[1].hashes, [hash("b"), hash("a")]);
}

#[test]
fn poetry_roots_are_packages_that_no_other_package_needs() {
    let text = format!(
        "[[package]]\nname = 'Requests'\nversion = '2.31.0'\noptional = false\ngroups = ['main']\nfiles = [{{ file = 'r.whl', hash = '{}' }}]\n\
         [package.dependencies]\nidna = '>=2'\n\
         [[package]]\nname = 'idna'\nversion = '3.4'\noptional = false\ngroups = ['main']\nfiles = []\n\
         [[package]]\nname = 'colorama'\nversion = '0.4'\noptional = false\ngroups = ['main']\nmarkers = \"sys_platform == 'win32'\"\nfiles = []\n\
         [[package]]\nname = 'black'\nversion = '24.0'\noptional = false\ngroups = ['dev']\nfiles = []\n[package.dependencies]\nclick = '*'\n\
         [[package]]\nname = 'click'\nversion = '8.0'\noptional = false\ngroups = ['main', 'dev']\nfiles = []\n",
        hash("a")
    );
    let lock = read("poetry.lock", &text);
    assert_eq!(
        shown(&lock.roots),
        ["requests==2.31.0", "colorama==0.4 ; sys_platform == 'win32'", "click==8.0"]
    );
    assert_eq!((lock.pins.len(), lock.pins[0].hashes.len()), (5, 1));
}

#[test]
fn all_packages_of_pylock_and_pipfile_are_roots() {
    let text = format!(
        "lock-version = '1.0'\n[[packages]]\nname = 'idna'\nversion = '3.4'\nwheels = [{{ url = 'https://x', hashes = {{ sha256 = '{}' }} }}]\n\
         [[packages]]\nname = 'pytest'\nversion = '8.0'\nmarker = \"'dev' in dependency_groups\"\n",
        "a".repeat(64)
    );
    let lock = read("pylock.toml", &text);
    assert_eq!((shown(&lock.roots), &lock.pins[0].hashes), (vec!["idna==3.4".to_owned()], &vec![hash("a")]));
    let text = format!(
        r#"{{"_meta": {{}}, "default": {{"idna": {{"hashes": ["{}"], "index": "pypi", "markers": "python_version >= '3.5'", "version": "==3.4"}}}}, "develop": {{"black": {{"version": "==1"}}}}}}"#,
        hash("a")
    );
    let lock = read("Pipfile.lock", &text);
    assert_eq!(shown(&lock.roots), ["idna==3.4 ; python_version >= '3.5'"]);
    assert_eq!(lock.pins[0].hashes.len(), 1);
}

#[test]
fn npm_and_bun_locks_give_equal_results() {
    let npm = r#"{"name": "x", "lockfileVersion": 3, "packages": {
        "": {"dependencies": {"debug": "^4"}, "devDependencies": {"jest": "1"}},
        "node_modules/debug": {"version": "4.3.1", "resolved": "https://registry.npmjs.org/debug/-/debug-4.3.1.tgz", "integrity": "sha512-aa", "dependencies": {"ms": "2.1.2"}},
        "node_modules/debug/node_modules/@s/ms": {"version": "2.1.2", "integrity": "sha512-bb"},
        "node_modules/jest": {"version": "1.0.0", "integrity": "sha512-cc", "dev": true}}}"#;
    let bun = r#"{"lockfileVersion": 1, "workspaces": {"": {"dependencies": {"debug": "^4",},},}, "packages": {
        "debug": ["debug@4.3.1", "", { "dependencies": { "ms": "2.1.2" } }, "sha512-aa"],
        "debug/@s/ms": ["@s/ms@2.1.2", "", {}, "sha512-bb"],
    }, }"#;
    let (npm, bun) = (read("package-lock.json", npm), read("bun.lock", bun));
    assert_eq!(shown(&npm.roots), ["debug@4.3.1"]);
    assert_eq!((&npm.roots, &npm.pins, &npm.tree), (&bun.roots, &bun.pins, &bun.tree));
    assert_eq!(npm.pins.len(), 2);
    assert!(!Value::from(npm.tree).to_string().contains("registry.npmjs.org"));
}

#[test]
fn packages_from_urls_are_roots_and_never_pins() {
    let digest = "a".repeat(64);
    for (file, text) in [
        ("uv.lock", "[[package]]\nname = 'x'\nversion = '1'\nsource = { git = 'https://example.com/x#abc' }\n".to_owned()),
        ("uv.lock", "[[package]]\nname = 'x'\nversion = '1'\nsource = { directory = '../x' }\n".to_owned()),
        ("poetry.lock", "[[package]]\nname = 'x'\nversion = '1'\n[package.source]\ntype = 'git'\nurl = 'https://example.com/x'\n".to_owned()),
        ("pylock.toml", format!("[[packages]]\nname = 'x'\narchive = {{ url = 'https://example.com/x.whl', hashes = {{ sha256 = '{digest}' }} }}\n")),
        ("Pipfile.lock", r#"{"default": {"x": {"git": "https://example.com/x", "ref": "abc"}}}"#.to_owned()),
        ("package-lock.json", r#"{"lockfileVersion": 3, "packages": {"node_modules/x": {"version": "1.0.0", "resolved": "git+ssh://git@example.com/x.git#abc"}}}"#.to_owned()),
        ("package-lock.json", r#"{"lockfileVersion": 3, "packages": {"node_modules/x": {"resolved": "../x", "link": true}}}"#.to_owned()),
        ("bun.lock", r#"{"workspaces": {}, "packages": {"x": ["x@github:a/x#abc", {}, "a-x-abc"]}}"#.to_owned()),
        ("bun.lock", r#"{"workspaces": {}, "packages": {"x": ["x@workspace:packages/x"]}}"#.to_owned()),
    ] {
        let lock = read(file, &text);
        assert!(lock.pins.is_empty() && lock.tree.is_empty(), "{text}");
        assert!(lock.roots[0].direct_url.is_some() && lock.roots[0].name == "x", "{text}");
    }
}

#[test]
fn invalid_lock_files_are_refused() {
    let many: String =
        (0..6_000).map(|number| format!("[[package]]\nname = 'p{number}'\nversion = '1'\n")).collect();
    let large = format!("# {}", "x".repeat(9 << 20));
    for (file, text) in [
        ("uv.lock", "[[package]"),
        ("uv.lock", "package = 1"),
        ("uv.lock", "[[package]]\nname = '-r'\nversion = '1'\n"),
        ("uv.lock", "[[package]]\nname = 'a'\nversion = '1 --pre'\n"),
        ("uv.lock", "[[package]]\nname = 'a'\nversion = '1'\nwheels = [{ hash = 'md5:00' }]\n"),
        ("uv.lock", many.as_str()),
        ("uv.lock", large.as_str()),
        ("poetry.lock", "[[package]]\nname = 'a'\n"),
        ("pylock.toml", "packages = 'x'"),
        ("Pipfile.lock", "{"),
        ("Pipfile.lock", r#"{"default": {"a": {"version": "==1", "markers": "import os"}}}"#),
        ("package-lock.json", r#"{"lockfileVersion": 1, "dependencies": {}}"#),
        (
            "package-lock.json",
            r#"{"lockfileVersion": 3, "packages": {"node_modules/../x": {"version": "1.0.0"}}}"#,
        ),
        ("package-lock.json", r#"{"lockfileVersion": 3, "packages": {"packages/x": {"version": "1.0.0"}}}"#),
        ("package-lock.json", r#"{"lockfileVersion": 3, "packages": {"node_modules/x": {"version": "^1"}}}"#),
        (
            "package-lock.json",
            r#"{"lockfileVersion": 3, "packages": {"node_modules/x": {"version": "1.0.0", "dependencies": {"y": "http://169.254.169.254/y"}}}}"#,
        ),
        ("bun.lock", "[]"),
        ("bun.lock", r#"{"workspaces": {}, "packages": {"x": []}}"#),
    ] {
        let lock = LockFile::parse_file(file, text).unwrap();
        assert!(lock.is_err(), "{file} {}", text.chars().take(100).collect::<String>());
    }
    assert!(LockFile::parse_file("yarn.lock", "").is_none());
}
