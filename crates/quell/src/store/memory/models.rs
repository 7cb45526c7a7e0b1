//! Models of the memory store: what two threads do to one chain, in every order that matters. They cover
//! spills that change under a reader, a table that grows under a charge, locks on two chains, the sweep,
//! a reload, and an old clock reading.
//!
//! Loom tries the orders that the memory model allows, with a bound on the number of preemptions: most
//! mistakes of this kind appear with one or two. The models run the product's own code on a table that
//! begins with one chain, whose lines have two slots.

use std::sync::Arc;
use std::time::Duration;

use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use quell_core::charge::Operation;
use quell_core::limit::{ActiveLimit, LimitId, LimitPlace};
use quell_core::rule::{Changes, DomainRules, Effect, Rule, StoredEffect};
use quell_core::time::{Monotonic, Now};

use super::{HashKey, MemoryStore, Store};
use crate::calendar::SystemCalendar;
use crate::clock::{Clock, ManualClock};
use crate::{KeyOverride, Limit, LimitError, Limiter, OverrideRank, Query, Rate, Span};

const START: Now = Now::from_nanos(1_700_000_000_000_000_000);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

/// Runs a model under all schedules with at most this many preemptions.
fn model(preemptions: usize, run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 5_000;
    builder.check(run);
}

fn rule(name: &str, limit: Result<Limit, LimitError>) -> Rule {
    Rule::new(name, limit.unwrap()).unwrap().per(name)
}

fn domain(rules: Vec<Rule>) -> Vec<DomainRules> {
    vec![DomainRules::new("d", rules)]
}

/// A limiter in memory. Calls are given their instants; `clock` is what the store reads under locks.
struct Model {
    limiter: Limiter<MemoryStore>,
}

impl Model {
    fn new(rules: Vec<Rule>) -> Arc<Self> {
        Self::with(rules, Arc::new(ManualClock::new(START)))
    }

    fn with(rules: Vec<Rule>, clock: Arc<dyn Clock>) -> Arc<Self> {
        let store = MemoryStore::with(100, HashKey([1, 2]));
        let limiter = Limiter::builder(store).clock(clock).build();
        limiter.set_rules_at(domain(rules), START).unwrap();
        Arc::new(Self { limiter })
    }

    /// Asks for one unit for each entry of a query. Returns whether it was admitted.
    fn acquire(&self, entries: &[(&str, &str)], now: Now) -> u64 {
        let verdict = self.ask(Operation::Acquire, entries, now);
        u64::from(
            verdict
                .decisions
                .iter()
                .all(|one| one.decision.outcome.is_allow()),
        )
    }

    fn remaining(&self, entry: (&str, &str), now: Now) -> u64 {
        let verdict = self.ask(Operation::Peek, &[entry], now);
        verdict.remaining.unwrap()
    }

    fn ask(&self, operation: Operation, entries: &[(&str, &str)], now: Now) -> crate::Verdict {
        let mut query = Query::new("d");
        for (name, value) in entries {
            query = query.entry(*name, *value);
        }
        self.limiter.ask_local(operation, &query, now).unwrap()
    }

    /// Number of the chain, of two, that a key is in.
    fn chain_of_two(&self, (name, value): (&str, &str)) -> u64 {
        let query = Query::new("d").entry(name, value);
        let rules = self.limiter.rules();
        let set = rules.resolve(&query, START, &SystemCalendar::default());
        let key = set.key(&set.charges()[0]);
        self.limiter
            .store()
            .hash_key()
            .of_bytes(key.as_bytes())
            .high
            % 2
    }

    fn sweep(&self, now: Now) {
        self.limiter.store().sweep(1, now);
    }

    fn chains(&self) -> usize {
        self.limiter.store().table.chains()
    }
}

fn later(wait: Duration) -> Now {
    Now {
        monotonic: START.monotonic.saturating_add(wait),
        wall: START.wall.saturating_add(wait),
    }
}

/// Three keys in one chain: two in a line of two slots, and one in a spill after it.
fn three_keys(limit: Result<Limit, LimitError>) -> Arc<Model> {
    let model = Model::new(vec![rule("k", limit)]);
    for key in ["1", "2", "3"] {
        assert_eq!(model.acquire(&[("k", key)], START), 1);
    }
    assert_eq!(model.chains(), 1);
    model
}

/// A fourth key makes a second chain, which takes over some keys, also in spills, while each of them is
/// charged: no charge is lost or made twice.
#[test]
fn a_table_grows_under_a_charge() {
    for key in ["1", "2", "3", "4"] {
        model(1, move || {
            let model = three_keys(Limit::per_hour(3).build());
            let other = Arc::clone(&model);
            let thread = thread::spawn(move || other.acquire(&[("k", "4")], START));
            let mine = model.acquire(&[("k", key)], START);
            assert_eq!((mine, thread.join().unwrap()), (1, 1));
            assert_eq!(model.chains(), 2);
            for other in ["1", "2", "3", "4"] {
                let used = 1 + u64::from(other == key);
                assert_eq!(model.remaining(("k", other), START), 3 - used, "{other}");
            }
        });
    }
}

/// The table grows while a key is charged under the lock of its chain; a window is in a box.
#[test]
fn a_table_grows_under_a_lock() {
    for key in ["1", "3"] {
        model(4, move || {
            let model = three_keys(Limit::fixed_window(3, HOUR).build());
            let other = Arc::clone(&model);
            let thread = thread::spawn(move || other.acquire(&[("k", "4")], START));
            let mine = model.acquire(&[("k", key)], START);
            assert_eq!((mine, thread.join().unwrap()), (1, 1));
            assert_eq!(model.remaining(("k", key), START), 1);
            assert_eq!(model.remaining(("k", "4"), START), 2);
        });
    }
}

/// A spill that a reader has found may be returned and used by other keys before it writes.
#[test]
fn a_spill_changes_under_a_reader() {
    for key in ["1", "2", "3"] {
        model(2, move || {
            let model = three_keys(Limit::per_hour(3).build());
            let later = later(HOUR);
            let other = Arc::clone(&model);
            let thread = thread::spawn(move || {
                // All three are at rest: the spill is returned, and used again by the next keys.
                other.sweep(later);
                for key in ["5", "6", "7"] {
                    assert_eq!(other.acquire(&[("k", key)], later), 1);
                }
            });
            let mine = model.acquire(&[("k", key)], later);
            thread.join().unwrap();
            assert_eq!(mine, 1);
            for key in [key, "5", "6", "7"] {
                assert_eq!(model.remaining(("k", key), later), 2, "{key}");
            }
        });
    }
}

/// The same, but the spill goes to another chain: no key is in both.
#[test]
fn a_spill_goes_to_another_chain_under_a_reader() {
    model(1, || {
        let model = Model::new(vec![rule("k", Limit::per_hour(3).build())]);
        let values: Vec<String> = (0..40).map(|value: u32| value.to_string()).collect();
        let of_chain = |chain| {
            let mut keys = values.iter().map(|value| ("k", value.as_str()));
            keys.by_ref()
                .filter(|key| model.chain_of_two(*key) == chain)
                .take(6)
                .map(|(name, value)| (name, value.to_owned()))
                .collect::<Vec<_>>()
        };
        let (first, second) = (of_chain(0), of_chain(1));
        let acquire = |model: &Model, (name, value): &(&'static str, String), now| {
            assert_eq!(model.acquire(&[(name, value)], now), 1);
        };
        for key in first[..3].iter().chain(&second[..2]) {
            acquire(&model, key, START);
        }
        assert_eq!(model.chains(), 2);
        let later = later(HOUR);
        let (other, keys) = (Arc::clone(&model), second[2..5].to_vec());
        let thread = thread::spawn(move || {
            other.sweep(later);
            for key in &keys {
                acquire(&other, key, later);
            }
        });
        for key in &first[..3] {
            acquire(&model, key, later);
        }
        thread.join().unwrap();
        let states = model.limiter.store().export(0, later);
        assert_eq!(states.len(), 6);
    });
}

/// The sweep drops a key at rest while it is charged: the charge is not lost.
#[test]
fn a_charge_outlives_the_sweep() {
    for limit in [
        Limit::per_hour(3).build(),
        Limit::fixed_window(3, HOUR).build(),
    ] {
        model(4, move || {
            let model = Model::new(vec![rule("k", limit.clone())]);
            assert_eq!(model.acquire(&[("k", "1")], START), 1);
            let later = later(HOUR);
            let other = Arc::clone(&model);
            let thread = thread::spawn(move || other.sweep(later));
            let mine = model.acquire(&[("k", "1")], later);
            thread.join().unwrap();
            assert_eq!(mine, 1);
            assert_eq!(model.remaining(("k", "1"), later), 2);
        });
    }
}

/// Two sets on two keys in two chains, of which one fits: exactly one passes, as a whole.
#[test]
fn sets_lock_two_chains() {
    model(2, || {
        let rules = ["a", "b"].map(|name| rule(name, Limit::fixed_window(1, HOUR).build()));
        let model = Model::new(rules.into());
        // Enough keys for two chains.
        for key in ["5", "6", "7", "8"] {
            assert_eq!(model.acquire(&[("a", key)], START), 1);
        }
        assert_eq!(model.chains(), 2);
        let set = [("a", "1"), ("b", "1")];
        let other = Arc::clone(&model);
        let thread = thread::spawn(move || other.acquire(&set, START));
        let mine = model.acquire(&set, START);
        assert_eq!(mine + thread.join().unwrap(), 1);
        for entry in set {
            assert_eq!(model.remaining(entry, START), 0);
        }
    });
}

/// Two sets, each on two chains, whose keys come in opposite orders: there is no deadlock.
#[test]
fn sets_lock_their_chains_in_one_order() {
    model(2, || {
        let rules = ["a", "b"].map(|name| rule(name, Limit::fixed_window(2, HOUR).build()));
        let model = Model::new(rules.into());
        let key = |name, chain| {
            let mut keys = ["1", "2", "3", "4", "5", "6", "7", "8"].into_iter();
            let key = keys.find(|key| model.chain_of_two((name, key)) == chain);
            (name, key.unwrap())
        };
        let sets = [[key("a", 0), key("b", 1)], [key("a", 1), key("b", 0)]];
        for entry in sets.concat() {
            assert_eq!(model.acquire(&[entry], START), 1);
        }
        assert_eq!(model.chains(), 2);
        let (mine, theirs, other) = (sets[0], sets[1], Arc::clone(&model));
        let thread = thread::spawn(move || other.acquire(&theirs, START));
        assert_eq!(model.acquire(&mine, START), 1);
        assert_eq!(thread.join().unwrap(), 1);
        for entry in sets.concat() {
            assert_eq!(model.remaining(entry, START), 0);
        }
    });
}

/// A set, in parallel with a charge on one of its keys that needs no lock.
#[test]
fn a_set_and_a_charge_in_place_share_a_key() {
    model(4, || {
        let rules = ["a", "b"].map(|name| rule(name, Limit::per_hour(3).build()));
        let model = Model::new(rules.into());
        let set = [("a", "1"), ("b", "1")];
        assert_eq!(model.acquire(&set, START), 1);
        let other = Arc::clone(&model);
        let thread = thread::spawn(move || other.acquire(&set, START));
        let mine = model.acquire(&set[..1], START);
        assert_eq!((mine, thread.join().unwrap()), (1, 1));
        assert_eq!(model.remaining(set[0], START), 0);
        assert_eq!(model.remaining(set[1], START), 1);
    });
}

/// While a limit is lowered or raised, at most the larger of the two is admitted, and no use is lost.
#[test]
fn a_reload_under_a_charge() {
    for (before, after) in [(3, 2), (2, 3)] {
        for packed in [true, false] {
            model(2, move || {
                let limit = |max| match packed {
                    true => Limit::per_day(1).burst(max).build(),
                    false => Limit::fixed_window(max, 24 * HOUR).build(),
                };
                let model = Model::new(vec![rule("k", limit(before))]);
                let mut admitted = model.acquire(&[("k", "1")], START);
                let other = Arc::clone(&model);
                let thread = thread::spawn(move || {
                    let first = other.acquire(&[("k", "1")], START);
                    // The sweep drops states under limits that it does not know.
                    other.sweep(START);
                    first + other.acquire(&[("k", "1")], START)
                });
                let rules = domain(vec![rule("k", limit(after))]);
                model.limiter.set_rules_at(rules, START).unwrap();
                admitted += model.acquire(&[("k", "1")], START);
                admitted += thread.join().unwrap();
                for _ in 0..2 {
                    admitted += model.acquire(&[("k", "1")], START);
                }
                assert!((after..=3).contains(&admitted), "{admitted} admitted");
                assert_eq!(model.remaining(("k", "1"), START), 0);
            });
        }
    }
}

/// Limits from calls, while rules are reloaded: the store is told of all changes.
#[test]
fn changes_from_two_sides_are_both_made() {
    model(4, || {
        let model = Model::new(vec![rule("k", Limit::per_hour(3).build())]);
        let before = model.limiter.store().limits().len();
        let other = Arc::clone(&model);
        let thread = thread::spawn(move || {
            let store = other.limiter.store();
            store.install(&Changes {
                added: vec![ActiveLimit {
                    id: LimitId(1 << 31),
                    limit: Limit::per_hour(1).build().unwrap(),
                    since: START.monotonic,
                    place: LimitPlace::NONE,
                }],
                ..Changes::default()
            });
        });
        let rules = domain(vec![rule("k", Limit::per_hour(5).build())]);
        model.limiter.set_rules_at(rules, START).unwrap();
        thread.join().unwrap();
        assert_eq!(model.limiter.store().limits().len(), before + 2);
        assert_eq!(model.remaining(("k", "1"), START), 5);
    });
}

/// A number of calls an hour.
fn read_hourly(_: &str, _: &str, text: &str) -> Option<StoredEffect> {
    let limit = Limit::per_hour(text.parse().unwrap()).build().unwrap();
    Some(StoredEffect::Effect(Effect::Limit(limit)))
}

/// Numbers that are stored for a key of [`three_keys`], before and after a change.
const STORED: [(Option<u64>, Option<u64>); 3] =
    [(None, Some(50)), (Some(40), None), (Some(40), Some(50))];

fn store(model: &Model, key: &str, number: Option<u64>) {
    let spans = number.map(|number| Span {
        from: None,
        until: None,
        numbers: number.to_string().into(),
    });
    let one = KeyOverride {
        domain: "d",
        rule: "k",
        entries: vec![("k", key)],
        rank: OverrideRank::Rule,
        spans: spans.into_iter().collect(),
    };
    model.limiter.change_overrides(&[one], &read_hourly);
}

/// A key for which this is stored, and what was used of it. Its state is under the limit that applies, and has no memo.
fn key_with(key: &str, stored: Option<u64>) -> (Arc<Model>, u64) {
    let model = three_keys(Limit::per_hour(30).build());
    // Others keep these numbers.
    store(&model, "4", Some(40));
    store(&model, "5", Some(50));
    store(&model, key, stored);
    let used = 1 + stored.map_or(0, |_| model.acquire(&[("k", key)], START));
    (model, used)
}

/// The numbers of a key change while a call looks them up and leaves a memo: the next call has the new ones,
/// whether its state lies in the line or in a spill.
#[test]
fn a_memo_never_outlives_what_it_says() {
    for (before, after) in STORED {
        for key in ["1", "3"] {
            model(3, move || {
                let (model, used) = key_with(key, before);
                let other = Arc::clone(&model);
                let thread = thread::spawn(move || other.remaining(("k", key), START));
                store(&model, key, after);
                thread.join().unwrap();
                for _ in 0..2 {
                    let left = model.remaining(("k", key), START);
                    assert_eq!(left, after.unwrap_or(30) - used);
                }
            });
        }
    }
}

/// A call under the numbers before takes the state to their limit after others left a memo: it goes.
#[test]
fn a_memo_goes_when_a_late_call_takes_its_state_to_another_limit() {
    model(1, || {
        let (model, mut used) = key_with("1", Some(40));
        let other = Arc::clone(&model);
        let thread = thread::spawn(move || other.acquire(&[("k", "1")], START));
        store(&model, "1", Some(50));
        used += model.acquire(&[("k", "1")], START);
        model.remaining(("k", "1"), START);
        used += thread.join().unwrap();
        for _ in 0..2 {
            assert_eq!(model.remaining(("k", "1"), START), 50 - used);
        }
    });
}

/// A clock that another thread moves.
#[derive(Debug)]
struct SharedClock(AtomicU64);

impl SharedClock {
    fn advance(&self, wait: Duration) {
        let nanos = u64::try_from(wait.as_nanos()).unwrap();
        self.0.fetch_add(nanos, Ordering::SeqCst);
    }
}

impl Clock for SharedClock {
    fn now(&self) -> Now {
        let monotonic = self.monotonic();
        Now { monotonic, ..START }
    }

    /// All threads share one clock: everything done before a reading has happened for any later reader.
    /// Loom knows this only for modifications.
    fn monotonic(&self) -> Monotonic {
        Monotonic::from_nanos(self.0.fetch_add(0, Ordering::SeqCst))
    }
}

/// A limit that hardly refills, and one that refills within a second, each packed and in a box.
fn slow_and_fast(packed: bool) -> [Result<Limit, LimitError>; 2] {
    match packed {
        true => [
            Limit::per_day(1).burst(2).build(),
            Limit::per_second(2).build(),
        ],
        false => [
            Limit::fixed_window(2, 24 * HOUR).build(),
            Limit::fixed_window(2, SECOND).build(),
        ],
    }
}

/// Calls go on while limits change, which takes a while: no refill is credited for the time before they
/// were charged.
#[test]
fn what_is_charged_during_a_reload_drains_from_then_on() {
    for packed in [true, false] {
        model(2, move || {
            let clock = Arc::new(SharedClock(AtomicU64::new(START.monotonic.as_nanos())));
            let [slow, fast] = slow_and_fast(packed);
            let model = Model::with(vec![rule("k", slow)], Arc::clone(&clock) as _);
            let acquire = |model: &Model| model.acquire(&[("k", "1")], model.limiter.now());
            let other = Arc::clone(&model);
            let thread = thread::spawn(move || {
                clock.advance(SECOND);
                acquire(&other) + acquire(&other)
            });
            let rules = domain(vec![rule("k", fast)]);
            model.limiter.set_rules(rules).unwrap();
            assert_eq!(thread.join().unwrap(), 2);
            assert_eq!(acquire(&model), 0);
        });
    }
}

/// A reload overtakes a caller between its lookup of the rules and its charge.
#[test]
fn who_charges_after_a_reload_is_counted_from_then_on() {
    for packed in [true, false] {
        model(3, move || {
            let clock = Arc::new(SharedClock(AtomicU64::new(START.monotonic.as_nanos())));
            let [slow, fast] = slow_and_fast(packed);
            let model = Model::with(vec![rule("k", slow)], Arc::clone(&clock) as _);
            let mut now = model.limiter.now();
            let (other, rules) = (Arc::clone(&model), model.limiter.rules());
            let thread = thread::spawn(move || {
                let query = Query::new("d").entry("k", "1");
                let set = rules.resolve(&query, now, &other.limiter.parts.calendar);
                let (charge, store) = (&set.charges()[0], other.limiter.store());
                let acquire = Operation::Acquire;
                let decision =
                    store.charge_one(set.key(charge), charge, set.account(), acquire, &mut now);
                assert!(decision.outcome.is_allow());
                now.monotonic.since(START.monotonic)
            });
            let rules = domain(vec![rule("k", fast)]);
            model.limiter.set_rules(rules).unwrap();
            clock.advance(SECOND);
            // Units charged at the start are refilled by then.
            let left = 2 - u64::from(thread.join().unwrap() == SECOND);
            let now = model.limiter.now();
            assert_eq!(model.remaining(("k", "1"), now), left);
        });
    }
}

/// A key is used up. A caller that is overtaken between its reading and its decision is credited nothing,
/// and takes nothing from others. Alone and in a set.
#[test]
fn an_old_reading_is_credited_nothing() {
    for (packed, names) in [
        (true, &["k"][..]),
        (false, &["k"]),
        (true, &["k", "l"]),
        (false, &["k", "l"]),
    ] {
        model(4, move || {
            let clock = Arc::new(SharedClock(AtomicU64::new(START.monotonic.as_nanos())));
            let limit = match packed {
                true => Limit::token_bucket(Rate::new(2, SECOND).unwrap())
                    .burst(2)
                    .build(),
                false => Limit::sliding_log(2, SECOND).build(),
            };
            let rules = names.iter().map(|name| rule(name, limit.clone()));
            let model = Model::with(rules.collect(), Arc::clone(&clock) as _);
            let acquire = move |model: &Model| {
                let entries: Vec<_> = names.iter().map(|name| (*name, "1")).collect();
                model.acquire(&entries, model.limiter.now())
            };
            assert_eq!(acquire(&model) + acquire(&model), 2);
            let (other, moved) = (Arc::clone(&model), Arc::clone(&clock));
            let thread = thread::spawn(move || {
                moved.advance(SECOND);
                acquire(&other)
            });
            let mine = acquire(&model);
            assert_eq!(thread.join().unwrap(), 1);
            // Calls after that second were admitted, calls before it were not.
            let left = model.remaining(("k", "1"), model.limiter.now());
            assert_eq!(left, 1 - mine);
        });
    }
}

/// There is room for one caller now, and for two in a moment: a caller that is overtaken between its
/// reading and its decision is not refused because of that.
#[test]
fn an_old_reading_refuses_nobody() {
    for names in [&["k"][..], &["k", "l"]] {
        model(4, move || {
            let clock = Arc::new(SharedClock(AtomicU64::new(START.monotonic.as_nanos())));
            let limit = Limit::per_second(200).burst(2).build();
            let rules = names.iter().map(|name| rule(name, limit.clone()));
            let model = Model::with(rules.collect(), Arc::clone(&clock) as _);
            let acquire = move |model: &Model| {
                let entries: Vec<_> = names.iter().map(|name| (*name, "1")).collect();
                model.acquire(&entries, model.limiter.now())
            };
            assert_eq!(acquire(&model), 1);
            let (other, moved) = (Arc::clone(&model), Arc::clone(&clock));
            let thread = thread::spawn(move || {
                moved.advance(SECOND / 200);
                acquire(&other)
            });
            let mine = acquire(&model);
            assert_eq!((mine, thread.join().unwrap()), (1, 1));
        });
    }
}
