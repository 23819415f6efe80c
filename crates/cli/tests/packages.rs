//! Packages that code imports are installed automatically: from real registries, by uv and bun and by pip and
//! npm.
#![cfg(target_os = "linux")]

#[path = "packages/builds.rs"]
mod builds;
mod common;
mod expect;
#[path = "packages/fixture.rs"]
mod fixture;
#[path = "packages/index.rs"]
mod index;

use std::path::Path;
use std::process::Stdio;

use expect::skip;
use fixture::{Kit, all_tests};

/// Creates a package test environment, or skips the test if this machine lacks what it needs.
macro_rules! fixture {
    ($kit:expr) => {
        match crate::fixture::PackageFixture::new($kit) {
            Ok(fixture) => fixture,
            Err(why) => return crate::expect::skip("packages", &why),
        }
    };
}

#[path = "packages/foreign_image.rs"]
mod foreign_image;
#[path = "packages/locks.rs"]
mod locks;
#[path = "packages/node.rs"]
mod node;
#[path = "packages/open_sandboxes.rs"]
mod open_sandboxes;
#[path = "packages/paths.rs"]
mod paths;
#[path = "packages/shared_cache.rs"]
mod shared_cache;
#[path = "packages/tenants.rs"]
mod tenants;
#[path = "packages/warm.rs"]
mod warm;
#[path = "packages/zygote.rs"]
mod zygote;

#[test]
fn an_import_is_installed_once_and_cached() {
    for kit in [Kit::Fast, Kit::Usual] {
        let fixture = fixture!(kit);
        let code = "import six\nprint(six.__name__, six.__file__.startswith('/opt/belljar/python/'))";
        let first = fixture.run(&["-c", code]);
        assert_eq!(first.lines(), ["six True"], "{kit:?} {}", first.json);
        let dependencies = &first.json["dependencies"];
        assert_eq!(dependencies["cache"], "miss", "{dependencies}");
        assert!(
            dependencies["packages"][0].as_str().is_some_and(|one| one.starts_with("six==1.")),
            "{dependencies}"
        );
        assert!(dependencies["install_ms"].as_u64().is_some_and(|ms| ms > 0), "{dependencies}");
        // No registry is reachable any more.
        let again = fixture.offline(&["-c", code]);
        assert_eq!(
            (again.lines(), &again.json["dependencies"]["cache"]),
            (vec!["six True"], &"hit".into()),
            "{}",
            again.json
        );
        // The layer cannot be changed from inside.
        let code = "import six\ntry: open(six.__file__, 'a')\nexcept OSError as error: print(error.errno in (13, 30))";
        assert_eq!(fixture.offline(&["-c", code]).lines(), ["True"]);
    }
}

#[test]
fn javascript_has_its_packages_too() {
    for kit in [Kit::Fast, Kit::Usual] {
        let fixture = fixture!(kit);
        let code = "const ms = require('ms'); console.log(ms('2 days'))";
        let first = fixture.run(&["--language", "js", "-c", code]);
        assert_eq!(first.lines(), ["172800000"], "{kit:?} {}", first.json);
        assert_eq!(first.json["dependencies"]["cache"], "miss");
        let again = fixture.offline(&["--language", "js", "-c", code]);
        assert_eq!(
            (again.lines(), &again.json["dependencies"]["cache"]),
            (vec!["172800000"], &"hit".into()),
            "{}",
            again.json
        );
    }
}

#[test]
fn requirements_are_parsed_and_invalid_ones_refused() {
    let fixture = fixture!(Kit::Fast);
    let exact = fixture.run(&["--dep", "idna==3.4", "-c", "import idna; print(idna.__version__)"]);
    assert_eq!(
        (exact.lines(), exact.json["dependencies"]["packages"][0].as_str()),
        (vec!["3.4"], Some("idna==3.4"))
    );
    for (arguments, code, says) in [
        (vec!["-c", "import reqeusts"], "dependency_unresolvable", "did you mean 'requests'"),
        (vec!["--dep", "six==999", "-c", "1"], "dependency_unresolvable", "999"),
        (
            vec!["--dep", "belljar-no-such-package", "-c", "1"],
            "dependency_unresolvable",
            "belljar-no-such-package",
        ),
        (vec!["--dep=-r/etc/passwd", "-c", "1"], "dependency_unresolvable", "options are not accepted"),
        (vec!["--dep", "six @ https://example.com/six.whl", "-c", "1"], "dependency_unresolvable", "a URL"),
        (vec!["--dep", "git+https://example.com/x", "-c", "1"], "dependency_unresolvable", "repository"),
        (
            vec!["--dep", "idna==3.4", "--dep", "idna==3.3", "-c", "1"],
            "dependency_unresolvable",
            "conflicts with",
        ),
    ] {
        let answer = fixture.run(&arguments);
        assert_eq!((answer.code, answer.error_code()), (Some(125), code), "{arguments:?} {}", answer.json);
        assert!(answer.error_message().contains(says), "{arguments:?} {}", answer.json);
    }
}

#[test]
fn unknown_imports_warn_and_image_modules_need_no_install() {
    let fixture = fixture!(Kit::Fast);
    let answer = fixture.run(&[
        "-c",
        "try:\n    import os\n    from zz_unheard_of import x\nexcept ImportError as e: print(e.name)",
    ]);
    assert_eq!(
        (answer.lines(), &answer.json["dependencies"]["cache"]),
        (vec!["zz_unheard_of"], &"none".into()),
        "{}",
        answer.json
    );
    let answer = fixture.run(&["-c", "import zz_unheard_of"]);
    assert_eq!(answer.code, Some(1), "{}", answer.json);
    assert_eq!(answer.json["findings"][0]["rule"], "dependency-unknown");
    assert!(answer.json["findings"][0]["suggestion"].as_str().is_some_and(|text| text.contains("--dep")));
    // The interpreter already has a module with the name of an installable package.
    std::fs::write(fixture.site_packages().join("six.py"), "print('the image')").expect("a module");
    let answer = fixture.run(&["-c", "import six"]);
    assert_eq!(
        (answer.lines(), &answer.json["dependencies"]["cache"]),
        (vec!["the image"], &"none".into()),
        "{}",
        answer.json
    );
    let answer = fixture.run(&["--no-deps", "-c", "import idna"]);
    assert_eq!(answer.code, Some(1), "{}", answer.json);
}

#[test]
fn requirement_files_beside_the_code_are_used() {
    let fixture = fixture!(Kit::Fast);
    let list = fixture.folder().join("requirements.txt");
    std::fs::write(&list, "idna==3.4\n").expect("a list");
    let answer = fixture.run(&[
        "--file",
        list.to_str().expect("a path"),
        "-c",
        "import idna; print(idna.__version__)",
    ]);
    assert_eq!(answer.lines(), ["3.4"], "{}", answer.json);
    let shell = fixture.run(&[
        "--dep",
        "idna==3.4",
        "--language",
        "bash",
        "-c",
        "python3 -c 'import idna; print(idna.__version__)'",
    ]);
    assert_eq!(shell.lines(), ["3.4"], "{}", shell.json);
}

#[test]
fn concurrent_runs_build_one_layer() {
    let fixture = fixture!(Kit::Fast);
    let line = r#"{"language": "python", "code": "import six"}"#;
    let batch = fixture.folder().join("batch.jsonl");
    std::fs::write(&batch, format!("{line}\n").repeat(100)).expect("a batch");
    let output = fixture
        .command()
        .args(["run", "--quiet", "--jobs", "32", "--batch"])
        .arg(&batch)
        .output()
        .expect("the binary starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text.matches(r#""status":"succeeded""#).count(), 100, "{text}");
    assert_eq!(fixture.layers().len(), 1);
    assert_eq!(fixture.staged(), 0);
}

#[test]
fn a_killed_install_leaves_nothing_partial() {
    let fixture = fixture!(Kit::Fast);
    let mut child = fixture
        .command()
        .args(["run", "--json", "-c", "import six"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary starts");
    // Kill it as soon as something is being installed. If that moment was missed, there is a complete layer.
    while fixture.staged() == 0 && fixture.layers().is_empty() {
        std::thread::yield_now();
    }
    child.kill().expect("it is ours");
    child.wait().expect("it is ours");
    let answer = fixture.run(&["-c", "import six; print(six.__name__)"]);
    assert_eq!(answer.lines(), ["six"], "{}", answer.json);
    assert_eq!((fixture.layers().len(), fixture.staged()), (1, 0));
}

#[test]
fn an_unreachable_registry_is_reported_with_advice() {
    let fixture = fixture!(Kit::Fast);
    let answer = fixture.offline(&["-c", "import six"]);
    assert_eq!((answer.code, answer.error_code()), (Some(125), "setup_failed"), "{}", answer.json);
    assert!(
        answer.error_message().contains("could not be reached")
            && answer.error_message().contains("--no-deps")
    );
    assert!(!answer.error_message().contains("secret"), "{}", answer.json);
}

/// An unpublished source distribution whose setup.py inspects its surroundings, as malicious packages have
/// done.
#[test]
fn code_of_packages_is_not_run_by_default() {
    for kit in [Kit::Fast, Kit::Usual] {
        let fixture = fixture!(kit);
        fixture.make_evil_packages();
        let answer = fixture.with_links(&["--dep", "bell-evil", "-c", "print('ran')"]);
        assert_eq!(
            (answer.code, answer.error_code()),
            (Some(125), "dependency_unresolvable"),
            "{kit:?} {}",
            answer.json
        );
        assert!(!fixture.folder().join("links/touched").exists());
        assert_eq!(fixture.layers().len(), 0);
    }
}

/// Belljar's own interpreters run where packages are stored, and must not import a package's module instead
/// of theirs.
#[test]
fn a_wheel_cannot_run_code_while_it_is_installed() {
    for kit in [Kit::Fast, Kit::Usual] {
        let fixture = fixture!(kit);
        fixture.make_shadowing_wheel();
        let code = "import os; print(os.path.exists('/opt/belljar/python/hashlib.py'), os.path.exists('/opt/belljar/python/ran'))";
        let answer = fixture.with_links(&["--dep", "bell-shadow", "-c", code]);
        assert_eq!(answer.lines(), ["True False"], "{kit:?} {}", answer.json);
    }
}

#[test]
fn popular_packages_work() {
    if !all_tests() {
        return skip("popular packages", "they take long; only with ./test --all");
    }
    for kit in [Kit::Fast, Kit::Usual] {
        let fixture = fixture!(kit);
        let code = "import bs4, numpy, pandas, requests, yaml, sklearn, matplotlib\nprint(int(numpy.ones(3).sum()), len(pandas.DataFrame({'a': [1]})))";
        let answer = fixture.run(&["--timeout", "2m", "--memory", "1G", "-c", code]);
        assert_eq!(answer.lines(), ["3 1"], "{kit:?} {}", answer.json);
        let code = "const _ = require('lodash'), axios = require('axios'), express = require('express'), { z } = require('zod'), { LRUCache } = require('@isaacs/ttlcache') ? { LRUCache: 1 } : {};\nconsole.log(_.chunk([1, 2, 3], 2).length, typeof axios.get, typeof express, z.string().parse('x'))";
        let answer = fixture.run(&["--language", "js", "--dep", "@isaacs/ttlcache", "-c", code]);
        assert_eq!(answer.lines(), ["2 function function x"], "{kit:?} {}", answer.json);
    }
}

#[test]
fn doctor_lists_the_installers() {
    let fixture = fixture!(Kit::Fast);
    let output = fixture.command().arg("doctor").output().expect("the binary starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("packages of") && text.contains("/uv"), "{text}");
    assert!(Path::new(&fixture.folder()).is_dir());
}
