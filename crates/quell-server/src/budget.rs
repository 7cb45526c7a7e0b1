//! Budget: bounds the memory for the buffers of all connections together, and of those of one address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use quell_protocol::callers::Network;

/// The bytes that all connections draw from.
#[derive(Debug)]
pub(crate) struct Budget {
    all: Account,
    /// Only networks that have a connection. Only accepting and closing take the lock.
    by_network: Mutex<HashMap<Network, Weak<AddressBudget>>>,
}

/// The bytes that the connections of one address draw from: a part of those of all.
#[derive(Debug)]
pub(crate) struct AddressBudget {
    budget: Arc<Budget>,
    /// `None`: it may have all.
    network: Option<Network>,
    own: Account,
}

/// Bytes that are drawn, and how many may be.
#[derive(Debug)]
struct Account {
    most: usize,
    used: AtomicUsize,
}

/// One part in so many is for answers only, so that health and metrics can be read while clients who
/// send half a request use up the rest.
const FOR_ANSWERS: usize = 16;

/// One part in so many is the most that one address may have, so that it leaves some to others.
const FOR_ONE_ADDRESS: usize = 2;

/// The part of a budget that one buffer has; given back on drop.
#[derive(Debug)]
pub(crate) struct BudgetShare {
    address: Arc<AddressBudget>,
    is_for_answers: bool,
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

impl Account {
    const fn new(most: usize) -> Self {
        let used = AtomicUsize::new(0);
        Self { most, used }
    }

    /// Draws `bytes`, if there are as many.
    fn draw(&self, bytes: usize, is_for_answers: bool) -> bool {
        let kept = match is_for_answers {
            true => 0,
            false => self.most / FOR_ANSWERS,
        };
        let most = self.most - kept;
        let draw = |used: usize| used.checked_add(bytes).filter(|used| *used <= most);
        let order = Ordering::Relaxed;
        self.used.fetch_update(order, order, draw).is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Budget {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            all: Account::new(most),
            by_network: Mutex::default(),
        })
    }

    /// What the connections from `address` draw from; without an address all there is.
    pub(crate) fn of(self: &Arc<Self>, address: Option<IpAddr>) -> Arc<AddressBudget> {
        let make = |network, most| {
            Arc::new(AddressBudget {
                budget: Arc::clone(self),
                network,
                own: Account::new(most),
            })
        };
        let Some(network) = address.map(Network::from) else {
            return make(None, self.all.most);
        };
        let mut by_network = self.by_network.lock();
        let known = by_network.get(&network).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let own = make(Some(network), self.all.most / FOR_ONE_ADDRESS);
            by_network.insert(network, Arc::downgrade(&own));
            own
        })
    }

    /// Bytes that are drawn.
    pub(crate) fn used(&self) -> usize {
        self.all.used.load(Ordering::Relaxed)
    }
}

impl AddressBudget {
    /// An empty share, for what clients send.
    pub(crate) fn share(self: &Arc<Self>) -> BudgetShare {
        self.share_for(false)
    }

    /// An empty share, for answers.
    pub(crate) fn share_of_answers(self: &Arc<Self>) -> BudgetShare {
        self.share_for(true)
    }

    fn share_for(self: &Arc<Self>, is_for_answers: bool) -> BudgetShare {
        BudgetShare {
            address: Arc::clone(self),
            is_for_answers,
            held: 0,
        }
    }

    /// Bytes that are drawn.
    #[cfg(test)]
    pub(crate) fn used(&self) -> usize {
        self.own.used.load(Ordering::Relaxed)
    }

    /// Draws `bytes` from what the address may have and from what all may have.
    fn draw(&self, bytes: usize, is_for_answers: bool) -> bool {
        if !self.own.draw(bytes, is_for_answers) {
            return false;
        }
        let is_drawn = self.budget.all.draw(bytes, is_for_answers);
        if !is_drawn {
            self.own.give_back(bytes);
        }
        is_drawn
    }
}

impl Drop for AddressBudget {
    fn drop(&mut self) {
        let Some(network) = self.network else { return };
        let mut by_network = self.budget.by_network.lock();
        // Another connection may have come in the meantime.
        if by_network
            .get(&network)
            .is_some_and(|own| own.strong_count() == 0)
        {
            by_network.remove(&network);
        }
    }
}

impl BudgetShare {
    /// Bytes that it has.
    pub(crate) const fn held(&self) -> usize {
        self.held
    }

    /// Draws or gives back, so that the share has `bytes`. Returns whether there were enough. If not, the
    /// share stays as it was.
    pub(crate) fn resize(&mut self, bytes: usize) -> bool {
        let (address, held) = (&self.address, self.held);
        // The usual case: busy connections keep what they have.
        if bytes == held {
            return true;
        }
        if bytes < held {
            address.own.give_back(held - bytes);
            address.budget.all.give_back(held - bytes);
            self.held = bytes;
            return true;
        }
        let is_drawn = address.draw(bytes - held, self.is_for_answers);
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
    fn one_address_leaves_half_to_others_and_room_for_its_answers() {
        let budget = Budget::new(320);
        let of = |address: &str| budget.of(address.parse().ok());
        let (here, there) = (of("10.0.0.1"), of("10.0.0.2"));
        let (mut first, mut second) = (here.share(), of("::ffff:10.0.0.1").share());
        assert!(first.resize(100) && second.resize(50));
        assert!(!second.resize(51), "150 and 10 for its answers");
        let mut answer = here.share_of_answers();
        assert!(!answer.resize(11) && answer.resize(10));
        let mut others = [there.share(), budget.of(None).share()];
        assert!(others[0].resize(140) && others[1].resize(0));
        assert!(!others[1].resize(1), "all that is not for answers is used");
        assert_eq!(budget.used(), 300);
        first.resize(0);
        assert!(others[1].resize(100) && !first.resize(1));
        assert_eq!(second.held(), 50);
        drop((first, second, answer, others, here, there));
        assert_eq!(budget.used(), 0);
        assert!(budget.by_network.lock().is_empty(), "no entry stays");
        assert!(of("10.0.0.1").share().resize(150), "nothing is kept of it");
    }
}
