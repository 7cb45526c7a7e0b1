//! The application behind a gateway: it records its requests, and refuses some itself.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// An application on a port.
pub(crate) struct Application {
    pub(crate) port: u16,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Application {
    /// Serves until the tests are over: it uses nothing but a port.
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests: Arc<Mutex<Vec<String>>> = Arc::default();
        let record = Arc::clone(&requests);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // One that says nothing, such as a probe, is not recorded.
                let _ = answer(stream, &record);
            }
        });
        Self { port, requests }
    }

    /// The requests so far: method, path and body.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

/// Answers one request on a connection of its own, with the field `X-Usage` that it asks for (`?usage=10`). Its first
/// line and body are in the record by then.
fn answer(stream: TcpStream, record: &Mutex<Vec<String>>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    reader.read_line(&mut first).ok()?;
    let (mut line, mut length) = (String::new(), 0);
    while reader.read_line(&mut line).ok()? > 2 {
        if let Some((name, value)) = line.split_once(": ")
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().ok()?;
        }
        line.clear();
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let mut words = first.split(' ');
    let (method, path) = (words.next()?, words.next()?);
    let status = if path == "/forbidden" {
        "403 Forbidden"
    } else {
        "200 OK"
    };
    let body = String::from_utf8_lossy(&body);
    let line = format!("{method} {path} {body}").trim_end().to_owned();
    record.lock().unwrap().push(line);
    let usage = path.split_once("?usage=").map(|(_, usage)| usage);
    let usage = usage.map_or_else(String::new, |usage| format!("X-Usage: {usage}\r\n"));
    let head =
        format!("HTTP/1.1 {status}\r\n{usage}Connection: close\r\nContent-Length: 5\r\n\r\n");
    reader
        .get_mut()
        .write_all(format!("{head}hello").as_bytes())
        .ok()
}
