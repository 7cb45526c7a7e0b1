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

use super::{Account, GRAIN, Ledger, arrange, shared};
use crate::curve::{Holding, LeaseBound, SentVersion};
use crate::effect::Effect;
use crate::generation;
use crate::message::{Held, Hold, Load, Report, Response};
use crate::plan::{Drift, LimitId, MemberId, Record, Seat};
use crate::schedule::Right;

/// Snapshot that a leader leaves to its successor when it hands over: the most that every member may hold,
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

/// Most that one member may hold.
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
        /// The previous leader's last lease may last until then.
        leases_until: u64,
    },
    Granting,
}

impl Ledger {
    /// Opens an account for every seat.
    pub(super) fn begin(&mut self, now: u64, quiet: u64, snapshot: Option<Snapshot>) {
        let quiet_until = now + quiet;
        let known = self.record.plans().map(|plan| plan.timing.lease).max();
        let restored = self.record.restored.map(|restored| restored.lease);
        let lease = saturating_nanos(known.max(restored).unwrap_or_default());
        let leases_until = quiet_until + self.drift.longest(lease) + GRAIN;
        self.reserve_unheard();
        let seats = self.record.seats.clone();
        let same = |epoch: u64| generation::of(epoch) == generation::of(self.epoch);
        let before = |snapshot: &Snapshot| same(snapshot.epoch) && snapshot.epoch < self.epoch;
        let usable = |one: &Snapshot| self.unheard_members.is_none() && before(one);
        let snapshot = snapshot.filter(usable);
        for seat in seats {
            let mut account = Account::new(seat, now);
            let seat = &account.seat;
            let left = snapshot.as_ref().and_then(|snapshot| snapshot.find(seat));
            if let Some(left) = left {
                // It is not known when that leader stopped: every base may begin at once.
                let holdings = left.iter().map(|left| {
                    let mut version = bound(self.drift, now, now, &left.held);
                    version.sure = left.sure;
                    version.revision = left.revision;
                    let limit = left.held.limit;
                    version.of = self.record.rate_by(left.revision, limit);
                    version.rescale(left.held.whole, self.record.whole(limit));
                    Holding::new(limit, version)
                });
                account.holdings = holdings.collect();
                account.known = true;
            } else {
                account.holdings = self.unheard(seat, quiet_until);
            }
            self.latest = self.latest.max(account.leases_end());
            self.accounts.insert(account.seat.member, account);
        }
        let all_known = self.accounts.values().all(|account| account.known);
        if !(snapshot.is_some() && all_known) {
            self.quiet_until = quiet_until;
            self.phase = Phase::Learning { leases_until };
        }
    }

    /// Holdings of a member if nothing is known except that all its leases are dead: its base of any plan.
    pub(super) fn unheard(&self, seat: &Seat, quiet_until: u64) -> Vec<Holding> {
        if self.unheard_members.is_some() {
            // What it has is part of what is set aside.
            return Vec::new();
        }
        let seat = seat.widest();
        let holding = |id: LimitId| {
            let mut version = SentVersion {
                of: self.record.largest_rate(id),
                ..SentVersion::default()
            };
            let of = self.record.whole(id);
            for plan in self.record.plans() {
                let Some(limit) = shared(plan, &seat, id) else {
                    continue;
                };
                let right = |rate| plan.right(limit, rate);
                let from = |lasts: Duration| {
                    let lasts = self.drift.longest(saturating_nanos(lasts));
                    quiet_until.saturating_add(lasts).saturating_add(GRAIN)
                };
                let mut other = SentVersion {
                    base: right(plan.base(limit, &seat)),
                    floor: right(plan.floor(limit, &seat)),
                    gap: right(plan.base(limit, &seat)),
                    base_ends: from(plan.timing.hold),
                    floor_ends: plan.ends().map_or(u64::MAX, from),
                    ..SentVersion::default()
                };
                other.rescale(limit.whole(), of);
                version = version.merged(&other);
            }
            // The member may follow any plan, so it counts as following none.
            version.revision = 0;
            Holding::new(id, version)
        };
        self.record.limits().into_iter().map(holding).collect()
    }

    /// Learns from a report. Returns whether grants may begin.
    pub(super) fn learn(&mut self, now: u64, report: &Report) -> bool {
        let (quiet_until, late) = (self.quiet_until, self.grants());
        let Some(account) = self.accounts.get_mut(&report.member) else {
            return false;
        };
        if let Some(held) = &report.held
            && report.epoch == self.epoch
            && !account.fenced
            && (late || !account.known)
        {
            let (record, drift) = (&self.record, self.drift);
            let told = account.told.unwrap_or(now);
            let held = held.iter().map(|held| {
                let most = Most::new(record, held.limit);
                let mut version = bound(drift, now, told, &most.held(held));
                version.revision = report.revision;
                version.of = claimed(record, held.limit, held.whole);
                // The leader before may give to others what ends before its time is over.
                let given = |lasts: Duration| {
                    let lasts = drift.shortest(saturating_nanos(lasts));
                    let ends = told.saturating_add(lasts);
                    ends <= quiet_until
                };
                if given(held.base_for) {
                    version.sure = version.floor.rate.min(version.sure);
                }
                if held.floor_for.is_some_and(given) {
                    version.sure = 0;
                }
                if late {
                    // Every lease of the time before is over.
                    version.leases = Default::default();
                }
                version.rescale(held.whole, record.whole(held.limit));
                Holding::new(held.limit, version)
            });
            let held = in_order(held);
            account.change(&mut self.horizons, now, |holding| {
                *holding = Holding {
                    limit: holding.limit,
                    at: holding.at,
                    ..Holding::default()
                };
            });
            account.holdings = held;
            arrange(account, record, &self.limits);
            for holding in &account.holdings {
                if let Some(horizon) = self.horizons.get_mut(holding.at) {
                    horizon.add(holding);
                }
            }
            account.known = true;
            account.fenced = true;
            self.latest = self.latest.max(account.leases_end());
            self.count_fenced(now, report.member);
        }
        self.finish_learning(now)
    }

    /// Starts to grant if it is time.
    pub(super) fn finish_learning(&mut self, now: u64) -> bool {
        let Phase::Learning { leases_until } = self.phase else {
            return true;
        };
        let all_known = self.accounts.values().all(|account| account.known);
        let is_over = now >= leases_until;
        // Strangers may have leases, too.
        let all_known = all_known && self.unheard_members.is_none();
        if now >= self.quiet_until && (all_known || is_over) {
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
        let held = report.held.as_deref().unwrap_or_default();
        let has = |load: &Load| {
            let of = held.iter().find(|held| held.limit == load.limit);
            of.map_or(0, now_has)
        };
        let is_content =
            !held.is_empty() && report.loads.iter().all(|load| load.demand <= has(load));
        let hold = Hold {
            incarnation: report.incarnation,
            epoch: self.epoch,
            seq: report.seq,
            record: self.record.version,
            promise: is_content.then_some(promise),
        };
        effects.push(Effect::answer(report.member, Response::Hold(hold)));
    }

    /// Snapshot for a successor; `None` while this leader itself is learning, or counts members that it has
    /// not heard among the unheard: an operator may say that all were heard before the successor is
    /// elected.
    pub(crate) fn snapshot(&self, now: Monotonic) -> Option<Snapshot> {
        let now = now.as_nanos();
        let left = |until: u64| Duration::from_nanos(until.saturating_sub(now));
        let held = |holding: &Holding| {
            let all = holding.envelope();
            let one = holding.versions.iter().all(|v| v.revision == all.revision);
            let held = Held {
                limit: holding.limit,
                leases: all.leases.map(|lease| (lease.right, left(lease.ends))),
                gap: all.gap,
                base_in: Duration::ZERO,
                base: all.base,
                base_for: left(all.base_ends),
                floor: all.floor,
                floor_for: (all.floor_ends < u64::MAX).then(|| left(all.floor_ends)),
                whole: self.record.whole(holding.limit),
            };
            Left {
                held,
                sure: all.sure,
                revision: if one { all.revision } else { 0 },
            }
        };
        let accounts = self.accounts.values().map(|account| {
            let limits = account.holdings.iter().map(held).collect();
            SnapshotAccount {
                member: account.seat.member,
                incarnation: account.seat.incarnation,
                limits,
            }
        });
        let knows = self.grants() && self.unheard_members.is_none();
        knows.then(|| Snapshot {
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

/// Holds nothing.
/// In the order of the limits, one for each.
pub(super) fn in_order(holdings: impl Iterator<Item = Holding>) -> Vec<Holding> {
    let mut holdings: Vec<Holding> = holdings.collect();
    holdings.sort_by_key(|holding| holding.limit);
    holdings.dedup_by_key(|holding| holding.limit);
    holdings
}

/// The most that `held` allows, on this clock. The member said so between `told` and `now`.
fn bound(drift: Drift, now: u64, told: u64, held: &Held) -> SentVersion {
    let latest = |left: Duration| {
        let left = drift.longest(saturating_nanos(left));
        now.saturating_add(left).saturating_add(GRAIN)
    };
    let lease = |(right, left): (Right, Duration)| LeaseBound {
        right: if left.is_zero() { Right::NONE } else { right },
        ends: if left.is_zero() { 0 } else { latest(left) },
    };
    // What has ended does not come back without a grant.
    let floor = match held.floor_for {
        Some(left) if left.is_zero() => Right::NONE,
        _ => held.floor,
    };
    let base = if held.base_for.is_zero() {
        floor
    } else {
        held.base
    };
    SentVersion {
        leases: held.leases.map(lease),
        gap: held.gap,
        base_begins: told.saturating_add(drift.shortest(saturating_nanos(held.base_in))),
        base,
        sure: base.rate,
        base_ends: latest(held.base_for),
        floor,
        floor_ends: held.floor_for.map_or(u64::MAX, latest),
        ..SentVersion::default()
    }
}

/// The rate of the limit of which a member says that it has a part.
pub(super) fn claimed(record: &Record, limit: LimitId, whole: Right) -> u64 {
    let largest = record.largest_rate(limit);
    match whole.rate {
        0 => largest,
        // It may follow a plan that is not known.
        rate if record.restored.is_some() => rate,
        rate => rate.min(largest),
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
    pub(super) fn new(record: &Record, limit: LimitId) -> Self {
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
        if let Some(restored) = record.restored {
            // It may follow a plan that is not known, and has a part of that plan's limit.
            most.right = Right {
                rate: u64::MAX,
                burst: u64::MAX,
            };
            most.lease = most.lease.max(restored.lease);
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
            floor_for: held.floor_for,
            limit: held.limit,
            whole: held.whole,
        }
    }
}
