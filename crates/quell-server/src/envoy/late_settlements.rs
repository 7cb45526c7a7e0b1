//! Late settlements: those that a shared store did not take, kept in memory until it answers again.
//!
//! A store ignores what was settled before, so a settlement without an answer, which it may have seen, is sent again. It
//! remembers that for `ttl`; then a settlement is given up, and the estimate stays charged.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use quell::store::StoreError;
use quell::{AskError, Query};
use quell_core::key::Key;
use quell_core::time::Monotonic;
use quell_envoy::Reservation;
use tokio::sync::Notify;

use crate::shared::Shared;

/// Bytes of all that are kept: twenty thousand with short entries.
const MAX_BYTES: usize = 8 << 20;

/// Bytes of one beside its entries, at most.
const OVERHEAD: usize = 384;

/// Time between two attempts while the store does not answer.
const AGAIN: Duration = Duration::from_millis(500);

/// What a call cost that was reserved.
#[derive(Debug)]
pub(super) struct Settlement<'a> {
    /// Its descriptor, alone.
    pub(super) query: Query<'a>,
    pub(super) reservation: Reservation,
    pub(super) actual: u64,
    pub(super) ttl: Duration,
}

/// A settlement, its bytes, and until when the store ignores a second one of it.
type Kept = (Settlement<'static>, usize, Monotonic);

/// Settlements for a store that does not answer.
#[derive(Debug, Default)]
pub(crate) struct LateSettlements {
    queue: Mutex<Queue>,
    added: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    kept: VecDeque<Kept>,
    bytes: usize,
}

impl Settlement<'_> {
    /// Charges the difference to the estimate, or gives it back.
    pub(super) async fn send(&self, shared: &Shared) -> Result<usize, AskError> {
        let (limiter, actual) = (&shared.limiter, self.actual);
        let adjustment = |key: Key<'_>| self.reservation.adjustment(key, actual, self.ttl);
        limiter
            .settle_estimates(&self.query, adjustment, limiter.now())
            .await
    }

    /// Bytes of memory that it takes, at most.
    fn bytes(&self) -> usize {
        let descriptors = self.query.descriptors().iter();
        let entries = descriptors.flat_map(|one| one.entries());
        let entries =
            entries.map(|entry| size_of_val(entry) + entry.name.len() + entry.value.len());
        OVERHEAD + self.query.domain().len() + self.query.context().len() + entries.sum::<usize>()
    }
}

/// Returns true if a store did not say that it took, or refused, what it was sent.
pub(super) const fn is_unanswered(error: &AskError) -> bool {
    use StoreError::{Overloaded, Unavailable, Unconfirmed};
    matches!(
        error,
        AskError::Store(Unavailable(_) | Unconfirmed(_) | Overloaded)
    )
}

impl LateSettlements {
    /// Keeps a settlement that the store did not answer, if there is room. Returns whether there is.
    pub(super) fn keep(&self, settlement: Settlement<'_>, now: Monotonic) -> bool {
        let (bytes, until) = (settlement.bytes(), now.saturating_add(settlement.ttl));
        let mut queue = self.queue.lock();
        if queue.bytes + bytes > MAX_BYTES {
            return false;
        }
        let owned = Settlement {
            query: settlement.query.into_owned(),
            ..settlement
        };
        queue.bytes += bytes;
        queue.kept.push_back((owned, bytes, until));
        drop(queue);
        self.added.notify_one();
        true
    }

    fn take(&self) -> Option<Kept> {
        let mut queue = self.queue.lock();
        let kept = queue.kept.pop_front()?;
        queue.bytes -= kept.1;
        Some(kept)
    }

    fn put_back(&self, kept: Kept) {
        let mut queue = self.queue.lock();
        queue.bytes += kept.1;
        queue.kept.push_front(kept);
    }
}

/// Sends what is kept once the store answers again.
pub(crate) async fn run(shared: Arc<Shared>) {
    let (late, numbers) = (&shared.late_settlements, &shared.metrics.reservations);
    loop {
        late.added.notified().await;
        while let Some(kept) = late.take() {
            if shared.limiter.now().monotonic >= kept.2 {
                numbers.lost.add(1);
                continue;
            }
            match kept.0.send(&shared).await {
                Ok(_) => shared.note_change(),
                Err(error) if is_unanswered(&error) => {
                    late.put_back(kept);
                    tokio::time::sleep(AGAIN).await;
                }
                Err(_) => numbers.lost.add(1),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use quell_core::rule::Reserve;
    use quell_core::time::Wall;
    use quell_envoy::{ReservationKeys, Settles};

    use super::*;

    #[test]
    fn what_is_kept_is_bounded_and_comes_back_in_its_order() {
        let (keys, reserve) = (ReservationKeys::new(b"secret", []), Reserve::default());
        let settlement = |actual| {
            let query = Query::new("d").entry("tenant", "x".repeat(1_000));
            let call = ("d", &query.descriptors()[0], &reserve);
            let token = keys.issue(call, (1, Wall::ORIGIN), [].into_iter(), actual);
            let Settles::Issued(reservation) = keys.read(call, &token) else {
                panic!("{token}");
            };
            let ttl = reserve.ttl;
            Settlement {
                query,
                reservation,
                actual,
                ttl,
            }
        };
        let (late, now) = (LateSettlements::default(), Monotonic::ORIGIN);
        let kept = (0..)
            .find(|actual| !late.keep(settlement(*actual), now))
            .unwrap();
        let bytes = usize::try_from(kept).unwrap() * 1_500;
        assert!(
            (MAX_BYTES * 9 / 10..=MAX_BYTES * 11 / 10).contains(&bytes),
            "{kept}"
        );
        let first = late.take().unwrap();
        late.put_back(first);
        for actual in 0..kept {
            assert_eq!(late.take().unwrap().0.actual, actual);
        }
        assert!(late.take().is_none());
        assert_eq!(late.queue.lock().bytes, 0);
    }
}
