//! Pipelines on a shared store: calls that arrive together wait together, and answers keep their
//! order.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use quell_testkit::redis::Redis;

use crate::files::{Folder, shared_rules};
use crate::server::Server;

/// A proxy in front of a store that holds answers back until a number of calls is on its way.
struct Gate {
    port: u16,
    wanted: Arc<(Mutex<usize>, Condvar)>,
    seen: Arc<AtomicUsize>,
}

impl Gate {
    fn start(store: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let gate = Self {
            port: listener.local_addr().unwrap().port(),
            wanted: Arc::default(),
            seen: Arc::default(),
        };
        let (wanted, seen) = (Arc::clone(&gate.wanted), Arc::clone(&gate.seen));
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, upstream) =
                    (client.unwrap(), TcpStream::connect(("127.0.0.1", store)));
                let upstream = upstream.unwrap();
                let (answers, back) = (upstream.try_clone().unwrap(), client.try_clone().unwrap());
                let (wanted, seen) = (Arc::clone(&wanted), Arc::clone(&seen));
                let wanted_too = Arc::clone(&wanted);
                let seen_too = Arc::clone(&seen);
                thread::spawn(move || {
                    // A word may arrive in two parts: the first part is kept.
                    let mut text = Vec::new();
                    pass(client, upstream, |bytes| {
                        text.extend_from_slice(bytes);
                        // Each call names one key, whatever script call carries it.
                        let keys = text.windows(8).filter(|word| word == b"quell:1:").count();
                        text.drain(..text.len().saturating_sub(7));
                        seen.fetch_add(keys, Ordering::SeqCst);
                        wanted.1.notify_all();
                    });
                });
                thread::spawn(move || {
                    pass(answers, back, |_| {
                        let held = wanted_too.0.lock().unwrap();
                        let is_early =
                            |wanted: &mut usize| seen_too.load(Ordering::SeqCst) < *wanted;
                        drop(wanted_too.1.wait_while(held, is_early).unwrap());
                    });
                });
            }
        });
        gate
    }

    /// Holds everything back until `more` calls came.
    fn wait_for(&self, more: usize) {
        *self.wanted.0.lock().unwrap() = self.seen.load(Ordering::SeqCst) + more;
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, mut see: impl FnMut(&[u8])) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        see(&buffer[..length]);
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
}

fn say(words: &[&str]) -> String {
    let words = words
        .iter()
        .map(|word| format!("${}\r\n{word}\r\n", word.len()));
    let words: Vec<String> = words.collect();
    format!("*{}\r\n{}", words.len(), words.concat())
}

/// The integers of a reply to `CL.THROTTLE`, or the line itself.
fn reply(reader: &mut impl BufRead) -> Vec<String> {
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let line = line.trim_end().to_owned();
    match line.strip_prefix('*') {
        Some(count) => (0..count.parse().unwrap())
            .flat_map(|_| reply(reader))
            .collect(),
        None => vec![line],
    }
}

/// If the calls were sent one by one, the gate would never open.
#[test]
fn calls_that_came_together_wait_for_the_store_together() {
    let redis = Redis::start(&[]);
    let gate = Gate::start(redis.port());
    let folder = Folder::new();
    let rules = folder.write("ab.yaml", &shared_rules("ab", "100/min"));
    let store = format!("redis://127.0.0.1:{}", gate.port);
    let arguments = [
        "--rules",
        &rules,
        "--store",
        &store,
        "--store-timeout",
        "20s",
    ];
    let server = Server::start(&arguments);
    let stream = TcpStream::connect(("127.0.0.1", server.resp)).unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let call = say(&["CL.THROTTLE", "hot", "99", "1", "3600", "1"]);
    let ask = |text: &str| (&stream).write_all(text.as_bytes()).unwrap();
    // The first call of a connection goes alone, and the store has to learn the script for batches.
    ask(&call.repeat(4));
    for left in (96..100).rev() {
        assert_eq!(reply(&mut reader)[2], format!(":{left}"));
    }

    // Few enough that one read takes them all.
    gate.wait_for(20);
    let ping = say(&["PING"]);
    ask(&[call.repeat(20), ping, call.repeat(5)].concat());
    for left in (76..96).rev() {
        assert_eq!(reply(&mut reader)[2], format!(":{left}"));
    }
    assert_eq!(reply(&mut reader), ["+PONG"]);
    for left in (71..76).rev() {
        assert_eq!(reply(&mut reader)[2], format!(":{left}"));
    }

    // A transaction, as clients send pipelines by default.
    gate.wait_for(20);
    ask(&[say(&["MULTI"]), call.repeat(20), say(&["EXEC"])].concat());
    for _ in 0..21 {
        assert_eq!(reply(&mut reader).len(), 1);
    }
    let all = reply(&mut reader);
    let left: Vec<_> = all.chunks(5).map(|answer| answer[2].clone()).collect();
    let expected: Vec<_> = (51..71).rev().map(|left| format!(":{left}")).collect();
    assert_eq!(left, expected);
    server.stop();
}
