//! Operations that an operator asks of a leader, and the leader's view of them.

use std::time::Duration;

use quell_core::time::Monotonic;
use quell_shares::leader::{Coordinator, Effect, Elected};
use quell_shares::ledger::{
    FleetView, MemberState, MemberView, Operation, OperationError, RightView,
};
use quell_shares::message::{Held, Join, Leave, Load, NoSeat, Report, Request, Response};
use quell_shares::plan::{
    Band, Drift, Group, Limit, LimitId, MICRO, MemberId, Name, Plan, PlanError, Record, Seat, Size,
    Sizing, Stage, TakenBack, Timing,
};

use crate::support;

fn at(millis: u64) -> Monotonic {
    Monotonic::from_nanos((1_000_000 + millis) * 1_000_000)
}

fn plan(rate: u64) -> Plan {
    support::plan(rate, 4, Sizing::Auto)
}

/// A leader with four members that want all, and the effects that were not handled yet.
struct Fleet {
    leader: Coordinator,
    now: u64,
    /// State of each member: reports so far, version in force, plan that it follows; none before it has
    /// joined.
    members: [(u64, u64, u64); 4],
    /// Members that were told to go.
    told: Vec<(u32, Response)>,
}

impl Fleet {
    fn new() -> Self {
        let mut record = Record::new(plan(1_000));
        let seat = |id| Seat::new(MemberId(id), u64::from(id) + 1, u64::from(id) + 1, 1);
        record.seats = (0..4).map(seat).collect();
        record.incarnations = 4;
        Self::from_record(record)
    }

    /// The same with this record, and those of the members that have seats in it.
    fn from_record(record: Record) -> Self {
        let mut fleet = Self::elected(record);
        fleet.pass(10);
        fleet
    }

    /// The same when nobody has reported yet.
    fn elected(record: Record) -> Self {
        let mut leader = Coordinator::new(Drift::DEFAULT, Duration::from_secs(3));
        let members = [0, 1, 2, 3].map(|id| {
            let plan = u64::from(record.seat(MemberId(id)).is_some());
            (0, 0, plan)
        });
        let elected = Elected {
            revision: 7,
            asked: at(0),
            record,
            snapshot: None,
        };
        leader.elected(at(0), elected);
        Self {
            leader,
            now: 0,
            members,
            told: Vec::new(),
        }
    }

    fn operate(&mut self, operation: Operation) -> Result<(), OperationError> {
        let mut effects = Vec::new();
        let taken = self.leader.operate(at(self.now), operation, &mut effects);
        self.perform(effects);
        taken
    }

    /// A start of a member joins, and is told this.
    fn join(&mut self, id: u32, replaces: u64, groups: &[&'static str]) -> Response {
        let join = Join {
            member: MemberId(id),
            nonce: 90 + u64::from(id) + 10 * replaces,
            weight: 1,
            groups: groups.iter().copied().map(Name::from).collect(),
            exclusive: true,
            replaces,
            floors: Vec::new(),
            gave_up: None,
            epoch: 7,
            record: 0,
        };
        let mut effects = Vec::new();
        let request = Request::Join(join);
        self.leader.receive(at(self.now), request, &mut effects);
        self.told.clear();
        self.perform(effects);
        self.told.remove(0).1
    }

    fn perform(&mut self, mut effects: Vec<Effect>) {
        while let Some(effect) = effects.pop() {
            match effect {
                Effect::Write(record) => self.leader.stored(at(self.now), record, &mut effects),
                Effect::Response { to, answer } => {
                    let member = &mut self.members[usize::try_from(to.0).unwrap()];
                    match answer {
                        Response::Grant(grant) => {
                            (member.1, member.2) = (grant.version, grant.revision);
                        }
                        Response::Push(push) => member.1 = push.version,
                        Response::Hold(_) => {}
                        Response::Joined(joined) => {
                            member.2 = 1;
                            self.told.push((to.0, Response::Joined(joined)));
                        }
                        answer => self.told.push((to.0, answer)),
                    }
                }
                _ => {}
            }
        }
    }

    /// All members that have joined report, this many times.
    fn pass(&mut self, reports: u64) {
        for _ in 0..reports {
            self.now += 500;
            self.leader.kept(7, at(self.now));
            let mut effects = Vec::new();
            self.leader.tick(at(self.now), &mut effects);
            self.perform(effects);
            let joined = |id: &u32| self.members[usize::try_from(*id).unwrap()].2 > 0;
            let joined: Vec<u32> = (0..4).filter(joined).collect();
            for id in joined {
                let request = self.report(id);
                let mut effects = Vec::new();
                self.leader.receive(at(self.now), request, &mut effects);
                self.perform(effects);
            }
        }
    }

    fn report(&mut self, id: u32) -> Request {
        let member = &mut self.members[usize::try_from(id).unwrap()];
        member.0 += 1;
        let limit = LimitId(1);
        let load = Load {
            limit,
            demand: 2_000 * MICRO,
            ..Load::default()
        };
        let held = Held {
            limit,
            ..Held::default()
        };
        Request::Report(Report {
            member: MemberId(id),
            incarnation: u64::from(id) + 1,
            seq: member.0,
            epoch: if member.0 > 1 { 7 } else { 0 },
            applied: member.1,
            revision: member.2,
            record: 0,
            loads: vec![load],
            held: (member.1 == 0).then(|| vec![held]),
        })
    }

    fn view(&self) -> FleetView {
        self.leader.leads(at(self.now)).unwrap().view(at(self.now))
    }

    /// The limit, the most that may be used while members follow different plans, and the most now, in units per
    /// second.
    fn limit(&self) -> [u64; 3] {
        let limit = &self.view().limits[0];
        [limit.rate, limit.most, limit.in_use].map(|rate| rate / MICRO)
    }

    /// Quotas of the members, in units per second.
    fn rates(&self) -> Vec<u64> {
        let members = self.view().members;
        members
            .iter()
            .map(|member| member.limits[0].may_use / MICRO)
            .collect()
    }
}

#[test]
fn a_view_says_for_how_long_leases_last() {
    let mut fleet = Fleet::new();
    let left = |fleet: &Fleet| {
        let members = fleet.view().members;
        let left = members.iter().map(|member| member.lease_left.as_millis());
        left.max().unwrap()
    };
    // 10 s on the member's clock, and a little more by this one.
    assert!(
        (10_000..=10_060).contains(&left(&fleet)),
        "{}",
        left(&fleet)
    );
    let pass = |fleet: &mut Fleet, milliseconds| {
        fleet.now += milliseconds;
        fleet.leader.kept(7, at(fleet.now));
    };
    pass(&mut fleet, 4_000);
    assert!((6_000..=6_060).contains(&left(&fleet)), "{}", left(&fleet));
    pass(&mut fleet, 6_060);
    assert_eq!(left(&fleet), 0);
}

#[test]
fn a_weight_a_drain_and_a_fence_move_shares() {
    let mut fleet = Fleet::new();
    assert_eq!(fleet.rates(), [250, 250, 250, 250]);
    let member = MemberId(0);
    fleet
        .operate(Operation::SetWeight { member, weight: 7 })
        .unwrap();
    fleet.pass(10);
    assert_eq!(fleet.rates(), [700, 100, 100, 100]);
    let view = fleet.view();
    let first = &view.members[0];
    assert_eq!(
        (first.weight, first.state, first.follows),
        (7, MemberState::Active, Some(2))
    );
    assert_eq!(
        (first.limits[0].base, first.limits[0].due_base),
        (700 * MICRO, 700 * MICRO)
    );
    assert_eq!((view.applied, &view.limits[0].shortage), (4, &None));
    fleet
        .operate(Operation::Drain {
            member,
            drain: true,
        })
        .unwrap();
    assert_eq!(fleet.view().members[0].state, MemberState::Draining);
    fleet.pass(8);
    assert_eq!(fleet.rates().len(), 3);
    assert!(fleet.told.contains(&(0, Response::Left { incarnation: 1 })));
    assert!(fleet.rates().iter().all(|rate| (330..=333).contains(rate)));
    let fence = |incarnation| Operation::Fence {
        member: MemberId(1),
        incarnation,
    };
    assert_eq!(
        fleet.operate(fence(1)),
        Err(OperationError::Replaced { incarnation: 2 })
    );
    fleet.operate(fence(2)).unwrap();
    assert_eq!(fleet.rates().len(), 2);
    fleet.pass(4);
    assert_eq!(fleet.rates(), [500, 500]);
}

#[test]
fn a_plan_in_stages_is_shown_and_taken_back() {
    let mut fleet = Fleet::new();
    let stage = Stage::Member(MemberId(2));
    let rollout = |rate| Operation::RollOut {
        plan: plan(rate),
        stage,
        band: None,
    };
    fleet.operate(rollout(100)).unwrap();
    fleet.pass(6);
    let view = fleet.view();
    assert_eq!(
        (
            view.revision,
            view.rollout.map(|one| (one.revision, one.stage)),
            view.staged
        ),
        (1, Some((2, stage)), 1)
    );
    let follows: Vec<_> = view.members.iter().map(|member| member.follows).collect();
    assert_eq!(follows, [Some(1), Some(1), Some(2), Some(1)]);
    // Each by the plan that it follows.
    assert_eq!(fleet.rates(), [250, 250, 25, 250]);
    let rights = view.members.iter().map(|member| &member.limits[0]);
    let shown = rights.map(|right| {
        let right = [
            right.target,
            right.base,
            right.due_base,
            right.settled_base,
            right.floor,
        ];
        right.map(|rate| rate / MICRO)
    });
    let shown: Vec<_> = shown.collect();
    let (others, staged) = ([250, 250, 250, 250, 25], [25, 25, 25, 25, 2]);
    assert_eq!(shown, [others, others, staged, others]);
    assert_eq!(fleet.limit(), [1_000, 1_000, 775]);
    fleet
        .operate(Operation::Advance(Stage::Percent(75), None))
        .unwrap();
    fleet.pass(6);
    assert_eq!((fleet.view().staged, fleet.view().applied), (3, 4));
    fleet.operate(Operation::TakeBack).unwrap();
    fleet.pass(6);
    let view = fleet.view();
    assert_eq!((view.revision, view.rollout, view.applied), (1, None, 4));
    fleet.operate(rollout(2_000)).unwrap();
    fleet.pass(6);
    assert_eq!(fleet.limit(), [1_000, 2_000, 1_250]);
    fleet.operate(Operation::Complete).unwrap();
    fleet.pass(8);
    let view = fleet.view();
    assert_eq!((view.revision, view.rollout, view.applied), (3, None, 4));
    assert_eq!(fleet.rates(), [500, 500, 500, 500]);
}

/// The leader takes back by itself the plan that it judged, and no other; and it says so until the next
/// rollout.
#[test]
fn a_leader_takes_back_what_it_judged() {
    let mut fleet = Fleet::new();
    let rollout = |rate| Operation::RollOut {
        plan: plan(rate),
        stage: Stage::Percent(50),
        band: Some(Band {
            max_refused: Some(50_000),
            max_degraded: None,
            window: Band::WINDOW,
        }),
    };
    let note = TakenBack {
        at_ms: 1,
        why: "it refuses".into(),
    };
    fleet.operate(rollout(100)).unwrap();
    fleet.pass(6);
    let judged = fleet.view().rollout.unwrap().revision;
    let back = |revision| Operation::TakeBackOf {
        revision,
        note: note.clone(),
    };
    // Meanwhile an operator rolls out another one.
    fleet.operate(rollout(500)).unwrap();
    fleet.operate(back(judged)).unwrap();
    fleet.pass(6);
    let view = fleet.view();
    assert_eq!((view.staged, &view.taken_back), (2, &None));
    fleet.operate(back(view.rollout.unwrap().revision)).unwrap();
    fleet.pass(6);
    let view = fleet.view();
    assert_eq!((view.rollout, view.staged), (None, 0));
    assert_eq!(view.taken_back, Some(note.clone()));
    assert_eq!(fleet.rates(), [250, 250, 250, 250]);
    fleet.operate(rollout(500)).unwrap();
    fleet.pass(6);
    assert_eq!(fleet.view().taken_back, None);
}

/// The member leaves while the change waits for the write before it.
#[test]
fn a_change_that_comes_too_late_is_told_as_refused() {
    let mut fleet = Fleet::new();
    let (weight, drain) = (
        Operation::SetWeight {
            member: MemberId(1),
            weight: 2,
        },
        Operation::Drain {
            member: MemberId(2),
            drain: true,
        },
    );
    let (now, mut effects) = (at(fleet.now), Vec::new());
    for operation in [&weight, &drain] {
        let taken = fleet.leader.operate(now, operation.clone(), &mut effects);
        assert_eq!(taken, Ok(()));
    }
    let leave = Leave {
        member: MemberId(2),
        incarnation: 3,
    };
    fleet
        .leader
        .receive(now, Request::Leave(leave), &mut effects);
    let result = |fleet: &Fleet, operation| fleet.leader.leads(now).unwrap().result(operation);
    assert_eq!(result(&fleet, &weight), None);
    fleet.perform(effects);
    assert_eq!(result(&fleet, &weight), Some(Ok(())));
    assert_eq!(result(&fleet, &drain), Some(Err(OperationError::NoSeat)));
}

/// A member that goes on has its seat, or an operator is told that it is too late.
#[test]
fn a_drain_that_is_undone_is_undone() {
    let member = MemberId(2);
    let drain = |drain| Operation::Drain { member, drain };
    let (mut gone, mut stays) = (0, 0);
    for reports in 0..12 {
        let mut fleet = Fleet::new();
        fleet.operate(drain(true)).unwrap();
        fleet.pass(reports);
        // The leader finds out that it has nothing at any time, also while the word of the operator is on
        // its way to the store.
        let (now, mut effects) = (at(fleet.now), Vec::new());
        let undone = fleet.leader.operate(now, drain(false), &mut effects);
        fleet.leader.tick(now, &mut effects);
        let report = fleet.report(2);
        fleet.leader.receive(now, report, &mut effects);
        fleet.leader.tick(now, &mut effects);
        fleet.perform(effects);
        fleet.pass(10);
        let has_seat = fleet.view().members.iter().any(|one| one.member == member);
        assert_eq!(
            undone.is_ok(),
            has_seat,
            "after {reports} reports: {undone:?}"
        );
        if has_seat {
            assert_eq!(fleet.rates(), [250; 4], "after {reports} reports");
            stays += 1;
        } else {
            gone += 1;
        }
    }
    assert!(gone > 0 && stays > 0, "{gone} {stays}");
}

/// The answer to the second join names a start that the process is not.
#[test]
fn a_start_that_was_seated_twice_is_told() {
    let mut fleet = Fleet::new();
    fleet.operate(Operation::Deregister(MemberId(1))).unwrap();
    fleet.join(1, 0, &[]);
    fleet.told.clear();
    fleet.pass(20);
    let told = |(to, answer): &(u32, Response)| {
        *to == 1 && matches!(answer, Response::Unknown { incarnation: 2, .. })
    };
    assert!(fleet.told.iter().any(told), "{:?}", fleet.told);
}

/// The fleet has four seats, and the group `gpu` two.
#[test]
fn who_joins_with_a_group_takes_a_seat_of_it_or_is_refused() {
    let mut wanted = plan(1_000);
    let render = Limit::new("render", wanted.limits[0].quota);
    wanted.limits.push(render.of_group("gpu"));
    wanted.groups.push(Group {
        name: "gpu".into(),
        size: Size {
            total_weight: 2,
            seats: 2,
            sizing: Sizing::Fixed,
        },
    });
    let mut fleet = Fleet::from_record(Record::new(wanted));
    let is_seated = |answer: &Response| matches!(answer, Response::Joined(_));
    assert!(is_seated(&fleet.join(0, 0, &[])));
    assert!(is_seated(&fleet.join(1, 0, &["gpu"])));
    assert!(is_seated(&fleet.join(2, 0, &["gpu", "gpu"])));
    let refused = |why| Response::Unknown {
        incarnation: 0,
        epoch: 7,
        retry: Timing::DEFAULT.lease,
        no_seat: Some(why),
    };
    let full = refused(NoSeat::Full(Some("gpu".into())));
    // A group that no limit is of would only fill the record.
    let no_group = refused(NoSeat::NoGroup("unheard-of".into()));
    assert_eq!(fleet.join(3, 0, &["unheard-of"]), no_group);
    assert_eq!(fleet.join(3, 0, &["gpu"]), full);
    fleet.pass(10);
    // Of each member: its limits, and its static share of each.
    let bases = |fleet: &Fleet| -> Vec<(u32, Vec<(u64, u64)>)> {
        let members = fleet.view().members;
        let base = |right: &RightView| (right.limit.0, right.base / MICRO);
        let of = |member: &MemberView| member.limits.iter().map(base).collect();
        members.iter().map(|it| (it.member.0, of(it))).collect()
    };
    let [third, half] = [(1, 333), (2, 500)];
    assert_eq!(
        bases(&fleet),
        [
            (0, vec![third]),
            (1, vec![third, half]),
            (2, vec![third, half])
        ]
    );
    // A later start that names the group as well is refused, and the seat stays that of the start before.
    assert_eq!(fleet.join(0, 1, &["gpu"]), full);
    assert_eq!(fleet.view().members[0].incarnation, 1);
    // A seat in the group is free again, and its limit is never exceeded on the way.
    fleet.operate(Operation::Deregister(MemberId(1))).unwrap();
    assert!(is_seated(&fleet.join(3, 0, &["gpu"])));
    for _ in 0..10 {
        fleet.pass(1);
        let members = fleet.view().members;
        let rights = members.iter().flat_map(|member| &member.limits);
        let of_group = rights.filter(|right| right.limit == LimitId(2));
        let sum: u64 = of_group.map(|right| right.may_use).sum();
        assert!(sum <= 1_000 * MICRO, "{sum}");
    }
    assert_eq!(
        bases(&fleet),
        [
            (0, vec![third]),
            (2, vec![third, half]),
            (3, vec![third, half])
        ]
    );
}

#[test]
fn the_view_says_how_long_a_member_waits_for_its_share() {
    let mut fleet = Fleet::new();
    let lag = |fleet: &Fleet| {
        fleet
            .leader
            .leads(at(fleet.now))
            .unwrap()
            .view(at(fleet.now))
            .limits[0]
            .lag
    };
    assert_eq!(lag(&fleet), Duration::ZERO);
    let member = MemberId(1);
    fleet
        .operate(Operation::SetWeight { member, weight: 5 })
        .unwrap();
    // It is planned, and nobody reports.
    fleet.now += 300;
    fleet.leader.tick(at(fleet.now), &mut Vec::new());
    fleet.now += 200;
    assert_eq!(lag(&fleet), Duration::from_millis(200));
    fleet.pass(10);
    assert_eq!(lag(&fleet), Duration::ZERO);
}

/// A cut from 1000/s to 1/s of four members, which cannot admit a call then.
#[test]
fn a_cut_is_never_refused() {
    let mut fleet = Fleet::new();
    fleet.pass(10);
    fleet.operate(Operation::SetPlan(plan(1))).unwrap();
    fleet.pass(30);
    let view = fleet.view();
    assert_eq!((view.applied, view.limits[0].rate), (4, MICRO));
    assert!(view.limits[0].in_use <= MICRO, "{:?}", view.limits);
    fleet.operate(Operation::SetPlan(plan(1_000))).unwrap();
    fleet.pass(30);
    assert_eq!(fleet.rates(), [250; 4]);
}

/// One that hears nothing of two cuts goes on with its part of the limit before, and so far nobody promises that
/// all use less.
#[test]
fn a_limit_that_is_cut_falls_when_nobody_has_a_part_of_the_larger_one() {
    let mut fleet = Fleet::new();
    fleet.members[3].2 = 0;
    fleet.operate(Operation::SetPlan(plan(500))).unwrap();
    assert_eq!(fleet.limit(), [500, 1_000, 1_000]);
    fleet.pass(6);
    fleet.operate(Operation::SetPlan(plan(100))).unwrap();
    assert_eq!(fleet.limit(), [100, 1_000, 625]);
    fleet.pass(6);
    assert_eq!(fleet.rates(), [25, 25, 25, 250]);
    assert_eq!(fleet.limit(), [100, 1_000, 325]);
    // It is heard, and acknowledges.
    fleet.members[3].2 = 1;
    fleet.pass(6);
    assert_eq!(fleet.limit(), [100; 3]);
    fleet.operate(Operation::SetPlan(plan(10))).unwrap();
    assert_eq!(fleet.limit(), [10, 100, 100]);
    fleet.pass(6);
    assert_eq!(fleet.limit(), [10; 3]);
    // A part that ends by itself, or whose member is dead, is nobody's any more.
    fleet.operate(Operation::SetPlan(plan(100))).unwrap();
    fleet.pass(6);
    fleet.members[3].2 = 0;
    fleet.operate(Operation::SetPlan(plan(10))).unwrap();
    fleet.pass(30);
    assert_eq!(fleet.limit(), [10, 100, 32]);
    let dead = Operation::Deregister(MemberId(3));
    fleet.operate(dead).unwrap();
    assert_eq!(fleet.limit(), [10, 10, 7]);
}

/// Also when it was told of that limit by a leader that is gone, a dozen plans ago.
#[test]
fn a_new_leader_knows_the_largest_limit_that_a_silent_member_may_follow() {
    let mut fleet = Fleet::new();
    fleet.members[3].2 = 0;
    for rate in (1..=12).rev() {
        fleet.operate(Operation::SetPlan(plan(20 * rate))).unwrap();
        fleet.pass(2);
    }
    assert_eq!(fleet.limit(), [20, 1_000, 265]);
    let record = fleet.leader.leads(at(fleet.now)).unwrap().record().clone();
    assert!(record.merged.is_some());
    let mut fleet = Fleet::elected(record);
    fleet.members[3].2 = 0;
    fleet.leader.kept(7, at(0));
    assert_eq!(fleet.limit(), [20, 1_000, 1_000]);
    fleet.pass(40);
    assert_eq!(fleet.rates(), [5, 5, 5, 250]);
    assert_eq!(fleet.limit(), [20, 1_000, 265]);
    // Its successor, which it tells all that it knows, is told this as well.
    let (mut left, mut effects) = (fleet.leader.clone(), Vec::new());
    let snapshot = left.hand_over(at(fleet.now), &mut effects);
    assert!(snapshot.is_some());
    let record = fleet.leader.leads(at(fleet.now)).unwrap().record().clone();
    let elected = Elected {
        revision: 8,
        asked: at(fleet.now),
        record,
        snapshot,
    };
    fleet.leader = Coordinator::new(Drift::DEFAULT, Duration::from_secs(3));
    fleet.leader.elected(at(fleet.now), elected);
    assert_eq!(fleet.limit(), [20, 1_000, 265]);
}

/// Weights of five beside a size of four: what the heavier one is due is not there.
#[test]
fn a_settled_share_fits_beside_the_others() {
    let mut fixed = plan(1_000);
    fixed.size.sizing = Sizing::Fixed;
    let mut record = Record::new(fixed);
    let seat = |id| Seat::new(MemberId(id), u64::from(id) + 1, u64::from(id) + 1, 1);
    record.seats = (0..4).map(seat).collect();
    record.incarnations = 4;
    let mut fleet = Fleet::from_record(record);
    fleet.pass(10);
    let member = MemberId(0);
    fleet
        .operate(Operation::SetWeight { member, weight: 2 })
        .unwrap();
    let bases = |fleet: &Fleet| {
        let view = fleet.view();
        let rights = view.members.iter().map(|member| member.limits[0]);
        let both = rights.map(|right| (right.due_base / MICRO, right.settled_base / MICRO));
        both.collect::<Vec<_>>()
    };
    let expected = [(500, 250), (250, 250), (250, 250), (250, 250)];
    assert_eq!(bases(&fleet), expected);
    fleet.pass(10);
    assert_eq!(bases(&fleet), expected);
    let view = fleet.view();
    let bases = view.members.iter().map(|member| member.limits[0].base);
    assert!(bases.eq([250 * MICRO; 4]), "{view:?}");
    // When there is room, it is given.
    let member = MemberId(1);
    fleet.operate(Operation::Deregister(member)).unwrap();
    assert_eq!(bases_of_first(&fleet), (500, 500));
}

fn bases_of_first(fleet: &Fleet) -> (u64, u64) {
    let right = fleet.view().members[0].limits[0];
    (right.due_base / MICRO, right.settled_base / MICRO)
}

#[test]
fn what_cannot_be_done_is_refused() {
    let mut fleet = Fleet::new();
    let nobody = MemberId(9);
    let drain = Operation::Drain {
        member: nobody,
        drain: true,
    };
    assert_eq!(fleet.operate(drain), Err(OperationError::NoSeat));
    let fence = |member, incarnation| Operation::Fence {
        member,
        incarnation,
    };
    // Nothing is done, and so nothing is said to be done.
    for gone in [fence(nobody, 1), Operation::Deregister(nobody)] {
        assert_eq!(fleet.operate(gone), Err(OperationError::NoSeat));
    }
    let (mut other, first) = (Fleet::new(), fence(MemberId(0), 1));
    other.operate(first.clone()).unwrap();
    let result = other.leader.leads(at(other.now)).unwrap().result(&first);
    assert_eq!(result, Some(Ok(())));
    assert_eq!(other.operate(first), Err(OperationError::NoSeat));
    let weight = |member, weight| Operation::SetWeight { member, weight };
    assert_eq!(
        fleet.operate(weight(MemberId(1), 0)),
        Err(OperationError::Weight)
    );
    assert_eq!(
        fleet.operate(weight(nobody, 1)),
        Err(OperationError::NoSeat)
    );
    let refused = |error| Err(OperationError::Plan(error));
    let mut small = plan(1);
    small.limits[0].name = "new".into();
    let small = fleet.operate(Operation::SetPlan(small));
    let is_small = matches!(small, Err(OperationError::Plan(PlanError::SmallBurst(_))));
    assert!(is_small, "{small:?}");
    let mut few = plan(1_000);
    few.size.seats = 3;
    assert_eq!(
        fleet.operate(Operation::SetPlan(few)),
        refused(PlanError::Seated(None))
    );
    let stage = Stage::Percent(10);
    assert_eq!(
        fleet.operate(Operation::Advance(stage, None)),
        refused(PlanError::NoRollout)
    );
    let stage = Stage::Member(nobody);
    let rollout = Operation::RollOut {
        plan: plan(1_000),
        stage,
        band: None,
    };
    assert_eq!(fleet.operate(rollout), refused(PlanError::Member));
    fleet.now += 10_000;
    let late = fleet.operate(Operation::TakeBack);
    assert_eq!(late, Err(OperationError::Elsewhere(None)));
}
