//! Learning: how a new leader finds an upper bound for what members hold.
//!
//! Every report is answered with a hold, which carries the new epoch. A report that carries that
//! epoch back was made after its member began to refuse all older leaders, and while no older
//! schedule was on its way into force. So the member can hold no more than it says, and that only
//! shrinks. Such a member is *fenced*. A process that joins with this leader is fenced by joining:
//! the join is written under this leader's key, so no other leader can have granted it anything.
//!
//! When all seats are fenced and the old leader's time is over, grants begin. Otherwise they begin
//! when every lease that the old leader may have granted is dead. Silent members then count with
//! their base, as in the largest plan that they may follow.

use alloc::vec::Vec;
use core::time::Duration;

use quell_core::time::{Monotonic, saturating_nanos};

use super::{Account, GRAIN, Ledger};
use crate::curve::{Holding, LeaseBound, Version};
use crate::leader::Effect;
use crate::message::{Held, Hold, Report, Response};
use crate::plan::{Drift, MemberId, Record, Seat};
use crate::schedule::Right;
use crate::{errs, generation};

/// What a leader leaves to its successor when it hands over: the most that every member may hold,
/// in durations from the moment it stopped.
///
/// It has one account for each seat, each with one entry for each limit: about 150 bytes an entry. A
/// store that takes less than all of it at once gets the accounts in several parts. A successor that
/// finds only some of them, or none, learns from the members instead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The epoch of the leader that stopped.
    pub epoch: u64,
    /// Ordered by member.
    pub accounts: Vec<SnapshotAccount>,
}

/// What one member may hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotAccount {
    /// The member.
    pub member: MemberId,
    /// The start that it is about.
    pub incarnation: u64,
    /// One for each limit.
    pub limits: Vec<Left>,
}

/// The state of one limit: the most that a member may hold, and the base that it has for certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// The most that it may hold.
    pub held: Held,
    /// The static share that it has for certain, in micro-units per second.
    pub sure: u64,
    /// The plan that all of this belongs to; 0 if there are several.
    pub revision: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Phase {
    Learning {
        /// The previous leader may decide until then.
        quiet_until: u64,
        /// The previous leader's last lease may last until then.
        leases_until: u64,
    },
    Granting,
}

impl Ledger {
    /// Opens an account for every seat.
    pub(super) fn begin(&mut self, now: u64, quiet: u64, snapshot: Option<Snapshot>) {
        let skips = errs!(self, GrantBeforeQuiet);
        let quiet_until = now + if skips { 0 } else { quiet };
        let newest = errs!(self, NewestLeaseOnly);
        let plans = self
            .record
            .plans()
            .take(if newest { 1 } else { usize::MAX });
        let lease = plans.map(|plan| saturating_nanos(plan.timing.lease)).max();
        let mut wait = self.drift.longest(lease.unwrap_or(0)) + GRAIN;
        if errs!(self, ShortLearning) {
            wait /= 3;
        }
        let leases_until = quiet_until + wait;
        let seats = self.record.seats.clone();
        let same = |epoch: u64| generation::of(epoch) == generation::of(self.epoch);
        let before = |snapshot: &Snapshot| same(snapshot.epoch) && snapshot.epoch < self.epoch;
        let snapshot = snapshot.filter(before);
        for seat in seats {
            let mut account = Account::of(seat, now);
            let left = snapshot.as_ref().and_then(|snapshot| snapshot.find(&seat));
            if let Some(left) = left {
                // It is not known when that leader stopped: every base may begin at once.
                let holdings = left.iter().enumerate().map(|(limit, left)| {
                    let mut version = bound(self.drift, now, now, &left.held);
                    version.sure = left.sure;
                    version.revision = left.revision;
                    version.rescale(left.held.whole, self.record.whole(limit));
                    Holding::of(version)
                });
                account.holdings = holdings.collect();
                account.known = true;
            } else {
                account.holdings = self.unheard(&seat, quiet_until);
            }
            self.latest = self.latest.max(account.leases_end());
            self.accounts.insert(seat.member, account);
        }
        let all_known = self.accounts.values().all(|account| account.known);
        let forgets = errs!(self, ForgetLedger);
        if forgets {
            for account in self.accounts.values_mut() {
                account.holdings.fill(Holding::of(Version::default()));
            }
        }
        if !(forgets || snapshot.is_some() && all_known) {
            self.phase = Phase::Learning {
                quiet_until,
                leases_until,
            };
        }
    }

    /// What a member may hold if nothing is known except that all its leases are dead: its base of
    /// any plan.
    pub(super) fn unheard(&self, seat: &Seat, quiet_until: u64) -> Vec<Holding> {
        let count = self.record.plan.limits.len();
        let known = if errs!(self, ForgetOldPlans) {
            1
        } else if errs!(self, ForgetMerged) {
            1 + self.record.older.len()
        } else {
            usize::MAX
        };
        let holding = |limit: usize| {
            let mut version = Version::default();
            let of = self.record.whole(limit);
            for plan in self.record.plans().take(known) {
                let right = |rate| plan.right(limit, rate);
                let whole = plan.whole(limit);
                let hold = self.drift.longest(saturating_nanos(plan.timing.hold));
                let mut other = Version {
                    base: right(plan.base(limit, seat)),
                    floor: right(plan.floor(limit, seat)),
                    gap: right(plan.base(limit, seat)),
                    base_ends: quiet_until.saturating_add(hold).saturating_add(GRAIN),
                    ..Version::default()
                };
                other.rescale(whole, of);
                version = version.merged(&other);
            }
            // The member may follow any plan, so it counts as following none.
            version.revision = 0;
            Holding::of(version)
        };
        (0..count).map(holding).collect()
    }

    /// Learns from a report. Returns whether grants may begin.
    pub(super) fn learn(&mut self, now: u64, report: &Report) -> bool {
        let Some(account) = self.accounts.get_mut(&report.member) else {
            return false;
        };
        if errs!(self, IncarnationIsProof) && !account.known && report.seq <= 20 {
            account.known = true;
            account.holdings.fill(Holding::of(Version::default()));
        }
        let fenced = report.epoch == self.epoch || errs!(self, LearnUnfenced);
        if fenced && !account.known && !report.held.is_empty() {
            let (record, drift) = (&self.record, self.drift);
            let (late, plainly) = (errs!(self, LearnedBaseLate), errs!(self, CountPlainly));
            let told = account.told.filter(|_| !late).unwrap_or(now);
            let versions = report.held.iter().enumerate().map(|(limit, held)| {
                let mut version = bound(drift, now, told, &Most::of(record, limit).held(held));
                version.revision = report.revision;
                if !plainly {
                    version.rescale(held.whole, record.whole(limit));
                }
                version
            });
            account.holdings = versions.map(Holding::of).collect();
            account.known = true;
            self.latest = self.latest.max(account.leases_end());
        }
        self.finish_learning(now)
    }

    /// Starts to grant if it is time.
    pub(super) fn finish_learning(&mut self, now: u64) -> bool {
        let Phase::Learning {
            quiet_until,
            leases_until,
        } = self.phase
        else {
            return true;
        };
        let all_known = self.accounts.values().all(|account| account.known);
        let is_over = now >= leases_until && !errs!(self, WaitForAll);
        if now >= quiet_until && (all_known || is_over) {
            self.phase = Phase::Granting;
            for account in self.accounts.values_mut() {
                account.known = true;
            }
            self.rebuild(now);
        }
        self.grants()
    }

    /// Answers with a hold.
    pub(super) fn hold_back(&mut self, now: u64, report: &Report, effects: &mut Vec<Effect>) {
        let promise = self.record.plan.timing.promise;
        let Some(account) = self.accounts.get_mut(&report.member) else {
            return;
        };
        account.told.get_or_insert(now);
        account.addressed = true;
        // A member that wants more than it has must get its base in time.
        let now_has = |held: &Held| {
            let lease = held.leases.iter().find(|(_, left)| !left.is_zero());
            lease.map_or(held.gap, |(right, _)| *right).rate
        };
        let mut pairs = report.held.iter().zip(&report.loads);
        let is_content = pairs.len() > 0
            && (errs!(self, HoldForAll) || pairs.all(|(held, load)| load.demand <= now_has(held)));
        let hold = Hold {
            incarnation: report.incarnation,
            epoch: self.epoch,
            seq: report.seq,
            record: self.record.version,
            promise: is_content.then_some(promise),
        };
        effects.push(Effect::answer(report.member, Response::Hold(hold)));
    }

    /// What a successor needs; `None` while this leader itself is learning.
    pub(crate) fn snapshot(&self, now: Monotonic) -> Option<Snapshot> {
        let now = now.as_nanos();
        let left = |until: u64| Duration::from_nanos(until.saturating_sub(now));
        let held = |(limit, holding): (usize, &Holding)| {
            let all = holding.envelope();
            let one = holding.versions.iter().all(|v| v.revision == all.revision);
            let held = Held {
                leases: all.leases.map(|lease| (lease.right, left(lease.ends))),
                gap: all.gap,
                base_in: Duration::ZERO,
                base: all.base,
                base_for: left(all.base_ends),
                floor: all.floor,
                whole: self.record.whole(limit),
            };
            Left {
                held,
                sure: all.sure,
                revision: if one { all.revision } else { 0 },
            }
        };
        let accounts = self.accounts.values().map(|account| {
            let limits = account.holdings.iter().enumerate().map(held).collect();
            SnapshotAccount {
                member: account.seat.member,
                incarnation: account.seat.incarnation,
                limits,
            }
        });
        self.grants().then(|| Snapshot {
            epoch: self.epoch,
            accounts: accounts.collect(),
        })
    }
}

impl Snapshot {
    fn find(&self, seat: &Seat) -> Option<&[Left]> {
        let found = self.accounts.iter().find(|of| of.member == seat.member);
        let same = found.filter(|account| account.incarnation == seat.incarnation);
        same.map(|account| &account.limits[..])
    }
}

/// The most that `held` allows, on this clock. The member said so between `told` and `now`.
fn bound(drift: Drift, now: u64, told: u64, held: &Held) -> Version {
    let latest = |left: Duration| {
        let left = drift.longest(saturating_nanos(left));
        now.saturating_add(left).saturating_add(GRAIN)
    };
    let lease = |(right, left): (Right, Duration)| LeaseBound {
        right: if left.is_zero() { Right::NONE } else { right },
        ends: if left.is_zero() { 0 } else { latest(left) },
    };
    // A base that has ended does not come back without a grant.
    let base = if held.base_for.is_zero() {
        held.floor
    } else {
        held.base
    };
    Version {
        leases: held.leases.map(lease),
        gap: held.gap,
        base_begins: told.saturating_add(drift.shortest(saturating_nanos(held.base_in))),
        base,
        sure: base.rate,
        base_ends: latest(held.base_for),
        floor: held.floor,
        ..Version::default()
    }
}

/// The most that any plan gives one member of one limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Most {
    right: Right,
    lease: Duration,
    promise: Duration,
}

impl Most {
    pub(super) fn of(record: &Record, limit: usize) -> Self {
        let mut most = Self {
            right: Right::NONE,
            lease: Duration::ZERO,
            promise: Duration::ZERO,
        };
        for plan in record.plans() {
            most.right = most.right.most(plan.whole(limit));
            most.lease = most.lease.max(plan.timing.lease);
            most.promise = most.promise.max(plan.timing.promise);
        }
        most
    }

    /// A member that says it holds more than it can have been given is wrong or lies. Its right is
    /// capped at what is possible, so that it does not spoil the sums of others.
    pub(super) fn right(&self, right: Right) -> Right {
        right.least(self.right)
    }

    pub(super) fn held(&self, held: &Held) -> Held {
        // Leases of a plan that is no longer remembered are hardly longer than those of the newest;
        // the factor covers that.
        let longest = self.lease.saturating_mul(2);
        Held {
            leases: held
                .leases
                .map(|(right, left)| (self.right(right), left.min(longest))),
            gap: self.right(held.gap),
            // A base that begins sooner than reported counts for more.
            base_in: held.base_in.min(self.promise),
            base: self.right(held.base),
            base_for: held.base_for,
            floor: self.right(held.floor),
            whole: held.whole,
        }
    }
}
