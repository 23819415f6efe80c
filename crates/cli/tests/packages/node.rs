//! A warm Node.js and the packages of a request: the runs that it forks see them, and the zygote itself does
//! not.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::is_root;
use crate::common::server::Server;
use crate::expect::skip;
use crate::fixture::{Kit, PackageFixture};
use crate::index::Index;

const CODE: &str = "const before = Object.keys(require.cache).filter((path) => path.includes('node_modules'));\n\
    console.log(JSON.stringify([before, globalThis.bellTraceLoads ?? 0, require('bell-trace')]));";
const RUNS: usize = 20;

fn server(fixture: &PackageFixture, index: &Index) -> Server {
    let mut command = index.command(fixture);
    command.args(["serve", "--allow-degraded"]);
    Server::by(command, &fixture.folder().join("data"))
}

/// Runs the code, which must find its package not yet loaded. Returns whether the run was forked from a
/// zygote.
fn run_confined(server: &Server, key: &str) -> bool {
    let body = json!({"language": "javascript", "code": CODE, "dependencies": {"packages": ["bell-trace"]}});
    let head = "Content-Type: application/json\r\n";
    let reply = server.call_as(key, "POST", "/v1/executions", head, body.to_string().as_bytes());
    assert_eq!(reply.status, 200, "{}", reply.text());
    let result = reply.json();
    let said: Value = serde_json::from_str(result["stdout"].as_str().unwrap_or_default())
        .unwrap_or_else(|_| panic!("{result}"));
    assert_eq!((&said[0], &said[1]), (&json!([]), &json!(0)), "loaded before the run: {result}");
    // The first program of a sandbox is its process 2; a zygote never is.
    assert_eq!((&said[2]["loads"], &said[2]["pid"]), (&json!(1), &json!("2")), "{result}");
    result["receipt"]["warm"] != json!(false)
}

fn field(process: &Path, name: &str) -> String {
    let status = std::fs::read_to_string(process.join("status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_default().trim().to_owned()
}

fn is_below(process: &Path, ancestor: u32) -> bool {
    let parent = |pid: &u32| field(&Path::new("/proc").join(pid.to_string()), "PPid").parse().ok();
    std::iter::successors(field(process, "Pid").parse().ok(), parent).any(|pid| pid == ancestor)
}

/// Returns when a process started, in ticks since boot.
fn started(process: &Path) -> Option<u64> {
    let stat = std::fs::read_to_string(process.join("stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()
}

/// Returns the server's zygote. Its forks look alike but start later.
fn zygote(server: &Server) -> Option<PathBuf> {
    let processes = std::fs::read_dir("/proc").expect("a folder").flatten().map(|entry| entry.path());
    let is_node = |path: &PathBuf| {
        let command = std::fs::read_to_string(path.join("cmdline")).unwrap_or_default();
        command.contains("/run/belljar/zygote") && command.contains("--single-threaded")
    };
    let own = processes.filter(is_node).filter(|path| is_below(path, server.child.id()));
    own.min_by_key(|path| started(path))
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    entries.flatten().map(|entry| entry.path()).collect()
}

/// Asserts that a zygote's `/node_modules` is empty, and that nothing from there is open or mapped.
fn sees_no_packages(zygote: &Path) {
    let layer = zygote.join("root/node_modules");
    assert!(layer.is_dir(), "the layer's folder exists, and is covered");
    assert_eq!(entries(&layer), Vec::<PathBuf>::new(), "the zygote sees the packages of a request");
    let maps = std::fs::read_to_string(zygote.join("maps")).expect("a zygote that lives");
    let of_packages = |text: &str| text.contains("node_modules") || text.contains("bell-trace");
    assert!(maps.contains("node") && !maps.lines().any(of_packages), "{maps}");
    let open = entries(&zygote.join("fd")).into_iter().filter_map(|fd| std::fs::read_link(fd).ok());
    let open: Vec<PathBuf> = open.chain(std::fs::read_link(zygote.join("cwd")).ok()).collect();
    assert!(!open.iter().any(|path| of_packages(&path.to_string_lossy())), "{open:?}");
    assert!(!zygote.join("root/tmp/bell-trace").exists(), "a package was loaded in the zygote");
}

#[test]
fn a_warm_node_does_not_see_the_packages_of_its_runs() {
    if !is_root() {
        return skip("a zygote from outside", "only root may inspect it");
    }
    let fixture = fixture!(Kit::Fast);
    let index = Index::new(&fixture);
    let server = server(&fixture, &index);
    let key = server.tenant("mallory", json!({}));
    let end = Instant::now() + Duration::from_secs(120);
    let mut warm_runs = 0;
    while warm_runs < RUNS {
        assert!(Instant::now() < end, "{warm_runs} of {RUNS} runs were warm");
        if run_confined(&server, &key) {
            warm_runs += 1;
            sees_no_packages(&zygote(&server).expect("a zygote that this run was forked from"));
        } else {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
