//! Strangers: members that a record which was restored from a backup does not know, or not as they are.
//!
//! A member may have joined since the backup, or follow a plan that was made since, and be cut off. So
//! after a restore no seat, weight or plan of the record says what a member may use. But all static
//! shares together are at most the limit, whatever happened since. So the whole limit is reserved; and
//! each member that is fenced says what its own static share is, which is reserved no longer, because
//! from then on it is counted by itself:
//!
//! ```text
//! reserved = R - sum of the static shares of members that were fenced
//! ```
//!
//! Example: four members have 250/s each of 1000/s; the record knows three of them, one of these by an
//! earlier start, and the fourth joined since the backup. Two are fenced, so 500/s are reserved. The
//! third is told that its start has no seat, gives up its 250/s and joins again, and says so. The last
//! 250/s stay reserved until an operator says that all were heard: whether somebody who has no seat
//! had any of it is known to nobody, and anybody with the credential of a node can say so.
//!
//! Time lowers nothing of it, although the static share of a member that is cut off falls to a tenth
//! after F. A tenth of the limit is not enough for all floors: while one member was on its floor others
//! may have been given the rest of its share, and then they may have been cut off, too. A fence or the
//! loss of a seat lowers nothing either: it says that the member has nothing, but not what others may
//! have had beside it. The price is that a member which was on its floor when it was fenced has no more
//! than that until the operator speaks.
//!
//! Grants begin when every lease of the time before is over, because leases may be of anybody's share.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::{Ledger, shared};
use crate::curve::{Holding, SentVersion};
use crate::effect::Effect;
use crate::message::{Hold, Join, Kept, Report, Response};
use crate::plan::{LimitId, MemberId, Record, Seat, part};
use crate::schedule::Right;

/// Parts of the limits that are reserved.
#[derive(Clone, Debug, Default)]
pub(super) struct UnheardMembers {
    /// One for each limit, in order, as it is part of the sums.
    reserved: Vec<Holding>,
    /// Members whose shares are counted by themselves.
    counted: BTreeSet<MemberId>,
}

impl Ledger {
    /// Reserves the whole of each limit, if the record was restored.
    pub(super) fn reserve_unheard(&mut self) {
        if self.record.restored.is_some() {
            self.unheard_members = Some(UnheardMembers::default());
        }
    }

    /// After the sums were made anew: what is reserved becomes part of them again. A limit that the
    /// record lacked may be one that was added since the backup: all of it is reserved.
    pub(super) fn add_unheard_members(&mut self) {
        let Some(unheard) = &mut self.unheard_members else {
            return;
        };
        let mut before = core::mem::take(&mut unheard.reserved)
            .into_iter()
            .peekable();
        for (at, limit) in self.limits.iter().enumerate() {
            while before.next_if(|reserved| reserved.limit < *limit).is_some() {}
            let known = before.next_if(|reserved| reserved.limit == *limit);
            let whole = || Holding::new(*limit, bound(self.record.whole(*limit)));
            let mut reserved = known.unwrap_or_else(whole);
            reserved.at = at;
            if let Some(horizon) = self.horizons.get_mut(at) {
                horizon.add(&reserved);
            }
            unheard.reserved.push(reserved);
        }
    }

    /// Lowers what is reserved by what a member has for certain, once for each member.
    fn count_by_itself(&mut self, now: u64, member: MemberId, has: &[(LimitId, Right)]) {
        let Some(unheard) = &mut self.unheard_members else {
            return;
        };
        if !unheard.counted.insert(member) {
            return;
        }
        for (limit, right) in has {
            let found = unheard
                .reserved
                .iter_mut()
                .find(|reserved| reserved.limit == *limit);
            let Some(reserved) = found else {
                continue;
            };
            let left = reserved.envelope().base;
            let left = Right {
                rate: left.rate.saturating_sub(right.rate),
                burst: left.burst.saturating_sub(right.burst),
            };
            if let Some(horizon) = self.horizons.get_mut(reserved.at) {
                horizon.advance(now);
                horizon.remove(reserved);
                reserved.versions = alloc::vec![bound(left)];
                horizon.add(reserved);
            }
        }
        self.dirty.fill(true);
    }

    /// A member that was fenced: what it holds is known.
    pub(super) fn count_fenced(&mut self, now: u64, member: MemberId) {
        let Some(account) = self.accounts.get(&member) else {
            return;
        };
        let has = account.holdings.iter().filter_map(|holding| {
            let version = holding.versions.first()?;
            Some((holding.limit, surely(version)))
        });
        let has: Vec<_> = has.collect();
        self.count_by_itself(now, member, &has);
    }

    /// A process that joined: what it has by its snapshot, or gave up because this leader asked it to.
    /// Units that it gave up for another leader may have been granted to others by that one.
    ///
    /// Anybody with the credential of a node can say so. So it is believed only of a member that had a
    /// seat before, and named its incarnation, and of no more than that seat had by any plan.
    pub(super) fn count_joined(&mut self, now: u64, join: &Join, before: Option<&Seat>) {
        let asked = join.gave_up.as_ref();
        let asked = asked.filter(|gave_up| gave_up.epoch == self.epoch);
        let kept: &[Kept] = asked.map_or(&join.floors, |gave_up| &gave_up.bases);
        let before = before.filter(|seat| seat.incarnation == join.replaces);
        let has = before.into_iter().flat_map(|seat| {
            let has =
                |kept: &Kept| same_part(kept.right, kept.whole, self.record.whole(kept.limit));
            let record = &self.record;
            kept.iter().map(move |kept| {
                let most = largest_base(record, seat, kept.limit);
                (kept.limit, has(kept).least(most))
            })
        });
        let has: Vec<_> = has.collect();
        self.count_by_itself(now, join.member, &has);
    }

    /// Converts what is reserved to the same part of a limit that was changed.
    pub(super) fn rescale_unheard(&mut self, before: &Record) {
        let unheard = self.unheard_members.iter_mut();
        for reserved in unheard.flat_map(|unheard| &mut unheard.reserved) {
            let limit = reserved.limit;
            reserved.rescale(before.whole(limit), self.record.whole(limit));
        }
    }

    /// Reserved part of a limit, in micro-units per second.
    pub(super) fn reserved(&self, at: usize) -> u64 {
        let unheard = self.unheard_members.as_ref();
        let reserved = unheard.and_then(|unheard| unheard.reserved.get(at));
        reserved.map_or(0, Holding::tail)
    }

    /// Returns true if grants have to wait for this member's own report: nothing is known of it that the
    /// record says.
    pub(super) fn must_be_fenced(&self, member: MemberId) -> bool {
        let account = self.accounts.get(&member);
        self.unheard_members.is_some() && account.is_some_and(|account| !account.fenced)
    }

    /// Tells a member without a seat of this epoch, so that it obeys no leader of the time before.
    pub(super) fn fence_stranger(&self, report: &Report, effects: &mut Vec<Effect>) -> bool {
        let waits = self.unheard_members.is_some() && !self.grants();
        if waits {
            let hold = Hold {
                incarnation: report.incarnation,
                epoch: self.epoch,
                seq: report.seq,
                record: self.record.version,
                promise: None,
            };
            effects.push(Effect::answer(report.member, Response::Hold(hold)));
        }
        waits
    }

    /// An operator said that all were heard: the others count by the record.
    pub(super) fn end_unheard(&mut self, now: u64) {
        if self.record.restored.is_some() || self.unheard_members.take().is_none() {
            return;
        }
        let unheard: Vec<_> = self.accounts.values().filter(|one| !one.fenced).collect();
        let unheard: Vec<(MemberId, Vec<Holding>)> = unheard
            .into_iter()
            .map(|one| (one.seat.member, self.unheard(&one.seat, now)))
            .collect();
        for (member, holdings) in unheard {
            if let Some(account) = self.accounts.get_mut(&member) {
                account.holdings = holdings;
            }
        }
    }
}

/// The same part of another limit.
fn same_part(right: Right, whole: Right, of: Right) -> Right {
    Right {
        rate: part(of.rate, right.rate, whole.rate.max(1)),
        burst: part(of.burst, right.burst, whole.burst.max(1)),
    }
}

/// The largest static share that any plan of the record gives a seat, as a part of the limit.
fn largest_base(record: &Record, seat: &Seat, limit: LimitId) -> Right {
    let (seat, of) = (seat.widest(), record.whole(limit));
    let bases = record.plans().filter_map(|plan| {
        let known = shared(plan, &seat, limit)?;
        let base = plan.right(known, plan.base(known, &seat));
        Some(same_part(base, known.whole(), of))
    });
    bases.fold(Right::NONE, Right::most)
}

/// Members that together have at most this, for ever.
fn bound(right: Right) -> SentVersion {
    SentVersion {
        gap: right,
        base: right,
        base_ends: u64::MAX,
        floor: right,
        floor_ends: u64::MAX,
        ..SentVersion::default()
    }
}

/// Certain right of a member to a limit, as a part of it. Bursts were rounded up.
fn surely(version: &SentVersion) -> Right {
    let right = match version.sure {
        0 => Right::NONE,
        sure if sure > version.floor.rate => version.base,
        _ => version.floor,
    };
    Right {
        rate: version.sure,
        burst: right.burst.saturating_sub(1),
    }
}
