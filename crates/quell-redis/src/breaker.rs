//! Breaker: while a server of the store is gone, nobody waits for it.
//!
//! Waiting out a timeout per call is how a store that is gone takes its servers with it. So after a
//! few failures in a row calls fail at once, and one at a time may try whether the store is back: the
//! first after a short pause, each next one after twice as long, spread at random so that a fleet does
//! not come back all at once. A store that stops for a moment fails all calls that are on the way at
//! the same time, however many: that alone does not open it.
//!
//! ```text
//! closed --FAILURES in a row, over SILENCE--> open --pause over--> half open (one probe) --answer--> closed
//!                                              ^------------------------ failure ----'
//! ```
//!
//! Only what says nothing came back counts as a failure. A store that refuses a call is there.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Failures in a row that open it.
const FAILURES: u32 = 5;

/// From the first of them to the last: with a timeout of 50 ms nothing came back for 250 ms then.
const SILENCE: Duration = Duration::from_millis(200);

/// The first pause: about how long a restart or a short fail-over takes.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The longest pause: a store is found again within two seconds of coming back.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// After this long a probe that never ended (its caller went away) no longer counts.
const PROBE_TIME: Duration = Duration::from_secs(5);

/// Says whether a call may try the store.
#[derive(Debug)]
pub(crate) struct Breaker {
    state: Mutex<State>,
    /// Whether `state` is open, for a look without the lock.
    is_open: AtomicBool,
}

#[derive(Clone, Debug)]
enum State {
    Closed {
        failures: u32,
        /// When the first of them was noted.
        since: Option<Instant>,
    },
    Open {
        /// When the next probe may go.
        until: Instant,
        pause: Duration,
        reason: String,
    },
}

impl State {
    const CLOSED: Self = Self::Closed {
        failures: 0,
        since: None,
    };
}

/// What a call may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Leave {
    /// Try the store.
    Go,
    /// Try whether it is back.
    Probe,
    /// Do not: for this reason it is thought to be gone.
    Stay(String),
}

/// What changed with an outcome: worth a line in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Opened,
    Closed,
}

impl Breaker {
    pub(crate) const fn new() -> Self {
        Self {
            state: Mutex::new(State::CLOSED),
            is_open: AtomicBool::new(false),
        }
    }

    /// Whether calls fail at once.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// Asks for leave at `now`. While it is open the first to ask after the pause is the probe; the
    /// next may ask once that probe failed, or has been gone for too long.
    pub(crate) fn leave(&self, now: Instant) -> Leave {
        match &mut *self.state.lock() {
            State::Closed { .. } => Leave::Go,
            State::Open { until, reason, .. } if now < *until => Leave::Stay(reason.clone()),
            State::Open { until, .. } => {
                *until = now + PROBE_TIME;
                Leave::Probe
            }
        }
    }

    /// Why the store is thought to be gone at `now`, if it is, and whether a probe may go.
    pub(crate) fn gone(&self, now: Instant) -> Option<(String, bool)> {
        match &*self.state.lock() {
            State::Closed { .. } => None,
            State::Open { until, reason, .. } => Some((reason.clone(), now >= *until)),
        }
    }

    /// The store answered, or nobody asks this server any more.
    pub(crate) fn answered(&self) -> Option<Turn> {
        let mut state = self.state.lock();
        let turn = matches!(*state, State::Open { .. }).then_some(Turn::Closed);
        self.is_open.store(false, Ordering::Release);
        if !matches!(*state, State::Closed { failures: 0, .. }) {
            *state = State::CLOSED;
        }
        turn
    }

    /// A call that had this leave ended without a word on the store: its caller went away, or it was
    /// not sent. If it was the probe, another may go at once.
    pub(crate) fn unused(&self, leave: &Leave, now: Instant) {
        if let (Leave::Probe, State::Open { until, .. }) = (leave, &mut *self.state.lock()) {
            *until = now.min(*until);
        }
    }

    /// Nothing came back to a call that had this leave. `share` of 0 to 255 spreads the pause between
    /// half and all of its length.
    pub(crate) fn failed(
        &self,
        leave: &Leave,
        now: Instant,
        share: u8,
        reason: &str,
    ) -> Option<Turn> {
        let mut state = self.state.lock();
        let (pause, turn) = match &mut *state {
            State::Closed { failures, since } => {
                *failures = failures.saturating_add(1);
                let since = *since.get_or_insert(now);
                if *failures < FAILURES || now.saturating_duration_since(since) < SILENCE {
                    return None;
                }
                (FIRST_PAUSE, Some(Turn::Opened))
            }
            // A call that left before it opened says nothing new.
            State::Open { .. } if *leave != Leave::Probe => return None,
            State::Open { pause, .. } => ((*pause * 2).min(LONGEST_PAUSE), None),
        };
        self.is_open.store(true, Ordering::Release);
        let spread = pause / 2 + pause / 2 * u32::from(share) / 255;
        *state = State::Open {
            until: now + spread,
            pause,
            reason: reason.to_owned(),
        };
        turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One that opens `now`.
    fn opened(now: Instant) -> Breaker {
        let breaker = Breaker::new();
        for _ in 1..FAILURES {
            assert_eq!(breaker.failed(&Leave::Go, now - SILENCE, 255, "gone"), None);
            assert_eq!(breaker.leave(now), Leave::Go);
        }
        assert!(!breaker.is_open());
        assert_eq!(
            breaker.failed(&Leave::Go, now, 255, "gone"),
            Some(Turn::Opened)
        );
        assert!(breaker.is_open());
        breaker
    }

    #[test]
    fn opens_after_failures_in_a_row_only() {
        let now = Instant::now();
        let breaker = Breaker::new();
        for _ in 0..10 {
            for number in 1..FAILURES {
                let at = now + SILENCE * number;
                assert_eq!(breaker.failed(&Leave::Go, at, 0, "gone"), None);
            }
            assert_eq!(breaker.answered(), None);
        }
        assert_eq!(breaker.leave(now), Leave::Go);
        let breaker = opened(now);
        assert_eq!(breaker.leave(now), Leave::Stay("gone".to_owned()));
    }

    #[test]
    fn many_calls_that_fail_together_are_a_hiccup() {
        let now = Instant::now();
        let breaker = Breaker::new();
        let just_before = now + SILENCE - Duration::from_millis(1);
        for at in [now, just_before] {
            for _ in 0..1_000 {
                assert_eq!(breaker.failed(&Leave::Go, at, 0, "slow"), None);
            }
        }
        let (later, turn) = (now + SILENCE, Some(Turn::Opened));
        assert_eq!(breaker.failed(&Leave::Go, later, 0, "slow"), turn);
    }

    #[test]
    fn one_probe_at_a_time_and_longer_pauses_up_to_a_bound() {
        let mut now = Instant::now();
        let breaker = opened(now);
        for pause in [100, 200, 400, 800, 1_000, 1_000] {
            let pause = Duration::from_millis(pause);
            let early = now + pause - Duration::from_millis(1);
            assert!(matches!(breaker.leave(early), Leave::Stay(_)), "{pause:?}");
            now += pause;
            assert_eq!(breaker.leave(now), Leave::Probe);
            assert!(matches!(breaker.leave(now), Leave::Stay(_)), "only one");
            // A call that left before it opened says nothing new.
            assert_eq!(breaker.failed(&Leave::Go, now, 255, "gone"), None);
            assert_eq!(breaker.failed(&Leave::Probe, now, 255, "still"), None);
        }
    }

    #[test]
    fn a_probe_that_is_answered_closes_it() {
        let now = Instant::now();
        let breaker = opened(now);
        let then = now + FIRST_PAUSE;
        assert_eq!(breaker.leave(then), Leave::Probe);
        assert_eq!(breaker.answered(), Some(Turn::Closed));
        assert!(!breaker.is_open());
        assert_eq!(breaker.leave(then), Leave::Go);
    }

    #[test]
    fn a_probe_whose_caller_went_away_does_not_keep_it_open() {
        let now = Instant::now();
        let breaker = opened(now);
        let then = now + FIRST_PAUSE;
        assert_eq!(breaker.leave(then), Leave::Probe);
        assert!(matches!(breaker.leave(then + FIRST_PAUSE), Leave::Stay(_)));
        assert_eq!(breaker.leave(then + PROBE_TIME), Leave::Probe);
    }

    #[test]
    fn a_probe_that_is_given_up_delays_nobody() {
        let now = Instant::now();
        let breaker = opened(now);
        let then = now + FIRST_PAUSE;
        assert_eq!(breaker.leave(then), Leave::Probe);
        breaker.unused(&Leave::Go, then);
        assert!(matches!(breaker.leave(then), Leave::Stay(_)));
        breaker.unused(&Leave::Probe, then);
        assert_eq!(breaker.leave(then), Leave::Probe);
        breaker.answered();
        breaker.unused(&Leave::Probe, then);
        assert_eq!(breaker.leave(then), Leave::Go);
    }

    #[test]
    fn pauses_are_spread() {
        let now = Instant::now();
        let breaker = Breaker::new();
        for number in 0..FAILURES {
            breaker.failed(
                &Leave::Go,
                now - SILENCE * (FAILURES - 1 - number),
                0,
                "gone",
            );
        }
        assert_eq!(breaker.leave(now + FIRST_PAUSE / 2), Leave::Probe);
    }
}
