//! Lease ledger: what one process charged, used and gave back, kept apart from the protocol.
//!
//! The bound `limit + n * cap` rests on one step: in any interval a process uses and gives back at most what
//! was charged for it in that interval, and `cap`, which it may have held when the interval began. This adds
//! up exactly that, from what the simulator saw: no count of the protocol is read.
//!
//! ```text
//! used + returned <= granted + cap        in any interval, for each start of each node
//! ```
//!
//! A grant counts when the store made it, even though the node hears of it later, and only if its answer was
//! that of the node's last request, which the node had not given up: other grants are forfeited.

/// Units that one process charged, used and gave back.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeaseLedger {
    /// The number of the request whose answer would be taken.
    open: Option<u64>,
    /// Time, units granted, and units used or given back.
    entries: Vec<(u64, u64, u64)>,
}

impl LeaseLedger {
    /// A request was sent; its answer is awaited, and no other.
    pub(crate) const fn note_request(&mut self, number: u64) {
        self.open = Some(number);
    }

    /// The node gave up.
    pub(crate) fn gave_up(&mut self, number: u64) {
        self.open.take_if(|open| *open == number);
    }

    /// The answer has come to what the store charged at `at`. Returns whether it was awaited.
    pub(crate) fn granted(&mut self, number: u64, at: u64, units: u64) -> bool {
        let is_open = self.open.take_if(|open| *open == number).is_some();
        if is_open {
            self.entries.push((at, units, 0));
        }
        is_open
    }

    /// Units of a lease were used, or the store took them back.
    pub(crate) fn used(&mut self, at: u64, units: u64) {
        self.entries.push((at, 0, units));
    }

    /// By how much `cap` was exceeded in the worst interval.
    pub(crate) fn close(self, cap: u64) -> u64 {
        let mut entries = self.entries;
        // A grant is made before it is used.
        entries.sort_by_key(|(at, granted, _)| (*at, *granted == 0));
        let (mut level, mut most) = (0_u64, 0);
        for (_, granted, used) in entries {
            level = level.saturating_sub(granted) + used;
            most = most.max(level);
        }
        most.saturating_sub(cap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Grants and uses at these instants; each grant is answered in its turn.
    fn excess(grants: &[(u64, u64)], uses: &[(u64, u64)]) -> u64 {
        let mut ledger = LeaseLedger::default();
        for (number, (at, units)) in (1..).zip(grants) {
            ledger.note_request(number);
            ledger.granted(number, *at, *units);
        }
        for (at, units) in uses {
            ledger.used(*at, *units);
        }
        ledger.close(10)
    }

    #[test]
    fn at_most_the_cap_is_used_beyond_what_was_granted_meanwhile() {
        assert_eq!(excess(&[(1, 10), (3, 10)], &[(2, 10), (4, 10)]), 0);
        // Twenty were held at 3.
        assert_eq!(excess(&[(1, 10), (2, 10)], &[(3, 20)]), 10);
        assert_eq!(excess(&[(1, 10), (2, 10)], &[(3, 8), (9, 5)]), 3);
    }

    #[test]
    fn a_grant_that_was_given_up_does_not_count() {
        let mut ledger = LeaseLedger::default();
        ledger.used(1, 8);
        ledger.note_request(1);
        ledger.gave_up(1);
        ledger.granted(1, 2, 10);
        ledger.used(3, 8);
        assert_eq!(ledger.close(10), 6);
    }
}
