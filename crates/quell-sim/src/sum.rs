//! Sum: what all members together may use of one limit, from now on, in true time.
//!
//! Every member has a curve: rates with the instants at which they begin. The sum is kept as steps
//! in order of time, in blocks. Each block knows its total and its highest point, so a change
//! touches a few blocks, and a search through all later instants reads one number per block. For n
//! members a change costs about the root of n; with a plain list a round of reports would cost n
//! times n.

/// The most steps in a block; a larger one is split.
const BLOCK: usize = 96;

#[derive(Clone, Debug, Default)]
struct Block {
    steps: Vec<(u64, i64)>,
    /// The sum of all its steps.
    total: i64,
    /// The highest sum of its first steps; negative if even the first step lowers the rate.
    highest: i64,
    /// True if `total` and `highest` are up to date with `steps`.
    known: bool,
}

impl Block {
    fn new(steps: Vec<(u64, i64)>) -> Self {
        Self {
            steps,
            ..Self::default()
        }
    }

    fn look(&mut self) {
        if self.known {
            return;
        }
        (self.total, self.highest, self.known) = (0, i64::MIN, true);
        for (_, step) in &self.steps {
            self.total += step;
            self.highest = self.highest.max(self.total);
        }
    }
}

/// The sum over all members.
#[derive(Clone, Debug)]
pub struct Sum {
    now: u64,
    base: i64,
    /// No block is empty.
    blocks: Vec<Block>,
    curves: Vec<Vec<(u64, u64)>>,
}

fn signed(rate: u64) -> i64 {
    i64::try_from(rate).unwrap_or(i64::MAX)
}

impl Sum {
    /// A sum in which no member may use anything.
    #[must_use]
    pub fn new(members: usize) -> Self {
        Self {
            now: 0,
            base: 0,
            blocks: Vec::new(),
            curves: vec![Vec::new(); members],
        }
    }

    /// Replaces a member's curve from now on: rates with the instants at which they begin.
    pub fn set(&mut self, now: u64, member: usize, curve: &[(u64, u64)]) {
        self.advance(now);
        let mut curves = std::mem::take(&mut self.curves);
        self.shift(&curves[member], -1);
        self.shift(curve, 1);
        curves[member].clear();
        curves[member].extend_from_slice(curve);
        self.curves = curves;
    }

    fn shift(&mut self, curve: &[(u64, u64)], sign: i64) {
        let mut before = 0;
        for (from, rate) in curve {
            let step = sign * (signed(*rate) - before);
            before = signed(*rate);
            if *from <= self.now {
                self.base += step;
            } else if step != 0 {
                self.step(*from, step);
            }
        }
    }

    fn step(&mut self, at: u64, step: i64) {
        let after = |block: &Block| block.steps.first().is_none_or(|(first, _)| *first <= at);
        let index = self.blocks.partition_point(after).saturating_sub(1);
        let Some(block) = self.blocks.get_mut(index) else {
            self.blocks.push(Block::new(vec![(at, step)]));
            return;
        };
        block.known = false;
        match block.steps.binary_search_by_key(&at, |(at, _)| *at) {
            Ok(found) => {
                block.steps[found].1 += step;
                if block.steps[found].1 == 0 {
                    block.steps.remove(found);
                }
            }
            Err(place) => block.steps.insert(place, (at, step)),
        }
        if block.steps.is_empty() {
            self.blocks.remove(index);
        } else if block.steps.len() > BLOCK {
            let rest = block.steps.split_off(BLOCK / 2);
            self.blocks.insert(index + 1, Block::new(rest));
        }
    }

    fn advance(&mut self, now: u64) {
        self.now = self.now.max(now);
        while let Some(block) = self.blocks.first_mut() {
            let over = block.steps.partition_point(|(at, _)| *at <= self.now);
            if over == 0 {
                return;
            }
            self.base += block.steps.drain(..over).map(|(_, step)| step).sum::<i64>();
            block.known = false;
            if !block.steps.is_empty() {
                return;
            }
            self.blocks.remove(0);
        }
    }

    /// The first instant from now on at which the sum exceeds `bound`, and the sum there.
    pub fn above(&mut self, bound: u64) -> Option<(u64, u64)> {
        let bound = signed(bound);
        let mut sum = self.base;
        if sum > bound {
            return Some((self.now, u64::try_from(sum).unwrap_or(0)));
        }
        for block in &mut self.blocks {
            block.look();
            if sum + block.highest <= bound {
                sum += block.total;
                continue;
            }
            for (at, step) in &block.steps {
                sum += step;
                if sum > bound {
                    return Some((*at, u64::try_from(sum).unwrap_or(0)));
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// The same answer as `above`, found by looking at every instant.
    fn plainly(curves: &[Vec<(u64, u64)>], now: u64, bound: u64) -> Option<(u64, u64)> {
        let mut looks: Vec<u64> = curves.iter().flatten().map(|(at, _)| *at).collect();
        looks.push(now);
        looks.retain(|at| *at >= now);
        looks.sort_unstable();
        looks.into_iter().find_map(|at| {
            let rate = |curve: &Vec<(u64, u64)>| {
                let held = curve.iter().rev().find(|(from, _)| *from <= at);
                held.map_or(0, |(_, rate)| *rate)
            };
            let sum = curves.iter().map(rate).sum();
            (sum > bound).then_some((at, sum))
        })
    }

    #[test]
    fn the_sum_is_what_a_look_everywhere_says() {
        let mut rng = Rng::new(5);
        let members = 150;
        let mut sum = Sum::new(members);
        let mut curves = vec![Vec::new(); members];
        let (mut above, mut now) = (0, 0);
        for _ in 0..3_000 {
            now += rng.between(0, 20);
            let member = rng.index(members);
            let mut at = now;
            let curve: Vec<(u64, u64)> = (0..rng.between(0, 5))
                .map(|_| {
                    let from = at;
                    at += rng.between(1, 900);
                    (from, rng.between(0, 100))
                })
                .collect();
            sum.set(now, member, &curve);
            curves[member] = curve;
            for bound in [2_000, 6_000, 7_000, 7_500] {
                let found = sum.above(bound);
                assert_eq!(found, plainly(&curves, now, bound));
                above += usize::from(found.is_some());
            }
        }
        assert!(above > 100 && above < 11_900, "{above}");
    }
}
