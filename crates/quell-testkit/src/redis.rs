//! Redis servers, alone, in a [`cluster`] and watched by [`sentinel`]s.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::Command;

use tempfile::TempDir;

use crate::port::free_port;
use crate::process::Process;
use crate::wait::{PATIENCE, until};
use crate::wall_clock::WallClock;

pub mod cluster;
pub mod sentinel;

/// The configuration, words and clock of a server.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Its configuration, which it reads first and may write its own into.
    pub configuration: String,
    /// Words on its command line.
    pub words: Vec<String>,
    /// A clock of its own.
    pub clock: Option<WallClock>,
}

impl Options {
    /// These words on its command line.
    pub fn words(words: &[&str]) -> Self {
        Self {
            words: words.iter().map(|&word| word.to_owned()).collect(),
            ..Self::default()
        }
    }
}

/// A server that stops when it is dropped.
#[derive(Debug)]
pub struct Redis {
    process: Process,
    port: u16,
    options: Options,
}

impl Redis {
    /// Starts a server with these words on its command line.
    pub fn start(words: &[&str]) -> Self {
        Self::start_with(Options::words(words))
    }

    /// Starts a server.
    pub fn start_with(options: Options) -> Self {
        Self::start_on(free_port(), options)
    }

    /// Starts a server on this port.
    pub fn start_on(port: u16, options: Options) -> Self {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("redis.conf"), &options.configuration).unwrap();
        let mut command = command(port, &folder.path().display().to_string(), &options);
        let process = Process::start_in(folder, &mut command);
        let mut redis = Self {
            process,
            port,
            options,
        };
        redis.wait_until_up();
        redis
    }

    /// Waits until it answers; while it loads what it had, it does not.
    fn wait_until_up(&mut self) {
        until("redis-server answers", || {
            let end = self.process.end();
            assert!(end.is_none(), "{end:?}: {}", self.process.stdout());
            let pong = try_command(self.port, &["PING"])?;
            (!pong.contains("LOADING")).then_some(())
        });
    }

    /// Port on which the server listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its address, as a URL.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    /// Sends one command on a connection of its own. Returns the reply as text: the elements of an array become one
    /// line each.
    pub fn command(&self, words: &[&str]) -> String {
        let answer = try_command(self.port, words);
        answer.unwrap_or_else(|| panic!("no answer to {words:?}"))
    }

    /// The names of the keys, sorted.
    pub fn keys(&self) -> Vec<Vec<u8>> {
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
    pub fn left(&self) -> i64 {
        let script = "return redis.call('PTTL', redis.call('KEYS', '*')[1] or '')";
        self.command(&["EVAL", script, "0"]).parse().unwrap()
    }

    /// Returns true if the server says that it is a primary.
    pub fn is_primary(&self) -> bool {
        self.command(&["ROLE"]).starts_with("master")
    }

    /// Waits until its reply to a command contains these words.
    pub fn wait_for_reply(&self, words: &[&str], what: &str) {
        until(&format!("{words:?} says {what:?}"), || {
            self.command(words).contains(what).then_some(())
        });
    }

    /// Waits until a replica has everything that its primary had. Being connected is not enough: Valkey
    /// acknowledges data before it has loaded it.
    pub fn wait_for_primary(&self) {
        self.wait_for_reply(&["INFO", "replication"], "master_link_status:up");
    }

    /// Waits until every replica of this primary has everything written so far. (`WAIT` would only wait for the
    /// writes of its own connection, which has none.)
    pub fn wait_for_replicas(&self) {
        let offset = |line: &str, name: &str| -> Option<u64> {
            let (_, rest) = line.split_once(name)?;
            rest.split(',').next()?.trim().parse().ok()
        };
        let said = || self.command(&["INFO", "replication"]);
        let written = said();
        let mut lines = written.lines();
        let written = lines.find_map(|line| offset(line, "master_repl_offset:"));
        let written = written.unwrap_or_else(|| panic!("it does not say how much it wrote"));
        until("its replicas have all that it wrote", || {
            let said = said();
            let replicas = said.lines().filter(|line| line.contains("state=online"));
            let has = replicas.filter_map(|line| offset(line, "offset="));
            has.min().filter(|least| *least >= written)
        });
    }

    /// Kills it at once, as a crash would.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Sends a signal, such as `TERM`.
    pub fn signal(&self, name: &str) {
        self.process.signal(name);
    }

    /// Freezes it: it receives bytes, but neither answers nor closes its connections.
    pub fn freeze(&self) {
        self.signal("STOP");
    }

    /// Lets it continue.
    pub fn thaw(&self) {
        self.signal("CONT");
    }

    /// Kills it, and starts it again, empty, on the same port and at its place in a cluster.
    pub fn restart(&mut self) {
        self.kill();
        let folder = self.process.folder();
        // A replica keeps what its primary sent.
        drop(fs::remove_file(folder.join("dump.rdb")));
        let mut command = command(self.port, &folder.display().to_string(), &self.options);
        self.process.replace(&mut command);
        self.wait_until_up();
    }
}

fn command(port: u16, folder: &str, options: &Options) -> Command {
    let mut command = Command::new("redis-server");
    // A configuration file, because sentinels write to theirs.
    command.arg(format!("{folder}/redis.conf"));
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1"]);
    command.args(["--daemonize", "no", "--dir", folder]);
    if !options.words.iter().any(|word| word == "--sentinel") {
        command.args(["--save", ""]);
    }
    command.args(&options.words);
    if let Some(clock) = &options.clock {
        clock.give_to(&mut command);
    }
    command
}

/// Sends several commands on one connection. Returns their replies.
pub fn session(port: u16, commands: &[&[&str]]) -> Vec<String> {
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

/// Sends one command on a connection of its own. The elements of an array become one line each.
pub fn try_command(port: u16, words: &[impl AsRef<[u8]>]) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.write_all(&frame(words)).ok()?;
    let mut reader = BufReader::new(stream);
    let mut lines = Vec::new();
    read_reply(&mut reader, &mut lines)?;
    Some(lines.join("\n"))
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
