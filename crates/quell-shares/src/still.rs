//! Still: whether the clock of durations stood still while the world went on.
//!
//! Rights end on a clock that counts suspended time too (`CLOCK_BOOTTIME`), but a hypervisor that
//! stops a machine may hide the pause even from that. The wall clock is then set right when the
//! machine goes on. So: who reads both now and then, and finds that the wall clock went more than a
//! second further, takes the difference for a pause. A member then calls
//! [`Member::stood_still`](crate::member::Member::stood_still), a coordinator
//! [`Coordinator::step_down`](crate::leader::Coordinator::step_down). Somebody who set the wall
//! clock forward costs a lease and nothing else.
//!
//! What it cannot see: a pause whose end is not yet told to the wall clock either.

use core::time::Duration;

use quell_core::time::Now;

/// More than this between the clocks is a pause; less is a wall clock that is slewed.
const PAUSE: Duration = Duration::from_secs(1);

/// The clocks as they were read last.
#[derive(Clone, Copy, Debug)]
pub struct Still {
    last: Now,
}

impl Still {
    /// Compares from now on.
    #[must_use]
    pub const fn since(now: Now) -> Self {
        Self { last: now }
    }

    /// For how long the clock of durations stood still since it was read last, if it did.
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
        let mut still = Still::since(at(1_000, 50_000));
        for (monotonic, wall, hidden) in [
            (1_500, 50_500, None),
            // Slewed, and set back.
            (2_000, 51_900, None),
            (2_500, 20_000, None),
            (3_000, 31_500, Some(11_000)),
            (3_500, 32_000, None),
            // Half a second on the one, a second and a half and a bit more on the other.
            (4_000, 33_501, Some(1_001)),
            (4_500, 35_001, None),
            // Suspend that both clocks count.
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
