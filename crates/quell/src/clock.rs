//! Clock: where a [`Now`] comes from, read once per request.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use quell_core::time::{Monotonic, Now, Wall};

pub use crate::alarm::Alarm;
use crate::alarm::{self, Alarms};

/// Reads both clocks.
pub trait Clock: Debug + Send + Sync {
    /// The present instant.
    fn now(&self) -> Now;

    /// The monotonic reading alone, where that is cheaper.
    fn monotonic(&self) -> Monotonic {
        self.now().monotonic
    }

    /// Wakes `waker` when the monotonic reading is `instant`, unless the alarm is dropped before. It
    /// may come late, and early where the clock cannot tell: who is woken reads the clock.
    fn alarm(&self, instant: Monotonic, waker: &Waker) -> Alarm {
        alarm::after(instant.since(self.monotonic()), waker)
    }
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Now {
        (**self).now()
    }

    fn monotonic(&self) -> Monotonic {
        (**self).monotonic()
    }

    fn alarm(&self, instant: Monotonic, waker: &Waker) -> Alarm {
        (**self).alarm(instant, waker)
    }
}

/// The clocks of this machine.
///
/// The monotonic reading begins at the wall clock's and then goes its own way, so that a step of
/// the wall clock moves calendar windows and nothing else. The wall clock is looked at once in a
/// millisecond and goes along with the other in between: a step shows at most that late, and a
/// decision costs one reading.
#[derive(Debug)]
pub struct SystemClock {
    started: Instant,
    origin: u64,
    /// The monotonic reading at the last look at the wall clock.
    looked: AtomicU64,
    /// How far the wall clock was ahead then, in nanoseconds.
    ahead: AtomicI64,
}

/// How long a look at the wall clock serves: no calendar window minds a millisecond.
const LOOK_EVERY: Duration = Duration::from_millis(1);

impl SystemClock {
    /// A clock that begins now.
    #[must_use]
    pub fn new() -> Self {
        let origin = wall_nanos();
        Self {
            started: Instant::now(),
            origin,
            looked: AtomicU64::new(origin),
            ahead: AtomicI64::new(0),
        }
    }

    /// The wall clock as it stands beside the monotonic one.
    fn wall(&self, monotonic: Monotonic) -> Wall {
        let looked = Monotonic::from_nanos(self.looked.load(Ordering::Relaxed));
        if monotonic.since(looked) >= LOOK_EVERY {
            let now = monotonic.as_nanos();
            // Below 2^63 until the year 2262; beyond it the difference saturates.
            let ahead = i128::from(wall_nanos()) - i128::from(now);
            let ahead = i64::try_from(ahead).unwrap_or(if ahead < 0 { i64::MIN } else { i64::MAX });
            self.ahead.store(ahead, Ordering::Relaxed);
            self.looked.store(now, Ordering::Relaxed);
        }
        Wall::from_nanos(monotonic.as_nanos()).shifted(self.ahead.load(Ordering::Relaxed))
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Now {
        let monotonic = self.monotonic();
        Now {
            monotonic,
            wall: self.wall(monotonic),
        }
    }

    fn monotonic(&self) -> Monotonic {
        Monotonic::from_nanos(self.origin).saturating_add(self.started.elapsed())
    }
}

/// Nanoseconds since 1970, 0 before it.
fn wall_nanos() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    })
}

/// A clock that stands until it is moved, for tests.
///
/// ```
/// use std::time::Duration;
/// use quell::clock::{Clock, ManualClock};
/// let clock = ManualClock::default();
/// clock.advance(Duration::from_secs(1));
/// assert_eq!(clock.now().monotonic.as_nanos(), 1_000_000_000);
/// ```
#[derive(Debug, Default)]
pub struct ManualClock {
    monotonic: AtomicU64,
    wall: AtomicU64,
    alarms: Arc<Alarms>,
}

impl ManualClock {
    /// A clock that stands at `now`.
    #[must_use]
    pub fn new(now: Now) -> Self {
        Self {
            monotonic: AtomicU64::new(now.monotonic.as_nanos()),
            wall: AtomicU64::new(now.wall.as_nanos()),
            alarms: Arc::default(),
        }
    }

    /// Moves both clocks on.
    pub fn advance(&self, duration: Duration) {
        let now = self.now();
        self.set(Now {
            monotonic: now.monotonic.saturating_add(duration),
            wall: now.wall.saturating_add(duration),
        });
    }

    /// Puts both clocks to `now`, which may be earlier.
    pub fn set(&self, now: Now) {
        self.monotonic
            .store(now.monotonic.as_nanos(), Ordering::SeqCst);
        self.wall.store(now.wall.as_nanos(), Ordering::SeqCst);
        self.alarms.ring(now.monotonic.as_nanos());
    }

    /// How many wait for this clock to reach an instant.
    #[must_use]
    pub fn alarms(&self) -> usize {
        self.alarms.len()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Now {
        Now {
            monotonic: Monotonic::from_nanos(self.monotonic.load(Ordering::SeqCst)),
            wall: Wall::from_nanos(self.wall.load(Ordering::SeqCst)),
        }
    }

    fn alarm(&self, instant: Monotonic, waker: &Waker) -> Alarm {
        self.alarms.add(instant.as_nanos(), waker)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wall_clock_goes_along_and_is_looked_at_again() {
        let clock = SystemClock::new();
        // As if the wall clock had been an hour off at the last look, which was just now.
        let hour = 3_600_000_000_000;
        clock.ahead.store(-hour, Ordering::Relaxed);
        clock.looked.store(u64::MAX, Ordering::Relaxed);
        let now = clock.now();
        assert_eq!(
            now.wall,
            Wall::from_nanos(now.monotonic.as_nanos()).shifted(-hour)
        );
        // And as if that were long ago.
        clock.looked.store(0, Ordering::Relaxed);
        let before = wall_nanos();
        let seen = clock.now().wall.as_nanos();
        assert!(before <= seen + 1_000_000, "{before} {seen}");
        assert!(seen <= wall_nanos() + 1_000_000, "{seen}");
    }
}
