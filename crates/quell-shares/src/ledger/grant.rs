//! Granting: gives the most that is safe, but no more than is planned.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;

use quell_core::time::saturating_nanos;

use super::{GRAIN, Ledger};
use crate::curve::{Headroom, Holding, Horizon, LeaseBound, Version};
use crate::leader::Effect;
use crate::message::{Grant, Granted, Push, Response};
use crate::plan::{Drift, MICRO, MemberId, Others, Plan, Seat};
use crate::schedule::Right;
use crate::{Switch, errs};

/// The most members that receive a push because of one report.
const PUSHES: usize = 2;

/// The most members that may wait for a push; others get what they are due with their next report.
/// Each push is acknowledged at once, so this bounds the reports that a change of shares causes.
const HUNGRY: usize = 64;

/// The instants of a version that is being made.
#[derive(Clone, Copy, Debug)]
struct Times {
    now: u64,
    number: u64,
    lease: Duration,
    lease_ends: u64,
    promise: Duration,
    base_begins: u64,
    base_ends: u64,
    /// No member's lease ends later.
    latest: u64,
}

impl Ledger {
    fn times(&self, now: u64, number: u64) -> Times {
        let timing = self.record.plan.timing;
        let lease = saturating_nanos(timing.lease);
        // No base may begin while any lease that was lent out of it may last; that may be a lease of
        // any plan, since plans change.
        let outstanding = self.latest.saturating_sub(now) + 2 * self.slices.width;
        let mut promise = saturating_nanos(timing.promise);
        if !errs!(self, PromiseNotStretched) {
            promise = promise.max(self.drift.longest(outstanding));
        }
        let mut base_begins = now + self.drift.shortest(promise);
        if errs!(self, LendWholeBase) {
            base_begins += promise;
        }
        Times {
            now,
            number,
            lease: timing.lease,
            lease_ends: now + self.drift.longest(lease) + GRAIN,
            promise: Duration::from_nanos(promise),
            base_begins,
            base_ends: now + self.drift.longest(saturating_nanos(timing.hold)) + GRAIN,
            latest: self.latest,
        }
    }

    /// Answers a report of a member whose holdings are known. `acknowledged` is the version in force
    /// there; older versions are gone.
    pub(super) fn grant(
        &mut self,
        now: u64,
        member: MemberId,
        seq: u64,
        acknowledged: Option<u64>,
    ) -> Option<Grant> {
        let number = self.accounts.get(&member)?.version + 1;
        let times = self.times(now, number);
        let plan = &self.record.plan;
        let account = self.accounts.get_mut(&member)?;
        account.version = number;
        account.addressed = true;
        if let Some(applied) = acknowledged {
            account.applied = account.applied.max(applied);
        }
        let mut rights = Vec::with_capacity(account.holdings.len());
        let each = account.holdings.iter_mut().zip(&mut self.horizons);
        for (limit, (holding, horizon)) in each.enumerate() {
            horizon.advance(now);
            horizon.remove(holding, plan.revision);
            if let Some(applied) = acknowledged {
                holding.acknowledge(applied);
            }
            let one = One {
                plan,
                seat: &account.seat,
                limit,
                least_burst: self.record.least_burst(limit),
                drift: self.drift,
                mistake: self.mistake,
            };
            let (version, granted) = one.decide(&times, holding, horizon);
            self.latest = self.latest.max(version.leases_end());
            if errs!(self, OverwriteUnacked) {
                holding.versions.clear();
            } else if errs!(self, DropOldVersions) && holding.versions.len() > 3 {
                holding.versions.remove(0);
            }
            holding.sent = granted.leases[0].0.rate;
            holding.push(version);
            horizon.add(holding, plan.revision);
            rights.push(granted);
        }
        Some(Grant {
            incarnation: account.seat.incarnation,
            epoch: self.epoch,
            version: number,
            seq,
            revision: plan.revision,
            record: self.record.version,
            report: plan.timing.report,
            promise: times.promise,
            hold: plan.timing.hold,
            rights,
        })
    }

    /// Pushes other rates to a few waiting members: less to those that have more than is planned,
    /// more to those that have less.
    pub(super) fn push_some(&mut self, now: u64, but: Option<MemberId>, effects: &mut Vec<Effect>) {
        let pushes = if errs!(self, PushNothing) { 0 } else { PUSHES };
        for _ in 0..pushes.min(self.hungry.len()) {
            let Some(member) = self.hungry.pop_front() else {
                return;
            };
            // A member that was just answered keeps waiting if there was too little.
            if Some(member) != but
                && let Some(push) = self.push(now, member)
            {
                effects.push(Effect::answer(member, Response::Push(push)));
            }
            // There is no room, or not enough yet: other members must give theirs back first.
            if self.is_short(member) {
                self.hungry.push_back(member);
            }
        }
    }

    pub(super) fn is_short(&self, member: MemberId) -> bool {
        let account = self.accounts.get(&member).filter(|account| account.planned);
        let short = |holding: &Holding| holding.sent + holding.target / 20 < holding.target;
        account.is_some_and(|account| account.holdings.iter().any(short))
    }

    /// Notes that a member's lease differs from what is planned.
    pub(super) fn wants_push(hungry: &mut VecDeque<MemberId>, member: MemberId) {
        if hungry.len() < HUNGRY && !hungry.contains(&member) {
            hungry.push_back(member);
        }
    }

    /// Other rates within the leases that a member has. Any of its outstanding versions may be in
    /// force, so the new one ends with the last of them, and its base begins with the first of
    /// theirs.
    fn push(&mut self, now: u64, member: MemberId) -> Option<Push> {
        let (plan, width) = (&self.record.plan, self.slices.width);
        let account = self.accounts.get_mut(&member)?;
        // Before its first grant of this epoch the member would ignore a push.
        if account.applied == 0 || account.left || !account.planned {
            return None;
        }
        let mut rights = Vec::with_capacity(account.holdings.len());
        let mut differs = false;
        for (holding, horizon) in account.holdings.iter_mut().zip(&mut self.horizons) {
            horizon.advance(now);
            let limit = rights.len();
            let quota = plan.limits.get(limit)?;
            let ends = holding.envelope().leases_end();
            // A member that may still follow another plan would take this for a part of that plan's
            // limit.
            let follows = |version: &Version| version.revision == plan.revision;
            if ends <= now + width || !holding.versions.iter().all(follows) {
                return None;
            }
            horizon.remove(holding, plan.revision);
            let room = horizon.headroom(quota.rate, holding.target, ends).lowest();
            horizon.add(holding, plan.revision);
            let before = holding.sent;
            // A smaller right is pushed only because less is planned, never because other members
            // hold too much.
            if room < before.min(holding.target) {
                return None;
            }
            let rate = room.min(holding.target);
            differs |= rate.abs_diff(before) > before / 20;
            let others = Others {
                bursts: horizon.foreign,
                least_burst: self.record.least_burst(limit),
            };
            rights.push(plan.right_beside(limit, rate, others));
        }
        differs.then(|| self.send_push(now, member, rights))?
    }

    /// Records a push that was found to be safe, and builds its message.
    fn send_push(&mut self, now: u64, member: MemberId, rights: Vec<Right>) -> Option<Push> {
        let revision = self.record.plan.revision;
        let account = self.accounts.get_mut(&member)?;
        account.version += 1;
        let number = account.version;
        let mut each = rights.iter().copied();
        account.change(&mut self.horizons, now, revision, |holding| {
            let right = each.next().unwrap_or_default();
            let mut version = holding.envelope();
            let ends = version.leases_end();
            version.number = number;
            version.leases = Default::default();
            version.leases[0] = LeaseBound { right, ends };
            // Other members may have longer leases than this one: a rise must not show in the gap.
            version.gap = right.least(version.gap);
            if errs!(self, PushRaisesGap) {
                version.gap = right.least(version.base);
            }
            holding.sent = right.rate;
            holding.push(version);
        });
        Some(Push {
            incarnation: account.seat.incarnation,
            epoch: self.epoch,
            version: account.version,
            rights,
        })
    }
}

/// A decision about one limit of one member.
struct One<'a> {
    plan: &'a Plan,
    seat: &'a Seat,
    limit: usize,
    least_burst: u64,
    drift: Drift,
    mistake: Switch,
}

impl One<'_> {
    fn right(&self, rate: u64, horizon: &Horizon) -> Right {
        if errs!(self, BurstAtLeastOne)
            && let Some(quota) = self.plan.limits.get(self.limit)
        {
            let part = crate::plan::part(quota.burst, rate, quota.rate);
            let burst = if rate > 0 { part.max(MICRO) } else { 0 };
            return Right { rate, burst };
        }
        let others = Others {
            bursts: horizon.foreign,
            least_burst: self.least_burst,
        };
        if errs!(self, IgnoreOtherBursts) {
            return self.plan.right(self.limit, rate);
        }
        self.plan.right_beside(self.limit, rate, others)
    }

    /// What is left until the end of leases that are made now, up to `target`.
    fn found(&self, times: &Times, rate: u64, target: u64, horizon: &mut Horizon) -> Headroom {
        let mut nothing = Headroom::default();
        if errs!(self, LeaseNotRenewed) && times.number > 40 {
            return nothing;
        }
        if errs!(self, GrowBeforeShrink) {
            nothing.close(target, times.lease_ends);
            return nothing;
        }
        horizon.headroom(rate, target, times.lease_ends)
    }

    /// The version to count and the grant to send. The holding's own curve must not be in the sum.
    fn decide(
        &self,
        times: &Times,
        holding: &Holding,
        horizon: &mut Horizon,
    ) -> (Version, Granted) {
        let whole = self.plan.whole(self.limit);
        let rate = whole.rate;
        let found = self.found(times, rate, holding.target, horizon);
        let planned = self.plan.base(self.limit, self.seat);
        let room = rate.saturating_sub(horizon.tails);
        let mut sure = holding.sure_base();
        if errs!(self, TrustBound) {
            sure = holding.tail();
        }
        let mut base = planned.min(room.max(sure));
        if errs!(self, BaseBeforeRoom) {
            base = planned;
        }
        let floor = self.plan.floor(self.limit, self.seat).min(base);
        let base = self.right(base, horizon);
        // The gap outlasts the lease. Other members may have longer leases of another plan, and some
        // of their bases may begin meanwhile.
        let mut gap = found.lowest();
        if times.latest > times.lease_ends && !errs!(self, GapUnchecked) {
            gap = horizon.headroom(rate, gap, times.latest).lowest();
        }
        if errs!(self, NoGap) {
            gap = 0;
        }
        let mut granted = Granted {
            gap: self.right(gap, horizon).least(base),
            base,
            floor: self.right(floor, horizon),
            whole,
            ..Granted::default()
        };
        let mut version = Version {
            number: times.number,
            revision: self.plan.revision,
            gap: granted.gap,
            base_begins: times.base_begins,
            base,
            sure: base.rate,
            base_ends: times.base_ends,
            floor: granted.floor,
            ..Version::default()
        };
        let steps = found.steps.iter().take(found.len);
        for (at, (rate, ends)) in steps.enumerate() {
            let lasts = if *ends >= times.lease_ends {
                times.lease
            } else {
                let left = ends.saturating_sub(times.now).saturating_sub(GRAIN);
                Duration::from_nanos(self.drift.shortest(left))
            };
            let right = self.right(*rate, horizon);
            granted.leases[at] = (right, lasts);
            version.leases[at] = LeaseBound { right, ends: *ends };
        }
        (version, granted)
    }
}
