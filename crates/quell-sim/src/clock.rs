//! Clock: the clock of one process. It runs slightly fast or slow, from an origin of its own.

use quell_core::time::Monotonic;

/// A local clock. True time is nanoseconds from the start of the simulation.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: u64,
    /// Parts in a million by which it runs fast.
    ppm: i64,
}

const MILLION: i128 = 1_000_000;

impl Clock {
    /// A clock that shows `origin` at true time 0.
    #[must_use]
    pub const fn new(origin: u64, ppm: i64) -> Self {
        Self { origin, ppm }
    }

    /// Stops the clock for `nanos`.
    pub fn stand_still(&mut self, nanos: u64) {
        self.origin = self.origin.saturating_sub(nanos);
    }

    /// Reading of the clock at a true time.
    #[must_use]
    pub fn local(&self, real: u64) -> Monotonic {
        // 500 s x 10^6 is far below 2^63 in microseconds; the remainder is split off to keep
        // nanoseconds exact.
        let (millions, rest) = (real / 1_000_000, real % 1_000_000);
        let drift = i64::try_from(millions).unwrap_or(0) * self.ppm
            + i64::try_from(rest).unwrap_or(0) * self.ppm / 1_000_000;
        Monotonic::from_nanos(self.origin.saturating_add(real)).shifted(drift)
    }

    /// The first true instant at which the clock shows `local` or more, to within two nanoseconds.
    #[must_use]
    pub fn real(&self, local: Monotonic) -> u64 {
        let shown = local.as_nanos().saturating_sub(self.origin);
        if self.ppm == 0 || shown > u64::MAX / 4 {
            return shown;
        }
        let real = (i128::from(shown) * MILLION).div_euclid(MILLION + i128::from(self.ppm));
        u64::try_from(real).unwrap_or(0)
    }
}
