//! Timeline: the events that happen to the holds of one key by themselves, in order of time.
//!
//! Ends are sorted once, so n of them take n log n steps, however many charges are given back on the
//! way. A charge that is given back moves the marks of all later charges. The order of marks never
//! changes, so refunds are summed by rank, in a tree whose sums take log n steps (Fenwick 1994), and
//! a mark is corrected when it is read.

use alloc::collections::BinaryHeap;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;

use super::Holds;
use crate::algorithm::{At, Engine, Mechanics};
use crate::hold::{Hold, Mark, OnExpiry, Place};
use crate::time::Monotonic;
use crate::usage::Usage;

/// The future events of one key's holds.
#[derive(Debug)]
pub(super) struct Timeline {
    due: BinaryHeap<Reverse<(Monotonic, usize)>>,
    /// The indices of holds that are over.
    over: Vec<usize>,
    /// Units of all holds that are taken.
    taken: u64,
    moves: Option<MarkShifts>,
    /// By how much marks were moved in all.
    given_back: u128,
}

impl Timeline {
    /// The events of `holds`, up to an instant if one is given.
    pub(super) fn new(holds: &Holds, until: Option<Monotonic>) -> Self {
        let due = holds.all.iter().map(Hold::due).enumerate();
        let due = due.filter(|(_, due)| until.is_none_or(|until| *due <= until));
        Self {
            due: due.map(|(index, due)| Reverse((due, index))).collect(),
            over: Vec::new(),
            taken: holds.taken_units(),
            moves: None,
            given_back: 0,
        }
    }

    /// The ends of those holds that are taken.
    pub(super) fn from_taken(holds: &Holds) -> Self {
        let mut timeline = Self::new(holds, None);
        let is_taken = |index: usize| holds.all.get(index).is_some_and(|hold| !hold.is_waiting());
        timeline.due.retain(|Reverse((_, index))| is_taken(*index));
        timeline
    }

    /// Adds the turn of a waiting hold.
    pub(super) fn add_turn(&mut self, index: usize, turn: Monotonic) {
        self.due.push(Reverse((turn, index)));
    }

    /// Instant of the next event.
    pub(super) fn next_due(&self) -> Option<Monotonic> {
        self.due.peek().map(|Reverse((due, _))| *due)
    }

    /// Units of all holds that are taken by now.
    pub(super) const fn taken_units(&self) -> u64 {
        self.taken
    }

    /// Applies the events that are due by `at`: a hold that is taken may be over before another is
    /// taken. Holds that are over keep their indices until [`Timeline::finish`].
    pub(super) fn run(&mut self, usage: &mut Usage, holds: &mut [Hold], engine: &Engine, at: &At) {
        while let Some(instant) = self.next_due().filter(|due| *due <= at.now.monotonic) {
            let Some(Reverse((_, index))) = self.due.pop() else {
                return;
            };
            match self.happen(usage, holds, engine, &at.moved_to(instant), index) {
                Some(until) => self.due.push(Reverse((until, index))),
                None => self.over.push(index),
            }
        }
    }

    /// Removes the holds that are over. Returns how much they gave back, as the marks behind them moved.
    pub(super) fn finish(mut self, holds: &mut Vec<Hold>) -> u128 {
        if let Some(moves) = &self.moves {
            moves.finish(holds);
        }
        self.over.sort_unstable();
        let mut index = 0;
        holds.retain(|_| {
            let is_over = self.over.binary_search(&index).is_ok();
            index += 1;
            !is_over
        });
        self.given_back
    }

    /// Applies a hold's event at its instant. Returns when its next event is, unless the hold has
    /// ended.
    fn happen(
        &mut self,
        usage: &mut Usage,
        holds: &mut [Hold],
        engine: &Engine,
        at: &At,
        index: usize,
    ) -> Option<Monotonic> {
        let hold = holds.get_mut(index)?;
        let units = hold.units;
        match &hold.place {
            Place::Waiting { .. } => {
                engine.settle(usage, at);
                engine.take(usage, at, units);
                if let Some(moves) = &mut self.moves {
                    moves.add(index);
                }
                hold.take(engine.mark(usage, at), at.now.monotonic);
                self.taken = self.taken.saturating_add(units);
                Some(hold.due())
            }
            Place::Taken { mark, .. } => {
                let mut mark = mark.clone();
                if hold.on_expiry == OnExpiry::Release {
                    if let Some(moves) = &self.moves {
                        mark.move_back(moves.before(index));
                    }
                    let back = engine.give_back(usage, &mark, units, at);
                    if back > 0 {
                        let moves = self.moves.get_or_insert_with(|| MarkShifts::new(holds));
                        moves.give_back(index, back);
                        self.given_back = self.given_back.saturating_add(back);
                    }
                }
                self.taken = self.taken.saturating_sub(units);
                if engine.lease().is_some() {
                    // Its holder did not report back: this counts as a failed call.
                    engine.settle(usage, at);
                    engine.learn(usage, units, None, at);
                }
                None
            }
        }
    }
}

/// By how much marks must be moved back.
#[derive(Debug)]
struct MarkShifts {
    /// For each hold the rank of its mark, from 1; 0 if its mark does not move.
    ranks: Vec<usize>,
    last: usize,
    /// Refunds, by rank.
    tree: Vec<u128>,
    /// For each hold the refunds before it was taken, which its mark already includes.
    known: Vec<u128>,
}

impl MarkShifts {
    fn new(holds: &[Hold]) -> Self {
        let mut marks: Vec<(&Mark, usize)> = Vec::with_capacity(holds.len());
        for (index, hold) in holds.iter().enumerate() {
            if let Place::Taken { mark, .. } = &hold.place {
                marks.push((mark, index));
            }
        }
        marks.sort();
        let (mut ranks, mut last) = (vec![0; holds.len()], 0);
        let mut before = None;
        for (mark, index) in marks {
            if before.replace(mark) != Some(mark) {
                last += 1;
            }
            if let Some(rank) = ranks.get_mut(index) {
                *rank = last;
            }
        }
        Self {
            tree: vec![0; holds.len() + 1],
            known: vec![0; holds.len()],
            ranks,
            last,
        }
    }

    /// Refunds before the mark of this hold, since it was made.
    fn before(&self, index: usize) -> u128 {
        let known = self.known.get(index).copied().unwrap_or(0);
        self.sum(index).saturating_sub(known)
    }

    /// Refunds at lower ranks than that of this hold.
    fn sum(&self, index: usize) -> u128 {
        let mut rank = self.ranks.get(index).copied().unwrap_or(0);
        rank = rank.saturating_sub(1);
        let mut sum: u128 = 0;
        while rank > 0 {
            sum = sum.saturating_add(self.tree.get(rank).copied().unwrap_or(0));
            rank &= rank - 1;
        }
        sum
    }

    /// Records a refund at the mark of this hold.
    fn give_back(&mut self, index: usize, back: u128) {
        let mut rank = self.ranks.get(index).copied().unwrap_or(0);
        while rank > 0
            && let Some(sum) = self.tree.get_mut(rank)
        {
            *sum = sum.saturating_add(back);
            rank += rank & rank.wrapping_neg();
        }
    }

    /// A hold is taken: its mark is the last one.
    fn add(&mut self, index: usize) {
        self.last += 1;
        if let Some(rank) = self.ranks.get_mut(index) {
            *rank = self.last;
        }
        let sum = self.sum(index);
        if let Some(known) = self.known.get_mut(index) {
            *known = sum;
        }
    }

    /// Moves the marks.
    fn finish(&self, holds: &mut [Hold]) {
        for (index, hold) in holds.iter_mut().enumerate() {
            if let Place::Taken { mark, .. } = &mut hold.place {
                mark.move_back(self.before(index));
            }
        }
    }
}
