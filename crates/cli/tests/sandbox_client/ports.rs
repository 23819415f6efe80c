//! Forwarding ports of a sandbox, and watching its files.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command};

use crate::{SandboxFixture, piped};

fn first_line(child: &mut Child) -> String {
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _killed = self.0.kill();
        let _waited = self.0.wait();
    }
}

#[test]
fn a_port_is_reached_through_the_server() {
    let fixture = SandboxFixture::new();
    fixture.text(&["exec", &fixture.id, "-c", "open('hello.txt', 'w').write('from inside')"]);
    fixture.text(&[
        "exec",
        &fixture.id,
        "--detach",
        "--",
        "python3",
        "-m",
        "http.server",
        "--bind",
        "127.0.0.1",
        "8000",
    ]);
    while fixture.text(&["ports", &fixture.id]) != "8000\n" {}
    let mut forward = Killed(piped(fixture.command(&["ports", &fixture.id, "8000"])));
    let url = first_line(&mut forward.0);
    assert!(url.starts_with("http://127.0.0.1:"), "{url}");
    let curl = |path: &str| {
        let output =
            Command::new("curl").args(["-sSi", "--max-time", "30"]).arg(format!("{url}{path}")).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    let answer = curl("/hello.txt?x=1");
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("from inside"), "{answer}");
    assert!(curl("/").contains("hello.txt"));
    let named = Command::new("curl").args(["-sS", "-H", "Host: evil.test", &url]).output().unwrap();
    assert!(String::from_utf8(named.stdout).unwrap().contains("use 127.0.0.1"));
    assert!(fixture.refusal(&["ports", "sbx_nothing", "8000"]).contains("no such sandbox"));
}

#[test]
fn file_changes_are_printed_as_they_happen() {
    let fixture = SandboxFixture::new();
    let mut watch = Killed(piped(fixture.command(&["watch", &fixture.id, ".", "--recursive", "--json"])));
    let mut lines = BufReader::new(watch.0.stdout.take().unwrap()).lines();
    // Changes before the watch is set up are not reported, so change something until one is.
    let changes = std::thread::scope(|scope| {
        let first = scope.spawn(|| lines.next().unwrap().unwrap());
        while !first.is_finished() {
            fixture.text(&["exec", &fixture.id, "--", "touch", "a\x1b[2Jb"]);
        }
        first.join().unwrap()
    });
    let change: serde_json::Value = serde_json::from_str(&changes).unwrap();
    assert!(change["path"].as_str().unwrap().contains("a\x1b[2Jb"), "{change}");
}
