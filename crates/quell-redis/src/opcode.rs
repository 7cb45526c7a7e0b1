//! The first argument of a script call: the operation, and the clock.

use std::time::Duration;

use quell_core::adjustment::Adjustment;
use quell_core::time::{Now, Wall};

use crate::encode::{NONE, micros_up, number};

/// The shortest expiry of a state under the caller's clock, so that a key cannot expire before that clock
/// says so.
const MIN_GIVEN_EXPIRY: Duration = Duration::from_secs(600);

/// Clock that decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreClock {
    /// The store's, one for all servers. The caller's time is ignored.
    #[default]
    Own,
    /// The caller's, for tests; to the microsecond, rounded down. Real expiries are at least ten
    /// minutes.
    Caller,
}

/// The operation of a script call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opcode {
    Peek = 0,
    Acquire = 1,
    Forgive = 2,
    Ban = 3,
    Lift = 4,
    Carry = 5,
    Look = 6,
    Refund = 7,
    Claim = 8,
    End = 9,
    Advance = 10,
    LookUp = 11,
    Replace = 12,
    Pay = 13,
    Sync = 14,
    ListHolds = 15,
    GiveBack = 16,
    Adjust = 17,
}

impl StoreClock {
    /// The first argument of a script: the opcode, and the instants where they do not follow from the
    /// store's clock.
    pub(crate) fn head(self, opcode: Opcode, length: Duration, now: Now) -> Vec<u8> {
        let mut head = vec![opcode as u8];
        let is_short = !matches!(opcode, Opcode::Ban | Opcode::Refund | Opcode::Adjust);
        let length = number(micros_up(length));
        let micros = |nanos: u64| number(nanos / 1_000);
        match self {
            Self::Own if is_short => return head,
            Self::Own => head.extend_from_slice(&[NONE, NONE, number(0), length].concat()),
            Self::Caller => {
                let (mono, wall) = (now.monotonic.as_nanos(), now.wall.as_nanos());
                let least = number(self.min_expiry());
                head.extend_from_slice(&[micros(mono), micros(wall), least, length].concat());
            }
        }
        head
    }

    /// The first argument of a script that takes back what was charged at `charged` by the store's clock,
    /// until `until`.
    pub(crate) fn return_head(self, charged: Wall, until: Wall, now: Now) -> Vec<u8> {
        let mut head = self.head(Opcode::Refund, charged.since(Wall::ORIGIN), now);
        head.extend_from_slice(&number(until.as_nanos() / 1_000));
        head
    }

    /// The first argument of a script that adjusts what keys have used.
    pub(crate) fn adjust_head(self, adjustment: &Adjustment, now: Now) -> Vec<u8> {
        let mut head = self.head(Opcode::Adjust, Duration::ZERO, now);
        let (charged, ttl) = match &adjustment.reservation {
            Some(one) => (number(one.charged.as_nanos() / 1_000), one.ttl),
            None => (NONE, Duration::ZERO),
        };
        let units = number(adjustment.difference.unsigned_abs());
        let (more, less) = match adjustment.difference < 0 {
            true => (number(0), units),
            false => (units, number(0)),
        };
        head.extend_from_slice(&[charged, number(micros_up(ttl)), more, less].concat());
        head
    }

    /// The shortest expiry of a key, in milliseconds.
    pub(crate) const fn min_expiry(self) -> u64 {
        match self {
            Self::Own => 0,
            Self::Caller => MIN_GIVEN_EXPIRY.as_secs() * 1_000,
        }
    }
}
