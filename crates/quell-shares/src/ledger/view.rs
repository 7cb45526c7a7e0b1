//! View: what the leader knows, as plain data for an operator.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use quell_core::time::Monotonic;

use super::{Account, BaseShortage, Ledger, shared};
use crate::curve::Holding;
use crate::plan::{Band, LimitId, MemberId, Name, Stage, TakenBack, same_part};

/// The whole fleet at an instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetView {
    /// The number of the leadership.
    pub epoch: u64,
    /// True if the leader grants; if not, it is still learning what members hold.
    pub grants: bool,
    /// The revision of the plan in force.
    pub revision: u64,
    /// The plan that is being rolled out.
    pub rollout: Option<RolloutView>,
    /// The last one, if a leader took it back by itself.
    pub taken_back: Option<TakenBack>,
    /// Number of members that are to follow the plan that is being rolled out.
    pub staged: usize,
    /// Number of members that follow the plan that they are to follow, and no other any more.
    pub applied: usize,
    /// True if the store was restored from a backup and no operator has confirmed yet that all members were
    /// heard.
    pub restored: bool,
    /// Every member that has a seat.
    pub members: Vec<MemberView>,
    /// Every limit.
    pub limits: Vec<LimitView>,
}

/// A plan that is being rolled out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RolloutView {
    /// Its revision.
    pub revision: u64,
    /// Members that follow it.
    pub stage: Stage,
    /// Bounds beyond which the leader takes it back by itself.
    pub band: Option<Band>,
}

/// State of a member in the fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// The leader does not know yet what it holds.
    Unknown,
    /// The member reports.
    Active,
    /// The member was not heard for three fifths of a lease: it may use its static share, later its floor,
    /// and no other member can have that.
    Silent,
    /// An operator drains it.
    Draining,
    /// The member has nothing any more, and its seat is being given back.
    Left,
}

/// One member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberView {
    /// Its id.
    pub member: MemberId,
    /// The number of its process start.
    pub incarnation: u64,
    /// Its weight.
    pub weight: u32,
    /// The groups that it named.
    pub groups: Vec<Name>,
    /// State of the member.
    pub state: MemberState,
    /// True if the member is to give up its part, also while it is silent.
    pub draining: bool,
    /// Time since this leader heard the member, or was elected if it never did.
    pub heard_ago: Duration,
    /// For how long its leases may still last; zero if it has none.
    pub lease_left: Duration,
    /// The plan that it is to follow.
    pub revision: u64,
    /// The plan that it follows; `None` if it may follow several, or is not known.
    pub follows: Option<u64>,
    /// The version last sent to it.
    pub version: u64,
    /// The version of this epoch that it has in force; 0 before its first.
    pub applied: u64,
    /// Each limit that it shares, or of which it may still hold something.
    pub limits: Vec<RightView>,
}

/// Rights of one member to one limit, in micro-units per second: `may_use` by the plan that it follows, and
/// all else by the one that it is to follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RightView {
    /// The limit.
    pub limit: LimitId,
    /// The most that the member may use now.
    pub may_use: u64,
    /// Planned rate.
    pub target: u64,
    /// Demand, with its margin.
    pub demand: u64,
    /// The static share that it has for certain.
    pub base: u64,
    /// The static share that it is due by weight.
    pub due_base: u64,
    /// The static share that it has when every member has acknowledged the plan: less than it is due if
    /// the seats weigh more than the plan says.
    pub settled_base: u64,
    /// The most that it may use when it was silent for ever; nothing if the plan returns seats.
    pub floor: u64,
}

/// One limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitView {
    /// Its number.
    pub limit: LimitId,
    /// Its name.
    pub name: Name,
    /// The group that shares it; `None` for all members.
    pub group: Option<Name>,
    /// Micro-units per second of the whole limit.
    pub rate: u64,
    /// The same, or more while any member may follow a plan in which it is more: one that is being rolled out, or
    /// an older one until each member that had a part by it has acknowledged another, or its part has ended. All
    /// members together never use more than this.
    pub most: u64,
    /// The most that all members together may use now; never above [`most`](Self::most). What each may use is
    /// known one by one, and for a moment these bounds may sum to more than is there: then it is `most`, and
    /// also while the leader does not know yet what a member has.
    pub in_use: u64,
    /// Micro-units per second that silent members may use, and so nobody else.
    pub held_by_silent: u64,
    /// Micro-units per second that nobody may have after a restore, because members that were not heard
    /// may use them.
    pub reserved: u64,
    /// For how long the member that has waited longest for its planned share has waited.
    pub lag: Duration,
    /// Members without their whole static share, why, and what to do.
    pub shortage: Option<BaseShortage>,
}

impl Ledger {
    /// Everything that an operator may want to see. It costs a pass over all members and limits.
    #[must_use]
    pub fn view(&self, now: Monotonic) -> FleetView {
        let nanos = now.as_nanos();
        let members = self.accounts.values();
        let mut members: Vec<MemberView> = members.map(|a| self.member_view(nanos, a)).collect();
        self.settle_bases(&mut members);
        self.show_own_plans(&mut members);
        let rollout = self.record.rollout.as_ref();
        let follows = |member: &&MemberView| member.follows == Some(member.revision);
        FleetView {
            epoch: self.epoch,
            grants: self.grants(),
            revision: self.record.plan.revision,
            rollout: rollout.map(|rollout| RolloutView {
                revision: rollout.plan.revision,
                stage: rollout.stage,
                band: rollout.band,
            }),
            taken_back: self.record.taken_back.clone(),
            staged: self.record.seats.iter().filter(|seat| seat.staged).count(),
            applied: members.iter().filter(follows).count(),
            restored: self.record.restored.is_some(),
            members,
            limits: self
                .limits
                .iter()
                .filter_map(|limit| self.limit_view(nanos, *limit))
                .collect(),
        }
    }

    /// Settles the bases: no member gives up a static share that the plan gives it, and the rest goes to
    /// those that are to have more.
    fn settle_bases(&self, members: &mut [MemberView]) {
        let whole = |id: &LimitId| (*id, self.record.whole(*id).rate);
        let mut left: BTreeMap<LimitId, u64> = self.limits.iter().map(whole).collect();
        let kept = |right: &RightView| right.base.min(right.settled_base);
        for right in members.iter().flat_map(|member| &member.limits) {
            if let Some(left) = left.get_mut(&right.limit) {
                *left = left.saturating_sub(kept(right));
            }
        }
        for right in members.iter_mut().flat_map(|member| &mut member.limits) {
            if let Some(left) = left.get_mut(&right.limit) {
                let more = (right.settled_base - kept(right)).min(*left);
                *left -= more;
                right.settled_base = kept(right) + more;
            }
        }
    }

    /// Converts the members' rights, which are counted in parts of the limit in force, to the plan that
    /// each is to follow.
    fn show_own_plans(&self, members: &mut [MemberView]) {
        for member in members {
            for right in &mut member.limits {
                let whole = self.record.whole(right.limit).rate;
                let rate = self.record.rate_by(member.revision, right.limit);
                for part in [
                    &mut right.target,
                    &mut right.base,
                    &mut right.due_base,
                    &mut right.settled_base,
                    &mut right.floor,
                ] {
                    *part = same_part(*part, whole, rate);
                }
            }
        }
    }

    fn member_view(&self, now: u64, account: &Account) -> MemberView {
        let seat = &account.seat;
        let state = match account {
            _ if account.left => MemberState::Left,
            _ if !account.known => MemberState::Unknown,
            _ if !account.planned => MemberState::Silent,
            _ if seat.draining => MemberState::Draining,
            _ => MemberState::Active,
        };
        let revision = self.record.plan_of(seat).revision;
        let mut revisions = account.holdings.iter().flat_map(|h| &h.versions);
        let first = revisions.next().map_or(0, |version| version.revision);
        let one = first > 0 && revisions.all(|version| version.revision == first);
        // Who shares no limit, and has nothing left of any, has nothing to apply.
        let mut shared = self.record.plan_of(seat).limits_of(seat);
        let nothing = first == 0 && account.known && shared.next().is_none();
        MemberView {
            member: seat.member,
            incarnation: seat.incarnation,
            weight: seat.weight,
            groups: seat.groups.iter().map(|one| one.group.clone()).collect(),
            state,
            draining: seat.draining,
            heard_ago: Duration::from_nanos(now.saturating_sub(account.heard)),
            lease_left: Duration::from_nanos(account.leases_end().saturating_sub(now)),
            revision,
            follows: match nothing {
                true => Some(revision),
                false => one.then_some(first),
            },
            version: account.version,
            applied: account.applied,
            limits: account
                .holdings
                .iter()
                .map(|holding| self.right_view(now, account, holding))
                .collect(),
        }
    }

    fn right_view(&self, now: u64, account: &Account, holding: &Holding) -> RightView {
        let floors = holding.versions.iter().filter(|v| v.floor_ends == u64::MAX);
        RightView {
            limit: holding.limit,
            may_use: self.may_use(now, holding),
            target: holding.target,
            demand: holding.want,
            base: holding.sure_base(),
            due_base: self.due_base(&account.seat.with_base(), holding.limit),
            settled_base: self.due_base(&account.seat, holding.limit),
            floor: floors.map(|v| v.floor.rate).fold(0, u64::max),
        }
    }

    /// The most that a member may use now, by the plan that it follows.
    fn may_use(&self, now: u64, holding: &Holding) -> u64 {
        let whole = self.record.whole(holding.limit).rate;
        let used = holding.versions.iter();
        let used = used.map(|version| same_part(version.now(now, self.slices), whole, version.of));
        used.fold(0, u64::max)
    }

    fn limit_view(&self, now: u64, id: LimitId) -> Option<LimitView> {
        let limit = self.record.current().find_map(|plan| plan.limit(id))?;
        let guess = self.limits.binary_search(&id).unwrap_or(0);
        let silent = self
            .accounts
            .values()
            .filter(|account| !account.planned && !account.left);
        let held = silent.filter_map(|account| account.holding(id, guess));
        let held = held.map(|holding| self.may_use(now, holding).max(holding.tail()));
        let all_known = self.accounts.values().all(|account| account.known);
        let reserved = self.reserved(guess);
        // Who was not heard may follow any plan, and so may who has what is set aside.
        let largest = match all_known && reserved == 0 {
            true => 0,
            false => self.record.largest_rate(id),
        };
        let mut used = same_part(reserved, self.record.whole(id).rate, largest);
        let rates = self.record.current().map(|plan| plan.whole(id).rate);
        let (mut most, mut lag) = (rates.fold(largest, u64::max), 0);
        for holding in { self.accounts.values() }.filter_map(|a| a.holding(id, guess)) {
            lag = lag.max(holding.lag(now));
            used = self.may_use(now, holding).saturating_add(used);
            most = most.max(holding.largest(now));
        }
        Some(LimitView {
            limit: id,
            name: limit.name.clone(),
            group: limit.group.clone(),
            rate: limit.quota.rate,
            most,
            in_use: if all_known { used.min(most) } else { most },
            held_by_silent: held.fold(0, u64::saturating_add),
            reserved,
            lag: Duration::from_nanos(lag),
            shortage: self.base_shortage(id),
        })
    }

    /// Returns true if a member shares a limit under the plan that it is to follow.
    #[must_use]
    pub fn shares(&self, member: MemberId, limit: LimitId) -> bool {
        let account = self.accounts.get(&member);
        account.is_some_and(|account| {
            shared(self.record.plan_of(&account.seat), &account.seat, limit).is_some()
        })
    }
}
