//! Repay: looks for a store that is gone, and charges to it what was let pass meanwhile.
//!
//! A task does both for as long as there is something to do, whether or not anybody asks. Whoever
//! asks about a key waits until that is paid, so that nobody finds a fresh burst there. A payment is
//! a task as well: it is not given up with the call that began it. What does not fit any more fills
//! the key up.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use quell::store::Action;
use quell_core::charge::{LimitSet, Operation};
use quell_core::cost::Cost;
use quell_core::decision::Decision;
use quell_core::limit::Limit;
use quell_core::rule::CalendarEdges;
use quell_core::time::{Monotonic, Now};

use super::local_share::{Begun, Order, Outcome, Paid};
use super::{Inner, as_unsent};
use crate::link::Failure;

/// Payments that are on their way at once in the background.
const AT_ONCE: usize = 64;

/// How often one payment is cut down to what fits: others charge the key at the same time.
const MOST_TRIES: usize = 4;

/// Between two looks, while something is to be done.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);

/// Between two looks at a store that refuses what is owed, or while only time has to pass.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The task that looks and pays; says that it is no more when it ends, however it ends.
struct Repaying {
    inner: Weak<Inner>,
    is_over: bool,
}

impl Drop for Repaying {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.upgrade().filter(|_| !self.is_over) {
            inner.repaying.is_lost();
        }
    }
}

/// A payment on its way: what became of it is noted when it ends, however it ends.
struct OnItsWay {
    inner: Arc<Inner>,
    order: Box<Order>,
    outcome: Outcome,
    result: Result<(), Failure>,
}

impl Drop for OnItsWay {
    fn drop(&mut self) {
        let now = self.inner.clock.now();
        self.inner.shares.finish(&self.order, &self.outcome, now);
        self.order.done.send_replace(Some(self.result.clone()));
    }
}

impl Inner {
    /// Whether there is anything to do without being asked.
    pub(super) fn has_work(&self) -> bool {
        !self.shares.is_empty() || self.store.link.is_any_gone() || self.recovery.is_any()
    }

    /// Sees to it that a task looks for what is gone and pays what is owed.
    pub(super) fn keep_repaying(self: &Arc<Self>) {
        if !self.has_work() || !self.repaying.begins() {
            return;
        }
        let mut task = Repaying {
            inner: Arc::downgrade(self),
            is_over: false,
        };
        tokio::spawn(async move {
            let mut pause = SHORTEST_PAUSE;
            loop {
                tokio::time::sleep(pause).await;
                let Some(inner) = task.inner.upgrade() else {
                    return;
                };
                pause = inner.repay(pause).await;
                task.is_over = inner.repaying.ends(|| inner.has_work());
                if task.is_over {
                    return;
                }
            }
        });
    }

    /// Does what there is to do; returns how long to wait before the next time.
    async fn repay(self: &Arc<Self>, pause: Duration) -> Duration {
        self.look_for_the_gone().await;
        let is_paid = self.pay_all().await;
        self.shares.sweep(self.clock.now());
        let is_recovering = self.recovery.sweep(Instant::now());
        if self.store.link.is_any_gone() || (is_paid && (is_recovering || self.shares.owed() > 0)) {
            return SHORTEST_PAUSE;
        }
        (pause * 2).min(LONGEST_PAUSE)
    }

    /// Tries those who are gone again whose pause is over.
    async fn look_for_the_gone(&self) {
        if !self.store.link.is_any_gone() {
            return;
        }
        let now = Instant::now();
        let mut probes = Vec::new();
        for place in self.store.link.places() {
            let Some((_, is_due)) = place.breaker.gone(now) else {
                continue;
            };
            self.recovery.gone(&place, now);
            if let Some(probing) = is_due.then(|| place.begin_probe()).flatten() {
                probes.push(async move {
                    // What it says is noted on the way.
                    let _ = self.store.probe(probing.place()).await;
                });
            }
        }
        join_all(probes).await;
    }

    /// Pays what is owed of all keys whose server is there; says whether all was paid.
    async fn pay_all(self: &Arc<Self>) -> bool {
        let link = &self.store.link;
        if link.is_any_gone() && !link.is_spread() {
            return false;
        }
        let mut left = self.shares.due();
        let mut is_all = true;
        while left > 0 {
            let mut payments = Vec::new();
            while left > 0 && payments.len() < AT_ONCE {
                left -= 1;
                let Some((key, scope)) = self.shares.next_due() else {
                    break;
                };
                let name = || self.store.names.of_parts(&key, scope);
                if link.is_any_gone() && self.store.is_gone(&name()) {
                    self.shares.requeue(&key);
                    is_all = false;
                } else if let Some(paid) = self.pay(&key, self.clock.now()) {
                    payments.push(result_of(paid));
                }
            }
            let results = join_all(payments).await;
            is_all &= results.iter().all(Result::is_ok);
            // A value of somebody else's under one key says nothing of the others.
            let is_key = |failure: &Failure| matches!(failure, Failure::Foreign(_));
            let stops = |result: &Result<(), Failure>| result.as_ref().is_err_and(|f| !is_key(f));
            if results.iter().any(stops) {
                return false;
            }
        }
        is_all
    }

    /// Waits until what is owed of the keys of a set is paid, as long as a call may take.
    pub(super) async fn repaid(
        self: &Arc<Self>,
        set: &LimitSet<'_>,
        now: Now,
    ) -> Result<(), Failure> {
        if self.shares.owed() == 0 {
            return Ok(());
        }
        let payments = set.charges().iter().filter_map(|charge| {
            let paid = self.pay(set.key(charge).as_bytes(), now)?;
            Some(result_of(paid))
        });
        let payments: Vec<_> = payments.collect();
        if payments.is_empty() {
            return Ok(());
        }
        match tokio::time::timeout(self.store.timeout, join_all(payments)).await {
            Ok(results) => results.into_iter().collect(),
            Err(_) => Err(Failure::Unreachable(
                "what the key owes is not paid yet".to_owned(),
            )),
        }
    }

    /// Begins to pay what is owed of a key, or joins who does; `None`: nothing is owed.
    fn pay(self: &Arc<Self>, key: &[u8], now: Now) -> Option<Paid> {
        let edges = |limit: &Limit| {
            let calendar = limit.calendar();
            calendar.map(|unit| self.store.calendar.edges(unit, now.wall))
        };
        match self.shares.begin(key, now, edges) {
            Begun::Nothing => None,
            Begun::Joined(paid) => Some(paid),
            Begun::Started(order, paid) => {
                let mut payment = OnItsWay {
                    inner: Arc::clone(self),
                    order,
                    outcome: Outcome::Unpaid,
                    result: Err(Failure::Unreachable("the payment was given up".to_owned())),
                };
                tokio::spawn(async move {
                    payment.result = payment.make(now).await;
                    drop(payment);
                });
                Some(paid)
            }
        }
    }
}

async fn result_of(mut paid: Paid) -> Result<(), Failure> {
    let done = paid.wait_for(Option::is_some).await;
    let result = done.ok().and_then(|done| done.clone());
    result.unwrap_or_else(|| Err(Failure::Unreachable("the payment was given up".to_owned())))
}

impl OnItsWay {
    async fn make(&mut self, now: Now) -> Result<(), Failure> {
        let store = &self.inner.store;
        let mut charge = self.order.charge();
        let (key, scope) = (Arc::clone(&self.order.key), self.order.scope);
        if let Some(left) = self.order.ban {
            let set = LimitSet::written_down(&key, scope, &charge);
            let banned = store.try_administer(&set, Action::Ban(left), now).await;
            banned.map_err(as_unsent)?;
        }
        let mut owed = Cost::new(self.order.units);
        // A refusal would count towards a ban.
        let mut operation = match charge.installed.limit.ban() {
            Some(_) => Operation::Peek,
            None => Operation::Acquire,
        };
        let mut rests = None;
        for _ in 0..MOST_TRIES {
            let Some(cost) = owed else {
                break;
            };
            charge.cost = cost;
            let set = LimitSet::written_down(&key, scope, &charge);
            // Should this task end here, nobody knows.
            self.outcome = match operation {
                Operation::Acquire => Outcome::Unknown,
                Operation::Peek => Outcome::Unpaid,
            };
            let asked = self.inner.clock.monotonic();
            let answer = store.try_decide(&set, operation, now).await;
            let decisions = answer.map(|(decisions, _)| decisions).map_err(|failure| {
                if !matches!(failure, Failure::Unknown(_)) {
                    self.outcome = Outcome::Unpaid;
                }
                failure
            })?;
            let Some(decision) = decisions.first() else {
                break;
            };
            rests = Some(self.inner.heard(&set, decision, asked));
            if !decision.outcome.is_allow() {
                owed = Cost::new(cost.get().min(decision.remaining));
            } else if operation == Operation::Acquire {
                break;
            }
            operation = Operation::Acquire;
        }
        self.outcome = Outcome::Made(rests);
        Ok(())
    }
}

impl Inner {
    /// Notes what the store said to a payment; returns when its state rests.
    fn heard(&self, set: &LimitSet<'_>, decision: &Decision, asked: Monotonic) -> Monotonic {
        let heard = self.clock.monotonic();
        for charge in set.charges() {
            let key = set.key(charge);
            self.known.note(key, charge, decision, asked, heard);
        }
        heard.saturating_add(decision.reset_after)
    }
}
