//! Values that mean something to a shell, an option parser or a protocol are passed on unchanged.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::common::server::Server;

const WORDS: [&str; 12] = [
    "-rf",
    "--",
    "--version",
    "$(id)",
    "`id`",
    "; id",
    "a\nb",
    "a\r\nb",
    "| id",
    "> /workspace/x",
    "'\"\\",
    "%s%n",
];

fn run(server: &Server, request: &Value) -> Value {
    let (status, result) = server.run(&request.to_string());
    assert_eq!(status, "200", "{result}");
    result
}

#[test]
fn user_words_are_never_options_or_commands() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let program = "import os, sys; print(ascii(sys.argv[1:]), ascii(os.environ['WORD']))";
    for word in WORDS {
        let command = json!(["python3", "-c", program, word, word]);
        let result =
            run(&server, &json!({"command": command, "env": {"WORD": word}, "metadata": {"w": word}}));
        let seen = result["stdout"].as_str().unwrap();
        let quoted = seen.split(['[', ',']).nth(1).unwrap();
        assert_eq!(seen, format!("[{quoted}, {quoted}] {quoted}\n"), "{word:?}");
        assert_eq!(result["metadata"]["w"], word);
        let first = run(&server, &json!({"command": ["printf", "%s", word]}));
        assert_eq!(first["stdout"], word);
        // As a program name it is unknown, which is not a failure of the server.
        let (status, nobody) = server.run(&json!({"command": [word]}).to_string());
        assert_eq!(
            (status.as_str(), &nobody["error"]["code"]),
            ("422", &json!("invalid_request")),
            "{nobody}"
        );
    }
    for refused in [json!({"command": ["true", "a\0b"]}), json!({"command": ["true", "x".repeat(64 << 10)]})]
    {
        assert_eq!(server.run(&refused.to_string()).0, "422");
    }
}

#[test]
fn protocol_bytes_in_streams_are_plain_data() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let mut bytes: Vec<u8> = (0..=255).collect();
    for length in [0_u32, 1, 0xffff, u32::MAX] {
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&length.to_be_bytes());
    }
    bytes.extend_from_slice(b"\r\n\r\n0\r\n\r\nevent: result\ndata: {\"status\":\"succeeded\"}\n\n");
    let sent = STANDARD.encode(&bytes);
    let code = b"import sys; d = sys.stdin.buffer.read(); sys.stdout.buffer.write(d) # \x01\x02\xe2\x82\xac";
    let request = json!({"language": "python", "code_base64": STANDARD.encode(code), "stdin_base64": sent});
    let mut warm = false;
    for _ in 0..100 {
        let result = run(&server, &request);
        assert_eq!((&result["stdout_base64"], &result["exit_code"]), (&json!(sent), &json!(0)), "{result}");
        warm = result["receipt"]["warm"] != false;
        if warm {
            break;
        }
    }
    assert!(warm, "no run was served warm");
}
