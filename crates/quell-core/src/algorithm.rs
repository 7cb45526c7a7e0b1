//! The algorithms: the state that each keeps, its decision, and its bound.
//!
//! Every engine has the same few functions on a [`Usage`]. `settle` brings it to an instant: it forgets
//! what has expired, and pulls in what a clock that went back left in the future. All other functions
//! expect a settled usage of their own algorithm, and treat any other as rest.

use core::fmt;
use core::time::Duration;

use crate::decision::Outcome;
use crate::time::{Monotonic, Now, Wall};
use crate::usage::Usage;

/// Declares the methods that set a field of a limit's numbers: `field(type) => what the field is then`.
macro_rules! setters {
    ($($field:ident($type:ty) => $value:expr;)*) => {$(
        #[doc = concat!("Sets [`", stringify!($field), "`](Self#structfield.", stringify!($field), ").")]
        #[must_use]
        pub const fn $field(mut self, $field: $type) -> Self {
            self.$field = $value;
            self
        }
    )*};
}

mod entries;
pub(crate) mod gcra;
pub(crate) mod narrow;
mod refill;
mod refund;

pub mod adaptive;
pub mod concurrency;
pub mod fixed_window;
pub mod leaky_bucket;
pub mod sliding_log;
pub mod sliding_window;
pub mod token_bucket;
pub mod warm_up;

use concurrency::{Concurrency, PermitEngine};
use fixed_window::{CalendarEngine, FixedEngine, FixedWindow};
use leaky_bucket::{LeakyBucket, LeakyEngine};
use narrow::NarrowNumbers;
use refill::RefillEngine;
use sliding_log::{LogEngine, SlidingLog};
use sliding_window::{SegmentEngine, SlidingWindow};
use token_bucket::{TokenBucket, TokenEngine};

/// Longest repayment of a debt, in full refills of the bucket; an hour if that is longer.
pub(crate) const DEBT_REFILLS: u32 = 64;

/// A debt may take at least this long to be repaid. Otherwise a slow bucket of burst 1 would be of no
/// use on credit.
pub(crate) const LONGEST_DEBT_AT_LEAST: Duration = Duration::from_secs(3_600);

/// An algorithm as it was specified, with all its numbers.
///
/// Code that decides or shows limits has to know every algorithm, so a new one is a breaking change.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Continuous or batched refill up to a burst.
    TokenBucket(TokenBucket),
    /// A queue that drains at a rate; allowed calls carry a delay.
    LeakyBucket(LeakyBucket),
    /// A count per window.
    FixedWindow(FixedWindow),
    /// Counts per segment of a window that moves on segment by segment.
    SlidingWindow(SlidingWindow),
    /// Every charge with its instant.
    SlidingLog(SlidingLog),
    /// Permits, each held and given back.
    Concurrency(Concurrency),
}

impl Algorithm {
    /// The algorithm's name in a rules file.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::TokenBucket(_) => "token_bucket",
            Self::LeakyBucket(_) => "leaky_bucket",
            Self::FixedWindow(_) => "fixed_window",
            Self::SlidingWindow(_) => "sliding_window",
            Self::SlidingLog(_) => "sliding_log",
            Self::Concurrency(_) => "concurrency",
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        f.write_str(" ")?;
        match self {
            Self::TokenBucket(spec) => spec.fmt(f),
            Self::LeakyBucket(spec) => spec.fmt(f),
            Self::FixedWindow(spec) => spec.fmt(f),
            Self::SlidingWindow(spec) => spec.fmt(f),
            Self::SlidingLog(spec) => spec.fmt(f),
            Self::Concurrency(spec) => spec.fmt(f),
        }
    }
}

/// The instant of a decision, with what the decision needs besides the clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct At {
    /// Both clocks.
    pub now: Now,
    /// Instant at which the rule came into force.
    pub since: Monotonic,
    /// The calendar window around `now.wall`; needed by calendar windows only.
    pub edges: Option<Edges>,
}

impl At {
    /// An instant without calendar edges.
    #[must_use]
    pub const fn plain(now: Now) -> Self {
        Self {
            now,
            since: Monotonic::ORIGIN,
            edges: None,
        }
    }

    /// The same at another instant; the wall clock is moved as well.
    pub(crate) fn moved_to(&self, instant: Monotonic) -> Self {
        let ahead = instant.since(self.now.monotonic);
        let behind = self.now.monotonic.since(instant);
        let wall = self.now.wall.saturating_add(ahead);
        Self {
            now: Now {
                monotonic: instant,
                wall: wall.saturating_sub(behind),
            },
            ..*self
        }
    }
}

/// Edges of the calendar window that holds an instant, and of the one after it; half open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edges {
    /// Beginning of the current window.
    pub start: Wall,
    /// End of the current window and beginning of the next.
    pub end: Wall,
    /// End of the next window.
    pub next_end: Wall,
}

impl Edges {
    /// The start of the window that holds `wall`.
    pub(crate) fn start_at(&self, wall: Wall) -> Wall {
        if wall < self.end {
            self.start
        } else {
            self.end
        }
    }

    /// The end of the window that holds `wall`.
    pub(crate) fn end_at(&self, wall: Wall) -> Wall {
        if wall < self.end {
            self.end
        } else {
            self.next_end
        }
    }
}

/// The functions of every algorithm.
pub(crate) trait Mechanics {
    /// The largest cost admitted from rest; for a learned ceiling its upper bound.
    fn limit(&self) -> u64;
    /// The same at this moment: for a learned ceiling its current value.
    fn limit_now(&self, _usage: &Usage) -> u64 {
        self.limit()
    }
    /// The longest time until rest.
    fn full_refill(&self) -> Duration;
    /// Brings `usage` to the instant; another algorithm's usage becomes rest.
    fn settle(&self, usage: &mut Usage, at: &At);
    /// Returns true if `cost` fits.
    fn check(&self, usage: &Usage, at: &At, cost: u64) -> Outcome;
    /// Charges `cost`, which fits.
    fn take(&self, usage: &mut Usage, at: &At, cost: u64);
    /// The largest cost that fits.
    fn remaining(&self, usage: &Usage, at: &At) -> u64;
    /// Time until rest, from any usage, settled or not.
    fn reset_after(&self, usage: &Usage, at: &At) -> Duration;
    /// Delay of a call that fits; computed before the call is charged.
    fn delay(&self, _usage: &Usage, _at: &At) -> Duration {
        Duration::ZERO
    }
    /// Moves every monotonic instant.
    fn shift(&self, usage: &mut Usage, nanos: i64);
    /// Where a call that begins within the limit is charged whole: whether a call begins so.
    fn begins_within(&self, _usage: &Usage) -> Option<bool> {
        None
    }
    /// Remembers `cost` of a call that was refused and is not charged.
    fn remember_refused(&self, _usage: &mut Usage, _at: &At, _cost: u64) {}
}

/// An algorithm with precomputed numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Token(TokenEngine),
    Refill(RefillEngine),
    Leaky(LeakyEngine),
    Fixed(FixedEngine),
    Calendar(CalendarEngine),
    Segments(SegmentEngine),
    Log(LogEngine),
    Permits(PermitEngine),
}

/// Runs `$call` on the algorithm that an [`Engine`] holds.
macro_rules! each {
    ($engine:expr, $inner:ident => $call:expr) => {
        match $engine {
            Engine::Token($inner) => $call,
            Engine::Refill($inner) => $call,
            Engine::Leaky($inner) => $call,
            Engine::Fixed($inner) => $call,
            Engine::Calendar($inner) => $call,
            Engine::Segments($inner) => $call,
            Engine::Log($inner) => $call,
            Engine::Permits($inner) => $call,
        }
    };
}

pub(crate) use each;

/// Each of these calls the same function of the algorithm in the engine.
macro_rules! ask_inner {
    ($(fn $name:ident(&self $(, $argument:ident: $type:ty)*) $(-> $answer:ty)?;)*) => {
        impl Mechanics for Engine {$(
            fn $name(&self $(, $argument: $type)*) $(-> $answer)? {
                each!(self, engine => engine.$name($($argument),*))
            }
        )*}
    };
}

ask_inner! {
    fn limit(&self) -> u64;
    fn limit_now(&self, usage: &Usage) -> u64;
    fn full_refill(&self) -> Duration;
    fn settle(&self, usage: &mut Usage, at: &At);
    fn check(&self, usage: &Usage, at: &At, cost: u64) -> Outcome;
    fn take(&self, usage: &mut Usage, at: &At, cost: u64);
    fn remaining(&self, usage: &Usage, at: &At) -> u64;
    fn reset_after(&self, usage: &Usage, at: &At) -> Duration;
    fn delay(&self, usage: &Usage, at: &At) -> Duration;
    fn shift(&self, usage: &mut Usage, nanos: i64);
    fn begins_within(&self, usage: &Usage) -> Option<bool>;
    fn remember_refused(&self, usage: &mut Usage, at: &At, cost: u64);
}

impl Engine {
    /// The engine of a limit with the same shape and these numbers.
    pub(crate) fn with_numbers(&self, numbers: &NarrowNumbers) -> Self {
        match (self, numbers) {
            (Self::Token(_), NarrowNumbers::Bucket(numbers)) => {
                Self::Token(TokenEngine::plain(numbers.wide()))
            }
            (Self::Leaky(engine), NarrowNumbers::Bucket(numbers)) => {
                Self::Leaky(engine.with_gcra(numbers.wide()))
            }
            (Self::Fixed(engine), NarrowNumbers::Max(max)) => Self::Fixed(engine.with_limit(*max)),
            (Self::Calendar(engine), NarrowNumbers::Max(max)) => {
                Self::Calendar(engine.with_limit(*max))
            }
            (Self::Segments(engine), NarrowNumbers::Max(max)) => {
                Self::Segments(engine.with_limit(*max))
            }
            (Self::Log(engine), NarrowNumbers::Max(max)) => Self::Log(engine.with_limit(*max)),
            (Self::Permits(engine), NarrowNumbers::Max(max)) => {
                Self::Permits(engine.with_limit(*max))
            }
            // Its shape has the numbers.
            (engine, _) => engine.clone(),
        }
    }

    /// Converts `usage` from `self` to `to` at the instant of the change. Debts stay debts. A key at rest stays at rest:
    /// tokens that were missing at its start came back long ago.
    pub(crate) fn carry(&self, mut usage: Usage, to: &Self, at: &At) -> Usage {
        if matches!(usage, Usage::Rest) {
            return usage;
        }
        self.settle(&mut usage, at);
        let owed = self.units_owed(&usage, at);
        if let Usage::OwingBatches { used, .. } = &mut usage {
            // What is owed is carried over separately.
            *used = (*used).min(self.limit());
        }
        let mut carried = self.carry_used(usage, to, at);
        match (to, &mut carried) {
            // Repaid at the rate: the price of warm-up was already paid when it was charged.
            (Self::Token(engine), Usage::WarmingUp { tat, .. }) if self.is_kin(to) => {
                *tat = engine.gcra().owe(*tat, at.now.monotonic, owed).0;
            }
            _ if self.is_kin(to) => to.owe(&mut carried, owed, at),
            _ => {}
        }
        carried
    }

    fn carry_used(&self, usage: Usage, to: &Self, at: &At) -> Usage {
        match (self, to) {
            _ if matches!(usage, Usage::Rest) => usage,
            (Self::Token(from), Self::Token(to)) => to.adopt(from, &usage, at),
            (Self::Token(from), Self::Refill(to)) => to.with_used(from.used(&usage, at), at),
            (Self::Refill(_), Self::Token(to)) => to.with_used(refill::used(&usage), at),
            (Self::Refill(_), Self::Refill(to)) => to.adopt(usage, at),
            (Self::Leaky(from), Self::Leaky(to)) => to.with_used(from.used(&usage, at), at),
            (Self::Fixed(_), Self::Fixed(to)) => to.adopt(usage),
            (Self::Calendar(from), Self::Calendar(to)) => to.adopt(from, usage, at),
            (Self::Segments(from), Self::Segments(to)) => to.adopt(from, usage, at),
            (Self::Log(_), Self::Log(to)) => to.adopt(usage),
            (Self::Permits(_), Self::Permits(to)) => {
                let mut usage = to.adopt(usage);
                to.settle(&mut usage, at);
                usage
            }
            _ => Usage::Rest,
        }
    }
}
