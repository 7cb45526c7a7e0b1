//! Server: `quell serve` on free ports, killed when the test is over.

use std::process::{Command, ExitStatus};
use std::thread;

use quell_testkit::certificates::Certificates;
use serde_json::Value;

use crate::process::{Process, quell, run, until};

/// A running server.
#[derive(Debug)]
pub(crate) struct Server {
    process: Process,
    pub(crate) http: u16,
    pub(crate) resp: u16,
    /// The listener for administration, if it has one of its own.
    admin: u16,
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
        // A store of a test may be slow.
        command.env("QUELL_STORE_TIMEOUT", "10s");
        let mut server = Self {
            process: Process::start(command),
            http: 0,
            resp: 0,
            admin: 0,
        };
        let ready = until("the server is ready", || {
            let log = server.log();
            let is_ready =
                |line: &&str| line.starts_with("ready: ") || line.contains("\"message\":\"ready\"");
            let ready = log.lines().find(is_ready);
            if ready.is_none() {
                let end = server.process.end();
                assert!(end.is_none(), "the server ended: {end:?}\n{log}");
            }
            ready.map(str::to_owned)
        });
        server.http = port_after(&ready, "HTTP on http://127.0.0.1:")
            .max(port_after(&ready, "HTTP on https://127.0.0.1:"));
        server.resp = port_after(&ready, "RESP on 127.0.0.1:");
        server.admin = port_after(&ready, "administration on http://127.0.0.1:");
        server
    }

    /// Its standard error so far.
    pub(crate) fn log(&self) -> String {
        self.process.stderr()
    }

    /// Its log, once that has these words: a process may act a moment before it says so.
    pub(crate) fn log_with(&self, words: &str) -> String {
        until(&format!("the log says {words:?}"), || {
            let log = self.log();
            log.contains(words).then_some(log)
        })
    }

    /// Its standard output so far.
    pub(crate) fn stdout(&self) -> String {
        self.process.stdout()
    }

    /// The address of a page of the HTTP listener.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.http)
    }

    /// The number of its process.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Sends a signal, such as `TERM`.
    pub(crate) fn signal(&self, name: &str) {
        self.process.signal(name);
    }

    /// Sends signals one right after the other.
    pub(crate) fn signals(&self, names: &[&str]) {
        self.process.signals(names);
    }

    /// Returns true if the server has ended by itself.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.process.end().is_some()
    }

    /// Waits until it has ended by itself.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.process.wait()
    }

    /// Stops it as a user does, and expects a successful exit.
    pub(crate) fn stop(mut self) {
        self.signal("INT");
        let status = self.wait();
        assert!(status.success(), "{status:?}\n{}", self.log());
    }

    /// Kills it, as a crash would.
    pub(crate) fn kill(mut self) {
        self.process.kill();
    }

    /// The most memory that it had resident so far, in bytes.
    pub(crate) fn peak_memory(&self) -> u64 {
        self.process.memory("VmHWM")
    }

    /// A page of the HTTP listener.
    pub(crate) fn get(&self, path: &str) -> String {
        get(&self.url(path))
    }

    /// The server's health.
    pub(crate) fn health(&self) -> Value {
        serde_json::from_str(&self.get("/healthz")).unwrap()
    }

    /// Verdict of `quell check` on a call with this entry, such as `user=alice`, without charging it; `None` if
    /// there is no answer.
    pub(crate) fn peek(&self, domain: &str, entry: &str) -> Option<Value> {
        let (peek, url) = (["check", "--json", "--peek", "--url"], self.url(""));
        let told = run(quell(&peek).args([&*url, "-d", domain, "-e", entry]));
        serde_json::from_str(&told.stdout).ok()
    }

    /// The value of one line of `/metrics`; the series is written as in the page.
    pub(crate) fn metric(&self, series: &str) -> Option<u64> {
        let port = if self.admin > 0 {
            self.admin
        } else {
            self.http
        };
        let metrics = get(&format!("http://127.0.0.1:{port}/metrics"));
        let line = metrics.lines().find_map(|line| line.strip_prefix(series));
        line.and_then(|value| value.trim().parse().ok())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let last = &lines[lines.len().saturating_sub(40)..];
            eprintln!("the end of a server's log:\n{}", last.join("\n"));
        }
    }
}

fn get(url: &str) -> String {
    let mut curl = crate::clients::curl();
    run(curl.arg("--silent").arg(url)).expect_success()
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

/// The flags by which a server speaks TLS with this certificate.
pub(crate) fn tls_flags(certificates: &Certificates) -> [String; 4] {
    let [certificate, key] = ["server.pem", "server.key"].map(|name| certificates.path(name));
    ["--tls-cert", &certificate, "--tls-key", &key].map(str::to_owned)
}
