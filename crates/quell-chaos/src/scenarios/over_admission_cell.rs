//! The cells of one matrix: rung, number of servers, load, store and fault. The seed's number names one, so
//! that consecutive seeds walk through all of them in order.

use crate::rng::Rng;

/// The rung of the servers' rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rung {
    /// They charge in advance.
    Leased,
    /// They charge afterwards.
    Synced,
}

impl Rung {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Leased => "leased",
            Self::Synced => "synced",
        }
    }
}

/// How much is offered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer {
    /// About how many times the limit.
    pub(super) times: u32,
    /// The limit, per second.
    pub(super) rate: u32,
    /// Its burst: with calls twice the limit so small that they are soon too many.
    pub(super) burst: u32,
    /// The pause of each of the callers between two calls, in milliseconds.
    pub(super) pause: u64,
}

/// A machine that is shared makes some 2,000 calls a second at best, so 40 times the limit is offered to a
/// smaller one.
const OFFERS: [Offer; 3] = [
    Offer {
        times: 10,
        rate: 200,
        burst: 400,
        pause: 4,
    },
    Offer {
        times: 2,
        rate: 200,
        burst: 100,
        pause: 20,
    },
    Offer {
        times: 40,
        rate: 50,
        burst: 100,
        pause: 4,
    },
];

/// What happens under load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// A server is paused, the store frozen, another server killed, and the store emptied.
    Several,
    /// A server stands still for longer than its leases last.
    Paused,
    /// The store stands still.
    Frozen,
    /// The store executes what it is told, and its answers are lost.
    AnswersLost,
    /// A server is killed and started again.
    Killed,
    /// A server leaves, and another one joins.
    Replaced,
    /// The store is emptied.
    Emptied,
    /// The store is killed and starts empty.
    StartedEmpty,
    /// The store's clock is set ahead, and back again.
    ClockSteps,
    /// The primary hangs, and a replica takes over.
    Hangs,
    /// The primary is killed, and a replica takes over.
    Dies,
    /// The same, and the replica lacks what was charged last.
    Lags,
}

/// Stores, and what happens to them and to their servers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matrix {
    faults: &'static [Fault],
    stores: &'static [&'static str],
    /// In this order, so that two scenarios with one seed try different ones.
    rungs: [Rung; 2],
}

pub(super) const ON_REDIS: Matrix = Matrix {
    faults: &[
        Fault::StartedEmpty,
        Fault::Several,
        Fault::Paused,
        Fault::Frozen,
        Fault::AnswersLost,
        Fault::Killed,
        Fault::Replaced,
        Fault::Emptied,
        Fault::ClockSteps,
    ],
    stores: &["redis"],
    rungs: [Rung::Leased, Rung::Synced],
};

pub(super) const WITH_REPLICAS: Matrix = Matrix {
    faults: &[
        Fault::Dies,
        Fault::Lags,
        Fault::Hangs,
        Fault::Paused,
        Fault::Frozen,
        Fault::Killed,
        Fault::Replaced,
        Fault::Emptied,
    ],
    stores: &["sentinel", "cluster"],
    rungs: [Rung::Synced, Rung::Leased],
};

impl Matrix {
    fn cells(&self) -> u64 {
        let cells = self.faults.len() * self.stores.len() * self.rungs.len() * OFFERS.len() * 2;
        u64::try_from(cells).unwrap_or(u64::MAX)
    }
}

/// What is tried with one seed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    pub(super) fault: Fault,
    pub(super) store: &'static str,
    pub(super) rung: Rung,
    pub(super) servers: usize,
    pub(super) offer: Offer,
    /// Which cell it is, and of how many.
    number: u64,
    of: u64,
}

impl Cell {
    /// The cell of a seed. Faults change fastest.
    pub(super) fn of(rng: &Rng, matrix: &Matrix) -> Self {
        let of = matrix.cells();
        let number = rng.seed() % of;
        let mut rest = usize::try_from(number).unwrap_or(0);
        let mut next = |count: usize| {
            let place = rest % count;
            rest /= count;
            place
        };
        Self {
            fault: matrix.faults[next(matrix.faults.len())],
            store: matrix.stores[next(matrix.stores.len())],
            rung: matrix.rungs[next(2)],
            offer: OFFERS[next(OFFERS.len())],
            servers: [2, 8][next(2)],
            number,
            of,
        }
    }
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            number, of, store, ..
        } = self;
        let (rung, servers, times) = (self.rung.name(), self.servers, self.offer.times);
        let fault = self.fault;
        write!(
            f,
            "cell {number} of {of}: {store}, {rung}, {servers} servers, {times} times the limit, {fault:?}"
        )
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn consecutive_seeds_walk_through_the_whole_matrix() {
        for (matrix, all) in [(ON_REDIS, 9 * 12), (WITH_REPLICAS, 8 * 2 * 12)] {
            assert_eq!(matrix.cells(), all);
            let cell = |seed| {
                let cell = Cell::of(&Rng::new(seed), &matrix);
                let Offer { times, .. } = cell.offer;
                format!(
                    "{:?}",
                    (cell.fault, cell.store, cell.rung, cell.servers, times)
                )
            };
            let seen: BTreeSet<String> = (77..77 + all).map(cell).collect();
            assert_eq!(seen.len() as u64, all);
            assert_eq!(cell(5), cell(5 + all));
        }
    }
}
