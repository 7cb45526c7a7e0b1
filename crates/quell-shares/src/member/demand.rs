//! Demand: what callers offer, as a rate that follows a surge at once and a lull soon.

/// What was offered since the last report, and the smoothed rate of it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Demand {
    pub(super) rate: u64,
    pub(super) offered: u64,
    /// The rate of the last measure alone.
    last: u64,
}

impl Demand {
    /// Up by three quarters of the way. Down to the higher of the last two measures: one lull may be
    /// noise, and after two nobody should wait for more.
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
