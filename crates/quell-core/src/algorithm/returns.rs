//! What holds ask of an algorithm: where a charge lies, giving it back, charging more than fits.
//!
//! A charge is given back as far as it still counts and no further. For a bucket, with the TAT
//! `mark` right behind the charge when it was made, n units of interval T are given back as
//!
//! ```text
//! tat = tat - min(n*T, max(0, mark - now))
//! ```
//!
//! What was charged later stands behind the mark, so this is never less than the TAT of a bucket
//! from which the n units were never taken: the bound holds for what was truly used. Giving back all
//! n would break it once the bucket has refilled. Marks of later holds move forward by as much, or
//! they would stand too far behind.
//!
//! Example, 10/s with burst 10: 10 reserved at 0 s have drained at 1 s, when 10 more are charged. A
//! cancel at 1 s gives nothing back; else 20 would pass at that instant.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::mem;
use core::time::Duration;

use super::gcra::Gcra;
use super::{At, Engine, Mechanics};
use crate::hold::{Held, Hold, Mark, Place, taken};
use crate::state::Usage;

impl Gcra {
    /// Brings a debt to an instant; says whether it still stands.
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
    /// How long a charge on it lasts unless it is given back: a limit of permits says.
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

    /// Makes a count of permits what the holds say, of which so many units are taken.
    pub(crate) fn reconcile(&self, usage: &mut Usage, taken: u64) {
        if let Self::Permits(engine) = self {
            engine.set_used(usage, taken);
        }
    }

    /// Whether holds whose time is over teach it something.
    pub(crate) const fn learns_from_ends(&self) -> bool {
        matches!(self, Self::Permits(engine) if engine.is_adaptive())
    }

    /// Where the charge lies that was just made.
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

    /// Gives back `units` of the charge at `mark`, as far as it still counts. Says by how much the
    /// marks of later charges are to be moved back.
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
            // A window counts more than its limit for as long as it counts anything.
            _ => self.take(usage, at, units),
        }
    }

    /// Learns how long so many permits were held, or that the call failed.
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

    /// What a settled usage with holds or a debt becomes under `to`: debts stay debts, permits and
    /// those who wait stay, and what is held can be given back as far as it was carried over.
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

    /// Puts the holds of `usage` on `known`, which was used under `to` all along. Their marks tell of
    /// another count: of a bucket, nothing is given back any more.
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
        let mut held = Held { usage, holds };
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

    /// Where a charge lies under `to`; `None` if nothing of it was carried over.
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
