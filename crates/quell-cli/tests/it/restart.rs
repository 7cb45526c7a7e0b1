//! Client libraries in normal use: no special settings, long pipelines, and a client object that
//! outlives the server.
//!
//! The scripts in `tests/clients` do their part, print a line and wait for one; meanwhile the server
//! is replaced by another on the same port.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use quell_testkit::port::free_port;

use crate::clients::{ioredis, redis_py};
use crate::files::{Folder, window_rules};
use crate::process::{PATIENCE, wait};
use crate::server::Server;

/// A script in the middle of its work.
pub(crate) struct Script {
    child: Child,
    lines: Receiver<String>,
}

impl Script {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (send, lines) = channel();
        thread::spawn(move || {
            for line in stdout.lines() {
                let Ok(line) = line else { return };
                drop(send.send(line));
            }
        });
        Self { child, lines }
    }

    pub(crate) fn expect(&self, words: &str) {
        // A script has a limit of its own for each of its steps, and says which one took too long.
        let line = self.lines.recv_timeout(3 * PATIENCE);
        assert_eq!(
            line.as_deref(),
            Ok(words),
            "the script says why on standard error"
        );
    }

    pub(crate) fn go_on(&mut self) {
        writeln!(self.child.stdin.as_mut().unwrap(), "go on").unwrap();
    }
}

impl Script {
    /// Waits until it has ended by itself, without a failure.
    pub(crate) fn end(mut self) {
        let status = wait(&mut self.child, "the script");
        assert!(status.success(), "{status:?}");
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The whole conversation, the same for every library.
fn converse(client: fn(u16) -> Command) {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", &window_rules("shop", "3/min"));
    let port = free_port();
    let server = Server::start_on(0, port, &["--rules", &rules]);
    let mut script = Script::start(&mut client(port));
    script.expect("connected");
    script.expect("asked by rules");
    script.expect("pipelined 10000");
    server.stop();
    let server = Server::start_on(0, port, &["--rules", &rules]);
    script.go_on();
    script.expect("the next command succeeds");
    // The same once more when the server is killed.
    server.kill();
    let server = Server::start_on(0, port, &["--rules", &rules]);
    script.go_on();
    script.expect("the next command succeeds");
    script.end();
    server.stop();
}

#[test]
fn redis_py_needs_no_settings_and_survives_a_restart() {
    converse(redis_py);
}

#[test]
fn ioredis_needs_no_settings_and_survives_a_restart() {
    converse(ioredis);
}
