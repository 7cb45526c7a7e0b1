//! Flow control: how much may be in flight to a server, and how much may wait.
//!
//! An overloaded server still answers, only later. So the number of calls in flight is limited by a
//! [`FlowWindow`] that follows the response time, as TCP's does: it grows by one with each answer while it is
//! full, and is halved when an answer took longer than the quickest recent one by more than a margin. The
//! calls that wait are a [`Queue`], as long as the server can answer within the time that a call may wait,
//! measured while calls wait. Beyond that the newest call is refused. Calls in the queue stay, unless the
//! server gets slower: then the youngest are refused.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The quickest recent answer is the quickest of this long, or of up to twice this long.
const PERIOD: Duration = Duration::from_secs(5);

/// A server's pace is measured over this much busy time, or up to twice this much.
const MEMORY: Duration = Duration::from_millis(100);

/// After this long without a waiting call, the measured pace is forgotten.
const FORGET: Duration = Duration::from_secs(1);

/// Longest wait of a call in the queue of an overloaded server, in timeouts. Long enough that some thousand
/// callers who each wait for their answer are all served, only later; short enough that the queue is empty
/// within a second when the load falls to a half.
pub(crate) const MAX_WAIT: u32 = 8;

/// At least so many calls may wait, however slow the server is.
const MIN_QUEUE: usize = 64;

/// At most so many calls may wait, also while the pace of the server is not known: about 16 MB.
const MAX_QUEUE: usize = 16_384;

/// Bound on the commands in flight.
#[derive(Debug)]
pub(crate) struct FlowWindow {
    size: usize,
    least: usize,
    most: usize,
    slack: Duration,
    /// The quickest answers of this period and of the last.
    quickest: [Duration; 2],
    period: Option<Instant>,
    /// Instant of the last halving. Calls that left before that say nothing new.
    halved: Option<Instant>,
}

impl FlowWindow {
    /// A window that starts at `most` and stays above `least`. Answers may take `slack` longer than the
    /// quickest.
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

    /// Notes at `now` the answer to a call that left at `left`; `was_full`: more calls were waiting.
    pub(crate) fn note_answer(&mut self, left: Instant, now: Instant, was_full: bool) {
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
    /// Longest wait of a call.
    patience: Duration,
    /// The time in which calls waited, and how many were answered in it.
    busy: Duration,
    answered: u32,
    /// Instant until which that is counted, while calls wait.
    counted: Option<Instant>,
    /// Instant at which calls last waited.
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

    /// Number of calls that may wait.
    fn most(&self) -> usize {
        // The first answers on a connection say little. Calls that are too many are refused soon, when
        // there are more answers.
        if self.busy < MEMORY {
            return MAX_QUEUE;
        }
        let busy = self.busy.as_nanos().max(1);
        let most = self.patience.as_nanos() * u128::from(self.answered) / busy;
        let most = usize::try_from(most).unwrap_or(MAX_QUEUE);
        most.clamp(MIN_QUEUE, MAX_QUEUE)
    }

    /// Returns true if new calls are refused: as many wait as can be answered in time.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting.len() >= self.most()
    }

    /// Queues a call, or returns it if the queue is full.
    pub(crate) fn push(&mut self, call: T, now: Instant) -> Result<(), T> {
        let since = |last: Instant| now.saturating_duration_since(last);
        if self.waiting.is_empty() && self.last.is_some_and(|last| since(last) >= FORGET) {
            (self.busy, self.answered) = (Duration::ZERO, 0);
        }
        if self.is_full() {
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

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Notes that the server answered `count` calls. Returns the youngest waiting calls, if they would now
    /// wait for too long.
    pub(crate) fn note_answers(&mut self, count: usize, now: Instant) -> Vec<T> {
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
        // Twice as many as may enter, so that a short delay does not refuse calls that already wait.
        let most = self.most() * 2;
        let rest = self.waiting.split_off(most.min(self.waiting.len()));
        rest.into_iter().map(|(_, call)| call).collect()
    }

    /// Instant at which the oldest call entered.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        self.waiting.front().map(|(since, _)| *since)
    }

    /// Takes out the calls that entered at `then` or before.
    pub(crate) fn since(&mut self, then: Instant) -> Vec<T> {
        let count = self.waiting.partition_point(|(since, _)| *since <= then);
        self.waiting.drain(..count).map(|(_, call)| call).collect()
    }

    /// Takes out all calls.
    pub(crate) fn take_all(&mut self) -> Vec<T> {
        self.waiting.drain(..).map(|(_, call)| call).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_window_follows_how_long_answers_take() {
        let mut window = FlowWindow::new(4, 64, MS * 10);
        let mut now = Instant::now();
        let mut answer = |window: &mut FlowWindow, took: Duration| {
            let left = now;
            now += took;
            window.note_answer(left, now, true);
            window.size()
        };
        // A far server is no slow one.
        for _ in 0..100 {
            assert_eq!(answer(&mut window, MS * 40), 64);
        }
        assert_eq!(answer(&mut window, MS * 50), 64, "within the slack");
        let sizes = [1; 6].map(|_| answer(&mut window, MS * 51));
        assert_eq!(sizes, [32, 16, 8, 4, 4, 4]);
        for size in 5..=64 {
            assert_eq!(answer(&mut window, MS * 41), size);
        }
        assert_eq!(answer(&mut window, MS * 41), 64);
    }

    #[test]
    fn a_window_is_halved_once_for_all_that_left_together_and_grows_if_full() {
        let mut window = FlowWindow::new(1, 64, MS);
        let left = Instant::now();
        window.note_answer(left, left + MS, false);
        for _ in 0..20 {
            window.note_answer(left, left + MS * 20, true);
        }
        assert_eq!(window.size(), 32);
        let left = left + MS * 20;
        window.note_answer(left, left + MS, false);
        assert_eq!(window.size(), 32, "nobody wants more");
        window.note_answer(left, left + MS, true);
        assert_eq!(window.size(), 33);
    }

    /// Answers one call in so long while calls wait, and takes in all that may come; the most that wait.
    fn fill(queue: &mut Queue<u32>, now: &mut Instant, pace: Duration) -> usize {
        for _ in 0..5_000 {
            while queue.push(0, *now).is_ok() {}
            queue.pop();
            *now += pace;
            queue.note_answers(1, *now);
        }
        queue.waiting.len()
    }

    #[test]
    fn as_many_wait_as_are_answered_in_time_and_the_newest_is_refused() {
        let now = &mut Instant::now();
        let mut queue = Queue::new(MS * 100);
        let mut count = 0;
        while queue.push(count, *now).is_ok() {
            count += 1;
        }
        assert_eq!(count as usize, MAX_QUEUE);
        assert_eq!(queue.front(), Some(&0), "who waits stays");
        let most = fill(&mut queue, now, MS / 10);
        assert!((900..=1_100).contains(&most), "{most}");
        // The server gets slower, and the youngest calls are refused.
        let most = fill(&mut queue, now, MS);
        assert!((64..=200).contains(&most), "{most}");
        // Well again, it has what it can do within a second.
        let then = *now;
        let most = fill(&mut queue, now, MS / 10);
        assert!((900..=1_100).contains(&most), "{most}");
        assert!(now.duration_since(then) < FORGET);
        // Nobody came for a while.
        queue.take_all();
        *now += FORGET;
        assert!(queue.push(0, *now).is_ok());
        assert_eq!(queue.most(), MAX_QUEUE);
    }

    #[test]
    fn those_who_waited_since_an_instant_are_taken_out() {
        let now = Instant::now();
        let mut queue = Queue::new(MS);
        for index in 0..5 {
            assert!(queue.push(index, now + MS * index).is_ok());
        }
        assert_eq!(queue.oldest(), Some(now));
        assert_eq!(queue.since(now + MS * 2), [0, 1, 2]);
        assert_eq!(queue.pop(), Some(3));
        assert_eq!(queue.take_all(), [4]);
        assert!(queue.is_empty());
    }
}
