//! Several processes on one store, some of which are killed. Each one executes this test binary again.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use belljar_layers::store::{LayerBounds, LayerStore, LayerStoreError, Prune, SingleFlight};

use crate::common::{StoreFixture, fill, publish, recipe};

const ROLE: &str = "BELLJAR_SHELF_ROLE";
const FOLDER: &str = "BELLJAR_SHELF_FOLDER";

/// The entry point of the other process; not a test itself.
#[test]
fn other_process() {
    let (Ok(role), Ok(folder)) = (std::env::var(ROLE), std::env::var(FOLDER)) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = LayerStore::open(Path::new(&folder), LayerBounds::default(), Arc::new(|_| {})).unwrap();
        match role.as_str() {
            "publish" => drop(publish(&store, "a").await.unwrap()),
            "stage" => {
                let stage = store.stage().unwrap();
                fill(&stage, "a");
                let _turn =
                    store.lock_work(&belljar_beneath::ContentDigest::from_parts("x", ["x"])).await.unwrap();
                wait();
            }
            "hold" => {
                let _held = store.find(&recipe("a").key()).await.unwrap().unwrap();
                wait();
            }
            "obtain" => obtain(&store, Path::new(&folder)).await,
            "again and again" => {
                for number in 0.. {
                    publish(&store, &format!("{number}")).await.unwrap();
                    store.prune(Prune { to_layers: Some(2), ..Prune::default() }).unwrap();
                }
            }
            role => panic!("{role}"),
        }
    });
}

/// Reports that it is ready, and waits until its input ends.
fn wait() {
    std::io::stdout().lock().write_all(b"\nready\n").unwrap();
    let _ = std::io::stdin().lock().read_line(&mut String::new());
}

async fn obtain(store: &LayerStore, folder: &Path) {
    let build = async {
        let mut log = fs::File::options().append(true).create(true).open(folder.join("builds")).unwrap();
        log.write_all(b"x").unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        publish(store, "a").await
    };
    let flights = SingleFlight::<Result<_, LayerStoreError>>::default();
    store.obtain(&flights, &recipe("a").key(), build).await.unwrap();
}

fn command(role: &str, fixture: &StoreFixture, before: &[&str]) -> Command {
    let own = std::env::current_exe().unwrap();
    let mut words = before.to_vec();
    words.extend([own.to_str().unwrap(), "--exact", "processes::other_process", "--nocapture"]);
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).env(ROLE, role).env(FOLDER, fixture.path());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Starts a process, and waits until it reports that it is ready.
fn ready(role: &str, fixture: &StoreFixture) -> Child {
    let mut child = command(role, fixture, &[]).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line == "ready"), "{role} exited early");
    child
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[tokio::test]
async fn stages_of_killed_processes_are_swept_and_of_living_ones_kept() {
    let fixture = StoreFixture::new();
    let living = ready("stage", &fixture);
    drop(fixture.open());
    assert!(!fixture.is_tidy());
    kill(living);
    drop(fixture.open());
    assert!(fs::read_dir(fixture.path().join("staging")).unwrap().next().is_none());
    // Its work can now be done by another process.
    fixture.open().lock_work(&belljar_beneath::ContentDigest::from_parts("x", ["x"])).await.unwrap();
    assert!(fixture.is_tidy());
}

#[tokio::test]
async fn layers_in_use_by_another_process_are_not_pruned() {
    let fixture = StoreFixture::new();
    let store = fixture.open();
    drop(publish(&store, "a").await.unwrap());
    let other = ready("hold", &fixture);
    let all = Prune { to_layers: Some(0), ..Prune::default() };
    assert_eq!(store.prune(all).unwrap().layers, 0);
    assert!(store.find(&recipe("a").key()).await.unwrap().is_some());
    kill(other);
    assert_eq!(store.prune(all).unwrap().layers, 1);
}

#[tokio::test]
async fn several_processes_build_once() {
    let fixture = StoreFixture::new();
    drop(fixture.open());
    let children: Vec<_> = (0..4).map(|_| command("obtain", &fixture, &[]).spawn().unwrap()).collect();
    for child in children {
        let ended = child.wait_with_output().unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    }
    assert_eq!(fs::read(fixture.path().join("builds")).unwrap(), b"x");
    assert!(fixture.is_tidy());
}

/// Checks that every layer is complete afterwards, and that nothing else is left.
async fn is_whole(fixture: &StoreFixture, when: &str) {
    let store = fixture.open();
    for name in fs::read_dir(fixture.path().join("layers")).unwrap() {
        let key = name.unwrap().file_name().to_str().unwrap().parse().unwrap();
        store.verify(&key).unwrap_or_else(|error| panic!("{when}: {error}"));
    }
    assert!(fixture.is_tidy(), "{when}");
    assert!(fixture.warnings().is_empty(), "{when}");
}

/// Kills the process at the n-th call of each kind that changes something.
#[tokio::test]
async fn a_kill_at_any_step_of_publishing_leaves_no_partial_layer() {
    if Command::new("strace").arg("-V").output().is_err() {
        assert!(std::env::var_os("CI").is_none(), "strace is required in CI");
        println!("skipped: strace is not installed");
        return;
    }
    let (mut killed, mut came) = (0, 0);
    for (calls, times) in [
        ("mkdir,mkdirat", &[7, 8, 9][..]),
        ("fchmod", &[1, 2, 5, 8]),
        ("syncfs", &[1]),
        ("fsync", &[1, 2]),
        ("rename,renameat,renameat2", &[1]),
        ("unlink,unlinkat,rmdir", &[1, 2]),
        ("flock", &[2, 3, 4]),
    ] {
        for time in times {
            let fixture = StoreFixture::new();
            let inject = format!("inject={calls}:signal=SIGKILL:when={time}");
            let words = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", &inject];
            let ended = command("publish", &fixture, &words).output().unwrap();
            killed += u32::from(!ended.status.success());
            is_whole(&fixture, &inject).await;
            came += u32::from(fixture.layer(&recipe("a").key()).exists());
            // The next process finds the layer, or can publish it.
            publish(&fixture.open(), "a").await.unwrap();
            is_whole(&fixture, &inject).await;
        }
    }
    assert!(killed >= 12, "only {killed} processes were killed");
    assert!(came >= 1 && came < killed, "{came} of {killed} killed processes had published");
}

/// Kills the process at arbitrary moments, while layers come and go.
#[tokio::test]
async fn a_kill_at_any_moment_leaves_no_partial_layer() {
    let fixture = StoreFixture::new();
    drop(fixture.open());
    for round in 0..15 {
        let child = command("again and again", &fixture, &[]).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(60 + 7 * round));
        kill(child);
        is_whole(&fixture, &format!("round {round}")).await;
    }
}
