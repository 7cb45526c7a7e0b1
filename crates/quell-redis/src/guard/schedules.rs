//! Local shares under many schedules: whatever the order in which callers, payments and the sweep
//! come, a share is never exceeded, and every unit is owed, paid or on its way. And crowds: nobody who
//! waits for others is left behind.
//!
//! A scheduler chooses who runs next wherever the table is locked.

use std::future::Future;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use quell::clock::ManualClock;
use quell_core::charge::{Charge, LimitSet, Operation};
use quell_core::cost::Cost;
use quell_core::limit::{Installed, Limit, LimitId};
use quell_core::rule::OnFailure;
use quell_core::time::{Monotonic, Now};
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use shuttle::{future, thread};

use super::background::Background;
use super::crowd::{Crowd, CrowdNews};
use super::known::Known;
use super::local_share::{Begun, How, LocalShares, Outcome};
use crate::sync::model;

const SCHEDULES: usize = 2_000;

const SHARE: u64 = 5;

const KEY: &[u8] = b"key";

struct Node {
    shares: LocalShares,
    known: Arc<Known>,
    clock: ManualClock,
    installed: Installed,
    admitted: AtomicU64,
    /// Units that the store was charged.
    paid: AtomicU64,
    /// Units of payments that got no answer.
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
    fn new(limit: Limit, known: &Arc<Known>) -> Self {
        Self {
            shares: LocalShares::default(),
            known: Arc::clone(known),
            clock: ManualClock::new(now()),
            installed: Installed {
                id: LimitId(1),
                limit,
                since: Monotonic::ORIGIN,
                place: Arc::default(),
            },
            admitted: AtomicU64::default(),
            paid: AtomicU64::default(),
            unknown: AtomicU64::default(),
        }
    }

    /// Asks once, as if the store had failed; a call that is lost may have been charged.
    fn ask(&self, is_lost: bool) {
        self.ask_at(is_lost, now());
    }

    fn ask_at(&self, is_lost: bool, now: Now) {
        let charge = Charge::alone(&self.installed, Cost::ONE);
        let set = LimitSet::written_down(KEY, KEY.len(), &charge);
        let declared = OnFailure::Share {
            nodes: NonZeroU32::MIN,
        };
        let parts = set.charges().iter().map(|charge| {
            let part = self.shares.part(set.key(charge), charge, declared);
            let mut part = part.expect("it can be shared");
            part.may_be_charged = is_lost;
            part
        });
        let parts: Vec<_> = parts.collect();
        let how = How {
            operation: Operation::Acquire,
            is_recovering: false,
        };
        let decisions = self
            .shares
            .decide(&parts, how, now, &self.known, &self.clock);
        let passed = decisions.iter().filter(|said| said.outcome.is_allow());
        self.admitted
            .fetch_add(passed.count() as u64, Ordering::SeqCst);
    }

    /// The store answered about the key, and charged so many units.
    fn answered(&self, units: u64) {
        let at = Charge::alone(&self.installed, Cost::ONE).at(now());
        self.shares.answered(KEY, units, &at, Instant::now());
    }

    /// Pays what is owed, if nobody does.
    fn pay(&self, outcome: &Outcome) {
        let Begun::Started(order, _) = self.shares.begin(KEY, now(), |_| None) else {
            return;
        };
        thread::yield_now();
        match outcome {
            Outcome::Made(_) => self.paid.fetch_add(order.units, Ordering::SeqCst),
            Outcome::Unknown => self.unknown.fetch_add(order.units, Ordering::SeqCst),
            Outcome::Unpaid => 0,
        };
        self.shares.finish(&order, outcome, now());
    }
}

fn any_outcome() -> Outcome {
    match thread_rng().gen_range(0..4) {
        0 => Outcome::Made(Some(now().monotonic)),
        1 => Outcome::Unknown,
        _ => Outcome::Unpaid,
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
    let known = Arc::new(Known::new());
    for limit in limits() {
        let known = Arc::clone(&known);
        let schedule = move || {
            let node = Arc::new(Node::new(limit.clone(), &known));
            let mut threads = Vec::new();
            for _ in 0..3 {
                let node = Arc::clone(&node);
                threads.push(thread::spawn(move || (0..3).for_each(|_| node.ask(false))));
            }
            for _ in 0..2 {
                let node = Arc::clone(&node);
                threads.push(thread::spawn(move || {
                    (0..3).for_each(|_| node.pay(&any_outcome()));
                    node.shares.sweep(now());
                }));
            }
            for thread in threads {
                thread.join().expect("it ends");
            }
            let read = |count: &AtomicU64| count.load(Ordering::SeqCst);
            assert_eq!(read(&node.admitted), SHARE, "of 9 that asked");
            let is_seen_to = node.shares.owed() == 0 || node.shares.due() > 0;
            assert!(is_seen_to, "what is owed waits to be paid");
            node.pay(&Outcome::Made(None));
            assert_eq!(node.shares.owed(), 0);
            let told = read(&node.paid) + read(&node.unknown);
            assert_eq!(told, SHARE, "paid, or perhaps paid");
        };
        model::check(SCHEDULES, schedule);
    }
}

/// A store that loses calls and answers others, for as long as it wants: what was lost stays counted.
#[test]
fn calls_that_are_lost_have_one_share_however_often_the_store_answers() {
    let known = Arc::new(Known::new());
    for limit in limits() {
        let known = Arc::clone(&known);
        let schedule = move || {
            let node = Node::new(limit.clone(), &known);
            for call in 0..4 * SHARE {
                node.ask(true);
                if call % 3 == 0 {
                    node.answered(0);
                    assert!(node.shares.is_settled() && !node.shares.is_empty());
                }
            }
            assert_eq!(node.admitted.load(Ordering::SeqCst), SHARE, "{limit}");
            assert_eq!(node.shares.owed(), 0);
            // Later it is as if nothing had been.
            node.answered(0);
            let hours = Duration::from_secs(3 * 3_600);
            node.shares.sweep(later(hours));
            assert!(node.shares.is_empty(), "{limit}");
        };
        model::check(1, schedule);
    }
}

/// A store that takes writes again answers calls that were sent before the share began: what it charged
/// them is no part of the share, and what both let pass of one unit is waited off.
#[test]
fn what_the_store_charges_beside_a_share_leaves_less_of_it() {
    let known = Arc::new(Known::new());
    for limit in limits() {
        let known = Arc::clone(&known);
        let schedule = move || {
            let node = Node::new(limit.clone(), &known);
            let admitted = || node.admitted.load(Ordering::SeqCst);
            node.ask(false);
            node.answered(2);
            (0..SHARE).for_each(|_| node.ask(false));
            assert_eq!(admitted(), SHARE - 2, "{limit}");
            node.answered(1);
            node.ask(false);
            assert_eq!(admitted(), SHARE - 2, "{limit}");
            if limit == Limit::per_hour(SHARE).build().expect("possible") {
                let (one, two) = (Duration::from_secs(720), Duration::from_secs(1_440));
                node.ask_at(false, later(one));
                assert_eq!(admitted(), SHARE - 2, "one too many is waited off");
                node.ask_at(false, later(two));
                assert_eq!(admitted(), SHARE - 1);
            }
        };
        model::check(1, schedule);
    }
}

/// A task that may be dropped where it stands, and work that comes at any moment: none of it stays
/// behind, and there is never a second task.
#[test]
fn work_that_comes_as_the_task_ends_is_done() {
    let schedule = || {
        let background = Arc::new(Background::new());
        let (work, tasks) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let bring = {
            let (background, work) = (Arc::clone(&background), Arc::clone(&work));
            move |may_be_lost: bool| {
                work.fetch_add(1, Ordering::SeqCst);
                if !background.begins() {
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
                            background.is_lost();
                            return;
                        }
                        if background.ends(|| work.load(Ordering::SeqCst) > 0) {
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
            // What a lost task left behind is done with the next work that comes.
            bring(false);
        }
        assert_eq!(work.load(Ordering::SeqCst), 0, "all of it was done");
    };
    model::check(SCHEDULES, schedule);
}

/// A key whose refusal is over, and those who come then.
#[derive(Default)]
struct Hot {
    crowd: Arc<Crowd>,
    is_refused: AtomicBool,
    asking: AtomicU64,
    most: AtomicU64,
    asked: AtomicU64,
}

impl Hot {
    /// Asks once as a caller does, and is told what `heard` says. `None`: it goes away in between.
    fn ask(&self, heard: impl Fn() -> Option<CrowdNews>) {
        loop {
            if self.is_refused.load(Ordering::SeqCst) {
                return;
            }
            let Some(turn) = future::block_on(self.crowd.turn()) else {
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
            if heard == Some(CrowdNews::Refusal) {
                self.is_refused.store(true, Ordering::SeqCst);
            }
            if let Some(heard) = heard {
                turn.end(heard);
            }
            return;
        }
    }

    /// Comes, and goes away before it is its turn.
    fn give_up(&self) {
        let mut turn = Box::pin(self.crowd.turn());
        let mut context = Context::from_waker(Waker::noop());
        let _ = turn.as_mut().poll(&mut context);
        thread::yield_now();
    }
}

/// Lets five come at once, of whom one goes away; what became of it.
fn crowd(heard: impl Fn() -> Option<CrowdNews> + Copy + Send + Sync + 'static) -> Arc<Hot> {
    let hot = Arc::new(Hot::default());
    let callers = (0..5).map(|number| {
        let hot = Arc::clone(&hot);
        thread::spawn(move || match number {
            2 => hot.give_up(),
            _ => hot.ask(heard),
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.join().expect("it ends");
    }
    assert!(future::block_on(hot.crowd.turn()).is_some(), "it goes on");
    hot
}

#[test]
fn nobody_who_waits_for_others_is_left_behind() {
    let any = || match thread_rng().gen_range(0..5) {
        0 => None,
        1 => Some(CrowdNews::Refusal),
        2 => Some(CrowdNews::Nothing),
        room => Some(CrowdNews::Room(room - 3)),
    };
    let schedule = move || drop(crowd(any));
    model::check(SCHEDULES, schedule);
}

#[test]
fn one_asks_for_all_until_it_is_known_that_more_fit() {
    model::check(SCHEDULES, || {
        let hot = crowd(|| None);
        assert_eq!(hot.most.load(Ordering::SeqCst), 1, "one after the other");
        assert_eq!(hot.asked.load(Ordering::SeqCst), 4);
        let hot = crowd(|| Some(CrowdNews::Refusal));
        // Whoever had looked before the refusal was known may ask as well.
        assert!(hot.most.load(Ordering::SeqCst) <= 2);
    });
}
