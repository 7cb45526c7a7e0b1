//! Desired limits: the limits that an operator wants, and the plan that they make for a fleet.

use std::collections::{BTreeMap, BTreeSet};

use quell::rule_store::text_digest;
use quell_shares::plan::{
    Group, Limit, MAX_MEMBERS, Name, Plan, PlanError, Record, ReturnSeats, Size, Sizing, Timing,
};

/// The most nodes of a fleet whose size follows them, unless it is said: each has a call of every burst set
/// aside, so more seats than needed cost burst.
const SEATS: u32 = 100;

/// The limits of a fleet, and what else its plan says, as an operator wants them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredLimits {
    /// The limits; their numbers are given when they are put into force.
    pub limits: Vec<Limit>,
    /// The size of the fleet. Seats that follow the nodes are found by [`DesiredLimits::plan`].
    pub size: Size,
    /// The groups that limits belong to, with their sizes.
    pub groups: Vec<Group>,
    /// The seats of the whole fleet, if they are said.
    pub seats: Option<u32>,
    /// The durations of the protocol.
    pub timing: Timing,
    /// Handling of silent members' seats.
    pub return_seats: ReturnSeats,
    /// The text of the rules that say all this, by its [digest](text_digest):
    /// the text that nodes are to be given. `None` if there is none to give.
    pub rules: Option<Name>,
    /// Time at which a change of all this is put into force.
    pub changes: Changes,
}

/// Time at which the wanted limits are put into force, if they differ from those that are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Changes {
    /// At once, for all members.
    #[default]
    AtOnce,
    /// As an operator rolls them out: [`Service::roll_out`](super::Service::roll_out).
    Staged,
}

impl DesiredLimits {
    /// A mark of all this: another one says that something else is wanted. By it an operator names what was seen.
    #[must_use]
    pub fn mark(&self) -> String {
        let Self {
            limits,
            size,
            groups,
            seats,
            timing,
            return_seats,
            rules,
            changes: _,
        } = self;
        let text =
            format!("{limits:?}{size:?}{groups:?}{seats:?}{timing:?}{return_seats:?}{rules:?}");
        let mut mark = text_digest(&text);
        mark.truncate(32);
        mark
    }

    /// The plan for the members of `record`, or for a new fleet.
    #[must_use]
    pub fn plan(&self, record: Option<&Record>) -> Plan {
        match record {
            Some(record) => self.beside(record).0,
            None => self.with(self.limits.clone(), None),
        }
    }

    /// The plan for the members of `record`, and why it lacks limits that are wanted: one that is not in
    /// force and cannot begin does not keep the others from theirs, among which may be a cut.
    pub(super) fn beside(&self, record: &Record) -> (Plan, Vec<PlanError>) {
        let (mut limits, mut left_out) = (self.limits.clone(), Vec::new());
        loop {
            let plan = self.with(limits, Some(record));
            let why: BTreeMap<_, _> = plan.cannot_begin(Some(&record.plan)).into_iter().collect();
            if why.is_empty() {
                return (plan, left_out);
            }
            limits = plan.limits;
            limits.retain(|limit| !why.contains_key(&limit.name));
            left_out.extend(why.into_values());
        }
    }

    /// The plan without any limit that is not in force.
    pub(super) fn without_new(&self, record: &Record) -> Plan {
        let plan = &record.plan;
        let in_force: BTreeSet<_> = plan.limits.iter().map(Limit::identity).collect();
        let mut limits = self.limits.clone();
        limits.retain(|limit| in_force.contains(&limit.identity()));
        self.with(limits, Some(record))
    }

    fn with(&self, limits: Vec<Limit>, record: Option<&Record>) -> Plan {
        let mut plan = Plan {
            revision: 1,
            limits,
            size: self.size,
            groups: self.groups.clone(),
            timing: self.timing,
            return_seats: self.return_seats,
            rules: { self.rules.clone() }.or_else(|| record?.plan.rules.clone()),
        };
        self.find_seats(&mut plan, record);
        plan
    }

    /// Gives groups whose size follows the nodes so many seats as their limits allow, and never fewer than
    /// are taken: a limit that is cut takes no seat away.
    pub(super) fn find_seats(&self, plan: &mut Plan, record: Option<&Record>) {
        if self.seats.is_none() {
            plan.size.seats = self.seats_of(plan, None, plan.size, record);
        }
        let groups = plan.groups.iter();
        let groups = groups.map(|one| self.seats_of(plan, Some(&one.name), one.size, record));
        let groups: Vec<u32> = groups.collect();
        for (group, seats) in plan.groups.iter_mut().zip(groups) {
            group.size.seats = seats;
        }
    }

    fn seats_of(
        &self,
        plan: &Plan,
        group: Option<&Name>,
        size: Size,
        record: Option<&Record>,
    ) -> u32 {
        if size.sizing == Sizing::Fixed {
            return size.seats;
        }
        let limits = plan.limits.iter();
        let limits: Vec<&Limit> = limits
            .filter(|limit| limit.group.as_ref() == group)
            .collect();
        // Seats of a group without limits cost nothing.
        if limits.is_empty() && group.is_none() {
            return MAX_MEMBERS;
        }
        let most = self.seats.unwrap_or(SEATS).max(1);
        let within = |seats: Option<u64>| {
            seats.map_or(most, |seats| {
                u32::try_from(seats).unwrap_or(most).clamp(1, most)
            })
        };
        let of_rate = |limit: &&Limit| limit.members_by_rate(self.timing.report);
        let by_burst = within(limits.iter().map(|limit| limit.members_by_burst()).min());
        let by_rate = within(limits.iter().map(of_rate).min());
        let Some(record) = record else {
            return by_rate.min(by_burst);
        };
        // Members that left are to find seats again: a limit whose rate is cut takes none, and a new one does.
        let in_force: BTreeSet<_> = record.plan.limits.iter().map(Limit::identity).collect();
        let new = limits
            .iter()
            .filter(|limit| !in_force.contains(&limit.identity()));
        let by_new = within(new.map(of_rate).min());
        let known = record.plan.size_of_group(group);
        let known = known.map_or(0, |size| size.seats.min(by_burst).min(by_new));
        let taken = u32::try_from(record.members_of(group)).unwrap_or(u32::MAX);
        by_rate.min(by_burst).max(known).max(taken)
    }

    /// Reason why the parts of limits are small for the nodes that share them now, for an operator.
    pub(crate) fn small_parts(&self, record: &Record) -> Vec<(Name, PlanError)> {
        // The record has a part of the burst where a call costs more than that.
        let wanted = self.plan(Some(record));
        let plan = if wanted.shares_like(&record.plan) {
            &wanted
        } else {
            &record.plan
        };
        let small = plan.limits.iter().filter_map(|limit| {
            let group = limit.group.as_ref();
            let size = plan.size_of_group(group)?;
            let members = match size.sizing {
                Sizing::Fixed => size.seats,
                Sizing::Auto => u32::try_from(record.members_of(group)).unwrap_or(u32::MAX),
            };
            Some((limit.name.clone(), plan.small_parts(limit, members)?))
        });
        small.collect()
    }
}
