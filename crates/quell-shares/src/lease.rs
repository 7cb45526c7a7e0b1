//! Lease: units of one key that a node charged on the shared store in advance, and uses up in memory.
//!
//! The simplest idea is to charge a thousand units at once and to come back when they are gone. Then the
//! first node to come drains what is left, an idle node strands what it took, and nobody can say by how
//! much the limit is exceeded. Three rules mend that:
//!
//! ```text
//! cap       a node holds at most `cap` units of a key; n nodes exceed the limit by at most n * cap
//! demand    it takes what its callers asked for in the last 100 ms, and not more
//! guided    it takes at most 1/(2n) of what the store has left, so the last units reach all nodes
//! ```
//!
//! A grant is a plain charge, by the script that decides `strict` calls, on the same state. So every
//! admission was charged before it happened, and a node that decides strictly may share the key. A grant
//! lasts [`LIFE`] from when the node asked for it, and one of a fixed window ends with its window. Units
//! that are left then are forfeited, and so is a grant whose answer was lost: all errors refuse.
//!
//! Units that callers no longer ask for are given back before ([`Lease::surplus`]). A return is sent once, and the
//! store ignores it when the grant is over by its own clock. Until then, or until the store confirms it, the
//! units count as held: so the store's units and those of all nodes are never more than the limit and `n *
//! cap`, wherever a message is.
//!
//! If the store has less than the node wants, the node pauses for as long as the limit needs to produce
//! what all nodes want, and refuses its callers meanwhile. Otherwise a drained bucket would be asked for
//! each single unit, and the calls to the store would grow with the limit's rate. With the pause a key
//! costs at most about `n / pause` calls a second, whatever is offered.
//!
//! Bad at: costs above `cap`, keys that are seldom asked for, and limits with few units. These are
//! left to the store ([`Step::Strict`]).

use alloc::vec::Vec;
use core::time::Duration;

use quell_core::decision::{Decision, Outcome, RetryAfter};
use quell_core::over_admission::{LeaseTerms, Supply};
use quell_core::time::{Monotonic, Wall};

/// Time for which a grant may be used, from its request: five times what it should last, so that a node
/// whose demand falls loses little.
pub const LIFE: Duration = Duration::from_millis(500);

/// The interval in which demand is counted; a grant should last as long.
pub const DEMAND_INTERVAL: Duration = Duration::from_millis(100);

/// The longest pause before the store is asked again.
const MAX_PAUSE: Duration = DEMAND_INTERVAL;

/// The longest time for which a refusal by the store is repeated without asking it again, as in the
/// cache of denials: a change by another node shows this late.
const MAX_REFUSAL: Duration = Duration::from_secs(1);

/// A key whose callers ask for fewer calls than this in a [`DEMAND_INTERVAL`] is left to the store.
pub const MIN_CALLS: u64 = 4;

/// The part of a time that the store says by which it may be wrong here, since clocks drift apart: a thousandth. A
/// lease ends as much before its window.
pub(crate) const DRIFT: u32 = 1_000;

/// Step of a node for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The call is allowed: its cost was taken from the lease.
    Allow {
        /// Request for the store now, since the lease is running low.
        refill: Option<Request>,
    },
    /// The call is refused; after this wait, the store is asked.
    Deny(Duration),
    /// Ask the store, then try again.
    Ask(Request),
    /// Another call asks the store already: try again after its answer.
    Wait,
    /// The store has to decide on this call by itself.
    Strict,
}

/// Units to charge on the store. The outcome goes to [`Lease::answer`] or [`Lease::lost`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Names it among the requests of this lease.
    pub number: u64,
    /// The cost to charge, at least 1.
    pub units: u64,
}

/// Units to give back to the store. The outcome goes to [`Lease::returned`], if the store confirms it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Return {
    /// Names it among the returns of this lease.
    pub number: u64,
    /// The cost to give back, at least 1.
    pub units: u64,
    /// Instant at which the store charged it, by the store's clock.
    pub charged: Wall,
    /// Instant after which it is too late, by the store's clock.
    pub until: Wall,
}

/// Units that the store charged for this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ChargedUnits {
    units: u64,
    until: Monotonic,
    /// Instants at which the store charged it, and from which the store takes nothing of it back; `None` if
    /// that is not known.
    origin: Option<(Wall, Wall)>,
}

/// Units that were sent back to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Returning {
    number: u64,
    units: u64,
    until: Monotonic,
}

/// The store's refusal of a number of units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LeaseRefusal {
    units: u64,
    /// Instant at which it would pass.
    until: Monotonic,
    /// Instant at which the store is asked again, whatever it said.
    recheck: Monotonic,
}

/// Units that the store was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Flight {
    request: Request,
    /// Units that the node would have asked for if the store had plenty.
    wanted: u64,
    sent: Monotonic,
}

/// Units asked for by callers, per [`DEMAND_INTERVAL`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Demand {
    begun: Monotonic,
    units: u64,
    before: u64,
}

impl Demand {
    pub(crate) fn add(&mut self, now: Monotonic, cost: u64) {
        let elapsed = now.since(self.begun);
        if elapsed >= DEMAND_INTERVAL {
            let is_next = elapsed < DEMAND_INTERVAL * 2;
            self.before = if is_next { self.units } else { 0 };
            (self.units, self.begun) = (0, now);
        }
        self.units = self.units.saturating_add(cost);
    }

    pub(crate) const fn take_back(&mut self, cost: u64) {
        self.units = self.units.saturating_sub(cost);
    }

    pub(crate) fn units(&self) -> u64 {
        self.units.max(self.before)
    }

    /// The same, although nobody asked since.
    fn units_at(&self, now: Monotonic) -> u64 {
        let elapsed = now.since(self.begun);
        if elapsed < DEMAND_INTERVAL {
            self.units()
        } else if elapsed < DEMAND_INTERVAL * 2 {
            self.units
        } else {
            0
        }
    }
}

/// Lease of one node on one key, and its knowledge of the key.
#[derive(Clone, Debug)]
pub struct Lease {
    terms: LeaseTerms,
    /// The one in use, and the next.
    grants: [ChargedUnits; 2],
    /// Units that the store had left in its last answer, and when that was asked for.
    left: u64,
    noted: Monotonic,
    /// Instant at which the key is at rest according to that answer.
    rest: Monotonic,
    refusal: Option<LeaseRefusal>,
    /// The store is not asked before this.
    resume: Monotonic,
    flight: Option<Flight>,
    /// True if the last request was lost: nothing is charged in advance until the store answers again.
    is_lost: bool,
    /// Number of requests.
    requests: u64,
    /// Returns that the store may still execute.
    returning: Vec<Returning>,
    /// Number of returns.
    returns: u64,
    /// Time that the store took to answer lately.
    round_trip: Duration,
    demand: Demand,
    used: Monotonic,
}

impl Lease {
    /// A lease without units.
    #[must_use]
    pub fn new(terms: LeaseTerms, now: Monotonic) -> Self {
        Self {
            terms,
            grants: [ChargedUnits::default(); 2],
            left: terms.max,
            noted: now,
            rest: now,
            refusal: None,
            resume: Monotonic::ORIGIN,
            flight: None,
            is_lost: false,
            requests: 0,
            returning: Vec::new(),
            returns: 0,
            round_trip: Duration::ZERO,
            demand: Demand::default(),
            used: now,
        }
    }

    /// Counts `calls` of `cost` that came before the key had a lease, so that it is known to be asked for.
    pub fn warm(&mut self, now: Monotonic, calls: u64, cost: u64) {
        self.demand.add(now, cost.saturating_mul(calls));
    }

    /// Decides on a call of `cost`.
    pub fn take(&mut self, now: Monotonic, cost: u64) -> Step {
        self.used = self.used.max(now);
        self.demand.add(now, cost);
        self.expire(now);
        if self.use_up(cost) {
            return Step::Allow {
                refill: self.refill(now),
            };
        }
        let room = self.room(now);
        let is_hot = self.demand.units() >= cost.saturating_mul(MIN_CALLS);
        if cost > room || !is_hot || self.is_lost {
            return Step::Strict;
        }
        if self.flight.is_some() {
            return Step::Wait;
        }
        if let Some(wait) = self.refused_for(now, cost) {
            return Step::Deny(wait);
        }
        let (units, wanted) = self.size(now);
        Step::Ask(self.ask(now, units.max(cost), wanted))
    }

    /// Returns true if a call has to decide by a clock that it reads under the key's lock: one that was
    /// paused after reading it would use what ended with its window, and a window is exceeded by nothing.
    /// Any other limit may be exceeded by what a node holds, whenever it uses it.
    #[must_use]
    pub fn ends_with_window(&self) -> bool {
        matches!(self.terms.supply, Supply::AtOnce(_))
    }

    /// Decides on the same call again, which [`Lease::take`] left waiting or to the store: it counts as asked for
    /// once.
    pub fn take_again(&mut self, now: Monotonic, cost: u64) -> Step {
        self.demand.take_back(cost);
        self.take(now, cost)
    }

    /// Gives back what a call took at `now`, because another limit refuses it: it does not count as asked for,
    /// or units would be charged for such calls again and again. If more units were asked for since, they are
    /// forfeited: the node holds at most its cap.
    pub fn put_back(&mut self, now: Monotonic, cost: u64) {
        self.demand.take_back(cost);
        let asked = self.flight.map_or(0, |flight| flight.request.units);
        let held = self.terms.cap.saturating_sub(self.room(now));
        let held = held.saturating_add(asked);
        let last = self.grants.iter_mut().filter(|grant| grant.until > now);
        // No unit outlives the grant that it came from.
        if let Some(grant) = last.min_by_key(|grant| grant.until)
            && held.saturating_add(cost) <= self.terms.cap
        {
            grant.units = grant.units.saturating_add(cost);
        }
    }

    /// The store's decision on a request, and when it was made by the store's clock. One that is not the
    /// last, or was answered, is ignored.
    pub fn answer(
        &mut self,
        now: Monotonic,
        number: u64,
        decision: &Decision,
        decided: Option<Wall>,
    ) {
        let Some(flight) = self.take_flight(number) else {
            return;
        };
        self.round_trip = now.since(flight.sent);
        self.observe(flight.sent, decision);
        let units = flight.request.units;
        match decision.outcome {
            Outcome::Allow => {
                self.refusal = None;
                let until = self.end(flight.sent, decision);
                let origin =
                    decided.map(|decided| (decided, self.last_return(&flight, until, decided)));
                self.add(ChargedUnits {
                    units,
                    until,
                    origin,
                });
                // It may have asked for little since it knew of little.
                if units < flight.wanted && self.guided(self.left) < flight.wanted {
                    self.pause(&flight);
                }
            }
            Outcome::Deny(RetryAfter::Never) => self.pause(&flight),
            Outcome::Deny(RetryAfter::After(wait)) => {
                self.refusal = Some(LeaseRefusal {
                    units,
                    until: flight.sent.saturating_add(wait),
                    recheck: flight.sent.saturating_add(MAX_REFUSAL),
                });
                self.pause(&flight);
            }
        }
    }

    /// Takes over the store's decision on a call of this key that was sent at `sent`.
    pub fn observe(&mut self, sent: Monotonic, decision: &Decision) {
        if sent >= self.noted {
            (self.left, self.noted) = (decision.remaining, sent);
            self.rest = sent.saturating_add(decision.reset_after);
        }
    }

    /// The store gave no answer, or a declared one: nothing was granted. It may have charged the units,
    /// which are forfeited. Until [`Lease::resume`] the node uses what it holds, and leaves all other
    /// calls to the store.
    pub fn lost(&mut self, number: u64) {
        if self.take_flight(number).is_some() {
            self.is_lost = true;
        }
    }

    /// Returns the units that callers did not ask for in the last two intervals, to be given back. There
    /// may be a second such return.
    pub fn surplus(&mut self, now: Monotonic) -> Option<Return> {
        let keep = self.demand.units_at(now).saturating_mul(2);
        self.give_back(now, keep)
    }

    /// Begins anew under these terms, since the limit or its state on the store has changed: what is held is
    /// forfeited, and the answer to a request under way is ignored. What is on its way back counts as held as before.
    pub fn renew(&mut self, terms: LeaseTerms, now: Monotonic) {
        *self = Self {
            requests: self.requests,
            returns: self.returns,
            returning: core::mem::take(&mut self.returning),
            ..Self::new(terms, now)
        };
    }

    /// Returns the units held, to be given back by a node that leaves. There may be a second such return.
    pub fn leave(&mut self, now: Monotonic) -> Option<Return> {
        self.give_back(now, 0)
    }

    /// The store has confirmed a return. One that is not known, or is over, is ignored.
    pub fn returned(&mut self, number: u64) {
        self.returning.retain(|sent| sent.number != number);
    }

    /// Gives back one grant's units above `keep`.
    fn give_back(&mut self, now: Monotonic, keep: u64) -> Option<Return> {
        self.expire(now);
        let spare = self.held(now).saturating_sub(keep);
        // It would arrive too late.
        let soon = now.saturating_add(self.round_trip);
        let in_time = self.grants.iter_mut().filter(|grant| grant.until > soon);
        let grant = in_time
            .filter(|grant| grant.units > 0)
            .max_by_key(|grant| grant.until)?;
        let (charged, until) = grant.origin?;
        let units = spare.min(grant.units);
        // A few units are not worth a call, unless nobody asks any more.
        if units < keep.clamp(1, MIN_CALLS) {
            return None;
        }
        self.returns += 1;
        let sent = Returning {
            number: self.returns,
            units,
            until: grant.until,
        };
        grant.units -= units;
        self.returning.retain(|sent| sent.until > now);
        self.returning.push(sent);
        Some(Return {
            number: sent.number,
            units,
            charged,
            until,
        })
    }

    /// Instant from which the store takes nothing back of what it charged at `decided`, by its clock: the
    /// end of the grant here, at the latest. The charge was made between sending and answer.
    fn last_return(&self, flight: &Flight, until: Monotonic, decided: Wall) -> Wall {
        let life = until.since(flight.sent).saturating_sub(self.round_trip);
        decided.saturating_add(life.saturating_sub(life / DRIFT))
    }

    /// Units that the node may ask for.
    fn room(&self, now: Monotonic) -> u64 {
        let sent = self.returning.iter().filter(|sent| sent.until > now);
        let sent = sent.fold(0, |sum: u64, sent| sum.saturating_add(sent.units));
        let held = self.held(now).saturating_add(sent);
        self.terms.cap.saturating_sub(held)
    }

    /// The store has decided on a call by itself: it can be asked in advance again.
    pub const fn resume(&mut self) {
        self.is_lost = false;
    }

    /// Returns true if a request was lost, and the store has not answered since.
    #[must_use]
    pub const fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Units that the node may use now.
    #[must_use]
    pub fn held(&self, now: Monotonic) -> u64 {
        let grants = self.grants.iter().filter(|grant| grant.until > now);
        grants.fold(0, |sum, grant| sum.saturating_add(grant.units))
    }

    /// The largest cost that would pass, as far as the node knows: what it holds and what the store has
    /// left.
    #[must_use]
    pub fn remaining(&self, now: Monotonic) -> u64 {
        let left = match now >= self.rest {
            true => self.terms.max,
            // Of what has come since, others may have taken their parts.
            false => self.left + self.come_since(now) / u64::from(self.terms.nodes.get()),
        };
        left.saturating_add(self.held(now)).min(self.terms.max)
    }

    /// Time until the key is at rest, according to the store's last answer.
    #[must_use]
    pub const fn reset_after(&self, now: Monotonic) -> Duration {
        self.rest.since(now)
    }

    /// Terms of the lease.
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

    /// Ends the request of this number, if it is under way.
    fn take_flight(&mut self, number: u64) -> Option<Flight> {
        self.flight
            .take_if(|flight| flight.request.number == number)
    }

    fn expire(&mut self, now: Monotonic) {
        for grant in &mut self.grants {
            if grant.until <= now {
                *grant = ChargedUnits::default();
            }
        }
    }

    /// Takes `cost` from the grants, the one that ends first first.
    fn use_up(&mut self, cost: u64) -> bool {
        let [first, second] = &mut self.grants;
        if first.until > second.until && second.units > 0 {
            core::mem::swap(first, second);
        }
        if first.units.saturating_add(second.units) < cost {
            return false;
        }
        let of_first = first.units.min(cost);
        first.units -= of_first;
        second.units -= cost - of_first;
        true
    }

    fn add(&mut self, new: ChargedUnits) {
        let [first, second] = &mut self.grants;
        let place = if first.units == 0 { first } else { second };
        if place.units > 0 {
            // Two grants are there already: the units of both, for the shorter time. The store knows no such
            // charge, so nothing of it is given back.
            place.units = place.units.saturating_add(new.units);
            place.until = place.until.min(new.until);
            place.origin = None;
        } else {
            *place = new;
        }
    }

    /// End of a grant that was asked for at `sent`.
    fn end(&self, sent: Monotonic, decision: &Decision) -> Monotonic {
        let end = sent.saturating_add(LIFE);
        if !matches!(self.terms.supply, Supply::AtOnce(_)) {
            return end;
        }
        let window = decision.reset_after;
        end.min(sent.saturating_add(window.saturating_sub(window / DRIFT)))
    }

    /// Asks for more while there is some left, so that callers need not wait for the answer.
    fn refill(&mut self, now: Monotonic) -> Option<Request> {
        let held = self.held(now);
        // Whether it is used up in two round trips.
        let used = u128::from(self.demand.units()) * self.round_trip.as_nanos() * 2;
        let is_low = held <= 1 || u128::from(held) * DEMAND_INTERVAL.as_nanos() <= used;
        // Both grants are in use: there is no place for a third.
        let is_full = self.grants.iter().all(|grant| grant.units > 0);
        if !is_low || is_full || self.flight.is_some() || self.is_lost {
            return None;
        }
        if self.refused_for(now, 1).is_some() {
            return None;
        }
        let (units, wanted) = self.size(now);
        (units >= MIN_CALLS).then(|| self.ask(now, units, wanted))
    }

    const fn ask(&mut self, sent: Monotonic, units: u64, wanted: u64) -> Request {
        self.requests += 1;
        let request = Request {
            number: self.requests,
            units,
        };
        self.flight = Some(Flight {
            request,
            wanted,
            sent,
        });
        request
    }

    /// Number of units to ask for, and the number if the store had plenty.
    fn size(&self, now: Monotonic) -> (u64, u64) {
        let room = self.room(now);
        let wanted = self.demand.units().min(room);
        let guided = self.guided(self.left(now));
        (wanted.min(guided).max(1).min(room), wanted)
    }

    /// The part that a node takes of what is left, at most.
    fn guided(&self, left: u64) -> u64 {
        let parts = 2 * u64::from(self.terms.nodes.get());
        left / parts
    }

    /// Units that the store has left, as far as the node knows.
    fn left(&self, now: Monotonic) -> u64 {
        if now >= self.rest {
            return self.terms.max;
        }
        self.left
            .saturating_add(self.come_since(now))
            .min(self.terms.max)
    }

    /// Units that have come to the limit since the store's answer.
    fn come_since(&self, now: Monotonic) -> u64 {
        match self.terms.supply {
            Supply::Steady(units, time) => produced(units, time, now.since(self.noted)),
            Supply::InBatches(units, every) => {
                let to_come = |at| self.batches_to_come(every, at);
                let come = to_come(self.noted).saturating_sub(to_come(now));
                come.saturating_mul(units)
            }
            Supply::ByEntry(..) | Supply::AtOnce(_) => 0,
        }
    }

    /// Number of batches that come from `at` until the key is at rest.
    fn batches_to_come(&self, every: Duration, at: Monotonic) -> u64 {
        let to_rest = self.rest.since(at).as_nanos();
        let batches = to_rest.div_ceil(every.as_nanos().max(1));
        u64::try_from(batches).unwrap_or(u64::MAX)
    }

    /// Time for which a call of `cost` is refused without asking the store.
    fn refused_for(&self, now: Monotonic, cost: u64) -> Option<Duration> {
        let pause = self.resume.since(now);
        let refusal = self.refusal.filter(|refusal| {
            cost >= refusal.units && now < refusal.until && now < refusal.recheck
        });
        let refused = refusal.map_or(Duration::ZERO, |refusal| refusal.until.since(now));
        if pause.is_zero() && refused.is_zero() {
            return None;
        }
        let missing = cost.saturating_sub(self.left(now));
        let produced = match self.terms.supply {
            Supply::Steady(units, time) => time_of(missing, units, time),
            Supply::InBatches(units, every) => {
                let to_come = self.batches_to_come(every, now);
                let after = to_come.saturating_sub(missing.div_ceil(units.max(1)));
                self.rest
                    .since(now)
                    .saturating_sub(time_of(after, 1, every))
            }
            _ => Duration::ZERO,
        };
        Some(pause.max(refused).max(produced))
    }

    /// The store is running dry: it is asked again when it has produced what all nodes want.
    fn pause(&mut self, flight: &Flight) {
        let (units, time) = match self.terms.supply {
            Supply::Steady(units, time) | Supply::ByEntry(units, time) => (units, time),
            // What is left of a batch is there with the next one.
            Supply::InBatches(units, every) if self.terms.keeps_batches() => (units, every),
            Supply::InBatches(..) | Supply::AtOnce(_) => return,
        };
        let nodes = u64::from(self.terms.nodes.get());
        let pause = time_of(flight.wanted.saturating_mul(nodes), units, time);
        self.resume = flight.sent.saturating_add(pause.min(MAX_PAUSE));
    }
}

/// Units produced in `elapsed` at `units` per `time`, rounded down.
pub(crate) fn produced(units: u64, time: Duration, elapsed: Duration) -> u64 {
    let all = u128::from(units).saturating_mul(elapsed.as_nanos()) / time.as_nanos().max(1);
    u64::try_from(all).unwrap_or(u64::MAX)
}

/// Time that it takes to produce `wanted` units at `units` per `time`, rounded up.
#[must_use]
pub fn time_of(wanted: u64, units: u64, time: Duration) -> Duration {
    let nanos = u128::from(wanted).saturating_mul(time.as_nanos());
    let nanos = nanos.div_ceil(u128::from(units).max(1));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}
