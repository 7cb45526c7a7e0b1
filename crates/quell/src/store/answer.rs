//! Answer: a store's answer for a set, and how it was reached.

use quell_core::decision::{Decision, Decisions};
use quell_core::time::Wall;

use super::Placed;

/// Decisions on a set, with further information for the caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The decisions, in the set's order.
    pub decisions: Decisions,
    /// The indices in the set of the charges that `decisions` are about, ascending; `None` means
    /// all.
    ///
    /// A cached refusal decides without asking the store, so nothing is known about the other
    /// limits.
    pub places: Option<Vec<usize>>,
    /// Time on the store's own clock, if it has one.
    pub store_time: Option<Wall>,
    /// True if permits are held, under the id that came with the charges.
    pub held: bool,
    /// True if the store could not be asked, and this is the declared answer.
    pub degraded: bool,
    /// True if a cached denial decided, and the store was not asked.
    pub cached: bool,
}

impl From<Decisions> for Answer {
    fn from(decisions: Decisions) -> Self {
        Self {
            decisions,
            ..Self::default()
        }
    }
}

impl From<Vec<Decision>> for Answer {
    fn from(decisions: Vec<Decision>) -> Self {
        Self::from(Decisions::from(decisions))
    }
}

impl From<Answer> for Placed {
    fn from(answer: Answer) -> Self {
        Self {
            decisions: answer.decisions.into_vec(),
            places: answer.places,
            held: answer.held,
            degraded: answer.degraded,
            ..Self::default()
        }
    }
}

impl From<Placed> for Answer {
    fn from(placed: Placed) -> Self {
        Self {
            places: placed.places,
            held: placed.held,
            degraded: placed.degraded,
            ..Self::from(placed.decisions)
        }
    }
}
