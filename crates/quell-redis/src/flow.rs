//! Flow: how much may be on the way to a server, and how much may wait for that.
//!
//! A server that has more to do than it can still answers, only later. So what is on the way is a
//! [`Window`] that follows how long answers take, as TCP's does: it grows by one with each answer
//! while it is full, and is halved when an answer took longer than the quickest one lately by more
//! than a slack. And what waits is a [`Queue`] no longer than the server answers in the time that a
//! call may wait, measured while calls wait. Past that the newest call is refused; who waits stays,
//! unless the server gets slower: then the youngest go.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The quickest answer is that of this long, and at most twice.
const PERIOD: Duration = Duration::from_secs(5);

/// What is known of a server's pace is of its last so much busy time, and at most twice.
const MEMORY: Duration = Duration::from_millis(100);

/// After this long without anybody waiting, a server's pace is not known any more.
const FORGET: Duration = Duration::from_secs(1);

/// Calls that may wait for a server of which no pace is known.
const WAIT_UNMEASURED: usize = 4_096;

/// Calls that may wait for any server, however slow.
const WAIT_LEAST: usize = 64;

/// Calls that may wait for any server, however quick: about 16 MB.
const WAIT_MOST: usize = 16_384;

/// How much may be on the way at a time.
#[derive(Debug)]
pub(crate) struct Window {
    size: usize,
    least: usize,
    most: usize,
    slack: Duration,
    /// The quickest answers of this period and of the last.
    quickest: [Duration; 2],
    period: Option<Instant>,
    /// When it was halved. What left before says nothing new.
    halved: Option<Instant>,
}

impl Window {
    /// Of `most`, and never less than `least`. Answers may take `slack` longer than the quickest.
    pub(crate) const fn new(least: usize, most: usize, slack: Duration) -> Self {
        Self {
            size: most,
            least,
            most,
            slack,
            quickest: [Duration::MAX; 2],
            period: None,
            halved: None,
        }
    }

    pub(crate) const fn size(&self) -> usize {
        self.size
    }

    /// What left at `left` is answered at `now`; `was_full`: more might have left.
    pub(crate) fn answered(&mut self, left: Instant, now: Instant, was_full: bool) {
        let took = now.saturating_duration_since(left);
        let [this, last] = &mut self.quickest;
        let is_over = |began: Instant| now.saturating_duration_since(began) >= PERIOD;
        if self.period.is_none_or(is_over) {
            self.period = Some(now);
            (*last, *this) = (*this, took);
        }
        *this = (*this).min(took);
        let quickest = (*this).min(*last);
        if took.saturating_sub(quickest) <= self.slack {
            if was_full {
                self.size = (self.size + 1).min(self.most);
            }
        } else if self.halved.is_none_or(|halved| left >= halved) {
            self.size = (self.size / 2).max(self.least);
            self.halved = Some(now);
        }
    }
}

/// Calls that wait, the oldest first.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    waiting: VecDeque<(Instant, T)>,
    /// How long a call may wait.
    patience: Duration,
    /// Time in which calls waited, and how many were answered in it.
    busy: Duration,
    answered: u32,
    /// Up to when that is counted, while calls wait.
    counted: Option<Instant>,
    /// When calls waited last.
    last: Option<Instant>,
}

impl<T> Queue<T> {
    pub(crate) const fn new(patience: Duration) -> Self {
        Self {
            waiting: VecDeque::new(),
            patience,
            busy: Duration::ZERO,
            answered: 0,
            counted: None,
            last: None,
        }
    }

    /// Changes how long a call may wait.
    pub(crate) const fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// How many may wait.
    fn most(&self) -> usize {
        if self.answered == 0 {
            return WAIT_UNMEASURED;
        }
        let busy = self.busy.as_nanos().max(1);
        let most = self.patience.as_nanos() * u128::from(self.answered) / busy;
        let most = usize::try_from(most).unwrap_or(WAIT_MOST);
        most.clamp(WAIT_LEAST, WAIT_MOST)
    }

    /// Takes a call in, or gives it back: more wait than can be answered in time.
    pub(crate) fn push(&mut self, call: T, now: Instant) -> Result<(), T> {
        let since = |last: Instant| now.saturating_duration_since(last);
        if self.waiting.is_empty() && self.last.is_some_and(|last| since(last) >= FORGET) {
            (self.busy, self.answered) = (Duration::ZERO, 0);
        }
        if self.waiting.len() >= self.most() {
            return Err(call);
        }
        self.waiting.push_back((now, call));
        Ok(())
    }

    pub(crate) fn front(&self) -> Option<&T> {
        self.waiting.front().map(|(_, call)| call)
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        self.waiting.pop_front().map(|(_, call)| call)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The server answered so many calls. Returns those that wait and would now wait for too long:
    /// the youngest.
    pub(crate) fn answered(&mut self, count: usize, now: Instant) -> Vec<T> {
        if let Some(counted) = self.counted {
            self.busy += now.saturating_duration_since(counted);
            let count = u32::try_from(count).unwrap_or(u32::MAX);
            self.answered = self.answered.saturating_add(count);
            while self.busy > MEMORY * 2 {
                self.busy /= 2;
                self.answered = (self.answered / 2).max(1);
            }
        }
        self.counted = (!self.waiting.is_empty()).then_some(now);
        if self.counted.is_some() {
            self.last = Some(now);
        }
        // Twice as many as may come in: who waits is not turned away for a moment's sake.
        let most = self.most() * 2;
        let rest = self.waiting.split_off(most.min(self.waiting.len()));
        rest.into_iter().map(|(_, call)| call).collect()
    }

    /// Since when the oldest waits.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        self.waiting.front().map(|(since, _)| *since)
    }

    /// Takes those out who wait since `then` or before.
    pub(crate) fn since(&mut self, then: Instant) -> Vec<T> {
        let count = self.waiting.partition_point(|(since, _)| *since <= then);
        self.waiting.drain(..count).map(|(_, call)| call).collect()
    }

    /// Takes all out.
    pub(crate) fn take_all(&mut self) -> Vec<T> {
        self.waiting.drain(..).map(|(_, call)| call).collect()
    }
}
