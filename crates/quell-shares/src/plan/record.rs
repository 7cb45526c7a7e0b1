//! Record: the durable state of a fleet.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::{
    Band, Envelope, Limit, LimitId, MemberId, Name, Plan, PlanError, Restored, Rollout, Seat,
    Sizing, Stage, TakenBack,
};
use crate::schedule::Right;

/// The number of older plans that are kept apart for members that may still follow them.
const MAX_OLDER: usize = 8;

/// The durable state: the plan in force, plans that a member may still follow, and the seats.
///
/// It is written as a whole, guarded by the leader's key and by `version`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Rises with every write. Its upper bits are the generation of the fleet (see
    /// [`generation`](crate::generation)), as are those of all numbers in the record: when the
    /// generation is raised, all of them are.
    pub version: u64,
    /// The last incarnation that was given.
    pub incarnations: u64,
    /// The last revision that was given.
    pub revisions: u64,
    /// The last number that was given to a limit.
    pub limit_ids: u64,
    /// The plan in force.
    pub plan: Plan,
    /// The plan that some members follow already.
    pub rollout: Option<Rollout>,
    /// The last one, if a leader took it back by itself.
    pub taken_back: Option<TakenBack>,
    /// Plans under which a member may still hold a right; a leader removes them when all members
    /// have acknowledged a newer one.
    pub older: Vec<Plan>,
    /// Plans before those, if there were too many: one that allows whatever any of them does.
    pub merged: Option<Box<Envelope>>,
    /// Ordered by member.
    pub seats: Vec<Seat>,
    /// Mark of a store that was restored from a backup, so that there may be members that the record does
    /// not know.
    pub restored: Option<Restored>,
}

impl Record {
    /// A record without seats.
    #[must_use]
    pub fn new(plan: Plan) -> Self {
        let mut record = Self {
            version: 0,
            incarnations: 0,
            revisions: plan.revision,
            limit_ids: 0,
            plan: Plan {
                limits: Vec::new(),
                ..plan.clone()
            },
            rollout: None,
            taken_back: None,
            older: Vec::new(),
            merged: None,
            seats: Vec::new(),
            restored: None,
        };
        record.plan = record.numbered(plan);
        record
    }

    /// The seat of a member, if it has one.
    #[must_use]
    pub fn seat(&self, member: MemberId) -> Option<&Seat> {
        let at = self.seats.binary_search_by_key(&member, |seat| seat.member);
        at.ok().and_then(|at| self.seats.get(at))
    }

    pub(crate) fn seat_mut(&mut self, member: MemberId) -> Option<&mut Seat> {
        let at = self.seats.binary_search_by_key(&member, |seat| seat.member);
        at.ok().and_then(|at| self.seats.get_mut(at))
    }

    /// The plan that a member with this seat is to follow.
    #[must_use]
    pub fn plan_of(&self, seat: &Seat) -> &Plan {
        let rollout = self.rollout.as_ref().filter(|_| seat.staged);
        rollout.map_or(&self.plan, |rollout| &rollout.plan)
    }

    /// The plan in force and the one that is being rolled out, if there is one.
    pub fn current(&self) -> impl Iterator<Item = &Plan> {
        let rollout = self.rollout.iter().map(|rollout| &rollout.plan);
        core::iter::once(&self.plan).chain(rollout)
    }

    /// The numbers of the limits of the current plans, in order.
    pub(crate) fn limits(&self) -> Vec<LimitId> {
        let ids = self.current().flat_map(|plan| &plan.limits);
        let mut ids: Vec<LimitId> = ids.map(|limit| limit.id).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// The plan with the numbers of its limits: of those that a current plan has, the same as there;
    /// of others, new ones.
    fn numbered(&mut self, mut plan: Plan) -> Plan {
        let mut known = BTreeMap::new();
        for limit in self.current().flat_map(|plan| &plan.limits) {
            let name = (limit.name.clone(), limit.group.clone());
            known.entry(name).or_insert(limit.id);
        }
        for limit in &mut plan.limits {
            let same = known.get(&(limit.name.clone(), limit.group.clone()));
            limit.id = same.copied().unwrap_or_else(|| {
                self.limit_ids += 1;
                LimitId(self.limit_ids)
            });
        }
        plan.limits.sort_unstable_by_key(|limit| limit.id);
        plan.fit_least_bursts();
        plan
    }

    /// Puts another plan into force, and keeps the previous one for members that still follow it. A
    /// limit that the plan lacks is removed: members give its rights up as they follow the plan. A
    /// rollout ends.
    ///
    /// # Errors
    /// [`PlanError::Seated`] if a group has more members than seats, because each seat has a least
    /// burst.
    pub fn replace_plan(&mut self, plan: Plan) -> Result<(), PlanError> {
        self.seats_fit(&plan)?;
        self.follow(plan);
        Ok(())
    }

    fn seats_fit(&self, plan: &Plan) -> Result<(), PlanError> {
        let mut small = plan.sizes().filter(|(group, size)| {
            usize::try_from(size.seats).is_ok_and(|seats| self.members_of(*group) > seats)
        });
        let small = small.next();
        small.map_or(Ok(()), |(group, _)| Err(PlanError::Seated(group.cloned())))
    }

    pub(super) fn follow(&mut self, plan: Plan) {
        let plan = self.numbered(plan);
        let before = core::mem::replace(&mut self.plan, plan);
        self.retire(before);
        self.taken_back = None;
        if let Some(rollout) = self.rollout.take() {
            self.retire(rollout.plan);
        }
        for seat in &mut self.seats {
            seat.staged = false;
        }
        self.renew();
    }

    /// Gives the current plans new revisions, because what they give the seats changes, and keeps
    /// the previous ones.
    pub(crate) fn plan_again(&mut self) {
        let before: Vec<Plan> = self.current().cloned().collect();
        for plan in before {
            self.retire(plan);
        }
        self.renew();
    }

    /// New revisions, total weights that follow the seats, and static shares for those that fit.
    fn renew(&mut self) {
        let mut last = self.revisions;
        let rollout = self.rollout.iter_mut().map(|rollout| &mut rollout.plan);
        for plan in core::iter::once(&mut self.plan).chain(rollout) {
            last += 1;
            plan.revision = last;
            size_to_seats(plan, &self.seats);
        }
        self.revisions = last;
        self.give_bases();
        self.merge_oldest();
    }

    fn retire(&mut self, plan: Plan) {
        if !self.seats.is_empty() {
            self.older.push(plan);
        }
    }

    fn merge_oldest(&mut self) {
        while self.older.len() > MAX_OLDER {
            self.merge_older();
        }
        self.keep_merged();
    }

    /// Merges the oldest of the plans that are kept apart, so that the record takes less room. Returns
    /// whether there was one.
    pub fn merge_older(&mut self) -> bool {
        if self.older.is_empty() {
            return false;
        }
        let oldest = self.older.remove(0);
        match &mut self.merged {
            Some(merged) => merged.add(&oldest),
            None => self.merged = Some(Box::new(Envelope::new(&oldest))),
        }
        self.keep_merged();
        true
    }

    /// Forgets what merged plans say of limits that nobody has any more.
    fn keep_merged(&mut self) {
        let ids = self.limits();
        if let Some(merged) = &mut self.merged {
            merged.keep(&ids);
        }
    }

    /// This record with all older plans merged, and the current ones as well: a record whose next plan
    /// has the same limits, and no larger numbers, needs no more room than this.
    #[must_use]
    pub fn with_all_merged(&self) -> Self {
        let mut merged = self.clone();
        merged.older.extend(self.current().cloned());
        while merged.merge_older() {}
        merged
    }

    /// Plans again if the seats weigh something else than the plans say that follow them.
    pub(crate) fn resize(&mut self) {
        let follows = |plan: &Plan| {
            plan.sizes().all(|(group, size)| {
                size.sizing == Sizing::Fixed || size.total_weight == self.weight_of(group).max(1)
            })
        };
        if !self.current().all(follows) {
            self.plan_again();
        }
    }

    /// Gives a static share to every seat whose weight fits beside those that have one, in the order
    /// in which their processes started.
    pub(crate) fn give_bases(&mut self) {
        let mut order: Vec<usize> = (0..self.seats.len()).collect();
        order.sort_unstable_by_key(|at| self.seats.get(*at).map(|seat| seat.incarnation));
        let sizes: Vec<(Option<Name>, u64)> = self
            .current()
            .flat_map(Plan::sizes)
            .map(|(group, size)| match size.sizing {
                Sizing::Fixed => (group.cloned(), size.total_weight),
                Sizing::Auto => (group.cloned(), u64::MAX),
            })
            .collect();
        for (group, room) in sizes {
            let group = group.as_ref();
            let based = self.seats.iter().filter(|seat| seat.has_base(group));
            let mut taken: u64 = based.map(|seat| u64::from(seat.weight)).sum();
            for at in &order {
                let Some(seat) = self.seats.get_mut(*at) else {
                    continue;
                };
                let with = taken.saturating_add(u64::from(seat.weight));
                if seat.is_in(group) && !seat.has_base(group) && with <= room {
                    seat.set_base(group);
                    taken = with;
                }
            }
        }
    }

    /// Gives a plan to some members while the others follow the one in force. While that lasts,
    /// every limit is shared by parts: members together never use more than the larger of both
    /// plans allows.
    ///
    /// # Errors
    /// [`PlanError::Seated`] as for [`Record::replace_plan`]; [`PlanError::Member`] if the stage is
    /// a member without a seat.
    pub fn roll_out(
        &mut self,
        plan: Plan,
        stage: Stage,
        band: Option<Band>,
    ) -> Result<(), PlanError> {
        self.seats_fit(&plan)?;
        self.stage_fits(stage)?;
        let plan = self.numbered(plan);
        self.take_back();
        self.taken_back = None;
        self.rollout = Some(Rollout { plan, stage, band });
        self.revisions += 1;
        let (revision, seats) = (self.revisions, &self.seats);
        if let Some(Rollout { plan, .. }) = &mut self.rollout {
            plan.revision = revision;
            size_to_seats(plan, seats);
        }
        self.choose(stage);
        self.give_bases();
        self.merge_oldest();
        Ok(())
    }

    /// Gives the plan that is being rolled out to more members, judged by this band.
    ///
    /// # Errors
    /// [`PlanError::NoRollout`] if there is none, [`PlanError::Member`] as for
    /// [`Record::roll_out`].
    pub fn advance(&mut self, stage: Stage, band: Option<Band>) -> Result<(), PlanError> {
        self.stage_fits(stage)?;
        let rollout = self.rollout.as_mut().ok_or(PlanError::NoRollout)?;
        (rollout.stage, rollout.band) = (stage, band);
        self.choose(stage);
        Ok(())
    }

    /// Puts the plan that is being rolled out into force for all.
    ///
    /// # Errors
    /// [`PlanError::NoRollout`] if there is none.
    pub fn complete(&mut self) -> Result<(), PlanError> {
        let rollout = self.rollout.take().ok_or(PlanError::NoRollout)?;
        let before = core::mem::replace(&mut self.plan, rollout.plan);
        self.end_rollout(before);
        Ok(())
    }

    /// Ends a rollout, if there is one: all members follow the plan in force again.
    pub fn take_back(&mut self) {
        if let Some(rollout) = self.rollout.take() {
            self.end_rollout(rollout.plan);
        }
    }

    fn end_rollout(&mut self, left: Plan) {
        self.retire(left);
        for seat in &mut self.seats {
            seat.staged = false;
        }
        self.merge_oldest();
    }

    fn stage_fits(&self, stage: Stage) -> Result<(), PlanError> {
        match stage {
            Stage::Member(member) if self.seat(member).is_none() => Err(PlanError::Member),
            _ => Ok(()),
        }
    }

    fn choose(&mut self, stage: Stage) {
        match stage {
            Stage::Member(member) => {
                if let Some(seat) = self.seat_mut(member) {
                    seat.staged = true;
                }
            }
            Stage::Percent(percent) => {
                let due = (self.seats.len() * usize::from(percent)).div_ceil(100);
                let staged = self.seats.iter().filter(|seat| seat.staged).count();
                let others = self.seats.iter_mut().filter(|seat| !seat.staged);
                for seat in others.take(due.saturating_sub(staged)) {
                    seat.staged = true;
                }
            }
        }
    }

    /// Removes a member's seat. Returns whether it had one.
    pub fn remove(&mut self, member: MemberId) -> bool {
        let seats = self.seats.len();
        self.seats.retain(|seat| seat.member != member);
        self.seats.len() != seats
    }

    /// Forgets all older plans: no member can follow them any more.
    pub(crate) fn forget_older(&mut self) {
        self.older.clear();
        self.merged = None;
        for seat in &mut self.seats {
            seat.forget_former();
        }
    }

    /// The number of members that share the limits of a group, or may still hold rights in them.
    #[must_use]
    pub fn members_of(&self, group: Option<&Name>) -> usize {
        let members = self.seats.iter().filter(|seat| seat.may_be_in(group));
        members.count()
    }

    /// The sum of the weights of a group's seats; `None` is the group of all.
    #[must_use]
    pub fn weight_of(&self, group: Option<&Name>) -> u64 {
        weight_of(&self.seats, group)
    }

    /// The rate and burst that parts of a limit are parts of: in the plan in force, or in the one that
    /// is being rolled out. Zero if neither has it.
    #[must_use]
    pub fn whole(&self, id: LimitId) -> Right {
        let limit = self.current().find_map(|plan| plan.limit(id));
        limit.map_or(Right::NONE, Limit::whole)
    }

    /// The smallest least burst of a limit in any plan that may be followed.
    pub(crate) fn least_burst(&self, id: LimitId) -> u64 {
        let limits = self.exact().filter_map(|plan| plan.limit(id));
        let merged = self.merged.iter().filter_map(|merged| merged.numbers(id));
        limits
            .map(|limit| limit.quota.least_burst)
            .chain(merged.map(|(least, _)| least))
            .fold(u64::MAX, u64::min)
    }

    /// The largest rate of a limit in any plan that may be followed.
    #[must_use]
    pub fn largest_rate(&self, id: LimitId) -> u64 {
        let merged = self.merged.iter();
        let merged = merged.filter_map(|merged| merged.numbers(id));
        let rates = self.exact().map(|plan| plan.whole(id).rate);
        rates.chain(merged.map(|(_, rate)| rate)).fold(0, u64::max)
    }

    /// The rate of a limit by the plan of a revision; if it is not known which one that is, the largest that it
    /// may be.
    pub(crate) fn rate_by(&self, revision: u64, id: LimitId) -> u64 {
        let mut plans = self.exact();
        let plan = plans.find(|plan| plan.revision == revision);
        plan.map_or_else(|| self.largest_rate(id), |plan| plan.whole(id).rate)
    }

    /// The number of members that a group may have while any of the plans may be followed: additional
    /// seats of a new plan are given only when no member follows a plan with fewer.
    #[must_use]
    pub fn room(&self, group: Option<&Name>) -> usize {
        let merged = self.merged.iter().filter_map(|merged| merged.seats(group));
        let exact = self.exact().filter_map(|plan| plan.size_of_group(group));
        let seats = exact.map(|size| size.seats).chain(merged);
        usize::try_from(seats.fold(u32::MAX, u32::min)).unwrap_or(usize::MAX)
    }

    /// The current plans, the older ones, and one that allows whatever even older ones do.
    pub fn plans(&self) -> impl Iterator<Item = &Plan> {
        let merged = self.merged.iter().map(|merged| &merged.most);
        self.exact().chain(merged)
    }

    fn exact(&self) -> impl Iterator<Item = &Plan> {
        self.current().chain(&self.older)
    }
}

fn weight_of(seats: &[Seat], group: Option<&Name>) -> u64 {
    let members = seats.iter().filter(|seat| seat.is_in(group));
    members.map(|seat| u64::from(seat.weight)).sum()
}

/// Sets the total weights that follow the seats.
fn size_to_seats(plan: &mut Plan, seats: &[Seat]) {
    for (group, size) in plan.sizes_mut() {
        if size.sizing == Sizing::Auto {
            size.total_weight = weight_of(seats, group.as_ref()).max(1);
        }
    }
}
