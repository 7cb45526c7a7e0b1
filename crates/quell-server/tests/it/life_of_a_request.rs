//! "The life of a request" in ARCHITECTURE.md: a request passes the functions that are listed there, in
//! that order, and no others.
//!
//! The server runs on a clock that notes who reads it. A store in memory reads it with the key locked, a
//! store beside it when it heard the answer.

use std::backtrace::Backtrace;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use quell::clock::{Clock, SystemClock};
use quell_core::time::Now;

use crate::harness::{Fixture, send};
use crate::overload::Redis;

const RULES: &str = "
domain: shop
rules:
  - name: login
    per: [user]
    rate: 200/s
    burst: 1
defaults: { on_failure: deny }
";

const CRATES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// A function of ours, by its file below `crates`.
type Function = (String, String);

/// A clock that notes by whom it is read, while it is told to.
#[derive(Debug)]
struct Witness {
    clock: SystemClock,
    is_looking: AtomicBool,
    seen: Mutex<Vec<String>>,
}

impl Clock for Witness {
    fn now(&self) -> Now {
        if self.is_looking.load(Ordering::SeqCst) {
            let trace = Backtrace::force_capture().to_string();
            self.seen.lock().unwrap().push(trace);
        }
        self.clock.now()
    }
}

/// Our functions that a backtrace shows, the outermost first; without those of the clock. One that is
/// there twice, since a closure of it runs, stands where that runs.
fn ours(trace: &str) -> Vec<Function> {
    let mut found: Vec<Function> = Vec::new();
    for place in trace
        .lines()
        .filter_map(|line| line.trim().strip_prefix("at "))
    {
        let mut parts = place.split(':');
        let (path, line) = (parts.next().unwrap(), parts.next().unwrap_or_default());
        // Paths of this crate begin where its tests run.
        let own = path.strip_prefix("./src/");
        let own = own.map(|file| format!("quell-server/src/{file}"));
        let other = || Some(path.rsplit_once("/crates/")?.1.to_owned());
        let file = own.or_else(other).filter(|file| file.contains("/src/"));
        let Some(file) = file.filter(|file| file != "quell/src/clock.rs") else {
            continue;
        };
        let name = function_at(&file, line.parse().unwrap());
        let function = (file, name);
        if !found.contains(&function) {
            found.push(function);
        }
    }
    found.reverse();
    found
}

/// The function that a line of a file is in: symbols of futures do not tell.
fn function_at(file: &str, line: usize) -> String {
    let text = std::fs::read_to_string(format!("{CRATES}/{file}")).unwrap();
    let before: Vec<_> = text.lines().take(line).collect();
    let named = |line: &&str| {
        let (_, rest) = line
            .split_once("fn ")
            .filter(|(before, _)| !before.contains("//"))?;
        Some(rest.split(['(', '<']).next()?.to_owned())
    };
    before.iter().rev().find_map(named).unwrap_or_default()
}

/// The functions that ARCHITECTURE.md lists, in its order.
fn listed() -> Vec<Function> {
    let text = std::fs::read_to_string(format!("{CRATES}/../ARCHITECTURE.md")).unwrap();
    let (_, life) = text.split_once("## The life of a request").unwrap();
    let steps = life
        .lines()
        .filter(|line| line.starts_with(|c: char| c.is_ascii_digit()));
    let mut file = "";
    let mut all = Vec::new();
    for code in steps.flat_map(|step| step.split('`').skip(1).step_by(2)) {
        if code.contains('/') {
            file = code;
        } else {
            all.push((file.to_owned(), code.to_owned()));
        }
    }
    all
}

/// Those of `ours` that are not listed behind the one before.
fn not_listed(ours: &[Function], listed: &[Function]) -> Vec<Function> {
    let mut from = 0;
    let mut missing = Vec::new();
    for function in ours {
        match listed.iter().skip(from).position(|other| other == function) {
            Some(place) => from += place,
            None => missing.push(function.clone()),
        }
    }
    missing
}

/// Sends what `ask` says to a server with these settings, and checks who reads the clock last.
fn check(settings: &str, reader: &str, calls: usize, files: usize, ask: fn(&Fixture, &Keys)) {
    let keys = Keys::default();
    let witness = Arc::new(Witness {
        clock: SystemClock::new(),
        is_looking: AtomicBool::new(false),
        seen: Mutex::default(),
    });
    let server = Fixture::with_other_clock(RULES, settings, Arc::clone(&witness) as _);
    witness.is_looking.store(true, Ordering::SeqCst);
    ask(&server, &keys);
    witness.is_looking.store(false, Ordering::SeqCst);
    let (seen, listed) = (witness.seen.lock().unwrap(), listed());
    let traces = seen.iter().map(|trace| ours(trace));
    let traces: Vec<_> = traces
        .filter(|ours| ours.iter().any(|(file, _)| file == reader))
        .collect();
    assert!(!traces.is_empty(), "{reader} reads the clock: {seen:?}");
    for ours in &traces {
        let missing = not_listed(ours, &listed);
        assert!(
            missing.is_empty(),
            "not listed, or not there: {missing:?} of {ours:#?}"
        );
        let passed: BTreeSet<_> = ours.iter().map(|(file, _)| file).collect();
        assert!(passed.len() <= files, "{ours:#?}");
    }
    // The first is the task of the connection. A command that is not recognised takes two calls more.
    let shortest = traces.iter().map(|ours| ours.len() - 1).min();
    assert!(shortest <= Some(calls), "{traces:#?}");
}

/// Asks by RESP four times at once, since a connection recognises calls that differ in the key alone.
fn by_resp(server: &Fixture, keys: &Keys) {
    let command = |key: &str| {
        let length = key.len();
        format!(
            "*5\r\n$11\r\nCL.THROTTLE\r\n${length}\r\n{key}\r\n$1\r\n0\r\n$3\r\n200\r\n$1\r\n1\r\n"
        )
    };
    let commands: String = (0..4).map(|_| command(&keys.next())).collect();
    let replies = server.resp_exchange(commands.as_bytes());
    assert_eq!(replies.matches("*5\r\n").count(), 4, "{replies}");
}

/// Asks by HTTP four times at once.
fn by_http(server: &Fixture, keys: &Keys) {
    let request = |user: &str| {
        let body = format!(r#"{{"domain":"shop","entries":{{"user":"{user}"}}}}"#);
        let length = body.len();
        format!(
            "POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        )
    };
    let requests: String = (0..4).map(|_| request(&keys.next())).collect();
    let replies = send(server.http(), requests.as_bytes());
    let replies = String::from_utf8(replies).unwrap();
    assert_eq!(replies.matches("HTTP/1.1 200 OK").count(), 4, "{replies}");
}

/// Keys that nobody asked about yet. A store in memory reads the clock with a new one locked, and one in
/// Redis is asked, since no refusal is remembered.
#[derive(Default)]
struct Keys {
    made: AtomicUsize,
}

impl Keys {
    fn next(&self) -> String {
        format!("user-{}", self.made.fetch_add(1, Ordering::SeqCst))
    }
}

#[test]
fn to_a_store_in_memory() {
    let reader = "quell/src/store/memory.rs";
    check("", reader, 12, 20, by_resp);
    check("", reader, 12, 20, by_http);
}

#[test]
fn to_a_store_in_redis() {
    let redis = Redis::start();
    let settings = format!("store = 'redis://127.0.0.1:{}'", redis.port);
    let reader = "quell/src/store/fallback/in_flight.rs";
    check(&settings, reader, 20, 30, by_resp);
    check(&settings, reader, 20, 30, by_http);
}
