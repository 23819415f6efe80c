//! Two tenants of one server: layers installed for one are not shared with the other unless an administrator
//! allows it.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::common::server::Server;
use crate::expect::skip;
use crate::fixture::{Kit, PackageFixture, all_tests};

const CODE: &str = "import six; print(six.__name__, getattr(six, 'poisoned', 'clean'))";

fn server(fixture: &PackageFixture, settings: &str) -> Server {
    let config = fixture.folder().join("server.toml");
    std::fs::write(&config, settings).expect("a file of the test's own");
    let mut command: Command = fixture.command();
    command.arg("--config").arg(config).args(["serve", "--allow-degraded"]);
    Server::by(command, &fixture.folder().join("data"))
}

fn run(server: &Server, key: &str, code: &str) -> Value {
    let body = json!({"language": "python", "code": code}).to_string();
    let reply =
        server.call_as(key, "POST", "/v1/executions", "Content-Type: application/json\r\n", body.as_bytes());
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// Returns every file of this name below a folder.
fn all_named(folder: &Path, name: &str) -> Vec<PathBuf> {
    let inside =
        |path: &PathBuf| if path.is_dir() && !path.is_symlink() { all_named(path, name) } else { Vec::new() };
    let entries = entries(folder);
    let below: Vec<_> = entries.iter().flat_map(inside).collect();
    entries.into_iter().filter(|path| path.ends_with(name)).chain(below).collect()
}

#[test]
fn tenants_have_separate_layers_and_caches() {
    let fixture = fixture!(Kit::Fast);
    let server = server(&fixture, "");
    let (ada, bob) = (server.tenant("ada", json!({})), server.tenant("bob", json!({})));
    let layers = fixture.folder().join("data/layers");
    let (first, again) = (run(&server, &ada, CODE), run(&server, &ada, CODE));
    assert_eq!(
        (&first["dependencies"]["cache"], &again["dependencies"]["cache"]),
        (&json!("miss"), &json!("hit"))
    );
    assert!(!first.to_string().contains("/layers"), "{first}");
    // The worst case: every copy of the module that Ada's installs left behind has been poisoned.
    let hers = [all_named(&layers.join("layers"), "six.py"), all_named(&layers.join("installers"), "six.py")]
        .concat();
    assert!(hers.len() >= 2, "a layer and an installer's cache: {hers:?}");
    let overwrite = |file: &Path, content: &str| {
        Command::new("chmod").arg("u+w").arg(file).status().expect("chmod is there");
        std::fs::write(file, content).expect("a file of the test's own");
    };
    hers.iter().for_each(|file| overwrite(file, "poisoned = 'poisoned'\n"));
    // Precompiled bytecode would hide the change. Files are overwritten in place, because a file removed
    // below an overlay stays visible through it.
    for compiled in all_named(&layers.join("layers"), "__pycache__") {
        entries(&compiled).iter().for_each(|file| overwrite(file, ""));
    }
    assert_eq!(run(&server, &ada, CODE)["stdout"], "six poisoned\n");
    let first = run(&server, &bob, CODE);
    assert_eq!(
        (&first["stdout"], &first["dependencies"]["cache"]),
        (&json!("six clean\n"), &json!("miss")),
        "{first}"
    );
    assert_eq!(entries(&layers.join("layers")).len(), 2);
    assert_eq!(entries(&layers.join("installers")).iter().filter(|path| path.is_dir()).count(), 2);
    // A sandbox sees only its own read-only layer, and no other one.
    let look = format!(
        "import os, six\ntry: open(six.__file__, 'a'); print('written')\nexcept OSError: print('kept')\n\
         print(os.path.exists({:?}), sorted(os.listdir('/opt/belljar')))",
        layers.display().to_string()
    );
    assert_eq!(run(&server, &bob, &look)["stdout"], "kept\nFalse ['python', 'site']\n");
    let metrics = server.get("/metrics").text();
    for line in [
        r#"belljar_layers_total{from="installed"} 2"#,
        r#"belljar_layers_total{from="shared_cache"} 0"#,
        "# TYPE belljar_layers_total counter",
        "belljar_layers 2",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    let number = |name: &str| {
        let line = metrics.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{metrics}"));
        line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok()).unwrap_or_default()
    };
    assert!(number(r#"belljar_layers_total{from="shelf"}"#) >= 1.0, "{metrics}");
    assert!(
        number("belljar_layers_bytes ") > 10_000.0 && number("belljar_layers_install_seconds ") > 0.0,
        "{metrics}"
    );
    assert!(!metrics.contains("ada") && !metrics.contains("bob"), "{metrics}");
}

#[test]
fn tenants_share_layers_if_configured() {
    if !all_tests() {
        return skip("tenants that share", "only with ./test --all");
    }
    let fixture = fixture!(Kit::Fast);
    let server = server(&fixture, "[dependencies]\nshared = true\n");
    let (ada, bob) = (server.tenant("ada", json!({})), server.tenant("bob", json!({})));
    let caches =
        [run(&server, &ada, CODE), run(&server, &bob, CODE)].map(|one| one["dependencies"]["cache"].clone());
    assert_eq!(caches, [json!("miss"), json!("hit")]);
    assert_eq!(entries(&fixture.folder().join("data/layers/layers")).len(), 1);
}
