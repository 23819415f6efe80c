//! Building images: with a real Docker, on a base and without a registry, and without Docker for the native
//! provider.

use std::path::Path;

use crate::common::{Answer, finish};
use crate::dockerd::{Dockerd, IMAGE};
use crate::expect::{Expect, everything, skip};
use crate::{ImageFixture, count};

/// Checks that every built image must pass.
const LOOK: &str = "import pytest, requests, subprocess, pwd\n\
    def run(*words): return subprocess.run(words, capture_output=True, check=True, text=True).stdout.strip()\n\
    print(pwd.getpwnam('sandboxuser').pw_uid, run('node', '-p', '6 * 7'))\n\
    run('git', 'init', '-q', 'a')\n\
    run('git', '-C', 'a', '-c', 'user.name=a', '-c', 'user.email=a', 'commit', '-q', '--allow-empty', '-m', 'x')\n\
    run('git', 'clone', '-q', 'a', 'b')\n\
    print(run('git', '-C', 'b', 'log', '--format=%s'), run('python3', '-m', 'pip', '--version')[:3])";
const FOUND: &str = "1000 42\nx pip\n";
/// Maximum size of the default image.
const MAX_DEFAULT_BYTES: u64 = 220 << 20;

#[test]
fn missing_build_tools_are_reported() {
    let fixture = ImageFixture::new(&[]);
    let build = |words: &[&str]| {
        let mut command = fixture.command();
        command.env("DOCKER_HOST", "unix:///nonexistent/docker.sock").env("PATH", "/nonexistent");
        finish(command.args(["image", "build", "--json"]).args(words))
    };
    build(&[]).refused_with("apt-get install mmdebstrap");
    build(&["--into", "docker"]).refused_with("no Docker daemon at unix:///nonexistent");
    build(&["--base", "python:3.12-slim"]).refused_with("no Docker daemon at unix:///nonexistent");
    build(&["--into", "belljar", "--base", "python:3.12-slim"]).refused_with("--base needs Docker");
    build(&["--install", "numpy", "x; reboot"]).refused_with("--install: 'x; reboot' is not a package name");
    assert_eq!((count(&fixture.store("images")), count(&fixture.store("roots"))), (0, 0));
}

fn ready(test: &str) -> bool {
    let missing =
        ["/usr/bin/mmdebstrap", "/usr/sbin/dockerd"].into_iter().find(|path| !Path::new(path).exists());
    match missing {
        _ if !everything() => skip(test, "it installs a system; only with ./test --all"),
        Some(path) => skip(test, &format!("there is no {path}")),
        None => return true,
    }
    false
}

#[test]
fn docker_builds_match_with_and_without_a_base() {
    let test = "images that Docker builds";
    if !ready(test) {
        return;
    }
    let docker = match Dockerd::start() {
        Ok(docker) => docker,
        Err(why) => return skip(test, &why),
    };
    let fixture = ImageFixture::new(&[]);
    let belljar = |words: &[&str]| finish(fixture.command().env("DOCKER_HOST", docker.host()).args(words));
    let run = |code: &str| {
        belljar(&["run", "--json", "--policy", "off", "--no-deps", "--provider", "docker", "-c", code])
    };

    // The image does not exist yet.
    run(LOOK).refused_with("belljar image build");
    // No registry is reachable either.
    let base = belljar(&["image", "build", "--json", "--base", "nobody/has-this:1"]);
    base.refused_with("omit --base");
    let built = belljar(&["image", "build", "--json", "--install", "six"]);
    assert_eq!(
        (built.code, built.text("into"), built.text("from")),
        (Some(0), "docker", "packages"),
        "{built:#?}"
    );
    run(LOOK).printed(FOUND);
    run("import six").succeeded();
    let bytes = docker.docker(&["inspect", "--format", "{{.Size}}", "belljar/default"]).unwrap();
    assert!(bytes.trim().parse::<u64>().unwrap() <= MAX_DEFAULT_BYTES, "{bytes}");

    // The build uses the host's network, because this daemon has none.
    let on_base = |words: &[&str]| {
        let usual =
            ["image", "build", "--json", "--network", "host", "--base", IMAGE, "--tag", "team/tools:2"];
        belljar(&[&usual, words].concat())
    };
    on_base(&["--apt", "no-such-package-anywhere"]).refused_with("Unable to locate package");
    let built = on_base(&["--apt", "nano"]);
    assert_eq!((built.code, built.text("from")), (Some(0), "base"), "{built:#?}");
    fixture.configure("[providers.docker]\nimage = \"team/tools:2\"\n");
    run(LOOK).printed(FOUND);
    run("import shutil; print(shutil.which('nano'))").printed("/usr/bin/nano\n");
    for image in ["belljar/default", "team/tools:2"] {
        let set = docker.docker(&["inspect", "--format", "{{.Config.User}} {{.Config.WorkingDir}}", image]);
        assert_eq!(set.as_deref(), Ok("sandboxuser /workspace"));
    }
    // A build leaves nothing but its image.
    assert_eq!(docker.docker(&["ps", "--all", "--quiet"]).as_deref(), Ok(""));
}

#[test]
fn the_same_image_is_built_and_run_without_docker() {
    if !ready("an image without Docker") {
        return;
    }
    let fixture = ImageFixture::new(&[]);
    let built: Answer = fixture.image(&["build", "--into", "belljar", "--apt", "nano"]);
    assert_eq!((built.code, built.text("name")), (Some(0), "docker.io/belljar/default:latest"), "{built:#?}");
    assert!(built.json["bytes"].as_u64().unwrap() <= MAX_DEFAULT_BYTES, "{built:#?}");
    let run = |code: &str| {
        let words =
            ["run", "--json", "--policy", "off", "--no-deps", "--image", "belljar/default", "-c", code];
        finish(fixture.command().args(words))
    };
    run(LOOK).printed(FOUND);
    run("import shutil; print(shutil.which('nano'))").printed("/usr/bin/nano\n");
}
