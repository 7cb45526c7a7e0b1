//! Budget: bounds the memory for the buffers of all connections together, and of those of one caller.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, Hash, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use quell_protocol::callers::Network;

/// The bytes that all connections draw from.
#[derive(Debug)]
pub struct Budget {
    most: usize,
    all: UsedBytes,
    hasher: RandomState,
    /// Only callers that have a connection, by their hashes. Only accepting and closing take the lock.
    by_caller: Mutex<HashMap<u64, Weak<CallerBudget>>>,
}

/// The bytes that one caller draws from: those of all, and at most half of what others leave of them. Whose token comes
/// is not known when a connection is accepted, so an address is who is known then.
#[derive(Debug)]
pub struct CallerBudget {
    budget: Arc<Budget>,
    /// Its hash; `None`: it may have all.
    caller: Option<u64>,
    own: UsedBytes,
}

/// Bytes that are drawn.
#[derive(Debug, Default)]
struct UsedBytes(AtomicUsize);

/// One part in so many is for answers only, so that health and metrics can be read while clients who
/// send half a request use up the rest.
const FOR_ANSWERS: usize = 16;

/// The part of a budget that one buffer has; given back on drop.
#[derive(Debug)]
pub struct BudgetShare {
    caller: Arc<CallerBudget>,
    is_for_answers: bool,
    held: usize,
}

/// Bytes, and the share that was drawn for them.
#[derive(Debug)]
pub struct Budgeted<B> {
    /// The bytes.
    pub bytes: B,
    /// Given back with them.
    pub _share: BudgetShare,
}

impl<B: AsRef<[u8]>> AsRef<[u8]> for Budgeted<B> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

impl UsedBytes {
    /// Draws `bytes`, if there are at most `most` then.
    fn draw(&self, bytes: usize, most: usize) -> bool {
        let draw = |used: usize| used.checked_add(bytes).filter(|used| *used <= most);
        let order = Ordering::Relaxed;
        self.0.fetch_update(order, order, draw).is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Budget {
    /// A budget of so many bytes.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            all: UsedBytes::default(),
            hasher: RandomState::new(),
            by_caller: Mutex::default(),
        })
    }

    /// Budget of the connections from `address`; without an address all there is.
    pub fn of(self: &Arc<Self>, address: Option<IpAddr>) -> Arc<CallerBudget> {
        match address {
            None => self.make(None),
            Some(address) => self.of_caller(&Network::from(address)),
        }
    }

    /// Budget of `caller`, whoever that is.
    pub fn of_caller(self: &Arc<Self>, caller: &impl Hash) -> Arc<CallerBudget> {
        let caller = self.hasher.hash_one(caller);
        let mut by_caller = self.by_caller.lock();
        let known = by_caller.get(&caller).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let own = self.make(Some(caller));
            by_caller.insert(caller, Arc::downgrade(&own));
            own
        })
    }

    fn make(self: &Arc<Self>, caller: Option<u64>) -> Arc<CallerBudget> {
        Arc::new(CallerBudget {
            budget: Arc::clone(self),
            caller,
            own: UsedBytes::default(),
        })
    }

    /// Bytes that are drawn.
    pub fn used(&self) -> usize {
        self.all.get()
    }
}

impl CallerBudget {
    /// An empty share, for what clients send.
    pub fn share(self: &Arc<Self>) -> BudgetShare {
        self.share_for(false)
    }

    /// An empty share, for answers.
    pub fn share_of_answers(self: &Arc<Self>) -> BudgetShare {
        self.share_for(true)
    }

    fn share_for(self: &Arc<Self>, is_for_answers: bool) -> BudgetShare {
        BudgetShare {
            caller: Arc::clone(self),
            is_for_answers,
            held: 0,
        }
    }

    /// Bytes that are drawn.
    #[must_use]
    pub fn used(&self) -> usize {
        self.own.get()
    }

    /// Draws `bytes` from what all may have, if the caller has no more of it then than is left.
    fn draw(&self, bytes: usize, is_for_answers: bool) -> bool {
        let all = &self.budget.all;
        let most = match is_for_answers {
            true => self.budget.most,
            false => self.budget.most - self.budget.most / FOR_ANSWERS,
        };
        if !all.draw(bytes, most) {
            return false;
        }
        let left = match self.caller {
            Some(_) => most.saturating_sub(all.get()),
            None => most,
        };
        let is_drawn = self.own.draw(bytes, left);
        if !is_drawn {
            all.give_back(bytes);
        }
        is_drawn
    }
}

impl Drop for CallerBudget {
    fn drop(&mut self) {
        let Some(caller) = self.caller else { return };
        let mut by_caller = self.budget.by_caller.lock();
        // Another connection may have come in the meantime.
        if by_caller
            .get(&caller)
            .is_some_and(|own| own.strong_count() == 0)
        {
            by_caller.remove(&caller);
        }
    }
}

impl BudgetShare {
    /// Bytes that it has.
    pub const fn held(&self) -> usize {
        self.held
    }

    /// Draws or gives back, so that the share has `bytes`. Returns whether there were enough. If not, the
    /// share stays as it was.
    pub fn resize(&mut self, bytes: usize) -> bool {
        let (caller, held) = (&self.caller, self.held);
        // The usual case: busy connections keep what they have.
        if bytes == held {
            return true;
        }
        if bytes < held {
            caller.own.give_back(held - bytes);
            caller.budget.all.give_back(held - bytes);
            self.held = bytes;
            return true;
        }
        let is_drawn = caller.draw(bytes - held, self.is_for_answers);
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
        let share = || budget.of(None).share_of_answers();
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
        let (mut half_sent, all) = (budget.of(None).share(), budget.of(None));
        assert!(!half_sent.resize(151) && half_sent.resize(150));
        let mut answer = all.share_of_answers();
        assert!(!answer.resize(11) && answer.resize(10));
        drop(half_sent);
        assert!(answer.resize(160) && !all.share().resize(1));
    }

    #[test]
    fn an_address_has_half_of_what_others_leave_and_room_for_its_answers() {
        let budget = Budget::new(320);
        let of = |address: &str| budget.of(address.parse().ok());
        let (here, there) = (of("10.0.0.1"), of("10.0.0.2"));
        let (mut first, mut second) = (here.share(), of("::ffff:10.0.0.1").share());
        assert!(first.resize(100) && second.resize(50));
        assert!(!second.resize(51), "150 and 10 for its answers");
        let mut answer = here.share_of_answers();
        assert!(!answer.resize(11) && answer.resize(10));
        let (mut other, mut local) = (there.share(), budget.of(None).share());
        assert!(!other.resize(71) && other.resize(70), "of the 140 left");
        assert!(!local.resize(71) && local.resize(70), "all that is left");
        assert_eq!(budget.used(), 300);
        first.resize(0);
        assert!(
            !first.resize(21) && first.resize(20),
            "half of what is left again"
        );
        drop((first, second, answer, other, local, here, there));
        assert_eq!(budget.used(), 0);
        assert!(budget.by_caller.lock().is_empty(), "no entry stays");
        assert!(of("10.0.0.1").share().resize(150), "nothing is kept of it");
    }

    /// However many addresses one caller has, something is left for the next one.
    #[test]
    fn many_addresses_leave_something_to_one_more() {
        let budget = Budget::new(1 << 20);
        let mut shares = Vec::new();
        for number in 0..8 {
            let mut share = budget.of(Some([10, 0, 0, number].into())).share();
            let mut step = 1 << 20;
            while step > 0 {
                if !share.resize(share.held() + step) {
                    step /= 2;
                }
            }
            assert!(share.held() > 1_024, "{number}: {}", share.held());
            shares.push(share);
        }
    }
}
