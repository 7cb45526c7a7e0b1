//! Fixtures of the tests of plans and leaders.

use quell_shares::plan::{Fallback, Limit, MICRO, Plan, Quota, ReturnSeats, Size, Sizing, Timing};

/// A limit of so many units per second, with a burst of as many, for so many members of weight 1.
pub(crate) fn plan(rate: u64, seats: u32, sizing: Sizing) -> Plan {
    let quota = Quota {
        rate: rate * MICRO,
        burst: rate * MICRO,
        least_burst: MICRO,
        fallback: Fallback::Share,
    };
    Plan {
        revision: 1,
        limits: vec![Limit::new("api", quota)],
        size: Size {
            total_weight: seats.into(),
            seats,
            sizing,
        },
        groups: Vec::new(),
        timing: Timing::DEFAULT,
        return_seats: ReturnSeats::Never,
        rules: None,
    }
}
