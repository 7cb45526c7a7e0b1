//! Repay: probes a store that is gone, and charges to it what was admitted meanwhile.
//!
//! A background task does both for as long as there is work, whether or not calls come. A call on a key
//! waits until the key's debt is paid, so that no caller finds a fresh burst there. Each payment is a task
//! of its own: it is not cancelled with the call that started it. If the debt no longer fits, the payment
//! fills the key up.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use quell_core::charge::{LimitSet, Operation};
use quell_core::cost::Cost;
use quell_core::limit::Limit;
use quell_core::rule::CalendarEdges;
use quell_core::time::{Monotonic, Now};
use scopeguard::ScopeGuard;
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::Inner;
use super::denial_cache::AnswerTime;
use super::local_debt::{PaymentOrder, PaymentOutcome, PaymentStart, PaymentWatch};
use crate::remote::{FailureKind, RemoteFailure, RemoteStore, ServerStatus, SetFailure};
use quell::store::{Action, Answer};

/// Payments under way at a time in the background.
const MAX_CONCURRENT: usize = 64;

/// The most keys per round that are skipped because their server takes no payment now, while other servers
/// may: skipping this many takes a few milliseconds.
const MAX_SKIPPED: usize = 4_096;

/// The pause between two rounds while there is something to do.
const MIN_PAUSE: Duration = Duration::from_millis(100);

/// The pause between two rounds if the store refuses payments, or if only time has to pass.
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// A payment on its way: its outcome is noted when it ends, also if its task is dropped.
struct RunningPayment<S: RemoteStore> {
    inner: Arc<Inner<S>>,
    order: Box<PaymentOrder>,
    outcome: PaymentOutcome,
    result: Result<(), RemoteFailure>,
}

impl<S: RemoteStore> Drop for RunningPayment<S> {
    fn drop(&mut self) {
        let now = self.inner.clock.now();
        self.inner.shares.finish(&self.order, &self.outcome, now);
        self.order.done.send_replace(Some(self.result.clone()));
    }
}

impl<S: RemoteStore> Inner<S> {
    /// Returns true if there is background work.
    pub(super) fn has_work(&self) -> bool {
        !self.shares.is_empty()
            || self.store.is_any_gone()
            || self.recovery.is_any()
            || self.outage.is_on()
    }

    /// Makes sure that a task probes lost servers, repays debts, and detects the end of an outage.
    pub(super) fn keep_repaying(self: &Arc<Self>) {
        if !self.has_work() || !self.repaying.try_begin() {
            return;
        }
        // If the task is dropped before its work is done.
        let task = scopeguard::guard(Arc::downgrade(self), |inner| {
            if let Some(inner) = inner.upgrade() {
                inner.repaying.mark_lost();
                // No task would notice the end of the outage.
                inner.outage.forget();
            }
        });
        // Outside of a runtime there is no task.
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        runtime.spawn(async move {
            let mut pause = MIN_PAUSE;
            loop {
                tokio::time::sleep(pause).await;
                let Some(inner) = task.upgrade() else {
                    return;
                };
                pause = inner.repay(pause).await;
                if inner.repaying.try_end(|| inner.has_work()) {
                    ScopeGuard::into_inner(task);
                    return;
                }
            }
        });
    }

    /// Does what is due. Returns how long to wait before the next time.
    async fn repay(self: &Arc<Self>, pause: Duration) -> Duration {
        self.probe_gone().await;
        self.probe_read_only().await;
        let is_paid = self.pay_all().await;
        self.exchange_debts().await;
        let now = Instant::now();
        let is_recovering = self.recovery.sweep(now);
        self.shares
            .sweep(self.clock.now(), now, self.recovery.is_any());
        self.check_for_end().await;
        if self.store.is_any_gone() || (is_paid && (is_recovering || self.shares.owed() > 0)) {
            return MIN_PAUSE;
        }
        (pause * 2).min(MAX_PAUSE)
    }

    /// Probes lost servers whose pause is over.
    async fn probe_gone(&self) {
        if !self.store.is_any_gone() {
            return;
        }
        let now = Instant::now();
        let servers = self.store.servers();
        let mut probes = Vec::new();
        for server in &servers {
            if let ServerStatus::Gone { is_probe_due } = self.store.status(server, now.into_std()) {
                self.recovery.gone(server, now);
                // The probe itself records the answer.
                probes.extend(is_probe_due.then(|| self.store.probe(server)));
            }
        }
        join_all(probes).await;
    }

    /// Probes whether servers that refused writes take them again.
    async fn probe_read_only(&self) {
        let servers = self.recovery.readonly();
        let looks = servers.iter().filter(|server| self.is_up(server));
        let looks = looks.map(|server| async move {
            if self.store.probe(server).await.is_ok() {
                self.recovery.takes_writes(server, Instant::now());
            }
        });
        join_all(looks).await;
    }

    fn is_up(&self, server: &S::Server) -> bool {
        self.store.status(server, Instant::now().into_std()) == ServerStatus::Up
    }

    /// Reports this node's debts to other nodes and reads theirs, if it is time for that.
    async fn exchange_debts(&self) {
        let is_gone = self.store.is_any_gone() && !self.store.is_spread();
        if is_gone || !self.recovery.take_due(Instant::now()) {
            return;
        }
        let owes = self.shares.owed() > 0;
        let others = self.store.others_owe(self.node, owes).await;
        let waits = self.recovery.hear(others.ok(), Instant::now());
        self.shares.wait_for_others(waits);
    }

    /// Repays all keys whose server takes payments. Returns whether everything was repaid.
    async fn pay_all(self: &Arc<Self>) -> bool {
        let is_spread = self.store.is_spread();
        let max_skipped = if is_spread { MAX_SKIPPED } else { 1 };
        let (mut left, mut skipped, mut is_all) = (self.shares.due(), 0, true);
        let mut refusing: Vec<S::Server> = Vec::new();
        while left > 0 && skipped < max_skipped {
            // This comes before the first payment, so that no node believes that all have repaid.
            self.exchange_debts().await;
            let mut payments = Vec::new();
            while left > 0 && skipped < max_skipped && payments.len() < MAX_CONCURRENT {
                left -= 1;
                let Some((key, scope)) = self.shares.next_due() else {
                    break;
                };
                let server = self.store.server_of(&key, scope);
                if !self.is_up(&server) || refusing.contains(&server) {
                    self.shares.requeue(&key);
                    skipped += 1;
                } else if let Some(paid) = self.pay(&key, self.clock.now()) {
                    payments.push(async move { (server, result_of(paid).await) });
                }
            }
            for (server, result) in join_all(payments).await {
                is_all &= result.is_ok();
                // A foreign value under one key says nothing about other keys.
                if result.is_err_and(|failure| failure.kind != FailureKind::OneKey) {
                    refusing.push(server);
                }
            }
        }
        is_all && skipped == 0
    }

    /// Waits until the debts of a set's keys are repaid, or an attempt was made: each attempt is limited
    /// in time.
    pub(super) async fn repaid(
        self: &Arc<Self>,
        set: &LimitSet<'_>,
        now: Now,
    ) -> Result<(), RemoteFailure> {
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
        join_all(payments).await.into_iter().collect()
    }

    /// Starts to repay a key, or joins the caller that does; `None` if there is no debt.
    fn pay(self: &Arc<Self>, key: &[u8], now: Now) -> Option<PaymentWatch> {
        let edges = |limit: &Limit| {
            let calendar = limit.calendar();
            calendar.map(|unit| self.calendar.edges(unit, now.wall))
        };
        match self.shares.begin(key, now, edges) {
            PaymentStart::Nothing => None,
            PaymentStart::Joined(paid) => Some(paid),
            PaymentStart::Started(order, paid) => {
                let mut payment = RunningPayment {
                    inner: Arc::clone(self),
                    order,
                    outcome: PaymentOutcome::Unpaid,
                    result: Err(given_up()),
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

/// The task of a payment ended before the payment did.
fn given_up() -> RemoteFailure {
    RemoteFailure::unreachable("the payment was given up")
}

async fn result_of(mut paid: PaymentWatch) -> Result<(), RemoteFailure> {
    let done = paid.wait_for(Option::is_some).await;
    let result = done.ok().and_then(|done| done.clone());
    result.unwrap_or_else(|| Err(given_up()))
}

impl<S: RemoteStore> RunningPayment<S> {
    async fn make(&mut self, now: Now) -> Result<(), RemoteFailure> {
        let Self {
            inner,
            order,
            outcome,
            ..
        } = self;
        let (inner, mut charge) = (&**inner, order.charge());
        if let Some(left) = order.ban {
            let set = LimitSet::from_key_bytes(&order.key, order.scope, &charge);
            let ban = Action::Ban(left, None);
            inner.store.try_administer(&set, ban, now).await?;
        }
        let (mut is_made, mut rests) = (false, None);
        if let Some(cost) = Cost::new(order.units) {
            charge.cost = cost;
            let set = &LimitSet::from_key_bytes(&order.key, order.scope, &charge);
            // A refusal would count towards a ban.
            if charge.active.limit.ban().is_none() {
                let decided = inner.store.try_decide(set, Operation::Acquire, now);
                (is_made, rests) = inner.answer(set, outcome, decided).await?;
            }
            if !is_made {
                let paid = inner.store.try_pay(set, now);
                (_, rests) = inner.answer(set, outcome, paid).await?;
            }
        }
        *outcome = PaymentOutcome::Made(rests);
        Ok(())
    }
}

impl<S: RemoteStore> Inner<S> {
    /// Awaits the answer to a payment: whether it was allowed, and when the store's state will be at rest.
    async fn answer(
        &self,
        set: &LimitSet<'_>,
        outcome: &mut PaymentOutcome,
        attempt: impl Future<Output = Result<Answer, SetFailure>>,
    ) -> Result<(bool, Option<Monotonic>), RemoteFailure> {
        let asked = self.clock.monotonic();
        // If this task ends here, the outcome is unknown.
        *outcome = PaymentOutcome::Unknown;
        let answer = attempt.await;
        let is_uncertain = |undecided: &SetFailure| !undecided.uncertain.is_empty();
        if !answer.as_ref().is_err_and(is_uncertain) {
            *outcome = PaymentOutcome::Unpaid;
        }
        let answer = answer.map_err(|undecided| undecided.failure)?;
        let answered = AnswerTime {
            asked,
            heard: self.clock.monotonic(),
            decided: answer.store_time.unwrap_or_default(),
        };
        // A payment is one charge.
        let Some((charge, decision)) = set.charges().first().zip(answer.decisions.first()) else {
            return Ok((false, None));
        };
        let key = set.key(charge);
        self.denial_cache.note(key, charge, decision, answered);
        let rests = answered.heard.saturating_add(decision.reset_after);
        Ok((decision.outcome.is_allow(), Some(rests)))
    }
}
