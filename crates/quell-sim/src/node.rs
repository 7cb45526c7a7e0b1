//! Node: one process with its clock, its member and its buckets, and callers that offer load.

use std::time::Duration;

use quell_shares::member::{Adopt, Member, Stage, Start};
use quell_shares::message::{Load, MemberSnapshot};
use quell_shares::mistake::Mistake;
use quell_shares::plan::{MICRO, MemberId};
use quell_shares::schedule::{Bucket, Schedule};

use crate::clock::Clock;
use crate::meter::Meter;

/// A process, or the place for one that is down.
#[derive(Clone, Debug)]
pub struct Node {
    /// The id of its member.
    pub id: MemberId,
    /// Its weight.
    pub weight: u32,
    /// Whether the process runs.
    pub alive: bool,
    /// Number of processes started so far: messages for an earlier process are not delivered.
    pub life: u32,
    /// Its clock.
    pub clock: Clock,
    /// The process does nothing before this instant.
    pub paused: u64,
    /// The agent does nothing before this instant; callers are still served.
    pub stalled: u64,
    /// The agent.
    pub member: Member,
    /// The buckets that callers draw from.
    pub buckets: Vec<Bucket>,
    /// The revision of the plan that the buckets follow.
    pub revision: u64,
    /// The schedules that are about to come into force, and since when.
    pub adopting: Option<(Adopt, u64)>,
    /// Micro-units per second that callers offer, for each limit.
    pub demand: Vec<u64>,
    /// Parts of units that were offered, carried over until they make a whole unit.
    carry: Vec<u64>,
    served: u64,
    /// Load since the last report, by limit.
    pub loads: Vec<Load>,
    /// Units admitted so far, by limit.
    pub admitted: Vec<u64>,
    /// What its schedules granted, by limit, counted independently of the buckets.
    pub meters: Vec<Meter>,
    /// The snapshot file that the next process reads.
    pub snapshot: MemberSnapshot,
    /// The coordinator that it talks to.
    pub talks_to: usize,
    /// Reports that were not answered.
    pub unanswered: u32,
    /// Whether to send another report as soon as an adoption is sealed.
    pub hasty: bool,
    /// The revision of the plan that it is counted as following.
    pub counted: Option<u64>,
    mistake: Option<Mistake>,
}

impl Node {
    /// A place whose process is not running.
    #[must_use]
    pub fn new(id: u32, weight: u32, limits: usize, mistake: Option<Mistake>) -> Self {
        let clock = Clock::new(0, 0);
        let start = Start {
            member: MemberId(id),
            nonce: 0,
            weight,
            exclusive: true,
        };
        let snapshot = MemberSnapshot::default();
        Self {
            id: MemberId(id),
            weight,
            alive: false,
            life: 0,
            clock,
            paused: 0,
            stalled: 0,
            member: Member::start(start, &snapshot, clock.local(0)),
            buckets: Vec::new(),
            revision: 0,
            adopting: None,
            demand: vec![0; limits],
            carry: vec![0; limits],
            served: 0,
            loads: vec![Load::default(); limits],
            admitted: vec![0; limits],
            meters: vec![Meter::default(); limits],
            snapshot,
            talks_to: 0,
            unanswered: 0,
            hasty: false,
            counted: None,
            mistake,
        }
    }

    /// Starts a process.
    pub fn start(&mut self, now: u64, clock: Clock, nonce: u64, exclusive: bool) {
        self.alive = true;
        self.life += 1;
        self.clock = clock;
        self.paused = 0;
        self.stalled = 0;
        let start = Start {
            member: self.id,
            nonce,
            weight: self.weight,
            exclusive,
        };
        let local = clock.local(now);
        self.member = Member::start(start, &self.snapshot, local);
        self.member.set_mistake(self.mistake);
        let schedules: Vec<Schedule> = self.member.schedules().collect();
        let bucket = |schedule| {
            let mut bucket = Bucket::new(schedule, local);
            if self.mistake == Some(Mistake::RestartFull) {
                bucket.follow_filled(local, schedule);
            }
            bucket
        };
        self.buckets = schedules.into_iter().map(bucket).collect();
        self.meters.fill(Meter::start(local));
        self.revision = self.snapshot.revision;
        self.adopting = None;
        self.loads.fill(Load::default());
        self.carry.fill(0);
        self.served = now;
        self.unanswered = 0;
        self.hasty = false;
    }

    /// Ends the process.
    pub fn stop(&mut self) {
        self.alive = false;
        self.adopting = None;
    }

    /// Starts to put the member's new schedules into force; `seal` completes it.
    pub fn begin(&mut self, adopt: Adopt) {
        // Before its first grant the node follows the plan that its snapshot was made under.
        let revision = match self.member.revision() {
            0 => self.revision,
            revision => revision,
        };
        let written = !self.snapshot.kept.is_empty();
        if let Some(snapshot) = &adopt.snapshot
            && (!written || self.mistake != Some(Mistake::OldSnapshot))
        {
            self.snapshot = snapshot.clone();
        }
        self.adopting = Some((adopt, revision));
    }

    /// Puts the schedules into force. Returns whether they were the newest.
    pub fn seal(&mut self, now: u64, ticket: u64) -> bool {
        let newest = self
            .adopting
            .as_ref()
            .is_some_and(|(a, _)| a.ticket == ticket);
        if !newest {
            return false;
        }
        let Some((adopt, revision)) = self.adopting.take() else {
            return false;
        };
        let local = self.clock.local(now);
        // A limit that the node did not know begins with an empty bucket.
        for schedule in adopt.schedules.iter().skip(self.buckets.len()) {
            self.meters[self.buckets.len()] = Meter::start(local);
            self.buckets.push(Bucket::new(*schedule, local));
        }
        for (bucket, meter) in self.buckets.iter().zip(&mut self.meters) {
            meter.pass(bucket.schedule(), local);
        }
        let fills = self.mistake == Some(Mistake::FillOnGrant);
        for (bucket, schedule) in self.buckets.iter_mut().zip(&adopt.schedules) {
            let grows = schedule.at(local).rate > bucket.schedule().at(local).rate;
            if fills && grows {
                bucket.follow_filled(local, *schedule);
            } else {
                bucket.follow(local, *schedule);
            }
        }
        self.revision = revision;
        self.member.sealed(adopt.ticket);
        true
    }

    /// Serves the callers that came since the last time, as one burst. `admitted` receives the
    /// micro-units admitted under each limit.
    pub fn serve(&mut self, now: u64, admitted: &mut Vec<u64>) {
        admitted.clear();
        let local = self.clock.local(now);
        let elapsed = now - self.served.min(now);
        self.served = now;
        for limit in 0..self.demand.len() {
            let offered = u128::from(self.demand[limit]) * u128::from(elapsed) / 1_000_000_000;
            let offered = u64::try_from(offered).unwrap_or(0) + self.carry[limit];
            self.carry[limit] = offered % MICRO;
            let offered = offered - self.carry[limit];
            // A process that does not know a limit refuses, and says so.
            let mut fits = 0;
            if let Some(bucket) = self.buckets.get_mut(limit) {
                bucket.settle(local);
                self.meters[limit].pass(bucket.schedule(), local);
                fits = offered.min(bucket.tokens()) / MICRO * MICRO;
                if fits > 0 && !bucket.try_take(local, fits) {
                    fits = 0;
                }
            }
            self.loads[limit].demand += offered;
            self.loads[limit].admitted += fits;
            self.loads[limit].denied += offered - fits;
            self.admitted[limit] += fits / MICRO;
            self.meters[limit].take(fits);
            admitted.push(fits);
        }
    }

    /// The rates of a limit, with the true time at which each begins.
    pub fn curve(&self, limit: usize, now: u64, curve: &mut Vec<(u64, u64)>) {
        curve.clear();
        let Some(bucket) = self.buckets.get(limit).filter(|_| self.alive) else {
            return;
        };
        let local = self.clock.local(now);
        let schedule = bucket.schedule();
        let mut from = now;
        for step in schedule.steps().iter().filter(|step| step.until > local) {
            curve.push((from, step.right.rate));
            from = self.clock.real(step.until).max(now);
        }
        curve.push((from, schedule.last().rate));
    }

    /// Whether the process runs and its member is active.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.alive && self.member.stage() == Stage::Active
    }

    /// The report interval in true time, nearly.
    #[must_use]
    pub fn period(report: Duration) -> u64 {
        u64::try_from(report.as_nanos()).unwrap_or(0)
    }
}
