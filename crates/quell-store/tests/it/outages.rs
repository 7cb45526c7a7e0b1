//! Servers on one store that fails and comes back: in any interval all of them together admit what the bounds
//! of an outage say, on every rung, for every kind of limit and of failure, once and several times.
//!
//! Time is tokio's, paused: it goes on when nobody has anything to do. So a call is decided at the instant at
//! which it is answered, and the auditor is exact.

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use quell::clock::Clock;
use quell::{Limit, Limiter, Query, Rate};
use quell_core::algorithm::fixed_window::CalendarUnit;
use quell_core::on_failure::OnFailure;
use quell_core::over_admission::{LeasePolicy, OverAdmission};
use quell_core::policy::{Policy, Rung};
use quell_store::fallback::FallbackStore;
use quell_store::leased::LeasedStore;
use quell_testkit::wait::paced_by;
use tokio::time::Instant;

use crate::flaky_store::{Condition, FlakyStore, Shared, TokioClock};
use crate::rules::{rule, shop};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// Scenarios in each run.
const SEEDS: u64 = 24;

/// Time for which calls go on after the last outage.
const AFTERWARDS: Duration = Duration::from_secs(5);

type Node = Limiter<LeasedStore<FallbackStore<FlakyStore>>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Strict,
    Leased,
    Synced,
}

/// Kind of failure of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The store stands still, and goes on.
    Frozen,
    /// The store is gone, and comes back with all that it knew.
    Away,
    /// The store is gone, and comes back knowing nothing.
    Emptied,
    /// The store is gone, and comes back as it was so long before.
    Older(Duration),
}

#[derive(Clone, Copy, Debug)]
struct Fault {
    after: Duration,
    kind: Kind,
    length: Duration,
}

/// Limit in a form that an auditor can judge.
#[derive(Clone, Copy, Debug)]
enum Kept {
    /// `burst + rate * d`, the rate per second.
    Bucket(u64, u64),
    /// At most so many in any such time.
    Window(u64, Duration),
    /// At most so many in a window that begins with its first call: in any such time twice that, across an
    /// edge.
    FixedWindow(u64, Duration),
    /// At most so many from each multiple of this time to the next.
    CalendarWindow(u64, Duration),
}

#[derive(Clone, Debug)]
struct Scenario {
    step: Step,
    limit: Limit,
    kept: Kept,
    bound: u64,
    nodes: u32,
    keys: usize,
    /// Calls per `pause` of all servers and keys together.
    offered: u32,
    pause: Duration,
    faults: Vec<Fault>,
}

/// Times of admitted units, by key.
type Admitted = Arc<Mutex<HashMap<usize, Vec<u64>>>>;

fn bucket(rate: u64, burst: u64) -> (Limit, Kept) {
    let limit = Limit::token_bucket(Rate::new(rate, SECOND).unwrap());
    let limit = limit.burst(burst).build().unwrap();
    (limit, Kept::Bucket(burst, rate))
}

impl Kept {
    /// By how much `admitted` exceeds `rate * d` at most, in any interval; or all that was admitted in a window.
    fn excess(self, admitted: &[u64]) -> u64 {
        match self {
            Self::Bucket(_, rate) => {
                // In billionths of a unit, of which a nanosecond produces `rate`.
                let (mut level, mut worst, mut last) = (0_u64, 0, 0);
                for at in admitted {
                    level = level.saturating_sub((at - last).saturating_mul(rate)) + 1_000_000_000;
                    (worst, last) = (worst.max(level), *at);
                }
                worst / 1_000_000_000
            }
            Self::Window(_, window) | Self::FixedWindow(_, window) => {
                let window = u64::try_from(window.as_nanos()).unwrap();
                let (mut first, mut worst) = (0, 0);
                for (place, at) in admitted.iter().enumerate() {
                    while admitted[first] + window <= *at {
                        first += 1;
                    }
                    worst = worst.max(place + 1 - first);
                }
                worst as u64
            }
            Self::CalendarWindow(_, window) => {
                let window = u64::try_from(window.as_nanos()).unwrap();
                let windows = admitted.chunk_by(|one, next| one / window == next / window);
                windows.map(|of_one| of_one.len() as u64).max().unwrap_or(0)
            }
        }
    }

    const fn limit(self) -> u64 {
        match self {
            Self::Bucket(limit, _)
            | Self::Window(limit, _)
            | Self::FixedWindow(limit, _)
            | Self::CalendarWindow(limit, _) => limit,
        }
    }

    /// Stated excess without outages.
    const fn in_health(self) -> u64 {
        match self {
            Self::FixedWindow(limit, _) => 2 * limit,
            _ => self.limit(),
        }
    }
}

impl Scenario {
    /// Stated excess over `rate * d`, or in a window.
    fn stated(&self) -> u64 {
        let limit = self.kept.limit();
        let bound = match self.step {
            Step::Strict => 0,
            Step::Leased | Step::Synced => self.bound,
        };
        let more = self.faults.iter().map(|fault| match fault.kind {
            // The limit once more for the outage.
            Kind::Frozen | Kind::Away => limit,
            // And what was forgotten.
            Kind::Emptied | Kind::Older(_) => 2 * limit,
        });
        self.kept.in_health() + bound + more.sum::<u64>()
    }

    fn node(&self, shared: &Arc<Shared>, clock: &Arc<TokioClock>, number: u32) -> Node {
        let nodes = NonZeroU32::new(self.nodes).unwrap();
        let policy = LeasePolicy {
            over: OverAdmission::Units(self.bound),
            nodes,
        };
        let mut all = rule("all", self.limit.clone(), &["user"]);
        all.policy = Policy {
            rung: match self.step {
                Step::Strict => Rung::Strict,
                Step::Leased => Rung::Leased(policy),
                Step::Synced => Rung::Synced(policy),
            },
            on_failure: Some(OnFailure::Share { nodes }),
        };
        let store = FlakyStore::new(shared, number * 255 / self.nodes.max(2));
        let store = FallbackStore::new(store, Arc::clone(clock) as _);
        let store = LeasedStore::new(store, Arc::clone(clock) as _);
        let node = Limiter::builder(store).clock(Arc::clone(clock) as _);
        let node = node.build();
        node.set_rules(vec![shop(vec![all])]).unwrap();
        node
    }

    /// Calls of all servers, until `end`.
    fn offer(&self, nodes: &[Arc<Node>], clock: &Arc<TokioClock>, end: Instant) -> Admitted {
        let admitted = Admitted::default();
        let (nodes, clock, all) = (nodes.to_vec(), Arc::clone(clock), Arc::clone(&admitted));
        let (keys, offered, pause) = (self.keys, self.offered, self.pause);
        tokio::spawn(async move {
            let mut call = 0;
            while Instant::now() < end {
                for _ in 0..offered {
                    let node = Arc::clone(&nodes[call % nodes.len()]);
                    let key = call / nodes.len() % keys;
                    let (clock, all) = (Arc::clone(&clock), Arc::clone(&all));
                    call += 1;
                    tokio::spawn(async move {
                        let query = Query::new("shop").entry("user", key.to_string());
                        let verdict = node.try_acquire(&query).await;
                        if verdict.is_ok_and(|verdict| verdict.is_allow()) {
                            let now = clock.monotonic().as_nanos();
                            all.lock().entry(key).or_default().push(now);
                        }
                    });
                }
                paced_by(pause).await;
            }
        });
        admitted
    }

    fn length(&self) -> Duration {
        let faults = self.faults.iter();
        let faults: Duration = faults.map(|one| one.after + one.length).sum();
        faults + AFTERWARDS
    }

    /// Runs it where time is paused. Returns how many calls were admitted on the busiest key.
    fn keeps_its_bound(&self, seed: &str) -> usize {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        let admitted = runtime.block_on(self.run());
        let worst = admitted.values().map(|times| self.kept.excess(times));
        let (worst, stated) = (worst.max().unwrap(), self.stated());
        assert!(worst <= stated, "{worst} of {stated}: {seed}{self}");
        admitted.values().map(Vec::len).max().unwrap()
    }

    /// Runs the scenario; returns the times of admitted calls, by key.
    async fn run(&self) -> HashMap<usize, Vec<u64>> {
        let clock = Arc::new(TokioClock(Instant::now()));
        let shared = Shared::new(&clock);
        let nodes = (0..self.nodes).map(|number| Arc::new(self.node(&shared, &clock, number)));
        let nodes: Vec<_> = nodes.collect();
        let end = Instant::now() + self.length();
        let admitted = self.offer(&nodes, &clock, end);
        for fault in &self.faults {
            let lag = match fault.kind {
                Kind::Older(lag) => lag.min(fault.after),
                _ => Duration::ZERO,
            };
            paced_by(fault.after - lag).await;
            let copy = shared.copy();
            paced_by(lag).await;
            shared.fails(match fault.kind {
                Kind::Frozen => Condition::Frozen,
                _ => Condition::Down,
            });
            paced_by(fault.length).await;
            match fault.kind {
                Kind::Frozen | Kind::Away => {}
                Kind::Emptied => shared.forgets(),
                Kind::Older(_) => shared.restore(copy),
            }
            shared.returns().await;
        }
        tokio::time::sleep_until(end + SECOND).await;
        std::mem::take(&mut *admitted.lock())
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?}, {}, bound {}, {} servers, {} keys, {} per {:?}: {:?}",
            self.step,
            self.limit,
            self.bound,
            self.nodes,
            self.keys,
            self.offered,
            self.pause,
            self.faults
        )
    }
}

/// Scenario with six times the calls that one bucket of 1,000/s and 100 at once admits.
fn flood(step: Step, faults: Vec<Fault>) -> Scenario {
    let (limit, kept) = bucket(1_000, 100);
    Scenario {
        step,
        limit,
        kept,
        bound: 12,
        nodes: 3,
        keys: 1,
        offered: 6,
        pause: MS,
        faults,
    }
}

/// One outage of 3 s and two of them, the second of which begins while nodes recover from the first, and when some
/// of them have.
fn outages(kind: Kind) -> [Vec<Fault>; 3] {
    let after = |after| Fault {
        after,
        kind,
        length: 3 * SECOND,
    };
    [
        vec![after(SECOND)],
        vec![after(SECOND), after(SECOND)],
        vec![after(SECOND), after(5 * SECOND / 2)],
    ]
}

fn keeps_its_bound(step: Step) {
    for kind in [Kind::Frozen, Kind::Away, Kind::Emptied] {
        for faults in outages(kind) {
            let scenario = flood(step, faults);
            let seconds = scenario.length().as_secs_f64();
            let admitted = scenario.keeps_its_bound("") as f64 / seconds;
            // Servers find the store, pay and recover one after the other meanwhile.
            assert!(admitted >= 800.0, "{admitted} of 1,000/s: {scenario}");
        }
    }
}

#[test]
fn strict_servers_keep_the_bounds_of_an_outage() {
    keeps_its_bound(Step::Strict);
}

#[test]
fn leased_servers_keep_the_bounds_of_an_outage() {
    keeps_its_bound(Step::Leased);
}

#[test]
fn synced_servers_keep_the_bounds_of_an_outage() {
    keeps_its_bound(Step::Synced);
}

/// A window of the calendar's minute, five times of which is offered, and outages in the middle of it and across its
/// edge.
#[test]
fn windows_of_the_calendar_keep_the_bounds_of_an_outage() {
    const MINUTE: Duration = Duration::from_secs(60);
    let limit = Limit::calendar_window(600, CalendarUnit::Minute, "UTC");
    let limit = limit.build().unwrap();
    for step in [Step::Strict, Step::Leased, Step::Synced] {
        for kind in [Kind::Frozen, Kind::Away, Kind::Emptied] {
            for after in [[2, 3], [2, 56], [57, 3], [58, 50]] {
                let fault = |after| Fault {
                    after: Duration::from_secs(after),
                    kind,
                    length: 3 * SECOND,
                };
                let scenario = Scenario {
                    limit: limit.clone(),
                    kept: Kept::CalendarWindow(600, MINUTE),
                    keys: 2,
                    offered: 2,
                    pause: 20 * MS,
                    ..flood(step, after.map(fault).into())
                };
                let admitted = scenario.keeps_its_bound("");
                assert!(admitted >= 600, "{admitted} in all: {scenario}");
            }
        }
    }
}

/// A sequence of numbers that a seed names.
struct Dice(u64);

impl Dice {
    /// From 0 to `most - 1`.
    fn roll(&mut self, most: u64) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % most
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[usize::try_from(self.roll(of.len() as u64)).unwrap()]
    }

    fn time(&mut self, from: u64, until: u64) -> Duration {
        Duration::from_millis(from + self.roll(until - from))
    }

    fn limit(&mut self) -> (Limit, Kept) {
        let (size, window) = (120 + self.roll(200), self.time(500, 4_000));
        match self.roll(6) {
            0 => bucket(400, 60),
            1 => bucket(100, 300),
            2 => {
                let rate = Rate::new(300, SECOND).unwrap();
                let limit = Limit::leaky_bucket(rate).burst(90).delay_after(90);
                (limit.build().unwrap(), Kept::Bucket(90, 300))
            }
            3 => {
                let limit = Limit::sliding_window(size, window).build().unwrap();
                (limit, Kept::Window(size, window))
            }
            4 => {
                let limit = Limit::fixed_window(size, window).build().unwrap();
                (limit, Kept::FixedWindow(size, window))
            }
            _ => {
                let limit = Limit::sliding_log(size, window).build().unwrap();
                (limit, Kept::Window(size, window))
            }
        }
    }

    fn fault(&mut self) -> Fault {
        let lag = self.time(50, 400);
        Fault {
            after: self.time(300, 4_000),
            kind: self.pick(&[Kind::Frozen, Kind::Away, Kind::Emptied, Kind::Older(lag)]),
            length: self.time(100, 3_000),
        }
    }

    fn scenario(&mut self) -> Scenario {
        let (limit, kept) = self.limit();
        let keys = 1 + usize::try_from(self.roll(2)).unwrap();
        Scenario {
            step: self.pick(&[Step::Strict, Step::Leased, Step::Synced]),
            limit,
            kept,
            bound: 12,
            nodes: self.pick(&[2, 3]),
            keys,
            offered: self.pick(&[1, 2, 4]),
            pause: MS,
            faults: (0..=self.roll(3)).map(|_| self.fault()).collect(),
        }
    }
}

/// Limits of every kind, in outages of every kind, length and number.
#[test]
fn the_bounds_hold_whatever_happens_to_the_store() {
    for seed in 0..SEEDS {
        let scenario = Dice(seed << 32).scenario();
        scenario.keeps_its_bound(&format!("seed {seed}, "));
    }
}
