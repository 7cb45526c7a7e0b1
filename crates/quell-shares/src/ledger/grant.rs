//! Granting: gives the most that is safe, but no more than is planned.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;

use quell_core::time::saturating_nanos;

use super::{GRAIN, Ledger, shared};
use crate::curve::{Holding, Horizon, LeaseBound, SentVersion};
use crate::effect::Effect;
use crate::message::{Grant, Granted, LimitName, Push, Pushed, Report, Response};
use crate::plan::{Drift, Limit, LimitId, MemberId, Others, Plan, Record, Seat, part, same_part};
use crate::schedule::Right;

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
    floor_ends: u64,
    /// No member's lease ends later.
    latest: u64,
}

impl Ledger {
    fn times(&self, now: u64, number: u64, plan: &Plan) -> Times {
        let timing = plan.timing;
        let lease = saturating_nanos(timing.lease);
        // No base may begin while any lease that was lent out of it may last; that may be a lease of
        // any plan, since plans change.
        let outstanding = self.latest.saturating_sub(now) + 2 * self.slices.width;
        let promise = saturating_nanos(timing.promise).max(self.drift.longest(outstanding));
        let base_begins = now + self.drift.shortest(promise);
        Times {
            now,
            number,
            lease: timing.lease,
            lease_ends: now + self.drift.longest(lease) + GRAIN,
            promise: Duration::from_nanos(promise),
            base_begins,
            base_ends: now + self.drift.longest(saturating_nanos(timing.hold)) + GRAIN,
            floor_ends: plan.ends().map_or(u64::MAX, |ends| {
                now.saturating_add(self.drift.longest(saturating_nanos(ends)))
                    .saturating_add(GRAIN)
            }),
            latest: self.latest,
        }
    }

    /// Answers a report of a member whose holdings are known. `acknowledged` is the version in force
    /// there; older versions are gone.
    pub(super) fn grant(
        &mut self,
        now: u64,
        report: &Report,
        acknowledged: Option<u64>,
    ) -> Option<Grant> {
        let account = self.accounts.get(&report.member)?;
        let number = account.version + 1;
        let plan = self.record.plan_of(&account.seat);
        let times = self.times(now, number, plan);
        let account = self.accounts.get_mut(&report.member)?;
        account.version = number;
        account.addressed = true;
        if let Some(applied) = acknowledged {
            account.applied = account.applied.max(applied);
        }
        let mut rights = Vec::with_capacity(account.holdings.len());
        for holding in &mut account.holdings {
            let Some(horizon) = self.horizons.get_mut(holding.at) else {
                continue;
            };
            horizon.advance(now);
            horizon.remove(holding);
            if let Some(applied) = acknowledged {
                holding.acknowledge(applied);
            }
            let Some(limit) = shared(plan, &account.seat, holding.limit) else {
                // The member gives up what it is not granted.
                holding.push(SentVersion::nothing(number, plan.revision));
                horizon.add(holding);
                continue;
            };
            let one = MemberGrant::new(&self.record, &account.seat, limit, self.drift);
            let (version, granted) = one.decide(&times, holding, horizon);
            self.latest = self.latest.max(version.leases_end());
            holding.sent = version.leases[0].right.rate;
            holding.push(version);
            horizon.add(holding);
            rights.push(granted);
        }
        Some(Grant {
            incarnation: account.seat.incarnation,
            epoch: self.epoch,
            version: number,
            seq: report.seq,
            revision: plan.revision,
            record: self.record.version,
            report: plan.timing.report,
            promise: times.promise,
            hold: plan.timing.hold,
            ends: plan.ends(),
            draining: account.seat.draining,
            rights,
            names: if report.revision == plan.revision {
                Vec::new()
            } else {
                names(plan, &account.seat)
            },
        })
    }

    /// Pushes other rates to a few waiting members: less to those that have more than is planned,
    /// more to those that have less.
    pub(super) fn push_some(&mut self, now: u64, but: Option<MemberId>, effects: &mut Vec<Effect>) {
        for _ in 0..PUSHES.min(self.push_queue.len()) {
            let Some(member) = self.push_queue.pop_front() else {
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
                self.push_queue.push_back(member);
            }
        }
    }

    pub(super) fn is_short(&self, member: MemberId) -> bool {
        let account = self.accounts.get(&member).filter(|account| account.planned);
        let short = |holding: &Holding| holding.sent + holding.target / 20 < holding.target;
        account.is_some_and(|account| account.holdings.iter().any(short))
    }

    /// Notes that a member's lease differs from what is planned.
    pub(super) fn wants_push(push_queue: &mut VecDeque<MemberId>, member: MemberId) {
        if push_queue.len() < HUNGRY && !push_queue.contains(&member) {
            push_queue.push_back(member);
        }
    }

    /// Other rates within the leases that a member has. Any of its outstanding versions may be in
    /// force, so the new one ends with the last of them, and its base begins with the first of
    /// theirs.
    fn push(&mut self, now: u64, member: MemberId) -> Option<Push> {
        let width = self.slices.width;
        let account = self.accounts.get_mut(&member)?;
        let plan = self.record.plan_of(&account.seat);
        // Before its first grant of this epoch the member would ignore a push.
        if account.applied == 0 || account.left || !account.planned {
            return None;
        }
        let mut rights = Vec::with_capacity(account.holdings.len());
        let mut differs = false;
        for holding in &account.holdings {
            let horizon = self.horizons.get_mut(holding.at)?;
            horizon.advance(now);
            let Some(limit) = shared(plan, &account.seat, holding.limit) else {
                continue;
            };
            let ends = holding.envelope().leases_end();
            // A member that may still follow another plan would take this for a part of that plan's
            // limit.
            let follows = |version: &SentVersion| version.revision == plan.revision;
            if ends <= now + width || !holding.versions.iter().all(follows) {
                return None;
            }
            let one = MemberGrant::new(&self.record, &account.seat, limit, self.drift);
            horizon.remove(holding);
            let room = horizon
                .headroom(one.unit.rate, holding.target, ends)
                .lowest();
            horizon.add(holding);
            let before = holding.sent;
            // A smaller right is pushed only because less is planned, never because other members
            // hold too much.
            if room < before.min(holding.target) {
                return None;
            }
            let rate = room.min(holding.target);
            differs |= rate.abs_diff(before) > before / 20;
            rights.push((limit.id, one.right(rate, horizon)));
        }
        differs.then(|| self.send_push(now, member, &rights))?
    }

    /// Records a push that was found to be safe, and builds its message.
    fn send_push(
        &mut self,
        now: u64,
        member: MemberId,
        rights: &[(LimitId, Part)],
    ) -> Option<Push> {
        let account = self.accounts.get_mut(&member)?;
        account.version += 1;
        let number = account.version;
        let revision = self.record.plan_of(&account.seat).revision;
        let mut each = rights.iter().peekable();
        account.change(&mut self.horizons, now, |holding| {
            let mut version = holding.envelope();
            version.number = number;
            if let Some((_, part)) = each.next_if(|(limit, _)| *limit == holding.limit) {
                let (right, ends) = (part.counted, version.leases_end());
                version.leases = Default::default();
                version.leases[0] = LeaseBound { right, ends };
                // Other members may have longer leases than this one: a rise must not show in the
                // gap.
                version.gap = right.least(version.gap);
                holding.sent = right.rate;
            }
            holding.push(version);
        });
        let pushed = |(limit, part): &(LimitId, Part)| Pushed {
            limit: *limit,
            right: part.granted,
        };
        Some(Push {
            incarnation: account.seat.incarnation,
            epoch: self.epoch,
            version: account.version,
            revision,
            rights: rights.iter().map(pushed).collect(),
        })
    }
}

/// The names of the limits that a seat shares.
pub(super) fn names(plan: &Plan, seat: &Seat) -> Vec<LimitName> {
    let name = |limit: &Limit| LimitName {
        limit: limit.id,
        name: limit.name.clone(),
    };
    plan.limits_of(seat).map(name).collect()
}

/// A right as it is granted, which is a part of the limit in the member's plan, and the same part of
/// the limit as the ledger counts it.
#[derive(Clone, Copy, Debug, Default)]
struct Part {
    granted: Right,
    counted: Right,
}

/// A decision about one limit of one member. Rates are parts of `unit`, unless said otherwise.
struct MemberGrant<'a> {
    plan: &'a Plan,
    seat: &'a Seat,
    limit: &'a Limit,
    /// Index of the current plan.
    side: usize,
    /// The rate and burst of the limit as the ledger counts it.
    unit: Right,
    least_burst: u64,
    /// True if members may follow plans that the record does not know.
    restored: bool,
    drift: Drift,
}

impl<'a> MemberGrant<'a> {
    fn new(record: &'a Record, seat: &'a Seat, limit: &'a Limit, drift: Drift) -> Self {
        Self {
            plan: record.plan_of(seat),
            seat,
            limit,
            side: usize::from(seat.staged),
            unit: record.whole(limit.id),
            least_burst: record.least_burst(limit.id),
            restored: record.restored.is_some(),
            drift,
        }
    }

    fn right(&self, rate: u64, horizon: &Horizon) -> Part {
        let quota = &self.limit.quota;
        let others = Others {
            bursts: same_part(horizon.foreign[self.side], self.unit.burst, quota.burst),
            least_burst: self.least_burst,
            unknown: self.restored,
        };
        let granted = self.plan.right_beside(self.limit, self.own(rate), others);
        let counted = Right {
            rate,
            burst: same_part(granted.burst, quota.burst, self.unit.burst),
        };
        Part { granted, counted }
    }

    /// The same part of the limit in the member's plan, rounded down.
    fn own(&self, rate: u64) -> u64 {
        if self.unit.rate == self.limit.quota.rate {
            return rate;
        }
        part(rate, self.limit.quota.rate, self.unit.rate)
    }

    /// A rate of the member's plan as a part of `unit`, rounded down.
    fn counted(&self, rate: u64) -> u64 {
        if self.unit.rate == self.limit.quota.rate {
            return rate;
        }
        part(rate, self.unit.rate, self.limit.quota.rate)
    }

    /// The version to count and the grant to send. The holding's own curve must not be in the sum.
    fn decide(
        &self,
        times: &Times,
        holding: &Holding,
        horizon: &mut Horizon,
    ) -> (SentVersion, Granted) {
        let rate = self.unit.rate;
        // What is left until the end of leases that are made now, up to the target.
        let found = horizon.headroom(rate, holding.target, times.lease_ends);
        let planned = self.counted(self.plan.base(self.limit, self.seat));
        let room = rate.saturating_sub(horizon.tails);
        let base = planned.min(room.max(holding.sure_base()));
        let floor = self
            .counted(self.plan.floor(self.limit, self.seat))
            .min(base);
        let base = self.right(base, horizon);
        // The gap outlasts the lease. Other members may have longer leases of another plan, and some
        // of their bases may begin meanwhile.
        let mut gap = found.lowest();
        if times.latest > times.lease_ends {
            gap = horizon.headroom(rate, gap, times.latest).lowest();
        }
        let (gap, floor) = (self.right(gap, horizon), self.right(floor, horizon));
        let mut granted = Granted {
            limit: self.limit.id,
            gap: gap.granted.least(base.granted),
            base: base.granted,
            floor: floor.granted,
            whole: self.limit.whole(),
            ..Granted::default()
        };
        let mut version = SentVersion {
            number: times.number,
            revision: self.plan.revision,
            of: self.limit.quota.rate,
            gap: gap.counted.least(base.counted),
            base_begins: times.base_begins,
            base: base.counted,
            sure: base.counted.rate,
            base_ends: times.base_ends,
            floor: floor.counted,
            floor_ends: times.floor_ends,
            ..SentVersion::default()
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
            granted.leases[at] = (right.granted, lasts);
            version.leases[at] = LeaseBound {
                right: right.counted,
                ends: *ends,
            };
        }
        (version, granted)
    }
}
