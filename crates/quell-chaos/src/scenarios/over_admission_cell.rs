//! The cells of one matrix: rung, number of servers, load, store and fault. The seed's number names one, so
//! that consecutive seeds walk through all of them in order.

use crate::redis::Extras;
use crate::rng::Rng;

/// The rung of the servers' rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rung {
    /// Servers charge in advance.
    Leased,
    /// Servers charge afterwards.
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

/// Algorithm of the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algorithm {
    /// A `token_bucket`.
    Bucket,
    /// A `fixed_window`: the minutes of the calendar.
    Window,
}

/// Offered load.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer {
    /// About how many times the limit.
    pub(super) times: u32,
    /// The limit of a bucket, per second.
    pub(super) rate: u32,
    /// Its burst: with calls twice the limit so small that they are soon too many.
    pub(super) burst: u32,
    /// The limit of a window: about what is offered during an attack, divided by `times`.
    pub(super) window: u32,
    /// The pause of each of the callers between two calls, in milliseconds.
    pub(super) pause: u64,
}

/// Three of these attacks on two processors make some 1,200 calls a second each, so the limits are as small as
/// their factors need.
const OFFERS: [Offer; 3] = [
    Offer {
        times: 10,
        rate: 120,
        burst: 400,
        window: 400,
        pause: 4,
    },
    Offer {
        times: 2,
        rate: 160,
        burst: 100,
        window: 700,
        pause: 20,
    },
    Offer {
        times: 40,
        rate: 28,
        burst: 100,
        window: 100,
        pause: 4,
    },
];

/// Fault under load.
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

/// Buckets hold so many seconds of their rate where a store is gone for seconds: they would be full again when it
/// is back, and nothing that is granted twice would be seen.
const LASTING: u32 = 5;

/// Stores, and what happens to them and to their servers. The orders differ, so that two scenarios with one seed
/// try different ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matrix {
    faults: &'static [Fault],
    stores: &'static [&'static str],
    rungs: [Rung; 2],
    servers: [usize; 2],
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
    servers: [8, 2],
};

pub(super) const WITH_REPLICAS: Matrix = Matrix {
    faults: &[
        Fault::Dies,
        Fault::Lags,
        Fault::Hangs,
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
    stores: &["cluster", "sentinel"],
    rungs: [Rung::Synced, Rung::Leased],
    servers: [2, 8],
};

impl Matrix {
    fn cells(&self) -> u64 {
        let loads = self.rungs.len() * OFFERS.len() * self.servers.len();
        let cells = self.faults.len() * self.stores.len() * loads;
        u64::try_from(cells).unwrap_or(u64::MAX)
    }
}

/// Attempt of one seed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    pub(super) fault: Fault,
    pub(super) store: &'static str,
    pub(super) rung: Rung,
    pub(super) servers: usize,
    pub(super) algorithm: Algorithm,
    pub(super) offer: Offer,
    /// Number of the cell, and of all cells.
    number: u64,
    of: u64,
}

impl Cell {
    /// The cell of a seed. Faults change fastest.
    pub(super) fn new(rng: &Rng, matrix: &Matrix) -> Self {
        let of = matrix.cells();
        let number = rng.seed() % of;
        let mut rest = usize::try_from(number).unwrap_or(0);
        let mut next = |count: usize| {
            let place = rest % count;
            rest /= count;
            place
        };
        let fault = matrix.faults[next(matrix.faults.len())];
        let store = matrix.stores[next(matrix.stores.len())];
        let places = [2, OFFERS.len(), 2].map(next);
        let [rung, offer, servers] = places;
        let mut offer = OFFERS[offer];
        let is_gone = fault.is_fail_over() || (fault, store) == (Fault::StartedEmpty, "cluster");
        // The calendar is that of a clock that nobody sets.
        let algorithm = match places.iter().sum::<usize>() % 2 {
            1 if fault != Fault::ClockSteps => Algorithm::Window,
            _ => Algorithm::Bucket,
        };
        if is_gone {
            offer.burst = offer.rate * LASTING;
        }
        Self {
            fault,
            store,
            rung: matrix.rungs[rung],
            servers: matrix.servers[servers],
            algorithm,
            offer,
            number,
            of,
        }
    }

    /// Options with which its store is started.
    pub(super) fn extras(&self) -> Extras {
        Extras {
            clocks: self.fault == Fault::ClockSteps,
            proxies: self.fault == Fault::AnswersLost,
        }
    }
}

impl Fault {
    /// Returns true if another server takes over from the primary.
    pub(super) const fn is_fail_over(self) -> bool {
        matches!(self, Self::Hangs | Self::Dies | Self::Lags)
    }
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            number, of, store, ..
        } = self;
        let (rung, servers, times) = (self.rung.name(), self.servers, self.offer.times);
        let (fault, algorithm) = (self.fault, self.algorithm);
        write!(
            f,
            "cell {number} of {of}: {store}, {rung}, {servers} servers, {times} times the limit, {algorithm:?}, {fault:?}"
        )
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn consecutive_seeds_walk_through_the_whole_matrix() {
        for (matrix, all) in [(ON_REDIS, 9 * 12), (WITH_REPLICAS, 12 * 2 * 12)] {
            assert_eq!(matrix.cells(), all);
            let cell = |seed| {
                let cell = Cell::new(&Rng::new(seed), &matrix);
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
