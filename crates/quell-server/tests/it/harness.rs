//! A server on free ports, and clients that speak raw bytes.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use quell::clock::{Clock, ManualClock, SystemClock};
use quell_core::time::Now;
use quell_server::config::RawConfig;
use quell_server::{Address, ServeError, Server, ShutdownWait};
use quell_testkit::redis::Redis;
use quell_testkit::wait::{until, until_every};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::contract;

/// Nothing here takes this long; whatever does hangs.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// The pause of a slow client between two bytes.
pub(crate) const SLOWLY: Duration = Duration::from_millis(10);

/// The rules of most tests.
pub(crate) const SHOP: &str = "
domain: shop
rules:
  - name: login
    match: { path: /login }
    per: [user]
    rate: 100/min
  - name: watched
    match: { path: /watched }
    rate: 1/min
    shadow: true
  - name: strict
    match: { path: /strict }
    per: [user]
    algorithm: sliding_log
    limit: 1/min
    ban: { after: 2, within: 10m, for: [1h] }
";

/// The settings of a server on this store, which is not taken for lost however slow this machine is.
pub(crate) fn store_settings(redis: &Redis) -> String {
    format!("store = '{}'\nstore_timeout = '60s'\n", redis.url())
}

/// A server, its runtime, and a directory for its files.
pub(crate) struct Fixture {
    pub(crate) directory: TempDir,
    pub(crate) clock: Option<Arc<ManualClock>>,
    other_clock: Option<Arc<dyn Clock>>,
    runtime: Option<Runtime>,
    server: Option<Server>,
    config: RawConfig,
    /// Keeps a thread of the runtime busy until it is dropped.
    busy: Option<mpsc::Sender<()>>,
}

impl Fixture {
    /// A server with these rules and, as TOML, these settings.
    pub(crate) fn new(rules: &str, settings: &str) -> Self {
        Self::try_new(rules, settings).unwrap()
    }

    /// The same on a clock that stands still.
    pub(crate) fn with_clock(rules: &str, settings: &str) -> Self {
        let mut fixture = Self::prepare(rules, settings);
        fixture.stop_clock();
        fixture.start().unwrap();
        fixture
    }

    /// Its clock will stand still, once it is started.
    pub(crate) fn stop_clock(&mut self) {
        let now = Now::from_nanos(1_700_000_000_000_000_000);
        self.clock = Some(Arc::new(ManualClock::new(now)));
    }

    /// The same on the test's own clock.
    pub(crate) fn with_other_clock(rules: &str, settings: &str, clock: Arc<dyn Clock>) -> Self {
        let mut fixture = Self::prepare(rules, settings);
        fixture.other_clock = Some(clock);
        fixture.start().unwrap();
        fixture
    }

    pub(crate) fn try_new(rules: &str, settings: &str) -> Result<Self, ServeError> {
        let mut fixture = Self::prepare(rules, settings);
        fixture.start()?;
        Ok(fixture)
    }

    /// Writes the rules, and does not start the server yet. `DIR` in the settings is replaced by the
    /// directory.
    pub(crate) fn prepare(rules: &str, settings: &str) -> Self {
        let directory = TempDir::new().unwrap();
        let path = directory.path().to_str().unwrap();
        let settings = settings.replace("DIR", path);
        let mut config = RawConfig::from_toml("test", &settings).unwrap();
        config.http.get_or_insert("127.0.0.1:0".to_owned());
        config.resp.get_or_insert("127.0.0.1:0".to_owned());
        config.drain_timeout.get_or_insert("0s".to_owned());
        // A store of a test may be slow.
        config.store_timeout.get_or_insert("60s".to_owned());
        if !rules.is_empty() {
            let file = directory.path().join("rules.yaml");
            std::fs::write(&file, rules).unwrap();
            config.rules.get_or_insert(vec![file]);
        }
        Self {
            directory,
            clock: None,
            other_clock: None,
            runtime: None,
            server: None,
            config,
            busy: None,
        }
    }

    pub(crate) fn start(&mut self) -> Result<(), ServeError> {
        let config = self.config.clone().resolve().unwrap();
        let clock: Arc<dyn Clock> = match (&self.clock, &self.other_clock) {
            (Some(clock), _) => Arc::clone(clock) as Arc<dyn Clock>,
            (None, Some(clock)) => Arc::clone(clock),
            (None, None) => Arc::new(SystemClock::new()),
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let server = runtime.block_on(quell_server::serve_with_clock(config, clock));
        self.runtime = Some(runtime);
        self.server = Some(server?);
        Ok(())
    }

    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().unwrap()
    }

    /// Reloads as a signal would.
    pub(crate) fn reload(&self) -> bool {
        self.runtime().block_on(self.server().reload())
    }

    /// Stops it cleanly.
    pub(crate) fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            self.runtime().block_on(server.shutdown()).unwrap();
        }
        self.runtime = None;
    }

    /// Stops it cleanly, from another thread.
    pub(crate) fn stop_aside(&mut self) -> JoinHandle<Result<(), ServeError>> {
        let server = self.server.take().unwrap();
        self.runtime().spawn(server.shutdown())
    }

    /// Stops it cleanly, from another thread, at once as if no request had come for a while. The receiver hears when
    /// it waits for connections.
    pub(crate) fn drain_aside(
        &mut self,
    ) -> (JoinHandle<Result<(), ServeError>>, mpsc::Receiver<()>) {
        let server = self.server.take().unwrap();
        let (drains, drained) = mpsc::channel();
        let stopped = server.shutdown_until(async move |wait| {
            if wait != ShutdownWait::Quiet {
                let _ = drains.send(());
                std::future::pending::<()>().await;
            }
        });
        (self.runtime().spawn(stopped), drained)
    }

    /// Keeps the threads of its runtime busy while `before` runs, and then stops it without a drain: one
    /// thread looks at the sockets only after the server was told to stop, the other never.
    pub(crate) fn stop_when_busy(
        &mut self,
        before: impl FnOnce(),
    ) -> JoinHandle<Result<(), ServeError>> {
        let (is_busy, busy) = mpsc::channel();
        let hold = |go_on: mpsc::Receiver<()>| {
            let is_busy = is_busy.clone();
            self.runtime().spawn(async move {
                is_busy.send(()).unwrap();
                // Until it is told to go on, or the sender is gone.
                let _ = go_on.recv();
            });
        };
        let [(go_on, first), (never, second)] = [mpsc::channel(), mpsc::channel()];
        hold(first);
        hold(second);
        for _ in 0..2 {
            busy.recv_timeout(DEADLINE).unwrap();
        }
        before();
        let server = self.server.take().unwrap();
        let stopped = self.runtime().spawn(server.shutdown_until(async |wait| {
            if wait == ShutdownWait::InFlight {
                std::future::pending::<()>().await;
            }
        }));
        go_on.send(()).unwrap();
        self.busy = Some(never);
        stopped
    }

    pub(crate) fn wait_for<T>(&self, work: JoinHandle<T>) -> T {
        self.runtime().block_on(work).unwrap()
    }

    /// Ends it as a crash would.
    pub(crate) fn kill(&mut self) {
        self.busy = None;
        // Every task ends with its runtime, whatever it is about to do.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(DEADLINE);
        }
        drop(self.server.take());
    }

    pub(crate) fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn http(&self) -> SocketAddr {
        self.server().http_address().unwrap().tcp().unwrap()
    }

    pub(crate) fn resp(&self) -> SocketAddr {
        self.server().resp_address().unwrap().tcp().unwrap()
    }

    pub(crate) fn envoy(&self) -> SocketAddr {
        self.server().envoy_address().unwrap().tcp().unwrap()
    }

    /// The runtime of the server, which a client may use while the server stops.
    pub(crate) fn handle(&self) -> tokio::runtime::Handle {
        self.runtime().handle().clone()
    }

    /// Runs a client on the runtime of the server.
    pub(crate) fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime().block_on(work)
    }

    pub(crate) fn admin(&self) -> SocketAddr {
        self.server().admin_address().unwrap().tcp().unwrap()
    }

    /// A request with a body as JSON, on a connection of its own.
    pub(crate) fn request(&self, method: &str, target: &str, body: &str) -> Answer {
        let fields = if body.is_empty() {
            ""
        } else {
            "Content-Type: application/json\r\n"
        };
        self.request_with(method, target, fields, body)
    }

    /// A request with these header lines.
    pub(crate) fn request_with(
        &self,
        method: &str,
        target: &str,
        fields: &str,
        body: &str,
    ) -> Answer {
        request(self.http(), (method, target, body), fields)
    }

    pub(crate) fn get(&self, target: &str) -> Answer {
        self.request("GET", target, "")
    }

    /// Asks for `path` as `user`.
    pub(crate) fn acquire(&self, path: &str, user: &str) -> Answer {
        let body = format!(r#"{{"domain":"shop","entries":{{"path":"{path}","user":"{user}"}}}}"#);
        self.request("POST", "/v1/acquire", &body)
    }

    /// The value of a line of the metrics.
    pub(crate) fn metric(&self, series: &str) -> Option<String> {
        let admin = self.server().admin_address().and_then(Address::tcp);
        let listener = admin.unwrap_or_else(|| self.http());
        let text = request(listener, ("GET", "/metrics", ""), "").body;
        let line = text.lines().find_map(|line| line.strip_prefix(series));
        line.map(|rest| rest.trim().to_owned())
    }

    /// Waits until a line of the metrics has this value: what ended a connection is counted a moment after its client
    /// sees the end.
    #[track_caller]
    pub(crate) fn until_metric(&self, series: &str, value: &str) {
        eventually(series, || self.metric(series).as_deref() == Some(value));
    }

    /// Sends `bytes` on a RESP connection, closes its side, and reads to the end.
    pub(crate) fn resp_exchange(&self, bytes: &[u8]) -> String {
        let reply = send(self.resp(), bytes);
        String::from_utf8(reply).unwrap()
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A connection with a timeout.
pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.set_write_timeout(Some(DEADLINE)).unwrap();
    stream
}

/// Sends `bytes`, closes its side, and reads to the end.
pub(crate) fn send(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    try_send(address, bytes).unwrap()
}

/// Sends a request, that is method, target and body, with these header lines.
pub(crate) fn request(
    address: SocketAddr,
    (method, target, body): (&str, &str, &str),
    fields: &str,
) -> Answer {
    let text = format!(
        "{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n{fields}\r\n{body}",
        body.len()
    );
    // A client whose call waits keeps its side open.
    Answer::read(&exchange(connect(address), text.as_bytes()).unwrap())
}

/// As [`send`], for a server that may close the connection before it has read all of `bytes`; then the
/// reply may be lost.
pub(crate) fn try_send(address: SocketAddr, bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = connect(address);
    stream.write_all(bytes)?;
    match stream.shutdown(std::net::Shutdown::Write) {
        // The server is gone, its last bytes can be read.
        Err(error) if error.kind() == io::ErrorKind::NotConnected => {}
        shut => shut?,
    }
    read_reply(stream, bytes)
}

/// Sends `bytes`, and reads to the end.
pub(crate) fn exchange(mut stream: TcpStream, bytes: &[u8]) -> io::Result<Vec<u8>> {
    stream.write_all(bytes)?;
    read_reply(stream, bytes)
}

fn read_reply(mut stream: TcpStream, sent: &[u8]) -> io::Result<Vec<u8>> {
    let mut reply = Vec::new();
    match stream.read_to_end(&mut reply) {
        // The server has closed before it had read all.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset && !reply.is_empty() => {}
        read => drop(read?),
    }
    contract::check(sent, &reply);
    Ok(reply)
}

/// The answer to a request that changes nothing; it must be the same whether the request arrives whole
/// or in pieces.
pub(crate) fn ask_both_ways(server: &Fixture, question: &str) -> Answer {
    let whole = Answer::read(&send(server.http(), question.as_bytes()));
    let (head, body) = question.split_once("\r\n\r\n").unwrap();
    let head = head.split_once("Content-Length").unwrap().0;
    let (begin, end) = body.split_at(20);
    let chunked = format!(
        "{head}Transfer-Encoding: chunked\r\n\r\n14\r\n{begin}\r\n{:x}\r\n{end}\r\n0\r\n\r\n",
        end.len()
    );
    let pieces = Answer::read(&send(server.http(), chunked.as_bytes()));
    let fields = |answer: &Answer| {
        let lines = answer.head.lines();
        let mut fields: Vec<String> = lines
            .map(|line| match line.split_once("date: ") {
                Some(("", date)) => format!("date of {} bytes", date.len()),
                _ => line.to_owned(),
            })
            .collect();
        fields.sort();
        fields
    };
    assert_eq!(fields(&whole), fields(&pieces));
    assert_eq!(whole.body, pieces.body);
    whole
}

/// Reads exactly as many bytes as `expected` has, and compares.
#[track_caller]
pub(crate) fn expect(stream: &mut TcpStream, expected: &str) {
    let mut reply = vec![0; expected.len()];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(String::from_utf8_lossy(&reply), expected);
}

/// Waits until `ready` returns true.
#[track_caller]
pub(crate) fn eventually(what: &str, mut ready: impl FnMut() -> bool) {
    until(what, || ready().then_some(()));
}

/// Does `send` again and again, with pauses as of a slow client, until it fails: the server has closed the connection.
#[track_caller]
pub(crate) fn slowly_until_closed(what: &str, mut send: impl FnMut() -> io::Result<()>) {
    until_every(SLOWLY, what, || send().err());
}

/// Replaces a file as editors do: a new file takes its name.
pub(crate) fn replace(path: &Path, text: &str) {
    let other = path.with_extension("new");
    std::fs::write(&other, text).unwrap();
    std::fs::rename(&other, path).unwrap();
}

/// An HTTP answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn read(bytes: &[u8]) -> Self {
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).unwrap_or_default();
        Self {
            status: status
                .parse()
                .unwrap_or_else(|_| panic!("no answer: {text:?}")),
            head: head.to_ascii_lowercase(),
            body: body.to_owned(),
        }
    }

    /// The value of a header field, its name in lower case.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let line = |line: &'_ str| {
            line.split_once(": ")
                .filter(|(n, _)| *n == name)
                .map(|(_, v)| v.len())
        };
        let found = self.head.lines().find(|l| line(l).is_some())?;
        found.split_once(": ").map(|(_, value)| value)
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Checks that this is a problem document with this status, whose detail contains `words`.
    #[track_caller]
    pub(crate) fn assert_problem(&self, status: u16, words: &str) {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(
            self.field("content-type"),
            Some("application/problem+json"),
            "{self:?}"
        );
        let problem = self.json();
        assert_eq!(problem["status"], status, "{self:?}");
        let detail = problem["detail"].as_str().unwrap_or_default();
        assert!(detail.contains(words), "{words:?} is not in {detail:?}");
    }
}
