//! Reserved parts after the store was restored, and the events that lower them.

use std::time::Duration;

use quell_core::time::Monotonic;
use quell_shares::generation;
use quell_shares::leader::{Coordinator, Effect, Elected};
use quell_shares::ledger::Operation;
use quell_shares::message::{GivenUp, Held, Join, Kept, Report, Request};
use quell_shares::plan::{
    Drift, LimitId, MICRO, MemberId, Plan, Record, Restored, ReturnSeats, Seat, Sizing, Timing,
};
use quell_shares::schedule::Right;

use crate::support::plan;

const GENERATION: u64 = 3;

fn at(seconds: u64) -> Monotonic {
    Monotonic::from_nanos((1_000 + seconds) * 1_000_000_000)
}

const fn right(units: u64) -> Right {
    Right {
        rate: units * MICRO,
        burst: units * MICRO,
    }
}

/// Four members of a limit, whose seats come back one second after F.
fn record(rate: u64) -> Record {
    let mut plan = plan(rate, 4, Sizing::Auto);
    // With room for two more.
    plan.size.seats = 6;
    let mut record = Record::new(Plan {
        return_seats: ReturnSeats::After(Duration::from_secs(1)),
        ..plan
    });
    let seat = |id| Seat::new(MemberId(id), u64::from(id) + 1, u64::from(id) + 1, 1);
    record.seats = (0..4).map(seat).collect();
    record.incarnations = 4;
    let lease = Timing::DEFAULT.lease;
    record
        .raise_generation(GENERATION, Restored { lease })
        .unwrap();
    record
}

struct Leader {
    core: Coordinator,
    epoch: u64,
    now: u64,
}

impl Leader {
    fn new() -> Self {
        Self::with_rate(1_000)
    }

    fn with_rate(rate: u64) -> Self {
        let mut core = Coordinator::new(Drift::DEFAULT, Duration::from_secs(3));
        let elected = Elected {
            revision: 7,
            asked: at(0),
            record: record(rate),
            snapshot: None,
        };
        core.elected(at(0), elected);
        Self {
            core,
            epoch: generation::number(GENERATION, 7),
            now: 0,
        }
    }

    /// The key is kept, and nobody reports.
    fn pass(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.now += 1;
            self.core.kept(self.epoch, at(self.now));
            let mut effects = Vec::new();
            self.core.tick(at(self.now), &mut effects);
            self.store(effects);
        }
    }

    fn store(&mut self, mut effects: Vec<Effect>) {
        while let Some(effect) = effects.pop() {
            if let Effect::Write(record) = effect {
                self.core.stored(at(self.now), record, &mut effects);
            }
        }
    }

    /// A member reports twice: it is told of the leader, and says what it has.
    fn hear(&mut self, id: u32, base: u64, base_for: Duration) {
        let held = Held {
            limit: LimitId(1),
            base: right(base),
            base_for,
            floor: right(25),
            floor_for: Some(base_for + Duration::from_secs(1)),
            whole: right(1_000),
            ..Held::default()
        };
        for (seq, epoch) in [(1, 0), (2, self.epoch)] {
            let report = Report {
                member: MemberId(id),
                incarnation: u64::from(id) + 1,
                seq,
                epoch,
                applied: 0,
                revision: 1,
                record: 0,
                loads: Vec::new(),
                held: Some(vec![held]),
            };
            let mut effects = Vec::new();
            let request = Request::Report(report);
            self.core.receive(at(self.now), request, &mut effects);
            self.store(effects);
        }
    }

    /// A process joins, in place of that start of its member, and says that it has a part of the limit by
    /// its snapshot, or that it gave it up.
    fn join(&mut self, (id, nonce, replaces): (u32, u64, u64), has: u64, gave_up: bool) {
        let kept = vec![Kept {
            limit: LimitId(1),
            right: right(has),
            whole: right(1_000),
        }];
        let epoch = self.epoch;
        let (floors, gave_up) = match gave_up {
            true => (Vec::new(), Some(GivenUp { epoch, bases: kept })),
            false => (kept, None),
        };
        let join = Join {
            member: MemberId(id),
            nonce,
            weight: 1,
            groups: Vec::new(),
            exclusive: true,
            replaces,
            floors,
            gave_up,
            epoch: 0,
            record: 0,
        };
        let mut effects = Vec::new();
        let request = Request::Join(join);
        self.core.receive(at(self.now), request, &mut effects);
        self.store(effects);
        let record = self.core.leads(at(self.now)).unwrap().record();
        assert_eq!(record.seat(MemberId(id)).unwrap().nonce, nonce);
    }

    fn incarnation(&self, id: u32) -> u64 {
        let record = self.core.leads(at(self.now)).unwrap().record();
        record.seat(MemberId(id)).unwrap().incarnation
    }

    /// Reserved units per second, and the number of members that have a seat.
    fn reserved(&self) -> (u64, usize) {
        let view = self.core.leads(at(self.now)).unwrap().view(at(self.now));
        let reserved = view.limits[0].reserved;
        assert_eq!(view.restored, reserved > 0);
        (reserved.div_ceil(MICRO), view.members.len())
    }
}

#[test]
fn a_base_that_ends_while_an_older_leader_may_decide_is_a_floor() {
    let mut leader = Leader::new();
    leader.hear(0, 250, Duration::from_secs(3));
    assert_eq!(leader.reserved(), (975, 4));
    leader.hear(1, 250, Duration::from_secs(4));
    assert_eq!(leader.reserved(), (725, 4));
}

/// The backup knows a limit of 100/s, and since then there was one of 1000/s.
#[test]
fn a_limit_that_is_not_known_is_what_members_say() {
    let mut leader = Leader::with_rate(100);
    let limit = |leader: &Leader| {
        let view = leader
            .core
            .leads(at(leader.now))
            .unwrap()
            .view(at(leader.now));
        let limit = &view.limits[0];
        [limit.rate, limit.most, limit.in_use].map(|rate| rate / MICRO)
    };
    assert_eq!(limit(&leader), [100; 3]);
    leader.hear(0, 250, Duration::from_secs(290));
    assert_eq!(limit(&leader), [100, 1_000, 1_000]);
    leader.pass(30);
    assert_eq!(limit(&leader), [100, 1_000, 325]);
}

#[test]
fn only_reports_lower_what_is_reserved() {
    let mut leader = Leader::new();
    assert_eq!(leader.reserved(), (1_000, 4));
    leader.hear(0, 250, Duration::from_secs(290));
    assert_eq!(leader.reserved(), (750, 4));
    // Another record of the weights gave the second one more.
    leader.hear(1, 300, Duration::from_secs(290));
    assert_eq!(leader.reserved(), (450, 4));
    // It is long after F; the seats of those that were heard come back.
    leader.pass(3_600);
    assert_eq!(leader.reserved(), (450, 2));
    leader.hear(2, 250, Duration::ZERO);
    assert_eq!(leader.reserved(), (425, 2));
    let mut effects = Vec::new();
    let dead = Operation::Deregister(MemberId(3));
    let taken = leader.core.operate(at(leader.now), dead, &mut effects);
    taken.unwrap();
    leader.store(effects);
    assert_eq!(leader.reserved(), (425, 1));
    let ledger = leader.core.leads(at(leader.now)).unwrap();
    let mut record = ledger.record().clone();
    record.version += 1;
    record.mark_all_heard();
    leader.store(vec![Effect::Write(record)]);
    assert_eq!(leader.reserved(), (0, 1));
}

/// Anybody with the credential of a node can say that it had the whole limit, and gave it up.
#[test]
fn who_had_no_seat_lowers_nothing_and_who_had_one_its_own_part() {
    let mut leader = Leader::new();
    for (at, gave_up) in [true, false].into_iter().enumerate() {
        let liar = 4_242 + u32::try_from(at).unwrap();
        leader.join((liar, 70, 0), 1_000, gave_up);
        assert_eq!(leader.reserved(), (1_000, 5 + at));
        // As a later start of its own, too.
        leader.join((liar, 71, leader.incarnation(liar)), 1_000, gave_up);
        assert_eq!(leader.reserved(), (1_000, 5 + at));
    }
    // Of this one the record says what it had at most.
    leader.join((2, 72, 3), 1_000, true);
    assert_eq!(leader.reserved().0, 750);
    leader.join((3, 73, 4), 100, true);
    assert_eq!(leader.reserved().0, 650);
}
