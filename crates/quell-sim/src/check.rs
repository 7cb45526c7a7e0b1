//! Checks: what must hold after every event, whatever happened before it.

use std::collections::BTreeMap;

use quell_core::fleet::audit::Auditor;
use quell_core::fleet::plan::{Drift, Quota};
use quell_core::time::Monotonic;

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// True time in nanoseconds.
    pub at: u64,
    /// Which promise.
    pub promise: &'static str,
    /// What was seen.
    pub text: String,
}

/// What all members may use of one limit, from now to the end of time, in true time.
#[derive(Clone, Debug)]
pub struct Sum {
    now: u64,
    base: i64,
    steps: BTreeMap<u64, i64>,
    curves: Vec<Vec<(u64, u64)>>,
}

fn signed(rate: u64) -> i64 {
    i64::try_from(rate).unwrap_or(i64::MAX)
}

impl Sum {
    /// Nobody may use anything.
    #[must_use]
    pub fn new(members: usize) -> Self {
        Self {
            now: 0,
            base: 0,
            steps: BTreeMap::new(),
            curves: vec![Vec::new(); members],
        }
    }

    fn shift(&mut self, member: usize, sign: i64) {
        let mut before = 0;
        for (from, rate) in &self.curves[member] {
            let step = sign * (signed(*rate) - before);
            before = signed(*rate);
            if *from <= self.now {
                self.base += step;
            } else {
                *self.steps.entry(*from).or_default() += step;
            }
        }
    }

    /// From now on a member follows this curve: rates with the instants at which they begin.
    pub fn set(&mut self, now: u64, member: usize, curve: &[(u64, u64)]) {
        self.advance(now);
        self.shift(member, -1);
        self.curves[member].clear();
        self.curves[member].extend_from_slice(curve);
        self.shift(member, 1);
    }

    fn advance(&mut self, now: u64) {
        self.now = self.now.max(now);
        while let Some(entry) = self.steps.first_entry() {
            if *entry.key() > self.now {
                break;
            }
            self.base += entry.remove();
        }
    }

    /// The highest sum at any instant from now on, and the first instant of it that exceeds
    /// `bound`.
    #[must_use]
    pub fn above(&self, bound: u64) -> Option<(u64, u64)> {
        let mut sum = self.base;
        let wrong = |at: u64, sum: i64| {
            (sum > signed(bound)).then(|| (at, u64::try_from(sum).unwrap_or(0)))
        };
        if let Some(wrong) = wrong(self.now, sum) {
            return Some(wrong);
        }
        for (at, step) in &self.steps {
            sum += step;
            if let Some(wrong) = wrong(*at, sum) {
                return Some(wrong);
            }
        }
        None
    }

    /// What all may use now.
    #[must_use]
    pub fn now(&self) -> u64 {
        u64::try_from(self.base).unwrap_or(0)
    }
}

/// S1 and S2 of one limit.
#[derive(Clone, Debug)]
pub struct Judge {
    /// The curves of all members.
    pub sum: Sum,
    auditor: Auditor,
    bound: Quota,
}

/// Clocks are read in whole nanoseconds; a thousandth of a unit covers what that rounds.
const ROUNDING: u64 = 1_000;

impl Judge {
    /// A judge of a limit at rest.
    #[must_use]
    pub fn new(quota: Quota, members: usize, drift: Drift) -> Self {
        Self {
            sum: Sum::new(members),
            auditor: Auditor::new(quota.rate, quota.burst, drift, Monotonic::ORIGIN),
            bound: quota,
        }
    }

    /// The largest rate and burst that anybody may follow from now on.
    pub fn change(&mut self, now: u64, bound: Quota) {
        if bound != self.bound {
            self.bound = bound;
            self.auditor
                .change(Monotonic::from_nanos(now), bound.rate, bound.burst);
        }
    }

    /// S1: at no later instant may members use more than the limit.
    #[must_use]
    pub fn rates(&self, now: u64) -> Option<Violation> {
        let (at, sum) = self.sum.above(self.bound.rate)?;
        Some(Violation {
            at: now,
            promise: "S1",
            text: format!(
                "members may use {}.{:03}/s of {}/s in {} ms",
                sum / 1_000_000,
                sum / 1_000 % 1_000,
                self.bound.rate / 1_000_000,
                (at - now.min(at)) / 1_000_000
            ),
        })
    }

    /// S2: over no interval of length t are more than B + R(1+rho)t admitted.
    pub fn admit(&mut self, now: u64, cost: u64) -> Option<Violation> {
        let excess = self.auditor.admit(Monotonic::from_nanos(now), cost)?;
        (excess > ROUNDING).then(|| Violation {
            at: now,
            promise: "S2",
            text: format!(
                "{}.{:03} units too many",
                excess / 1_000_000,
                excess / 1_000 % 1_000
            ),
        })
    }
}
