//! Hold: a charge under an id, which can still change.
//!
//! A hold is stored in the state of its key, next to the algorithm's data. Either it waits for its turn
//! and will be charged then, or it is taken: charged, and part of it can be given back. A reservation,
//! a permit and a place in a wait queue are all holds; they differ in what ends them.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use crate::time::{Monotonic, Wall};

/// The longest name of a hold, in bytes: a UUID with room for a prefix.
pub const MAX_ID: usize = 64;

/// Holds that one key may have at a time: every call on the key visits them all.
pub const MAX_HOLDS: usize = 10_000;

/// The same for holds that are given back when they expire ([`OnExpiry::Release`]), without permits:
/// each such expiry changes how much every later one gives back.
pub const MAX_RELEASED: usize = 2_000;

/// Holds that one key may have on a shared store, whose script walks over them.
pub const MAX_SHARED_HOLDS: usize = 1_000;

/// [`MAX_RELEASED`] on a shared store.
pub const MAX_SHARED_RELEASED: usize = 100;

/// The largest learned ceiling on a shared store: a peek computes how the end of each permit would
/// change the ceiling.
pub const MAX_SHARED_LEARNED: usize = 500;

/// Holds that may wait on one key: each new waiter forecasts the whole queue.
pub const MAX_WAIT_QUEUE: usize = 1_000;

/// Time that a caller may take to go on after its turn has come. After that the hold counts as used.
pub const ARRIVAL: Duration = Duration::from_secs(10);

/// The longest that a hold or a lease may last: a day.
pub const MAX_HOLD: Duration = Duration::from_secs(86_400);

/// The longest that a reservation may last unless its rule says otherwise: longer than nearly every call takes,
/// and short enough that ids which nobody settles are soon forgotten.
pub const DEFAULT_MAX_HOLD: Duration = Duration::from_secs(3_600);

/// The id of a hold: a domain and a name in it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HoldId(Arc<[u8]>);

impl HoldId {
    /// The hold `name` of `domain`; `None` unless the name is 1 to [`MAX_ID`] printable ASCII bytes
    /// without spaces.
    #[must_use]
    pub fn new(domain: &str, name: &str) -> Option<Self> {
        let printable = name.bytes().all(|byte| byte.is_ascii_graphic());
        if name.is_empty() || name.len() > MAX_ID || !printable {
            return None;
        }
        let mut bytes = Vec::with_capacity(domain.len() + 1 + name.len());
        bytes.extend_from_slice(domain.as_bytes());
        // 0xFF never occurs in UTF-8, so it marks the end of the domain.
        bytes.push(0xFF);
        bytes.extend_from_slice(name.as_bytes());
        Some(Self(bytes.into()))
    }

    /// The id of the part of this hold that is kept in another store than the rest; it never equals an
    /// id from a caller.
    #[must_use]
    pub fn of_other_part(&self) -> Self {
        let end = self.0.iter().position(|byte| *byte == 0xFF);
        let (domain, name) = self.0.split_at(end.unwrap_or(self.0.len()));
        Self([domain, &[0xFF], name].concat().into())
    }

    /// The domain and the name, in one byte string.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The domain.
    #[must_use]
    pub fn domain(&self) -> &[u8] {
        let mut parts = self.0.split(|byte| *byte == 0xFF);
        parts.next().unwrap_or_default()
    }

    /// The name without its domain.
    #[must_use]
    pub fn name(&self) -> &str {
        let mut parts = self.0.rsplit(|byte| *byte == 0xFF);
        core::str::from_utf8(parts.next().unwrap_or_default()).unwrap_or_default()
    }
}

impl fmt::Debug for HoldId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Treatment of a reservation that is never settled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnExpiry {
    /// Its estimate stays charged. The default, since the caller may have used it.
    #[default]
    Charge,
    /// The charge is given back.
    Release,
}

/// A charge under an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Its id.
    pub id: HoldId,
    /// Units that are or will be charged.
    pub units: u64,
    /// Treatment of the hold when it expires.
    pub on_expiry: OnExpiry,
    /// True if the hold is charged for good as soon as its waiting caller goes on.
    pub passes: bool,
    /// Lifetime of the hold from its charge.
    pub keep: Duration,
    /// Instant of the last visit, to notice that the clock went back.
    pub seen: Monotonic,
    /// State of the hold: it waits, or it is taken.
    pub place: Place,
}

/// A hold as an operator sees it. They are ordered by time; at one instant who waits is behind what ends then.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HoldView {
    /// Time until its turn comes, if it waits, which may be sooner if others leave; otherwise time until it
    /// expires.
    pub left: Duration,
    /// True if the hold waits for its turn.
    pub is_waiting: bool,
    /// Its id, without the domain.
    pub name: String,
    /// Units that are or will be charged.
    pub units: u64,
}

/// State of a hold: it waits, or it is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The charge is made at this instant, and not before.
    Waiting {
        /// Instant at which its turn comes.
        go: Monotonic,
    },
    /// The charge is made.
    Taken {
        /// Instant at which it was charged.
        taken: Monotonic,
        /// Instant at which it expires.
        until: Monotonic,
        /// Position of the charge in the usage.
        mark: Mark,
    },
}

/// Position of a charge in a usage, so that it can be given back as far as it still counts. A later charge
/// has a greater mark.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mark {
    /// Buckets: the theoretical arrival time behind it, in ticks.
    Tat(u128),
    /// Buckets filled in batches: the last tick and the use with it.
    Batches {
        /// The last tick that was counted.
        anchor: Monotonic,
        /// Units used, these included.
        used: u64,
    },
    /// A window from the first request: where it began.
    Window(Monotonic),
    /// A calendar window: where it ends.
    Calendar(Wall),
    /// A sliding window: the segment's number.
    Segment(u64),
    /// A sliding log: the entry's instant.
    Entry(Monotonic),
    /// Permits: they need no place.
    Permits,
}

impl Mark {
    /// Corrects the mark after this much of an earlier charge was given back.
    pub(crate) fn move_back(&mut self, back: u128) {
        match self {
            Self::Tat(tat) => *tat = tat.saturating_sub(back),
            Self::Batches { used, .. } => *used = used.saturating_sub(units(back)),
            _ => {}
        }
    }
}

fn units(back: u128) -> u64 {
    u64::try_from(back).unwrap_or(u64::MAX)
}

impl Hold {
    /// Instant at which its turn comes, or at which it expires.
    pub(crate) const fn due(&self) -> Monotonic {
        match self.place {
            Place::Waiting { go } => go,
            Place::Taken { until, .. } => until,
        }
    }

    /// View of the hold at `now`, to which it was settled.
    pub(crate) fn view(&self, now: Monotonic) -> HoldView {
        HoldView {
            left: self.due().since(now),
            is_waiting: self.is_waiting(),
            name: self.id.name().into(),
            units: self.units,
        }
    }

    /// Returns true if the hold still waits for its turn.
    #[must_use]
    pub const fn is_waiting(&self) -> bool {
        matches!(self.place, Place::Waiting { .. })
    }

    /// Marks it as charged: its turn has come.
    pub(crate) fn take(&mut self, mark: Mark, now: Monotonic) {
        self.place = Place::Taken {
            taken: now,
            until: now.saturating_add(self.keep),
            mark,
        };
    }

    /// Moves every instant.
    pub(crate) fn shift(&mut self, nanos: i64) {
        self.seen = self.seen.shifted(nanos);
        match &mut self.place {
            Place::Waiting { go } => *go = go.shifted(nanos),
            Place::Taken { taken, until, .. } => {
                *taken = taken.shifted(nanos);
                *until = until.shifted(nanos);
            }
        }
    }

    /// If the clock went back, moves a hold that was visited later than `now` back by as much, so that
    /// it keeps the time that it had left.
    pub(crate) fn clamp(&mut self, now: Monotonic) {
        let back = self.seen.since(now).as_nanos();
        if let Ok(back @ 1..) = i64::try_from(back) {
            self.shift(-back);
        }
        self.seen = now;
    }
}
