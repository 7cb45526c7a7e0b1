//! A Redis server for one test.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use quell_redis::{RedisStore, RedisStoreBuilder, StoreUrl};
use tempfile::TempDir;

use crate::patience::{PATIENCE, until};

/// A server that stops when it is dropped.
pub(crate) struct Server {
    process: Child,
    port: u16,
    directory: TempDir,
    arguments: Vec<String>,
}

/// A port that was free a moment ago.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

impl Server {
    /// Starts a server with more words on its command line.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        for _ in 0..10 {
            if let Some(server) = Self::try_start(free_port(), arguments) {
                return server;
            }
        }
        panic!("no redis-server comes up: is Debian's redis-server installed?");
    }

    pub(crate) fn try_start(port: u16, arguments: &[&str]) -> Option<Self> {
        Self::try_start_with("", port, arguments)
    }

    /// Starts a server that first reads this configuration; it may write its own configuration
    /// there.
    pub(crate) fn try_start_with(
        configuration: &str,
        port: u16,
        arguments: &[&str],
    ) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let arguments: Vec<String> = arguments.iter().map(|text| (*text).to_owned()).collect();
        fs::write(directory.path().join("redis.conf"), configuration).unwrap();
        let process = launch(port, &directory, &arguments);
        let mut server = Self {
            process,
            port,
            directory,
            arguments,
        };
        server.is_up().then_some(server)
    }

    fn is_up(&mut self) -> bool {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if self.process.try_wait().unwrap().is_some() {
                return false;
            }
            if let Some(pong) = try_command(self.port, &["PING"])
                && !pong.contains("LOADING")
            {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> StoreUrl {
        format!("redis://127.0.0.1:{}", self.port).parse().unwrap()
    }

    /// A store on this server that waits long enough for a busy machine.
    pub(crate) fn store(&self) -> RedisStoreBuilder {
        RedisStore::builder(self.url()).timeout(PATIENCE)
    }

    /// Sends one command and returns the reply as text.
    pub(crate) fn command(&self, words: &[&str]) -> String {
        let answer = try_command(self.port, words);
        answer.unwrap_or_else(|| panic!("no answer to {words:?}"))
    }

    /// The names of the keys, sorted.
    pub(crate) fn keys(&self) -> Vec<Vec<u8>> {
        let script = "local all = redis.call('KEYS', '*') table.sort(all) for i, key in ipairs(all) do all[i] = \
            key:gsub('.', function(c) return string.format('%02x', c:byte()) end) end return all";
        let hex = self.command(&["EVAL", script, "0"]);
        let byte =
            |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        let names = hex
            .lines()
            .map(|line| line.as_bytes().chunks(2).map(byte).collect());
        names.collect()
    }

    /// The milliseconds until the only key expires; -1 for never, -2 for no key.
    pub(crate) fn left(&self) -> i64 {
        let script = "return redis.call('PTTL', redis.call('KEYS', '*')[1] or '')";
        self.command(&["EVAL", script, "0"]).parse().unwrap()
    }

    /// Waits until a replica has everything that its primary had. Being connected is not enough:
    /// Valkey acknowledges data before it has loaded it.
    pub(crate) fn follows(&self) {
        until("it follows its primary", || {
            let said = self.command(&["INFO", "replication"]);
            said.contains("master_link_status:up")
        });
    }

    /// Waits until every replica of this primary has everything written so far. (`WAIT` would only
    /// wait for the writes of its own connection, which has none.)
    pub(crate) fn is_replicated(&self) {
        let offset = |line: &str, name: &str| -> Option<u64> {
            let (_, rest) = line.split_once(name)?;
            rest.split(',').next()?.trim().parse().ok()
        };
        let said = || self.command(&["INFO", "replication"]);
        let written = said();
        let written = written
            .lines()
            .find_map(|line| offset(line, "master_repl_offset:"));
        let written = written.expect("a primary says how much it wrote");
        until("its replicas have all that it wrote", || {
            let said = said();
            let replicas = said.lines().filter(|line| line.contains("state=online"));
            let mut has: Vec<_> = replicas
                .filter_map(|line| offset(line, "offset="))
                .collect();
            has.sort_unstable();
            has.first().is_some_and(|least| *least >= written)
        });
    }

    /// Kills the server at once, as a crash would.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Freezes the process: it receives bytes, but neither answers nor closes its connections.
    pub(crate) fn freeze(&self) {
        self.signal("-STOP");
    }

    /// Lets it continue.
    pub(crate) fn thaw(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let mut kill = Command::new("kill");
        let sent = kill.arg(signal).arg(self.process.id().to_string()).status();
        assert!(
            sent.expect("`kill` is missing: install Debian's procps")
                .success()
        );
    }

    /// Starts it again on the same port.
    pub(crate) fn restart(&mut self) {
        self.kill();
        self.process = launch(self.port, &self.directory, &self.arguments);
        assert!(self.is_up(), "the server does not come back");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn launch(port: u16, directory: &TempDir, arguments: &[String]) -> Child {
    let log = File::create(directory.path().join("log")).unwrap();
    let port = port.to_string();
    let mut command = Command::new("redis-server");
    // A configuration file, because sentinels write to theirs.
    let file = directory.path().join("redis.conf");
    command
        .arg(file)
        .args(["--port", &port, "--bind", "127.0.0.1"]);
    command.args(["--daemonize", "no", "--dir"]);
    command.arg(directory.path());
    if !arguments.iter().any(|word| word == "--sentinel") {
        command.args(["--save", ""]);
    }
    command.args(arguments);
    command
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .stdout(log);
    command.spawn().expect("redis-server is not installed")
}

/// Sends several commands on one connection. Returns their replies.
pub(crate) fn session(port: u16, commands: &[&[&str]]) -> Vec<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let said = commands.iter().map(|words| {
        stream.write_all(&frame(words)).unwrap();
        let mut lines = Vec::new();
        read_reply(&mut reader, &mut lines).unwrap();
        lines.join("\n")
    });
    said.collect()
}

fn frame(words: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        let word = word.as_ref();
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// Sends one command on a connection of its own. The elements of an array become one line each.
pub(crate) fn try_command(port: u16, words: &[impl AsRef<[u8]>]) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.write_all(&frame(words)).ok()?;
    let mut reader = BufReader::new(stream);
    let mut lines = Vec::new();
    read_reply(&mut reader, &mut lines)?;
    Some(lines.join("\n"))
}

fn read_reply(reader: &mut impl BufRead, lines: &mut Vec<String>) -> Option<()> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let line = line.trim_end();
    let (kind, rest) = line.split_at_checked(1)?;
    match kind {
        "*" => {
            for _ in 0..rest.parse::<i64>().ok()?.max(0) {
                read_reply(reader, lines)?;
            }
        }
        "$" => {
            let length: i64 = rest.parse().ok()?;
            let Ok(length) = usize::try_from(length) else {
                lines.push("(nil)".to_owned());
                return Some(());
            };
            let mut bytes = vec![0; length + 2];
            reader.read_exact(&mut bytes).ok()?;
            bytes.truncate(length);
            lines.push(String::from_utf8_lossy(&bytes).into_owned());
        }
        _ => lines.push(rest.to_owned()),
    }
    Some(())
}
