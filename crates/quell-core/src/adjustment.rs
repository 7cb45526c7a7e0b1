//! Adjustment: corrects the estimate that a call was charged, once its true cost is known, without a hold.
//!
//! A hold is kept in the state of its key, and their number is bounded. A caller that keeps the instant of the charge
//! and its estimate needs less: the difference is added to, or taken from, the window in which the charge was made.
//!
//! ```text
//! in time, its window counts     used = max(used + difference, 0)
//! in time, its window is over    nothing: neither its estimate nor its true cost counts any more
//! late, or nothing was charged   used + difference, if that is more, in the current window
//! ```
//!
//! What is more is charged whether it fits or not. So a window is exceeded by at most the sum of what calls cost above
//! their estimates. Example, 1,000 an hour: 10 calls that reserve 100 each pass, and cost 120 in the end: 1,200 are
//! used, and nothing passes until the hour is over.
//!
//! Only fixed windows are adjusted: their windows are found by the instant of the charge.

use core::time::Duration;

use crate::algorithm::{At, Engine};
use crate::charge::Entry;
use crate::time::{Now, Wall};
use crate::usage::Usage;

/// The true cost of a call, less what was charged for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adjustment {
    /// Units that the call cost above its estimate, or below it.
    pub difference: i64,
    /// The charge that is corrected. Without one the difference is charged now.
    pub reservation: Option<IssuedReservation>,
}

/// The charge of an estimate, as its caller kept it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IssuedReservation {
    /// Its name, by which a store ignores that it is adjusted again on the same key, for `ttl` from the first time.
    pub id: u128,
    /// Instant of the charge, by the wall clock of the store.
    pub charged: Wall,
    /// Time from the charge after which nothing is given back.
    pub ttl: Duration,
}

impl IssuedReservation {
    /// Both clocks at the charge, as far as the wall clock tells. A charge of the future counts as one of now.
    fn instant(&self, now: Now) -> Now {
        Now {
            monotonic: now.monotonic.saturating_sub(now.wall.since(self.charged)),
            wall: self.charged,
        }
    }
}

/// Adjusts what a key has used, unless its limit is no fixed window. Returns whether it is one.
///
/// The caller makes sure that it happens once for each [`IssuedReservation::id`].
pub fn adjust(now: Now, adjustment: &Adjustment, entry: &mut Entry<'_, '_>) -> bool {
    let limit = &entry.charge.active.limit;
    let engine = &*limit.engine();
    if !matches!(engine, Engine::Fixed(_) | Engine::Calendar(_)) {
        return false;
    }
    let at = entry.charge.at(now);
    let state = &mut *entry.state;
    state.settle(limit, &at);
    let reservation = adjustment.reservation;
    let in_time = reservation.filter(|one| now.wall.since(one.charged) <= one.ttl);
    let units = adjustment.difference.unsigned_abs();
    let counts = in_time.map(|one| engine.counts(&state.usage, one.instant(now), &at));
    match (counts, adjustment.difference < 0) {
        (Some(true), true) => take_from_window(&mut state.usage, units),
        (Some(true) | None, false) => {
            engine.owe(&mut state.usage, units, &at);
            state.count(limit, &at, units);
        }
        (Some(false), _) | (None, true) => {}
    }
    true
}

impl Engine {
    /// Returns true if a charge of `charged` belongs to the window that `usage`, which was brought to `at`, counts.
    fn counts(&self, usage: &Usage, charged: Now, at: &At) -> bool {
        match (self, usage) {
            (Self::Fixed(_), Usage::FixedWindow { start, .. }) => *start <= charged.monotonic,
            (Self::Calendar(_), _) => at
                .edges
                .is_none_or(|edges| edges.start_at(at.now.wall) <= charged.wall),
            _ => false,
        }
    }
}

/// Lowers what a window has used, to 0 at least.
fn take_from_window(usage: &mut Usage, units: u64) {
    let rests = match usage {
        Usage::FixedWindow { used, .. } => {
            *used = used.saturating_sub(units);
            *used == 0
        }
        Usage::CalendarWindow { used, refused, .. } => {
            *used = used.saturating_sub(units);
            (*used, *refused) == (0, 0)
        }
        _ => false,
    };
    if rests {
        *usage = Usage::Rest;
    }
}
