//! Still: detects that the monotonic clock stood still while time went on.
//!
//! Rights end on a clock that also counts suspended time (`CLOCK_BOOTTIME`), but a hypervisor that
//! stops a machine may hide the pause even from that clock. The wall clock is then corrected when
//! the machine continues. So a process reads both clocks from time to time; if the wall clock
//! advanced by over a second more than the other, the difference counts as a pause. A member then
//! calls [`Member::stood_still`](crate::member::Member::stood_still), a coordinator
//! [`Coordinator::step_down`](crate::leader::Coordinator::step_down). If the wall clock was merely
//! set forward, this costs a lease and nothing else.
//!
//! It cannot see a pause until the wall clock has been corrected.

use core::time::Duration;

use quell_core::time::Now;

/// A difference above this is a pause; below it the wall clock is merely slewed.
const PAUSE: Duration = Duration::from_secs(1);

/// Both clocks, as they were last read.
#[derive(Clone, Copy, Debug)]
pub struct SuspendDetector {
    last: Now,
}

impl SuspendDetector {
    /// Compares from now on.
    #[must_use]
    pub const fn since(now: Now) -> Self {
        Self { last: now }
    }

    /// Time for which the monotonic clock stood still since the last call, if it did.
    pub fn observe(&mut self, now: Now) -> Option<Duration> {
        let counted = now.monotonic.since(self.last.monotonic);
        let passed = now.wall.since(self.last.wall);
        self.last = now;
        let hidden = passed.saturating_sub(counted);
        (hidden > PAUSE).then_some(hidden)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_core::time::{Monotonic, Wall};

    #[test]
    fn only_a_wall_clock_that_ran_ahead_is_a_pause() {
        let at = |monotonic: u64, wall: u64| Now {
            monotonic: Monotonic::from_nanos(monotonic * 1_000_000),
            wall: Wall::from_nanos(wall * 1_000_000),
        };
        let mut still = SuspendDetector::since(at(1_000, 50_000));
        for (monotonic, wall, hidden) in [
            (1_500, 50_500, None),
            // The wall clock is slewed, then set back.
            (2_000, 51_900, None),
            (2_500, 20_000, None),
            (3_000, 31_500, Some(11_000)),
            (3_500, 32_000, None),
            // Half a second on the monotonic clock, slightly over a second and a half on the wall
            // clock.
            (4_000, 33_501, Some(1_001)),
            (4_500, 35_001, None),
            // A suspend that both clocks count.
            (90_000, 120_501, None),
        ] {
            let found = still.observe(at(monotonic, wall));
            assert_eq!(
                found.map(|hidden| hidden.as_millis()),
                hidden,
                "{monotonic}"
            );
        }
    }
}
