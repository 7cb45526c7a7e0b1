//! Several versions of a limit, asked on one key: at most the largest is admitted, and none is full
//! for longer than its own full refill.

use std::time::Duration;

use proptest::prelude::{BoxedStrategy, Strategy};
use proptest::{collection, prop_oneof, proptest};
use quell_core::algorithm::fixed_window::CalendarUnit;
use quell_core::algorithm::token_bucket::TokenBucket;
use quell_core::charge::{Charge, Entry, Operation, decide_one};
use quell_core::cost::Cost;
use quell_core::decision::{Decision, Outcome, RetryAfter};
use quell_core::limit::{ActiveLimit, Limit};
use quell_core::rate::Rate;
use quell_core::state::State;
use quell_core::state::versions::Version;
use quell_core::time::{Monotonic, Now};

use crate::bench::install;
use crate::calendar;
use crate::config;
use crate::kind::{HOUR, MINUTE, SECOND};

const START: u64 = 1_000 * HOUR;

/// One key that servers with different versions of its limit share.
struct Shared {
    versions: Vec<ActiveLimit>,
    state: State,
    now: u64,
}

impl Shared {
    fn new(limits: &[Limit]) -> Self {
        let limits = limits.iter().enumerate();
        let versions: Vec<_> = limits
            .map(|(index, limit)| install(u32::try_from(index).unwrap(), limit.clone(), 0))
            .collect();
        let state = State::rest(versions[0].id);
        Self {
            versions,
            state,
            now: START,
        }
    }

    /// Asks under one of the versions.
    fn acquire(&mut self, version: usize, cost: u64) -> Decision {
        let active = &self.versions[version];
        let mut charge = Charge::alone(active, Cost::new(cost).unwrap());
        charge.edges = Some(calendar::edges(self.now));
        let charge = &charge;
        let now = Now::from_nanos(self.now);
        let state = &mut self.state;
        if state.limit != active.id {
            let from = &self.versions[state.limit.0 as usize].limit;
            state.carry(from, active, &charge.at(now));
        }
        decide_one(now, Operation::Acquire, &mut Entry { charge, state })
    }

    /// Asks for single units until one is refused. Returns how many passed.
    fn drain(&mut self, version: usize) -> u64 {
        let mut passed = 0;
        while self.acquire(version, 1).outcome.is_allow() {
            passed += 1;
        }
        passed
    }
}

fn token(count: u64, burst: u64) -> Limit {
    Limit::per_second(count).burst(burst).build().unwrap()
}

fn hourly(limit: u64) -> Limit {
    Limit::fixed_window(limit, Duration::from_secs(3_600))
        .build()
        .unwrap()
}

/// A rolling deploy, each server asked once a second until it refuses.
fn admitted_in_turn(limits: &[Limit], seconds: u64) -> u64 {
    let mut key = Shared::new(limits);
    let mut admitted = 0;
    for _ in 0..seconds {
        for version in 0..limits.len() {
            admitted += key.drain(version);
        }
        key.now += SECOND;
    }
    admitted
}

#[test]
fn two_versions_in_turn_admit_no_more_than_the_larger() {
    assert_eq!(admitted_in_turn(&[hourly(60), hourly(30)], 60), 60);
    assert_eq!(
        admitted_in_turn(&[token(2, 60), token(2, 30)], 6),
        60 + 2 * 5
    );
    assert_eq!(
        admitted_in_turn(&[token(20, 20), token(10, 10)], 2),
        20 + 20
    );
    assert_eq!(
        admitted_in_turn(
            &[
                hourly(30),
                hourly(60),
                hourly(45),
                hourly(10),
                hourly(59),
                hourly(31)
            ],
            60
        ),
        60,
        "more versions than are remembered"
    );
}

/// Another algorithm starts fresh, once.
#[test]
fn two_algorithms_in_turn_admit_each_burst_once() {
    let admitted = admitted_in_turn(&[token(1, 60), hourly(60)], 600);
    assert_eq!(admitted, 60 + 60 + 599);
}

/// `initial` counts once, from when its own version came into force.
#[test]
fn a_version_at_rest_lacks_no_initial_tokens_when_another_begins() {
    let batches = TokenBucket::refill(6, Duration::from_secs(1)).initial(0);
    let batches = batches.burst(6).build().unwrap();
    let slow = Limit::per_hour(1).burst(3).build().unwrap();
    for changes_algorithm in [false, true] {
        let versions = [slow.clone(), batches.clone(), token(4, 6), hourly(9)];
        let mut key = Shared::new(&versions);
        assert_eq!(key.acquire(0, 1).outcome, Outcome::Allow);
        assert_eq!(key.acquire(1, 7).outcome, Outcome::Deny(RetryAfter::Never));
        key.now += 10 * SECOND;
        assert_eq!(
            key.acquire(1, 7).remaining,
            6,
            "at rest, beside the slow one"
        );
        if changes_algorithm {
            assert_eq!(key.acquire(3, 10).remaining, 9);
        }
        key.versions[2].since = Monotonic::from_nanos(key.now);
        assert_eq!(key.drain(2), 6);
    }
}

/// A refusal lasts at most the version's own full refill after the other's last charge, whatever the
/// other still counts.
#[test]
fn a_lowered_limit_locks_no_key_for_longer_than_its_refill() {
    let mut key = Shared::new(&[token(2, 1_000), token(2, 10)]);
    assert_eq!(key.drain(0), 1_000);
    assert_eq!(key.drain(1), 0);
    key.now += 5 * SECOND;
    assert_eq!(key.acquire(1, 10).outcome, Outcome::Allow);
    assert_eq!(key.drain(0), 0, "all that was admitted counts");
}

/// 10,000 changes a second: rounding errors do not add up.
#[test]
fn a_key_that_is_asked_in_turn_drains() {
    for limits in [
        vec![token(2, 60), token(1, 60)],
        vec![
            token(2, 60),
            Limit::leaky_bucket(Rate::new(1, Duration::from_secs(1)).unwrap())
                .burst(9)
                .build()
                .unwrap(),
        ],
        vec![
            Limit::sliding_window(9, Duration::from_secs(60))
                .segments(10)
                .build()
                .unwrap(),
            Limit::sliding_window(9, Duration::from_secs(60))
                .segments(7)
                .build()
                .unwrap(),
        ],
    ] {
        let mut key = Shared::new(&limits);
        for version in 0..2 {
            key.drain(version);
        }
        for step in 0..10_000 {
            key.now += 100_000;
            // A cost that does not fit changes nothing.
            key.acquire(step % 2, 1_000_000);
        }
        let elapsed = limits[1].full_refill();
        key.now += u64::try_from(elapsed.as_nanos()).unwrap() - SECOND;
        for (version, limit) in limits.iter().enumerate() {
            let decision = key.acquire(version, 1_000_000);
            if limit.full_refill() <= elapsed {
                assert_eq!(decision.remaining, limit.max(), "{}", limit.algorithm());
            }
        }
    }
}

#[test]
fn a_version_that_nobody_asks_is_forgotten() {
    let mut key = Shared::new(&[token(2, 60), token(2, 30)]);
    key.drain(0);
    key.drain(1);
    assert!(key.state.versions.is_some());
    assert!(key.state.heap_bytes() >= size_of::<Version>());
    // At rest after 30 s, and not asked for twice as long; after that only one version is left.
    key.now += 61 * SECOND;
    assert_eq!(key.drain(1), 30);
    assert!(key.state.versions.is_none());
    // Never at rest, and gone after an hour.
    key.drain(0);
    for (seconds, is_known) in [(3_600, true), (2, false)] {
        for _ in 0..seconds {
            key.now += SECOND;
            key.acquire(1, 2);
        }
        assert_eq!(key.state.versions.is_some(), is_known, "{seconds}");
    }
}

/// Versions of one algorithm, and one that holds at least as much and refills at least as fast as
/// any of them.
fn families() -> BoxedStrategy<(Vec<Limit>, Limit)> {
    let numbers = || collection::vec((1..=60_u64, 1..=6_u64), 2..=5);
    let most = |numbers: &[(u64, u64)]| {
        let bursts = numbers.iter().map(|(burst, _)| *burst).max().unwrap();
        let counts = numbers.iter().map(|(_, count)| *count).max().unwrap();
        (bursts, counts)
    };
    let family = move |make: fn((u64, u64)) -> Limit| {
        numbers().prop_map(move |numbers| {
            let largest = make(most(&numbers));
            (numbers.into_iter().map(make).collect(), largest)
        })
    };
    prop_oneof![
        family(|(burst, count)| token(count, burst)),
        family(|(burst, count)| {
            let rate = Rate::new(count, Duration::from_secs(1)).unwrap();
            Limit::leaky_bucket(rate).burst(burst).build().unwrap()
        }),
        family(|(limit, _)| hourly(limit)),
        family(
            |(limit, _)| Limit::calendar_window(limit, CalendarUnit::Day, "Test/Days")
                .build()
                .unwrap()
        ),
        family(
            |(limit, _)| Limit::sliding_window(limit, Duration::from_secs(60))
                .build()
                .unwrap()
        ),
        family(
            |(limit, _)| Limit::sliding_log(limit, Duration::from_secs(60))
                .build()
                .unwrap()
        ),
    ]
    .boxed()
}

/// Time until the next call, its version, and its cost.
fn calls() -> BoxedStrategy<Vec<(u64, usize, u64)>> {
    let wait = prop_oneof![
        4 => 0..=SECOND / 10,
        2 => 0..=5 * SECOND,
        1 => 0..=2 * MINUTE,
    ];
    let cost = prop_oneof![3 => 1..=5_u64, 1 => 1..=60_u64];
    collection::vec((wait, 0..5_usize, cost), 1..80).boxed()
}

proptest! {
    #![proptest_config(config(1_500))]

    #[test]
    fn at_most_the_largest_version_is_admitted((limits, largest) in families(), calls in calls()) {
        let mut key = Shared::new(&limits);
        let mut alone = Shared::new(&[largest]);
        for (wait, version, cost) in calls {
            key.now += wait;
            alone.now = key.now;
            let decision = key.acquire(version % limits.len(), cost);
            if decision.outcome.is_allow() {
                assert_eq!(alone.acquire(0, cost).outcome, Outcome::Allow, "{:?}", key.state);
            }
        }
    }

    /// A refusal's wait stays true while other calls are refused, for as long as the version is
    /// known: two of its full refills. It is no longer than one of them.
    #[test]
    fn no_version_is_locked_for_longer_than_its_refill((limits, _) in families(), calls in calls()) {
        let limits = &limits[..limits.len().min(4)];
        let mut key = Shared::new(limits);
        let mut promised = vec![None; limits.len()];
        for (wait, version, cost) in calls {
            let version = version % limits.len();
            key.now += wait;
            let decision = key.acquire(version, cost);
            match decision.outcome {
                Outcome::Allow => promised.fill(None),
                Outcome::Deny(RetryAfter::Never) => assert!(cost > limits[version].max()),
                Outcome::Deny(RetryAfter::After(wait)) => {
                    assert!(wait <= limits[version].full_refill());
                    let wait = u64::try_from(wait.as_nanos()).unwrap();
                    promised[version] = Some((key.now, key.now + wait, cost));
                }
            }
            // Nothing was admitted since: every refused caller may come back at the time it was
            // told.
            for (version, promise) in promised.iter().enumerate() {
                let Some((asked, until, cost)) = *promise else { continue };
                let refill = u64::try_from(limits[version].full_refill().as_nanos()).unwrap();
                if key.now - asked > 2 * refill {
                    continue;
                }
                let mut later = Shared {
                    versions: key.versions.clone(),
                    state: key.state.clone(),
                    now: key.now.max(until),
                };
                assert_eq!(later.acquire(version, cost).outcome, Outcome::Allow);
            }
        }
    }
}
