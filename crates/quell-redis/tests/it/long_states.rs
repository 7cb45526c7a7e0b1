//! Long states: read and written in pieces, with the same answers as in memory.

use std::time::Duration;

use quell::{Limit, Operation};
use quell_conformance::{InMicros, ModelStore};
use quell_core::algorithm::sliding_log::SlidingLog;
use quell_core::ban::Ban;

use crate::extremes::Random;
use crate::limits::{SECOND, START, ask, built, limiter};
use crate::server::Server;

fn log(limit: u64) -> SlidingLog {
    Limit::sliding_log(limit, SECOND).max_entries(100_000)
}

fn all() -> Vec<Limit> {
    let segments = |limit, segments| Limit::sliding_window(limit, SECOND).segments(segments);
    let ban = Ban::new(50, Some(SECOND), vec![Duration::from_millis(20)]).unwrap();
    vec![
        built(log(700).build()),
        built(log(70_000).build()),
        built(log(700).build()).with_ban(ban),
        built(segments(2_000, 1_000).build()),
        built(segments(100_000, 700).build()),
    ]
}

/// Mostly small steps that fill the state; sometimes one that empties a part of it, a clock that
/// goes back, or a cost that has to wait for many entries.
#[tokio::test]
async fn long_states_have_the_same_answers_as_in_memory() {
    let server = Server::start(&[]);
    for (number, limit) in all().into_iter().enumerate() {
        let limits = std::slice::from_ref(&limit);
        let store = server
            .store()
            .test_keys(&number.to_string())
            .test_isolation();
        let subject = limiter(store.build(), limits);
        let model = limiter(InMicros(ModelStore::default()), limits);
        let mut random = Random(number as u64);
        let mut now = START;
        for step in 0..4_000 {
            now += match random.below(1_000) {
                0 => random.below(3_000_000),
                1..=9 => random.below(300_000),
                _ => random.below(1_500),
            };
            if random.below(1_500) == 0 {
                now -= random.below(600_000);
            }
            let cost = match random.below(20) {
                0 => 1 + random.below(limit.max()),
                1 => 1 + random.below(limit.max() / 20),
                _ => 1 + random.below(limit.max() / 700),
            };
            let operation = match random.below(30) {
                0 => Operation::Peek,
                _ => Operation::Acquire,
            };
            let got = ask(&subject, operation, "a", cost, now).await;
            let expected = ask(&model, operation, "a", cost, now).await;
            assert_eq!(got, expected, "{limit} step {step} cost {cost} at {now}");
        }
    }
}

/// Asks the only key of a server.
fn of_key(server: &Server, command: &str) -> u64 {
    let script = format!("local key = redis.call('KEYS', '*')[1] return {command}");
    server.command(&["EVAL", &script, "0"]).parse().unwrap()
}

/// A charge on a log of thousands writes its entry, and not all of them again. Entries that are
/// gone are cut off before they are half of it, and it expires with its newest entry.
#[tokio::test]
async fn a_long_log_is_not_written_anew_with_every_charge() {
    let server = Server::start(&[]);
    let limit = built(Limit::sliding_log(10_000, SECOND).build());
    let subject = limiter(server.store().test_isolation().build(), &[limit]);
    for call in 0..6_000 {
        // A thousand entries are in the window at a time, of nine bytes each.
        let verdict = ask(&subject, Operation::Acquire, "a", 1, START + call * 1_000).await;
        assert!(verdict.is_allow());
        if call % 500 == 0 {
            let length = of_key(&server, "redis.call('STRLEN', key)");
            assert!(length < 2 * 1_001 * 9 + 20, "{length} bytes");
        }
    }
    of_key(&server, "redis.call('PEXPIRE', key, 5000)");
    ask(&subject, Operation::Acquire, "a", 1, START + 6_000_000).await;
    let left = server.left();
    assert!((500_000..=600_000).contains(&left), "{left}");
    let stats = server.command(&["INFO", "commandstats"]);
    let calls = |command: &str| -> u64 {
        let (_, rest) = stats
            .split_once(&format!("cmdstat_{command}:calls="))
            .unwrap();
        rest.split(',').next().unwrap().parse().unwrap()
    };
    assert!(calls("psetex") < 150, "{stats}");
    assert!(calls("getrange") < 6_000 * 6, "{stats}");
}

/// Charges of one segment, or of one instant, are one entry.
#[tokio::test]
async fn what_counts_until_the_same_instant_is_one_entry() {
    let limits = [
        built(Limit::sliding_window(10_000, 10 * SECOND).build()),
        built(Limit::sliding_log(10_000, 10 * SECOND).build()),
        built(
            Limit::sliding_window(10_000, SECOND)
                .segments(1_000)
                .build(),
        ),
    ];
    for limit in limits {
        let server = Server::start(&[]);
        let subject = limiter(server.store().test_isolation().build(), &[limit]);
        // Few entries, and then enough for a state that is read in pieces.
        for entries in [1, 300] {
            for charge in 0..entries * 3 {
                let now = START + charge / 3 * 1_000_000 / 1_000;
                ask(&subject, Operation::Acquire, "a", 1, now).await;
            }
            let length = of_key(&server, "redis.call('STRLEN', key)");
            assert!(length < 40 + entries * 9, "{length} bytes for {entries}");
        }
    }
}
