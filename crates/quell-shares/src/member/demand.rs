//! Demand: the rate of calls offered, which follows a surge at once and a lull soon.

/// The cost offered since the last report, and its smoothed rate.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Demand {
    pub(super) rate: u64,
    pub(super) offered: u64,
    /// The rate of the last measurement alone.
    last: u64,
}

impl Demand {
    /// Rises by three quarters of the way. Falls to the higher of the last two measurements: one
    /// lull may be noise, but after two no other member should have to wait.
    pub(super) fn observe(&mut self, nanos: u64) {
        let offered = core::mem::take(&mut self.offered);
        let rate = u128::from(offered) * 1_000_000_000 / u128::from(nanos.max(1));
        let rate = u64::try_from(rate).unwrap_or(u64::MAX);
        self.rate = if rate > self.rate {
            rate - (rate - self.rate) / 4
        } else {
            self.rate.min(rate.max(self.last))
        };
        self.last = rate;
    }
}
