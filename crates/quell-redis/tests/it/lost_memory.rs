//! A store that loses its memory gives no free burst on keys that servers lease or sync: who was answered
//! about a key says until when its state is there. What expired in its time, or was forgiven, is not lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use quell::clock::Clock as _;
use quell::store::{Action, AdminStore, LeaseStore, Store, Totals};
use quell::{Cost, Limit, Query};
use quell_conformance::{Carries, ModelStore};
use quell_core::charge::{Charge, Charges, LimitSet, Operation};
use quell_core::decision::Decision;
use quell_core::limit::ActiveLimit;
use quell_core::over_admission::{LeasePolicy, OverAdmission};
use quell_core::policy::Rung;
use quell_core::time::{Now, Wall};
use quell_redis::{RedisStore, StoreClock};
use quell_store::leased::LIFE;
use quell_store::remote::RemoteStore;
use quell_store::split::OwnedSet;

use crate::fallback::scripts;
use crate::leased::{Counts, RATE, leasable, load, most, nodes_on, policy, round};
use crate::limits::{SECOND, START, active, at, built};
use crate::patience::{PATIENCE, TIMEOUT, until_it};
use crate::server::{Server, try_command};

/// A charge of `cost` on a key whose state is known to exist until then.
fn set_of(active: &ActiveLimit, key: &str, cost: u64, exists_until: Option<Wall>) -> OwnedSet {
    let mut charge = Charge::alone(active, Cost::new(cost).unwrap());
    let rung = Rung::Leased(policy());
    let terms = rung.terms(&active.limit, None).and_then(Result::ok);
    (charge.policy.rung, charge.terms) = (rung, terms.as_ref());
    charge.exists_until = exists_until;
    OwnedSet::new(&LimitSet::from_key_bytes(key.as_bytes(), 0, &charge))
}

async fn acquire(store: &impl Store, set: &OwnedSet, now: Now) -> Decision {
    let (set, operation) = (set.as_set(), Operation::Acquire);
    let answer = store.decide(Charges::Set(&set), operation, now).await;
    answer.unwrap().decisions[0]
}

/// Instant until which a state is there about which the store decided then.
fn proven_by(decision: &Decision, decided: Wall) -> Option<Wall> {
    (!decision.reset_after.is_zero()).then(|| decided.saturating_add(LIFE))
}

/// Units that one process has admitted, of which none are charged.
const fn totals(id: u128, total: u64) -> Totals {
    Totals { id, total, base: 0 }
}

/// Action of an operator in a step.
const fn action_of(step: u64) -> Action<'static> {
    match step % 3 {
        0 => Action::Ban(Duration::from_millis(20), None),
        1 => Action::Lift,
        _ => Action::Forgive,
    }
}

/// Part of a decision that is the same in the model; waits are rounded to the store's microseconds.
const fn numbers(decision: &Decision) -> (bool, u64, bool) {
    let is_allowed = decision.outcome.is_allow();
    (is_allowed, decision.remaining, decision.banned)
}

/// Lets the model lose a state: it counts the key as used up, or as unused.
async fn lose(model: &ModelStore, set: &OwnedSet, is_used_up: bool, id: u128, now: Now) {
    let set = set.as_set();
    let forgiven = model.administer(&set, Action::Forgive, now).await;
    forgiven.unwrap();
    if is_used_up {
        model.sync(&set, &totals(id, 1 << 40), now).await.unwrap();
    }
}

/// Strict calls, leases, totals, returns, bans and forgiveness, while the store is emptied again and again.
#[tokio::test]
async fn a_state_that_is_lost_counts_as_used_up_as_in_the_model() {
    for limit in leasable() {
        let server = Server::start(&[]);
        let store = server.store().clock(StoreClock::Caller).build();
        let model = ModelStore::new(Carries::AtNextCall);
        let active = active(limit);
        let (mut micros, mut proof, mut charged) = (START, None::<Wall>, None::<Wall>);
        let (mut is_lost, mut used_up, mut unused) = (false, 0, 0);
        for step in 0..900_u64 {
            micros += 1 + step * 7_919 % 60_000;
            let (now, kind) = (at(micros), step * 37 % 13);
            if step % 11 == 5 {
                server.command(&["FLUSHALL"]);
                is_lost = true;
            }
            let known = match kind {
                // Some calls come from servers that know nothing of the key, or from an operator.
                0..2 | 11.. => None,
                9..11 => charged.map(|at| at.saturating_add(LIFE)),
                _ => proof,
            };
            let owned = set_of(&active, "key", 1 + step * 31 % 9, known);
            let is_proven = known.is_some_and(|until| now.wall < until);
            // What writes nothing begins no state.
            let begins = match kind {
                9..11 => is_proven,
                _ => kind < 9 || action_of(step) != Action::Lift,
            };
            let was_lost = begins && std::mem::take(&mut is_lost);
            if was_lost {
                lose(&model, &owned, is_proven, step.into(), now).await;
                *(if is_proven { &mut used_up } else { &mut unused }) += 1;
            }
            let context = format!("{}: step {step}, known {known:?}", active.limit);
            let set = owned.as_set();
            match kind {
                0..7 => {
                    let here = acquire(&model, &owned, now).await;
                    let there = acquire(&store, &owned, now).await;
                    assert_eq!(numbers(&here), numbers(&there), "{context}");
                    proof = proven_by(&there, now.wall);
                    charged = there.outcome.is_allow().then_some(now.wall).or(charged);
                }
                7..9 => {
                    let totals = totals(u128::from(step) << 64, 1 + step * 31 % 9);
                    let here = model.sync(&set, &totals, now).await.unwrap();
                    let there = store.try_sync(&set, &totals, now).await.unwrap();
                    let left = [here, there].map(|paid| (paid.paid, paid.next.remaining));
                    assert_eq!(left[0], left[1], "{context}");
                    proof = proven_by(&there.next, there.store_time);
                }
                9..11 => {
                    let Some((at, until)) = charged.take().zip(known) else {
                        continue;
                    };
                    // What was lost cannot be given back.
                    if !was_lost {
                        model.give_back(&set, at, until, now).await.unwrap();
                    }
                    store.try_give_back(&set, at, until, now).await.unwrap();
                }
                _ => {
                    model.administer(&set, action_of(step), now).await.unwrap();
                    store.administer(&set, action_of(step), now).await.unwrap();
                }
            }
        }
        assert!(used_up > 10 && unused > 10, "{used_up}, {unused}");
    }
}

/// Calls that wait at the same time share a script, with a fast path of its own.
#[tokio::test]
async fn a_lost_state_counts_as_used_up_in_a_batch() {
    let server = Server::start(&[]);
    let store = server.store().build();
    let bucket = active(built(Limit::per_minute(60).burst(50).build()));
    let known = Some(Wall::from_nanos(u64::MAX));
    let calls = (0..20).map(|number: u64| {
        let set = set_of(&bucket, &number.to_string(), 1, known);
        let store = &store;
        async move { acquire(store, &set, at(START)).await.outcome.is_allow() }
    });
    let allowed = join_all(calls).await;
    assert_eq!(allowed, [false; 20]);
    assert!(scripts(&server) < 20, "no calls shared a script");
}

/// Calls that come when the state is about to expire, or just has: it was at rest, so nothing of it is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_that_expired_in_its_time_is_not_lost() {
    let server = Server::start(&[]);
    let store = server.store().build();
    let active = active(built(Limit::per_second(1_000).burst(100).build()));
    let charge = async |key: &str| {
        let set = set_of(&active, key, 10, None);
        let (charges, operation) = (set.as_set(), Operation::Acquire);
        let answer = store.decide(Charges::Set(&charges), operation, at(START));
        answer.await.unwrap().store_time.unwrap()
    };
    // One that nobody asks for again shows when they expire.
    charge("watched").await;
    let watched = server.keys().swap_remove(0);
    let keys: Vec<String> = (0..60).map(|number| number.to_string()).collect();
    let charged = join_all(keys.iter().map(|key| charge(key))).await;
    let left = || -> i64 {
        let left = try_command(server.port(), &[b"PTTL", watched.as_slice()]);
        left.unwrap().parse().unwrap()
    };
    for (number, (key, charged)) in (0..).zip(keys.iter().zip(charged)) {
        until_it("the next moment", async || left() <= (30 - number).max(-2)).await;
        let set = set_of(&active, key, 1, Some(charged.saturating_add(LIFE)));
        let decision = acquire(&store, &set, at(START)).await;
        assert_eq!((key, decision.remaining), (key, 99));
    }
}

/// The store is emptied again and again, while servers that hold leases ask far above the limit, and reserve.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_burst_comes_free_while_a_lease_lives() {
    for rung in [Rung::Leased(policy()), Rung::Synced(policy())] {
        let server = Server::start(&[]);
        let nodes = nodes_on(&server, rung);
        let begun = nodes[0].clock.now().monotonic;
        let counts = Arc::new(Counts::default());
        // Whenever so much was admitted; not all is refused, so it goes on.
        let flushes = async {
            for times in 1..=8 {
                let admitted = times * RATE / 4;
                until_it("more calls", async || counts.allowed() > admitted).await;
                server.command(&["FLUSHALL"]);
            }
        };
        let load = async {
            let query = Query::new("d").entry("user", "hot");
            let mut reserved = 0;
            while counts.allowed() <= 9 * RATE / 4 {
                let reservation = nodes[0].reserve(&query, SECOND, None).await.unwrap();
                reserved += u64::from(reservation.is_allow());
                round(&nodes, &counts).await;
            }
            reserved
        };
        let ((), reserved) = tokio::join!(flushes, load);
        let (allowed, time) = (counts.allowed() + reserved, nodes[0].since(begun));
        println!("{}: {allowed} allowed in {time:?}", rung.name());
        assert!(allowed <= most(time), "{allowed} in {time:?}");
    }
}

fn fixed_window() -> Limit {
    built(Limit::fixed_window(50, 3_600 * SECOND).build())
}

/// On this rung, on a key that has no state. A call that is sent before the end of the connection is noticed has no
/// answer, and is made again.
pub(crate) async fn left_of_new_key(store: &RedisStore, limit: Limit, rung: Rung) -> u64 {
    static KEYS: AtomicU64 = AtomicU64::new(0);
    let key = KEYS.fetch_add(1, Ordering::Relaxed);
    let active = active(limit);
    let mut charge = Charge::alone(&active, Cost::ONE);
    let terms = rung.terms(&active.limit, None).and_then(Result::ok);
    (charge.policy.rung, charge.terms) = (rung, terms.as_ref());
    let key = format!("new {key}");
    let set = LimitSet::from_key_bytes(key.as_bytes(), 0, &charge);
    let mut left = None;
    until_it("an answer", async || {
        let answer = store.decide(Charges::Set(&set), Operation::Acquire, at(START));
        left = answer
            .await
            .ok()
            .map(|answer| answer.decisions[0].remaining);
        left.is_some()
    })
    .await;
    left.unwrap()
}

pub(crate) fn leased() -> Rung {
    Rung::Leased(LeasePolicy {
        over: OverAdmission::Units(10),
        ..policy()
    })
}

pub(crate) fn bucket() -> Limit {
    built(Limit::per_minute(60).burst(50).build())
}

/// Returns true if a new key of a leased bucket counts as used up; one of a strict bucket never does.
pub(crate) async fn is_quiet(store: &RedisStore) -> bool {
    let [in_memory, strict] =
        [leased(), Rung::Strict].map(|rung| left_of_new_key(store, bucket(), rung));
    let (in_memory, strict) = (in_memory.await, strict.await);
    assert_eq!(strict, 49);
    assert!([0, 49].contains(&in_memory), "{in_memory}");
    // A wrong refusal would last for an hour, so these begin unused.
    let window = left_of_new_key(store, fixed_window(), leased());
    assert_eq!(window.await, 49);
    in_memory == 0
}

/// For how long a server that starts again is quiet where a test waits for the end of that. The product's second is
/// tested in `src/link/endpoint.rs`, by instants that are given.
pub(crate) const WHILE: Duration = Duration::from_secs(8);

/// Other servers may hold leases on any key that is missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_starts_again_is_quiet_for_a_while() {
    let mut server = Server::start(&[]);
    let store = server.store().test_quiet(WHILE).build();
    assert!(!is_quiet(&store).await, "nothing is known of a run before");
    server.restart();
    until_it("it is there again", async || store.ping().await.is_ok()).await;
    assert!(is_quiet(&store).await);
    until_it("it is as usual", async || !is_quiet(&store).await).await;
    // A broken connection alone says nothing.
    server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    until_it("it is there again", async || store.ping().await.is_ok()).await;
    assert!(!is_quiet(&store).await);
}

/// Nobody asks between the end of a server and its return, so the first calls make the connection that tells of
/// another run. Many of them wait for it, and share a script.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_wait_for_a_connection_learn_that_the_server_was_started_again() {
    let mut server = Server::start(&[]);
    let store = server.store().test_quiet(PATIENCE).build();
    assert!(!is_quiet(&store).await, "nothing is known of a run before");
    let [node, _] = nodes_on(&server, Rung::Leased(policy()));
    let reserve = async |user: &str| {
        let query = Query::new("d").entry("user", user.to_owned());
        let mut reserved = None;
        until_it("an answer", async || {
            reserved = node.reserve(&query, SECOND, None).await.ok();
            reserved.as_ref().is_some_and(|verdict| !verdict.degraded)
        })
        .await;
        reserved.unwrap().remaining
    };
    assert_eq!(reserve("before").await, Some(RATE - 1));
    server.restart();
    assert_eq!(reserve("after").await, Some(0));
    let first = (0..9).map(|_| left_of_new_key(&store, bucket(), leased()));
    assert_eq!(join_all(first).await, [0; 9]);
}

/// A server may need longer than that until it serves, as a Cluster's node does. Here it is a replica that
/// may not write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_not_ready_after_its_start_stays_quiet() {
    let mut server = Server::start(&[]);
    let store = server.store().timeout(TIMEOUT).test_quiet(TIMEOUT);
    let store = store.build();
    assert!(!is_quiet(&store).await, "nothing is known of a run before");
    server.restart();
    server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    let active = active(built(Limit::per_second(9).build()));
    let owned = set_of(&active, "key", 1, None);
    let serves = async || {
        let set = owned.as_set();
        let answer = store.decide(Charges::Set(&set), Operation::Acquire, at(START));
        answer.await.is_ok()
    };
    until_it("it would not be quiet any more", async || {
        assert!(!serves().await);
        let info = server.command(&["INFO", "server"]);
        let mut lines = info.lines();
        let uptime = lines.find_map(|line| line.strip_prefix("uptime_in_seconds:"));
        uptime.unwrap().trim().parse::<u64>().unwrap() > 3
    })
    .await;
    server.command(&["REPLICAOF", "NO", "ONE"]);
    until_it("it serves", serves).await;
    assert!(is_quiet(&store).await);
}

/// Servers that were refused for as long as a restart takes come back, all at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_burst_comes_free_when_a_server_starts_again() {
    for rung in [Rung::Leased(policy()), Rung::Synced(policy())] {
        let mut server = Server::start(&[]);
        let nodes = nodes_on(&server, rung);
        load(&nodes, |counts| counts.allowed() > RATE).await;
        server.kill();
        load(&nodes, |counts| counts.refused() > RATE).await;
        server.restart();
        let begun = nodes[0].clock.now().monotonic;
        let counts = load(&nodes, |counts| counts.allowed() > RATE).await;
        let (allowed, time) = (counts.allowed(), nodes[0].since(begun));
        println!("{}: {allowed} allowed in {time:?}", rung.name());
        assert!(allowed <= most(time) - RATE, "{allowed} in {time:?}");
    }
}
