//! A service in virtual time whose knee is known: a number of places, a queue in front of them, and
//! callers that ask a limit first.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use quell_core::end_hold::Ending;
use quell_core::limit::Limit;

use crate::bench::Bench;
use crate::holds::START;
use crate::kind::SECOND;

/// Time that a call needs if none is ahead of it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Needs {
    /// Always this long.
    Exactly(Duration),
    /// This long on average, exponentially distributed: a third of the calls need about a third of
    /// it or less.
    OnAverage(Duration),
}

/// Arrival pattern of the callers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Callers {
    /// More callers than are ever admitted, who ask again at every event.
    Always,
    /// One call at random intervals of this average length; a refused caller goes away.
    Every(Duration),
}

/// Measurements over some time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// Calls done, in percent of what the service can do.
    pub(super) done: u64,
    /// Average time of the calls, in percent of what they need.
    pub(super) took: u64,
    /// The ceiling on average, in hundredths of a permit, and its lowest and highest value.
    pub(super) ceiling: u64,
    pub(super) lowest: u64,
    pub(super) highest: u64,
    pub(super) refused: u64,
}

pub(super) struct Service {
    pub(super) bench: Bench,
    pub(super) places: u64,
    pub(super) needs: Needs,
    pub(super) callers: Callers,
    /// End, name and beginning of each call in service.
    served: BTreeSet<(u64, u64, u64)>,
    waits: VecDeque<(u64, u64)>,
    next_caller: u64,
    names: u64,
    random: u64,
    /// According to the last answer.
    ceiling: u64,
}

impl Service {
    pub(super) fn new(limit: Limit, places: u64, needs: Needs, seed: u64) -> Self {
        Self {
            bench: Bench::from_limit(limit, false, START, START),
            places,
            needs,
            callers: Callers::Always,
            served: BTreeSet::new(),
            waits: VecDeque::new(),
            next_caller: START,
            names: 0,
            random: seed,
            ceiling: 0,
        }
    }

    /// Runs for this many seconds.
    pub(super) fn run(&mut self, seconds: u64) -> Seen {
        let begin = self.bench.now;
        let end = begin + seconds * SECOND;
        let (mut done, mut took, mut area, mut refused) = (0_u64, 0_u64, 0_u128, 0_u64);
        let (mut lowest, mut highest) = (u64::MAX, 0);
        loop {
            refused += self.let_in();
            self.serve();
            let ceiling = self.ceiling;
            (lowest, highest) = (lowest.min(ceiling), highest.max(ceiling));
            let next = self.next().min(end);
            area += u128::from(ceiling) * u128::from(next - self.bench.now);
            self.bench.now = next;
            if next == end {
                break;
            }
            if let Some((over, name, asked)) = self.served.first().copied()
                && over <= next
            {
                self.served.pop_first();
                self.bench.end(name, Ending::Release);
                done += 1;
                took += next - asked;
            }
        }
        let (Needs::Exactly(need) | Needs::OnAverage(need)) = self.needs;
        let need = u64::try_from(need.as_nanos()).unwrap();
        let most = self.places * (end - begin) / need;
        Seen {
            done: done * 100 / most,
            took: took / done.max(1) * 100 / need,
            ceiling: u64::try_from(area * 100 / u128::from(end - begin)).unwrap(),
            lowest,
            highest,
            refused,
        }
    }

    fn next(&self) -> u64 {
        let over = self.served.first().map_or(u64::MAX, |(over, ..)| *over);
        match self.callers {
            Callers::Always => over,
            Callers::Every(_) => over.min(self.next_caller),
        }
    }

    /// Admits callers. Returns how many were refused.
    fn let_in(&mut self) -> u64 {
        match self.callers {
            Callers::Always => while self.ask() {},
            Callers::Every(gap) => {
                if self.bench.now >= self.next_caller {
                    self.next_caller = self.bench.now + self.at_random(gap).max(1);
                    return u64::from(!self.ask());
                }
            }
        }
        0
    }

    fn ask(&mut self) -> bool {
        self.names += 1;
        let claimed = self.bench.claim(self.names, 1, None, None);
        self.ceiling = claimed.decisions[0].limit;
        if !claimed.held[0] {
            return false;
        }
        self.waits.push_back((self.names, self.bench.now));
        true
    }

    fn serve(&mut self) {
        while (self.served.len() as u64) < self.places
            && let Some((name, asked)) = self.waits.pop_front()
        {
            let takes = match self.needs {
                Needs::Exactly(need) => u64::try_from(need.as_nanos()).unwrap(),
                Needs::OnAverage(need) => self.at_random(need),
            };
            self.served.insert((self.bench.now + takes, name, asked));
        }
    }

    /// Exponentially distributed.
    fn at_random(&mut self, mean: Duration) -> u64 {
        // SplitMix64.
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.random;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        let share = (((bits ^ (bits >> 31)) >> 11) as f64 + 1.0) / (1_u64 << 53) as f64;
        u64::try_from(mean.mul_f64(-share.ln()).as_nanos()).unwrap()
    }
}
