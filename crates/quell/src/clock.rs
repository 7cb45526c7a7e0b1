//! Clock: the source of [`Now`]. It is read once per request, and again under a lock ([`read_again`]).

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::task::Waker;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quell_core::time::saturating_nanos;
pub use quell_core::time::{Monotonic, Now, Wall};

pub use crate::alarm::Alarm;
use crate::alarm::{self, Alarms};

/// Reads both clocks.
pub trait Clock: Debug + Send + Sync {
    /// The current instant.
    fn now(&self) -> Now;

    /// Only the monotonic reading, if that is cheaper.
    fn monotonic(&self) -> Monotonic {
        self.now().monotonic
    }

    /// Wakes `waker` when the monotonic reading is `instant`, unless the alarm is dropped before. It may
    /// wake late, and some clocks wake early, so the woken task has to read the clock.
    fn alarm(&self, instant: Monotonic, waker: &Waker) -> Alarm {
        alarm::after(instant.since(self.monotonic()), waker)
    }
}

/// A `now` that is further behind the clock than this was not read from it, but given by a test: no
/// thread is paused for that long.
const OLDEST_READING: Duration = Duration::from_secs(10);

/// Returns `now` or a later reading. Call it under the lock of the state that is being decided.
///
/// A thread may be paused between its reading and its decision, while others decide at later instants.
/// To a state its old reading looks as if the clock had gone back, and a fully used key would be
/// credited that time. That is right for a clock that did go back, and wrong here. A thread that reads
/// under the lock reads later than every thread that held the lock before. The wall clock's reading is
/// kept, because the edges of calendar windows were looked up for it.
#[must_use]
pub fn read_again(now: Now, clock: &(impl Clock + ?Sized)) -> Now {
    let monotonic = clock.monotonic();
    let is_behind = monotonic > now.monotonic && monotonic.since(now.monotonic) <= OLDEST_READING;
    if is_behind {
        Now { monotonic, ..now }
    } else {
        now
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
/// The monotonic clock begins at the wall clock's reading and then runs independently, so that a step of
/// the wall clock affects only calendar windows. On Linux it goes on while the machine is suspended
/// (`CLOCK_BOOTTIME`): limits refill meanwhile, and what a fleet granted ends.
///
/// Reading the system's clock costs as much as the rest of a decision. So the processor's counter is
/// read instead, if it can be trusted; otherwise the system's clock is read each time. The counter's
/// speed is measured when a process makes its first clock, which takes some 20 ms, at most 200.
///
/// That measurement is only good for a short time. So the system's two clocks are read once a
/// millisecond, and the counter fills the time in between. A step of the wall clock shows at most that
/// late. The monotonic reading is never ahead of the system's by more than the counter drifts in a
/// millisecond, and never goes back by more than that.
#[derive(Debug)]
pub struct SystemClock {
    source: SystemSource,
    readings: Readings,
}

/// Source of a clock's readings.
trait Source {
    /// Value of the counter, in nanoseconds. It may wrap around.
    fn counter(&self) -> u64;

    /// The system's monotonic clock, which begins at the wall clock's reading.
    fn monotonic(&self) -> Monotonic;

    /// The system's wall clock, in nanoseconds since 1970.
    fn wall(&self) -> u64;
}

/// The clocks of this machine.
#[derive(Debug)]
struct SystemSource {
    counter: Counter,
    started: Stopwatch,
    /// The wall clock at the start.
    origin: u64,
}

/// Time since it was started.
#[derive(Debug)]
struct Stopwatch(
    #[cfg(target_os = "linux")] Duration,
    #[cfg(not(target_os = "linux"))] std::time::Instant,
);

#[cfg(target_os = "linux")]
impl Stopwatch {
    /// `Instant` stands still while the machine is suspended.
    fn uptime() -> Duration {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
    }

    fn start() -> Self {
        Self(Self::uptime())
    }

    fn elapsed(&self) -> Duration {
        Self::uptime().saturating_sub(self.0)
    }
}

#[cfg(not(target_os = "linux"))]
impl Stopwatch {
    fn start() -> Self {
        Self(std::time::Instant::now())
    }

    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

/// Readings of the last look at the system's clocks. All threads read it.
#[derive(Debug, Default)]
struct Readings {
    /// Value of the counter at the last look.
    looked: AtomicU64,
    /// The monotonic reading less what the counter said, which may wrap around.
    base: AtomicU64,
    /// Lead of the wall clock over the monotonic one, in nanoseconds.
    ahead: AtomicI64,
}

/// Time for which a look is used, in nanoseconds: a millisecond does not matter to calendar windows, and no
/// counter drifts noticeably in it.
const LOOK_EVERY: u64 = 1_000_000;

/// A look that took longer, in nanoseconds, is repeated, since the thread was paused during it.
const QUICK_LOOK: u64 = 2_000;

/// Number of looks that are tried before a slow one is used.
const LOOKS: usize = 4;

/// Nanoseconds since it was made.
#[derive(Debug)]
struct Counter {
    clock: quanta::Clock,
    start: u64,
    /// Nanoseconds of 2^[`SCALE`] counts.
    scale: u64,
}

/// A shift that the compiler knows. What is cut off is a nanosecond in 2^40 counts, which are minutes,
/// and a reading counts on for no longer than [`LOOK_EVERY`].
const SCALE: u32 = 40;

impl Counter {
    fn new() -> Self {
        let clock = quanta::Clock::new();
        Self {
            start: clock.raw(),
            scale: clock.delta_as_nanos(0, 1 << SCALE),
            clock,
        }
    }

    #[inline]
    fn nanos(&self) -> u64 {
        let counts = self.clock.raw().wrapping_sub(self.start);
        #[expect(clippy::cast_possible_truncation, reason = "may wrap around")]
        let nanos = ((u128::from(counts) * u128::from(self.scale)) >> SCALE) as u64;
        nanos
    }
}

impl Source for SystemSource {
    #[inline]
    fn counter(&self) -> u64 {
        self.counter.nanos()
    }

    fn monotonic(&self) -> Monotonic {
        Monotonic::from_nanos(self.origin).saturating_add(self.started.elapsed())
    }

    fn wall(&self) -> u64 {
        wall_nanos()
    }
}

impl Readings {
    /// Looks at the system's clocks. Returns the counter's value at that time.
    #[cold]
    fn look(&self, source: &impl Source) -> u64 {
        let mut counted = source.counter();
        let mut base = 0;
        for _ in 0..LOOKS {
            let before = counted;
            let system = source.monotonic();
            // Read last: however long that takes, the reading is not ahead of the system's.
            counted = source.counter();
            base = system.as_nanos().wrapping_sub(counted);
            if counted.saturating_sub(before) < QUICK_LOOK {
                break;
            }
        }
        // Only now: until it is known to be quick, a look may be far behind what other threads have
        // read.
        self.base.store(base, Ordering::Relaxed);
        let now = base.wrapping_add(counted);
        // Below 2^63 until the year 2262; beyond it the difference saturates.
        let ahead = i128::from(source.wall()) - i128::from(now);
        let ahead = i64::try_from(ahead).unwrap_or(if ahead < 0 { i64::MIN } else { i64::MAX });
        self.ahead.store(ahead, Ordering::Relaxed);
        self.looked.store(counted, Ordering::Relaxed);
        counted
    }

    #[inline]
    fn monotonic(&self, source: &impl Source) -> Monotonic {
        let mut counted = source.counter();
        // A counter that restarted also differs by much.
        let since = counted.wrapping_sub(self.looked.load(Ordering::Relaxed));
        if since >= LOOK_EVERY {
            counted = self.look(source);
        }
        Monotonic::from_nanos(self.base.load(Ordering::Relaxed).wrapping_add(counted))
    }
}

impl SystemClock {
    /// A clock that begins now.
    #[must_use]
    pub fn new() -> Self {
        let clock = Self {
            source: SystemSource {
                counter: Counter::new(),
                started: Stopwatch::start(),
                origin: wall_nanos(),
            },
            readings: Readings::default(),
        };
        clock.readings.look(&clock.source);
        clock
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
        let wall = Wall::from_nanos(monotonic.as_nanos());
        Now {
            monotonic,
            wall: wall.shifted(self.readings.ahead.load(Ordering::Relaxed)),
        }
    }

    #[inline]
    fn monotonic(&self) -> Monotonic {
        self.readings.monotonic(&self.source)
    }
}

/// Nanoseconds since 1970, 0 before it.
fn wall_nanos() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, saturating_nanos)
}

/// A clock that only moves when it is told to, for tests.
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
    /// A clock that shows `now`.
    #[must_use]
    pub fn new(now: Now) -> Self {
        Self {
            monotonic: AtomicU64::new(now.monotonic.as_nanos()),
            wall: AtomicU64::new(now.wall.as_nanos()),
            alarms: Arc::default(),
        }
    }

    /// Advances both clocks.
    pub fn advance(&self, duration: Duration) {
        let now = self.now();
        self.set(Now {
            monotonic: now.monotonic.saturating_add(duration),
            wall: now.wall.saturating_add(duration),
        });
    }

    /// Sets both clocks to `now`, which may be earlier.
    pub fn set(&self, now: Now) {
        self.monotonic
            .store(now.monotonic.as_nanos(), Ordering::SeqCst);
        self.wall.store(now.wall.as_nanos(), Ordering::SeqCst);
        self.alarms.ring(now.monotonic.as_nanos());
    }

    /// Number of alarms that wait for this clock.
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
    use std::cell::Cell;
    use std::time::Instant;

    use super::*;

    /// A machine whose clocks agree, and whose thread is paused where a test says so.
    struct PausedSource<'a> {
        readings: &'a Readings,
        time: Cell<u64>,
        /// Readings of the counter before which the thread sleeps.
        naps: Cell<usize>,
        /// The latest reading of another thread.
        told: Cell<u64>,
    }

    impl PausedSource<'_> {
        const START: u64 = 1_790_000_000_000_000_000;

        /// Another thread reads the clock now; its reading must not be earlier than before.
        fn others_read(&self) {
            let base = self.readings.base.load(Ordering::Relaxed);
            let told = base.wrapping_add(self.time.get());
            assert!(told >= self.told.get(), "{told} after {}", self.told.get());
            self.told.set(told);
        }
    }

    impl Source for PausedSource<'_> {
        fn counter(&self) -> u64 {
            self.others_read();
            if self.naps.get() > 0 {
                self.naps.set(self.naps.get() - 1);
                self.time.set(self.time.get() + 5_000_000);
                self.others_read();
            }
            self.time.get()
        }

        fn monotonic(&self) -> Monotonic {
            self.others_read();
            Monotonic::from_nanos(Self::START + self.time.get())
        }

        fn wall(&self) -> u64 {
            self.others_read();
            Self::START + self.time.get()
        }
    }

    /// A thread that is paused during its look has read the system's clock, but does not know yet how
    /// long ago.
    #[test]
    fn a_look_that_was_slow_sets_nobody_back() {
        let readings = Readings::default();
        let source = PausedSource {
            readings: &readings,
            time: Cell::new(0),
            naps: Cell::new(0),
            told: Cell::new(0),
        };
        readings.look(&source);
        // One pause more in each look's readings until the limit: then a slow look is used.
        for naps in 0..LOOKS + 2 {
            source.time.set(source.time.get() + 10_000_000);
            source.naps.set(naps);
            let now = readings.monotonic(&source).as_nanos();
            assert_eq!(now, PausedSource::START + source.time.get(), "{naps} naps");
            assert_eq!(source.naps.get(), 0);
        }
    }

    #[test]
    fn the_wall_clock_goes_along_and_is_looked_at_again() {
        let clock = SystemClock::new();
        let readings = &clock.readings;
        let hour = 3_600_000_000_000;
        // As if both clocks had been wrong, with the last look just now.
        let counted = clock.source.counter();
        readings.looked.store(counted, Ordering::Relaxed);
        readings.ahead.store(-hour, Ordering::Relaxed);
        let now = clock.now();
        let gone_along = Wall::from_nanos(now.monotonic.as_nanos()).shifted(-hour);
        assert!(now.wall == gone_along || readings.ahead.load(Ordering::Relaxed) != -hour);
        // And as if the last look were long ago.
        readings.looked.store(u64::MAX / 2, Ordering::Relaxed);
        readings
            .base
            .fetch_add(hour.unsigned_abs(), Ordering::Relaxed);
        let before = wall_nanos();
        let now = clock.now();
        for seen in [now.wall.as_nanos(), now.monotonic.as_nanos()] {
            assert!(before <= seen + 1_000_000, "{before} {seen}");
            assert!(seen <= wall_nanos() + 1_000_000, "{seen}");
        }
    }

    #[test]
    fn the_counter_is_no_faster_than_the_system() {
        let clock = SystemClock::new();
        let system = Instant::now();
        let first = clock.monotonic();
        while system.elapsed() < Duration::from_millis(20) {
            let counted = clock.monotonic().since(first);
            let most = system.elapsed() + Duration::from_micros(100);
            assert!(counted <= most, "{counted:?} in {most:?}");
        }
    }
}
