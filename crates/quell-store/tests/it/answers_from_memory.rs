//! Answers from memory under leased and synced limits: a wait suffices, what remains could be admitted, and
//! a key is at rest at the stated time, as far as the rules allow servers to err.

use std::cell::Cell;
use std::num::NonZeroU32;
use std::time::Duration;

use proptest::prelude::{Just, ProptestConfig, Strategy, prop, prop_oneof};
use proptest::test_runner::TestRunner;
use quell::limit::TokenBucket;
use quell::{Cost, Limit, Query, RetryAfter};
use quell_core::algorithm::Algorithm;
use quell_core::algorithm::fixed_window::CalendarUnit;
use quell_core::over_admission::{LeasePolicy, OverAdmission};
use quell_core::policy::Rung;
use quell_core::rate::Rate;
use quell_core::time::Monotonic;
use quell_core::verdict::Verdict;

use crate::leased::Fleet;
use crate::rules::rule;

/// Amount by which two nodes may exceed a limit.
const BOUND: u64 = 24;

/// Lifetime of a lease, and the longest time between two calls to the store about a key that is in use.
const LIFE: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(100);

const POLICY: LeasePolicy = LeasePolicy {
    over: OverAdmission::Units(24),
    nodes: NonZeroU32::new(2).unwrap(),
};

/// A limit, and how long it takes to produce the bound.
fn limits() -> Vec<(Limit, Duration)> {
    let second = Duration::from_secs(1);
    let built = |limit: Result<Limit, _>| limit.unwrap();
    vec![
        (
            built(Limit::per_second(500).burst(200).build()),
            second * 24 / 500,
        ),
        (
            built(Limit::per_second(100).burst(300).build()),
            second * 24 / 100,
        ),
        (
            built(Limit::fixed_window(200, second / 2).build()),
            second / 2,
        ),
        (
            built(Limit::sliding_log(200, second / 2).build()),
            second / 2,
        ),
        (
            built(Limit::sliding_window(200, second / 2).build()),
            second / 2,
        ),
        (
            built(TokenBucket::refill(50, second / 10).burst(200).build()),
            second / 10,
        ),
        (
            built(
                Limit::leaky_bucket(Rate::new(500, second).unwrap())
                    .burst(200)
                    .delay_after(200)
                    .build(),
            ),
            second * 24 / 500,
        ),
        (
            built(Limit::calendar_window(200, CalendarUnit::Minute, "UTC").build()),
            second * 60,
        ),
    ]
}

#[derive(Clone, Debug)]
struct Case {
    limit: usize,
    rung: Rung,
    /// Number of the two nodes that are asked.
    busy: usize,
    /// Between two calls, in microseconds, and what they cost.
    calls: Vec<(u64, u64, usize)>,
}

fn cases() -> impl Strategy<Value = Case> {
    let rungs = prop_oneof![Just(Rung::Leased(POLICY)), Just(Rung::Synced(POLICY))];
    // The others are more than a server may hold, or have admitted without a charge.
    let costs = || prop_oneof![19 => 1..4_u64, 1 => BOUND / 2 + 1..40];
    let calls = (50..3_000_u64).prop_flat_map(move |gap| {
        prop::collection::vec((gap / 2..gap * 2, costs(), 0..2_usize), 200..1_500)
    });
    (0..limits().len(), rungs, 1..3_usize, calls).prop_map(|(limit, rung, busy, calls)| Case {
        limit,
        rung,
        busy,
        calls,
    })
}

impl Fleet {
    async fn costs(&self, node: usize, cost: u64) -> Verdict {
        let query = Query::new("shop").entry("user", "alice");
        let query = query.cost(Cost::new(cost).unwrap());
        let verdict = self.nodes[node].try_acquire(&query).await.unwrap();
        self.settles().await;
        verdict
    }

    /// Background tasks run.
    async fn settles(&self) {
        for _ in 0..4 {
            tokio::task::yield_now().await;
        }
    }

    /// Answer to a call that asks the store now.
    async fn known(&self) -> Known {
        let query = Query::new("shop").entry("user", "alice");
        let peeked = self.nodes[0].peek(&query).await.unwrap();
        let at = self.clock_now();
        Known {
            at,
            left: peeked.remaining.unwrap(),
            rest: at.saturating_add(peeked.reset_after.unwrap()),
        }
    }
}

/// Remainder at the store at a time, and the instant at which the key would be at rest.
#[derive(Clone, Copy, Debug)]
struct Known {
    at: Monotonic,
    left: u64,
    rest: Monotonic,
}

/// A key is at rest when a caller is told, by what the store had known.
fn rest_was_known(known: &[Known], told: Monotonic, slack: Duration, case: &Case) {
    let rests = || known.iter().map(|known| known.rest);
    let (least, most) = (rests().min().unwrap(), rests().max().unwrap());
    assert!(
        told.saturating_add(slack) >= least && told <= most.saturating_add(slack),
        "at rest at {told:?}, and not from {least:?} to {most:?}: {case:?}"
    );
}

impl Fleet {
    /// Wait of a call of this cost by the store's own answer.
    async fn exact_wait(&self, cost: u64) -> Duration {
        let query = Query::new("shop").entry("user", "alice");
        let query = query.cost(Cost::new(cost).unwrap());
        let peeked = self.nodes[0].peek(&query).await.unwrap();
        match peeked.is_allow() {
            true => Duration::ZERO,
            false => after(&peeked),
        }
    }
}

/// A caller who waits as long as it is told, while nobody else asks: what it is told at last. Adds to `known` what
/// was left before each call.
async fn wait_as_told(
    fleet: &Fleet,
    (cost, told): (u64, Duration),
    slack: Duration,
    known: &mut Vec<Known>,
    case: &Case,
) -> Verdict {
    let begun = fleet.clock_now();
    let mut wait = told;
    loop {
        fleet.clock.advance(wait);
        known.push(fleet.known().await);
        let verdict = fleet.costs(0, cost).await;
        if verdict.is_allow() {
            return verdict;
        }
        let waited = fleet.clock_now().since(begun);
        assert!(
            waited <= told + slack,
            "told {told:?}, refused after {waited:?}: cost {cost}, {case:?}"
        );
        wait = after(&verdict);
    }
}

/// Checks that the key is at rest, as the last caller was told, after that time without calls.
async fn rests_as_told(fleet: &Fleet, told: &Verdict, slack: Duration, case: &Case) {
    let told = told.reset_after.unwrap();
    let step = Duration::from_millis(10);
    let begun = fleet.clock_now();
    while fleet.clock_now().since(begun) < told + slack {
        fleet.clock.advance(step);
        fleet.nodes[0].store().strict().give_back_surplus().await;
        fleet.settles().await;
    }
    let query = Query::new("shop").entry("user", "alice");
    let peeked = fleet.nodes[0].peek(&query).await.unwrap();
    let rest = peeked.reset_after.unwrap();
    assert!(
        rest.is_zero(),
        "told {told:?}, and {rest:?} are left: {case:?}"
    );
}

fn after(verdict: &Verdict) -> Duration {
    let wait = match verdict.retry_after {
        Some(RetryAfter::After(wait)) => Some(wait),
        _ => None,
    };
    wait.expect("it is not refused for ever")
}

/// By how much a wait may be wrong, one for the end of a window, and the time to rest.
fn slacks(limit: &Limit, production: Duration, rung: Rung) -> (Duration, Duration, Duration) {
    let slack = PAUSE + production;
    // When a window ends is the same for everybody, whoever uses it.
    let of_end = match limit.algorithm() {
        Algorithm::FixedWindow(_) => PAUSE,
        _ => slack,
    };
    // What is not charged yet may begin the next window.
    let is_synced = matches!(rung, Rung::Synced(_));
    (slack, of_end, if is_synced { slack } else { of_end })
}

/// The remainder equals what the store had known, and what the node holds.
fn remaining_was_known(
    known: &[Known],
    (before, held): (Known, u64),
    (verdict, cost): (&Verdict, u64),
    case: &Case,
) {
    let remaining = verdict.remaining.unwrap();
    let lefts = || known.iter().map(|known| known.left);
    // Alone it knows what is left; beside another node, what was left when the store answered.
    let most = match case.busy {
        1 => before.left,
        _ => lefts().max().unwrap(),
    };
    let most = most + held + BOUND;
    assert!(remaining <= most, "{remaining} of {most}: {case:?}");
    let least = lefts().min().unwrap().saturating_sub(cost + BOUND);
    assert!(
        !verdict.is_allow() || remaining >= least,
        "{remaining} of at least {least}: {case:?}"
    );
}

/// Returns how often a caller waited as it was told.
async fn run(case: Case) -> u32 {
    let (limit, production) = limits().swap_remove(case.limit);
    let (slack, of_end, of_rest) = slacks(&limit, production, case.rung);
    let mut rule = rule("per-user", limit, &["user"]);
    rule.policy.rung = case.rung;
    let fleet = Fleet::new(2, &[rule]);
    // The fleet begins with a minute, and calls go on for some seconds: so it ends meanwhile.
    fleet.clock.advance(Duration::from_secs(58));
    // What is known is older by the time between two calls, at most.
    let age = PAUSE + Duration::from_millis(10);
    let age = match case.rung {
        Rung::Leased(_) => LIFE + age,
        _ => age,
    };
    let (mut refused, mut waits, mut known) = (0, 0, Vec::new());
    let mut last = None;
    for (gap, cost, node) in &case.calls {
        fleet.clock.advance(Duration::from_micros(*gap));
        let now = fleet.clock_now();
        let mut waited = None;
        let (before, held) = (fleet.known().await, fleet.held(0));
        known.retain(|known: &Known| now.since(known.at) <= age);
        known.push(before);
        let node = node % case.busy;
        let verdict = fleet.costs(node, *cost).await;
        if node == 0 {
            remaining_was_known(&known, (before, held), (&verdict, *cost), &case);
        }
        if node == 0 && !verdict.is_allow() {
            refused += 1;
            let (told, exact) = (after(&verdict), fleet.exact_wait(*cost).await);
            // Units of the window may have come back since.
            let slack = if exact.is_zero() { slack } else { of_end };
            assert!(
                told <= exact + slack,
                "told {told:?}, the store {exact:?}: {case:?}"
            );
            // To wait for each would take too long.
            if refused % 16 == 1 {
                waits += 1;
                let asked = (*cost, after(&verdict));
                waited = Some(wait_as_told(&fleet, asked, of_rest, &mut known, &case).await);
            }
        }
        // An answer is known from then on, until more comes back.
        known.push(fleet.known().await);
        if node == 0 {
            let told = now.saturating_add(verdict.reset_after.unwrap());
            rest_was_known(&known, told, of_rest, &case);
        }
        last = Some(waited.unwrap_or(verdict));
        for node in &fleet.nodes {
            node.store().strict().give_back_surplus().await;
        }
    }
    // What another server charged since the last answer is not known.
    if let Some(told) = last.filter(|_| case.busy == 1) {
        rests_as_told(&fleet, &told, of_rest, &case).await;
    }
    waits
}

#[test]
fn waits_suffice_and_what_remains_could_be_admitted() {
    let waited = Cell::new(0);
    let mut runner = TestRunner::new(ProptestConfig::with_cases(64));
    let outcome = runner.run(&cases(), |case| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build();
        waited.set(waited.get() + runtime.unwrap().block_on(run(case)));
        Ok(())
    });
    outcome.unwrap();
    assert!(waited.get() > 100, "only {} calls waited", waited.get());
}
