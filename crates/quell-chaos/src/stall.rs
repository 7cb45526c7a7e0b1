//! Stalls: times in which the machine did not run this process.
//!
//! A promise with a time in it is about the product, not about the machine. A thread does nothing but
//! sleep and measures how late it wakes up; a stopwatch leaves that time out.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Duration of the thread's sleep. If it wakes up less than that too late, this is not a stall.
const NAP: Duration = Duration::from_millis(10);

static STALLED_NANOS: AtomicU64 = AtomicU64::new(0);

/// Starts to measure, once per process.
pub(crate) fn measure() {
    static BEGUN: Once = Once::new();
    BEGUN.call_once(|| {
        thread::spawn(|| {
            loop {
                let begun = Instant::now();
                thread::sleep(NAP);
                let late = begun.elapsed().saturating_sub(NAP);
                if late > NAP {
                    let nanos = u64::try_from(late.as_nanos()).unwrap_or(u64::MAX);
                    STALLED_NANOS.fetch_add(nanos, Ordering::Relaxed);
                }
            }
        });
    });
}

fn so_far() -> Duration {
    Duration::from_nanos(STALLED_NANOS.load(Ordering::Relaxed))
}

/// Time that passed, without the stalls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch {
    start: Instant,
    stalled: Duration,
}

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self {
            start: Instant::now(),
            stalled: so_far(),
        }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.start.elapsed().saturating_sub(self.stalls())
    }

    /// Time for which the machine has stalled since the stopwatch was started.
    pub(crate) fn stalls(&self) -> Duration {
        so_far().saturating_sub(self.stalled)
    }
}
