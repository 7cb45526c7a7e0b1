//! Clock: where a [`Now`] comes from, read once per request.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use quell_core::time::{Monotonic, Now, Wall};

/// Reads both clocks.
pub trait Clock: Debug + Send + Sync {
    /// The present instant.
    fn now(&self) -> Now;

    /// The monotonic reading alone, where that is cheaper.
    fn monotonic(&self) -> Monotonic {
        self.now().monotonic
    }
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Now {
        (**self).now()
    }

    fn monotonic(&self) -> Monotonic {
        (**self).monotonic()
    }
}

/// The clocks of this machine.
///
/// The monotonic reading begins at the wall clock's and then goes its own way, so that a step of
/// the wall clock moves calendar windows and nothing else.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    started: Instant,
    origin: u64,
}

impl SystemClock {
    /// A clock that begins now.
    #[must_use]
    pub fn new() -> Self {
        Self {
            started: Instant::now(),
            origin: wall_nanos(),
        }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Now {
        Now {
            monotonic: self.monotonic(),
            wall: Wall::from_nanos(wall_nanos()),
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
}

impl ManualClock {
    /// A clock that stands at `now`.
    #[must_use]
    pub const fn new(now: Now) -> Self {
        Self {
            monotonic: AtomicU64::new(now.monotonic.as_nanos()),
            wall: AtomicU64::new(now.wall.as_nanos()),
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
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Now {
        Now {
            monotonic: Monotonic::from_nanos(self.monotonic.load(Ordering::SeqCst)),
            wall: Wall::from_nanos(self.wall.load(Ordering::SeqCst)),
        }
    }
}
