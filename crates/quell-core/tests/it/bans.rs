//! Bans: a property compared with a plain list of refusals, and a table of the rules.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy};
use proptest::{prop_oneof, proptest};
use quell_core::ban::Ban;
use quell_core::charge::{self, Operation};
use quell_core::decision::{Decision, Outcome, RetryAfter};
use quell_core::limit::Limit;
use quell_core::limit_error::LimitError;
use quell_core::time::{Monotonic, Now};

use crate::bench::{Bench, duration, outcome};
use crate::config;
use crate::kind::{HOUR, MINUTE, SECOND, kinds};
use crate::oracle::{Ledger, Wait};
use crate::trace::{Call, drive, steps};
use crate::truths::retry_after_is_true;

/// The numbers of a ban, and all refusals that count towards it.
#[derive(Clone, Debug)]
struct Offender {
    after: usize,
    within: u64,
    lengths: Vec<u64>,
    refusals: Vec<u64>,
}

impl Offender {
    fn ban(&self) -> Ban {
        let lengths = self.lengths.iter().copied().map(Duration::from_nanos);
        let after = u32::try_from(self.after).unwrap();
        let within = Duration::from_nanos(self.within);
        Ban::new(after, Some(within), lengths.collect()).unwrap()
    }

    /// The end of the last ban, computed from all refusals.
    fn banned_until(&self) -> u64 {
        let (mut level, mut length, mut quiet_since, mut until) = (0, 0, 0, 0);
        let mut counted: Vec<u64> = Vec::new();
        for &refusal in &self.refusals {
            while level > 0 && refusal - quiet_since >= length {
                level -= 1;
                quiet_since += length;
            }
            quiet_since = refusal;
            counted.push(refusal);
            counted.retain(|earlier| refusal - earlier < self.within);
            if counted.len() == self.after {
                counted.clear();
                length = self.lengths[level.min(self.lengths.len() - 1)];
                level = (level + 1).min(self.lengths.len());
                until = refusal + length;
                quiet_since = until;
            }
        }
        until
    }
}

fn offenders() -> impl Strategy<Value = Offender> {
    let lengths = prop_oneof![1..=20_u64, Just(SECOND), Just(MINUTE), 1..=HOUR];
    let within = prop_oneof![1..=20_u64, Just(SECOND), 1..=HOUR];
    let numbers = (1..=4_usize, within, vec(lengths, 1..=4));
    numbers.prop_map(|(after, within, lengths)| Offender {
        after,
        within,
        lengths,
        refusals: Vec::new(),
    })
}

/// Compares an answer with both lists.
fn check(ledger: &mut Ledger, offender: &mut Offender, call: &Call) {
    let by_limit = ledger.wait(call.at, call.cost);
    let was_banned = offender.banned_until() > call.at;
    let is_acquire = call.operation == Operation::Acquire;
    if by_limit != Wait::None && !was_banned && is_acquire {
        offender.refusals.push(call.at);
    }
    if by_limit == Wait::None && !was_banned && is_acquire {
        ledger.admit(call.at, call.cost);
    }
    let left = offender.banned_until().saturating_sub(call.at);
    let wait = match by_limit {
        Wait::Never => Wait::Never,
        Wait::After(nanos) => Wait::After(nanos.max(u128::from(left))),
        Wait::None if left > 0 => Wait::After(u128::from(left)),
        Wait::None => Wait::None,
    };
    let answer = &call.decision;
    assert_eq!(
        answer.outcome,
        outcome(wait),
        "{call:?} {offender:?} {ledger:?}"
    );
    assert_eq!(answer.banned, left > 0);
    let remaining = if left > 0 { 0 } else { ledger.free(call.at) };
    assert_eq!(answer.remaining, remaining);
    let reset = ledger.reset(call.at).max(u128::from(left));
    assert_eq!(answer.reset_after, duration(reset));
}

proptest! {
    #![proptest_config(config(700))]

    #[test]
    fn bans_are_the_oracles(kind in kinds(), offender in offenders(), steps in steps(50)) {
        let mut offender = offender;
        let now = 1_790_000_000_000_000_000;
        let mut bench = Bench::with_ban(&kind, offender.ban(), now);
        let mut ledger = Ledger::new(kind, now);
        drive(&mut bench, &steps, |bench, call| {
            check(&mut ledger, &mut offender, call);
            if call.operation == Operation::Acquire {
                retry_after_is_true(bench, call);
            }
        });
        // Nothing is remembered past the time to rest.
        if let Some(mut rested) = bench.after(bench.time_to_rest()) {
            assert!(rested.time_to_rest().is_zero());
            let mut fresh = rested.fresh();
            for call in drive(&mut rested, &steps, |_, _| {}) {
                fresh.now = call.at;
                assert_eq!(fresh.ask(call.operation, call.cost), call.decision);
            }
        }
    }
}

/// One call per minute; the third refusal within ten minutes bans for 1 m, then 10 m, then 1 h.
fn strict() -> Bench {
    let minutes = |count: u64| Duration::from_secs(count * 60);
    let ban = Ban::new(
        3,
        Some(minutes(10)),
        vec![minutes(1), minutes(10), minutes(60)],
    );
    let limit = Limit::fixed_window(1, minutes(1)).build().unwrap();
    Bench::from_limit(limit.with_ban(ban.unwrap()), false, 0, 0)
}

/// Gets three refusals at one instant. Returns the third answer.
fn offend(bench: &mut Bench) -> Decision {
    bench.acquire(1);
    for _ in 0..2 {
        let refused = bench.acquire(1);
        assert!(
            !refused.outcome.is_allow() && !refused.banned,
            "{refused:?}"
        );
    }
    bench.acquire(1)
}

fn denied(nanos: u64) -> Outcome {
    Outcome::Deny(RetryAfter::After(Duration::from_nanos(nanos)))
}

#[test]
fn the_third_refusal_already_says_banned() {
    let mut bench = strict();
    let third = offend(&mut bench);
    assert_eq!(
        (third.outcome, third.banned, third.remaining),
        (denied(MINUTE), true, 0)
    );
    assert_eq!(third.reset_after, Duration::from_secs(60));
    bench.now = MINUTE - 1;
    let during = bench.acquire(1);
    assert_eq!((during.outcome, during.banned), (denied(1), true));
    bench.now = MINUTE;
    let after = bench.acquire(1);
    assert_eq!((after.outcome, after.banned), (Outcome::Allow, false));
}

#[test]
fn a_ban_clears_the_count() {
    let mut bench = strict();
    offend(&mut bench);
    bench.now = MINUTE;
    assert!(bench.acquire(1).outcome.is_allow());
    assert!(
        !bench.acquire(1).banned,
        "the first refusal counts as the first"
    );
    assert!(!bench.acquire(1).banned);
    assert!(bench.acquire(1).banned);
}

#[test]
fn bans_escalate_and_the_last_repeats() {
    let mut bench = strict();
    for length in [MINUTE, 10 * MINUTE, HOUR, HOUR, HOUR] {
        assert_eq!(offend(&mut bench).outcome, denied(length));
        bench.now += length;
    }
}

#[test]
fn quiet_times_as_long_as_the_last_ban_step_down() {
    // Two bans, of 1 m and 10 m; then a quiet time of this length; then the next ban lasts this
    // long.
    for (quiet, next) in [
        (10 * MINUTE - 1, HOUR),
        (10 * MINUTE, 10 * MINUTE),
        (20 * MINUTE - 1, 10 * MINUTE),
        (20 * MINUTE, MINUTE),
        (500 * MINUTE, MINUTE),
    ] {
        let mut bench = strict();
        offend(&mut bench);
        bench.now += MINUTE;
        offend(&mut bench);
        bench.now += 10 * MINUTE + quiet;
        assert_eq!(
            offend(&mut bench).outcome,
            denied(next),
            "quiet for {quiet}"
        );
    }
}

/// Level 3 after three bans; two quiet hours are two steps, whether an allowed call notices them or
/// not.
#[test]
fn no_quiet_time_counts_twice() {
    let mut bench = strict();
    for length in [MINUTE, 10 * MINUTE, HOUR] {
        offend(&mut bench);
        bench.now += length;
    }
    bench.now += 2 * HOUR;
    assert_eq!(bench.acquire(1).outcome, Outcome::Allow);
    bench.now += MINUTE;
    assert_eq!(offend(&mut bench).outcome, denied(10 * MINUTE));
}

#[test]
fn a_refusal_interrupts_the_quiet_time() {
    let mut bench = strict();
    offend(&mut bench);
    bench.now += MINUTE + 59 * SECOND;
    bench.acquire(1);
    bench.acquire(1);
    bench.now += 59 * SECOND;
    // The refusal 59 s ago counts as well.
    bench.acquire(1);
    assert_eq!(bench.acquire(1).outcome, denied(10 * MINUTE));
}

#[test]
fn refusals_count_for_as_long_as_within() {
    let mut bench = strict();
    bench.acquire(1);
    bench.acquire(1);
    bench.now = 10 * MINUTE;
    bench.acquire(1);
    bench.acquire(1);
    assert!(!bench.acquire(1).banned, "the first refusal was 10 m ago");
    let mut bench = strict();
    bench.acquire(1);
    bench.acquire(1);
    bench.now = 10 * MINUTE - 1;
    bench.acquire(1);
    bench.acquire(1);
    assert!(bench.acquire(1).banned, "all three within 10 m");
}

#[test]
fn peeks_and_calls_during_a_ban_do_not_count() {
    let mut bench = strict();
    bench.acquire(1);
    for _ in 0..10 {
        assert!(!bench.peek(1).banned);
    }
    bench.acquire(1);
    bench.acquire(1);
    assert!(bench.acquire(1).banned);
    for _ in 0..10 {
        bench.now += SECOND;
        assert!(bench.acquire(1).banned);
    }
    bench.now = MINUTE;
    assert!(
        bench.acquire(1).outcome.is_allow(),
        "no longer than the first said"
    );
    assert!(!bench.acquire(1).banned, "and nothing was counted");
}

#[test]
fn a_cost_that_never_fits_counts_as_a_refusal() {
    let mut bench = strict();
    bench.acquire(2);
    bench.acquire(2);
    let third = bench.acquire(2);
    assert_eq!(
        (third.outcome, third.banned),
        (Outcome::Deny(RetryAfter::Never), true)
    );
    assert_eq!(bench.peek(1).outcome, denied(MINUTE));
}

#[test]
fn use_survives_a_ban_and_the_later_wait_counts() {
    let ban = Ban::new(1, None, vec![Duration::from_secs(10)]).unwrap();
    let limit = Limit::fixed_window(5, Duration::from_secs(60))
        .build()
        .unwrap();
    let mut bench = Bench::from_limit(limit.with_ban(ban), false, 0, 0);
    bench.acquire(4);
    let refused = bench.acquire(2);
    assert!(refused.banned);
    assert_eq!(
        refused.outcome,
        denied(MINUTE),
        "the window ends after the ban"
    );
    assert_eq!(
        bench.peek(1).outcome,
        denied(10 * SECOND),
        "one unit fits once the ban ends"
    );
    assert_eq!(bench.peek(1).reset_after, Duration::from_secs(60));
    bench.now = 10 * SECOND;
    let after = bench.peek(1);
    assert_eq!((after.outcome, after.remaining), (Outcome::Allow, 1));
    bench.now = 55 * SECOND;
    assert_eq!(
        bench.acquire(2).outcome,
        denied(10 * SECOND),
        "the ban ends after the window"
    );
}

#[test]
fn a_ban_by_hand_stands_on_any_key_and_can_be_lifted() {
    let limit = Limit::per_minute(10).build().unwrap();
    let mut bench = Bench::from_limit(limit, false, 0, 100 * MINUTE);
    bench.acquire(4);
    let now = Now::from_nanos(bench.now);
    bench.ban(Duration::from_secs(3_600));
    assert_eq!(bench.acquire(1).outcome, denied(HOUR));
    assert!(bench.peek(1).banned);
    assert_eq!(bench.time_to_rest(), Duration::from_secs(3_600));
    assert!(charge::lift(&mut bench.state, now));
    assert!(!charge::lift(&mut bench.state, now));
    assert_eq!(bench.peek(1).remaining, 6, "what was used stays");
}

#[test]
fn a_ban_by_hand_outlasts_no_clock_set_back() {
    let limit = Limit::per_minute(10).build().unwrap();
    let mut bench = Bench::from_limit(limit, false, 0, 100 * MINUTE);
    bench.ban(Duration::from_secs(60));
    bench.now -= HOUR;
    assert_eq!(bench.acquire(1).outcome, denied(MINUTE));
    bench.now += MINUTE;
    assert_eq!(bench.acquire(1).outcome, Outcome::Allow);
}

#[test]
fn time_goes_backwards() {
    let mut bench = strict();
    bench.now = 100 * MINUTE;
    offend(&mut bench);
    bench.now -= HOUR;
    assert_eq!(
        bench.acquire(1).outcome,
        denied(MINUTE),
        "no longer than the ban itself"
    );
    bench.now += MINUTE;
    assert_eq!(bench.acquire(1).outcome, Outcome::Allow);
}

#[test]
fn time_jumps_forward() {
    let mut bench = strict();
    offend(&mut bench);
    bench.now = u64::MAX / 2;
    assert_eq!(bench.peek(1).outcome, Outcome::Allow);
    assert_eq!(
        offend(&mut bench).outcome,
        denied(MINUTE),
        "and it is forgiven"
    );
}

#[test]
fn a_change_of_the_ban_keeps_use_and_a_standing_ban() {
    let mut bench = strict();
    offend(&mut bench);
    let without = Limit::fixed_window(1, Duration::from_secs(60))
        .build()
        .unwrap();
    bench.change(without, false);
    assert_eq!(
        bench.acquire(1).outcome,
        denied(MINUTE),
        "it stands until its end"
    );
    let until = bench.state.banned_for(Monotonic::from_nanos(bench.now));
    assert_eq!(until, Some(Duration::from_secs(60)));
    bench.now = MINUTE;
    assert_eq!(bench.acquire(1).outcome, Outcome::Allow);
    assert!(
        (0..5).all(|_| !bench.acquire(1).banned),
        "no ban is asked for any more"
    );
}

#[test]
fn a_ban_alone_changes_no_use() {
    let ban = Ban::new(1, None, vec![Duration::from_secs(60)]).unwrap();
    let limit = Limit::per_minute(10).build().unwrap();
    let mut bench = Bench::from_limit(limit.clone(), false, 0, 0);
    bench.acquire(4);
    bench.now = SECOND;
    let before = bench.peek(1).reset_after;
    bench.change(limit.with_ban(ban), false);
    assert_eq!(bench.peek(1).reset_after, before, "to the nanosecond");
}

#[test]
fn impossible_bans_are_refused() {
    let minute = Duration::from_secs(60);
    let bad = |after, within, lengths: Vec<Duration>| Ban::new(after, within, lengths).unwrap_err();
    assert_eq!(bad(0, Some(minute), vec![minute]), LimitError::BanAfter);
    assert_eq!(bad(1_001, Some(minute), vec![minute]), LimitError::BanAfter);
    assert_eq!(bad(2, None, vec![minute]), LimitError::BanWithin);
    assert_eq!(
        bad(2, Some(Duration::ZERO), vec![minute]),
        LimitError::BanWithin
    );
    assert_eq!(bad(1, None, vec![]), LimitError::BanFor);
    assert_eq!(
        bad(1, None, vec![minute, Duration::ZERO]),
        LimitError::BanFor
    );
    assert_eq!(bad(1, None, vec![minute; 33]), LimitError::BanFor);
    assert!(Ban::new(1, None, vec![minute; 32]).is_ok());
}
