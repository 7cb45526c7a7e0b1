//! Rehearsal: what a copy of a state will say at instants to come, if nothing else is asked.

use core::time::Duration;

use crate::algorithm::{At, Engine, Mechanics};
use crate::decision::{Outcome, RetryAfter};
use crate::state::Usage;
use crate::time::Monotonic;

/// Steps of a rehearsal before it is content with an instant that may be later than need be: each
/// is a hold that ends or a wait that an algorithm asks for.
const MAX_STEPS: usize = 4 * super::MAX_HOLDS;

/// A state that is led on in time.
#[derive(Debug)]
pub(crate) struct Rehearsal<'a> {
    engine: &'a Engine,
    usage: Usage,
    at: At,
    cost: u64,
}

/// What one limit says at an instant.
enum Fit {
    Now,
    Later(Monotonic),
    Never,
}

impl<'a> Rehearsal<'a> {
    /// Begins with a settled `usage` at `at`.
    pub(crate) const fn new(engine: &'a Engine, usage: Usage, at: At, cost: u64) -> Self {
        Self {
            engine,
            usage,
            at,
            cost,
        }
    }

    /// When the last of those who wait has gone.
    fn line_end(&self) -> Monotonic {
        match &self.usage {
            Usage::Held(held) => held.line_end(),
            _ => Monotonic::ORIGIN,
        }
    }

    fn fit(&mut self, instant: Monotonic) -> Fit {
        let at = self.at.moved_to(instant);
        self.engine.settle(&mut self.usage, &at);
        let (usage, next) = match &self.usage {
            Usage::Held(held) => (&held.usage, held.next_due()),
            usage => (usage, None),
        };
        match self.engine.check(usage, &at, self.cost) {
            Outcome::Allow => Fit::Now,
            Outcome::Deny(_) if !self.engine.can_ever(self.cost) => Fit::Never,
            Outcome::Deny(RetryAfter::Never) => next.map_or(Fit::Never, Fit::Later),
            Outcome::Deny(RetryAfter::After(wait)) => {
                let later = instant.saturating_add(wait);
                Fit::Later(next.map_or(later, |next| next.min(later)))
            }
        }
    }

    /// The first instant from `now` on at which all of `set` fit, behind all who wait, and the
    /// longest delay that one of them then asks for; `None` if they never fit.
    pub(super) fn first_fit(set: &mut [Self], now: Monotonic) -> Option<(Monotonic, Duration)> {
        let ends = set.iter().map(Self::line_end);
        let mut instant = ends.fold(now, Ord::max);
        for _ in 0..MAX_STEPS {
            let mut later = instant;
            for one in &mut *set {
                match one.fit(instant) {
                    Fit::Now => {}
                    Fit::Later(than) => later = later.max(than),
                    Fit::Never => return None,
                }
            }
            if later == instant {
                break;
            }
            instant = later;
        }
        let at = |one: &Self| one.engine.delay(&one.usage, &one.at.moved_to(instant));
        let delay = set.iter().map(at).max();
        Some((instant, delay.unwrap_or_default()))
    }
}
