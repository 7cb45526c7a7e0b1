//! Sets: all limits of a query are charged or none is, with shadow limits among them.

use proptest::collection::vec;
use proptest::prelude::{Strategy, any};
use proptest::proptest;
use quell_core::charge::{Entry, LimitSet, Operation, decide};
use quell_core::cost::Cost;
use quell_core::decision::{Decision, RetryAfter};
use quell_core::descriptor::{Descriptor, Query};
use quell_core::limit::Limit;
use quell_core::time::Now;

use crate::bench::{Bench, duration, outcome};
use crate::calendar;
use crate::config;
use crate::kind::{Kind, SECOND, kinds};
use crate::oracle::{Ledger, Wait};
use crate::shop::{Shop, rule};
use crate::trace::{Amount, Gap, amounts, gaps, operations};

/// A limit of the set: its key, its list, and whether it is in shadow.
#[derive(Clone, Debug)]
struct Member {
    bench: Bench,
    ledger: Ledger,
    is_calendar: bool,
    shadow: bool,
}

/// A query to all members at once.
#[derive(Clone, Debug)]
struct Ask {
    gap: Gap,
    /// Index of the call whose numbers the gap is relative to.
    of: usize,
    amounts: Vec<Amount>,
    operation: Operation,
}

/// A query that was made.
#[derive(Clone, Debug)]
struct Asked {
    now: u64,
    costs: Vec<u64>,
    operation: Operation,
    decisions: Vec<Decision>,
}

const START: u64 = 1_790_000_000_000_000_000;

fn members() -> impl Strategy<Value = Vec<Member>> {
    let member = (kinds(), proptest::bool::weighted(0.25));
    let member = member.prop_map(|(kind, shadow): (Kind, bool)| Member {
        bench: Bench::new(&kind, START, START),
        ledger: Ledger::new(kind, START),
        is_calendar: kind.is_calendar(),
        shadow,
    });
    vec(member, 1..=5)
}

fn asks() -> impl Strategy<Value = Vec<Ask>> {
    let ask = (gaps(), any::<usize>(), vec(amounts(), 5), operations());
    let ask = ask.prop_map(|(gap, of, amounts, operation)| Ask {
        gap,
        of,
        amounts,
        operation,
    });
    vec(ask, 1..=30)
}

/// Asks all at once; peeks work on copies.
fn ask(members: &mut [Member], now: u64, costs: &[u64], operation: Operation) -> Vec<Decision> {
    let mut copies: Vec<Member> = members.to_vec();
    let members = match operation {
        Operation::Acquire => members,
        Operation::Peek => &mut copies,
    };
    let active: Vec<_> = members
        .iter()
        .map(|member| member.bench.active.clone())
        .collect();
    let sets: Vec<LimitSet<'_>> = active
        .iter()
        .zip(costs)
        .map(|(active, cost)| LimitSet::ad_hoc(b"k", active, Cost::new(*cost).unwrap()))
        .collect();
    let charges: Vec<_> = sets
        .iter()
        .zip(members.iter())
        .map(|(set, member)| {
            let mut charge = set.charges()[0].clone();
            charge.shadow = member.shadow;
            charge.edges = member.is_calendar.then(|| calendar::edges(now));
            charge
        })
        .collect();
    let mut entries: Vec<Entry<'_, '_>> = charges
        .iter()
        .zip(members.iter_mut())
        .map(|(charge, member)| Entry {
            charge,
            state: &mut member.bench.state,
        })
        .collect();
    let decisions = decide(Now::from_nanos(now), operation, &mut entries);
    for member in members {
        member.bench.now = now;
    }
    decisions
}

/// Computes every query from the lists, one limit at a time.
fn check(members: &mut [Member], asked: &Asked) {
    let Asked { now, costs, .. } = asked;
    let waits: Vec<Wait> = members
        .iter()
        .zip(costs)
        .map(|(member, cost)| member.ledger.wait(*now, *cost))
        .collect();
    let passes = members
        .iter()
        .zip(&waits)
        .all(|(member, wait)| member.shadow || *wait == Wait::None);
    for (index, member) in members.iter_mut().enumerate() {
        let (decision, wait) = (&asked.decisions[index], waits[index]);
        assert_eq!(decision.outcome, outcome(wait), "{index} of {asked:?}");
        let goes_on = passes && wait == Wait::None;
        let delay = if goes_on {
            member.ledger.delay(*now)
        } else {
            0
        };
        assert_eq!(decision.delay, duration(delay));
        if goes_on && asked.operation == Operation::Acquire {
            member.ledger.admit(*now, costs[index]);
        }
        assert_eq!(
            decision.remaining,
            member.ledger.free(*now),
            "{index} of {asked:?}"
        );
        assert_eq!(decision.reset_after, duration(member.ledger.reset(*now)));
    }
}

fn run(members: &mut [Member], asks: &[Ask]) -> Vec<Asked> {
    let mut all: Vec<Asked> = Vec::new();
    for query in asks {
        let of = query.of % members.len();
        let last = |index: usize| all.last().map(|asked| &asked.decisions[index]);
        let now = query.gap.from(&members[of].bench, last(of));
        let costs: Vec<u64> = members
            .iter()
            .enumerate()
            .map(|(index, member)| {
                let max = member.bench.active.limit.max();
                query.amounts[index].cost(max, last(index))
            })
            .collect();
        let decisions = ask(members, now, &costs, query.operation);
        let asked = Asked {
            now,
            costs,
            operation: query.operation,
            decisions,
        };
        check(members, &asked);
        the_longest_wait_is_true(members, &asked);
        all.push(asked);
    }
    all
}

/// The longest wait of the refusing limits is the wait of the whole query, to the nanosecond.
fn the_longest_wait_is_true(members: &[Member], asked: &Asked) {
    let denies = |(member, decision): (&Member, &Decision)| {
        let wait = decision.retry_after();
        wait.filter(|_| !member.shadow)
    };
    let longest = members
        .iter()
        .zip(&asked.decisions)
        .filter_map(denies)
        .max();
    let Some(RetryAfter::After(wait)) = longest else {
        return;
    };
    let Some(later) = u64::try_from(wait.as_nanos())
        .ok()
        .and_then(|wait| asked.now.checked_add(wait))
    else {
        return;
    };
    let passes = |now: u64| {
        let mut copies = members.to_vec();
        let decisions = ask(&mut copies, now, &asked.costs, Operation::Acquire);
        let passes =
            |(member, decision): (&Member, &Decision)| member.shadow || decision.outcome.is_allow();
        members.iter().zip(&decisions).all(passes)
    };
    assert!(passes(later), "refused after {wait:?}: {asked:?}");
    assert!(!passes(later - 1), "allowed before {wait:?}: {asked:?}");
}

proptest! {
    #![proptest_config(config(600))]

    #[test]
    fn a_set_is_charged_as_a_whole_or_not_at_all(members in members(), asks in asks()) {
        let mut all = members.clone();
        let asked = run(&mut all, &asks);
        // The same trace without the refused queries: every other answer stays the same.
        let mut again = members;
        for asked in asked {
            let passed = |(member, decision): (&Member, &Decision)| {
                member.shadow || decision.outcome.is_allow()
            };
            if again.iter().zip(&asked.decisions).all(passed) {
                let decisions = ask(&mut again, asked.now, &asked.costs, asked.operation);
                assert_eq!(decisions, asked.decisions);
            }
        }
    }
}

fn member(limit: u64, shadow: bool) -> Member {
    let window = SECOND;
    let kind = Kind::Fixed { limit, window };
    Member {
        bench: Bench::new(&kind, 0, 0),
        ledger: Ledger::new(kind, 0),
        is_calendar: false,
        shadow,
    }
}

fn left(decisions: &[Decision]) -> Vec<(bool, u64)> {
    let left = |decision: &Decision| (decision.outcome.is_allow(), decision.remaining);
    decisions.iter().map(left).collect()
}

/// Limits 3, 1 and 2 (in shadow): what each answers and keeps, call after call.
#[test]
fn one_limit_refuses_and_none_is_charged() {
    let mut members = [member(3, false), member(1, false), member(2, true)];
    let mut acquire = |costs: &[u64]| left(&ask(&mut members, 0, costs, Operation::Acquire));
    assert_eq!(
        acquire(&[1, 2, 1]),
        [(true, 3), (false, 1), (true, 2)],
        "refused"
    );
    assert_eq!(
        acquire(&[1, 1, 1]),
        [(true, 2), (true, 0), (true, 1)],
        "charged"
    );
    assert_eq!(
        acquire(&[1, 1, 1]),
        [(true, 2), (false, 0), (true, 1)],
        "refused"
    );
}

/// A shadow limit without room is not charged, and refuses no call.
#[test]
fn a_shadow_limit_has_no_say() {
    let mut members = [member(9, false), member(2, true)];
    let mut acquire = |costs: &[u64]| left(&ask(&mut members, 0, costs, Operation::Acquire));
    assert_eq!(acquire(&[1, 3]), [(true, 8), (false, 2)]);
    assert_eq!(acquire(&[1, 2]), [(true, 7), (true, 0)]);
    assert_eq!(acquire(&[1, 1]), [(true, 6), (false, 0)]);
    assert_eq!(acquire(&[7, 1]), [(false, 6), (false, 0)]);
}

#[test]
fn an_empty_set_decides_nothing() {
    assert_eq!(decide(Now::from_nanos(0), Operation::Acquire, &mut []), []);
    let set = LimitSet::new();
    assert!(set.charges().is_empty());
}

/// A refused set counts a refusal for the limit that refused, and for no other.
#[test]
fn only_the_limit_that_refuses_counts_towards_its_ban() {
    let ban = quell_core::ban::Ban::new(1, None, vec![std::time::Duration::from_secs(9)]).unwrap();
    let limit = |max| {
        Limit::per_second(max)
            .build()
            .unwrap()
            .with_ban(ban.clone())
    };
    let mut members = [member(3, false), member(1, false)];
    members[0].bench = Bench::from_limit(limit(3), false, 0, 0);
    members[1].bench = Bench::from_limit(limit(1), false, 0, 0);
    let decisions = ask(&mut members, 0, &[1, 2], Operation::Acquire);
    assert_eq!((decisions[0].banned, decisions[1].banned), (false, true));
    let decisions = ask(&mut members, 0, &[1, 1], Operation::Peek);
    assert_eq!((decisions[0].banned, decisions[1].banned), (false, true));
}

/// The time for a query of many descriptors does not grow quadratically: 50,000 of them pass at
/// once.
#[test]
fn many_descriptors_are_summed_up_key_by_key() {
    let names: Vec<String> = (0..25_000).map(|user| user.to_string()).collect();
    let descriptor = |user: &String| {
        let mut descriptor = Descriptor::new();
        descriptor.push("user", user.clone());
        descriptor
    };
    let twice = names.iter().chain(&names).map(descriptor).collect();
    let mut shop = Shop::new(vec![rule("each", 5).per("user")]);
    let verdict = shop.acquire(&Query::with_descriptors("shop", twice));
    assert_eq!(verdict.decisions.len(), names.len());
    assert!(
        verdict
            .decisions
            .iter()
            .all(|rule| rule.decision.remaining == 3)
    );
}
