//! Tickets of callers, by the states that they refer to.
//!
//! They exist only while the rest of a set is decided elsewhere. Their locks are taken after those of
//! chains, so that tickets are in the order of the charges.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use quell_core::actual::CostOrigin;
use quell_core::charge::{LimitSet, Operation};
use quell_core::decision::Decisions;
use quell_core::ticket::{self, Ticket, Tickets};
use quell_core::time::Now;

use super::fingerprint::Fingerprint;
use super::hold_index::HoldPlace;
use super::{Keeping, MemoryStore};

/// Parts, each under a lock of its own.
const PARTS: usize = 32;

type Shard = HashMap<Fingerprint, Tickets>;

/// All tickets.
#[derive(Debug, Default)]
pub(super) struct TicketIndex {
    parts: [Mutex<Shard>; PARTS],
    /// The number of the last one.
    last: AtomicU64,
}

impl TicketIndex {
    /// Works on the tickets of one state.
    fn with(&self, state: Fingerprint, work: impl FnOnce(&mut Tickets)) {
        let part = usize::try_from(state.high % PARTS as u64).unwrap_or(0);
        let mut part = self.parts[part % PARTS].lock();
        let tickets = part.entry(state).or_default();
        work(tickets);
        if tickets.is_empty() {
            part.remove(&state);
        }
    }

    /// Voids all tickets of a state, which is locked.
    pub(super) fn void(&self, state: Fingerprint) {
        self.with(state, |tickets| *tickets = Tickets::default());
    }
}

/// Charges that can be given back. Once it is dropped they are final.
#[derive(Debug)]
pub struct MemoryTicket {
    index: Arc<TicketIndex>,
    number: u64,
    places: Vec<HoldPlace>,
}

impl Drop for MemoryTicket {
    fn drop(&mut self) {
        for place in &self.places {
            let remove = |tickets: &mut Tickets| tickets.remove(self.number);
            self.index.with(place.charged, remove);
        }
    }
}

impl MemoryStore {
    /// Charges a set, and returns a ticket for giving that back.
    pub(super) fn charge_now(&self, set: &LimitSet<'_>, now: Now) -> (Decisions, MemoryTicket) {
        let mut ticket = MemoryTicket {
            index: Arc::clone(&self.tickets),
            number: 0,
            places: Vec::new(),
        };
        let note = |(_, tickets): &mut (_, Vec<Option<Ticket>>), states: &[_]| {
            ticket.number = self.tickets.last.fetch_add(1, Ordering::Relaxed) + 1;
            for (state, made) in states.iter().zip(tickets) {
                let Some(made) = made.take() else {
                    continue;
                };
                let place = HoldPlace::new(state, CostOrigin::default());
                let add = |tickets: &mut Tickets| tickets.add(ticket.number, made);
                self.tickets.with(place.charged, add);
                ticket.places.push(place);
            }
        };
        let touched = self.with_states(set, Operation::Acquire, now, ticket::charge, note);
        let (decisions, _) = touched.result;
        let of_charge = touched.of_charge.iter();
        let decisions = of_charge.filter_map(|index| decisions.get(*index).copied());
        (decisions.collect(), ticket)
    }

    /// Gives back what still counts of a charge, on the states that were charged, even if a key that
    /// shared a state has one of its own now.
    pub(super) fn refund_now(&self, ticket: &MemoryTicket, now: Now) {
        let places = ticket.places.iter().map(|place| HoldPlace {
            own: place.charged,
            ..place.clone()
        });
        let places: Vec<_> = places.collect();
        let keeper = Keeping { store: self, now };
        let (mut chains, now, loaded) = self.load_places(&places, now, &keeper);
        for (place, held) in places.iter().zip(loaded) {
            let Some((mut held, active, at)) = held else {
                continue;
            };
            self.tickets.with(place.charged, |tickets| {
                tickets.refund(ticket.number, &mut held.state, &active.limit, &at);
            });
            self.table.store(&mut chains, held, now, &keeper);
        }
    }
}
