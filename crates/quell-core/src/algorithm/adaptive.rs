//! Adaptive: a ceiling of permits that is learned from how long calls take.
//!
//! The right number of calls at a time is the one at which the service is just busy. Below it the
//! service is idle at times; above it calls only wait longer. This number is not known, and it changes.
//! But it can be measured from outside. By Little's law, if a service that handles K calls at once gets
//! C > K calls, each takes C/K times as long as without waiting. So from the latency L, and the latency
//! B without waiting,
//!
//! ```text
//! fits     = C * B / L                           (K, if C > K; C, if not)
//! headroom = half the square root of C, at least 1
//! C        = (C + fits + headroom) / 2           at the end of a window, never outside min..=max
//! C        = C * 9 / 10                          when a call failed or its lease ended
//! ```
//!
//! This is the gradient of Netflix's concurrency-limits (`GradientLimit`, whose queue is our headroom),
//! which is Vegas as a ratio. Failures are handled as in its `AIMDLimit`. What these lack is a reliable
//! B: the smallest latency ever seen is luck, and an average of the past rises with the queue that it
//! should measure.
//!
//! So B is measured, as in Envoy's adaptive concurrency filter. Every 32 windows, and when the ceiling
//! has fallen and stays down, the ceiling is lowered by a quarter until enough calls have been timed.
//! Then there is no queue, unless the ceiling was a third too high. So a B that went up is measured
//! again after 8 windows.
//!
//! A window has twice as many calls as the ceiling, and at least 32. Calls that were admitted under the
//! ceiling before are not measured. Until the first queue is seen, the ceiling grows by half. It does
//! not change while at most half of it is in use, and never exceeds twice what is in use.
//!
//! Example: a service handles 16 calls at once in 100 ms each, and more callers come. The ceiling begins
//! at 2, is 22 after 10 s, and stays at 18 or 19 from then on, except while it measures at 14. The
//! service has 98 % of its possible throughput, and a call takes 112 ms.
//!
//! Kept: twelve integers for a key, with ceilings in 1/256 of a permit. If no call ends for a lease,
//! everything learned is forgotten and the ceiling is `min` again. A call that lasts longer than a day,
//! by renewing its lease, counts as a day. So no sum overflows, here or in a script that counts
//! microseconds in doubles.
//!
//! Bound: at most `max` permits at any instant. A falling ceiling takes no permit away.
//!
//! Bad at: calls whose times differ more than a queue makes them differ, services that get slower long
//! before they are full, and keys with few calls, whose ceiling stays at `min`.

use alloc::boxed::Box;
use core::time::Duration;

use crate::hold::MAX_HOLD;
use crate::time::{Monotonic, saturating_nanos};
use crate::usage::{LearnedCeiling, Usage};

/// Parts of a permit in which a ceiling is counted.
const PARTS: u64 = 256;

/// The fewest units in a window: with fewer, the chance of single calls would move the ceiling.
const SHORTEST_WINDOW: u64 = 32;

/// The same for measuring the unloaded latency, on which all windows until the next measurement depend.
const SHORTEST_MEASURE: u64 = 96;

/// Windows between two measures: one in 32 costs 2 % of the throughput.
const WINDOWS: u32 = 32;

/// The same after a measurement that found longer calls than the one before.
const SOON: u32 = 8;

/// The bounds of a ceiling, in permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Adaptive {
    min: u64,
    max: u64,
}

impl Adaptive {
    /// `min` is at least 1, `max` at least `min` and at most [`MAX_HOLDS`](crate::hold::MAX_HOLDS).
    pub(super) const fn new(min: u64, max: u64) -> Self {
        Self { min, max }
    }

    fn bounded(&self, parts: u64) -> u64 {
        parts.clamp(self.min * PARTS, self.max * PARTS)
    }

    /// Before anything is known: the ceiling is `min`, whose latency is measured first.
    fn fresh(&self) -> LearnedCeiling {
        LearnedCeiling {
            ceiling: self.min * PARTS,
            top: self.min * PARTS,
            measures: true,
            grows: true,
            ..LearnedCeiling::default()
        }
    }

    /// Number of permits that may be held now.
    pub(super) fn ceiling(&self, usage: &Usage) -> u64 {
        match usage {
            Usage::Learning(learned) => self.in_force(learned),
            _ => self.min,
        }
    }

    fn in_force(&self, learned: &LearnedCeiling) -> u64 {
        let parts = self.bounded(learned.ceiling);
        if learned.measures {
            self.min.max(parts / 4 * 3 / PARTS)
        } else {
            parts / PARTS
        }
    }

    pub(super) fn set_used(&self, usage: &mut Usage, used: u64) {
        if let Usage::Learning(learned) = usage {
            learned.used = used;
        } else if used > 0 {
            let fresh = self.fresh();
            *usage = Usage::Learning(Box::new(LearnedCeiling { used, ..fresh }));
        }
    }

    /// Forgets what is over, and replaces impossible values by possible ones; `lease` is how long
    /// anything is remembered.
    pub(super) fn settle(&self, usage: &mut Usage, now: Monotonic, lease: Duration) {
        let Usage::Learning(learned) = usage else {
            *usage = Usage::Rest;
            return;
        };
        learned.until = learned.until.min(now.saturating_add(lease));
        if learned.until <= now {
            *usage = Usage::Rest;
            return;
        }
        learned.used = 0;
        learned.ceiling = self.bounded(learned.ceiling);
        learned.top = self.bounded(learned.top);
    }

    /// Learns from a call that held `units` and has ended; `held` is how long, or `None` if it failed.
    pub(super) fn learn(
        &self,
        usage: &mut Usage,
        units: u64,
        held: Option<Duration>,
        until: Monotonic,
    ) {
        if !matches!(usage, Usage::Learning(_)) {
            if held.is_none() {
                // Nothing was learned yet that it could lower.
                return;
            }
            self.set_used(usage, units.max(1));
        }
        let Usage::Learning(learned) = usage else {
            return;
        };
        learned.until = until;
        if learned.skip > 0 {
            learned.skip = learned.skip.saturating_sub(units);
            return;
        }
        let before = self.in_force(learned);
        match held {
            None => self.back_off(learned),
            Some(held) => {
                let nanos = saturating_nanos(held.min(MAX_HOLD)).saturating_mul(units);
                learned.sum = learned.sum.saturating_add(nanos);
                learned.count = learned.count.saturating_add(units);
                learned.peak = learned.peak.max(learned.used.min(self.max));
                if learned.count < self.window(learned) {
                    return;
                }
                let mean = (learned.sum / learned.count.max(1)).max(1);
                if learned.measures {
                    self.measured(learned, mean);
                } else {
                    self.judge(learned, mean);
                }
            }
        }
        let after = self.in_force(learned);
        learned.skip = if before == after { 0 } else { before + after };
        (learned.count, learned.sum, learned.peak) = (0, 0, 0);
    }

    /// The number of units in a window.
    fn window(&self, learned: &LearnedCeiling) -> u64 {
        let shortest = if learned.measures {
            SHORTEST_MEASURE
        } else {
            SHORTEST_WINDOW
        };
        shortest.max(self.bounded(learned.ceiling) / PARTS * 2)
    }

    fn back_off(&self, learned: &mut LearnedCeiling) {
        let ceiling = self.bounded(learned.ceiling);
        let lower = (ceiling / 10 * 9).min(ceiling.saturating_sub(PARTS));
        learned.ceiling = self.bounded(lower);
        learned.grows = false;
    }

    fn measured(&self, learned: &mut LearnedCeiling, mean: u64) {
        // Either calls now take longer by themselves, and lowering the ceiling was pointless; or there
        // was a queue even so, and a measurement at a lower ceiling will tell.
        let is_longer = mean / 5 * 4 > learned.unloaded;
        learned.grows |= is_longer;
        learned.unloaded = mean;
        learned.measures = false;
        learned.windows = if is_longer { SOON } else { WINDOWS };
        learned.top = self.bounded(learned.ceiling);
    }

    fn judge(&self, learned: &mut LearnedCeiling, mean: u64) {
        let ceiling = self.bounded(learned.ceiling);
        let in_use = learned.peak.saturating_mul(2 * PARTS);
        if ceiling < in_use {
            let next = self.next(learned, ceiling, mean);
            // The ceiling never raises itself above twice what is in use.
            learned.ceiling = self.bounded(next.min(in_use.max(ceiling)));
        }
        let next = learned.ceiling;
        learned.windows = learned.windows.saturating_sub(1);
        let has_settled = next.saturating_add(PARTS) >= ceiling;
        let has_fallen = next < learned.top / 2 || (next < learned.top / 4 * 3 && has_settled);
        learned.measures = learned.windows == 0 || has_fallen;
        learned.top = learned.top.max(next);
    }

    /// The ceiling that follows from the mean latency of a window.
    fn next(&self, learned: &mut LearnedCeiling, ceiling: u64, mean: u64) -> u64 {
        let headroom = PARTS.max((ceiling * PARTS).isqrt() / 2);
        let unloaded = learned.unloaded.min(mean);
        let fits = u128::from(ceiling) * u128::from(unloaded) / u128::from(mean);
        let fits = u64::try_from(fits).unwrap_or(ceiling);
        let target = fits + headroom;
        learned.grows &= target >= ceiling;
        if learned.grows {
            ceiling + ceiling / 2
        } else {
            ceiling.midpoint(target)
        }
    }

    /// Converts what was learned under other bounds.
    pub(super) fn adopt(&self, usage: Usage) -> Usage {
        match usage {
            Usage::Learning(mut learned) => {
                learned.ceiling = self.bounded(learned.ceiling);
                learned.top = self.bounded(learned.top);
                Usage::Learning(learned)
            }
            _ => Usage::Rest,
        }
    }
}
