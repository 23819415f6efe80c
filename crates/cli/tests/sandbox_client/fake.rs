//! A scripted HTTP server.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// A request that it received.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) body: Vec<u8>,
}

impl Asked {
    pub(crate) fn line(&self) -> String {
        format!("{} {} {}", self.method, self.path, String::from_utf8_lossy(&self.body))
    }
}

pub(crate) struct Fake {
    pub(crate) url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Fake {
    /// Starts a server that answers with the given status and body.
    pub(crate) fn start(answer: impl Fn(&Asked) -> (u16, Vec<u8>) + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&asked);
        // Ends with the test program.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let request = read(&stream);
                let (status, body) = answer(&request);
                log.lock().unwrap().push(request);
                let head = format!(
                    "HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    body.len()
                );
                // In one write: data that is still queued is lost with a connection whose input is not read.
                // The client may be gone once it has read enough.
                let _ = stream.write_all(&[head.into_bytes(), body].concat());
            }
        });
        Self { url, asked }
    }

    pub(crate) fn requests(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

fn read(stream: &TcpStream) -> Asked {
    let mut reader = BufReader::new(stream);
    let mut line = || {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    };
    let first = line();
    let mut length = 0;
    loop {
        let field = line().to_ascii_lowercase();
        if field.is_empty() {
            break;
        }
        if let Some(value) = field.strip_prefix("content-length: ") {
            length = value.parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let mut words = first.split(' ').map(str::to_owned);
    Asked { method: words.next().unwrap(), path: words.next().unwrap(), body }
}
