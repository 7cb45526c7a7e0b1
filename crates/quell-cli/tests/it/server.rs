//! Server: `quell serve` on free ports, killed when the test is over.

use std::io::{BufRead, BufReader, Read};
use std::net::{TcpListener, UdpSocket};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::Value;

use crate::process::{quell, run, until, wait};

/// A running server.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    log: Arc<Mutex<String>>,
    stdout: Arc<Mutex<String>>,
    pub(crate) http: u16,
    pub(crate) resp: u16,
}

impl Server {
    /// Starts a server on ports that the system picks.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::start_on(0, 0, arguments)
    }

    /// Starts a server on these ports; 0 lets the system pick.
    pub(crate) fn start_on(http: u16, resp: u16, arguments: &[&str]) -> Self {
        let (http, resp) = (format!("127.0.0.1:{http}"), format!("127.0.0.1:{resp}"));
        let mut command = quell(&["serve", "--http", &http, "--resp", &resp]);
        Self::spawn(command.args(arguments))
    }

    /// Starts this command, and waits until it reports that it is ready.
    pub(crate) fn spawn(command: &mut Command) -> Self {
        let piped = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = piped.spawn().unwrap();
        let log = follow(child.stderr.take().unwrap());
        let stdout = follow(child.stdout.take().unwrap());
        let mut server = Self {
            child,
            log,
            stdout,
            http: 0,
            resp: 0,
        };
        let ready = until("the server is ready", || {
            let log = server.log();
            let is_ready =
                |line: &&str| line.starts_with("ready: ") || line.contains("\"message\":\"ready\"");
            let ready = log.lines().find(is_ready);
            if ready.is_none() {
                let end = server.child.try_wait().unwrap();
                assert!(end.is_none(), "the server ended: {end:?}\n{log}");
            }
            ready.map(str::to_owned)
        });
        server.http = port_after(&ready, "HTTP on http://127.0.0.1:")
            .max(port_after(&ready, "HTTP on https://127.0.0.1:"));
        server.resp = port_after(&ready, "RESP on 127.0.0.1:");
        server
    }

    /// Its standard error so far.
    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Its standard output so far.
    pub(crate) fn stdout(&self) -> String {
        self.stdout.lock().unwrap().clone()
    }

    /// The address of a page of the HTTP listener.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.http)
    }

    /// The number of its process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal, such as `TERM`.
    pub(crate) fn signal(&self, name: &str) {
        self.signals(&[name]);
    }

    /// Sends signals one right after the other.
    pub(crate) fn signals(&self, names: &[&str]) {
        let kill = |name: &&str| format!("kill -{name} {}", self.child.id());
        let kills: Vec<String> = names.iter().map(kill).collect();
        run(Command::new("sh").args(["-c", &kills.join(" && ")])).expect_success();
    }

    /// Whether it has ended by itself.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits until it has ended by itself.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        wait(&mut self.child, "the server")
    }

    /// Stops it as a user does, and expects a successful exit.
    pub(crate) fn stop(mut self) {
        self.signal("INT");
        let status = self.wait();
        assert!(status.success(), "{status:?}\n{}", self.log());
    }

    /// Kills it, as a crash would.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.wait();
    }

    /// The most memory that it had resident so far, in bytes.
    pub(crate) fn peak_memory(&self) -> u64 {
        let status = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(status).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
        1_024 * kib.unwrap().parse::<u64>().unwrap()
    }

    /// A page of the HTTP listener.
    pub(crate) fn get(&self, path: &str) -> String {
        let mut curl = crate::clients::curl();
        run(curl.arg("--silent").arg(self.url(path))).expect_success()
    }

    /// The server's health.
    pub(crate) fn health(&self) -> Value {
        serde_json::from_str(&self.get("/healthz")).unwrap()
    }

    /// The value of one line of `/metrics`; the series is written as in the page.
    pub(crate) fn metric(&self, series: &str) -> Option<u64> {
        let metrics = self.get("/metrics");
        let line = metrics.lines().find_map(|line| line.strip_prefix(series));
        line.and_then(|value| value.trim().parse().ok())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        if thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let last = &lines[lines.len().saturating_sub(40)..];
            eprintln!("the end of a server's log:\n{}", last.join("\n"));
        }
    }
}

/// Collects the output of a pipe.
fn follow(pipe: impl Read + Send + 'static) -> Arc<Mutex<String>> {
    let kept = Arc::new(Mutex::new(String::new()));
    let keep = Arc::clone(&kept);
    thread::spawn(move || {
        let mut lines = BufReader::new(pipe);
        let mut line = Vec::new();
        while lines
            .read_until(b'\n', &mut line)
            .is_ok_and(|read| read > 0)
        {
            keep.lock()
                .unwrap()
                .push_str(&String::from_utf8_lossy(&line));
            line.clear();
        }
    });
    kept
}

fn port_after(ready: &str, words: &str) -> u16 {
    let Some((_, rest)) = ready.split_once(words) else {
        return 0;
    };
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next();
    digits
        .and_then(|digits| digits.parse().ok())
        .unwrap_or_else(|| panic!("no port in {ready}"))
}

/// A free port that stays free while a server restarts: the system assigns ports below 32768 only
/// on request. Until this process ends, the UDP port of the same number tells other tests that it is
/// taken.
pub(crate) fn lasting_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    static TAKEN: Mutex<Vec<UdpSocket>> = Mutex::new(Vec::new());
    let first = u16::try_from(std::process::id() % 10_000).unwrap();
    until("a port is free", || {
        let offset = (first + NEXT.fetch_add(1, Ordering::Relaxed)) % 10_000;
        let place = ("127.0.0.1", 20_000 + offset);
        let taken = UdpSocket::bind(place).ok()?;
        TcpListener::bind(place).ok()?;
        TAKEN.lock().unwrap().push(taken);
        Some(place.1)
    })
}
