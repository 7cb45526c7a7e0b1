//! Limit rights: what one limit's rights are made of at a member.

use quell_core::time::Monotonic;

use crate::message::{Held, Kept};
use crate::schedule::{LEASE_STEPS, Right, Schedule, Step};

/// The parts of one limit's rights.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LimitRights {
    pub(super) leases: [Step; LEASE_STEPS],
    pub(super) gap: Right,
    pub(super) base_begins: Monotonic,
    pub(super) base: Right,
    pub(super) base_ends: Monotonic,
    /// Until then the member uses no more than the gap, even if the base ends before it began.
    pub(super) promised: Monotonic,
    pub(super) floor: Right,
    /// The rate and burst of the whole limit.
    pub(super) whole: Right,
}

impl LimitRights {
    pub(super) fn floor(kept: Kept) -> Self {
        Self {
            gap: kept.right,
            base: kept.right,
            floor: kept.right,
            whole: kept.whole,
            ..Self::default()
        }
    }

    pub(super) fn schedule(&self) -> Schedule {
        let mut steps = [Step::default(); LEASE_STEPS + 3];
        let ends = [
            (self.base_begins, self.gap),
            (self.base_ends, self.base),
            (self.promised, self.gap.least(self.floor)),
        ];
        let rest = ends.map(|(until, right)| Step { until, right });
        for (to, from) in steps.iter_mut().zip(self.leases.iter().chain(&rest)) {
            *to = *from;
        }
        Schedule::new(&steps, self.floor)
    }

    pub(super) fn least(&self) -> Kept {
        let leases = self.leases.iter().filter(|step| step.right.rate > 0);
        let ends = self.gap.least(self.base).least(self.floor);
        Kept {
            right: leases.fold(ends, |least, step| least.least(step.right)),
            whole: self.whole,
        }
    }

    /// The static share, or what has followed it.
    pub(super) fn now_based(&self, now: Monotonic) -> Kept {
        let right = if now < self.base_ends {
            self.base
        } else {
            self.floor
        };
        Kept {
            right,
            whole: self.whole,
        }
    }

    pub(super) fn held(&self, now: Monotonic) -> Held {
        let left = |step: Step| (step.right, step.until.since(now));
        Held {
            leases: self.leases.map(left),
            gap: self.gap,
            base_in: self.base_begins.since(now),
            base: self.base,
            base_for: self.base_ends.since(now),
            floor: self.floor,
            whole: self.whole,
        }
    }
}
