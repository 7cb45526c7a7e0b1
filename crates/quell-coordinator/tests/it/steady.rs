//! The machine's clock without its pauses: between two readings it goes on by [`MAX_STEP`] at most. A lead does not end
//! because this machine was busy with other things.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use quell::clock::Clock;
use quell_core::time::Now;

const MAX_STEP: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct SteadyClock(Mutex<(Instant, Duration)>);

impl Default for SteadyClock {
    fn default() -> Self {
        Self(Mutex::new((Instant::now(), Duration::ZERO)))
    }
}

impl Clock for SteadyClock {
    fn now(&self) -> Now {
        let mut state = self.0.lock().unwrap();
        let (read, shown) = &mut *state;
        *shown += read.elapsed().min(MAX_STEP);
        *read = Instant::now();
        let nanos = u64::try_from(shown.as_nanos()).unwrap();
        Now::from_nanos(1_774_742_400_000_000_000 + nanos)
    }
}
