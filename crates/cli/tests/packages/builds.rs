//! Packages that come as sources or with install scripts: refused by default; otherwise built without access
//! to anything.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::common::server::Server;
use crate::expect::skip;
use crate::fixture::{Kit, PackageFixture, all_tests};
use crate::index::Index;

/// Creates a test environment and its registries, or skips the test if this machine lacks what it needs.
macro_rules! fixture {
    ($kit:expr) => {
        match PackageFixture::new($kit) {
            Ok(fixture) => {
                let index = Index::new(&fixture);
                (fixture, index)
            }
            Err(why) => return skip("packages", &why),
        }
    };
}

/// pip and npm are slow, so they run only in the second tier.
fn kits() -> &'static [Kit] {
    if all_tests() { &[Kit::Fast, Kit::Usual] } else { &[Kit::Fast] }
}

/// Returns whether no file of that name is below a folder.
fn has_no(name: &str, folder: &Path) -> bool {
    std::fs::read_dir(folder).into_iter().flatten().flatten().all(|entry| {
        !entry.file_name().to_string_lossy().contains(name)
            && (!entry.file_type().is_ok_and(|kind| kind.is_dir()) || has_no(name, &entry.path()))
    })
}

#[test]
fn sources_are_only_built_if_the_profile_allows_it() {
    if !all_tests() {
        return skip("builds", "they take long; only with ./test --all");
    }
    for kit in kits() {
        let (fixture, index) = fixture!(*kit);
        let code = "import bell_plain, bell_other; print(bell_plain.VERSION, bell_other.VERSION)";
        let refused = index.run(&fixture, &["--dep", "bell-plain", "-c", code]);
        assert_eq!(
            (refused.code, refused.error_code()),
            (Some(125), "dependency_unresolvable"),
            "{}",
            refused.json
        );
        let says = refused.error_message();
        assert!(
            says.contains("'bell-plain' has no wheel") && says.contains("build_packages = true"),
            "{says}"
        );
        assert_eq!(fixture.layers().len(), 0);
        // Its dependency is available only as sources too, and only in some versions.
        let built = index.building(&fixture, &["--dep", "bell-plain", "-c", code]);
        assert_eq!(built.lines(), ["1.0 1.0"], "{kit:?} {}", built.json);
        let packages = built.json["dependencies"]["packages"].to_string();
        assert!(packages.contains("bell-other==1.0") && packages.contains("bell-plain==1.0"), "{packages}");
        assert_eq!((fixture.layers().len(), fixture.staged()), (4, 0));
        let again = index.building(&fixture, &["--dep", "bell-plain", "-c", code]);
        assert_eq!((again.lines(), &again.json["dependencies"]["cache"]), (vec!["1.0 1.0"], &"hit".into()));
        // The resolution is remembered; the packages themselves are fetched and built again.
        let pruned =
            index.command(&fixture).args(["deps", "prune", "--all"]).output().expect("the binary starts");
        assert!(pruned.status.success() && fixture.layers().is_empty(), "{pruned:?}");
        assert!(has_no("bytecode", &fixture.installers()), "caches are pruned as well");
        let anew = index.building(&fixture, &["--dep", "bell-plain", "-c", code]);
        assert_eq!((anew.lines(), &anew.json["dependencies"]["cache"]), (vec!["1.0 1.0"], &"miss".into()));
        // A layer built for one profile is not available to another.
        let refused = index.run(&fixture, &["--dep", "bell-plain", "-c", code]);
        assert_eq!(refused.error_code(), "dependency_unresolvable", "{}", refused.json);
    }
}

#[test]
fn a_build_sees_nothing_and_leaves_nothing() {
    for kit in kits() {
        let (fixture, index) = fixture!(*kit);
        let code = "import bell_evil; print(bell_evil.SEEN)";
        let refused = index.run(&fixture, &["--dep", "bell-evil", "-c", code]);
        assert_eq!(refused.error_code(), "dependency_unresolvable", "{}", refused.json);
        let built = index.building(&fixture, &["--dep", "bell-evil", "-c", code]);
        let seen: Value = serde_json::from_str(built.lines().first().unwrap_or(&"")).unwrap_or_default();
        let nothing = json!({"environment": [], "left": [], "read": [], "reached": [], "rights": []});
        assert_eq!(seen, nothing, "{kit:?} {}", built.json);
        assert!(has_no("bell-was-here", &fixture.folder()));
        // The built wheel is not in a cache that the next installation reads.
        assert!(has_no("bell_evil", &fixture.installers()));
        assert_eq!(fixture.staged(), 0);
    }
}

#[test]
fn a_failed_build_is_reported_and_nothing_runs() {
    if !all_tests() {
        return skip("builds", "they take long; only with ./test --all");
    }
    let (fixture, index) = fixture!(Kit::Fast);
    for (name, says) in [
        ("bell-failing", "the compiler is not pleased"),
        ("bell-liar", "a wheel of another package or version"),
        ("bell-link", "bell_link-1.0"),
        ("bell-greedy", "options are not accepted"),
    ] {
        let answer = index.building(&fixture, &["--dep", name, "-c", "print('ran')"]);
        assert_eq!(
            (answer.code, answer.error_code()),
            (Some(125), "dependency_build_failed"),
            "{}",
            answer.json
        );
        assert!(answer.error_message().contains(says), "{name}: {}", answer.json);
        assert_eq!((fixture.layers().len(), fixture.staged(), answer.lines().len()), (1, 0, 0), "{name}");
    }
}

#[test]
fn sources_must_match_their_hashes() {
    if !all_tests() {
        return skip("builds", "they take long; only with ./test --all");
    }
    let (fixture, index) = fixture!(Kit::Fast);
    let swapped = index.building(&fixture, &["--dep", "bell-swapped", "-c", "1"]);
    assert_eq!(swapped.error_code(), "dependency_unresolvable", "{}", swapped.json);
    assert!(swapped.error_message().contains("does not match the registry's hash"), "{}", swapped.json);
    let list = fixture.folder().join("requirements.txt");
    let words =
        ["--file", list.to_str().expect("a path"), "-c", "import bell_other; print(bell_other.VERSION)"];
    std::fs::write(&list, format!("bell-other==1.0 --hash=sha256:{}\n", "0".repeat(64))).expect("a list");
    let stated = index.building(&fixture, &words);
    assert!(stated.error_message().contains("has a stated hash"), "{}", stated.json);
    let sum =
        Command::new("sha256sum").arg(fixture.folder().join("served/files/bell_other-1.0.tar.gz")).output();
    let sum = String::from_utf8(sum.expect("sha256sum").stdout).expect("text");
    let sum = sum.split(' ').next().expect("a sum");
    std::fs::write(&list, format!("bell-other==1.0 --hash=sha256:{sum}\n")).expect("a list");
    let stated = index.building(&fixture, &words);
    assert_eq!(stated.lines(), ["1.0"], "{}", stated.json);
}

/// The newest version has only sources, with a dependency that does not exist; an older one has a wheel.
#[test]
fn a_version_with_unsatisfiable_sources_is_skipped() {
    if !all_tests() {
        return skip("builds", "they take long; only with ./test --all");
    }
    for kit in kits() {
        let (fixture, index) = fixture!(*kit);
        let code = "import bell_picky, bell_other; print(bell_picky.VERSION, bell_other.VERSION)";
        let answer = index.building(&fixture, &["--dep", "bell-picky", "-c", code]);
        assert_eq!(answer.lines(), ["1.0 2.0"], "{kit:?} {}", answer.json);
        let packages = answer.json["dependencies"]["packages"].to_string();
        assert!(packages.contains("picky==1.0"), "{packages}");
    }
}

#[test]
fn the_server_reports_a_failed_build() {
    if !all_tests() {
        return skip("builds", "they take long; only with ./test --all");
    }
    let (fixture, index) = fixture!(Kit::Fast);
    let mut command = index.command(&fixture);
    command.args(["serve", "--allow-degraded"]);
    let server = Server::by(command, &fixture.folder().join("data"));
    let ask = |package: &str, profile: &str| {
        let dependencies = json!({"packages": [package]});
        let request =
            json!({"language": "python", "code": "1", "dependencies": dependencies, "profile": profile});
        server.post("/v1/executions", &request)
    };
    let failed = ask("bell-failing", "builds");
    assert_eq!((failed.status, &*failed.code()), (422, "dependency_build_failed"), "{}", failed.text());
    let built = ask("bell-other", "builds");
    assert_eq!(built.json()["status"], "succeeded", "{}", built.text());
    // The server remembers what it built, and for which profile.
    let refused = ask("bell-other", "default");
    assert_eq!((refused.status, &*refused.code()), (422, "dependency_unresolvable"), "{}", refused.text());
}

#[test]
fn real_sources_and_c_extensions_are_built() {
    if !all_tests() {
        return skip("real sources", "they take long; only with ./test --all");
    }
    for kit in kits() {
        let (fixture, index) = fixture!(*kit);
        let code = "import docopt; print(docopt.__version__)";
        let answer = fixture.building(&index, &["--dep", "docopt==0.6.2", "-c", code]);
        assert_eq!(answer.lines(), ["0.6.2"], "{kit:?} {}", answer.json);
        // It has wheels itself, but a dependency has none.
        let answer =
            fixture.building(&index, &["--dep", "hdfs==2.7.0", "-c", "import hdfs, docopt; print('both')"]);
        assert_eq!(answer.lines(), ["both"], "{kit:?} {}", answer.json);
        fixture.make_native_package();
        let code = "import bell_native; print(bell_native.answer())";
        let answer = fixture.building(&index, &["--dep", "bell-native", "-c", code]);
        assert_eq!(answer.lines(), ["42"], "{kit:?} {}", answer.json);
    }
}

#[test]
fn install_scripts_see_nothing_and_leave_nothing() {
    for kit in kits() {
        let (fixture, index) = fixture!(*kit);
        let code = "console.log(JSON.stringify(require('bell-evil/seen.json')))";
        let words = ["--language", "js", "--dep", "bell-evil", "-c", code];
        let by_default = index.run(&fixture, &words);
        assert_eq!(by_default.lines(), ["\"it did not run\""], "{kit:?} {}", by_default.json);
        let built = index.building(&fixture, &words);
        let seen: Value = serde_json::from_str(built.lines().first().unwrap_or(&"")).unwrap_or_default();
        let nothing = json!({"environment": [], "left": [], "read": [], "reached": []});
        assert_eq!(seen, nothing, "{kit:?} {}", built.json);
        assert!(has_no("bell-was-here", &fixture.folder()));
        // Its output is only available to profiles that allow builds.
        assert_eq!(index.run(&fixture, &words).lines(), ["\"it did not run\""]);
    }
}

#[test]
fn failed_install_scripts_are_reported() {
    if !all_tests() {
        return skip("builds", "they take long; only with ./test --all");
    }
    for kit in kits() {
        let (fixture, index) = fixture!(*kit);
        let failing = index.building(&fixture, &["--language", "js", "--dep", "bell-failing", "-c", "1"]);
        assert_eq!(
            (failing.code, failing.error_code()),
            (Some(125), "dependency_build_failed"),
            "{}",
            failing.json
        );
        assert!(failing.error_message().contains("the compiler is not pleased"), "{}", failing.json);
        assert_eq!((fixture.layers().len(), fixture.staged()), (0, 0));
    }
}
