//! Packages that are added to a sandbox while it is open.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::server::{Reply, Server};
use crate::fixture::{Kit, PackageFixture};

fn serve(fixture: &PackageFixture) -> Server {
    let mut command = fixture.with_only_links();
    command.args(["serve", "--allow-degraded"]);
    Server::by(command, &fixture.folder().join("data"))
}

fn run(server: &Server, sandbox: &str, code: &str, packages: &[&str]) -> Reply {
    let body = json!({"language": "python", "code": code, "dependencies": {"packages": packages}});
    server.post(&format!("{sandbox}/executions"), &body)
}

fn stdout(reply: &Reply) -> String {
    reply.json()["stdout"].as_str().unwrap_or_else(|| panic!("{}", reply.text())).to_owned()
}

fn shell(server: &Server, sandbox: &str, line: &str) -> Value {
    server.post(&format!("{sandbox}/commands"), &json!({"shell": line})).json()
}

fn wait_for(what: &str, mut seen: impl FnMut() -> bool) {
    let started = Instant::now();
    while !seen() {
        assert!(started.elapsed() < Duration::from_secs(60), "timed out waiting for: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn imports_of_code_in_an_open_sandbox_are_installed() {
    let fixture = fixture!(Kit::Fast);
    fixture.make_wheel("six", "1.17.0", &[], &[("six.py", "WHO = 'six'")]);
    let server = serve(&fixture);
    let (sandbox, other) = (server.sandbox(&json!({})), server.sandbox(&json!({})));
    // A command installs nothing, and its failure has a hint.
    let import = "python3 -c 'import six; print(six.WHO)'";
    let failed = shell(&server, &sandbox, import);
    let hint = &failed["findings"][0];
    assert_eq!((&failed["exit_code"], &hint["rule"]), (&json!(1), &json!("sandbox-no-module")), "{failed}");
    assert!(hint["message"].as_str().unwrap_or_default().contains("'six'"), "{hint}");
    assert!(hint["suggestion"].as_str().unwrap_or_default().contains("--dep NAME"), "{hint}");

    let code = "import six\nprint(six.WHO, six.__file__)";
    let ran = run(&server, &sandbox, code, &[]);
    assert_eq!(stdout(&ran), "six /opt/belljar/python/six.py\n", "{}", ran.text());
    let dependencies = &ran.json()["dependencies"];
    assert_eq!(
        (&dependencies["packages"], &dependencies["cache"]),
        (&json!(["six==1.17.0"]), &json!("miss"))
    );
    // It is there for later commands, and in the description of the sandbox.
    assert_eq!(shell(&server, &sandbox, import)["stdout"], "six\n");
    assert_eq!(server.get(&sandbox).json()["dependencies"]["packages"], json!(["six==1.17.0"]));
    // The sandbox has it already, so nothing is provided again.
    let again = run(&server, &sandbox, code, &[]).json();
    assert_eq!((&again["dependencies"]["cache"], &again["status"]), (&json!("none"), &json!("succeeded")));

    // It is read-only, and in no other sandbox.
    let write = "try: open('/opt/belljar/python/six.py', 'w')\nexcept OSError as error: print(error.errno)";
    assert_eq!(stdout(&run(&server, &sandbox, write, &[])), "30\n");
    assert_eq!(shell(&server, &other, import)["exit_code"], 1);
    // It does not reveal where the server keeps it.
    let mounts = shell(&server, &sandbox, "grep /opt/belljar /proc/self/mountinfo")["stdout"].to_string();
    assert!(mounts.contains("/opt/belljar/python ") && !mounts.contains("layers"), "{mounts}");
}

#[test]
fn an_open_sandbox_keeps_the_versions_that_it_has() {
    let fixture = fixture!(Kit::Fast);
    let part = ("bell_first/part.py", "WHO = 'part 1'");
    fixture.make_wheel("bell_first", "1.0", &[], &[("bell_first/__init__.py", "WHO = 'first 1'"), part]);
    fixture.make_wheel("bell_first", "2.0", &[], &[("bell_first/__init__.py", "WHO = 'first 2'")]);
    fixture.make_wheel("bell_second", "1.0", &["bell-first"], &[("bell_second.py", "WHO = 'second'")]);
    fixture.make_wheel("bell_newer", "1.0", &["bell-first>=2"], &[("bell_newer.py", "")]);
    let server = serve(&fixture);
    let sandbox = server.sandbox(&json!({"dependencies": {"packages": ["bell-first==1.0"]}}));
    // A program that runs meanwhile still finds what it found before.
    let waiting = "import bell_first, os, time\nopen('ready', 'w')\nwhile not os.path.exists('go'): time.sleep(0.02)\n\
                   import bell_first.part\nopen('late', 'w').write(bell_first.part.WHO)";
    let command = json!({"command": ["python3", "-c", waiting], "background": true});
    assert_eq!(server.post(&format!("{sandbox}/commands"), &command).status, 201);
    wait_for("the program waits", || shell(&server, &sandbox, "test -e ready")["exit_code"] == 0);

    let both = "import bell_first, bell_second\nprint(bell_first.WHO, bell_second.WHO)";
    let ran = run(&server, &sandbox, both, &["bell-second"]);
    assert_eq!(stdout(&ran), "first 1 second\n", "{}", ran.text());
    assert_eq!(ran.json()["dependencies"]["packages"], json!(["bell-first==1.0", "bell-second==1.0"]));
    shell(&server, &sandbox, "touch go");
    wait_for("the program's late import", || shell(&server, &sandbox, "cat late")["stdout"] == "part 1");

    // What conflicts is refused, nothing runs, and the sandbox stays as it is.
    for packages in [["bell-first==2.0"], ["bell-newer"]] {
        let refused = run(&server, &sandbox, "open('ran', 'w')", &packages);
        assert_eq!((refused.status, refused.code().as_str()), (422, "dependency_unresolvable"));
        assert!(refused.text().contains("bell-first"), "{}", refused.text());
    }
    assert_eq!(shell(&server, &sandbox, "test -e ran")["exit_code"], 1);
    assert_eq!(stdout(&run(&server, &sandbox, both, &[])), "first 1 second\n");
}

#[test]
fn modules_that_a_sandbox_has_are_not_installed() {
    let fixture = fixture!(Kit::Fast);
    fixture.make_wheel("six", "1.17.0", &[], &[("six.py", "WHO = 'the registry'")]);
    let server = serve(&fixture);
    let sandbox = server.sandbox(&json!({}));
    shell(&server, &sandbox, "echo \"WHO = 'the workspace'\" > six.py");
    let ran = run(&server, &sandbox, "import six\nprint(six.WHO)", &[]);
    assert_eq!(stdout(&ran), "the workspace\n", "{}", ran.text());
    assert_eq!(ran.json()["dependencies"]["packages"], json!([]));
    // Without detection, nothing is installed either.
    shell(&server, &sandbox, "rm -r six.py __pycache__");
    let body = json!({"language": "python", "code": "import six", "dependencies": {"detect": false}});
    let failed = server.post(&format!("{sandbox}/executions"), &body).json();
    assert_eq!((&failed["status"], &failed["dependencies"]["packages"]), (&json!("failed"), &json!([])));
    assert!(failed["findings"].to_string().contains("sandbox-no-module"), "{failed}");
}

#[test]
fn javascript_packages_are_added_to_an_open_sandbox() {
    let fixture = fixture!(Kit::Fast);
    let server = serve(&fixture);
    // Only a sandbox that was created with one has their mount point.
    let without = server.sandbox(&json!({}));
    let named = json!({"language": "javascript", "code": "1", "dependencies": {"packages": ["lodash"]}});
    let refused = server.post(&format!("{without}/executions"), &named);
    assert!(refused.text().contains("sandbox create --dep npm:NAME"), "{}", refused.text());
    let sandbox = server.sandbox(&json!({"dependencies": {"packages": ["npm:is-odd"]}}));
    let code = "console.log(require('lodash').add(1, 2), require('is-odd')(3))";
    let body = json!({"language": "javascript", "code": code});
    let ran = server.post(&format!("{sandbox}/executions"), &body);
    assert_eq!(stdout(&ran), "3 true\n", "{}", ran.text());
    let packages = ran.json()["dependencies"]["packages"].to_string();
    assert!(packages.contains("lodash@"), "{packages}");
    let later = shell(&server, &sandbox, &format!("node -e \"{code}\""));
    assert_eq!(later["stdout"], "3 true\n", "{later}");
}
