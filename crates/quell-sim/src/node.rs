//! Node: one process with its clock, its member and its buckets, and callers that offer load.

use std::time::Duration;

use quell_shares::member::{Adopt, LimitSchedule, Member, Stage, Start};
use quell_shares::message::{Load, MemberSnapshot};
use quell_shares::plan::{LimitId, MICRO, MemberId, Name};
use quell_shares::schedule::Bucket;

use crate::check::Violation;
use crate::clock::Clock;
use crate::meter::Meter;

/// The name of a rule of the callers.
#[must_use]
pub fn rule_name(rule: usize) -> Name {
    format!("rule-{rule}").into()
}

/// Share of a node in one limit.
#[derive(Clone, Copy, Debug)]
pub struct LimitBucket {
    /// The limit.
    pub limit: LimitId,
    /// Bucket that callers draw from.
    pub bucket: Bucket,
    /// Units that the schedules granted, counted independently of the bucket.
    pub meter: Meter,
}

/// A process, or the place for one that is down.
#[derive(Clone, Debug)]
pub struct Node {
    /// The id of its member.
    pub id: MemberId,
    /// Its weight.
    pub weight: u32,
    /// True while the process runs.
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
    /// The groups that it names when it joins.
    pub groups: Vec<Name>,
    /// The limits of each rule that it was ever told of, in a file; the last one is the rule's.
    pub known: Vec<Vec<LimitId>>,
    /// Shares of the node, in the order of the limits.
    pub buckets: Vec<LimitBucket>,
    /// The revision of the plan that the buckets follow.
    pub revision: u64,
    /// The schedules that are about to come into force, and since when.
    pub adopting: Option<(Adopt, u64)>,
    /// Micro-units per second that callers offer, for each rule.
    pub demand: Vec<u64>,
    /// Parts of units that were offered, carried over until they make a whole unit.
    carry: Vec<u64>,
    served: u64,
    /// Load since the last report, by rule.
    pub loads: Vec<Load>,
    /// Units admitted so far, by rule.
    pub admitted: Vec<u64>,
    /// The snapshot file that the next process reads.
    pub snapshot: MemberSnapshot,
    /// The coordinator that it talks to.
    pub talks_to: usize,
    /// Reports that were not answered.
    pub unanswered: u32,
    /// True if another report is sent as soon as an adoption is sealed.
    pub hasty: bool,
    /// The revision of the plan that it is counted as following.
    pub counted: Option<u64>,
}

impl Node {
    /// A place whose process is not running.
    #[must_use]
    pub fn new(id: u32, weight: u32, rules: usize) -> Self {
        let clock = Clock::new(0, 0);
        let start = Start {
            member: MemberId(id),
            nonce: 0,
            weight,
            groups: Vec::new(),
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
            groups: Vec::new(),
            known: vec![Vec::new(); rules],
            buckets: Vec::new(),
            revision: 0,
            adopting: None,
            demand: vec![0; rules],
            carry: vec![0; rules],
            served: 0,
            loads: vec![Load::default(); rules],
            admitted: vec![0; rules],
            snapshot,
            talks_to: 0,
            unanswered: 0,
            hasty: false,
            counted: None,
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
            groups: self.groups.clone(),
            exclusive,
        };
        let local = clock.local(now);
        self.member = Member::start(start, &self.snapshot, local);
        let schedules = self.member.schedules();
        let of = |LimitSchedule { limit, schedule }| LimitBucket {
            limit,
            bucket: Bucket::new(schedule, local),
            meter: Meter::start(local),
        };
        self.buckets = schedules.map(of).collect();
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
        if let Some(snapshot) = &adopt.snapshot {
            self.snapshot = snapshot.clone();
        }
        self.adopting = Some((adopt, revision));
    }

    /// Writes down the names of limits that a coordinator told.
    pub fn note_names(&mut self) {
        for name in self.member.names() {
            let rule = name.name.strip_prefix("rule-");
            let rule = rule.and_then(|rule| rule.parse::<usize>().ok());
            if let Some(known) = rule.and_then(|rule| self.known.get_mut(rule))
                && !known.contains(&name.limit)
            {
                known.push(name.limit);
                known.sort_unstable();
            }
        }
    }

    /// The bucket of a rule.
    #[must_use]
    pub fn bucket(&self, rule: usize) -> Option<&Bucket> {
        let limit = self.known.get(rule)?.last()?;
        self.bucket_of(*limit)
    }

    fn bucket_of(&self, limit: LimitId) -> Option<&Bucket> {
        let at = self.buckets.binary_search_by_key(&limit, |one| one.limit);
        at.ok().and_then(|at| Some(&self.buckets.get(at)?.bucket))
    }

    /// Returns the demand since the last report, which counts as reported now.
    pub fn take_loads(&mut self) -> Vec<Load> {
        let loads = self.loads.iter_mut().zip(&self.known);
        let load = |(load, known): (&mut Load, &Vec<LimitId>)| {
            let load = std::mem::take(load);
            known.last().map(|limit| Load {
                limit: *limit,
                ..load
            })
        };
        let mut loads: Vec<Load> = loads.filter_map(load).collect();
        loads.sort_unstable_by_key(|load| load.limit);
        loads
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
        let before = std::mem::take(&mut self.buckets);
        let mut before = before.into_iter().peekable();
        for LimitSchedule { limit, schedule } in &adopt.schedules {
            // A limit that is not in the list is gone; one that the node did not know begins with
            // an empty bucket.
            while before.next_if(|one| one.limit < *limit).is_some() {}
            let known = before.next_if(|one| one.limit == *limit);
            let mut one = known.unwrap_or_else(|| LimitBucket {
                limit: *limit,
                bucket: Bucket::new(*schedule, local),
                meter: Meter::start(local),
            });
            one.meter.pass(one.bucket.schedule(), local);
            one.bucket.follow(local, *schedule);
            self.buckets.push(one);
        }
        self.revision = revision;
        self.member.sealed(adopt.ticket);
        true
    }

    /// Serves the callers that came since the last time, as one burst. `admitted` receives the
    /// micro-units admitted under each limit, and whether that was more than its meter allows.
    pub fn serve(&mut self, now: u64, admitted: &mut Vec<(LimitId, u64, Option<Violation>)>) {
        admitted.clear();
        let local = self.clock.local(now);
        let elapsed = now - self.served.min(now);
        self.served = now;
        for rule in 0..self.demand.len() {
            let offered = u128::from(self.demand[rule]) * u128::from(elapsed) / 1_000_000_000;
            let offered = u64::try_from(offered).unwrap_or(0) + self.carry[rule];
            self.carry[rule] = offered % MICRO;
            let offered = offered - self.carry[rule];
            // A process that does not know a limit refuses, and says so.
            let mut fits = 0;
            let limit = self.known[rule].last();
            if let Some(one) = self
                .buckets
                .iter_mut()
                .find(|one| Some(&one.limit) == limit)
            {
                one.bucket.settle(local);
                one.meter.pass(one.bucket.schedule(), local);
                fits = offered.min(one.bucket.tokens()) / MICRO * MICRO;
                if fits > 0 && !one.bucket.try_take(local, fits) {
                    fits = 0;
                }
                one.meter.take(fits);
                if fits > 0 {
                    admitted.push((one.limit, fits, one.meter.above(now)));
                }
            }
            self.loads[rule].demand += offered;
            self.loads[rule].admitted += fits;
            self.loads[rule].denied += offered - fits;
            self.admitted[rule] += fits / MICRO;
        }
    }

    /// The rates of a limit, with the true time at which each begins.
    pub fn curve(&self, limit: LimitId, now: u64, curve: &mut Vec<(u64, u64)>) {
        curve.clear();
        let Some(bucket) = self.bucket_of(limit).filter(|_| self.alive) else {
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

    /// Returns true if the process runs and its member is active.
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
