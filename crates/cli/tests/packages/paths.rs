//! The order of packages on `sys.path`: the standard library first, a profile's own packages before a
//! request's; and how a profile's lock determines versions.

use serde_json::{Value, json};

use crate::common::warm::Conversation;
use crate::common::{Answer, finish};
use crate::fixture::{Kit, PackageFixture, all_tests};

const SHOW_PATH: &str = "import json, random, sys, sysconfig\n\
    stdlib = sysconfig.get_paths()['stdlib']\n\
    print(json.__file__.startswith(stdlib), random.__file__.startswith(stdlib))\n\
    kinds = {stdlib: 'stdlib', stdlib + '/lib-dynload': 'stdlib'}\n\
    print(*[kinds.get(one, 'site' if 'site-packages' in one else one) for one in sys.path if '.zip' not in one])\n";

/// Both kits in the second tier; otherwise only the fast one.
fn kits() -> &'static [Kit] {
    if all_tests() { &[Kit::Fast, Kit::Usual] } else { &[Kit::Fast] }
}

/// Runs with local packages only.
fn run(fixture: &PackageFixture, config: &str, arguments: &[&str]) -> Answer {
    finish(command(fixture, config).args(["run", "--json"]).args(arguments))
}

fn command(fixture: &PackageFixture, config: &str) -> std::process::Command {
    let file = fixture.folder().join("paths.toml");
    std::fs::write(&file, config).expect("a file of the test's own");
    let mut command = fixture.with_only_links();
    command.env("BELLJAR_CONFIG", file);
    command
}

/// Creates a wheel that uses every hook of the interpreter.
fn make_hooks(fixture: &PackageFixture) {
    let hook = |name: &str| format!("print('{name} ran')\n");
    let files = [
        ("sitecustomize.py", hook("sitecustomize")),
        ("usercustomize.py", hook("usercustomize")),
        ("json.py", hook("json")),
        ("random.py", hook("random")),
        ("bell_hooks.py", String::new()),
        ("bell.pth", "bell_more\nimport sys; print('pth ran')\n".to_owned()),
        ("bell_more/bell_below.py", String::new()),
    ];
    let files: Vec<_> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
    fixture.make_wheel("bell_hooks", "1.0", &[], &files);
}

fn make_module(fixture: &PackageFixture, name: &str, version: &str, needs: &[&str]) {
    let text = format!("version = '{version}'\n");
    fixture.make_wheel(name, version, needs, &[(&format!("{name}.py"), text.as_str())]);
}

#[test]
fn the_standard_library_wins_and_hooks_run_once() {
    for kit in kits() {
        let fixture = fixture!(*kit);
        make_hooks(&fixture);
        let expected = "/workspace stdlib stdlib /opt/belljar/python /opt/belljar/python/bell_more site";
        let lines = ["pth ran", "sitecustomize ran", "True True", expected];
        let cold = run(&fixture, "", &["--dep", "bell-hooks", "-c", SHOW_PATH]);
        assert_eq!(cold.lines(), lines, "{kit:?} {}", cold.json);
        // A child process of the program, with the user's variables.
        let code = format!(
            "import os, subprocess, sys\nopen('child.py', 'w').write({SHOW_PATH:?})\n\
             os.environ['PYTHONPATH'] = '/a:' + os.environ['PYTHONPATH'] + ':/b'\n\
             subprocess.run([sys.executable, 'child.py'])"
        );
        let child = run(&fixture, "", &["--dep", "bell-hooks", "-c", &code]);
        let with_users = expected.replace("/workspace ", "/workspace /a /b ");
        assert_eq!(child.lines()[2..], ["pth ran", "sitecustomize ran", "True True", &with_users]);
        // PYTHONPATH of a request stays in front.
        let own = run(&fixture, "", &["--dep", "bell-hooks", "--env", "PYTHONPATH=/a:/b", "-c", SHOW_PATH]);
        assert_eq!(own.lines()[3], with_users, "{}", own.json);
        // An isolated interpreter needs nothing from a layer.
        let alone = "import subprocess, sys\n\
            subprocess.run([sys.executable, '-I', '-c', \"import sys; print(*[x for x in sys.path if 'belljar' in x])\"])";
        let alone = run(&fixture, "", &["--dep", "bell-hooks", "-c", alone]);
        assert_eq!(alone.lines()[2..], [""], "{}", alone.json);
    }
}

#[test]
fn a_program_without_hooks_sees_no_sitecustomize() {
    let fixture = fixture!(Kit::Fast);
    make_module(&fixture, "bell_a", "1.0", &[]);
    let code = "import bell_a, sys\nprint('sitecustomize' in sys.modules)\n\
        try: import sitecustomize\nexcept ImportError as error: print(error.name)";
    let answer = run(&fixture, "", &["--dep", "bell-a", "-c", code]);
    assert_eq!(answer.lines(), ["False", "sitecustomize"], "{}", answer.json);
}

const TEAM: &str = "[profiles.team]\npackages = [\"bell-a\"]\n";
const SHOW: &str = "import bell_a, os\n\
    print(bell_a.version, bell_a.__file__, os.path.isdir('/opt/belljar/python'))";

#[test]
fn a_profile_keeps_its_versions_until_its_lock_is_updated() {
    for kit in kits() {
        let fixture = fixture!(*kit);
        make_module(&fixture, "bell_a", "1.0", &[]);
        let profile = |arguments: &[&str]| run(&fixture, TEAM, &[&["--profile", "team"], arguments].concat());
        let locked = "1.0 /opt/belljar/python-profile/bell_a.py False";
        assert_eq!(profile(&["-c", SHOW]).lines(), [locked], "{kit:?}");
        make_module(&fixture, "bell_a", "2.0", &[]);
        // Resolutions expire at once here, but a lock does not.
        assert_eq!(profile(&["-c", SHOW]).lines(), [locked]);
        let lock = |more: &[&str]| {
            let arguments = [&["deps", "lock", "--profile", "team", "--json"], more].concat();
            finish(command(&fixture, TEAM).args(arguments)).json["profiles"]["team"].clone()
        };
        let row = |before: Value, now: &str| json!([{"name": "bell-a", "before": before, "now": now}]);
        assert_eq!(lock(&[]), row(json!("1.0"), "1.0"));
        assert_eq!(lock(&["--upgrade"]), row(json!("1.0"), "2.0"));
        assert_eq!(profile(&["-c", SHOW]).lines(), [locked.replace("1.0", "2.0")]);
        // A lock is stored by its package list, so a profile that is configured elsewhere can be updated as
        // well.
        let named = finish(command(&fixture, "").args(["deps", "lock", "--dep", "bell-a", "--json"]));
        assert_eq!(named.json["profiles"]["(named)"], row(json!("2.0"), "2.0"), "{}", named.json);
    }
}

#[test]
fn a_request_uses_its_profiles_versions_if_possible() {
    for kit in kits() {
        let fixture = fixture!(*kit);
        make_module(&fixture, "bell_a", "1.0", &[]);
        let locked = run(&fixture, TEAM, &["--profile", "team", "-c", SHOW]);
        assert_eq!(locked.lines().len(), 1, "{}", locked.json);
        make_module(&fixture, "bell_a", "2.0", &[]);
        make_module(&fixture, "bell_b", "1.0", &["bell-a"]);
        let both = "import bell_a, bell_b\nprint(bell_a.version, bell_a.__file__, bell_b.__file__)";
        let fits = run(&fixture, TEAM, &["--profile", "team", "--dep", "bell-b", "-c", both]);
        let files = "/opt/belljar/python-profile/bell_a.py /opt/belljar/python/bell_b.py";
        assert_eq!(fits.lines(), [format!("1.0 {files}")], "{kit:?} {}", fits.json);
        assert_eq!(fits.json["dependencies"]["packages"], json!(["bell-a==1.0", "bell-b==1.0"]));
        // A conflicting requirement: both lists are resolved together into one layer, instead of the
        // profile's own.
        let not = run(&fixture, TEAM, &["--profile", "team", "--dep", "bell-a==2.0", "-c", SHOW]);
        assert_eq!(not.lines(), ["2.0 /opt/belljar/python/bell_a.py True"], "{kit:?} {}", not.json);
        let rules: Vec<_> =
            not.json["findings"].as_array().expect("a list").iter().map(|one| &one["rule"]).collect();
        assert_eq!(rules, ["dependency-profile-replaced"], "{}", not.json);
        // Other runs are not affected.
        assert_eq!(run(&fixture, TEAM, &["--profile", "team", "-c", SHOW]).lines(), locked.lines());
    }
}

#[test]
fn an_untrusted_file_cannot_act_as_operator() {
    let fixture = fixture!(Kit::Fast);
    make_module(&fixture, "bell_a", "1.0", &[]);
    let project = fixture.folder().join("project");
    std::fs::create_dir(&project).expect("a folder");
    let text = "[profiles.theirs]\npackages = [\"bell-a\"]\npreimports = [\"bell_a\"]\n";
    std::fs::write(project.join("belljar.toml"), text).expect("a file");
    let code = "import bell_a, os\nprint(bell_a.__file__, os.path.exists('/opt/belljar/python-profile'))";
    let mut command = fixture.with_only_links();
    command.current_dir(&project).args(["run", "--json", "--profile", "theirs", "-c", code]);
    let output = command.output().expect("the binary starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("profiles.theirs.preimports is ignored") && said.contains("--config belljar.toml"),
        "{said}"
    );
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(answer["stdout"], "/opt/belljar/python/bell_a.py False\n", "{answer}");
    // It cannot be locked either.
    let mut lock = fixture.with_only_links();
    lock.current_dir(&project).args(["deps", "lock", "--profile", "theirs", "--json"]);
    let refused = finish(&mut lock);
    assert_eq!(refused.code, Some(125), "{}", refused.json);
    assert!(refused.error_message().contains("cannot be locked"), "{}", refused.json);
}

/// Commands and code in a long-lived sandbox find its packages at the same path at any time.
#[test]
fn a_long_lived_sandbox_has_the_same_path() {
    let fixture = fixture!(Kit::Fast);
    make_hooks(&fixture);
    let mut command = fixture.with_only_links();
    command.args(["serve", "--allow-degraded"]);
    let server = crate::common::server::Server::by(command, &fixture.folder().join("data"));
    let opened = server.sandbox(&json!({"dependencies": {"packages": ["bell-hooks"]}}));
    let body = json!({"language": "python", "code": SHOW_PATH});
    let reply = server.post(&format!("{opened}/executions"), &body);
    let answer = reply.json();
    let stdout = answer["stdout"].as_str().unwrap_or_default();
    let expected = "/workspace stdlib stdlib /opt/belljar/python /opt/belljar/python/bell_more site";
    let lines: Vec<_> = stdout.lines().collect();
    assert_eq!(lines, ["pth ran", "sitecustomize ran", "True True", expected], "{answer}");
}

/// Starts a proxy that records the first line of every request, and serves nothing.
fn noting_proxy() -> (String, std::sync::Arc<std::sync::Mutex<Vec<String>>>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("an address"));
    let heard = std::sync::Arc::<std::sync::Mutex<Vec<String>>>::default();
    let noted = std::sync::Arc::clone(&heard);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut line = String::new();
            let _read = std::io::BufRead::read_line(&mut std::io::BufReader::new(&stream), &mut line);
            noted.lock().expect("nobody panics with it").push(line);
            let _told = std::io::Write::write_all(&mut stream, b"HTTP/1.1 404 Not Found\r\n\r\n");
        }
    });
    (address, heard)
}

/// A package's requirements are untrusted, and a proxy may reach addresses that untrusted code must not.
#[test]
fn a_package_cannot_send_an_installer_to_addresses_near_the_proxy() {
    let fixture = fixture!(Kit::Usual);
    let needs = ["bell-near @ http://169.254.169.254/latest/bell_near-1.0-py3-none-any.whl"];
    fixture.make_wheel("bell_far", "1.0", &needs, &[("bell_far.py", "")]);
    let (proxy, heard) = noting_proxy();
    let mut command = fixture.with_only_links();
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"] {
        command.env(name, &proxy);
    }
    command.env("PIP_RETRIES", "0").env("NO_PROXY", "").env("no_proxy", "");
    let answer = finish(command.args(["run", "--json", "--dep", "bell-far", "-c", "1"]));
    assert_eq!(answer.code, Some(125), "{}", answer.json);
    assert!(answer.error_message().contains("169.254.169.254"), "{}", answer.json);
    let heard = heard.lock().expect("nobody panics with it").clone();
    assert!(!heard.iter().any(|line| line.contains("169.254")), "{heard:?}");
}

/// Sends a line until it is served this way.
fn ask_until(batch: &mut Conversation, mode: &str, line: &Value) -> Value {
    let expected = if mode == "off" { json!(false) } else { json!(mode) };
    for _ in 0..400 {
        let result = batch.ask(line);
        if result["receipt"]["warm"] == expected {
            return result;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("never served by {mode}: {line}");
}

/// A program's mount table names no folder of Belljar on the host.
#[test]
fn mounts_do_not_reveal_host_folders() {
    let fixture = fixture!(Kit::Fast);
    make_module(&fixture, "bell_a", "1.0", &[]);
    make_module(&fixture, "bell_b", "1.0", &[]);
    let code = "import os\nfor name in ('mountinfo', 'mounts', 'mountstats'):\n    \
            print(*[line for line in open('/proc/self/' + name) if 'cache/belljar' in line], end='')\n\
        print(*sorted(os.listdir('/opt/belljar')) if os.path.exists('/opt/belljar') else '')";
    let plain = json!({"code": code});
    let files = json!({"code": code, "files": [{"path": "a.txt", "content": "a"}]});
    let packages = json!({"code": code, "dependencies": {"packages": ["bell-b"]}});
    for mode in ["off", "pool", "fork"] {
        let settings = format!("mode = \"{mode}\"\n{TEAM}");
        for (profile, alone, with_packages) in [
            (&[][..], "", "python site"),
            (&["--profile", "team"], "python-profile site", "python python-profile site"),
        ] {
            let arguments = [profile, &["--language", "python", "-c", "0"]].concat();
            let mut batch = Conversation::by(fixture.with_only_links(), &settings, &arguments);
            for (line, expected) in [(&plain, alone), (&files, alone), (&packages, with_packages)] {
                let result = ask_until(&mut batch, mode, line);
                assert_eq!(result["stdout"], format!("{expected}\n"), "{mode} {profile:?} {result}");
            }
        }
    }
}

/// Hooks and modules of packages that a warm interpreter runs before the program have no frames below them,
/// except that of the hook that a cold interpreter has as well.
#[test]
fn package_hooks_have_no_frames_of_a_warm_interpreter() {
    let fixture = fixture!(Kit::Fast);
    let module = "import sys\nframe, files = sys._getframe(), set()\n\
        while frame: files.add(frame.f_code.co_filename); frame = frame.f_back\n";
    let files = [("bell_hook.py", module), ("bell_import.py", module), ("bell.pth", "import bell_hook\n")];
    fixture.make_wheel("bell_frames", "1.0", &[], &files);
    let code = "import bell_hook, bell_import\n\
        print([file for file in bell_hook.files | bell_import.files if file.startswith('/run/')])";
    let line = json!({"code": code, "dependencies": {"packages": ["bell-frames"]}});
    for mode in ["off", "pool", "fork"] {
        let arguments = ["--language", "python", "-c", "0"];
        let settings = format!("mode = \"{mode}\"");
        let mut batch = Conversation::by(fixture.with_only_links(), &settings, &arguments);
        // Often enough for its modules to be preimported.
        for _ in 0..20 {
            let result = ask_until(&mut batch, mode, &line);
            assert_eq!(result["stdout"], "[]\n", "{mode} {result}");
        }
    }
}
