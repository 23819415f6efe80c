//! Images without a daemon: pulled from real and hostile registries, archives and layouts; running them, and
//! removing them.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot be prepared fails")]

#[path = "images/build.rs"]
mod build;
#[path = "mcp/client.rs"]
#[allow(dead_code, reason = "tests of MCP itself use the rest")]
mod client;
mod common;
#[path = "../../providers/tests/conformance/dockerd.rs"]
#[allow(dead_code, reason = "tests of the provider use the rest")]
mod dockerd;
mod expect;
#[path = "images/picture.rs"]
mod picture;
#[path = "images/registry.rs"]
mod registry;

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use client::Client;
use common::host::alive_with;
use common::server::{KEY, Server};
use common::{Answer, Live, belljar, finish};
use expect::{Expect, everything, skip};
use picture::{Layer, Picture, busybox, sum, upper};
use registry::{Answers, Registry, count, lie};
use serde_json::{Value, json};
use tempfile::TempDir;

/// An image store of its own, with a configuration for some registries.
struct ImageFixture {
    folder: TempDir,
}

impl ImageFixture {
    fn new(plain: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let fixture = Self { folder };
        fixture.configure(&format!("[images]\nplain_http = {plain:?}\n"));
        fixture
    }

    fn configure(&self, text: &str) {
        fs::write(self.at("belljar.toml"), text).unwrap();
    }

    fn at(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn store(&self, path: &str) -> PathBuf {
        self.at("cache/belljar/images").join(path)
    }

    fn command(&self) -> Command {
        let mut command = belljar();
        command.env("BELLJAR_CONFIG", self.at("belljar.toml")).env("XDG_CACHE_HOME", self.at("cache"));
        command.env("DOCKER_CONFIG", self.at("docker"));
        command.env_remove("BELLJAR_REGISTRY_USER").env_remove("BELLJAR_REGISTRY_PASSWORD");
        command
    }

    fn image(&self, arguments: &[&str]) -> Answer {
        finish(self.command().arg("image").args(arguments).arg("--json"))
    }

    fn pull(&self, name: &str) -> Answer {
        self.image(&["pull", name])
    }

    /// Runs a line of shell in an image.
    fn sh(&self, image: &str, line: &str) -> Answer {
        finish(
            self.command()
                .args(["run", "--json", "--policy", "off", "--image", image, "--", "sh", "-c", line]),
        )
    }

    fn names(&self) -> Vec<String> {
        let list = self.image(&["list"]).json["images"].clone();
        list.as_array().unwrap().iter().map(|image| image["name"].as_str().unwrap().to_owned()).collect()
    }
}

/// Checks that every run of the usual image must pass.
const LOOK: &str = "tool; echo $GREETING $HOME $PWD; cat /etc/version /old/new; ls /etc/gone /old/one 2>&1; \
    touch /bin/x /etc/x /x 2>&1; cat /usr/share/note; ls -l /bin/busybox | cut -c1-10";

fn look(answer: &Answer) {
    let text = answer.text("stdout");
    assert!(text.starts_with("the tool\nhello /home/sandbox /workspace\n2\nnew\n"), "{answer:#?}");
    assert!(
        text.contains("/etc/gone: No such file") && text.contains("/old/one: No such file"),
        "{answer:#?}"
    );
    assert_eq!(text.matches("Read-only file system").count(), 3, "{answer:#?}");
    assert!(text.contains("\nnote\n"), "{answer:#?}");
}

fn registry(test: &str, guarded: bool) -> Option<Registry> {
    if busybox().is_none() {
        skip(test, "busybox-static is not installed");
        return None;
    }
    let found = Registry::start(guarded);
    if found.is_none() {
        skip(test, "docker-registry is not installed");
    }
    found
}

#[test]
fn an_image_of_a_registry_is_pulled_run_listed_and_removed() {
    let Some(registry) = registry("images of a registry", false) else { return };
    let fixture = ImageFixture::new(&[&registry.address]);
    let usual = Picture::usual();
    registry.push("team/small", "1", &usual);
    registry.push("team/small", "other", &Picture::other());
    registry.put(
        "team/small",
        "multi",
        picture::INDEX,
        usual.index(picture::architecture()).to_string().as_bytes(),
    );
    let name = format!("{}/team/small:1", registry.address);
    // A run pulls a missing image.
    look(&fixture.sh(&name, LOOK));
    assert_eq!(fixture.names(), [name.as_str()]);
    assert_eq!(count(&fixture.store("blobs")), 0);
    let multi = format!("{}/team/small:multi", registry.address);
    let digest = format!("sha256:{}", sum(&usual.manifest()));
    assert_eq!(fixture.pull(&multi).json["digest"], digest.as_str());
    let exact = format!("{}/team/small@{digest}", registry.address);
    assert_eq!(fixture.pull(&exact).json["name"], exact.as_str());
    // All three consist of the same layers.
    assert_eq!(count(&fixture.store("roots")), 2);

    // An image with one more layer shares the layers below it.
    let mut more = Layer::default();
    more.file("etc/version", b"3\n", 0o644);
    registry.push("team/more", "latest", &Picture::new([usual.layers.clone(), vec![more.end()]].concat()));
    let more = format!("{}/team/more", registry.address);
    assert_eq!(fixture.pull(&more).code, Some(0));
    fixture.sh(&more, "cat /etc/version").printed("3\n");
    fixture.sh(&name, "cat /etc/version").printed("2\n");
    let inodes =
        roots(&fixture).into_iter().map(|root| fs::metadata(root.join("bin/busybox")).unwrap().ino());
    let inodes: std::collections::BTreeSet<u64> = inodes.collect();
    assert_eq!((count(&fixture.store("roots")), inodes.len()), (3, 1));

    for gone in [&multi, &exact, &name, &more] {
        assert_eq!(fixture.image(&["rm", gone]).code, Some(0));
    }
    assert_eq!((count(&fixture.store("roots")), fixture.names().len()), (0, 0));
    fixture.image(&["rm", &name]).refused_with("no image");
}

fn roots(fixture: &ImageFixture) -> Vec<PathBuf> {
    let entries = fs::read_dir(fixture.store("roots")).unwrap();
    entries.map(|entry| entry.unwrap().path().join("root")).collect()
}

#[test]
fn registry_refusals_are_reported() {
    if !everything() {
        return skip("a registry that asks who it is", "only with ./test --all");
    }
    let Some(registry) = registry("a registry that asks who it is", true) else { return };
    let fixture = ImageFixture::new(&[&registry.address]);
    registry.push("secret", "1", &Picture::usual());
    let name = format!("{}/secret:1", registry.address);
    fixture.pull(&name).refused_with("--username");
    let with = |password: &str| {
        let mut command = fixture.command();
        command.args(["image", "pull", "--json", "--username", "user", "--password-stdin", &name]);
        piped(&mut command, password)
    };
    assert_eq!(with("wrong").status.code(), Some(125));
    assert_eq!(with("secret\n").status.code(), Some(0));
    assert_eq!(fixture.image(&["rm", &name]).code, Some(0));

    fs::create_dir(fixture.at("docker")).unwrap();
    let auths = json!({"auths": {&registry.address: {"auth": "dXNlcjpzZWNyZXQ="}}});
    fs::write(fixture.at("docker/config.json"), auths.to_string()).unwrap();
    assert_eq!(fixture.pull(&name).code, Some(0));
    fixture.pull(&format!("{}/absent:1", registry.address)).refused_with("image not found");

    // A registry is reached without TLS only if it is configured and on this machine.
    fixture.configure("[images]\n");
    assert_eq!(fixture.image(&["rm", &name]).code, Some(0));
    assert_eq!(fixture.pull(&name).code, Some(125));
    fixture.configure("[images]\nplain_http = [\"registry.example\"]\n");
    fixture.pull(&name).refused_with("images.plain_http");

    // A mirror serves the image under its canonical name.
    fixture.configure(&format!(
        "[images]\nplain_http = [{address:?}]\nmirrors = {{ \"docker.io\" = [\"127.0.0.1:1\", {address:?}] }}\n",
        address = registry.address
    ));
    registry.push("library/tiny", "latest", &Picture::usual());
    assert_eq!(fixture.pull("tiny").json["name"], "docker.io/library/tiny:latest");
}

fn piped(command: &mut Command, input: &str) -> Output {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// Returns what a hostile registry answers, and the error that each answer must cause.
fn lies(usual: &Picture) -> Vec<(&'static str, Answers, &'static str)> {
    let honest = Answers::of(usual);
    let blob = |bytes: &[u8]| format!("blobs/sha256:{}", sum(bytes));
    let layer = usual.packed[1].clone();
    let changed = |path: &str, body: Vec<u8>| {
        let mut answers = honest.clone();
        answers.add(path, body);
        answers
    };
    let mut flipped = layer.clone();
    *flipped.last_mut().unwrap() ^= 1;
    let other = String::from_utf8(usual.config.clone()).unwrap().replace("hello", "jello").into_bytes();
    let turned = usual.layers.iter().rev().cloned().collect();
    // The digests are correct, but the manifest lists other layers than the configuration.
    let mut swapped = Picture::new(usual.layers.clone());
    swapped.config = Picture::new(turned).config;
    let evil = String::from_utf8(usual.manifest())
        .unwrap()
        .replace(&format!("\"size\":{}", layer.len()), "\"size\":99999999999");
    let index = changed("manifests/1", usual.index(picture::architecture()).to_string().into_bytes());
    let mut changed_manifest = index.clone();
    let named = format!("manifests/sha256:{}", sum(&usual.manifest()));
    changed_manifest.add(&named, Picture::other().manifest());
    vec![
        ("a changed layer", changed(&blob(&layer), flipped), "does not match its digest"),
        (
            "a longer layer",
            changed(&blob(&layer), [layer.clone(), vec![0; 9]].concat()),
            "does not match its digest",
        ),
        ("a changed configuration", changed(&blob(&usual.config), other), "does not match its digest"),
        ("other layers than it says", Answers::of(&swapped), "does not match its digest"),
        ("too many bytes", changed("manifests/1", evil.into_bytes()), "bytes to fetch"),
        ("nonsense", changed("manifests/1", b"{}".to_vec()), "cannot parse"),
        (
            "another machine's",
            changed("manifests/1", usual.index("s390x").to_string().into_bytes()),
            "does not support this machine",
        ),
        ("a manifest that is not there", index.clone(), "image not found"),
        ("a changed manifest", changed_manifest, "does not match its digest"),
    ]
}

#[test]
fn an_unreachable_registry_is_reported_with_advice() {
    let nobody = "127.0.0.1:1";
    ImageFixture::new(&[nobody]).pull(&format!("{nobody}/absent:1")).refused_with("images.mirrors");
}

#[test]
fn hostile_registries_are_detected() {
    if busybox().is_none() {
        return skip("registries that lie", "busybox-static is not installed");
    }
    // None of these images is run.
    let mut small = Layer::default();
    small.file("bin/x", b"x", 0o755);
    for (name, answers, why) in lies(&Picture::new(vec![small.end(), upper()])) {
        let address = lie(answers);
        let fixture = ImageFixture::new(&[&address]);
        let answer = fixture.pull(&format!("{address}/liar:1"));
        assert_eq!(answer.code, Some(125), "{name}: {answer:#?}");
        assert!(answer.error_message().contains(why), "{name}: {answer:#?}");
        assert_eq!((count(&fixture.store("images")), count(&fixture.store("staging"))), (0, 0), "{name}");
    }
    let usual = Picture::usual();
    // An image requested by digest must match it.
    let address = lie(Answers::of(&usual));
    let fixture = ImageFixture::new(&[&address]);
    let wrong = format!("{address}/liar@sha256:{}", sum(b"wrong"));
    assert_eq!(fixture.pull(&wrong).code, Some(125));
    // An interrupted download of a layer is resumed, again and again.
    let broken = lie(Answers { breaks_after: Some(300_000), ..Answers::of(&usual) });
    let fixture = ImageFixture::new(&[&broken]);
    let name = format!("{broken}/liar:1");
    assert_eq!(fixture.pull(&name).code, Some(0));
    look(&fixture.sh(&name, LOOK));
}

#[test]
fn a_killed_pull_leaves_nothing_partial_and_is_resumed() {
    if busybox().is_none() {
        return skip("a pull that is killed", "busybox-static is not installed");
    }
    let usual = Picture::usual();
    let stalling = lie(Answers { breaks_after: Some(300_000), stalls: true, ..Answers::of(&usual) });
    let honest = lie(Answers::of(&usual));
    let fixture = ImageFixture::new(&[&stalling, &honest]);
    let mut command = fixture.command();
    command
        .args(["image", "pull", &format!("{stalling}/liar:1")])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let pulling = Live(command.spawn().unwrap());
    let part = fixture.store("blobs").join(sum(&usual.packed[0]));
    while fs::metadata(&part).map_or(0, |part| part.len()) < 300_000 {
        std::thread::yield_now();
    }
    drop(pulling);
    assert!(fixture.names().is_empty());
    assert_eq!((count(&fixture.store("roots")), count(&fixture.store("staging"))), (0, 0));
    assert_eq!(fs::metadata(&part).unwrap().len(), 300_000);
    let name = format!("{honest}/liar:1");
    assert_eq!(fixture.pull(&name).code, Some(0));
    look(&fixture.sh(&name, LOOK));
    assert_eq!(count(&fixture.store("blobs")), 0);
}

#[test]
fn archives_and_layouts_run_directly() {
    if busybox().is_none() {
        return skip("archives and layouts", "busybox-static is not installed");
    }
    let fixture = ImageFixture::new(&[]);
    let usual = Picture::usual();
    usual.layout(&fixture.at("layout"));
    usual.save(&fixture.at("saved.tar"));
    for place in ["layout", "saved.tar"] {
        look(&fixture.sh(fixture.at(place).to_str().unwrap(), LOOK));
    }
    assert_eq!((fixture.names().len(), count(&fixture.store("roots"))), (2, 2));
    // Its mounts do not reveal where the image is stored on the host.
    let mounts =
        fixture.sh(fixture.at("saved.tar").to_str().unwrap(), "cat /proc/self/mountinfo /proc/self/mounts");
    let text = mounts.text("stdout");
    assert!(text.contains(" /bin ") && !text.contains("cache/belljar"), "{text}");
    // A modified layer, and a file that is not an archive.
    let blob = fixture.at("layout/blobs/sha256").join(sum(&usual.packed[1]));
    fs::write(blob, picture::gzip(b"other")).unwrap();
    fs::write(fixture.at("none.tar"), "nothing").unwrap();
    for name in fixture.names() {
        assert_eq!(fixture.image(&["rm", &name]).code, Some(0));
    }
    fixture.pull(fixture.at("layout").to_str().unwrap()).refused_with("does not match its digest");
    assert_eq!(fixture.pull(fixture.at("none.tar").to_str().unwrap()).code, Some(125));
}

#[test]
fn a_pulled_archive_keeps_its_tags() {
    if busybox().is_none() {
        return skip("tags of an archive", "busybox-static is not installed");
    }
    let fixture = ImageFixture::new(&[]);
    let archive = fixture.at("saved.tar").to_str().unwrap().to_owned();
    let tagged = |tags: Value| Picture::usual().save_as(&fixture.at("saved.tar"), tags);
    tagged(json!(["x:1", "team/tool:2"]));
    assert_eq!(fixture.pull(&archive).code, Some(0));
    let names = ["docker.io/library/x:1", "docker.io/team/tool:2"];
    assert_eq!(fixture.names(), names);
    names.iter().for_each(|name| look(&fixture.sh(name, LOOK)));
    assert_eq!(fixture.image(&["rm", "x:1"]).code, Some(0));
    look(&fixture.sh("team/tool:2", LOOK));
    // Without tags, the path is the name.
    for untagged in [json!([]), json!(null)] {
        tagged(untagged);
        assert_eq!(fixture.pull(&archive).text("name"), archive);
    }
    for bad in ["/etc/passwd", "sealed", "UPPER", "x@sha256:1", ""] {
        tagged(json!([bad]));
        assert_eq!(fixture.pull(&archive).code, Some(125), "{bad}");
    }
    tagged(json!(vec!["x:1"; 101]));
    fixture.pull(&archive).refused_with("tags");
    // An archive that code runs in does not replace an image.
    let before = fixture.names();
    tagged(json!(["team/tool:2", "team/other:1"]));
    look(&fixture.sh(&archive, LOOK));
    assert_eq!(fixture.names(), before);
}

#[test]
fn mcp_runs_use_the_given_image() {
    if busybox().is_none() {
        return skip("an image for a model's tools", "busybox-static is not installed");
    }
    let fixture = ImageFixture::new(&[]);
    let mut shell = Layer::default();
    shell.file("bin/bash", b"#!/bin/sh\nexec /bin/sh \"$@\"\n", 0o755);
    Picture::new([Picture::usual().layers, vec![shell.end()]].concat()).save(&fixture.at("saved.tar"));
    let mut client = Client::by(fixture.command().args(["mcp", "--image"]).arg(fixture.at("saved.tar")));
    client.initialize("2025-11-25");
    let sandbox = client.call("sandbox_open", json!({}))["structuredContent"]["sandbox"].clone();
    for sandbox in [Value::Null, sandbox] {
        let ran =
            client.call("run_command", json!({"command": "tool; cat /etc/version", "sandbox": sandbox}));
        assert_eq!(ran["structuredContent"]["stdout"], "the tool\n2\n", "{ran}");
    }
    assert!(client.end().success());
    // An image folder is refused, because sandboxes could not use it.
    let folder = fixture.command().args(["mcp", "--image", "/"]).output().unwrap();
    let said = String::from_utf8(folder.stderr).unwrap();
    assert!(folder.status.code() == Some(125) && said.contains("or set the folder in a profile"), "{said}");
}

/// Builds a program that locks a file of the image and holds the lock for some seconds.
fn lock_program(fixture: &ImageFixture) -> Option<Vec<u8>> {
    let code = r#"
        #include <fcntl.h>
        #include <stdio.h>
        #include <stdlib.h>
        #include <sys/file.h>
        #include <unistd.h>
        int main(int count, char **words) {
            int file = open("/bin/busybox", O_RDONLY);
            puts(flock(file, LOCK_EX | LOCK_NB) ? "busy" : "held");
            fflush(stdout);
            sleep(atoi(words[1]));
        }"#;
    let program = fixture.at("lock");
    let mut command = Command::new("gcc");
    command.args(["-static", "-x", "c", "-", "-o"]).arg(&program);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.stdin(Stdio::piped()).spawn().ok()?;
    child.stdin.take()?.write_all(code.as_bytes()).ok()?;
    child.wait().ok().filter(|status| status.success())?;
    fs::read(program).ok()
}

#[test]
fn sandboxes_of_one_image_share_no_locks_and_keep_it_in_use() {
    if busybox().is_none() {
        return skip("sandboxes of one image", "busybox-static is not installed");
    }
    let fixture = ImageFixture::new(&[]);
    let Some(lock) = lock_program(&fixture) else {
        return skip("sandboxes of one image", "gcc is not installed");
    };
    let mut locks = Layer::default();
    locks.file("bin/lock", &lock, 0o755);
    Picture::new(vec![picture::base(), locks.end()]).save(&fixture.at("saved.tar"));
    let image = fixture.at("saved.tar").to_str().unwrap().to_owned();
    let mut command = fixture.command();
    command.args(["run", "--quiet", "--policy", "off", "--image", &image, "--", "lock", "25"]);
    let mut holder = Live(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
    assert_eq!(holder.first_line(), "held");
    fixture.sh(&image, "lock 0; lock 0").printed("held\nheld\n");
    // The lock works: within one sandbox it is exclusive.
    fixture
        .sh(&image, "lock 9 > out & while ! grep -q held out; do :; done; lock 0; kill $!")
        .printed("busy\n");

    let removed = fixture.image(&["rm", &image]);
    assert_eq!((&removed.json["in_use"], fixture.names().len()), (&Value::from(1), 0), "{removed:#?}");
    let root = roots(&fixture).remove(0);
    assert!(root.join("bin/busybox").exists());
    drop(holder);
    assert_eq!(alive_with("lock 25", Duration::from_secs(60)), Vec::<String>::new());
    // The next operation on the store cleans up.
    assert_eq!(fixture.pull(&image).code, Some(0));
    assert_eq!(fixture.image(&["rm", &image]).code, Some(0));
    assert_eq!(count(&fixture.store("roots")), 0);
}

#[test]
fn requests_may_only_name_allowed_and_stored_images() {
    if busybox().is_none() {
        return skip("images of a server", "busybox-static is not installed");
    }
    let fixture = ImageFixture::new(&[]);
    Picture::usual().save(&fixture.at("saved.tar"));
    let image = fixture.at("saved.tar").to_str().unwrap().to_owned();
    let data = fixture.at("data");
    fs::create_dir(&data).unwrap();
    let images = data.join("images");
    assert_eq!(fixture.image(&["pull", &image, "--folder", images.to_str().unwrap()]).code, Some(0));
    fixture.configure(&format!("[images]\nallow = [{image:?}, \"sealed\"]\n"));
    let mut command = fixture.command();
    command.args(["serve", "--listen", "127.0.0.1:0", "--allow-degraded", "--data-dir"]).arg(&data);
    let server = Server::of(command.env("BELLJAR_ADMIN_KEY", KEY));
    let run = |image: &str| {
        let body = json!({"command": ["tool"], "image": image, "policy": "off"});
        server.post("/v1/executions", &body)
    };
    let ran = run(&image);
    assert_eq!((ran.status, ran.json()["stdout"].as_str()), (200, Some("the tool\n")), "{ran:?}");
    for (image, why) in [
        ("sealed", "no image"),
        ("busybox", "is not an image that this server allows"),
        ("/", "is not an image that this server allows"),
    ] {
        let refused = run(image);
        assert_eq!(refused.status, 422, "{refused:?}");
        assert!(refused.text().contains(why), "{refused:?}");
    }
}

#[test]
fn a_sealed_image_shares_nothing_with_the_host() {
    if !everything() {
        return skip("the host sealed", "it copies gigabytes; only with ./test --all");
    }
    let fixture = ImageFixture::new(&[]);
    assert_eq!(fixture.image(&["seal"]).code, Some(0));
    let ran = finish(fixture.command().args([
        "run",
        "--json",
        "--image",
        "sealed",
        "-c",
        "import ssl; print(6 * 7)",
    ]));
    ran.printed("42\n");
    let root = roots(&fixture).remove(0);
    let same = |path: &str| {
        let (copy, own) = (fs::metadata(root.join(&path[1..])).unwrap(), fs::metadata(path).unwrap());
        (copy.dev(), copy.ino()) == (own.dev(), own.ino()) || copy.len() != own.len()
    };
    for path in ["/usr/bin/python3", "/usr/bin/bash", "/etc/ld.so.cache"] {
        assert!(!same(path), "{path}");
    }
    assert!(!Path::new(&root).join("etc/shadow").exists());
}
