//! Cell: a bucket that many threads take from and that follows a schedule, without a lock.
//!
//! The simplest idea is a lock around [`Bucket`](crate::schedule::Bucket). But a call must not wait
//! for another one, least of all for a thread that the system has paused. So the state is one word,
//! which calls change by compare-and-swap.
//!
//! A schedule is written down as what it *supplies*: the tokens minted until an instant. Against it
//! stands what is *used*. For the step that is in force at t,
//!
//! ```text
//! supply(t) = supply at its beginning + rate * time since
//! tokens(t) = min(supply(t) - used, cap at its beginning + rate * time since, burst)
//! ```
//!
//! The cap is the most that can have come through all ends of steps before, each of which cuts to
//! the burst on both sides. It depends on the schedule alone, so the word needs only `used`: what a
//! bucket settles at each call is computed once per schedule. A call at t that fits sets
//! `used = supply(t) - tokens(t) + cost`.
//!
//! Two slots hold schedules; the lowest bit of the word says which of them is in force. To follow
//! another schedule, the writer fills the other slot and then swaps the word: the bit changes, `used`
//! is counted in the new supply, and the tokens stay. So one swap ends the old schedule for all
//! threads and moves the tokens. A call that had read the old slot fails its own swap, because the
//! word has changed, and decides again by the new one.
//!
//! A call can read a slot while it is filled for the schedule after next. Then the word has changed
//! since the call read it, which the call finds out before it answers. The word does not return to
//! an earlier value: `used` grows with every call that fits and with every change of schedule, and
//! starts again only after 2^63 micro-units.
//!
//! Worked example: 100/s until 1 s, then 10/s, burst 50 in both; used 0. At 0.8 s the supply is 80
//! and 50 tokens are there. A call of 20 sets used to `80 - 50 + 20 = 50`. At 1.5 s the supply is
//! 105, and the cap `min(100, 50) + 5`: 50 tokens, as much as the burst allows.
//!
//! Everything is rounded against the caller, by less than two micro-units for a call from a full bucket
//! and less than one at each end of a step. A call is judged at the instant of its own clock reading.
//! With an older reading than another call had it finds fewer tokens, never more.
//!
//! A call that is one part of a set may have to be taken back: [`Cell::try_hold`] and [`Cell::put_back`]
//! say when that is possible.
//!
//! Bad at: minting without an end. A schedule supplies at most 2^61 micro-units (at 1,000,000/s for
//! 26 days); follow it again before that.

use alloc::sync::Arc;
use core::time::Duration;

use quell_core::decision::{Outcome, RetryAfter};
use quell_core::time::Monotonic;

use self::sync::{AtomicU64, Ordering, fence};
use crate::schedule::{Right, Schedule};

#[cfg(test)]
mod models;
mod sync;

/// The most ends of steps. The models have one, because they try every value that a load may see.
#[cfg(not(test))]
const ENDS: usize = crate::schedule::STEPS;
#[cfg(test)]
const ENDS: usize = 1;

/// The most micro-units that a schedule supplies, and the largest burst: differences of supplies fit
/// in 63 bits.
const MOST: u64 = 1 << 61;

const SECOND: u64 = 1_000_000_000;

/// Greatest difference between the readings of two threads, in nanoseconds.
const READINGS_DIFFER: u64 = 1_000_000;

/// The answer to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellAnswer {
    /// Outcome of the call. A denied call may pass after the shortest wait at which its cost is there, if
    /// the schedule goes on as it is and no other call comes; `Never` if it is never there.
    pub outcome: Outcome,
    /// The burst in force, in micro-units.
    pub burst: u64,
    /// Micro-units that remain after this call.
    pub remaining: u64,
    /// Time until as much is there as the schedule allows at that instant, if no other call comes;
    /// `None` if that is never.
    pub reset_after: Option<Duration>,
}

/// One step of a schedule. All of it is written before the word names its slot.
#[derive(Debug, Default)]
struct Piece {
    /// Instant at which it begins, in nanoseconds.
    begins: AtomicU64,
    /// Tokens that the schedule has supplied by then.
    minted: AtomicU64,
    /// The most tokens that there can be then.
    cap: AtomicU64,
    /// Micro-units per second.
    rate: AtomicU64,
    burst: AtomicU64,
}

/// A schedule as calls read it.
#[derive(Debug, Default)]
struct CellSlot {
    /// The supply at its beginning, modulo 2^63.
    base: AtomicU64,
    /// Instants at which each piece but the last ends; of those that are not needed, the end of time.
    ends: [AtomicU64; ENDS],
    pieces: [Piece; ENDS + 1],
}

/// A bucket that threads share.
#[derive(Debug, Default)]
pub struct Cell {
    /// Tokens used, modulo 2^63, and in the lowest bit which slot is in force.
    word: AtomicU64,
    slots: [CellSlot; 2],
    /// Micro-units that were taken and may still be put back.
    held: AtomicU64,
    /// Number of changes of the schedule.
    changes: AtomicU64,
}

/// Micro-units that were taken and may still be put back. Pass it to [`Cell::put_back`] or
/// [`Cell::keep`]: until then no other charge can be put back into a bucket that could be full.
#[derive(Debug)]
#[must_use]
pub struct Held {
    cost: u64,
    at: u64,
    /// Tokens that there were, and those that other calls may still put back.
    most: u64,
    burst: u64,
    /// The highest rate of the schedule.
    rate: u64,
    change: u64,
}

/// A schedule at an instant.
#[derive(Clone, Copy, Debug)]
struct View {
    supply: u64,
    /// The most tokens that there can be, of those that the schedule allows.
    cap: i64,
    burst: u64,
    /// Part that is minted beyond the supply, in billionths of a micro-unit.
    rest: u64,
    rate: u64,
    /// Instant at which the piece in force ends; 0 if it has not begun.
    end: u64,
    /// True if the schedule may soon have supplied all that it can.
    is_old: bool,
    /// The piece in force.
    index: usize,
}

impl View {
    /// Negative if calls with later readings have used more than there is now.
    #[inline]
    const fn tokens(&self, word: u64) -> i64 {
        // The lowest bit is dropped, and the difference is one of 63 bits.
        let left = (self.supply << 1).wrapping_sub(word & !1).cast_signed() >> 1;
        if left < self.cap { left } else { self.cap }
    }

    /// Time from `now` until there are `wanted` tokens, if that is while this piece is in force.
    #[inline]
    fn wait(&self, now: u64, word: u64, wanted: u64) -> Option<u64> {
        let lacks = signed(wanted) - self.tokens(word);
        if lacks <= 0 {
            return (self.end > now).then_some(0);
        }
        if wanted > self.burst || self.rate == 0 || self.is_old {
            return None;
        }
        let time = time_to_mint(lacks.cast_unsigned(), self.rest, self.rate)?;
        (now.saturating_add(time) < self.end).then_some(time)
    }

    /// The word that leaves `tokens` of the supply.
    #[inline]
    const fn word(&self, tokens: i64, slot: u64) -> u64 {
        self.supply.wrapping_sub(tokens.cast_unsigned()) << 1 | slot
    }
}

/// Micro-units minted at `rate` in `nanos`, rounded down, and the rest in billionths.
#[inline]
const fn mint(rate: u64, nanos: u64) -> (u64, u64) {
    // In 64 bits: `rate * nanos` alone has up to 128, and dividing those is slow.
    let (seconds, nanos) = (nanos / SECOND, nanos % SECOND);
    let (whole, part) = (rate / SECOND, rate % SECOND);
    let small = part * nanos;
    let minted = rate
        .saturating_mul(seconds)
        .saturating_add(whole.saturating_mul(nanos))
        .saturating_add(small / SECOND);
    (minted, small % SECOND)
}

/// Time that `rate` takes to mint `tokens`, of which `rest` billionths of a micro-unit are there already,
/// in nanoseconds, rounded up.
#[inline]
fn time_to_mint(tokens: u64, rest: u64, rate: u64) -> Option<u64> {
    /// Above it, the remainders of the steps below do not fit in 64 bits.
    const FAST: u64 = u64::MAX / 100_000;
    if rate == 0 || tokens == 0 {
        return (tokens == 0).then_some(0);
    }
    if let Some(product) = tokens.checked_mul(SECOND) {
        return Some((product - rest).div_ceil(rate));
    }
    if rate > FAST {
        let product = u128::from(tokens) * u128::from(SECOND) - u128::from(rest);
        return u64::try_from(product.div_ceil(u128::from(rate))).ok();
    }
    // Long division, five digits and four: faster than one of 128 bits. The last micro-unit is
    // divided apart, so that what is there of it can be taken off.
    let tokens = tokens - 1;
    let (mut time, mut left) = (tokens / rate, tokens % rate);
    for digits in [100_000, 10_000] {
        left *= digits;
        time = time.checked_mul(digits)?.checked_add(left / rate)?;
        left %= rate;
    }
    time.checked_add((left + (SECOND - rest)).div_ceil(rate))
}

/// Tokens as a signed number; bursts and supplies are at most [`MOST`].
const fn signed(tokens: u64) -> i64 {
    if tokens > MOST {
        MOST.cast_signed()
    } else {
        tokens.cast_signed()
    }
}

impl CellSlot {
    /// Fills a slot that is not in force.
    fn write(&self, schedule: &Schedule, from: Monotonic, base: u64) {
        let store = |to: &AtomicU64, value| to.store(value, Ordering::Relaxed);
        store(&self.base, base);
        let from = from.as_nanos();
        let (mut begins, mut minted, mut cap) = (from, 0_u64, MOST);
        let mut steps = schedule
            .steps()
            .iter()
            .filter(|step| step.until.as_nanos() > from);
        let mut ends = self.ends.iter();
        for piece in &self.pieces {
            let step = steps.next();
            let right = step.map_or(schedule.last(), |step| step.right);
            let burst = right.burst.min(MOST);
            cap = cap.min(burst);
            store(&piece.begins, begins);
            store(&piece.minted, minted);
            store(&piece.cap, cap);
            store(&piece.rate, right.rate);
            store(&piece.burst, burst);
            if let Some(end) = ends.next() {
                store(end, step.map_or(u64::MAX, |step| step.until.as_nanos()));
            }
            if let Some(step) = step {
                let until = step.until.as_nanos();
                let more = mint(right.rate, until - begins).0;
                minted = minted.saturating_add(more).min(MOST);
                cap = cap.saturating_add(more).min(burst);
                begins = until;
            }
        }
    }

    #[inline]
    fn at(&self, now: u64) -> View {
        let load = |from: &AtomicU64| from.load(Ordering::Relaxed);
        let mut index = 0;
        while index < ENDS && load(&self.ends[index]) <= now {
            index += 1;
        }
        let piece = &self.pieces[index];
        let (begins, rate) = (load(&piece.begins), load(&piece.rate));
        let (more, rest) = mint(rate, now.saturating_sub(begins));
        let minted = load(&piece.minted).saturating_add(more).min(MOST);
        let burst = load(&piece.burst);
        let end = self.ends.get(index).map_or(u64::MAX, load);
        View {
            supply: load(&self.base).wrapping_add(minted),
            cap: signed(load(&piece.cap).saturating_add(more).min(burst)),
            burst,
            rest,
            rate,
            end: if now < begins { 0 } else { end },
            is_old: minted > MOST / 2,
            index,
        }
    }

    /// Time from `now` until there are `wanted` tokens, or as many as the burst if that is `None`.
    // Always inlined: passing the view and the answer costs a hundredth of a decision at a node.
    #[inline(always)]
    fn wait(&self, now: u64, view: &View, word: u64, wanted: Option<u64>) -> Option<Duration> {
        let here = view.wait(now, word, wanted.unwrap_or(view.burst));
        let time = here.or_else(|| self.wait_across(now, view, word, wanted))?;
        Some(Duration::from_nanos(time))
    }

    /// The same, step by step.
    #[cold]
    fn wait_across(&self, now: u64, view: &View, word: u64, wanted: Option<u64>) -> Option<u64> {
        let load = |from: &AtomicU64| from.load(Ordering::Relaxed);
        for (index, piece) in self.pieces.iter().enumerate().skip(view.index) {
            let end = self.ends.get(index).map_or(u64::MAX, load);
            let burst = load(&piece.burst);
            let wanted = wanted.unwrap_or(burst);
            if wanted <= burst {
                let (begins, minted) = (load(&piece.begins), load(&piece.minted));
                let start = View {
                    supply: load(&self.base).wrapping_add(minted),
                    cap: signed(load(&piece.cap)),
                    ..*view
                };
                let lacks = signed(wanted).saturating_sub(start.tokens(word));
                let lacks = if wanted == 0 {
                    0
                } else {
                    u64::try_from(lacks).unwrap_or(0)
                };
                let rate = load(&piece.rate);
                let time = time_to_mint(lacks, 0, rate);
                let at = time.map(|time| begins.saturating_add(time).max(now));
                let is_minted = minted.saturating_add(lacks) <= MOST;
                if let Some(at) = at.filter(|at| *at < end && is_minted) {
                    return Some(at - now);
                }
            }
            if end == u64::MAX {
                return None;
            }
        }
        None
    }
}

impl Cell {
    /// Takes `cost` micro-units if they are there. Never waits for another thread: it tries again
    /// only if another call was let pass meanwhile, or the schedule changed.
    #[inline]
    pub fn try_take(&self, now: Monotonic, cost: u64) -> CellAnswer {
        self.decide(now, cost, true)
    }

    /// Returns the answer that [`Cell::try_take`] would give; takes nothing, and `remaining` includes
    /// `cost`.
    #[must_use]
    pub fn peek(&self, now: Monotonic, cost: u64) -> CellAnswer {
        self.decide(now, cost, false)
    }

    /// As [`Cell::try_take`], for a charge that may have to be put back.
    pub fn try_hold(&self, now: Monotonic, cost: u64) -> (CellAnswer, Option<Held>) {
        let change = self.changes.load(Ordering::Acquire);
        // Before it is taken: others rather count it twice than not at all.
        let others = self.held.fetch_add(cost, Ordering::AcqRel);
        let answer = self.try_take(now, cost);
        if !answer.outcome.is_allow() {
            self.held.fetch_sub(cost, Ordering::AcqRel);
            return (answer, None);
        }
        let slot = self.slot(self.word.load(Ordering::Acquire));
        let rates = slot
            .pieces
            .iter()
            .map(|piece| piece.rate.load(Ordering::Relaxed));
        let there = answer.remaining.saturating_add(cost);
        let held = Held {
            cost,
            at: now.as_nanos(),
            most: there.saturating_add(others),
            burst: answer.burst,
            rate: rates.max().unwrap_or(0),
            change,
        };
        (answer, Some(held))
    }

    /// Puts back what was taken, and returns whether it did.
    ///
    /// While it was away the bucket may have filled up, so that putting it back would mint it twice. What
    /// was there and away when it was taken, and what was minted since, must fit in the burst; then the
    /// bucket was never full. If that is not certain, or the schedule has changed, the charge stays.
    ///
    /// The supply grows by it, and the word does not change: so the word still never returns to an
    /// earlier value. A thread that is paused between its check and that step, for longer than two
    /// changes of schedule, gives the tokens to a schedule after that.
    pub fn put_back(&self, now: Monotonic, held: Held) -> bool {
        let slot = self.slot(self.word.load(Ordering::Acquire));
        let now = now.as_nanos();
        let burst = slot.at(now).burst.min(held.burst);
        let elapsed = now.saturating_sub(held.at).saturating_add(READINGS_DIFFER);
        let most = held.most.saturating_add(mint(held.rate, elapsed).0);
        let fits = most <= burst && self.changes.load(Ordering::Acquire) == held.change;
        if fits {
            slot.base.fetch_add(held.cost, Ordering::AcqRel);
        }
        self.keep(held);
        fits
    }

    /// Keeps the taken tokens taken.
    pub fn keep(&self, held: Held) {
        self.held.fetch_sub(held.cost, Ordering::AcqRel);
    }

    #[inline]
    fn decide(&self, now: Monotonic, cost: u64, takes: bool) -> CellAnswer {
        let now = now.as_nanos();
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            let slot = self.slot(word);
            let view = slot.at(now);
            let tokens = view.tokens(word);
            let there = u64::try_from(tokens).unwrap_or(0);
            let fits = cost <= there;
            let next = if fits && takes {
                // From a full bucket, the part of a micro-unit that there is beyond it is lost.
                let lost = i64::from(tokens == signed(view.burst) && view.rest > 0 && cost > 0);
                view.word(tokens - signed(cost) - lost, word & 1)
            } else {
                word
            };
            let answer = CellAnswer {
                outcome: if fits {
                    Outcome::Allow
                } else {
                    let wait = slot.wait(now, &view, word, Some(cost));
                    Outcome::Deny(wait.map_or(RetryAfter::Never, RetryAfter::After))
                },
                burst: view.burst,
                remaining: if fits && takes { there - cost } else { there },
                reset_after: slot.wait(now, &view, next, None),
            };
            match self.confirm(word, next) {
                Ok(()) => return answer,
                Err(changed) => word = changed,
            }
        }
    }

    /// Micro-units that a call could take now.
    #[must_use]
    pub fn remaining(&self, now: Monotonic) -> u64 {
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            let tokens = self.slot(word).at(now.as_nanos()).tokens(word);
            match self.confirm(word, word) {
                Ok(()) => return u64::try_from(tokens).unwrap_or(0),
                Err(changed) => word = changed,
            }
        }
    }

    /// Replaces the word, unless it has changed since it was read. If so, whatever was read of a slot
    /// since then may be of two schedules.
    #[inline]
    fn confirm(&self, word: u64, next: u64) -> Result<(), u64> {
        // Pairs with the fence in `follow`: a value that was written to a slot later than `word`
        // was read makes the change of the word before it visible here.
        fence(Ordering::Acquire);
        if next == word {
            let now = self.word.load(Ordering::Acquire);
            return if now == word { Ok(()) } else { Err(now) };
        }
        let swapped =
            self.word
                .compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Acquire);
        swapped.map(|_| ())
    }

    #[inline]
    const fn slot(&self, word: u64) -> &CellSlot {
        let [even, odd] = &self.slots;
        if word & 1 == 0 { even } else { odd }
    }
}

/// Changes the schedule of a cell. There is one for each cell.
#[derive(Debug)]
pub struct CellWriter {
    cell: Arc<Cell>,
    /// Since when the present schedule has been followed.
    since: Monotonic,
}

impl CellWriter {
    /// A cell without tokens: a process starts without a burst.
    #[must_use]
    pub fn new(schedule: &Schedule, now: Monotonic) -> Self {
        let cell = Cell::default();
        cell.slot(0).write(schedule, now, 0);
        Self {
            cell: Arc::new(cell),
            since: now,
        }
    }

    /// The cell, for the threads that take from it.
    #[must_use]
    pub const fn cell(&self) -> &Arc<Cell> {
        &self.cell
    }

    /// Follows another schedule from now on, and keeps the tokens, cut to the new burst. When it
    /// returns, no thread can take by the older schedule any more.
    pub fn follow(&mut self, now: Monotonic, schedule: &Schedule) {
        // What was minted already must not be minted again.
        let now = now.max(self.since);
        self.since = now;
        let cell = &*self.cell;
        let mut word = cell.word.load(Ordering::Acquire);
        let view = cell.slot(word).at(now.as_nanos());
        // One more than the supply, so that `used` grows and the word is a new one.
        let base = View {
            supply: view.supply.wrapping_add(1),
            ..view
        };
        let other = 1 - (word & 1);
        cell.changes.fetch_add(1, Ordering::AcqRel);
        // Pairs with the fence in `confirm`.
        fence(Ordering::Release);
        cell.slot(other).write(schedule, now, base.supply);
        loop {
            let next = base.word(view.tokens(word), other);
            let swapped =
                cell.word
                    .compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Acquire);
            match swapped {
                Ok(_) => return,
                Err(changed) => word = changed,
            }
        }
    }

    /// Gives up everything: nothing is let pass until another schedule is followed.
    pub fn close(&mut self, now: Monotonic) {
        self.follow(now, &Schedule::constant(Right::NONE));
    }
}
