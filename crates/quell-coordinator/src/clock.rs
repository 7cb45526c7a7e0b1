//! Clock: the machine's time, also while it is suspended.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quell::clock::Clock;
use quell_core::time::{Monotonic, Now, Wall, saturating_nanos};
use rustix::time::{ClockId, clock_gettime};

/// `CLOCK_MONOTONIC`, and so `Instant`, stands still while a Linux machine is suspended. Rights end on
/// this clock, so it must not.
#[cfg(target_os = "linux")]
const CLOCK: ClockId = ClockId::Boottime;
/// Elsewhere the monotonic clock is the best there is.
#[cfg(not(target_os = "linux"))]
const CLOCK: ClockId = ClockId::Monotonic;

/// Nanoseconds since the machine started, suspended or not.
#[must_use]
pub fn boottime() -> Monotonic {
    let time = clock_gettime(CLOCK);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
    Monotonic::from_nanos(saturating_nanos(Duration::new(seconds, nanos)))
}

/// Both clocks, to find out whether the machine was stopped unnoticed
/// ([`SuspendDetector`](quell_shares::suspend_detector::SuspendDetector)).
#[must_use]
pub fn now() -> Now {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH);
    Now {
        monotonic: boottime(),
        wall: Wall::from_nanos(saturating_nanos(wall.unwrap_or_default())),
    }
}

/// The clock of this machine, by which a coordinator goes unless it is given another.
#[derive(Clone, Copy, Debug, Default)]
pub struct BootClock;

impl Clock for BootClock {
    fn now(&self) -> Now {
        now()
    }

    fn monotonic(&self) -> Monotonic {
        boottime()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boottime_is_the_uptime_of_the_kernel() {
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
        let seconds: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
        let ours = boottime().since(Monotonic::ORIGIN).as_secs_f64();
        assert!((ours - seconds).abs() < 5.0, "{ours} {seconds}");
    }
}
