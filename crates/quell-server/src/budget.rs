//! Budget: bounds the memory for the buffers of all connections together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The bytes that all connections draw from.
#[derive(Debug)]
pub(crate) struct Budget {
    most: usize,
    used: AtomicUsize,
}

/// One part in so many is for answers only, so that health and metrics can be read while clients who
/// send half a request use up the rest.
const FOR_ANSWERS: usize = 16;

/// The part of a budget that one buffer has; given back on drop.
#[derive(Debug)]
pub(crate) struct BudgetShare {
    budget: Arc<Budget>,
    /// How much of the budget may be used in total when this draws.
    most: usize,
    held: usize,
}

/// Bytes, and the share that was drawn for them.
#[derive(Debug)]
pub(crate) struct Budgeted<B> {
    pub(crate) bytes: B,
    pub(crate) _share: BudgetShare,
}

impl<B: AsRef<[u8]>> AsRef<[u8]> for Budgeted<B> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

impl Budget {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        let used = AtomicUsize::new(0);
        Arc::new(Self { most, used })
    }

    /// An empty share, for what clients send.
    pub(crate) fn share(self: &Arc<Self>) -> BudgetShare {
        self.share_up_to(self.most - self.most / FOR_ANSWERS)
    }

    /// An empty share, for answers.
    pub(crate) fn share_of_answers(self: &Arc<Self>) -> BudgetShare {
        self.share_up_to(self.most)
    }

    fn share_up_to(self: &Arc<Self>, most: usize) -> BudgetShare {
        let budget = Arc::clone(self);
        BudgetShare {
            budget,
            most,
            held: 0,
        }
    }

    /// Bytes that are drawn.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

impl BudgetShare {
    /// Bytes that it has.
    pub(crate) const fn held(&self) -> usize {
        self.held
    }

    /// Draws or gives back, so that the share has `bytes`. Returns whether the budget had enough. If not,
    /// the share stays as it was.
    pub(crate) fn resize(&mut self, bytes: usize) -> bool {
        let (budget, held) = (&self.budget, self.held);
        // The usual case: busy connections keep what they have.
        if bytes == held {
            return true;
        }
        if bytes < held {
            budget.used.fetch_sub(held - bytes, Ordering::Relaxed);
            self.held = bytes;
            return true;
        }
        let more = bytes - held;
        let draw = |used: usize| used.checked_add(more).filter(|used| *used <= self.most);
        let order = Ordering::Relaxed;
        let is_drawn = budget.used.fetch_update(order, order, draw).is_ok();
        if is_drawn {
            self.held = bytes;
        }
        is_drawn
    }
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        self.resize(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_drawn_than_there_is_and_all_comes_back() {
        let budget = Budget::new(100);
        let share = || budget.share_of_answers();
        let (mut one, mut other) = (share(), share());
        assert!(one.resize(60));
        assert!(!other.resize(41));
        assert!(other.resize(40));
        assert!(!one.resize(61));
        assert_eq!(budget.used(), 100);
        assert!(one.resize(10));
        assert!(other.resize(90));
        drop(other);
        assert_eq!(budget.used(), 10);
        drop(one);
        assert_eq!(budget.used(), 0);
        assert!(!share().resize(usize::MAX));
    }

    #[test]
    fn what_clients_send_leaves_room_for_answers() {
        let budget = Budget::new(160);
        let mut half_sent = budget.share();
        assert!(!half_sent.resize(151) && half_sent.resize(150));
        let mut answer = budget.share_of_answers();
        assert!(!answer.resize(11) && answer.resize(10));
        drop(half_sent);
        assert!(answer.resize(160) && !budget.share().resize(1));
    }
}
