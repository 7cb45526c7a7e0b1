//! Answer: what a store said of a set, and how it came to say so.

use quell_core::decision::{Decision, Decisions};
use quell_core::time::Wall;

use super::Placed;

/// Decisions on a set, with what a caller may want to know about them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The decisions, in the set's order.
    pub decisions: Decisions,
    /// The places in the set of the charges that `decisions` are about, ascending; `None`: all.
    ///
    /// A refusal that is remembered decides without asking, so nothing is known of the limits
    /// beside it.
    pub places: Option<Vec<usize>>,
    /// What the store's own clock said, if it has one.
    pub store_time: Option<Wall>,
    /// Whether permits are held, under the id that came with the charges.
    pub held: bool,
    /// Whether the store could not tell, and the answer is what was declared for that.
    pub degraded: bool,
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
