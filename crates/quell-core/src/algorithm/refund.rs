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

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::mem;
use core::time::Duration;

use super::gcra::Gcra;
use super::{At, Engine, Mechanics};
use crate::hold::{HeldUsage, Hold, Mark, Place, taken};
use crate::state::Usage;

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
    /// How long a permit lasts unless it is given back; `None` for limits without permits.
    pub(crate) fn lease(&self) -> Option<Duration> {
        match self {
            Self::Permits(engine) => Some(engine.lease()),
            _ => None,
        }
    }

    /// Whether `cost` can fit at any time.
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

    /// Whether holds whose time is over teach it something.
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
            (_, Usage::CalendarWindow { end, used }, Mark::Calendar(mark)) if end == mark => {
                *used = used.saturating_sub(units);
                if *used == 0 {
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

    /// Charges `units` whether they fit or not; what is too much is owed, up to a bound.
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

    /// Carries a settled usage with holds or a debt over to the limit `to`: debts stay debts, permits
    /// and waiting holds stay, and a hold can be refunded as far as its charge was carried over.
    pub(super) fn carry_held(&self, usage: Usage, to: &Self, at: &At) -> Usage {
        let (plain, holds) = match usage {
            Usage::Held(held) => (held.usage, held.holds),
            usage => (usage, Vec::new()),
        };
        let owed = self.units_owed(&plain, at);
        let plain = match plain {
            // What is owed is carried over by itself.
            Usage::OwingBatches { anchor, used } => Usage::OwingBatches {
                anchor,
                used: used.min(self.limit()),
            },
            plain => plain,
        };
        let is_kin = self.is_kin(to);
        let mut usage = if matches!(plain, Usage::Rest) {
            plain
        } else {
            self.carry_plain(plain, to, at)
        };
        match (to, &mut usage) {
            // Paid at the rate: what it cost was settled when it was charged.
            (Self::Token(engine), Usage::WarmingUp { tat, .. }) if is_kin => {
                *tat = engine.gcra().owe(*tat, at.now.monotonic, owed).0;
            }
            _ if is_kin => to.owe(&mut usage, owed, at),
            _ => {}
        }
        self.move_holds(usage, holds, to, at)
    }

    /// Whether what is used drains at a rate, and not with age.
    pub(crate) const fn is_bucket(&self) -> bool {
        matches!(self, Self::Token(_) | Self::Refill(_) | Self::Leaky(_))
    }

    /// Whether use is carried over between the two.
    pub(crate) fn is_kin(&self, to: &Self) -> bool {
        mem::discriminant(self) == mem::discriminant(to)
            || matches!(
                (self, to),
                (Self::Token(_), Self::Refill(_)) | (Self::Refill(_), Self::Token(_))
            )
    }

    /// Moves the holds of `usage` to `known`, which was counted under `to` all along. Their marks come
    /// from another count, so a bucket gives nothing back for them.
    pub(crate) fn hand_holds(&self, usage: Usage, known: Usage, to: &Self, at: &At) -> Usage {
        let Usage::Held(mut held) = usage else {
            return known;
        };
        let now = at.now.monotonic;
        let holds = mem::take(&mut held.holds);
        let mut usage = self.move_holds(known, holds, to, at);
        if let Usage::Held(held) = &mut usage {
            for hold in &mut held.holds {
                match &mut hold.place {
                    Place::Taken {
                        mark: Mark::Tat(mark),
                        ..
                    } => *mark = to.gcra().map_or(0, |gcra| gcra.ticks(now)),
                    Place::Taken {
                        mark: Mark::Batches { used, .. },
                        ..
                    } => *used = 0,
                    _ => {}
                }
            }
        }
        usage
    }

    fn move_holds(&self, usage: Usage, holds: Vec<Hold>, to: &Self, at: &At) -> Usage {
        let mut held = HeldUsage { usage, holds };
        held.holds.retain_mut(|hold| {
            let Place::Taken { mark, .. } = &mut hold.place else {
                return true;
            };
            match self.moved_mark(mark, to, at) {
                Some(moved) => {
                    *mark = moved;
                    true
                }
                None => false,
            }
        });
        if held.holds.is_empty() {
            held.usage
        } else {
            to.reconcile(&mut held.usage, taken(&held.holds));
            Usage::Held(held.into())
        }
    }

    /// The mark of a charge under `to`; `None` if nothing of the charge was carried over.
    fn moved_mark(&self, mark: &Mark, to: &Self, at: &At) -> Option<Mark> {
        match (self, to, mark) {
            (Self::Refill(from), Self::Refill(to), Mark::Batches { anchor, used }) => {
                Some(from.moved_mark((*anchor, *used), to, at))
            }
            (Self::Segments(from), Self::Segments(to), Mark::Segment(mark)) => {
                Some(Mark::Segment(from.moved_mark(*mark, to, at)))
            }
            (Self::Fixed(_), Self::Fixed(_), mark) => Some(mark.clone()),
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

/// Takes up to `units` from what was charged at `mark`; entries stand in order.
fn take_from<T: Ord>(entries: &mut VecDeque<(T, u64)>, mark: T, units: u64) {
    let place = entries.partition_point(|(at, _)| *at < mark);
    if let Some((at, used)) = entries.get_mut(place)
        && *at == mark
    {
        *used = used.saturating_sub(units);
        if *used == 0 {
            entries.remove(place);
        }
    }
}
