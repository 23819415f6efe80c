//! `belljar sandbox shell` in a real terminal.

use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;

use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};
use tokio_tungstenite::tungstenite::{Message, accept_hdr};

use crate::common::server::{KEY, Server};
use crate::pty::Pty;
use crate::{SandboxFixture, client, text_of};

#[test]
fn a_shell_has_the_size_of_the_terminal_and_its_own_status() {
    let place = SandboxFixture::new();
    let mut shell = Pty::start(&place.command(&["shell", &place.id]), 24, 81);
    shell.type_in("echo si''ze $(stty size)\n");
    shell.wait_for("size 24 81");
    assert!(!shell.is_as_before(), "every key is passed on");
    shell.resize(33, 101);
    // The resize signal and the typed keys reach the client independently, so the first answers may show the
    // old size.
    while !shell.sees("now 33 101", Duration::from_millis(500)) {
        shell.type_in("echo no''w $(stty size)\n");
    }
    // Ctrl-C is for the program inside.
    shell.type_in("echo sle''eping; sleep 600\n");
    shell.wait_for("sleeping");
    // An interrupt that arrives before the program has started is lost.
    let woken = (0..100).any(|_| {
        shell.type_in("\x03");
        shell.sees("$ ", Duration::from_millis(500))
    });
    assert!(woken, "the interrupt had no effect");
    shell.type_in("echo al''ive; exit 5\n");
    shell.wait_for("alive");
    assert_eq!(shell.end().0, Some(5));
    assert!(shell.is_as_before());
}

#[test]
fn terminals_can_be_detached_joined_and_shared() {
    let place = SandboxFixture::new();
    let mut first = Pty::start(&place.command(&["shell", &place.id, "--", "bash", "--norc"]), 24, 80);
    first.type_in("echo st''arted\n");
    first.wait_for("started");
    first.type_in("\x10\x11");
    let (status, said) = first.end();
    assert!(status == Some(0) && said.contains("--attach 1"), "{said:?}");
    assert!(first.is_as_before());
    let join = || Pty::start(&place.command(&["shell", &place.id, "--attach", "1"]), 24, 80);
    let (mut one, mut other) = (join(), join());
    one.wait_for("started");
    other.wait_for("started");
    one.type_in("echo sha''red; sleep 0.1\n");
    other.wait_for("shared");
    one.type_in("exit 6\n");
    assert_eq!((one.end().0, other.end().0), (Some(6), Some(6)));
}

#[test]
fn the_terminal_is_restored_on_signals_and_sandbox_end() {
    let place = SandboxFixture::new();
    for (signal, status) in [("-TERM", 143), ("-HUP", 129), ("-INT", 130), ("-QUIT", 131)] {
        let mut shell = Pty::start(&place.command(&["shell", &place.id]), 24, 80);
        shell.type_in("echo st''arted\n");
        shell.wait_for("started");
        assert!(
            Command::new("kill").args([signal, &shell.child.id().to_string()]).status().unwrap().success()
        );
        assert_eq!((shell.end().0, shell.is_as_before()), (Some(status), true), "{signal}");
    }
    let mut shell = Pty::start(&place.command(&["shell", &place.id]), 24, 80);
    shell.type_in("echo st''arted\n");
    shell.wait_for("started");
    place.text(&["rm", &place.id]);
    let (status, said) = shell.end();
    assert!(status == Some(125) && said.contains("ended"), "{said:?}");
    assert!(shell.is_as_before());
}

#[test]
fn shell_requires_a_terminal() {
    let place = SandboxFixture::new();
    assert!(place.refusal(&["shell", &place.id]).contains("sandbox exec"));
}

#[test]
fn a_terminal_works_over_tls() {
    let folder = tempfile::tempdir().unwrap();
    let (certificate, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]);
    openssl.args(["-subj", "/CN=belljar", "-days", "2", "-addext", "subjectAltName=IP:127.0.0.1"]);
    openssl.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
    let made = openssl.arg("-keyout").arg(&key).arg("-out").arg(&certificate).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let flags = ["--tls-cert", text_of(&certificate), "--tls-key", text_of(&key)];
    let server = Server::start(folder.path(), Some(KEY), &flags);
    assert!(server.url.starts_with("https://"), "{}", server.url);
    let trusting = |arguments: &[&str]| {
        let mut command = client(&server.url, arguments);
        command.env("BELLJAR_CA_CERT", &certificate);
        command
    };
    let id = String::from_utf8(trusting(&["create"]).output().unwrap().stdout).unwrap();
    let mut shell = Pty::start(&trusting(&["shell", id.trim_end()]), 24, 80);
    shell.type_in("echo st''arted; exit 4\n");
    shell.wait_for("started");
    assert_eq!(shell.end().0, Some(4));
}

#[test]
fn a_broken_connection_resumes_at_its_offset() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        let mut asked = Vec::new();
        for (offset, text, last) in
            [(0, "hello ", None), (6, "and goodbye", Some(r#"{"ended":{"exit_code":7}}"#))]
        {
            let (stream, _) = listener.accept().unwrap();
            #[expect(clippy::result_large_err, reason = "the library's type")]
            let path = |request: &Request, response: Response| {
                asked.push(request.uri().to_string());
                Ok(response)
            };
            let mut socket = accept_hdr(stream, path).unwrap();
            socket.send(Message::text(format!(r#"{{"attached":{{"offset":{offset}}}}}"#))).unwrap();
            socket.send(Message::binary(text.as_bytes().to_vec())).unwrap();
            if let Some(last) = last {
                socket.send(Message::text(last)).unwrap();
            }
            // Wait for the client's size message, then cut the connection.
            socket.read().unwrap();
        }
        asked
    });
    let mut shell = Pty::start(&client(&url, &["shell", "sbx_1", "--attach", "3"]), 24, 80);
    let seen = shell.wait_for("goodbye");
    assert!(seen.contains("hello ") && seen.contains("reconnected"), "{seen:?}");
    assert_eq!(shell.end().0, Some(7));
    let place = "/v1/sandboxes/sbx_1/commands/3/terminal?from=";
    assert_eq!(server.join().unwrap(), [format!("{place}0"), format!("{place}6")]);
}
