//! Synced: a node admits calls on one key from memory, and has them charged on the shared store afterwards.
//!
//! The simplest idea is that each node counts by itself and tells the store from time to time. Then a flood
//! on all nodes is admitted n times between two messages, and a message that is lost or repeated makes the
//! counts wrong for good. Two rules mend that:
//!
//! ```text
//! cap      at most `cap` units of a node are admitted and not charged yet; so n nodes exceed the limit by
//!          at most n * cap, however long the store is silent
//! totals   the node sends all that it ever admitted on the key; the store keeps the total that it has
//!          charged (`paid`), and charges the difference, as far as the limit allows now
//! ```
//!
//! The node decides by what the store had left in its last answer, its own part of what came back since, and
//! what it has admitted itself. If that was wrong, the excess stays *pending*: it is charged as soon as the
//! limit has room, and until then the node admits less. So in any interval
//!
//! ```text
//! admitted = charged + change of pending <= limit + n * cap        and in the long run no more than charged
//! ```
//!
//! Totals may be lost, repeated or late: a smaller one charges nothing. `base`, which the node knows to be
//! paid, is sent along, so that a store that lost its record charges nothing twice that was confirmed.
//!
//! A call waits for the store only if the node's `cap` is used up while the limit has room: then it is asked
//! for faster than `cap` units a round trip. Bad at: costs above `cap`, and keys that are seldom asked for,
//! which are left to the store ([`SyncStep::Strict`]).

use core::time::Duration;

use quell_core::decision::{Decision, Outcome, RetryAfter};
use quell_core::over_admission::{LeaseTerms, Supply};
use quell_core::time::Monotonic;

use crate::lease::{DEMAND_INTERVAL, DRIFT, Demand, MIN_CALLS, produced, time_of};

/// Time for which a store that gave no answer is left alone.
pub const RETRY: Duration = Duration::from_secs(1);

/// The shortest wait that a caller is told, and time between two syncs of a drained key.
const MIN_WAIT: Duration = Duration::from_millis(1);

/// Step of a node for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncStep {
    /// The call is allowed, and will be charged.
    Allow,
    /// The call is refused for this long.
    Deny(Duration),
    /// Try again after the answer of the sync that is under way: there is no room for more that is not charged.
    Wait,
    /// The store has to decide on this call by itself.
    Strict,
}

/// Request to the store. The outcome goes to [`SyncedKey::answer`] or [`SyncedKey::lost`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncRequest {
    /// Names it among the requests of this key.
    pub number: u64,
    /// All units that were admitted on the key so far.
    pub total: u64,
    /// Number of them that the store is known to have charged.
    pub base: u64,
}

/// A request that the store has not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Flight {
    request: SyncRequest,
    sent: Monotonic,
}

/// Units that one node admitted on one key, and its knowledge of the key.
#[derive(Clone, Debug)]
pub struct SyncedKey {
    terms: LeaseTerms,
    /// Units admitted so far, and of those, charged.
    total: u64,
    paid: u64,
    /// Units of the total whose calls another limit may still refuse: the store is not told of them.
    undecided: u64,
    /// Units that the store had left in its last answer, and when it was asked; `None` if that is not known.
    left: Option<u64>,
    /// True if the key was banned then: what comes back is not for its callers.
    is_banned: bool,
    noted: Monotonic,
    /// Instant at which the key is at rest according to that answer, at the latest: since it came. And when
    /// that is certain, although clocks drift apart: before that no more is admitted than was left.
    rest: Monotonic,
    sure_rest: Monotonic,
    /// Calls of this cost are refused until then, by the store's last answer, and larger ones.
    refused: (u64, Monotonic),
    /// True if the store could not charge all of the last total.
    is_drained: bool,
    flight: Option<Flight>,
    /// True if the last request was lost, and the store has not answered since.
    is_lost: bool,
    /// After a loss the store is not told anything before this.
    retry: Monotonic,
    requests: u64,
    /// Time that the store took to answer lately.
    round_trip: Duration,
    demand: Demand,
    used: Monotonic,
}

impl SyncedKey {
    /// A key of which nothing is known, and on which nothing was admitted.
    #[must_use]
    pub fn new(terms: LeaseTerms, now: Monotonic) -> Self {
        Self {
            terms,
            total: 0,
            paid: 0,
            undecided: 0,
            left: None,
            is_banned: false,
            noted: Monotonic::ORIGIN,
            rest: now,
            sure_rest: now,
            refused: (1, Monotonic::ORIGIN),
            is_drained: false,
            flight: None,
            is_lost: false,
            retry: Monotonic::ORIGIN,
            requests: 0,
            round_trip: Duration::ZERO,
            demand: Demand::default(),
            used: now,
        }
    }

    /// Counts `calls` of `cost` that came before, so that the key is known to be asked for.
    pub fn warm(&mut self, now: Monotonic, calls: u64, cost: u64) {
        self.demand.add(now, cost.saturating_mul(calls));
    }

    /// Decides on a call of `cost`, and says what to tell the store now.
    pub fn take(&mut self, now: Monotonic, cost: u64) -> (SyncStep, Option<SyncRequest>) {
        self.used = self.used.max(now);
        self.demand.add(now, cost);
        let is_hot = self.demand.units() >= cost.saturating_mul(MIN_CALLS);
        let is_known = self.left.is_some();
        if !is_known || !is_hot || cost > self.terms.cap {
            return (SyncStep::Strict, None);
        }
        if self.remaining(now) < cost {
            if self.is_lost {
                return (SyncStep::Strict, None);
            }
            let wait = self.wait(now, cost);
            let is_due = now >= self.noted.saturating_add(self.interval());
            return (SyncStep::Deny(wait), self.request_if(is_due, now));
        }
        let pending = self.pending().saturating_add(cost);
        if pending > self.terms.cap {
            if self.is_lost {
                return (SyncStep::Strict, None);
            }
            return (SyncStep::Wait, self.request_if(true, now));
        }
        // Without this call: another limit may still refuse it.
        let pending = self.pending();
        let is_half = pending >= self.terms.cap.div_ceil(2);
        // The next call would wait.
        let is_full = pending.saturating_add(cost.saturating_mul(2)) > self.terms.cap;
        let is_due = ((is_half || is_full) && !self.is_drained) || now >= self.next_sync();
        let is_due = is_due && pending > 0 && !self.is_lost;
        let request = self.request_if(is_due, now);
        self.total = self.total.saturating_add(cost);
        (SyncStep::Allow, request)
    }

    /// Decides on the same call again, which [`SyncedKey::take`] left waiting or to the store: it counts as asked
    /// for once.
    pub fn take_again(&mut self, now: Monotonic, cost: u64) -> (SyncStep, Option<SyncRequest>) {
        self.demand.take_back(cost);
        self.take(now, cost)
    }

    /// Another limit has yet to decide on a call that took `cost`. Until [`SyncedKey::confirm`] or
    /// [`SyncedKey::put_back`], the store is not told of it.
    pub const fn set_aside(&mut self, cost: u64) {
        self.undecided = self.undecided.saturating_add(cost);
    }

    /// All limits allow a call that was set aside.
    pub const fn confirm(&mut self, cost: u64) {
        self.undecided = self.undecided.saturating_sub(cost);
    }

    /// Another limit refuses a call that was set aside: takes back what it took.
    pub const fn put_back(&mut self, cost: u64) {
        self.confirm(cost);
        self.total = self.total.saturating_sub(cost);
    }

    /// Returns the request that tells the store of units that are not charged yet, if one is due.
    pub fn due(&mut self, now: Monotonic) -> Option<SyncRequest> {
        let is_due = now >= self.next_sync() && now >= self.retry;
        self.request_if(is_due && self.pending() > 0, now)
    }

    /// The same for a node that leaves: at once.
    pub fn leave(&mut self, now: Monotonic) -> Option<SyncRequest> {
        self.request_if(self.pending() > 0, now)
    }

    /// The store's answer to a request: how many units are charged, and what it decides on one unit more.
    /// One that is not the last, or was answered, is ignored.
    pub fn answer(&mut self, now: Monotonic, number: u64, decision: &Decision, paid: u64) {
        let Some(flight) = self.take_flight(number) else {
            return;
        };
        self.round_trip = now.since(flight.sent);
        self.is_lost = false;
        let told = flight.request.total;
        self.paid = self.paid.max(paid.min(told));
        self.is_drained = self.paid < told;
        self.observe((flight.sent, now), 1, decision);
    }

    /// Takes over the store's decision on a call of this key, of this cost, that was sent and answered
    /// then. For how long a larger call is refused says nothing of a smaller one.
    pub fn observe(
        &mut self,
        (sent, landed): (Monotonic, Monotonic),
        cost: u64,
        decision: &Decision,
    ) {
        if sent < self.noted {
            return;
        }
        self.noted = sent;
        let mut rest = decision.reset_after;
        let until = match decision.outcome {
            Outcome::Deny(RetryAfter::After(wait)) => landed.saturating_add(wait),
            _ => Monotonic::ORIGIN,
        };
        (self.left, self.refused) = (Some(decision.remaining), (cost, until));
        self.is_banned = decision.banned;
        if self.is_banned {
            (self.left, self.refused.0) = (Some(0), 1);
            rest = rest.max(until.since(landed));
        }
        self.rest = landed.saturating_add(rest);
        self.sure_rest = self.rest.saturating_add(rest / DRIFT);
    }

    /// The store gave no answer: it may have charged the total or not. Until [`SyncedKey::resume`], or until it
    /// answers a sync, the node admits what it still may, and leaves all other calls to the store.
    pub fn lost(&mut self, now: Monotonic, number: u64) {
        if self.take_flight(number).is_some() {
            self.is_lost = true;
            self.retry = now.saturating_add(RETRY);
        }
    }

    /// The store has decided on a call by itself: it can be told again.
    pub const fn resume(&mut self) {
        self.is_lost = false;
        self.retry = Monotonic::ORIGIN;
    }

    /// The limit, or its state on the store, has changed: the store is asked what is left. What is not charged
    /// yet stays so.
    pub fn change(&mut self, terms: LeaseTerms) {
        self.terms = terms;
        self.left = None;
    }

    /// Units that were admitted, and are not known to be charged.
    #[must_use]
    pub const fn pending(&self) -> u64 {
        self.total.saturating_sub(self.paid)
    }

    /// The largest cost that would pass, as far as the node knows.
    #[must_use]
    pub fn remaining(&self, now: Monotonic) -> u64 {
        self.left(now).saturating_sub(self.pending())
    }

    /// Time until the key is at rest, according to the store's last answer and what it has not charged.
    #[must_use]
    pub fn reset_after(&self, now: Monotonic) -> Duration {
        let rest = self.rest.since(now);
        let pending = match (self.pending(), self.terms.supply) {
            (0, _) => return rest,
            (pending, Supply::Steady(units, time)) => time_of(pending, units, time),
            (_, Supply::ByEntry(_, time) | Supply::AtOnce(time)) => return rest.max(time),
            (pending, Supply::InBatches(units, every)) => {
                let missing = self.terms.max.saturating_sub(self.left(now));
                let batches = |missing: u64| missing.div_ceil(units.max(1));
                let more = batches(missing.saturating_add(pending)) - batches(missing);
                time_of(more, 1, every)
            }
        };
        rest.saturating_add(pending)
    }

    /// Terms of the sync.
    #[must_use]
    pub const fn terms(&self) -> &LeaseTerms {
        &self.terms
    }

    /// Returns true while a request to the store is in flight.
    #[must_use]
    pub const fn is_asking(&self) -> bool {
        self.flight.is_some()
    }

    /// Time since the last call for the key.
    #[must_use]
    pub const fn idle(&self, now: Monotonic) -> Duration {
        now.since(self.used)
    }

    fn take_flight(&mut self, number: u64) -> Option<Flight> {
        self.flight
            .take_if(|flight| flight.request.number == number)
    }

    fn request_if(&mut self, is_due: bool, now: Monotonic) -> Option<SyncRequest> {
        if !is_due || self.flight.is_some() {
            return None;
        }
        self.requests += 1;
        let request = SyncRequest {
            number: self.requests,
            total: self.total.saturating_sub(self.undecided),
            base: self.paid,
        };
        self.flight = Some(Flight { request, sent: now });
        Some(request)
    }

    /// Instant at which the store is told of the pending units, if no more come. While it has too little
    /// for what it was told of, it is asked as often as the limit produces what it may be exceeded by.
    fn next_sync(&self) -> Monotonic {
        let interval = match self.is_drained {
            true => self.interval(),
            false => DEMAND_INTERVAL,
        };
        self.noted.saturating_add(interval)
    }

    /// Interval of requests for a drained key.
    fn interval(&self) -> Duration {
        match self.terms.supply {
            Supply::Steady(units, time) | Supply::ByEntry(units, time) => {
                time_of(self.terms.bound(), units, time).clamp(MIN_WAIT, DEMAND_INTERVAL)
            }
            Supply::InBatches(..) | Supply::AtOnce(_) => DEMAND_INTERVAL,
        }
    }

    /// Units that the limit has left for this node: those of the last answer, and its part of what came back.
    fn left(&self, now: Monotonic) -> u64 {
        let Some(left) = self.left else {
            return 0;
        };
        if now >= self.sure_rest {
            return self.terms.max;
        }
        let nodes = u64::from(self.terms.nodes.get());
        let back = match self.terms.supply {
            Supply::Steady(units, time) if !self.is_banned => {
                produced(units, time, now.since(self.noted)) / nodes
            }
            _ => 0,
        };
        left.saturating_add(back).min(self.terms.max)
    }

    /// Time for which a call of `cost` is refused: until the node's own part of what comes back suffices,
    /// or until the store may have enough and is asked.
    fn wait(&self, now: Monotonic, cost: u64) -> Duration {
        let asked = match self.flight {
            Some(_) => self.round_trip,
            None => self.noted.saturating_add(self.interval()).since(now),
        };
        let missing = cost.saturating_sub(self.remaining(now));
        let wait = match self.terms.supply {
            Supply::Steady(units, time) => {
                let all = time_of(missing, units, time);
                let own = all.saturating_mul(self.terms.nodes.get());
                own.min(all.max(asked))
            }
            _ => asked,
        };
        let refused = match self.refused {
            (least, until) if cost >= least => until.since(now),
            _ => Duration::ZERO,
        };
        wait.max(refused).max(MIN_WAIT)
    }
}
