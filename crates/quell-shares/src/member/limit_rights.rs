//! Limit rights: what one limit's rights are made of at a member.

use quell_core::time::Monotonic;

use crate::message::{Held, Kept};
use crate::plan::LimitId;
use crate::schedule::{LEASE_STEPS, Right, Schedule, Step};

/// The parts of one limit's rights.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LimitRights {
    pub(super) limit: LimitId,
    pub(super) leases: [Step; LEASE_STEPS],
    pub(super) gap: Right,
    pub(super) base_begins: Monotonic,
    pub(super) base: Right,
    pub(super) base_ends: Monotonic,
    /// Instant until which the member uses no more than the gap, even if the base ends before it began.
    pub(super) promised: Monotonic,
    pub(super) floor: Right,
    /// End of the floor, if it ends.
    pub(super) floor_ends: Option<Monotonic>,
    /// The rate and burst of the whole limit.
    pub(super) whole: Right,
}

impl LimitRights {
    pub(super) fn floor(kept: Kept) -> Self {
        Self {
            limit: kept.limit,
            gap: kept.right,
            base: kept.right,
            floor: kept.right,
            whole: kept.whole,
            ..Self::default()
        }
    }

    pub(super) fn schedule(&self) -> Schedule {
        let mut steps = [Step::default(); LEASE_STEPS + 4];
        let over = self.floor_ends.unwrap_or(Monotonic::ORIGIN);
        let ends = [
            (self.base_begins, self.gap),
            (self.base_ends, self.base),
            (self.promised, self.gap.least(self.floor)),
            (over, self.floor),
        ];
        // Nothing outlasts the floor.
        let last = self.floor_ends.unwrap_or(Monotonic::from_nanos(u64::MAX));
        let rest = ends.map(|(until, right)| Step {
            until: until.min(last),
            right,
        });
        for (to, from) in steps.iter_mut().zip(self.leases.iter().chain(&rest)) {
            *to = *from;
        }
        let after = self.floor_ends.map_or(self.floor, |_| Right::NONE);
        Schedule::new(&steps, after)
    }

    pub(super) fn least(&self) -> Kept {
        let leases = self.leases.iter().filter(|step| step.right.rate > 0);
        let mut ends = self.gap.least(self.base).least(self.floor);
        if self.floor_ends.is_some() {
            ends = Right::NONE;
        }
        Kept {
            limit: self.limit,
            right: leases.fold(ends, |least, step| least.least(step.right)),
            whole: self.whole,
        }
    }

    /// The static share, or what has followed it.
    pub(super) fn now_based(&self, now: Monotonic) -> Kept {
        let right = match self.floor_ends {
            Some(ends) if now >= ends => Right::NONE,
            _ if now < self.base_ends => self.base,
            _ => self.floor,
        };
        Kept {
            limit: self.limit,
            right,
            whole: self.whole,
        }
    }

    pub(super) fn held(&self, now: Monotonic) -> Held {
        let left = |step: Step| (step.right, step.until.since(now));
        Held {
            limit: self.limit,
            leases: self.leases.map(left),
            gap: self.gap,
            base_in: self.base_begins.since(now),
            base: self.base,
            base_for: self.base_ends.since(now),
            floor: self.floor,
            floor_for: self.floor_ends.map(|end| end.since(now)),
            whole: self.whole,
        }
    }
}
