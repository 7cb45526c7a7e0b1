//! Circuit breaker: while a server of the store is gone, calls do not wait for it.
//!
//! If every call waited out its timeout, a store that is gone would stop its callers too. So after a few
//! failures in a row calls fail at once, and one call at a time probes whether the store is back: the
//! first after a short pause, each next one after twice the pause, with jitter so that a fleet does not
//! come back all at once. A store that stalls for a moment fails all calls in flight together, however
//! many: that alone does not open the breaker.
//!
//! ```text
//! closed --FAILURES in a row, over SILENCE--> open --pause over--> half open (one probe) --answer--> closed
//!                                              ^------------------------ failure ----'
//! ```
//!
//! Only a missing answer counts as a failure. A store that refuses a call is up.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Failures in a row that open it.
const FAILURES: u32 = 5;

/// From the first of them to the last: with a timeout of 50 ms nothing came back for 250 ms then.
const SILENCE: Duration = Duration::from_millis(200);

/// The first pause: about the time of a restart or a short fail-over.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The longest pause: a store is found again within two seconds of coming back.
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// A probe that has not ended after this time no longer counts: its caller is gone.
const PROBE_TIME: Duration = Duration::from_secs(5);

/// Decides whether a call may try the store.
#[derive(Debug)]
pub(crate) struct Breaker {
    state: Mutex<BreakerState>,
    /// True if `state` is open; read without the lock.
    is_open: AtomicBool,
}

#[derive(Clone, Debug)]
enum BreakerState {
    Closed {
        failures: u32,
        /// Instant of the first of them.
        since: Option<Instant>,
    },
    Open {
        /// Instant from which the next probe may go.
        until: Instant,
        pause: Duration,
        reason: String,
    },
}

impl BreakerState {
    const CLOSED: Self = Self::Closed {
        failures: 0,
        since: None,
    };
}

/// Permission of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Try the store.
    Allow,
    /// Probe whether it is back.
    Probe,
    /// Do not try it: for this reason it is thought to be gone.
    Reject(String),
}

/// A change of state, which is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transition {
    Opened,
    Closed,
}

impl Breaker {
    pub(crate) const fn new() -> Self {
        Self {
            state: Mutex::new(BreakerState::CLOSED),
            is_open: AtomicBool::new(false),
        }
    }

    /// Returns true if calls fail at once.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// Admits or rejects a call at `now`. While the breaker is open, the first call after the pause is the
    /// probe. The next probe is admitted when that one failed, or has not ended for too long.
    pub(crate) fn admit(&self, now: Instant) -> Admission {
        match &mut *self.state.lock() {
            BreakerState::Closed { .. } => Admission::Allow,
            BreakerState::Open { until, reason, .. } if now < *until => {
                Admission::Reject(reason.clone())
            }
            BreakerState::Open { until, .. } => {
                *until = now + PROBE_TIME;
                Admission::Probe
            }
        }
    }

    /// Reason why the store is thought to be gone at `now`, if it is, and whether a probe may go.
    pub(crate) fn gone(&self, now: Instant) -> Option<(String, bool)> {
        match &*self.state.lock() {
            BreakerState::Closed { .. } => None,
            BreakerState::Open { until, reason, .. } => Some((reason.clone(), now >= *until)),
        }
    }

    /// Notes that the store answered, or that this server is no longer asked.
    pub(crate) fn note_answer(&self) -> Option<Transition> {
        let mut state = self.state.lock();
        let transition = matches!(*state, BreakerState::Open { .. }).then_some(Transition::Closed);
        self.is_open.store(false, Ordering::Release);
        if !matches!(*state, BreakerState::Closed { failures: 0, .. }) {
            *state = BreakerState::CLOSED;
        }
        transition
    }

    /// Notes that an admitted call ended without a result: its caller went away, or it was not sent. If it
    /// was the probe, another is admitted at once.
    pub(crate) fn cancelled(&self, admission: &Admission, now: Instant) {
        if let (Admission::Probe, BreakerState::Open { until, .. }) =
            (admission, &mut *self.state.lock())
        {
            *until = now.min(*until);
        }
    }

    /// Notes that an admitted call had no answer. `jitter` of 0 to 255 spreads the pause between half and
    /// all of its length.
    pub(crate) fn failed(
        &self,
        admission: &Admission,
        now: Instant,
        jitter: u8,
        reason: &str,
    ) -> Option<Transition> {
        let mut state = self.state.lock();
        let (pause, transition) = match &mut *state {
            BreakerState::Closed { failures, since } => {
                *failures = failures.saturating_add(1);
                let since = *since.get_or_insert(now);
                if *failures < FAILURES || now.saturating_duration_since(since) < SILENCE {
                    return None;
                }
                (FIRST_PAUSE, Some(Transition::Opened))
            }
            // A call that left before it opened says nothing new.
            BreakerState::Open { .. } if *admission != Admission::Probe => return None,
            BreakerState::Open { pause, .. } => ((*pause * 2).min(MAX_PAUSE), None),
        };
        self.is_open.store(true, Ordering::Release);
        let spread = pause / 2 + pause / 2 * u32::from(jitter) / 255;
        *state = BreakerState::Open {
            until: now + spread,
            pause,
            reason: reason.to_owned(),
        };
        transition
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One that opens `now`.
    fn opened(now: Instant) -> Breaker {
        let breaker = Breaker::new();
        for _ in 1..FAILURES {
            assert_eq!(
                breaker.failed(&Admission::Allow, now - SILENCE, 255, "gone"),
                None
            );
            assert_eq!(breaker.admit(now), Admission::Allow);
        }
        assert!(!breaker.is_open());
        assert_eq!(
            breaker.failed(&Admission::Allow, now, 255, "gone"),
            Some(Transition::Opened)
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
                assert_eq!(breaker.failed(&Admission::Allow, at, 0, "gone"), None);
            }
            assert_eq!(breaker.note_answer(), None);
        }
        assert_eq!(breaker.admit(now), Admission::Allow);
        let breaker = opened(now);
        assert_eq!(breaker.admit(now), Admission::Reject("gone".to_owned()));
    }

    #[test]
    fn many_calls_that_fail_together_are_a_hiccup() {
        let now = Instant::now();
        let breaker = Breaker::new();
        let just_before = now + SILENCE - Duration::from_millis(1);
        for at in [now, just_before] {
            for _ in 0..1_000 {
                assert_eq!(breaker.failed(&Admission::Allow, at, 0, "slow"), None);
            }
        }
        let (later, transition) = (now + SILENCE, Some(Transition::Opened));
        assert_eq!(
            breaker.failed(&Admission::Allow, later, 0, "slow"),
            transition
        );
    }

    #[test]
    fn one_probe_at_a_time_and_longer_pauses_up_to_a_bound() {
        let mut now = Instant::now();
        let breaker = opened(now);
        for pause in [100, 200, 400, 800, 1_000, 1_000] {
            let pause = Duration::from_millis(pause);
            let early = now + pause - Duration::from_millis(1);
            assert!(
                matches!(breaker.admit(early), Admission::Reject(_)),
                "{pause:?}"
            );
            now += pause;
            assert_eq!(breaker.admit(now), Admission::Probe);
            assert!(
                matches!(breaker.admit(now), Admission::Reject(_)),
                "only one"
            );
            // A call that left before it opened says nothing new.
            assert_eq!(breaker.failed(&Admission::Allow, now, 255, "gone"), None);
            assert_eq!(breaker.failed(&Admission::Probe, now, 255, "still"), None);
        }
    }

    #[test]
    fn a_probe_that_is_answered_closes_it() {
        let now = Instant::now();
        let breaker = opened(now);
        let then = now + FIRST_PAUSE;
        assert_eq!(breaker.admit(then), Admission::Probe);
        assert_eq!(breaker.note_answer(), Some(Transition::Closed));
        assert!(!breaker.is_open());
        assert_eq!(breaker.admit(then), Admission::Allow);
    }

    #[test]
    fn a_probe_whose_caller_went_away_does_not_keep_it_open() {
        let now = Instant::now();
        let breaker = opened(now);
        let then = now + FIRST_PAUSE;
        assert_eq!(breaker.admit(then), Admission::Probe);
        assert!(matches!(
            breaker.admit(then + FIRST_PAUSE),
            Admission::Reject(_)
        ));
        assert_eq!(breaker.admit(then + PROBE_TIME), Admission::Probe);
    }

    #[test]
    fn a_probe_that_is_given_up_delays_nobody() {
        let now = Instant::now();
        let breaker = opened(now);
        let then = now + FIRST_PAUSE;
        assert_eq!(breaker.admit(then), Admission::Probe);
        breaker.cancelled(&Admission::Allow, then);
        assert!(matches!(breaker.admit(then), Admission::Reject(_)));
        breaker.cancelled(&Admission::Probe, then);
        assert_eq!(breaker.admit(then), Admission::Probe);
        breaker.note_answer();
        breaker.cancelled(&Admission::Probe, then);
        assert_eq!(breaker.admit(then), Admission::Allow);
    }

    #[test]
    fn pauses_are_spread() {
        let now = Instant::now();
        let breaker = Breaker::new();
        for number in 0..FAILURES {
            breaker.failed(
                &Admission::Allow,
                now - SILENCE * (FAILURES - 1 - number),
                0,
                "gone",
            );
        }
        assert_eq!(breaker.admit(now + FIRST_PAUSE / 2), Admission::Probe);
    }
}
