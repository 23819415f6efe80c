//! What containers can see: host folders, packages, and images named by requests.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::sync::{Arc, Mutex};

use belljar_engine::Engine;
use belljar_engine::admit::parse_mount;
use belljar_engine::layer::Layer;
use belljar_engine::limits::Limits;
use belljar_engine::packages::{
    PYTHON_BOOTSTRAP, PYTHON_LAYER, PYTHON_SITE_FOLDER, PackageLayer, PackageNeeds, PackageResolver,
    PackageStats, PackagesError, Progress, ProvidedPackages,
};
use belljar_engine::profile::Profiles;
use belljar_engine::provider::{BoxFuture, Sink, SinkControl, Stream};
use belljar_engine::report::Status;
use belljar_engine::request::HostPaths;
use belljar_providers::docker::{Docker, Settings};
use serde_json::json;

use crate::docker::{DaemonCase, nothing_left, settings};
use crate::dockerd::{Dockerd, IMAGE, Registry};
use crate::fixture::{Fixture, Verdict, check};
use crate::long_lived::text;

/// A user id that is unused on this machine.
const OWNER: u32 = 64_321;

pub(crate) fn all() -> Vec<(&'static str, DaemonCase)> {
    vec![
        ("host_folders_are_mounted", folders),
        ("a_playground_is_written_as_its_owner", playground),
        ("group_zero_of_a_folder_is_not_used", group_zero),
        ("root_owned_folders_are_not_writable", roots_own),
        ("packages_are_read_only_and_found", packages),
        ("a_request_selects_its_image", images),
        ("an_image_sets_variables_and_the_search_path", variables),
        ("a_missing_image_is_pulled_if_allowed", pulled),
    ]
}

fn folder() -> Result<tempfile::TempDir, String> {
    let folder = tempfile::tempdir().map_err(text)?;
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).map_err(text)?;
    Ok(folder)
}

fn mounted(text: &str) -> Result<HostPaths, String> {
    let mount = parse_mount(text).map_err(crate::long_lived::text)?;
    Ok(HostPaths { mounts: vec![mount], ..HostPaths::default() })
}

fn owner(path: &Path) -> u32 {
    std::fs::metadata(path).map_or(0, |metadata| metadata.uid())
}

fn folders(daemon: &mut Dockerd) -> Verdict {
    let fixture = Fixture::docker(settings(daemon));
    let folder = folder()?;
    std::fs::write(folder.path().join("in"), "hello\n").map_err(text)?;
    chown(folder.path(), Some(OWNER), Some(OWNER)).map_err(text)?;
    let shell = |code: &str| json!({"command": ["sh", "-c", code]});
    let path = folder.path().display();
    let read = shell("cat /data/in; echo x > /data/out || echo no");
    let report = fixture.run_with(read, mounted(&format!("{path}:/data"))?)?;
    check!(report.stdout == "hello\nno\n", report);
    check!(report.isolation().contains(&Layer::SeparateUid), report);
    check!(report.isolation().contains(&Layer::DiskQuota), report);
    let write = shell("echo x > /data/out; cat /data/out");
    let report = fixture.run_with(write.clone(), mounted(&format!("{path}:/data:rw"))?)?;
    check!(report.stdout == "x\n" && owner(&folder.path().join("out")) == OWNER, report);
    // The container runs as the folder's owner, and the folder has no quota.
    let lacks = [Layer::SeparateUid, Layer::DiskQuota];
    check!(lacks.iter().all(|layer| !report.isolation().contains(layer)), report);
    let mut strict = write;
    strict["require"] = json!(["disk_quota"]);
    let refused = fixture.run_with(strict, mounted(&format!("{path}:/data:rw"))?).err().unwrap_or_default();
    check!(refused.contains("'disk_quota' cannot be enforced: a writable host folder"), refused);
    let ours = fixture.run_with(shell("true"), mounted(&format!("{path}:/.belljar/lib"))?);
    check!(ours.as_ref().is_err_and(|why| why.contains("this path is reserved for Belljar")), ours);
    fixture.shut_down();
    nothing_left(daemon, "after folders")
}

fn playground(daemon: &mut Dockerd) -> Verdict {
    let fixture = Fixture::docker(Settings { pool: 1, ..settings(daemon) });
    let folder = folder()?;
    std::fs::write(folder.path().join("in"), "hello\n").map_err(text)?;
    chown(folder.path(), Some(OWNER), Some(OWNER)).map_err(text)?;
    let paths = || HostPaths { host_workspace: Some(folder.path().to_owned()), ..HostPaths::default() };
    let request = json!({"command": ["sh", "-c", "cat in; echo x > out; mkdir d"]});
    let report = fixture.run_with(request, paths())?;
    check!(report.stdout == "hello\n", report);
    let mut names: Vec<_> = std::fs::read_dir(folder.path()).map_err(text)?.flatten().collect();
    names.sort_by_key(std::fs::DirEntry::file_name);
    let owners: Vec<_> = names.iter().map(|name| owner(&name.path())).collect();
    check!(owners == [OWNER, 0, OWNER], (names, owners));
    let mut paths = paths();
    paths.mounts = mounted("/srv:/workspace/sub")?.mounts;
    let refused = fixture.run_with(json!({"command": ["true"]}), paths).err().unwrap_or_default();
    check!(refused.contains("cannot mount inside a workspace that is a host folder"), refused);
    check!(fixture.pools().is_empty(), "a container with a host folder is not pooled");
    fixture.shut_down();
    Ok(())
}

/// A folder whose owner is a user, but whose group is root's.
fn group_zero(daemon: &mut Dockerd) -> Verdict {
    let fixture = Fixture::docker(settings(daemon));
    let folder = folder()?;
    chown(folder.path(), Some(OWNER), Some(0)).map_err(text)?;
    let paths = HostPaths { host_workspace: Some(folder.path().to_owned()), ..HostPaths::default() };
    let command = ["sh", "-c", "cat /proc/self/status; echo x > out"];
    let report = fixture.run_with(json!({"command": command, "policy": "off"}), paths)?;
    let ids = |name: &str| {
        let line = report.stdout.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let owner = OWNER.to_string();
    check!(ids("Uid:") == vec![owner.clone(); 4] && ids("Gid:") == vec![owner; 4], report);
    check!(!ids("Groups:").contains(&"0".to_owned()), report);
    let written = std::fs::metadata(folder.path().join("out")).map_err(text)?;
    check!((written.uid(), written.gid()) == (OWNER, OWNER), written);
    fixture.shut_down();
    Ok(())
}

/// Code placed in a user's folder overwrites no file and is removed.
pub(crate) fn code_in_a_playground(fixture: &Fixture) -> Verdict {
    let folder = folder()?;
    std::fs::write(folder.path().join("main.py"), "theirs").map_err(text)?;
    chown(folder.path(), Some(OWNER), Some(OWNER)).map_err(text)?;
    let paths = HostPaths { host_workspace: Some(folder.path().to_owned()), ..HostPaths::default() };
    let code = "import os\nprint(open('main.py').read(), os.getcwd())\nopen('out', 'w').write('x')";
    let report = fixture.run_with(json!({"language": "python", "code": code}), paths)?;
    check!(report.stdout == "theirs /workspace\n" && report.findings.is_empty(), report);
    let names = std::fs::read_dir(folder.path()).map_err(text)?.flatten();
    let mut names: Vec<_> = names.map(|name| name.file_name()).collect();
    names.sort();
    check!(names == ["main.py", "out"], names);
    Ok(())
}

fn roots_own(daemon: &mut Dockerd) -> Verdict {
    let fixture = Fixture::docker(settings(daemon));
    let (full, empty) = (folder()?, folder()?);
    std::fs::write(full.path().join("in"), "hello\n").map_err(text)?;
    let run = |folder: &Path| {
        let paths = mounted(&format!("{}:/data:rw", folder.display()))?;
        fixture.run_with(json!({"command": ["sh", "-c", "echo x > /data/out"]}), paths)
    };
    let refused = run(full.path()).err().unwrap_or_default();
    check!(refused.contains("belongs to root, but nothing in a container runs as root"), refused);
    check!(owner(full.path()) == 0, "the owner was not changed");
    // An empty folder gets a new owner, as a new volume needs.
    let report = run(empty.path())?;
    check!(report.status == Status::Succeeded, report);
    check!(owner(&empty.path().join("out")) == owner(empty.path()) && owner(empty.path()) > 65_535, report);
    let again = run(empty.path())?;
    check!(again.status == Status::Succeeded, again);
    fixture.shut_down();
    Ok(())
}

/// Returns these layers for every request.
#[derive(Debug)]
struct FixedPackages(Vec<PackageLayer>);

impl PackageResolver for FixedPackages {
    fn prepare<'a>(
        &'a self,
        _: PackageNeeds<'a>,
        _: &'a mut dyn Progress,
    ) -> BoxFuture<'a, Result<ProvidedPackages, PackagesError>> {
        let prepared = ProvidedPackages { layers: self.0.clone(), ..ProvidedPackages::default() };
        Box::pin(std::future::ready(Ok(prepared)))
    }

    fn stats(&self) -> BoxFuture<'_, PackageStats> {
        Box::pin(std::future::ready(PackageStats::default()))
    }
}

fn packages(daemon: &mut Dockerd) -> Verdict {
    let folder = folder()?;
    std::fs::create_dir_all(folder.path().join("bin")).map_err(text)?;
    let program = folder.path().join("bin/tool");
    std::fs::write(&program, "#!/bin/sh\necho $PYTHONPATH\n").map_err(text)?;
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).map_err(text)?;
    let site = self::folder()?;
    std::fs::write(site.path().join("sitecustomize.py"), PYTHON_BOOTSTRAP).map_err(text)?;
    let layer =
        |source: &std::path::Path, destination| PackageLayer { source: source.to_owned(), destination };
    let shelf =
        FixedPackages(vec![layer(folder.path(), PYTHON_LAYER), layer(site.path(), PYTHON_SITE_FOLDER)]);
    let provider = Arc::new(Docker::new(settings(daemon)));
    let engine = Engine::new(provider, Profiles::built_in(), Limits::CEILING).with_packages(Arc::new(shelf));
    let fixture = Fixture::with_engine(engine);
    let code = format!("tool; echo x > {PYTHON_LAYER}/bin/tool || echo no");
    let report = fixture.run(json!({"command": ["sh", "-c", code]}))?;
    check!(report.stdout == format!("{PYTHON_SITE_FOLDER}\nno\n"), report);
    check!(report.isolation().contains(&Layer::DiskQuota), report);
    fixture.shut_down();
    Ok(())
}

fn images(daemon: &mut Dockerd) -> Verdict {
    daemon.docker(&["tag", IMAGE, "other/image:1"])?;
    let others = vec!["other/image:1".to_owned(), "not/there".to_owned()];
    let fixture =
        Fixture::docker(Settings { image: "belljar/nope".to_owned(), images: others, ..settings(daemon) });
    let run = |image: &str| fixture.run(json!({"command": ["echo", image], "image": image}));
    check!(run("other/image:1")?.stdout == "other/image:1\n", "the selected image");
    let missing = run("not/there").err().unwrap_or_default();
    check!(missing.contains("find image not/there") && missing.contains("docker pull not/there"), missing);
    let secret = run(IMAGE).err().unwrap_or_default();
    check!(secret.contains("requests may not use image"), secret);
    fixture.shut_down();
    Ok(())
}

fn variables(daemon: &mut Dockerd) -> Verdict {
    // The only Ruby program is in a folder of the image's own search path, and runs a shell.
    let program = "mkdir -p /opt/own && printf '#!/bin/sh\\nexec /bin/sh \"$1\"\\n' >/opt/own/ruby && cat /opt/own/ruby";
    let root = daemon.docker(&[
        "create",
        IMAGE,
        "sh",
        "-c",
        &format!("{program} && /bin/busybox chmod 755 /opt/own/ruby"),
    ])?;
    daemon.docker(&["start", "--attach", &root])?;
    let change = |line: &'static str| ["--change", line];
    let words = ["commit"].into_iter().chain(change("ENV GREETING=hello HOME=/nowhere LANG=of-the-image"));
    let words: Vec<_> =
        words.chain(change("ENV PATH=/opt/own:/bin")).chain([root.as_str(), "own/image"]).collect();
    daemon.docker(&words)?;
    daemon.docker(&["rm", &root])?;
    let fixture = Fixture::docker(Settings { image: "own/image".to_owned(), pool: 1, ..settings(daemon) });
    let code = "echo $GREETING $HOME $LANG $PATH";
    // First in a new container, then in a pooled one.
    for _ in 0..2 {
        let said = fixture.run(json!({"language": "ruby", "code": code, "env": {"LANG": "mine"}}))?;
        check!(said.stdout == "hello /home/sandbox mine /opt/own:/bin\n", said);
    }
    fixture.shut_down();
    Ok(())
}

/// A sink that records progress messages.
#[derive(Clone, Default)]
struct ProgressLog(Arc<Mutex<Vec<String>>>);

impl Sink for ProgressLog {
    fn output(&mut self, _: Stream, _: &[u8]) -> SinkControl {
        SinkControl::Continue
    }

    fn progress(&mut self, what: &str) {
        self.0.lock().expect("nobody panics").push(what.to_owned());
    }
}

fn pulled(daemon: &mut Dockerd) -> Verdict {
    let Some(registry) = Registry::start()? else { return Ok(()) };
    let name = format!("{}/team/tool:1", registry.address);
    daemon.docker(&["tag", IMAGE, &name])?;
    daemon.docker(&["push", "-q", &name])?;
    daemon.docker(&["rmi", "-f", &name, IMAGE])?;
    let fixture = Fixture::docker(Settings { pull: true, images: vec!["*".to_owned()], ..settings(daemon) });
    let mut told = ProgressLog::default();
    let request = json!({"command": ["echo", "pulled"], "image": name});
    let report = fixture.run_until(request, std::future::pending(), &mut told)?;
    check!(report.stdout == "pulled\n", report);
    let told = told.0.lock().expect("nobody panics").clone();
    check!(told.first().is_some_and(|line| *line == format!("pulling image {name}")), told);
    check!(told.iter().any(|line| line.contains("Pull complete")), told);
    let gone = fixture.run(json!({"command": ["true"], "image": format!("{}/no/such:1", registry.address)}));
    let gone = gone.err().unwrap_or_default();
    check!(gone.contains("pull image") && gone.contains("Docker answered:"), gone);
    fixture.shut_down();
    Ok(())
}
