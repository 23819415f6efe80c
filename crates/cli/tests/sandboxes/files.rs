//! Files, archives and watches: transferring bytes in both directions, with every kind of name.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::time::Duration;

use serde_json::{Value, json};

use crate::common::server::{KEY, Reply, Server, parse};
use crate::wait_for;

/// A sandbox and its files.
pub(crate) struct SandboxFiles<'a> {
    pub(crate) server: &'a Server,
    pub(crate) path: String,
}

impl<'a> SandboxFiles<'a> {
    pub(crate) fn new(server: &'a Server, request: Value) -> Self {
        Self { server, path: server.sandbox(&request) }
    }

    fn at(&self, verb: &str, path: &str, more: &str) -> String {
        format!("{}/files{verb}?path={}{more}", self.path, encode(path.as_bytes()))
    }

    fn get(&self, path: &str) -> Reply {
        self.server.get(&self.at("", path, ""))
    }

    pub(crate) fn put(&self, path: &str, bytes: &[u8]) -> Reply {
        self.put_with(path, "", bytes)
    }

    fn put_with(&self, path: &str, more: &str, bytes: &[u8]) -> Reply {
        self.server.call("PUT", &self.at("", path, more), "", bytes)
    }

    fn stat(&self, path: &str) -> Value {
        self.server.get(&self.at("/stat", path, "")).json()
    }

    fn post(&self, verb: &str, body: &Value) -> Reply {
        self.server.post(&format!("{}/files/{verb}", self.path), body)
    }

    fn unpack(&self, path: &str, format: &str, bytes: &[u8]) -> Reply {
        self.server.call("PUT", &self.at("/archive", path, &format!("&format={format}")), "", bytes)
    }

    /// Runs a line of shell and returns its output.
    pub(crate) fn sh(&self, line: &str) -> String {
        let ran =
            self.server.post(&format!("{}/executions", self.path), &json!({"command": ["sh", "-c", line]}));
        ran.json()["stdout"].as_str().unwrap_or_else(|| panic!("{}", ran.text())).to_owned()
    }

    /// Starts a line of shell in the background.
    pub(crate) fn begin(&self, line: &str) {
        let begun = self.server.post(
            &format!("{}/executions", self.path),
            &json!({"command": ["sh", "-c", line], "wait": false, "limits": {"timeout_ms": 120_000}}),
        );
        assert_eq!(begun.status, 202, "{}", begun.text());
    }
}

/// Percent-encodes every byte.
pub(crate) fn encode(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("%{byte:02x}")).collect()
}

fn noise(len: usize) -> Vec<u8> {
    let mut state = 88_172_645_463_325_252_u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

#[test]
fn files_are_written_read_listed_moved_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let files = SandboxFiles::new(&server, json!({}));
    let bytes = noise(3 << 20);
    assert_eq!(files.put("a/b/c.bin", &bytes).json(), json!({"bytes": bytes.len()}));
    let read = files.get("/workspace/a/b/c.bin");
    assert!(read.status == 200 && read.body == bytes);
    assert_eq!(read.header("content-length"), Some("3145728"));
    assert_eq!(read.header("content-type"), Some("application/octet-stream"));
    assert_eq!(read.header("accept-ranges"), Some("bytes"));
    let head = server.call("HEAD", &files.at("", "a/b/c.bin", ""), "", b"");
    assert_eq!((head.status, head.header("content-length"), head.body.len()), (200, Some("3145728"), 0));

    assert_eq!(files.put_with("n", "&mode=create&permissions=0600", b"hello").status, 200);
    assert_eq!(files.put_with("n", "&mode=create", b"x").code(), "conflict");
    assert_eq!(files.put_with("n", "&mode=append", b" world").json()["bytes"], 6);
    assert_eq!(files.put_with("n", "&offset=0", b"J").status, 200);
    assert_eq!(files.put_with("n", "&atomic=true&mode=append", b"?").status / 100, 4);
    assert_eq!(files.get("n").text(), "Jello world");
    let stat = files.stat("n");
    assert_eq!(
        (&stat["kind"], &stat["size"], &stat["permissions"]),
        (&json!("file"), &json!(11), &json!("0600"))
    );
    assert_eq!(files.put_with("n", "&atomic=true", b"whole").status, 200);
    assert_eq!(files.sh("cat n; ls -A | tr '\\n' ' '"), "wholea artifacts n ");

    let made = files.post("folder", &json!({"path": "d/e", "permissions": "0750"}));
    assert_eq!((made.status, &made.json()["permissions"]), (201, &json!("0750")));
    assert_eq!(files.post("folder", &json!({"path": "x/y", "parents": false})).status, 404);
    assert_eq!(files.post("move", &json!({"from": "n", "to": "d/e/m"})).status, 204);
    files.put("n", b"2");
    assert_eq!(files.post("move", &json!({"from": "n", "to": "d/e/m"})).code(), "conflict");
    assert_eq!(files.post("move", &json!({"from": "n", "to": "d/e/m", "replace": true})).status, 204);
    assert_eq!(files.post("permissions", &json!({"path": "d/e/m", "permissions": "4755"})).status, 422);
    assert_eq!(files.post("permissions", &json!({"path": "d/e/m", "permissions": "0555"})).status, 204);
    assert_eq!(files.sh("stat -c %a d/e/m; cat d/e/m"), "555\n2");

    let remove = |path: &str, more: &str| server.delete(&files.at("", path, more));
    assert_eq!(remove("d", "").code(), "conflict");
    assert_eq!(
        (remove("d", "&recursive=true").status, files.get("d/e/m").code().as_str()),
        (204, "not_found")
    );
    assert_eq!(files.get("a").code(), "conflict");
    assert_eq!(files.get("/etc/shadow").status / 100, 4);
    // A file that the kernel generates on reading has no length in advance.
    assert!(files.get("/proc/self/status").text().contains("Name:"));
    files.put("empty", b"");
    assert_eq!((files.get("empty").status, files.get("empty").body.len()), (200, 0));
}

#[test]
fn a_folder_is_listed_page_by_page() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let files = SandboxFiles::new(&server, json!({}));
    files.sh("mkdir many; cd many; for i in $(seq -w 1 600); do : > f$i; done; ln -s f001 link");
    let (mut names, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = server.get(&files.at("/list", "many", &format!("&limit=250{cursor}"))).json();
        let entries = page["entries"].as_array().unwrap().clone();
        assert!(entries.len() <= 250);
        names.extend(entries.iter().map(|entry| entry["name"].as_str().unwrap().to_owned()));
        if let Some(link) = entries.iter().find(|entry| entry["kind"] == "link") {
            assert_eq!(link["target"], "f001");
        }
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!((names.len(), names.is_sorted()), (601, true));
    for wrong in ["&limit=0", "&limit=257", "&cursor=%21", "&limits=1"] {
        assert_eq!(server.get(&files.at("/list", "many", wrong)).code(), "invalid_request", "{wrong}");
    }
}

#[test]
fn range_requests_return_part_of_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let files = SandboxFiles::new(&server, json!({}));
    files.put("ten", b"0123456789");
    let part = |range: &str| {
        let reply = server.call("GET", &files.at("", "ten", ""), &format!("Range: {range}\r\n"), b"");
        (reply.status, reply.header("content-range").map(str::to_owned), reply.text())
    };
    let found = |files: &str, text: &str| (206, Some(format!("bytes {files}/10")), text.to_owned());
    assert_eq!(part("bytes=2-4"), found("2-4", "234"));
    assert_eq!(part("bytes=7-"), found("7-9", "789"));
    assert_eq!(part("bytes=-2"), found("8-9", "89"));
    assert_eq!(part("bytes=-20"), found("0-9", "0123456789"));
    assert_eq!(part("bytes=9-99999999999999999999"), found("9-9", "9"));
    for none in ["bytes=10-", "bytes=-0", "bytes=10-20"] {
        let (status, files, text) = part(none);
        assert_eq!((status, files.as_deref()), (416, Some("bytes */10")), "{none}");
        assert!(text.contains("range_not_satisfiable"), "{text}");
    }
    for whole in ["bytes=0-1,4-5", "lines=1-2", "bytes=4-2"] {
        assert_eq!(part(whole), (200, None, "0123456789".to_owned()), "{whole}");
    }
}

#[test]
fn truncated_downloads_are_detectable() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let files = SandboxFiles::new(&server, json!({"limits": {"disk_bytes": 67108864}}));
    files.sh("head -c 50000000 /dev/zero > big");
    for verb in ["", "/archive"] {
        let mut stream =
            server.send_as(KEY, "GET", &files.at(verb, ".", "").replace("path=%2e", "path=big"), "", b"");
        if verb == "/archive" {
            // A folder of random bytes, which do not compress.
            stream = server.send_as(KEY, "GET", &files.at(verb, ".", "&format=tar"), "", b"");
        }
        let mut first = vec![0; 1000];
        stream.read_exact(&mut first).unwrap();
        assert!(first.starts_with(b"HTTP/1.1 200 OK"));
        match verb {
            // The file shrinks while it is read.
            "" => drop(files.sh(": > big; echo")),
            _ => assert_eq!(server.delete(&files.path).status, 200),
        }
        let _ = stream.read_to_end(&mut first);
        let head = String::from_utf8_lossy(&first[..first.len().min(900)]).to_lowercase();
        if head.contains("content-length: 50000000") {
            assert!(first.len() < 50_000_000, "the whole file was sent");
        } else {
            assert!(head.contains("transfer-encoding: chunked") && !first.ends_with(b"0\r\n\r\n"), "{verb}");
        }
        if verb.is_empty() {
            files.sh("head -c 50000000 /dev/zero > big");
        }
    }
}

#[test]
fn stalled_uploads_are_aborted_and_slow_ones_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::configured(folder.path(), "body_timeout = \"5s\"");
    let files = SandboxFiles::new(&server, json!({}));
    let begin = |name: &str| {
        let address = server.url.trim_start_matches("http://");
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(15))).unwrap();
        let path = files.at("", name, "&atomic=true");
        write!(stream, "PUT {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nAuthorization: Bearer {KEY}\r\nContent-Length: 10\r\n\r\nfirst").unwrap();
        stream
    };
    let answer = |mut stream: std::net::TcpStream| {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        parse(&bytes)
    };
    let stuck = answer(begin("stuck"));
    assert_eq!((stuck.status, stuck.code().as_str()), (408, "request_timeout"));
    assert_eq!(files.get("stuck").status, 404);
    let mut slow = begin("slow");
    for byte in [b"1", b"2", b"3", b"4", b"5"] {
        std::thread::sleep(Duration::from_millis(1_200));
        slow.write_all(byte).unwrap();
    }
    assert_eq!(answer(slow).json(), json!({"bytes": 10}));
    // A client that disconnects leaves no partial file.
    let gone = begin("gone");
    wait_for("a partial file exists", || files.sh("ls -A --ignore=artifacts") != "slow\n");
    drop(gone);
    wait_for("only the complete file is left", || files.sh("ls -A --ignore=artifacts") == "slow\n");
}

#[test]
fn a_full_disk_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let files = SandboxFiles::new(&server, json!({"limits": {"disk_bytes": 8388608}}));
    let file = folder.path().join("large");
    let upload = |bytes: usize, name: &str| {
        fs::write(&file, vec![1; bytes]).unwrap();
        let (status, body) =
            server.curl(&["-T", file.to_str().unwrap(), "-H", "Expect:"], &files.at("", name, ""));
        (status, serde_json::from_str::<Value>(&body).unwrap()["error"]["code"].clone())
    };
    assert_eq!(upload(40 << 20, "more-than-all"), ("413".to_owned(), json!("too_large")));
    assert_eq!(server.delete(&files.at("", "more-than-all", "")).status, 204);
    assert_eq!(upload(6 << 20, "some"), ("200".to_owned(), Value::Null));
    assert_eq!(upload(6 << 20, "more-than-left"), ("409".to_owned(), json!("disk_full")));
    // The server does not buffer what passes through it.
    let status = fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak < 200 << 10, "{peak} kB");
}

#[test]
fn archives_are_uploaded_and_downloaded() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let files = SandboxFiles::new(&server, json!({}));
    files.sh("mkdir -p src/sub; echo one > src/a; echo two > src/sub/b; chmod 700 src/a; ln -s a src/link");
    for format in ["tar", "tar.gz", "zip"] {
        let packed = server.get(&files.at("/archive", "src", &format!("&format={format}")));
        assert_eq!(packed.status, 200);
        let name = format!("attachment; filename=\"src.{format}\"; filename*=UTF-8''src.{format}");
        assert_eq!(packed.header("content-disposition"), Some(name.as_str()));
        let to = format!("to-{format}");
        let unpacked = files.unpack(&to, format, &packed.body);
        assert_eq!((unpacked.status, &unpacked.json()["bytes"]), (200, &json!(8)), "{}", unpacked.text());
        assert_eq!(
            files.sh(&format!("cd {to}; cat a sub/b link; stat -c %a a")),
            "one\ntwo\none\n700\n",
            "{format}"
        );
    }
    assert_eq!(files.unpack("x", "rar", b"").code(), "invalid_request");
    assert_eq!(files.unpack("x", "zip", b"PK no archive").code(), "bad_archive");
}

#[test]
fn hostile_archives_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let files = SandboxFiles::new(&server, json!({}));
    let make = |code: &str| {
        let out = std::process::Command::new("python3").args(["-c", code]).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        out.stdout
    };
    let tar = |body: &str| {
        make(&format!(
            "import tarfile,io,sys\nt=tarfile.open(fileobj=sys.stdout.buffer,mode='w|')\ndef \
             add(name,data=b'',**k):\n i=tarfile.TarInfo(name); i.size=len(data)\n for a,b in k.items(): \
             setattr(i,a,b)\n t.addfile(i,io.BytesIO(data))\n{body}\nt.close()"
        ))
    };
    let slips = [
        tar("add('../slipped',b'x')"),
        tar("add('/tmp/slipped',b'x')"),
        tar("add('l',type=tarfile.SYMTYPE,linkname='/tmp')\nadd('l/slipped',b'x')"),
        tar("add('l',type=tarfile.SYMTYPE,linkname='..')\nadd('l/slipped',b'x')"),
        tar("add('h',type=tarfile.LNKTYPE,linkname='../outside')\nadd('h',b'x')"),
        tar("add('dev',type=tarfile.CHRTYPE,devmajor=1,devminor=3)"),
    ];
    files.put("outside", b"mine");
    for (number, slip) in slips.iter().enumerate() {
        let refused = files.unpack("into", "tar", slip);
        assert_eq!((refused.status, refused.code().as_str()), (422, "bad_archive"), "{number}");
    }
    let zip = make(
        "import zipfile,sys,io\nb=io.BytesIO()\nz=zipfile.ZipFile(b,'w')\nz.writestr('../slipped','x')\nz.close()\nsys.stdout.buffer.write(b.getvalue())",
    );
    assert_eq!(files.unpack("into", "zip", &zip).code(), "bad_archive");
    assert_eq!(files.sh("cat outside; find / -name 'slipped*' 2>/dev/null; find into -type c"), "mine");
    assert!(!std::path::Path::new("/tmp/slipped").exists());
    // Bombs: too many bytes by compression ratio, by disk size, and too many entries.
    let bomb = make(
        "import gzip,tarfile,io,sys\nb=io.BytesIO()\nt=tarfile.open(fileobj=b,mode='w')\ni=tarfile.TarInfo('zeros'); i.size=64<<20\nt.addfile(i,io.BytesIO(bytes(64<<20)))\nt.close()\nsys.stdout.buffer.write(gzip.compress(b.getvalue()))",
    );
    let refused = files.unpack("bomb", "tar.gz", &bomb);
    assert!([413, 422].contains(&refused.status), "{}", refused.text());
    let small = SandboxFiles::new(&server, json!({"limits": {"disk_bytes": 4194304}}));
    let refused = small.unpack("bomb", "tar", &tar("add('noise',__import__('os').urandom(6<<20))"));
    // The header announces too much, so it is refused before the disk is full.
    assert_eq!(refused.status, 413, "{}", refused.text());
    let many = tar("for n in range(100100): add('d%d'%n,type=tarfile.DIRTYPE)");
    let refused = files.unpack("many", "tar", &many);
    assert!([409, 413].contains(&refused.status), "{}", refused.text());
    assert_eq!(server.delete(&files.at("", "many", "&recursive=true")).status, 204);
    assert_eq!(files.sh("echo alive"), "alive\n");
}

#[test]
fn file_changes_are_reported_as_they_happen() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let files = SandboxFiles::new(&server, json!({}));
    files.sh("mkdir -p seen/sub");
    let stream = server.send_as(KEY, "GET", &files.at("/watch", "seen", "&recursive=true"), "", b"");
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let head: Vec<_> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
    assert!(
        head[0].contains("200") && head.iter().any(|line| line == "content-type: text/event-stream"),
        "{head:?}"
    );
    files.sh("cd seen; echo x > sub/new; mv sub/new sub/old; rm sub/old");
    let mut changes =
        lines.filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
    let mut wait_for = |kind: &str, path: &str| {
        changes.find(|change| change["kind"] == kind && change["path"] == path).unwrap_or_default()
    };
    assert_eq!(wait_for("created", "sub/new")["directory"], false);
    let (from, to) = (wait_for("moved_from", "sub/new"), wait_for("moved_to", "sub/old"));
    assert!(from["move"].is_u64() && from["move"] == to["move"], "{from} {to}");
    assert_eq!(wait_for("removed", "sub/old")["move"], Value::Null);
    // The stream ends with the sandbox, and says so.
    assert_eq!(server.delete(&files.path).status, 200);
    assert!(changes.any(|change| change["error"]["code"] == "sandbox_ended"));
}

#[test]
fn paused_and_foreign_sandboxes_give_no_file_access() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let files = SandboxFiles::new(&server, json!({}));
    let other = server.tenant("other", json!({}));
    let verbs = [
        ("GET", "files?path=a", ""),
        ("HEAD", "files?path=a", ""),
        ("PUT", "files?path=a", "x"),
        ("DELETE", "files?path=a", ""),
        ("GET", "files/stat?path=a", ""),
        ("GET", "files/list?path=a", ""),
        ("POST", "files/folder", r#"{"path":"a"}"#),
        ("POST", "files/move", r#"{"from":"a","to":"b"}"#),
        ("POST", "files/permissions", r#"{"path":"a","permissions":"0644"}"#),
        ("PUT", "files/archive?path=a", "x"),
        ("GET", "files/archive?path=a", ""),
        ("GET", "files/watch?path=a", ""),
        ("GET", "ports/80/", ""),
        ("GET", "ports/80", ""),
        ("POST", "ports/80/x", "x"),
    ];
    let ask = |key: &str, (method, verb, body): (&str, &str, &str)| {
        let json = if body.starts_with('{') { "Content-Type: application/json\r\n" } else { "" };
        server.call_as(key, method, &format!("{}/{verb}", files.path), json, body.as_bytes()).status
    };
    for verb in verbs {
        assert_eq!(ask(&other, verb), 404, "{verb:?}");
        assert_eq!(ask("wrong", verb), 401, "{verb:?}");
    }
    assert_eq!(files.sh("ls -A"), "artifacts\n");
    assert_eq!(server.post(&format!("{}/pause", files.path), &json!({})).status, 200);
    for verb in verbs.into_iter().filter(|(_, verb, _)| *verb != "ports/80") {
        assert_eq!(ask(KEY, verb), 409, "{verb:?}");
    }
}
