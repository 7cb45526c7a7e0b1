//! Holds on every algorithm, compared with the oracle: reserved, settled, cancelled and waited for.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any};
use proptest::{prop_oneof, proptest};
use quell_core::actual::CostOrigin;
use quell_core::algorithm::At;
use quell_core::charge::{self, Charge, Entry, LimitSet};
use quell_core::claim::{self, Claim, ClaimOutcome, WaitLimits};
use quell_core::cost::Cost;
use quell_core::decision::{Decision, Outcome, RetryAfter};
use quell_core::end_hold::{self, EndOutcome, Ending};
use quell_core::hold::HoldId;
use quell_core::time::Now;

use crate::bench::Bench;
use crate::bounds::every_interval_is_bounded;
use crate::calendar;
use crate::config;
use crate::kind::{Kind, SECOND, kinds};
use crate::oracle::{Admission, Ledger, Wait};
use crate::truths::NANO;

pub(crate) const START: u64 = 1_790_000_000 * SECOND;

pub(crate) fn id(name: u64) -> HoldId {
    HoldId::new("test", &format!("hold-{name}")).unwrap()
}

impl Bench {
    fn charge(&self, cost: u64) -> Charge<'_> {
        let cost = Cost::new(cost).unwrap();
        let set = LimitSet::ad_hoc(b"key", &self.active, cost);
        let mut charge = set.charges()[0].clone();
        if self.active.limit.calendar().is_some() {
            charge.edges = Some((self.edges)(self.now));
        }
        charge
    }

    pub(crate) fn claim(
        &mut self,
        name: u64,
        cost: u64,
        hold: Option<Duration>,
        wait: Option<Duration>,
    ) -> ClaimOutcome {
        self.claim_patiently(name, cost, hold, wait.map(WaitLimits::new))
    }

    pub(crate) fn claim_patiently(
        &mut self,
        name: u64,
        cost: u64,
        hold: Option<Duration>,
        wait: Option<WaitLimits>,
    ) -> ClaimOutcome {
        let mut state = self.state.clone();
        let charge = self.charge(cost);
        let entry = Entry {
            charge: &charge,
            state: &mut state,
        };
        let id = id(name);
        let claim = Claim {
            id: &id,
            hold,
            wait,
            is_named: true,
            pending: None,
        };
        let claimed = claim::claim(Now::from_nanos(self.now), &claim, &mut [entry]);
        self.state = state;
        claimed.expect("there is room")
    }

    pub(crate) fn reserve(&mut self, name: u64, cost: u64) -> Decision {
        self.claim(name, cost, Some(Duration::MAX), None).decisions[0]
    }

    pub(crate) fn end(&mut self, name: u64, ending: Ending) -> EndOutcome {
        let (at, limit) = (self.at_now(), &self.active.limit);
        end_hold::end(
            &mut self.state,
            limit,
            &at,
            &id(name),
            &ending,
            CostOrigin::ONLY,
        )
    }

    pub(crate) fn at_now(&self) -> At {
        At {
            now: Now::from_nanos(self.now),
            since: self.active.since,
            edges: self.charge(1).edges,
        }
    }

    pub(crate) fn ban(&mut self, length: Duration) {
        let at = self.at_now();
        charge::ban(&mut self.state, &self.active.limit, &at, length);
    }

    /// The turns of those that wait, by instant.
    fn turns(&mut self) -> Vec<u64> {
        let at = self.at_now();
        let views = self.state.hold_views(&self.active.limit, &at).into_iter();
        let waiting = views.filter(|view| view.is_waiting);
        let turns = waiting.map(|view| self.now + u64::try_from(view.left.as_nanos()).unwrap());
        turns.collect()
    }

    pub(crate) fn advance(&mut self, name: u64, cost: u64) -> Option<(Duration, Vec<HoldId>)> {
        let mut state = self.state.clone();
        let charge = self.charge(cost);
        let entry = Entry {
            charge: &charge,
            state: &mut state,
        };
        let advanced = claim::advance(Now::from_nanos(self.now), &id(name), &mut [entry]);
        self.state = state;
        advanced
    }
}

/// A caller's next action, after a gap.
#[derive(Clone, Debug)]
enum Deed {
    Acquire(u64),
    Reserve(u64),
    /// The hold of this index costs this share of its estimate, in percent.
    Settle(usize, u64),
    Cancel(usize),
}

fn deeds() -> impl Strategy<Value = Vec<(u64, Deed)>> {
    // Shares of the full refill, in thousandths.
    let gaps = prop_oneof![3 => 0..=1_u64, 3 => 0..=150_u64, 1 => 0..=1_500_u64];
    let costs = || prop_oneof![Just(1_u64), Just(3), Just(10)];
    let deed = prop_oneof![
        3 => costs().prop_map(Deed::Acquire),
        3 => costs().prop_map(Deed::Reserve),
        2 => (any::<usize>(), 0..=100_u64).prop_map(|(hold, share)| Deed::Settle(hold, share)),
        1 => any::<usize>().prop_map(Deed::Cancel),
    ];
    vec((gaps, deed), 1..=40)
}

/// This many tenths of the limit, at least 1.
fn units(bench: &Bench, tenths: u64) -> u64 {
    let max = u128::from(bench.active.limit.max());
    u64::try_from((max * u128::from(tenths) / 10).max(1)).unwrap()
}

fn pass(bench: &mut Bench, thousandths: u64) {
    let full = bench.active.limit.full_refill().as_nanos();
    let gap = full * u128::from(thousandths) / 1_000;
    bench.now = bench
        .now
        .saturating_add(u64::try_from(gap).unwrap_or(u64::MAX / 4));
}

proptest! {
    #![proptest_config(config(1_500))]

    /// Whatever is given back, no call is admitted that the true use would not admit: a list of what
    /// was used in the end, each entry from the time of its reservation.
    #[test]
    fn what_was_truly_used_is_bounded(kind in kinds(), deeds in deeds()) {
        let mut bench = Bench::new(&kind, START, START);
        let mut truth = Truth::default();
        for (gap, deed) in deeds {
            pass(&mut bench, gap);
            if bench.now > START + 300 * 365 * 86_400 * SECOND {
                break;
            }
            truth.step(&mut bench, &kind, deed);
        }
        let used = truth.used.iter().filter(|(_, cost)| *cost > 0);
        let used: Vec<_> = used.map(|(at, cost)| Admission { at: *at, cost: *cost }).collect();
        every_interval_is_bounded(&kind, &used);
    }

    /// An immediate cancel leaves nothing. A settlement for less leaves the true use, as long as
    /// nothing else happened.
    #[test]
    fn what_is_given_back_at_once_was_never_taken(
        kind in kinds(),
        before in 0..=9_u64,
        tenths in 1..=10_u64,
        share in 0..=100_u64,
        gap in 0..=2_000_u64,
    ) {
        let mut bench = Bench::new(&kind, START, START);
        bench.acquire(units(&bench, before));
        pass(&mut bench, 50);
        let cost = units(&bench, tenths);
        if !bench.peek(cost).outcome.is_allow() {
            return Ok(());
        }
        let truth = u64::try_from(u128::from(cost) * u128::from(share) / 100).unwrap();
        let mut twin = bench.clone();
        if truth > 0 {
            twin.acquire(truth);
        }
        bench.reserve(1, cost);
        pass(&mut bench, gap);
        pass(&mut twin, gap);
        if bench.now > START + 200 * 365 * 86_400 * SECOND {
            // Too near the end of time for a hold.
            return Ok(());
        }
        assert!(bench.end(1, Ending::Settle(truth.into())).found);
        assert_eq!(bench.peek(1), twin.peek(1));
        assert!(!bench.end(1, Ending::Settle(truth.into())).found, "it is settled");
        assert_eq!(bench.peek(1), twin.peek(1), "once");
    }

    /// Use above the reservation is owed: calls are refused with nothing left, until exactly
    /// `retry_after`.
    #[test]
    fn a_debt_is_refused_until_it_is_repaid(
        kind in kinds(),
        tenths in 1..=10_u64,
        times in 2..=50_u64,
        gap in 0..=800_u64,
    ) {
        let mut bench = Bench::new(&kind, START, START);
        let mut twin = bench.clone();
        let cost = units(&bench, tenths);
        twin.acquire(cost);
        if !bench.reserve(1, cost).outcome.is_allow() {
            return Ok(());
        }
        pass(&mut bench, gap);
        pass(&mut twin, gap);
        let max = bench.active.limit.max();
        if max > u64::MAX / 1_000 || bench.now > START + 200 * 365 * 86_400 * SECOND {
            return Ok(());
        }
        let is_window = matches!(kind, Kind::Calendar { .. } | Kind::Segments { .. });
        if is_window && twin.time_to_rest().is_zero() {
            // A window that is over owes nothing.
            return Ok(());
        }
        bench.end(1, Ending::Settle(cost.saturating_add(max).saturating_mul(times).into()));
        let decision = bench.acquire(1);
        assert_eq!(decision.remaining, 0);
        let Outcome::Deny(RetryAfter::After(wait)) = decision.outcome else {
            panic!("{decision:?}");
        };
        assert!(decision.reset_after >= wait);
        if let (Some(early), Some(mut late)) = (bench.after(wait - NANO), bench.after(wait)) {
            assert_eq!(early.peek(1).outcome, Outcome::Deny(RetryAfter::After(NANO)));
            assert!(late.acquire(1).outcome.is_allow());
        }
        if let Some(rested) = bench.after(decision.reset_after) {
            assert_eq!(rested.time_to_rest(), Duration::ZERO);
        }
    }

    /// First come, first served: turns come in order, each when the oracle has room behind all
    /// before it. Meanwhile a caller that does not wait is refused for exactly as long as its turn
    /// would take.
    #[test]
    fn those_who_wait_go_in_turn(
        kind in kinds(),
        costs in vec(1..=10_u64, 1..=12),
        gaps in vec(0..=60_u64, 12),
    ) {
        let mut bench = Bench::new(&kind, START, START);
        let mut ledger = Ledger::new(kind, START);
        let mut last = 0;
        for (name, (tenths, gap)) in costs.into_iter().zip(gaps).enumerate() {
            pass(&mut bench, gap);
            if bench.now > START + 200 * 365 * 86_400 * SECOND {
                break;
            }
            let cost = units(&bench, tenths);
            let arrived = last.max(bench.now);
            let expected = match ledger.wait(arrived, cost) {
                Wait::None => arrived,
                Wait::After(wait) => u64::try_from(u128::from(arrived) + wait).unwrap_or(u64::MAX),
                Wait::Never => break,
            };
            let is_known = !kind.is_calendar() || expected < calendar::edges(bench.now).next_end.as_nanos();
            if !is_known || expected > START + 400 * 365 * 86_400 * SECOND {
                break;
            }
            let refused = bench.peek(cost).retry_after();
            let wait = Duration::from_nanos(expected - bench.now);
            let expected_refusal = (!wait.is_zero()).then_some(RetryAfter::After(wait));
            assert_eq!(refused, expected_refusal);
            // The delay of a leaky bucket is added to it.
            let most = wait.saturating_add(Duration::from_secs(u64::MAX / 4));
            let claimed = bench.claim(name as u64, cost, None, Some(most));
            assert_eq!(claimed.wait.unwrap_or_default(), wait);
            if !wait.is_zero() {
                assert_eq!(bench.peek(1).remaining, 0, "somebody waits");
                let mut hurried = bench.clone();
                let short = hurried.claim(99, cost, None, Some(wait - NANO));
                assert!(!short.decisions[0].outcome.is_allow());
                assert_eq!(hurried, bench, "who is refused leaves nothing");
            }
            ledger.admit(expected, cost);
            last = expected;
        }
    }

    /// A ban moves the turns that would come before its end behind it, in their order and as early as the
    /// oracle allows; who comes during the ban queues behind them.
    #[test]
    fn no_turn_comes_during_a_ban(
        kind in kinds(),
        costs in vec(1..=10_u64, 1..=8),
        late in 1..=10_u64,
        gap in 0..=60_u64,
        thousandths in 1..=3_000_u64,
    ) {
        let mut bench = Bench::new(&kind, START, START);
        // The delay of the largest buckets included.
        let most = Some(Duration::MAX);
        let mut waiting = Vec::new();
        let mut ledger = Ledger::new(kind, START);
        for (name, tenths) in costs.into_iter().enumerate() {
            let cost = units(&bench, tenths);
            let claimed = bench.claim(name as u64, cost, None, most);
            if !claimed.decisions[0].outcome.is_allow() {
                break;
            }
            let turn = START.saturating_add(nanos(claimed.wait.unwrap_or_default()));
            waiting.push((turn, cost));
        }
        pass(&mut bench, gap);
        let begun = bench.now;
        let thousandth = nanos(bench.active.limit.full_refill()) / 1_000;
        let until = begun.saturating_add(thousandth.saturating_mul(thousandths).max(1));
        let far = START + 200 * 365 * 86_400 * SECOND;
        let is_far = |(turn, _): &(u64, u64)| *turn > far;
        if until > far || waiting.iter().any(is_far) || (kind.is_calendar() && until >= calendar::edges(begun).end.as_nanos()) {
            return Ok(());
        }
        bench.ban(Duration::from_nanos(until - begun));
        let mut last = until;
        let mut expected = Vec::new();
        waiting.push((until, units(&bench, late)));
        for (turn, cost) in waiting {
            if turn <= begun && expected.is_empty() {
                ledger.admit(turn, cost);
                continue;
            }
            last = last.max(turn);
            let wait = match ledger.wait(last, cost) {
                Wait::None => 0,
                Wait::After(wait) => wait,
                Wait::Never => return Ok(()),
            };
            last = u64::try_from(u128::from(last) + wait).unwrap_or(u64::MAX);
            if last > far || (kind.is_calendar() && last >= calendar::edges(begun).next_end.as_nanos()) {
                return Ok(());
            }
            ledger.admit(last, cost);
            expected.push(last);
        }
        let cost = units(&bench, late);
        let wait = Duration::from_nanos(last - begun);
        let mut hurried = bench.clone();
        let refused = hurried.claim_patiently(99, cost, None, Some(WaitLimits {
            turn: wait - NANO,
            in_all: Duration::MAX,
        }));
        assert!(refused.decisions[0].banned && !refused.decisions[0].outcome.is_allow());
        let claimed = bench.claim(98, cost, None, most);
        assert_eq!(claimed.wait, Some(wait), "a caller that comes during the ban");
        assert!(!claimed.decisions[0].banned);
        assert_eq!(bench.turns(), expected);
        bench.now = until - 1;
        assert_eq!(bench.turns(), expected, "nobody went");
        bench.now = last;
        assert_eq!(bench.turns(), [0; 0], "all went");
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A list of what was truly used.
#[derive(Default)]
struct Truth {
    used: Vec<(u64, u64)>,
    holds: Vec<(u64, usize, u64)>,
    names: u64,
}

impl Truth {
    fn ledger(&self, kind: &Kind) -> Ledger {
        let mut ledger = Ledger::new(*kind, START);
        for (at, cost) in self.used.iter().filter(|(_, cost)| *cost > 0) {
            ledger.admit(*at, *cost);
        }
        ledger
    }

    /// Returns true if the true usage would admit the cost. The place of windows and ticks depends on the
    /// first charge, which a cancel undoes, so for these only the final bound is checked.
    fn fits(&self, kind: &Kind, now: u64, cost: u64) -> bool {
        let is_anchored = matches!(kind, Kind::Fixed { .. } | Kind::Refill { .. });
        is_anchored || self.ledger(kind).wait(now, cost) == Wait::None
    }

    fn step(&mut self, bench: &mut Bench, kind: &Kind, deed: Deed) {
        match deed {
            Deed::Acquire(tenths) => {
                let cost = units(bench, tenths);
                let fits = self.fits(kind, bench.now, cost);
                if bench.acquire(cost).outcome.is_allow() {
                    assert!(fits, "let in above the bound");
                    self.used.push((bench.now, cost));
                }
            }
            Deed::Reserve(tenths) => {
                let cost = units(bench, tenths);
                let fits = self.fits(kind, bench.now, cost);
                self.names += 1;
                if bench.reserve(self.names, cost).outcome.is_allow() {
                    assert!(fits, "let in above the bound");
                    self.holds.push((self.names, self.used.len(), cost));
                    self.used.push((bench.now, cost));
                }
            }
            Deed::Settle(index, share) => {
                self.end(bench, index, share, |units| Ending::Settle(units.into()));
            }
            Deed::Cancel(index) => self.end(bench, index, 0, |_| Ending::Cancel),
        }
    }

    fn end(&mut self, bench: &mut Bench, index: usize, share: u64, say: impl Fn(u64) -> Ending) {
        if self.holds.is_empty() {
            return;
        }
        let (name, place, cost) = self.holds.remove(index % self.holds.len());
        let truth = u64::try_from(u128::from(cost) * u128::from(share) / 100).unwrap();
        let found = bench.end(name, say(truth)).found;
        if found {
            self.used[place].1 = truth;
        }
    }
}

impl PartialEq for Bench {
    fn eq(&self, other: &Self) -> bool {
        self.state == other.state && self.now == other.now
    }
}
