//! A store's answers about holds.

use std::time::Duration;

use quell_core::decision::Decision;
use quell_core::end_hold::Ending;
use quell_core::hold::HoldId;

/// The answer to a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placed {
    /// The limits' decisions, in the set's order.
    pub decisions: Vec<Decision>,
    /// The indices in the set of the charges that `decisions` are about, as in
    /// [`Answer`](super::Answer); `None` means all.
    pub places: Option<Vec<usize>>,
    /// True if there is something to end under the id.
    pub held: bool,
    /// Time until the turn of the claim, if it waits for it.
    pub wait: Option<Duration>,
    /// True if this claim was made before: nothing was charged again.
    pub repeated: bool,
    /// True if the store could not be asked, and this is the declared answer; then nothing is held.
    pub degraded: bool,
}

/// The status of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldStatus {
    /// The hold exists, or waits for its turn.
    Stands,
    /// The hold was settled with its real cost.
    Settled,
    /// The hold was cancelled.
    Cancelled,
    /// The hold was released.
    Released,
    /// The hold expired.
    Expired,
}

impl HoldStatus {
    /// The status after this ending.
    #[must_use]
    pub const fn new(ending: &Ending) -> Self {
        match ending {
            Ending::Settle(_) => Self::Settled,
            Ending::Cancel => Self::Cancelled,
            Ending::Release | Ending::Fail | Ending::Arrive => Self::Released,
            Ending::Renew => Self::Expired,
        }
    }

    /// In lower case, as in both protocols.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stands => "stands",
            Self::Settled => "settled",
            Self::Cancelled => "cancelled",
            Self::Released => "released",
            Self::Expired => "expired",
        }
    }
}

/// The answer to an ending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// The status of the hold, whether it changed now or before.
    pub status: HoldStatus,
    /// True if the hold had this status before: nothing changed.
    pub repeated: bool,
    /// Time until the turn of the hold, if that has not come.
    pub wait: Option<Duration>,
    /// Waiting callers whose turn may come sooner now, and which this process must wake.
    pub next: Vec<HoldId>,
    /// If it was to be settled, but not with one number for each descriptor: how many descriptors the
    /// reservation has. Nothing changed.
    pub unsettled: Option<usize>,
}

/// The number of holds: all of them in a memory store; those that this process made, if the store is
/// shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HoldTotals {
    /// Callers that wait for their turn.
    pub waiting: u64,
    /// Ids with charges on rates that can still be settled.
    pub reservations: u64,
    /// Held permits, except those that callers still wait for.
    pub permits: u64,
    /// Holds that have expired since the start. If the store is shared, those that were reported to
    /// this process, whichever process made them: each is reported once.
    pub expired: u64,
}

impl HoldTotals {
    /// The sum of both, saturating.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            waiting: self.waiting.saturating_add(other.waiting),
            reservations: self.reservations.saturating_add(other.reservations),
            permits: self.permits.saturating_add(other.permits),
            expired: self.expired.saturating_add(other.expired),
        }
    }

    /// Counts a new hold, saturating.
    pub const fn add(&mut self, one: Counted) {
        let (waiting, reservations, permits) = one.numbers();
        self.waiting = self.waiting.saturating_add(waiting);
        self.reservations = self.reservations.saturating_add(reservations);
        self.permits = self.permits.saturating_add(permits);
    }

    /// Stops counting a hold that was counted as `one`.
    pub const fn remove(&mut self, one: Counted) {
        let (waiting, reservations, permits) = one.numbers();
        self.waiting = self.waiting.saturating_sub(waiting);
        self.reservations = self.reservations.saturating_sub(reservations);
        self.permits = self.permits.saturating_sub(permits);
    }
}

/// Contribution of one hold to [`HoldTotals`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// True if the caller waits for its turn; until that comes, nothing is held.
    pub waits: bool,
    /// True if a part of the hold can be settled.
    pub is_reservation: bool,
    /// Permits that it holds, or will.
    pub permits: u64,
}

impl Counted {
    /// Waiting, reservations and permits.
    const fn numbers(self) -> (u64, u64, u64) {
        match self.waits {
            true => (1, 0, 0),
            false => (0, self.is_reservation as u64, self.permits),
        }
    }
}
