//! What a store says of holds.

use std::time::Duration;

use quell_core::decision::Decision;
use quell_core::end_hold::Ending;
use quell_core::hold::HoldId;

/// The answer to a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placed {
    /// The limits' decisions, in the set's order.
    pub decisions: Vec<Decision>,
    /// The places in the set of the charges that `decisions` are about, as in
    /// [`Answer`](super::Answer); `None`: all.
    pub places: Option<Vec<usize>>,
    /// Whether the id stands for something that can be ended.
    pub held: bool,
    /// How long until its turn, if it waits for it.
    pub wait: Option<Duration>,
    /// Whether this was asked and answered before: nothing was charged again.
    pub repeated: bool,
    /// Whether the store could not tell, and the answer is what was declared for that; then nothing
    /// is held.
    pub degraded: bool,
}

/// What became of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldStatus {
    /// It stands, or waits for its turn.
    Stands,
    /// It was settled, and what it cost was paid.
    Settled,
    /// It was taken back.
    Cancelled,
    /// It was released.
    Released,
    /// Nobody ended it in its time.
    Expired,
}

impl HoldStatus {
    /// What an ending makes of a hold that does not stand on.
    #[must_use]
    pub const fn of(ending: Ending) -> Self {
        match ending {
            Ending::Settle(_) => Self::Settled,
            Ending::Cancel => Self::Cancelled,
            Ending::Release | Ending::Fail | Ending::Arrive => Self::Released,
            Ending::Renew => Self::Expired,
        }
    }

    /// In lower case, as the wires say it.
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
    /// What became of the hold, be it now or before.
    pub status: HoldStatus,
    /// Whether it was so before: nothing changed.
    pub repeated: bool,
    /// How long until its turn, if that has not come.
    pub wait: Option<Duration>,
    /// Who waits and may go sooner now; to be told in this process.
    pub next: Vec<HoldId>,
}

/// How many holds there are: all of a store in memory; those that this process made, where a store is
/// shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HoldTotals {
    /// Callers that wait for their turn.
    pub waiting: u64,
    /// Ids with charges on rates that can still be settled.
    pub reservations: u64,
    /// Permits that are held, those not counted that somebody waits for.
    pub permits: u64,
    /// Holds whose time was over before anybody ended them, since the start. Where a store is shared
    /// those that this process was told of, whoever made them: each is told once.
    pub expired: u64,
}

impl HoldTotals {
    /// Those of both, saturating.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            waiting: self.waiting.saturating_add(other.waiting),
            reservations: self.reservations.saturating_add(other.reservations),
            permits: self.permits.saturating_add(other.permits),
            expired: self.expired.saturating_add(other.expired),
        }
    }

    /// Counts a hold that comes, saturating.
    pub const fn add(&mut self, one: Counted) {
        let (waiting, reservations, permits) = one.numbers();
        self.waiting = self.waiting.saturating_add(waiting);
        self.reservations = self.reservations.saturating_add(reservations);
        self.permits = self.permits.saturating_add(permits);
    }

    /// Counts a hold no more that was counted as this.
    pub const fn remove(&mut self, one: Counted) {
        let (waiting, reservations, permits) = one.numbers();
        self.waiting = self.waiting.saturating_sub(waiting);
        self.reservations = self.reservations.saturating_sub(reservations);
        self.permits = self.permits.saturating_sub(permits);
    }
}

/// What one hold counts as in [`HoldTotals`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// Whether its caller waits for its turn; until that comes nothing of it is held.
    pub waits: bool,
    /// Whether something of it can be settled.
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
