//! Model tests of local shares: in whatever order callers, payments and the sweep come, a share is never
//! exceeded, and every unit is owed, repaid or in flight. Also of the stampede gate: no waiting caller is
//! left behind.
//!
//! A scheduler chooses which task runs next wherever the table is locked.

use std::future::Future;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use quell_core::charge::{Charge, LimitSet, Operation};
use quell_core::cost::Cost;
use quell_core::decision::{Decision, Outcome as Verdict, RetryAfter};
use quell_core::key::Key;
use quell_core::limit::{ActiveLimit, Limit, LimitId, LimitPlace};
use quell_core::on_failure::OnFailure;
use quell_core::time::{Monotonic, Now, Wall};
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::RandomScheduler;
use shuttle::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use shuttle::{Config, MaxSteps, Runner, future, thread};
use tokio::time::Instant;

use super::background::Background;
use super::denial_cache::{AnswerTime, DenialCache, InFlightCharge};
use super::local_debt::{PaymentOutcome, PaymentStart};
use super::local_share::{AnsweredCharge, LocalCharge, LocalShares, RECOVERY};
use super::stampede::{ProbeAnswer, StampedeGate};
use quell::clock::{Clock, ManualClock};
use quell_testkit::model;

const SCHEDULES: usize = 2_000;

const SHARE: u64 = 5;

const KEY: &[u8] = b"key";

struct Node {
    shares: LocalShares,
    denial_cache: Arc<DenialCache>,
    clock: ManualClock,
    active: ActiveLimit,
    admitted: AtomicU64,
    /// Units charged to the store.
    paid: AtomicU64,
    /// Units of payments that were not answered.
    unknown: AtomicU64,
}

fn now() -> Now {
    Now::from_nanos(1_790_000_000_000_000_000)
}

fn later(time: Duration) -> Now {
    let nanos = u64::try_from(time.as_nanos()).expect("not so long");
    Now::from_nanos(1_790_000_000_000_000_000 + nanos)
}

impl Node {
    fn new(limit: Limit, denial_cache: &Arc<DenialCache>) -> Self {
        Self {
            shares: LocalShares::default(),
            denial_cache: Arc::clone(denial_cache),
            clock: ManualClock::new(now()),
            active: ActiveLimit {
                id: LimitId(1),
                limit,
                since: Monotonic::ORIGIN,
                place: LimitPlace::NONE,
            },
            admitted: AtomicU64::default(),
            paid: AtomicU64::default(),
            unknown: AtomicU64::default(),
        }
    }

    /// Asks once, as if the store had failed; a lost call may have been charged.
    fn ask(&self, is_lost: bool) {
        self.ask_at(is_lost, now());
    }

    fn ask_at(&self, is_lost: bool, now: Now) {
        self.ask_about(KEY, is_lost, now);
    }

    fn ask_about(&self, key: &[u8], is_lost: bool, now: Now) {
        let charge = self.charge();
        let set = LimitSet::from_key_bytes(key, KEY.len(), &charge);
        let mut locals = self.locals(&set);
        for local in &mut locals {
            local.may_be_charged = is_lost;
        }
        let sources = (&*self.denial_cache, &self.clock as &dyn Clock);
        let decisions = self
            .shares
            .decide(&locals, Operation::Acquire, now, sources);
        let passed = decisions.iter().filter(|said| said.outcome.is_allow());
        self.admitted
            .fetch_add(passed.count() as u64, Ordering::SeqCst);
    }

    fn locals<'a, 'r>(&self, set: &'a LimitSet<'r>) -> Vec<LocalCharge<'a, 'r>> {
        let locals = set.charges().iter().map(|charge| {
            let declared = charge.policy.on_failure.expect("it is declared");
            let local = self.shares.local_charge(set.key(charge), charge, declared);
            local.expect("it can be shared")
        });
        locals.collect()
    }

    /// A call is about to be sent to a store that answers again; `None` if the share has no room for it.
    fn admit(&self) -> Option<InFlightCharge> {
        let charge = self.charge();
        let set = LimitSet::from_key_bytes(KEY, KEY.len(), &charge);
        let sources = (&*self.denial_cache, &self.clock as &dyn Clock);
        let announce = || self.add_in_flight(1);
        let admitted = self.shares.admit(
            &self.locals(&set),
            Operation::Acquire,
            now(),
            sources,
            announce,
        );
        admitted.ok().map(|(flight, _)| flight)
    }

    fn key() -> Key<'static> {
        Key::from_parts(KEY, KEY.len())
    }

    fn charge(&self) -> Charge<'_> {
        let mut charge = Charge::alone(&self.active, Cost::ONE);
        charge.policy.on_failure = Some(OnFailure::Share {
            nodes: NonZeroU32::MIN,
        });
        charge
    }

    /// A call is sent that may charge this many units.
    fn add_in_flight(&self, units: u64) -> InFlightCharge {
        self.denial_cache.add_in_flight(Self::key(), units)
    }

    /// The store answered a call, and charged this many units.
    fn answered(&self, flight: &InFlightCharge, units: u64) {
        let answered = AnswerTime {
            asked: now().monotonic,
            heard: now().monotonic,
            decided: Wall::default(),
        };
        self.complete((flight, false), units, answered, &refusal(SHARE));
    }

    fn complete(
        &self,
        (flight, is_beside): (&InFlightCharge, bool),
        units: u64,
        answered: AnswerTime,
        decision: &Decision,
    ) {
        let answer = AnsweredCharge {
            key: Self::key(),
            flight: Some(flight),
            charge: &self.charge(),
            decision,
            answered,
            units,
            is_beside,
        };
        self.shares
            .complete(&self.denial_cache, &answer, now, Instant::now());
    }

    /// The store answered a call for another key, which charged nothing.
    fn heard_about(&self, key: &[u8], instant: Instant) {
        let answer = AnsweredCharge {
            key: Key::from_parts(key, KEY.len()),
            flight: None,
            charge: &self.charge(),
            decision: &refusal(SHARE),
            answered: AnswerTime {
                asked: now().monotonic,
                heard: now().monotonic,
                decided: Wall::default(),
            },
            units: 0,
            is_beside: false,
        };
        self.shares
            .complete(&self.denial_cache, &answer, now, instant);
    }

    /// Repays the debt, unless another caller does.
    fn pay(&self, outcome: &PaymentOutcome) {
        let PaymentStart::Started(order, _) = self.shares.begin(KEY, now(), |_| None) else {
            return;
        };
        thread::yield_now();
        match outcome {
            PaymentOutcome::Made(_) => self.paid.fetch_add(order.units, Ordering::SeqCst),
            PaymentOutcome::Unknown => self.unknown.fetch_add(order.units, Ordering::SeqCst),
            PaymentOutcome::Unpaid => 0,
        };
        self.shares.finish(&order, outcome, now());
    }
}

/// The answer of a store that has charged this many units.
fn decision(outcome: Verdict, used: u64) -> Decision {
    Decision {
        outcome,
        limit: SHARE,
        remaining: SHARE - used,
        reset_after: Duration::from_secs(3_600),
        delay: Duration::ZERO,
        banned: false,
    }
}

fn refusal(used: u64) -> Decision {
    decision(Verdict::Deny(RetryAfter::Never), used)
}

fn any_outcome() -> PaymentOutcome {
    match thread_rng().gen_range(0..4) {
        0 => PaymentOutcome::Made(Some(now().monotonic)),
        1 => PaymentOutcome::Unknown,
        _ => PaymentOutcome::Unpaid,
    }
}

fn limits() -> [Limit; 3] {
    let hour = Duration::from_secs(3_600);
    [
        Limit::fixed_window(SHARE, hour).build().expect("possible"),
        Limit::sliding_log(SHARE, hour).build().expect("possible"),
        Limit::per_hour(SHARE).build().expect("possible"),
    ]
}

#[test]
fn a_share_holds_and_no_debt_is_lost_while_it_is_paid() {
    let denial_cache = Arc::new(DenialCache::new());
    for limit in limits() {
        let denial_cache = Arc::clone(&denial_cache);
        let schedule = move || {
            let node = Arc::new(Node::new(limit.clone(), &denial_cache));
            let mut threads = Vec::new();
            for _ in 0..3 {
                let node = Arc::clone(&node);
                threads.push(thread::spawn(move || (0..3).for_each(|_| node.ask(false))));
            }
            for _ in 0..2 {
                let node = Arc::clone(&node);
                threads.push(thread::spawn(move || {
                    (0..3).for_each(|_| node.pay(&any_outcome()));
                    node.shares.sweep(now(), Instant::now(), false);
                }));
            }
            for thread in threads {
                thread.join().expect("it ends");
            }
            let read = |count: &AtomicU64| count.load(Ordering::SeqCst);
            assert_eq!(read(&node.admitted), SHARE, "of 9 that asked");
            let is_seen_to = node.shares.owed() == 0 || node.shares.due() > 0;
            assert!(is_seen_to, "what is owed waits to be paid");
            node.pay(&PaymentOutcome::Made(None));
            assert_eq!(node.shares.owed(), 0);
            let told = read(&node.paid) + read(&node.unknown);
            assert_eq!(told, SHARE, "paid, or perhaps paid");
        };
        model::check(SCHEDULES, schedule);
    }
}

/// Many keys are used during an outage and repaid. Their memory is freed, whether the sweep finds that
/// they are no longer needed or callers get the store's answer.
#[test]
fn the_room_of_debts_comes_back_when_they_are_paid() {
    const KEYS: usize = 20_000;
    let denial_cache = Arc::new(DenialCache::new());
    for (length, is_swept) in [(16, true), (16, false), (2_000, true), (2_000, false)] {
        let denial_cache = Arc::clone(&denial_cache);
        let schedule = move || {
            let [limit, ..] = limits();
            let node = Node::new(limit, &denial_cache);
            let name = |user: usize| format!("{:0>length$}", format!("k-{user:08}")).into_bytes();
            let before = node.shares.room();
            for user in 0..KEYS {
                node.ask_about(&name(user), false, now());
            }
            assert_eq!(node.shares.owed(), KEYS);
            assert!(node.shares.bytes() > KEYS * length);
            let most = node.shares.room();
            assert!(most > KEYS * 40, "{most}");
            while let Some((key, _)) = node.shares.next_due() {
                let begun = node.shares.begin(&key, now(), |_| None);
                if let PaymentStart::Started(order, _) = begun {
                    let paid = PaymentOutcome::Made(Some(now().monotonic));
                    node.shares.finish(&order, &paid, now());
                }
            }
            assert_eq!(node.shares.owed(), 0);
            if is_swept {
                let hours = Duration::from_secs(3 * 3_600);
                node.shares.sweep(later(hours), Instant::now(), false);
            } else {
                let recovered = Instant::now() + 2 * RECOVERY;
                (0..KEYS).for_each(|user| node.heard_about(&name(user), recovered));
            }
            assert_eq!(node.shares.bytes(), 0);
            let after = node.shares.room();
            assert!(after <= before + 4_096, "{before}, {most}, {after} bytes");
        };
        let mut config = Config::new();
        config.max_steps = MaxSteps::None;
        Runner::new(RandomScheduler::new(1), config).run(schedule);
    }
}

/// A store that loses some calls and answers others, for any time: lost calls stay counted.
#[test]
fn calls_that_are_lost_have_one_share_however_often_the_store_answers() {
    let denial_cache = Arc::new(DenialCache::new());
    for limit in limits() {
        let denial_cache = Arc::clone(&denial_cache);
        let schedule = move || {
            let node = Node::new(limit.clone(), &denial_cache);
            for call in 0..4 * SHARE {
                node.ask(true);
                if call % 3 == 0 {
                    node.answered(&node.add_in_flight(0), 0);
                    node.denial_cache.forget(Node::key());
                    assert!(node.shares.is_settled() && !node.shares.is_empty());
                }
            }
            assert_eq!(node.admitted.load(Ordering::SeqCst), SHARE, "{limit}");
            assert_eq!(node.shares.owed(), 0);
            // Later it is as if nothing had happened.
            node.answered(&node.add_in_flight(0), 0);
            node.denial_cache.forget(Node::key());
            let hours = Duration::from_secs(3 * 3_600);
            node.shares.sweep(later(hours), Instant::now(), false);
            assert!(node.shares.is_empty(), "{limit}");
        };
        model::check(1, schedule);
    }
}

/// A key is repaid before the node notices that its server takes writes again, so the server recovers for
/// longer than the key: callers meanwhile find the used share, not a new one.
#[test]
fn a_paid_share_is_kept_for_as_long_as_its_server_recovers() {
    let denial_cache = Arc::new(DenialCache::new());
    for limit in limits() {
        let denial_cache = Arc::clone(&denial_cache);
        let schedule = move || {
            let node = Node::new(limit.clone(), &denial_cache);
            (0..2 * SHARE).for_each(|_| node.ask(false));
            assert_eq!(node.admitted.load(Ordering::SeqCst), SHARE, "{limit}");
            node.pay(&PaymentOutcome::Made(None));
            let recovered = Instant::now() + 2 * RECOVERY;
            node.shares.sweep(now(), recovered, true);
            assert!(node.admit().is_none(), "{limit}");
            assert!(!node.shares.is_settled());
            node.shares.sweep(now(), recovered, false);
            assert!(node.shares.is_settled(), "{limit}: the store decides");
        };
        model::check(1, schedule);
    }
}

/// A store that takes writes again answers calls that were sent before the share began: the share leaves
/// room for what they may be charged, and continues without what they were charged.
#[test]
fn what_the_store_charges_beside_a_share_leaves_less_of_it() {
    let denial_cache = Arc::new(DenialCache::new());
    for limit in limits() {
        let denial_cache = Arc::clone(&denial_cache);
        let schedule = move || {
            denial_cache.forget(Node::key());
            let node = Node::new(limit.clone(), &denial_cache);
            let admitted = || node.admitted.load(Ordering::SeqCst);
            let (two, three) = (node.add_in_flight(2), node.add_in_flight(3));
            node.ask(false);
            assert_eq!(admitted(), 0, "{limit}: the store may admit all five");
            node.denial_cache.remove_in_flight(&three);
            node.ask(false);
            node.answered(&two, 2);
            (0..SHARE).for_each(|_| node.ask(false));
            assert_eq!(admitted(), SHARE - 2, "{limit}");
        };
        model::check(1, schedule);
    }
}

/// A store in one place, which sometimes refuses to write.
#[derive(Default)]
struct OneStore {
    state: shuttle::sync::Mutex<StoreState>,
}

#[derive(Default)]
struct StoreState {
    used: u64,
    refuses: bool,
    clock: u64,
}

impl OneStore {
    fn tick(&self) -> u64 {
        let mut state = self.state.lock().expect("nobody failed");
        state.clock += 1;
        state.clock
    }

    /// Charges all of `units` or none. Returns the answer, with the time of its clock; `None` if it
    /// refuses to write.
    fn charge(&self, units: u64) -> Option<(Decision, u64)> {
        let mut state = self.state.lock().expect("nobody failed");
        if state.refuses {
            return None;
        }
        state.clock += 1;
        let passes = state.used + units <= SHARE;
        state.used += if passes { units } else { 0 };
        let said = match passes {
            true => decision(Verdict::Allow, state.used),
            false => refusal(state.used),
        };
        Some((said, state.clock))
    }

    fn turn(&self) {
        let mut state = self.state.lock().expect("nobody failed");
        state.refuses = !state.refuses;
    }
}

impl Node {
    /// Asks as a store with a fallback does. Whether the time after a payment is over is left to chance.
    fn call(&self, store: &OneStore) {
        let instant = |node: &Self| {
            let is_over = thread_rng().gen_range(0..2) == 0;
            let instant = Instant::now()
                + if is_over {
                    RECOVERY * 2
                } else {
                    Duration::ZERO
                };
            node.shares.is_recovering(KEY, instant)
        };
        for _ in 0..2 {
            if !self.pay_to(store) {
                break;
            }
            thread::yield_now();
            let is_beside = instant(self);
            let flight = match is_beside {
                true => self.admit(),
                false => Some(self.add_in_flight(1)),
            };
            let Some(flight) = flight else { return };
            let may_be_sent =
                self.shares.is_idle() || ((is_beside || !instant(self)) && !self.shares.owes(KEY));
            if !may_be_sent {
                self.denial_cache.remove_in_flight(&flight);
                continue;
            }
            let asked = store.tick();
            let charged = store.charge(1);
            thread::yield_now();
            let Some((said, decided)) = charged else {
                self.denial_cache.remove_in_flight(&flight);
                break;
            };
            let passed = u64::from(said.outcome.is_allow());
            self.admitted.fetch_add(passed, Ordering::SeqCst);
            let answered = answered_between(asked, store.tick(), decided);
            self.complete((&flight, is_beside), passed, answered, &said);
            return;
        }
        self.ask(false);
    }

    /// Repays the debt. Returns whether nothing is owed then.
    fn pay_to(&self, store: &OneStore) -> bool {
        let (order, _) = match self.shares.begin(KEY, now(), |_| None) {
            PaymentStart::Nothing => return true,
            PaymentStart::Joined(_) => return false,
            PaymentStart::Started(order, paid) => (order, paid),
        };
        let asked = store.tick();
        let paid = store.charge(order.units);
        if let Some((said, decided)) = paid {
            assert!(said.outcome.is_allow(), "what is owed fits: {said:?}");
            let answered = answered_between(asked, store.tick(), decided);
            self.denial_cache
                .note(Self::key(), &self.charge(), &said, answered);
        }
        let outcome = match paid {
            Some(_) => PaymentOutcome::Made(None),
            None => PaymentOutcome::Unpaid,
        };
        thread::yield_now();
        self.shares.finish(&order, &outcome, now());
        paid.is_some()
    }
}

fn answered_between(asked: u64, heard: u64, decided: u64) -> AnswerTime {
    AnswerTime {
        asked: later(Duration::from_nanos(asked)).monotonic,
        heard: later(Duration::from_nanos(heard)).monotonic,
        decided: Wall::from_nanos(decided),
    }
}

/// A store that stops and resumes taking writes at any moment, with callers at any moment: the store and
/// the share together admit the limit, each unit once, and nothing is lost.
#[test]
fn a_store_that_comes_and_goes_and_the_share_admit_the_limit_together() {
    let denial_cache = Arc::new(DenialCache::new());
    for limit in limits() {
        let denial_cache = Arc::clone(&denial_cache);
        let schedule = move || {
            denial_cache.forget(Node::key());
            let node = Arc::new(Node::new(limit.clone(), &denial_cache));
            let store = Arc::new(OneStore::default());
            let mut threads = Vec::new();
            for _ in 0..3 {
                let (node, store) = (Arc::clone(&node), Arc::clone(&store));
                threads.push(thread::spawn(move || {
                    (0..4).for_each(|_| node.call(&store));
                }));
            }
            let turning = Arc::clone(&store);
            threads.push(thread::spawn(move || {
                for _ in 0..4 {
                    turning.turn();
                    thread::yield_now();
                }
            }));
            for thread in threads {
                thread.join().expect("it ends");
            }
            let admitted = || node.admitted.load(Ordering::SeqCst);
            assert!(admitted() <= SHARE, "{limit}: {}", admitted());
            assert_eq!(denial_cache.in_flight(Node::key()), 0, "all were answered");
            while !node.pay_to(&store) {}
            for _ in 0..500 {
                if admitted() < SHARE {
                    node.call(&store);
                }
            }
            while !node.pay_to(&store) {}
            assert_eq!(admitted(), SHARE, "{limit}");
            let state = store.state.lock().expect("nobody failed");
            assert_eq!(state.used, SHARE, "{limit}: charged once");
        };
        model::check(SCHEDULES / 4, schedule);
    }
}

/// A task that may be dropped at any point, and work that is added at any moment: no work stays behind,
/// and there is never a second task.
#[test]
fn work_that_comes_as_the_task_ends_is_done() {
    let schedule = || {
        let background = Arc::new(Background::default());
        let (work, tasks) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let bring = {
            let (background, work) = (Arc::clone(&background), Arc::clone(&work));
            move |may_be_lost: bool| {
                work.fetch_add(1, Ordering::SeqCst);
                if !background.try_begin() {
                    return;
                }
                let (background, work) = (Arc::clone(&background), Arc::clone(&work));
                let tasks = Arc::clone(&tasks);
                let task = thread::spawn(move || {
                    loop {
                        assert_eq!(tasks.fetch_add(1, Ordering::SeqCst), 0, "one at a time");
                        let is_lost = may_be_lost && thread_rng().gen_range(0..4) == 0;
                        if !is_lost {
                            work.store(0, Ordering::SeqCst);
                        }
                        tasks.fetch_sub(1, Ordering::SeqCst);
                        if is_lost {
                            background.mark_lost();
                            return;
                        }
                        if background.try_end(|| work.load(Ordering::SeqCst) > 0) {
                            return;
                        }
                    }
                });
                task.join().expect("it ends");
            }
        };
        let may_be_lost = thread_rng().gen_range(0..2) == 0;
        let threads = (0..3).map(|_| {
            thread::spawn({
                let bring = bring.clone();
                move || bring(may_be_lost)
            })
        });
        for thread in threads.collect::<Vec<_>>() {
            thread.join().expect("it ends");
        }
        if may_be_lost {
            // Work left by a lost task is done together with the next work.
            bring(false);
        }
        assert_eq!(work.load(Ordering::SeqCst), 0, "all of it was done");
    };
    model::check(SCHEDULES, schedule);
}

/// A key whose refusal has ended, and its callers.
#[derive(Default)]
struct Hot {
    stampede_gate: Arc<StampedeGate>,
    is_refused: AtomicBool,
    asking: AtomicU64,
    most: AtomicU64,
    asked: AtomicU64,
}

impl Hot {
    /// Asks once as a caller does, and gets the answer of `heard`. `None`: it goes away in between.
    fn ask(&self, heard: impl Fn() -> Option<ProbeAnswer>) {
        loop {
            if self.is_refused.load(Ordering::SeqCst) {
                return;
            }
            let Some(turn) = future::block_on(self.stampede_gate.turn()) else {
                continue;
            };
            if self.is_refused.load(Ordering::SeqCst) {
                return;
            }
            self.asked.fetch_add(1, Ordering::SeqCst);
            let asking = self.asking.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(asking, Ordering::SeqCst);
            thread::yield_now();
            self.asking.fetch_sub(1, Ordering::SeqCst);
            let heard = heard();
            if heard == Some(ProbeAnswer::Refusal) {
                self.is_refused.store(true, Ordering::SeqCst);
            }
            if let Some(heard) = heard {
                turn.end(heard);
            }
            return;
        }
    }

    /// Waits, and goes away before its turn.
    fn remove_in_flight(&self) {
        let mut turn = Box::pin(self.stampede_gate.turn());
        let mut context = Context::from_waker(Waker::noop());
        let _ = turn.as_mut().poll(&mut context);
        thread::yield_now();
    }
}

/// Lets five callers come at once, one of whom goes away. Returns the result.
fn stampede_gate(
    heard: impl Fn() -> Option<ProbeAnswer> + Copy + Send + Sync + 'static,
) -> Arc<Hot> {
    let hot = Arc::new(Hot::default());
    let callers = (0..5).map(|number| {
        let hot = Arc::clone(&hot);
        thread::spawn(move || match number {
            2 => hot.remove_in_flight(),
            _ => hot.ask(heard),
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.join().expect("it ends");
    }
    assert!(
        future::block_on(hot.stampede_gate.turn()).is_some(),
        "it goes on"
    );
    hot
}

#[test]
fn nobody_who_waits_for_others_is_left_behind() {
    let any = || match thread_rng().gen_range(0..5) {
        0 => None,
        1 => Some(ProbeAnswer::Refusal),
        2 => Some(ProbeAnswer::Nothing),
        room => Some(ProbeAnswer::Room(room - 3)),
    };
    let schedule = move || drop(stampede_gate(any));
    model::check(SCHEDULES, schedule);
}

#[test]
fn one_asks_for_all_until_it_is_known_that_more_fit() {
    model::check(SCHEDULES, || {
        let hot = stampede_gate(|| None);
        assert_eq!(hot.most.load(Ordering::SeqCst), 1, "one after the other");
        assert_eq!(hot.asked.load(Ordering::SeqCst), 4);
        let hot = stampede_gate(|| Some(ProbeAnswer::Refusal));
        // A caller that read the cache before the refusal was known may ask as well.
        assert!(hot.most.load(Ordering::SeqCst) <= 2);
    });
}
