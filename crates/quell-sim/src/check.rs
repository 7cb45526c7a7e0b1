//! Checks: what must hold after every event, whatever happened before it.

use quell_core::time::Monotonic;
use quell_shares::audit::Auditor;
use quell_shares::plan::{Drift, Quota};

use crate::sum::Sum;

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// True time in nanoseconds.
    pub at: u64,
    /// Name of the broken promise.
    pub promise: &'static str,
    /// Text of the finding.
    pub text: String,
}

/// Checks S1, S2 and the sum of parts for one limit.
#[derive(Clone, Debug)]
pub struct Judge {
    /// The rates of all members.
    sum: Sum,
    /// The same as parts of the plan that each member follows.
    parts: Sum,
    auditor: Auditor,
    bound: Quota,
}

/// All of a limit, in billionths.
const WHOLE: u64 = 1_000_000_000;

/// Clocks show whole nanoseconds; a thousandth of a unit covers the rounding that this
/// causes.
const ROUNDING: u64 = 1_000;

impl Judge {
    /// A judge of a limit at rest.
    #[must_use]
    pub fn new(quota: Quota, members: usize, drift: Drift) -> Self {
        Self {
            sum: Sum::new(members),
            parts: Sum::new(members),
            auditor: Auditor::new(quota.rate, quota.burst, drift, Monotonic::ORIGIN),
            bound: quota,
        }
    }

    /// Sets the largest rate and burst that any member may follow from now on.
    pub fn change(&mut self, now: u64, bound: Quota) {
        if bound != self.bound {
            self.bound = bound;
            self.auditor
                .change(Monotonic::from_nanos(now), bound.rate, bound.burst);
        }
    }

    /// Replaces what a member may use: rates with the instants at which they begin. `whole` is the
    /// rate of the limit by the plan that the member follows, if that plan is known and has it.
    pub fn follow(
        &mut self,
        now: u64,
        member: usize,
        curve: &mut [(u64, u64)],
        whole: Option<u64>,
    ) {
        self.sum.set(now, member, curve);
        let whole = whole.unwrap_or(self.bound.rate).max(1);
        for (_, rate) in &mut *curve {
            let part = u128::from(*rate) * u128::from(WHOLE) / u128::from(whole);
            *rate = u64::try_from(part).unwrap_or(u64::MAX);
        }
        self.parts.set(now, member, curve);
    }

    /// S1 for members that follow different plans: at no instant from now on may the parts that they
    /// use, each of the limit of its own plan, be more than the whole.
    pub fn parts(&mut self, now: u64) -> Option<Violation> {
        let (at, sum) = self.parts.above(WHOLE)?;
        Some(Violation {
            at: now,
            promise: "S1",
            text: format!(
                "parts sum to {}.{:06} in {} ms",
                sum / WHOLE,
                sum % WHOLE / 1_000,
                (at - now.min(at)) / 1_000_000
            ),
        })
    }

    /// S1: at no instant from now on may the members together use more than the limit.
    pub fn rates(&mut self, now: u64) -> Option<Violation> {
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

    /// S2: in no interval of length t are more than B + R(1+rho)t admitted.
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
