//! "The life of a request" in ARCHITECTURE.md: a request passes the functions listed there, in that order,
//! and no others.
//!
//! The server runs on a clock that records which code reads it. A store in memory reads it while the key
//! is locked, a remote store when it has the answer. The connection to Redis reports each command that
//! enters it.

use std::backtrace::Backtrace;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::thread::ThreadId;

use quell::clock::{Clock, SystemClock};
use quell_core::time::Now;
use quell_testkit::redis::Redis;

use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::harness::{Fixture, send};

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

/// A function of this project, by its file below `crates`.
type Function = (String, String);

/// A clock that records its callers, while it is told to.
#[derive(Debug)]
struct Witness {
    clock: SystemClock,
    is_looking: AtomicBool,
    seen: Mutex<Vec<(ThreadId, String)>>,
}

/// Threads on which commands entered the connections of this process to Redis, and their frames.
static SENT: Mutex<Vec<(ThreadId, String)>> = Mutex::new(Vec::new());

/// Notes where commands enter a connection.
struct SentCommands;

impl Subscriber for SentCommands {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "quell_redis::link::connection" && *metadata.level() == Level::TRACE
    }

    fn event(&self, _: &Event<'_>) {
        SENT.lock().unwrap().push(here());
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn here() -> (ThreadId, String) {
    let trace = Backtrace::force_capture().to_string();
    (std::thread::current().id(), trace)
}

impl Clock for Witness {
    fn now(&self) -> Now {
        if self.is_looking.load(Ordering::SeqCst) {
            self.seen.lock().unwrap().push(here());
        }
        self.clock.now()
    }
}

/// This project's functions in a backtrace, the outermost first, without those of the clock. A function
/// that occurs twice, because a closure of it runs, counts where the closure runs.
fn ours(trace: &str) -> Vec<Function> {
    let mut found: Vec<Function> = Vec::new();
    for place in trace
        .lines()
        .filter_map(|line| line.trim().strip_prefix("at "))
    {
        let mut parts = place.split(':');
        let (path, line) = (parts.next().unwrap(), parts.next().unwrap_or_default());
        // Paths of this crate begin in the folder in which its tests run.
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

/// The function that a line of a file is in: the symbols of futures do not tell.
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

/// Those of `ours` that are not listed after the one before.
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

/// Sends what `ask` sends to a server with these settings. Returns where its clock was read, and where
/// commands for Redis were sent in the same threads.
fn watch(settings: &str, ask: fn(&Fixture, &Keys)) -> [Vec<Vec<Function>>; 2] {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| tracing::subscriber::set_global_default(SentCommands).unwrap());
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
    let read = std::mem::take(&mut *witness.seen.lock().unwrap());
    // Other tests have threads of their own.
    let is_of_others =
        |(thread, _): &mut (ThreadId, String)| !read.iter().any(|(own, _)| own == thread);
    let mut all = SENT.lock().unwrap();
    let sent: Vec<_> = all.extract_if(.., |one| !is_of_others(one)).collect();
    drop(all);
    [read, sent].map(|traces| traces.iter().map(|(_, trace)| ours(trace)).collect())
}

/// Checks those of `traces` that begin in the task of a connection and end in `file`.
fn check(traces: &[Vec<Function>], file: &str, calls: usize, files: usize) {
    let is_it = |ours: &&Vec<Function>| {
        let first = ours.first().map(|(first, _)| &**first);
        let is_connection = first.is_some_and(|first| first.ends_with("/connection.rs"));
        is_connection && ours.iter().any(|(other, _)| other == file)
    };
    let (found, listed): (Vec<_>, _) = (traces.iter().filter(is_it).collect(), listed());
    assert!(!found.is_empty(), "{file} is passed: {traces:#?}");
    for ours in &found {
        let missing = not_listed(ours, &listed);
        assert!(
            missing.is_empty(),
            "not listed, or not there: {missing:?} of {ours:#?}"
        );
        let passed: BTreeSet<_> = ours.iter().map(|(file, _)| file).collect();
        assert!(passed.len() <= files, "{ours:#?}");
    }
    // The first is the task of the connection. A command that is not recognised takes two more calls.
    let shortest = found.iter().map(|ours| ours.len() - 1).min();
    assert!(shortest <= Some(calls), "{found:#?}");
}

/// Asks by RESP four times at once, because a connection recognises calls that differ only in the key.
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

/// Keys that have not been used yet. With a new key, a store in memory reads the clock while it is locked,
/// and Redis is asked, because no refusal is remembered.
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
    for ask in [by_resp, by_http] {
        let [read, _] = watch("", ask);
        check(&read, "quell/src/store/memory.rs", 12, 20);
    }
}

#[test]
fn to_a_store_in_redis() {
    let redis = Redis::start(&[]);
    let settings = format!("store = '{}'", redis.url());
    for ask in [by_resp, by_http] {
        let [read, sent] = watch(&settings, ask);
        check(&read, "quell-store/src/fallback/in_flight.rs", 20, 31);
        check(&sent, "quell-redis/src/link/connection.rs", 20, 31);
    }
}
