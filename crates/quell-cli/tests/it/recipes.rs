//! The recipes' own proofs, from `docs/recipes.md`: `ab` against `quell serve` on a real Redis, judged
//! from the times of the store in the decision log. No time of this machine counts.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use quell_testkit::redis::Redis;
use serde_json::Value;

use crate::clients::ab;
use crate::files::{Folder, of_repository};
use crate::process::{run, until, until_every};
use crate::server::Server;

/// Calls of a run.
const CALLS: usize = 110;

const SECOND: i128 = 1_000_000_000;
const MILLISECOND: Duration = Duration::from_millis(1);

/// A line of the decision log.
#[derive(Clone, Copy, Debug)]
struct Line {
    /// By the store's clock, in nanoseconds. None: the server has answered from its denial cache.
    at: Option<i128>,
    is_allowed: bool,
}

/// A server with the rules of the page, on a Redis.
struct Recipe {
    server: Server,
    log: String,
    _folder: Folder,
    _redis: Redis,
}

impl Recipe {
    fn start() -> Self {
        let page = std::fs::read_to_string(of_repository("docs/recipes.md")).unwrap();
        let (_, block) = page.split_once("```yaml\n").unwrap();
        let (redis, folder) = (Redis::start(&[]), Folder::new());
        let rules = folder.write("recipes.yaml", block.split("```").next().unwrap());
        let log = folder.path("decisions.log");
        let store = ["--store", &redis.url(), "--store-timeout", "10s"];
        let arguments = ["--rules", &rules, "--decision-log", &log];
        let server = Server::start(&[&arguments[..], &store].concat());
        Self {
            server,
            log,
            _folder: folder,
            _redis: redis,
        }
    }

    /// The lines of a rule, in the order of the store's times.
    fn lines(&self, rule: &str) -> Vec<Line> {
        let mut lines: Vec<Line> = until("all decisions are written", || {
            let text = std::fs::read_to_string(&self.log).unwrap();
            let lines = text.lines().map(serde_json::from_str::<Value>);
            // The last line may be half written.
            let lines: Vec<Value> = lines.map_while(Result::ok).collect();
            let lines = lines.iter().filter(|line| line["rule"] == rule);
            let lines: Vec<Line> = lines.map(line).collect();
            (lines.len() >= CALLS).then_some(lines)
        });
        assert_eq!(lines.len(), CALLS);
        lines.sort_by_key(|line| line.at);
        lines
    }

    /// Sends the calls by `ab`; returns how many it saw refused.
    fn ab(&self, rule: &str) -> usize {
        let words = ["-n", "110", "-c", "10", "-H"];
        let url = self.server.url("/v1/authorize?domain=recipes");
        let header = format!("X-Quell-Entry-Recipe: {rule}");
        let report = run(ab().args(words).args([&header, &url])).expect_success();
        assert!(report.contains("Complete requests:      110"), "{report}");
        let refused = report.split_once("Non-2xx responses:");
        let number = refused.and_then(|(_, rest)| rest.split_whitespace().next());
        number.map_or(0, |number| number.parse().unwrap())
    }
}

fn line(line: &Value) -> Line {
    assert!(line.get("degraded").is_none(), "{line}");
    let is_allowed = line["outcome"] == "allow";
    let time = line["store_time"].as_str();
    let at = time.map(|time| time.parse::<Timestamp>().unwrap().as_nanosecond());
    assert!(
        at.is_some() || !is_allowed,
        "only the store lets pass: {line}"
    );
    Line { at, is_allowed }
}

fn allowed(lines: &[Line]) -> usize {
    lines.iter().filter(|line| line.is_allowed).count()
}

/// Numbers of calls at these times that a fixed window of 100 per second lets pass, in each of its windows:
/// one begins with the first call after the end of the last.
fn windows(lines: &[Line]) -> Vec<usize> {
    let (mut passed, mut begun): (Vec<usize>, Option<i128>) = (Vec::new(), None);
    for at in lines.iter().filter_map(|line| line.at) {
        if begun.is_none_or(|begun| at >= begun + SECOND) {
            begun = Some(at);
            passed.push(0);
        }
        let last = passed.last_mut().unwrap();
        *last = (*last + 1).min(100);
    }
    passed
}

/// Number of calls at these times that a bucket of 100, refilled by one every 10 ms, lets pass.
fn from_bucket(lines: &[Line]) -> usize {
    const EVERY: i128 = SECOND / 100;
    let (mut passed, mut full_at) = (0, i128::MIN);
    for at in lines.iter().filter_map(|line| line.at) {
        let next = full_at.max(at) + EVERY;
        if next - at <= 100 * EVERY {
            full_at = next;
            passed += 1;
        }
    }
    passed
}

#[test]
fn a_window_lets_100_of_110_pass() {
    let recipe = Recipe::start();
    let refused = recipe.ab("window");
    let lines = recipe.lines("window");
    let windows = windows(&lines);
    assert_eq!(allowed(&lines), windows.iter().sum::<usize>(), "{lines:?}");
    assert_eq!(refused, CALLS - allowed(&lines));
    // On a machine that needs more than a second for a run, it has several windows.
    if windows.len() == 1 {
        assert_eq!(refused, 10);
    }
    recipe.server.stop();
}

#[test]
fn a_bucket_lets_pass_what_the_times_allow() {
    let recipe = Recipe::start();
    let refused = recipe.ab("bucket");
    let lines = recipe.lines("bucket");
    assert_eq!(allowed(&lines), from_bucket(&lines), "{lines:?}");
    assert_eq!(refused, CALLS - allowed(&lines));
    assert!((100..=CALLS).contains(&allowed(&lines)));
    recipe.server.stop();
}

#[test]
fn a_bucket_lets_all_110_pass_when_they_take_110_ms() {
    let recipe = Recipe::start();
    let stream = TcpStream::connect(("127.0.0.1", recipe.server.http)).unwrap();
    stream.set_nodelay(true).unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut call = |mut stream: &TcpStream| {
        let head = "GET /v1/authorize?domain=recipes HTTP/1.1\r\nHost: localhost\r\n\
                    X-Quell-Entry-Recipe: bucket\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        let (mut status, mut length) = (String::new(), 0);
        reader.read_line(&mut status).unwrap();
        loop {
            let mut line = String::new();
            assert!(reader.read_line(&mut line).unwrap() > 0);
            if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if line == "\r\n" {
                break;
            }
        }
        reader.read_exact(&mut vec![0; length]).unwrap();
        status.contains(" 204 ")
    };
    // The pace is that of the first answer: the store has seen no call later than this.
    let mut passed = usize::from(call(&stream));
    let begun = Instant::now();
    for number in 1..CALLS {
        let due = MILLISECOND * u32::try_from(number).unwrap();
        until_every(MILLISECOND, "it is due", || {
            (begun.elapsed() >= due).then_some(())
        });
        passed += usize::from(call(&stream));
    }
    let lines = recipe.lines("bucket");
    assert_eq!(
        (passed, allowed(&lines), from_bucket(&lines)),
        (CALLS, CALLS, CALLS)
    );
    recipe.server.stop();
}

/// The oracles, on times that are known.
#[test]
fn the_oracles_count() {
    let at = |millis: i128| Line {
        at: Some(millis * SECOND / 1_000),
        is_allowed: true,
    };
    let at_once: Vec<Line> = (0..110).map(|_| at(0)).collect();
    assert_eq!((windows(&at_once), from_bucket(&at_once)), (vec![100], 100));
    let paced: Vec<Line> = (0..110).map(at).collect();
    assert_eq!((windows(&paced), from_bucket(&paced)), (vec![100], 110));
    let late: Vec<Line> = (0..110).map(|call| at(call / 109 * 1_000)).collect();
    assert_eq!((windows(&late), from_bucket(&late)), (vec![100, 1], 101));
}
