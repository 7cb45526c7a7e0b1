//! Pay: charges to the store what was let pass while it was gone.
//!
//! A key that is asked about again is paid for first, so nobody finds a fresh burst there; the
//! others follow in the background. What does not fit any more fills the key up. A payment that got
//! no answer may have been made, and is not made again.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use quell::store::Action;
use quell_core::charge::{Charge, LimitSet, Operation};
use quell_core::cost::Cost;
use quell_core::rule::CalendarEdges;
use quell_core::time::Now;

use super::Inner;
use super::apart::Used;
use crate::link::Failure;

/// Payments that are on their way at once in the background.
const AT_ONCE: usize = 32;

/// How often one payment is cut down to what fits: others charge the key at the same time.
const MOST_TRIES: usize = 4;

impl Inner {
    /// Pays what is owed of the keys of a set.
    pub(super) async fn pay(&self, set: &LimitSet<'_>, now: Now) -> Result<(), Failure> {
        if self.apart.keys() == 0 {
            return Ok(());
        }
        for charge in set.charges() {
            self.pay_key(set.key(charge).as_bytes(), now).await?;
        }
        Ok(())
    }

    /// Pays what is owed of all keys, as long as the store takes it.
    pub(super) fn pay_in_background(self: &Arc<Self>) {
        if self.apart.keys() == 0 || self.is_paying.swap(true, Ordering::AcqRel) {
            return;
        }
        let inner = Arc::clone(self);
        tokio::spawn(async move {
            loop {
                let keys = inner.apart.some(AT_ONCE, |key, scope| {
                    let name = || inner.store.names.of_parts(key, scope);
                    !inner.store.link.is_any_gone() || !inner.store.is_gone(&name())
                });
                let now = inner.clock.now();
                let payments = keys.iter().map(|key| inner.pay_key(key, now));
                let paid = futures_util::future::join_all(payments).await;
                if keys.is_empty() || paid.iter().any(Result::is_err) {
                    break;
                }
            }
            inner.is_paying.store(false, Ordering::Release);
        });
    }

    async fn pay_key(&self, key: &[u8], now: Now) -> Result<(), Failure> {
        if !self.apart.has(key) {
            return Ok(());
        }
        // Who asks about the key meanwhile waits for the payment.
        let turn = key.iter().fold(0_usize, |sum, byte| {
            sum.wrapping_mul(31).wrapping_add(usize::from(*byte))
        });
        let turn = self.turns.get(turn % self.turns.len().max(1));
        let _turn = match turn {
            Some(turn) => Some(turn.lock().await),
            None => None,
        };
        let Some(used) = self.apart.take(key) else {
            return Ok(());
        };
        let whole = used.whole.clone();
        let mut charge = Charge::alone(&whole, Cost::ONE);
        let calendar = whole.limit.calendar();
        charge.edges = calendar.map(|unit| self.store.calendar.edges(unit, now.wall));
        let paid = self.pay_used(key, &used, charge.clone(), now).await;
        match &paid {
            Err(Failure::Unknown(_)) | Ok(()) => {}
            Err(_) => self.apart.put_back(key, used, &charge, now),
        }
        paid
    }

    async fn pay_used(
        &self,
        key: &[u8],
        used: &Used,
        mut charge: Charge<'_>,
        now: Now,
    ) -> Result<(), Failure> {
        let Some(scope) = used.scope else {
            return Ok(());
        };
        let (owed, ban) = used.owed(&charge, now);
        if let Some(left) = ban {
            let set = LimitSet::written_down(key, scope, &charge);
            self.store
                .try_administer(&set, Action::Ban(left), now)
                .await?;
        }
        let mut owed = Cost::new(owed);
        // A refusal would count towards a ban.
        let mut operation = match used.whole.limit.ban() {
            Some(_) => Operation::Peek,
            None => Operation::Acquire,
        };
        for _ in 0..MOST_TRIES {
            let Some(cost) = owed else {
                break;
            };
            charge.cost = cost;
            let set = LimitSet::written_down(key, scope, &charge);
            let (decisions, _) = self.store.try_decide(&set, operation, now).await?;
            let Some(decision) = decisions.first() else {
                break;
            };
            if !decision.outcome.is_allow() {
                owed = Cost::new(cost.get().min(decision.remaining));
            } else if operation == Operation::Acquire {
                break;
            }
            operation = Operation::Acquire;
        }
        Ok(())
    }
}
