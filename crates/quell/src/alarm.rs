//! Alarms: wakers with the instants at which to wake them, in one list per clock.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use quell_core::time::saturating_nanos;

/// Wakers by the instant at which to wake them.
#[derive(Debug, Default)]
pub(crate) struct Alarms {
    set: Mutex<AlarmSet>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct AlarmSet {
    wakers: BTreeMap<(u64, u64), Waker>,
    next: u64,
}

/// A waker that will be woken, unless this is dropped.
#[derive(Debug)]
#[must_use = "dropped, it wakes nobody"]
pub struct Alarm {
    alarms: Arc<Alarms>,
    key: (u64, u64),
}

impl Drop for Alarm {
    fn drop(&mut self) {
        self.alarms.set.lock().wakers.remove(&self.key);
    }
}

impl Alarms {
    /// Wakes `waker` at `instant`, in nanoseconds of the clock that calls [`Alarms::ring`].
    pub(crate) fn add(self: &Arc<Self>, instant: u64, waker: &Waker) -> Alarm {
        let mut set = self.set.lock();
        set.next += 1;
        let key = (instant, set.next);
        let is_first = set
            .wakers
            .first_key_value()
            .is_none_or(|(first, _)| key < *first);
        set.wakers.insert(key, waker.clone());
        drop(set);
        if is_first {
            // Otherwise the ringing thread wakes up earlier anyway.
            self.changed.notify_one();
        }
        Alarm {
            alarms: Arc::clone(self),
            key,
        }
    }

    /// Wakes all wakers that are due.
    pub(crate) fn ring(&self, now: u64) {
        loop {
            // Outside the lock, because a waker may set the next alarm.
            let waker = {
                let mut set = self.set.lock();
                match set.wakers.first_key_value() {
                    Some(((instant, _), _)) if *instant <= now => set.wakers.pop_first(),
                    _ => None,
                }
            };
            match waker {
                Some((_, waker)) => waker.wake(),
                None => return,
            }
        }
    }

    /// The number of alarms.
    pub(crate) fn len(&self) -> usize {
        self.set.lock().wakers.len()
    }
}

/// The alarms of this process's own timer: one thread that sleeps until the next is due.
struct Timer {
    alarms: Arc<Alarms>,
    started: Instant,
    runs: bool,
}

impl Timer {
    fn start() -> Self {
        let alarms = Arc::new(Alarms::default());
        let started = Instant::now();
        let its_own = Arc::clone(&alarms);
        let thread = std::thread::Builder::new().name("quell-timer".to_owned());
        let runs = thread.spawn(move || run(&its_own, started)).is_ok();
        Self {
            alarms,
            started,
            runs,
        }
    }
}

fn run(alarms: &Alarms, started: Instant) {
    loop {
        alarms.ring(saturating_nanos(started.elapsed()));
        let mut set = alarms.set.lock();
        let first = set.wakers.first_key_value();
        let due = |((instant, _), _): (&(u64, u64), _)| {
            started.checked_add(Duration::from_nanos(*instant))
        };
        match first.and_then(due) {
            Some(due) => {
                alarms.changed.wait_until(&mut set, due);
            }
            None => alarms.changed.wait(&mut set),
        }
    }
}

/// Wakes `waker` after `wait`, from a thread that is started at the first call.
///
/// If no thread can be started, the waker is woken at once: the caller then polls again and again,
/// and still continues at the right time.
pub(crate) fn after(wait: Duration, waker: &Waker) -> Alarm {
    static TIMER: OnceLock<Timer> = OnceLock::new();
    let timer = TIMER.get_or_init(Timer::start);
    if !timer.runs {
        waker.wake_by_ref();
    }
    let due = timer.started.elapsed().saturating_add(wait);
    timer.alarms.add(saturating_nanos(due), waker)
}
