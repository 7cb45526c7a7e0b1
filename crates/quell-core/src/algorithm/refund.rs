//! Refund: gives back a charge, or charges more than fits, on behalf of a hold.
//!
//! A refund gives back what still counts of a charge, and no more. A bucket remembers its TAT right
//! after the charge as `mark`; n units of interval T are then given back as
//!
//! ```text
//! tat = tat - min(n*T, max(0, mark - now))
//! ```
//!
//! Later charges lie after the mark, so the result is never below the TAT of a bucket from which the
//! n units were never taken: the bound holds for what was truly used. Giving back all n would break
//! it once the bucket has refilled. The marks of later holds move by the same amount.
//!
//! Example, 10/s with burst 10: 10 units reserved at 0 s have drained at 1 s, when 10 more are
//! charged. A cancel at 1 s gives nothing back; otherwise 20 would pass at that instant.

use core::mem;
use core::time::Duration;

use super::entries::{add_at, take_from};
use super::gcra::Gcra;
use super::{At, Engine, Mechanics};
use crate::hold::Mark;
use crate::time::Now;
use crate::usage::Usage;

impl Gcra {
    /// Settles a debt at an instant; returns whether any of it is left.
    pub(super) fn settle_debt(&self, usage: &mut Usage, at: &At) -> bool {
        let now = at.now.monotonic;
        let Usage::Owing { tat, as_of } = usage else {
            return false;
        };
        let (settled, stands) = self.settle_owing(*tat, *as_of, now);
        (*tat, *as_of) = (settled, now);
        stands
    }

    /// Charges a token bucket whether it fits or not.
    pub(super) fn charge_on_credit(&self, usage: &mut Usage, tat: u128, at: &At, cost: u64) {
        let now = at.now.monotonic;
        *usage = match self.owe(tat, now, cost) {
            (tat, true) => Usage::Owing { tat, as_of: now },
            (tat, false) => Usage::TokenBucket { tat },
        };
    }
}

impl Engine {
    /// Lifetime of a permit that is not given back; `None` for limits without permits.
    pub(crate) fn lease(&self) -> Option<Duration> {
        match self {
            Self::Permits(engine) => Some(engine.lease()),
            _ => None,
        }
    }

    /// Returns true if `cost` can fit at any time.
    pub(crate) fn can_ever(&self, cost: u64) -> bool {
        match self {
            Self::Token(engine) => engine.can_ever(cost),
            _ => cost <= self.limit(),
        }
    }

    /// Sets the count of permits to `taken`, the units of all taken holds.
    pub(crate) fn reconcile(&self, usage: &mut Usage, taken: u64) {
        if let Self::Permits(engine) = self {
            engine.set_used(usage, taken);
        }
    }

    /// Returns true if expired holds teach the limit something.
    pub(crate) const fn learns_from_ends(&self) -> bool {
        matches!(self, Self::Permits(engine) if engine.is_adaptive())
    }

    /// The mark of the charge that was just made.
    pub(crate) fn mark(&self, usage: &Usage, at: &At) -> Mark {
        match (self, usage) {
            (Self::Refill(engine), usage) => engine.mark(usage, at),
            (
                _,
                Usage::TokenBucket { tat }
                | Usage::LeakyBucket { tat }
                | Usage::Owing { tat, .. }
                | Usage::WarmingUp { tat, .. },
            ) => Mark::Tat(*tat),
            (_, Usage::FixedWindow { start, .. }) => Mark::Window(*start),
            (_, Usage::CalendarWindow { end, .. }) => Mark::Calendar(*end),
            (_, Usage::SlidingWindow { segments }) => match segments.back() {
                Some((segment, _)) => Mark::Segment(*segment),
                None => Mark::Permits,
            },
            (_, Usage::SlidingLog { .. }) => Mark::Entry(at.now.monotonic),
            _ => Mark::Permits,
        }
    }

    /// Gives back `units` of the charge at `mark`, as far as it still counts. Returns by how much the
    /// caller must move the marks of later charges back.
    pub(crate) fn give_back(&self, usage: &mut Usage, mark: &Mark, units: u64, at: &At) -> u128 {
        let now = at.now.monotonic;
        match (self, &mut *usage, mark) {
            (
                Self::Token(_) | Self::Leaky(_),
                Usage::TokenBucket { tat }
                | Usage::LeakyBucket { tat }
                | Usage::Owing { tat, .. }
                | Usage::WarmingUp { tat, .. },
                Mark::Tat(mark),
            ) => {
                if let Some(gcra) = self.gcra() {
                    let before = mem::take(tat);
                    *tat = gcra.give_back(before, now, units, *mark);
                    return before - *tat;
                }
            }
            (Self::Refill(engine), _, Mark::Batches { anchor, used }) => {
                return engine.give_back(usage, at, units, (*anchor, *used)).into();
            }
            (_, Usage::FixedWindow { start, used }, Mark::Window(mark)) if start == mark => {
                *used = used.saturating_sub(units);
                if *used == 0 {
                    *usage = Usage::Rest;
                }
            }
            (_, Usage::CalendarWindow { end, used, refused }, Mark::Calendar(mark))
                if end == mark =>
            {
                let undone = units.min(*refused);
                *refused -= undone;
                *used = used.saturating_sub(units - undone);
                if (*used, *refused) == (0, 0) {
                    *usage = Usage::Rest;
                }
            }
            (_, Usage::SlidingWindow { segments }, Mark::Segment(mark)) => {
                take_from(segments, *mark, units);
            }
            (_, Usage::SlidingLog { entries }, Mark::Entry(mark)) => {
                take_from(entries, *mark, units);
            }
            _ => {}
        }
        0
    }

    /// Takes back `units` of a charge that was made at `charged`, as far as that use still counts: of a
    /// bucket at most what makes it full, of a window those of the same window or segment.
    pub(crate) fn take_back(&self, usage: &mut Usage, units: u64, charged: Now, at: &At) {
        let (then, wall) = (charged.monotonic, charged.wall);
        let mark = match (self, &*usage) {
            (_, Usage::TokenBucket { tat } | Usage::LeakyBucket { tat }) => Mark::Tat(*tat),
            (_, Usage::Refill { anchor, used }) if *anchor <= then => Mark::Batches {
                anchor: *anchor,
                used: *used,
            },
            (_, Usage::FixedWindow { start, .. }) if *start <= then => Mark::Window(*start),
            (Self::Calendar(engine), Usage::CalendarWindow { end, .. })
                if engine.may_contain(wall, *end) =>
            {
                Mark::Calendar(*end)
            }
            (Self::Segments(engine), Usage::SlidingWindow { .. }) => {
                Mark::Segment(engine.segment(then))
            }
            (_, Usage::SlidingLog { .. }) => Mark::Entry(then),
            _ => return,
        };
        self.give_back(usage, &mark, units, at);
    }

    /// Charges what the charge at `mark` cost more than was known then, whether it fits or not. Returns how
    /// many units count.
    ///
    /// A window counts them where it counts the charge, and one that is over counts them no more: a call
    /// at the end of a month is no use of the next. A bucket owes them from now on.
    pub(crate) fn owe_at(&self, usage: &mut Usage, mark: &Mark, units: u64, at: &At) -> u64 {
        let now = at.now.monotonic;
        let is_over = match (self, mark) {
            (Self::Fixed(engine), Mark::Window(start)) => engine.left(*start, now).is_zero(),
            (Self::Calendar(_), Mark::Calendar(end)) => *end <= at.now.wall,
            (Self::Segments(engine), Mark::Segment(mark)) => engine.left(*mark, now).is_zero(),
            (Self::Log(engine), Mark::Entry(mark)) => engine.left(*mark, now).is_zero(),
            _ => false,
        };
        if units == 0 || is_over {
            return 0;
        }
        match (&mut *usage, mark) {
            (Usage::SlidingWindow { segments }, Mark::Segment(mark)) => {
                add_at(segments, *mark, units);
            }
            (Usage::SlidingLog { entries }, Mark::Entry(mark)) => add_at(entries, *mark, units),
            _ => self.owe(usage, units, at),
        }
        units
    }

    /// Charges `units` whether they fit or not; the excess is owed, up to a bound.
    pub(crate) fn owe(&self, usage: &mut Usage, units: u64, at: &At) {
        if units == 0 {
            return;
        }
        let now = at.now.monotonic;
        match (self, &mut *usage) {
            (Self::Token(engine), usage) if engine.warm_up().is_some() => {
                engine.take(usage, at, units);
            }
            (Self::Token(engine), Usage::TokenBucket { tat } | Usage::Owing { tat, .. }) => {
                let tat = *tat;
                engine.gcra().charge_on_credit(usage, tat, at, units);
            }
            (Self::Token(engine), _) => engine.gcra().charge_on_credit(usage, 0, at, units),
            (Self::Leaky(engine), usage) => {
                let tat = match usage {
                    Usage::LeakyBucket { tat } | Usage::Owing { tat, .. } => *tat,
                    _ => 0,
                };
                *usage = match engine.gcra().owe(tat, now, units) {
                    (tat, true) => Usage::Owing { tat, as_of: now },
                    (tat, false) => Usage::LeakyBucket { tat },
                };
            }
            (Self::Refill(engine), usage) => engine.owe(usage, at, units),
            (Self::Permits(_), _) => {}
            // A window may count more than its limit.
            _ => self.take(usage, at, units),
        }
    }

    /// Tells an adaptive limit how long `units` permits were held, or that the call failed (`None`).
    pub(crate) fn learn(&self, usage: &mut Usage, units: u64, held: Option<Duration>, at: &At) {
        if let Self::Permits(engine) = self {
            engine.learn(usage, units, held, at);
        }
    }

    /// By how much marks move at most when `units` are given back.
    pub(crate) fn most_back(&self, units: u64) -> u128 {
        self.gcra()
            .map_or_else(|| units.into(), |gcra| gcra.cost(units))
    }

    fn gcra(&self) -> Option<&Gcra> {
        match self {
            Self::Token(engine) => Some(engine.gcra()),
            Self::Leaky(engine) => Some(engine.gcra()),
            _ => None,
        }
    }

    /// Moves the instant in a mark.
    pub(crate) fn shift_mark(&self, mark: &mut Mark, nanos: i64) {
        match (self, mark) {
            (Self::Token(_) | Self::Leaky(_), Mark::Tat(tat)) => {
                if let Some(gcra) = self.gcra() {
                    *tat = gcra.shift(*tat, nanos);
                }
            }
            (_, Mark::Batches { anchor: at, .. } | Mark::Window(at) | Mark::Entry(at)) => {
                *at = at.shifted(nanos);
            }
            (Self::Segments(engine), Mark::Segment(segment)) => {
                *segment = engine.shifted(*segment, nanos);
            }
            _ => {}
        }
    }

    /// Units owed beyond what the limit holds.
    pub(crate) fn units_owed(&self, usage: &Usage, at: &At) -> u64 {
        match (self, usage) {
            (_, Usage::Owing { tat, .. } | Usage::WarmingUp { tat, .. }) => self
                .gcra()
                .map_or(0, |gcra| gcra.units_owed(*tat, at.now.monotonic)),
            (Self::Refill(engine), Usage::OwingBatches { .. }) => engine.units_owed(usage),
            _ => 0,
        }
    }

    /// Invalidates a mark because the key's usage is a different count now: a bucket gives nothing
    /// back for it.
    pub(crate) fn forget_mark(&self, mark: &mut Mark, at: &At) {
        match mark {
            Mark::Tat(tat) => *tat = self.gcra().map_or(0, |gcra| gcra.ticks(at.now.monotonic)),
            Mark::Batches { used, .. } => *used = 0,
            _ => {}
        }
    }

    /// Returns true if usage drains at a rate, and not by age.
    pub(crate) const fn is_bucket(&self) -> bool {
        matches!(self, Self::Token(_) | Self::Refill(_) | Self::Leaky(_))
    }

    /// Returns true if usage is carried over between the two.
    pub(crate) fn is_kin(&self, to: &Self) -> bool {
        mem::discriminant(self) == mem::discriminant(to)
            || matches!(
                (self, to),
                (Self::Token(_), Self::Refill(_)) | (Self::Refill(_), Self::Token(_))
            )
    }

    /// Returns true if both count windows of the same calendar unit with other edges.
    pub(crate) fn is_moved(&self, to: &Self) -> bool {
        matches!((self, to), (Self::Calendar(from), Self::Calendar(to)) if from.is_moved(to))
    }

    /// The mark of a charge under `to`; `None` if nothing of the charge was carried over.
    pub(crate) fn moved_mark(&self, mark: &Mark, to: &Self, at: &At) -> Option<Mark> {
        match (self, to, mark) {
            (Self::Refill(from), Self::Refill(to), Mark::Batches { anchor, used }) => {
                Some(from.moved_mark((*anchor, *used), to, at))
            }
            (Self::Segments(from), Self::Segments(to), Mark::Segment(mark)) => {
                Some(Mark::Segment(from.moved_mark(*mark, to, at)))
            }
            (Self::Fixed(_), Self::Fixed(_), mark) => Some(mark.clone()),
            (Self::Calendar(from), Self::Calendar(to), Mark::Calendar(mark)) => {
                Some(Mark::Calendar(from.moved_mark(*mark, to, at)))
            }
            (Self::Calendar(_), Self::Calendar(_), mark) => Some(mark.clone()),
            (Self::Log(_), Self::Log(_), mark) => Some(mark.clone()),
            (Self::Permits(_), Self::Permits(_), mark) => Some(mark.clone()),
            (Self::Token(_), Self::Token(_), Mark::Tat(mark))
            | (Self::Leaky(_), Self::Leaky(_), Mark::Tat(mark)) => {
                let (from, to) = (self.gcra()?, to.gcra()?);
                Some(Mark::Tat(from.moved_mark(*mark, to, at.now.monotonic)))
            }
            _ => None,
        }
    }
}
