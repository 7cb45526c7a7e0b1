//! Strangers: members that a record which was restored from a backup does not know, or not as they are.
//!
//! A member may have joined since the backup, or follow a plan that was made since, and be cut off. So
//! after a restore no seat, weight or plan of the record says what a member may use. But all static
//! shares together are at most the limit, whatever happened since. So the whole limit is set aside; and
//! each member that is fenced says what its own static share is, which is set aside no longer, because
//! from then on it is counted by itself:
//!
//! ```text
//! set aside = R - sum of the static shares of members that were fenced
//! ```
//!
//! Example: four members have 250/s each of 1000/s; the record knows two of them, and one of the others
//! is cut off. Two are fenced, so 500/s are set aside. The third is told that it has no seat, gives up
//! its 250/s and joins again, and says so. The last 250/s stay aside until F; then they are the floor
//! of a static share, and at most a tenth of the limit stays aside until an operator says that there
//! are no strangers. This tenth is all floors together, so the floor of a member that is fenced later
//! is not taken from it; and it is not enough for members that weigh more than the plan says:
//!
//! ```text
//! set aside after F = min(as above, max(R / 10, sum of the floors of seats that were not fenced))
//! ```
//!
//! Grants begin when every lease of the time before is over, because leases may be of anybody's share.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use quell_core::time::saturating_nanos;

use super::{GRAIN, Ledger};
use crate::curve::{Holding, Version};
use crate::errs;
use crate::leader::Effect;
use crate::message::{Hold, Join, Kept, Report, Response};
use crate::plan::{FLOOR_PART, LimitId, MemberId, Record, part, same_part};
use crate::schedule::Right;

/// What is set aside.
#[derive(Clone, Debug)]
pub(super) struct Strangers {
    /// One for each limit, in order.
    aside: Vec<Aside>,
    /// Members whose shares are counted by themselves.
    counted: BTreeSet<MemberId>,
    /// When static shares of the time before have become floors.
    ends: u64,
    /// Whether they are set aside as floors.
    fallen: bool,
}

/// What is set aside of one limit.
#[derive(Clone, Debug)]
struct Aside {
    limit: LimitId,
    /// What members that were fenced leave of the limit.
    left: Right,
    /// The most that strangers can have, in micro-units per second.
    most: u64,
    /// The lesser of both, as it is part of the sums.
    holding: Holding,
}

impl Ledger {
    /// Sets the whole of each limit aside, if the record was restored.
    pub(super) fn set_aside(&mut self, quiet_until: u64) {
        let Some(restored) = self.record.restored else {
            return;
        };
        if errs!(self, ForgetStrangers) {
            return;
        }
        let holds = self.record.plans().map(|plan| plan.timing.hold);
        let hold = holds.fold(restored.hold, Ord::max);
        let hold = self.drift.longest(saturating_nanos(hold));
        self.strangers = Some(Strangers {
            aside: Vec::new(),
            counted: BTreeSet::new(),
            ends: quiet_until.saturating_add(hold).saturating_add(GRAIN),
            fallen: false,
        });
    }

    /// After the sums were made anew: what is set aside becomes part of them again.
    pub(super) fn add_strangers(&mut self, now: u64) {
        let Some(mut strangers) = self.strangers.take() else {
            return;
        };
        strangers.fallen = now >= strangers.ends;
        let floors = strangers.fallen.then(|| self.floors_of_unheard(now));
        let before = core::mem::take(&mut strangers.aside);
        for (at, limit) in self.limits.iter().enumerate() {
            let known = before.iter().find(|aside| aside.limit == *limit);
            let whole = self.record.whole(*limit);
            let left = known.map_or(whole, |aside| aside.left);
            let mut aside = Aside {
                limit: *limit,
                left,
                most: floors.as_ref().map_or(whole.rate, |floors| {
                    whole.rate.div_ceil(FLOOR_PART).max(floors[at])
                }),
                holding: Holding {
                    at,
                    ..Holding::of(*limit, Version::default())
                },
            };
            aside.holding.versions = aside.versions();
            if let Some(horizon) = self.horizons.get_mut(at) {
                horizon.add(&aside.holding);
            }
            strangers.aside.push(aside);
        }
        self.strangers = Some(strangers);
    }

    /// For each limit, the floors of members that were not fenced, by the record. While there are
    /// strangers in the ledger it counts none, so they must be taken out.
    fn floors_of_unheard(&self, now: u64) -> Vec<u64> {
        let mut sums = alloc::vec![0_u64; self.limits.len()];
        for account in self.accounts.values().filter(|one| !one.fenced) {
            for (sum, holding) in sums.iter_mut().zip(self.unheard(&account.seat, now)) {
                let floors = holding.versions.iter().map(|version| version.floor.rate);
                *sum = sum.saturating_add(floors.sum());
            }
        }
        sums
    }

    /// Lowers what is set aside by what a member has for certain, once for each member.
    fn count_by_itself(&mut self, now: u64, member: MemberId, has: &[(LimitId, Right)]) {
        let Some(strangers) = &mut self.strangers else {
            return;
        };
        if !strangers.counted.insert(member) {
            return;
        }
        for (limit, right) in has {
            let found = strangers
                .aside
                .iter_mut()
                .find(|aside| aside.limit == *limit);
            let Some(aside) = found else {
                continue;
            };
            aside.left.rate = aside.left.rate.saturating_sub(right.rate);
            aside.left.burst = aside.left.burst.saturating_sub(right.burst);
            if let Some(horizon) = self.horizons.get_mut(aside.holding.at) {
                horizon.advance(now);
                horizon.remove(&aside.holding);
                aside.holding.versions = aside.versions();
                horizon.add(&aside.holding);
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
    /// What it gave up for another leader may have been granted to others by that one.
    pub(super) fn count_joined(&mut self, now: u64, join: &Join) {
        let asked = join.gave_up.as_ref();
        let asked = asked.filter(|gave_up| gave_up.epoch == self.epoch);
        let kept: &[Kept] = asked.map_or(&join.floors, |gave_up| &gave_up.bases);
        let has = kept.iter().map(|kept| {
            let of = self.record.whole(kept.limit);
            let rate = part(of.rate, kept.right.rate, kept.whole.rate.max(1));
            let burst = part(of.burst, kept.right.burst, kept.whole.burst.max(1));
            (kept.limit, Right { rate, burst })
        });
        let has: Vec<_> = has.collect();
        self.count_by_itself(now, join.member, &has);
    }

    /// Converts what is set aside to the same part of a limit that was changed.
    pub(super) fn rescale_strangers(&mut self, before: &Record) {
        let strangers = self.strangers.iter_mut();
        for aside in strangers.flat_map(|strangers| &mut strangers.aside) {
            let (was, is) = (before.whole(aside.limit), self.record.whole(aside.limit));
            aside.left.rate = same_part(aside.left.rate, was.rate, is.rate);
            aside.left.burst = same_part(aside.left.burst, was.burst, is.burst);
        }
    }

    /// What is set aside of a limit, in micro-units per second.
    pub(super) fn aside(&self, at: usize) -> u64 {
        let strangers = self.strangers.as_ref();
        let aside = strangers.and_then(|strangers| strangers.aside.get(at));
        aside.map_or(0, |aside| aside.holding.tail())
    }

    /// When static shares have become floors, a tenth of the limit is usually enough.
    pub(super) fn strangers_fall(&mut self, now: u64) {
        let falls = |strangers: &Strangers| !strangers.fallen && now >= strangers.ends;
        if self.strangers.as_ref().is_some_and(falls) {
            self.rebuild(now);
        }
    }

    /// Whether grants have to wait for this member's own words: nothing is known of it that the record
    /// says.
    pub(super) fn must_be_fenced(&self, member: MemberId) -> bool {
        let account = self.accounts.get(&member);
        self.strangers.is_some() && account.is_some_and(|account| !account.fenced)
    }

    /// Tells a member without a seat of this epoch, so that it obeys no leader of the time before.
    pub(super) fn fence_stranger(&self, report: &Report, effects: &mut Vec<Effect>) -> bool {
        let waits = self.strangers.is_some() && !self.grants();
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

    /// An operator said that there are no strangers: members that were not heard count by the record.
    pub(super) fn end_strangers(&mut self, now: u64) {
        if self.record.restored.is_some() || self.strangers.take().is_none() {
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

impl Aside {
    fn versions(&self) -> Vec<Version> {
        let right = Right {
            rate: self.left.rate.min(self.most),
            ..self.left
        };
        alloc::vec![Version {
            gap: right,
            base: right,
            base_ends: u64::MAX,
            floor: right,
            floor_ends: u64::MAX,
            ..Version::default()
        }]
    }
}

/// What a member has for certain of a limit, as a part of it. Bursts were rounded up.
fn surely(version: &Version) -> Right {
    Right {
        rate: version.sure,
        burst: version.base.burst.saturating_sub(1),
    }
}
