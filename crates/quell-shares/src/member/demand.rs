//! Demand: the rate of calls offered, which follows a surge at once and a lull soon, and how far it
//! may rise until the next grant.
//!
//! A share of exactly the demand is short whenever demand rises; a share with a fixed fifth more
//! keeps that fifth from members that need it. So the margin follows the demand: a load that stays
//! where it is gets a hundredth, one that moves with nearly every report gets twice that movement,
//! up to a fifth.
//!
//! Example, in calls per report: 100, 100, 300, 300, 300, 300 changed once, so it gets 303. 100,
//! 106, 112, 118, 124, 130 rises by 6 each time, so it gets 142: until the grant that follows the
//! next report it may have risen twice more.

use crate::plan::LimitId;

/// The changes that are remembered: 2.5 s of them at the default period.
const CHANGES: usize = 5;

/// The margin is at least this part of the demand: no share is planned again for less.
pub(crate) const LEAST_MARGIN: u64 = 100;

/// Divisor of the greatest margin: at most this part of the demand.
const MAX_MARGIN: u64 = 5;

/// The cost offered since the last report, and its rates at the reports before.
#[derive(Clone, Debug, Default)]
pub(super) struct Demand {
    pub(super) limit: LimitId,
    pub(super) offered: u64,
    /// The higher of the last two measurements.
    pub(super) rate: u64,
    /// Amount by which it may grow until the next grant.
    pub(super) margin: u64,
    last: u64,
    /// Between measurements, in either direction; the newest at `next - 1`.
    changes: [u64; CHANGES],
    next: usize,
}

impl Demand {
    pub(super) fn new(limit: LimitId) -> Self {
        Self {
            limit,
            ..Self::default()
        }
    }

    /// Rises at once. Falls to the higher of the last two measurements: one lull may be noise, but
    /// after two no other member should have to wait.
    pub(super) fn observe(&mut self, nanos: u64) {
        let offered = core::mem::take(&mut self.offered);
        let rate = u128::from(offered) * 1_000_000_000 / u128::from(nanos.max(1));
        let rate = u64::try_from(rate).unwrap_or(u64::MAX);
        self.rate = rate.max(self.last);
        self.changes[self.next] = rate.abs_diff(self.last);
        self.next = (self.next + 1) % CHANGES;
        self.last = rate;
        let moves = self.usual_change().saturating_mul(2);
        self.margin = moves.clamp(self.rate / LEAST_MARGIN, self.rate / MAX_MARGIN);
    }

    /// All but one of the last changes are at least as large. A single move of demand changes two
    /// measurements, because it happens between reports; it is over, and no reason for a margin.
    fn usual_change(&self) -> u64 {
        let mut changes = self.changes;
        changes.sort_unstable();
        changes[1]
    }
}
