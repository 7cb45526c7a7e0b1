//! Members that a leader believes when they say that the store went back.

use std::time::Duration;

use quell_core::time::Monotonic;
use quell_shares::generation;
use quell_shares::leader::{Coordinator, Effect, Elected, Number};
use quell_shares::message::{Join, Report, Request, Response};
use quell_shares::plan::{Drift, MemberId, Record, Seat, Sizing};

use crate::support::plan;

/// The key of the leader, and so its epoch.
const KEY: u64 = 7;

fn at(millis: u64) -> Monotonic {
    Monotonic::from_nanos(1_000_000_000_000 + millis * 1_000_000)
}

/// A leader of three members that grants.
struct Leader {
    core: Coordinator,
    now: u64,
    seq: u64,
    verifies: usize,
    alarms: Vec<String>,
}

impl Leader {
    fn new() -> Self {
        let mut record = Record::new(plan(1_000, 3, Sizing::Fixed));
        record.seats = [1, 2, 3]
            .map(|id| Seat::new(MemberId(id), u64::from(id), u64::from(id), 1))
            .to_vec();
        record.incarnations = 3;
        record.version = 20;
        let mut core = Coordinator::new(Drift::DEFAULT, Duration::from_secs(3));
        let elected = Elected {
            revision: KEY,
            asked: at(0),
            record,
            snapshot: None,
        };
        core.elected(at(0), elected);
        let mut leader = Self {
            core,
            now: 0,
            seq: 0,
            verifies: 0,
            alarms: Vec::new(),
        };
        leader.pass(20_000);
        assert!(leader.grants(1));
        leader
    }

    /// Keeps the key.
    fn pass(&mut self, millis: u64) {
        let end = self.now + millis;
        while self.now < end {
            self.now = (self.now + 500).min(end);
            self.core.kept(KEY, at(self.now));
            let mut effects = Vec::new();
            self.core.tick(at(self.now), &mut effects);
            self.carry_out(effects);
        }
    }

    /// The store says that the key is held, and the record as it was.
    fn carry_out(&mut self, mut effects: Vec<Effect>) -> Vec<Response> {
        let mut answers = Vec::new();
        while !effects.is_empty() {
            for effect in std::mem::take(&mut effects) {
                match effect {
                    Effect::Response { answer, .. } => answers.push(answer),
                    Effect::Verify { .. } => {
                        self.verifies += 1;
                        let record = self.core.leads(at(self.now)).unwrap().record().clone();
                        self.core
                            .verified(at(self.now), at(self.now), record, &mut effects);
                    }
                    Effect::StoreRollback(proof) => self.alarms.push(proof.to_string()),
                    Effect::Write(record) => {
                        self.core.stored(at(self.now), record, &mut effects);
                    }
                    _ => {}
                }
            }
        }
        answers
    }

    fn hear(&mut self, request: Request) -> Vec<Response> {
        let mut effects = Vec::new();
        self.core.receive(at(self.now), request, &mut effects);
        self.carry_out(effects)
    }

    fn report(&mut self, member: u32, (epoch, record): (u64, u64)) -> Vec<Response> {
        self.seq += 1;
        self.hear(Request::Report(Report {
            member: MemberId(member),
            incarnation: u64::from(member),
            seq: self.seq,
            epoch,
            applied: 0,
            revision: 1,
            record,
            loads: Vec::new(),
            held: Some(Vec::new()),
        }))
    }

    /// A member reports that names nothing.
    fn grants(&mut self, member: u32) -> bool {
        let answers = self.report(member, (0, 0));
        answers
            .iter()
            .any(|answer| matches!(answer, Response::Grant(_)))
    }

    fn is_stopped(&self) -> bool {
        self.core.is_stopped()
    }
}

fn join(member: u32, numbers: u64) -> Request {
    Request::Join(Join {
        member: MemberId(member),
        nonce: 1,
        weight: 1,
        groups: Vec::new(),
        exclusive: true,
        replaces: numbers,
        floors: Vec::new(),
        gave_up: None,
        epoch: numbers,
        record: numbers,
    })
}

#[test]
fn who_has_no_seat_stops_no_leader() {
    let mut leader = Leader::new();
    leader.hear(join(4_242, u64::MAX));
    assert!(leader.grants(1), "{:?}", leader.alarms);
    // However many there are, also with the number of a member, or an incarnation that it does not have.
    for member in (1..1_000).chain(4_242..4_300) {
        leader.hear(join(member, 1_000));
        leader.seq += 1;
        let report = Report {
            member: MemberId(member),
            incarnation: 1_000,
            seq: leader.seq,
            epoch: 1_000,
            applied: 0,
            revision: 1,
            record: 1_000,
            loads: Vec::new(),
            held: Some(Vec::new()),
        };
        leader.hear(Request::Report(report));
        leader.pass(10);
    }
    assert!(leader.grants(1) && leader.grants(2) && leader.grants(3));
    assert_eq!(
        (leader.alarms.len(), leader.core.store_rollback()),
        (0, None)
    );
    // The store is asked now and then, and an operator is told what it may be.
    assert!(leader.verifies < 40, "{}", leader.verifies);
    let told = leader.core.unproven().unwrap();
    assert!(told.members <= 67, "{told:?}");
    assert_eq!(told.least_generation, 1, "{told}");
    // It is forgotten when they fall silent.
    leader.pass(31_000);
    assert_eq!(leader.core.unproven(), None);
}

#[test]
fn two_members_with_seats_prove_it_for_as_long_as_both_say_so() {
    let mut leader = Leader::new();
    leader.report(1, (12, 0));
    leader.pass(1_000);
    // One alone proves nothing, and is granted nothing, because it obeys a later leader.
    assert!(!leader.is_stopped() && leader.grants(2));
    let told = leader.core.unproven().unwrap().to_string();
    assert!(told.starts_with("member 1 names numbers"), "{told}");
    leader.report(3, (11, 0));
    leader.pass(1_000);
    assert!(leader.is_stopped() && !leader.grants(2));
    let proof = leader.core.store_rollback().unwrap();
    assert_eq!(
        (proof.number, proof.seen, proof.stored),
        (Number::Epoch, 11, KEY)
    );
    assert_eq!(leader.alarms.len(), 1);
    assert!(
        leader.alarms[0].contains("member 3 and 1 more have seen epoch 11"),
        "{:?}",
        leader.alarms
    );
    // It lasts while both say so, and no longer.
    for _ in 0..10 {
        leader.pass(10_000);
        leader.report(1, (12, 0));
        leader.report(3, (11, 0));
        assert!(leader.is_stopped());
    }
    for _ in 0..4 {
        leader.pass(10_000);
        leader.report(1, (12, 0));
    }
    assert!(!leader.is_stopped() && leader.grants(2) && leader.grants(3));
    // Nor does one that says something else from then on.
    leader.report(3, (11, 0));
    leader.pass(1_000);
    assert!(leader.is_stopped());
    leader.report(3, (0, 0));
    assert!(!leader.is_stopped() && leader.grants(3));
    assert_eq!(leader.alarms.len(), 1);
}

#[test]
fn a_generation_that_nobody_raised_is_not_believed() {
    let mut leader = Leader::new();
    let highest = generation::number(generation::HIGHEST, 5);
    let raised = generation::number(3, 5);
    for numbers in [(highest, 0), (0, highest)] {
        leader.report(1, numbers);
        leader.report(2, (raised, 0));
        leader.pass(1_000);
        assert!(!leader.is_stopped() && leader.grants(3));
        // The command that is named is one that works, if two say so: a store that went back to before
        // an earlier restore.
        assert_eq!(leader.core.unproven().unwrap().least_generation, 4);
    }
    assert_eq!(leader.alarms.len(), 0);
}

/// A coordinator that saw it itself needs no witness.
#[test]
fn a_coordinator_that_saw_the_store_go_back_leads_on_only_with_its_own_key() {
    let mut leader = Leader::new();
    let mut effects = Vec::new();
    let seen = (Number::Revision, 90, 60);
    leader
        .core
        .store_went_back(at(leader.now), seen, &mut effects);
    leader.carry_out(effects);
    leader.pass(1_000);
    assert!(!leader.is_stopped() && leader.grants(1));
    assert!(
        leader.alarms[0].contains("leads on with what it knows"),
        "{:?}",
        leader.alarms
    );
    // Elected again it does not know what happened in between.
    let record = leader.core.leads(at(leader.now)).unwrap().record().clone();
    let mut effects = Vec::new();
    let lost = quell_shares::leader::Why::KeyLost;
    leader.core.step_down(lost, &mut effects);
    assert!(leader.core.store_rollback().is_some());
    let elect = |leader: &mut Leader, record: Record| {
        let elected = Elected {
            revision: 95,
            asked: at(leader.now),
            record,
            snapshot: None,
        };
        leader.core.elected(at(leader.now), elected);
    };
    elect(&mut leader, record.clone());
    assert!(leader.is_stopped());
    // Until the generation is raised.
    let mut raised = record;
    raised.raise_generation(1, Default::default()).unwrap();
    leader.core.step_down(lost, &mut effects);
    elect(&mut leader, raised);
    assert_eq!(
        (leader.is_stopped(), leader.core.store_rollback()),
        (false, None)
    );
}

#[test]
fn a_leader_that_has_its_key_writes_what_a_restored_store_has_lost() {
    let mut leader = Leader::new();
    let ours = leader.core.leads(at(leader.now)).unwrap().record().clone();
    let mut older = ours.clone();
    older.version = 15;
    older.seats.pop();
    let mut effects = Vec::new();
    leader.core.refused(at(leader.now), &mut effects);
    assert!(
        matches!(effects[..], [Effect::Verify { .. }]),
        "{effects:?}"
    );
    effects.clear();
    leader
        .core
        .verified(at(leader.now), at(leader.now), older, &mut effects);
    let written = effects.iter().find_map(|effect| match effect {
        Effect::Write(record) => Some(record),
        _ => None,
    });
    let written = written.expect("it is written again");
    assert_eq!(
        (written.version, written.seats.len()),
        (ours.version + 1, 3)
    );
    let alarm = effects
        .iter()
        .any(|effect| matches!(effect, Effect::StoreRollback(proof) if proof.leads_on));
    assert!(alarm, "{effects:?}");
    assert!(!leader.is_stopped() && leader.grants(2));
}
