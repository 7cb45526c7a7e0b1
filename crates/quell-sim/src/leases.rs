//! Leases: nodes that take units of one key from a shared store in advance, under faults.
//!
//! One store decides by the core's own code. Its answers are late or lost, it stands still, is emptied, starts
//! again without its memory, goes on as a replica that lacks the last charges, and its clock steps. Nodes have clocks that drift; they pause, die, start again, join, leave, and give back
//! what they do not need. After each admission the auditor says whether the bound was kept:
//!
//! ```text
//! buckets           limit + n * cap, over any interval, also if the store is emptied while a lease lives
//! sliding windows   limit + n * cap, in any window
//! fixed windows     limit, in each window of the store
//! fail-over         what was charged in the lag, once more
//! clock steps       what the limit produces in the step, at most a burst; back: what the nodes hold
//! returns           none is executed after its grant is over
//! refusals          none because a state is missing that expired in its time, or was given back
//! each process      granted + cap, used and given back in any interval
//! ```

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::num::NonZeroU32;
use std::time::Duration;

use quell_core::algorithm::Algorithm;
use quell_core::charge::{Charge, Entry, Operation, decide_one, pay, take_back};
use quell_core::cost::Cost;
use quell_core::decision::Decision;
use quell_core::limit::{ActiveLimit, Limit, LimitId};
use quell_core::over_admission::{LeasePolicy, LeaseTerms, OverAdmission, Supply};
use quell_core::state::State;
use quell_core::time::{Monotonic, Now, Wall};
use quell_shares::audit::Auditor;
use quell_shares::lease::{DEMAND_INTERVAL, Lease, Request, Return, Step};
use quell_shares::lease_mistake::LeaseMistake;
use quell_shares::plan::Drift;
use quell_shares::proof::Proof;

use crate::lease_ledger::LeaseLedger;
use crate::rng::Rng;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
/// The most by which a clock drifts, in millionths.
const DRIFT: u64 = 500;
const MICROS: u64 = 1_000_000;
/// After how long without an answer a node gives up.
const GIVES_UP: u64 = 100 * MS;
/// Callers of one node that wait at a time.
const MOST_WAITING: usize = 20;
/// How long a grant lasts.
const LIFE_NANOS: u64 = 500 * MS;
/// For how long the store keeps a state that is at rest.
const KEPT: u64 = 502 * MS;
/// By how much the store's clock is ahead at first, so that it can step back.
const SKEW: u64 = 1_000 * SECOND;
/// For how long a node doubts a run of the store that is not the one before.
const QUIET: u64 = SECOND;
/// When the first call comes.
pub(crate) const START: u64 = 1_000 * SECOND;

/// What is simulated.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Determines the whole run.
    pub seed: u64,
    /// The limit of the key.
    pub limit: Limit,
    /// How far it may be exceeded.
    pub over: OverAdmission,
    /// How many nodes there are at most, as the rule says.
    pub nodes: u32,
    /// How many run in addition, which the rule does not know of.
    pub more: u32,
    /// Calls offered to all nodes together, per second.
    pub offered: u64,
    /// Callers all ask one node, and go on to the next after this time; `None` if each asks its own.
    pub turn: Option<Duration>,
    /// Simulated time.
    pub seconds: u64,
    /// Whether anything goes wrong.
    pub faults: bool,
    /// A deliberate mistake.
    pub mistake: Option<LeaseMistake>,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The first promise that was broken, and by how much.
    pub violation: Option<(&'static str, u64)>,
    /// Units admitted.
    pub admitted: u64,
    /// Of those, units from leases.
    pub leased: u64,
    /// Calls to the store for units.
    pub requests: u64,
    /// Units given back to it.
    pub returned: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A call of this cost reaches a node.
    Call(usize, u64),
    /// A request reaches the store.
    Arrive(Sent),
    /// The outcome of a request reaches its node: the index of the store's decision, or nothing if the
    /// node gives up.
    Answer(Sent, Option<usize>),
    /// A node looks for units that it does not need.
    Tick(usize),
    /// A return reaches the store: the number of the node's return, and until when the store takes it.
    Return(Sent, u64, u64),
    /// The node learns that the store has executed it.
    Returned(Sent),
    /// A fault begins.
    Fault,
}

/// A request of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Sent {
    node: usize,
    /// Which start of the node sent it.
    start: u64,
    /// The number of the lease's request; 0 for a call that the store decides.
    number: u64,
    units: u64,
    /// Until when the node says that the state is there, and until when it is by what the node was told.
    proof: Option<u64>,
    told: Option<u64>,
    /// Which run of the store it is sent to, and whether its node knows that another answered before.
    run: u64,
    doubts: bool,
}

#[derive(Clone, Debug)]
struct Node {
    lease: Option<Lease>,
    /// The number of its start.
    start: u64,
    offset: u64,
    ppm: i64,
    paused_until: u64,
    /// Costs of callers that wait for the store.
    waiting: VecDeque<u64>,
    proof: Proof,
    /// Until when the store keeps the state, by its last answer to this process: by the store's clock, and
    /// until when that is said.
    told: Option<(u64, u64)>,
    /// Which run of the store it was connected to, and until when it doubts the present one.
    run: Option<u64>,
    quiet_until: u64,
    ledger: LeaseLedger,
    /// Those of processes that ended, whose returns may still be under way: by start.
    ended: Vec<LeaseLedger>,
}

impl Node {
    fn clock(&self, now: u64) -> Monotonic {
        let elapsed = i128::from(now - START);
        let drifted = elapsed + elapsed * i128::from(self.ppm) / 1_000_000;
        Monotonic::from_nanos(START + self.offset + u64::try_from(drifted).unwrap_or(0))
    }

    /// The ledger of one of its starts.
    fn ledger(&mut self, start: u64) -> &mut LeaseLedger {
        let ended = usize::try_from(start).ok();
        match ended.and_then(|start| self.ended.get_mut(start)) {
            Some(ledger) => ledger,
            None => &mut self.ledger,
        }
    }
}

#[derive(Debug)]
pub(crate) enum Audit {
    Bucket(Auditor),
    /// The windows of the store, by the core's own state: units admitted in the present one.
    Fixed {
        end: u64,
        used: u64,
        limit: u64,
    },
    Sliding {
        window: u64,
        admitted: VecDeque<(u64, u64)>,
        sum: u64,
        most: u64,
    },
}

impl Audit {
    pub(crate) fn new(limit: &Limit, bound: u64) -> Self {
        match limit.algorithm() {
            Algorithm::TokenBucket(bucket) => {
                let rate =
                    bucket.count * SECOND / u64::try_from(bucket.period.as_nanos()).unwrap_or(1);
                let most = limit.max() + bound;
                let drift = Drift::new(0);
                Self::Bucket(Auditor::new(
                    rate * MICROS,
                    most * MICROS,
                    drift,
                    Monotonic::from_nanos(START),
                ))
            }
            Algorithm::FixedWindow(_) => Self::Fixed {
                end: 0,
                used: 0,
                limit: limit.max(),
            },
            _ => Self::Sliding {
                window: u64::try_from(limit_window(limit).as_nanos()).unwrap_or(u64::MAX),
                admitted: VecDeque::new(),
                sum: 0,
                most: limit.max() + bound,
            },
        }
    }

    /// Another burst is allowed, since the store has forgotten everything.
    pub(crate) fn forget(&mut self, limit: &Limit, bound: u64, now: u64) {
        *self = Self::new(limit, bound);
        self.admit(now, 0);
    }

    /// The store made a charge. A window that it begins anew before the last one ended is the same one if
    /// anything was used: what was charged may all be given back, what was used may not.
    pub(crate) fn charged(&mut self, now: u64, decision: &Decision) {
        if let Self::Fixed { end, used, .. } = self {
            let rest = u64::try_from(decision.reset_after.as_nanos()).unwrap_or(u64::MAX);
            if now >= *end || *used == 0 {
                (*end, *used) = (now.saturating_add(rest), 0);
            }
        }
    }

    pub(crate) fn admit(&mut self, now: u64, cost: u64) -> Option<u64> {
        match self {
            Self::Bucket(auditor) => auditor.admit(Monotonic::from_nanos(now), cost * MICROS),
            Self::Fixed { end, used, limit } => {
                if now >= *end && cost > 0 {
                    return Some(cost);
                }
                *used += cost;
                used.checked_sub(*limit).filter(|excess| *excess > 0)
            }
            Self::Sliding {
                window,
                admitted,
                sum,
                most,
            } => {
                admitted.push_back((now, cost));
                *sum += cost;
                while let Some((at, units)) = admitted.front().copied()
                    && at + *window <= now
                {
                    admitted.pop_front();
                    *sum -= units;
                }
                sum.checked_sub(*most).filter(|excess| *excess > 0)
            }
        }
    }
}

fn limit_window(limit: &Limit) -> Duration {
    match limit.algorithm() {
        Algorithm::SlidingLog(log) => log.window,
        Algorithm::SlidingWindow(window) => window.window,
        _ => Duration::ZERO,
    }
}

struct World {
    setup: Setup,
    terms: LeaseTerms,
    /// By how many units the nodes that run may exceed the limit together.
    bound: u64,
    rng: Rng,
    now: u64,
    queue: BinaryHeap<Reverse<(u64, u64, Event)>>,
    order: u64,
    active: ActiveLimit,
    state: State,
    /// When the store drops the state, and whether it was lost before.
    expiry: u64,
    is_lost: bool,
    /// How often the store started again, or a replica took over; and until when there is none.
    run: u64,
    down_until: u64,
    /// By how much the store's clock is ahead of `now`; and until when messages may be on their way that were sent
    /// before it stepped back.
    skew: u64,
    stepped_until: u64,
    /// What was written in the last second, and when; and the units that were charged.
    written: VecDeque<(u64, State, u64)>,
    charges: VecDeque<(u64, u64)>,
    /// Units that may be admitted in addition, since the store has forgotten as many.
    pool: u64,
    /// The store executes nothing before this.
    frozen_until: u64,
    /// Decisions, when they were made, and when by the store's clock.
    answers: Vec<(Decision, u64, u64)>,
    nodes: Vec<Node>,
    audit: Audit,
    outcome: Outcome,
}

/// Runs a setup to its end, or to the first violation.
///
/// # Panics
/// If the limit cannot be leased.
#[must_use]
pub fn run(setup: Setup) -> Outcome {
    let nodes = NonZeroU32::new(setup.nodes).unwrap_or(NonZeroU32::MIN);
    let policy = LeasePolicy {
        over: setup.over,
        nodes,
    };
    let Ok(terms) = policy.terms(&setup.limit) else {
        return Outcome::default();
    };
    let mut rng = Rng::new(setup.seed);
    let count = setup.nodes + setup.more;
    let bound = terms.cap * u64::from(count);
    let all = (0..count).map(|_| Node {
        lease: None,
        start: 0,
        offset: rng.between(0, 3_600 * SECOND),
        ppm: i64::try_from(rng.between(0, 2 * DRIFT)).unwrap_or(0)
            - i64::try_from(DRIFT).unwrap_or(0),
        paused_until: 0,
        waiting: VecDeque::new(),
        proof: Proof::default(),
        told: None,
        run: None,
        quiet_until: 0,
        ledger: LeaseLedger::default(),
        ended: Vec::new(),
    });
    let nodes = all.collect();
    let mut world = World {
        audit: Audit::new(&setup.limit, bound),
        bound,
        active: ActiveLimit {
            id: LimitId(1),
            limit: setup.limit.clone(),
            since: Monotonic::ORIGIN,
            place: [].into(),
        },
        state: State::rest(LimitId(1)),
        expiry: 0,
        is_lost: false,
        run: 0,
        down_until: 0,
        skew: SKEW,
        stepped_until: 0,
        written: VecDeque::new(),
        charges: VecDeque::new(),
        pool: 0,
        terms,
        rng,
        now: START,
        queue: BinaryHeap::new(),
        order: 0,
        frozen_until: 0,
        answers: Vec::new(),
        nodes,
        outcome: Outcome::default(),
        setup,
    };
    world.run();
    world.outcome
}

impl World {
    fn run(&mut self) {
        let end = START + self.setup.seconds * SECOND;
        for node in 0..self.nodes.len() {
            self.next_call(node);
            self.at(START, Event::Tick(node));
        }
        if self.setup.faults {
            self.at(START + 200 * MS, Event::Fault);
        }
        while let Some(Reverse((at, _, event))) = self.queue.pop() {
            if at > end || self.outcome.violation.is_some() {
                break;
            }
            self.now = at;
            self.handle(event);
        }
        self.close();
    }

    /// Checks what each process held.
    fn close(&mut self) {
        let cap = self.terms.cap;
        for node in &mut self.nodes {
            let ledgers = node.ended.iter_mut().chain([&mut node.ledger]);
            let excess = ledgers.map(|ledger| ledger.close(cap)).max().unwrap_or(0);
            if excess > 0 && self.outcome.violation.is_none() {
                self.outcome.violation = Some(("the cap", excess));
            }
        }
    }

    fn at(&mut self, at: u64, event: Event) {
        self.order += 1;
        self.queue.push(Reverse((at, self.order, event)));
    }

    /// Under faults callers come in waves, to all nodes at once: leases are taken in one wave and used at
    /// the beginning of the next, when the limit has recovered.
    fn next_call(&mut self, node: usize) {
        let callers = self.setup.turn.map_or(self.nodes.len(), |_| 1);
        let gap = SECOND * callers as u64 / self.setup.offered.max(1);
        let gap = self.rng.between(gap / 2, gap + gap / 2 + 1);
        let cost = if self.rng.chance(10) {
            self.rng.between(1, 4)
        } else {
            1
        };
        let mut at = self.now + gap;
        if self.setup.faults {
            let wave = (150 + self.setup.seed * 37 % 700) * MS;
            if at % wave > wave / 3 {
                at = at - at % wave + wave;
            }
        }
        if let Some(turn) = self.setup.turn {
            at = self.in_turn(node, at, turn);
        }
        self.at(at, Event::Call(node, cost));
    }

    /// When it is this node's turn, at `at` or later.
    fn in_turn(&self, node: usize, at: u64, turn: Duration) -> u64 {
        let turn = u64::try_from(turn.as_nanos()).unwrap_or(u64::MAX);
        let (nodes, node) = (self.nodes.len() as u64, node as u64);
        let present = at / turn;
        let ahead = (node + nodes - present % nodes) % nodes;
        match ahead {
            0 => at,
            turns => (present + turns) * turn,
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Call(node, cost) => {
                self.next_call(node);
                if self.nodes[node].paused_until <= self.now {
                    self.call(node, cost);
                }
            }
            Event::Arrive(sent) => self.arrive(sent),
            Event::Answer(sent, decided) => {
                let resumes = self.nodes[sent.node].paused_until;
                if resumes > self.now {
                    return self.at(resumes, Event::Answer(sent, decided));
                }
                self.answer(sent, decided);
            }
            Event::Tick(node) => {
                let interval = u64::try_from(DEMAND_INTERVAL.as_nanos()).unwrap_or(u64::MAX);
                self.at(self.now + interval, Event::Tick(node));
                if self.nodes[node].paused_until <= self.now {
                    self.give_back(node, Lease::surplus);
                }
            }
            Event::Return(sent, charged, until) => self.take_back(sent, charged, until),
            Event::Returned(sent) => {
                let node = &mut self.nodes[sent.node];
                if let Some(lease) = node.lease.as_mut().filter(|_| node.start == sent.start) {
                    lease.returned(sent.number);
                }
            }
            Event::Fault => self.fault(),
        }
    }

    fn call(&mut self, node: usize, cost: u64) {
        let (terms, mistake) = (self.terms, self.setup.mistake);
        let clock = self.nodes[node].clock(self.now);
        let lease = self.nodes[node]
            .lease
            .get_or_insert_with(|| Lease::new(terms, clock).with(mistake));
        match lease.take(clock, cost) {
            Step::Allow { refill } => {
                self.outcome.leased += cost;
                let now = self.now;
                self.nodes[node].ledger.used(now, cost);
                self.admit(cost);
                if let Some(request) = refill {
                    self.send(node, request);
                }
            }
            Step::Deny(_) => {}
            Step::Ask(request) => {
                self.send(node, request);
                self.wait(node, cost);
            }
            Step::Wait => self.wait(node, cost),
            Step::Strict => self.send(
                node,
                Request {
                    number: 0,
                    units: cost,
                },
            ),
        }
    }

    /// A caller waits for the store, unless too many do.
    fn wait(&mut self, node: usize, cost: u64) {
        let waiting = &mut self.nodes[node].waiting;
        if waiting.len() < MOST_WAITING {
            waiting.push_back(cost);
        }
    }

    fn send(&mut self, node: usize, request: Request) {
        self.outcome.requests += 1;
        let clock = self.nodes[node].clock(self.now);
        let proof = self.nodes[node].proof.until(clock).map(Wall::as_nanos);
        let doubts = self.meet(node);
        let told = self.nodes[node].told;
        let told = told.filter(|(_, fresh_until)| self.now < *fresh_until);
        let sent = Sent {
            node,
            start: self.nodes[node].start,
            number: request.number,
            units: request.units,
            proof: proof.filter(|_| self.setup.mistake != Some(LeaseMistake::NoProof)),
            told: told.map(|(until, _)| until),
            run: self.run,
            doubts,
        };
        if sent.number > 0 {
            self.nodes[node].ledger.asked(sent.number);
        }
        if self.now < self.down_until || (self.setup.faults && self.rng.chance(2)) {
            return self.at(self.now + GIVES_UP, Event::Answer(sent, None));
        }
        let delay = self.delay();
        self.at(self.now + delay, Event::Arrive(sent));
    }

    /// A node connects to the store that there is; returns whether it doubts its memory.
    fn meet(&mut self, node: usize) -> bool {
        if self.now < self.down_until {
            return false;
        }
        let node = &mut self.nodes[node];
        if node.run.is_some_and(|run| run != self.run) {
            node.quiet_until = self.now + QUIET;
        }
        node.run = Some(self.run);
        self.now < node.quiet_until
    }

    /// The store's clock.
    const fn clock(&self) -> u64 {
        self.now + self.skew
    }

    /// Sends what the node gives back, once: a return may be lost, or late.
    fn give_back(&mut self, node: usize, next: fn(&mut Lease, Monotonic) -> Option<Return>) {
        let clock = self.nodes[node].clock(self.now);
        for _ in 0..2 {
            let lease = self.nodes[node].lease.as_mut();
            let Some(back) = lease.and_then(|lease| next(lease, clock)) else {
                return;
            };
            let sent = Sent {
                node,
                start: self.nodes[node].start,
                number: back.number,
                units: back.units,
                proof: None,
                told: None,
                run: self.run,
                doubts: self.meet(node),
            };
            if !(self.setup.faults && self.rng.chance(2)) {
                let (charged, until) = (back.charged.as_nanos(), back.until.as_nanos());
                let delay = self.delay();
                self.at(self.now + delay, Event::Return(sent, charged, until));
            }
        }
    }

    /// The store takes units back, if it is not too late.
    fn take_back(&mut self, sent: Sent, charged: u64, until: u64) {
        if self.frozen_until > self.now {
            return self.at(self.frozen_until, Event::Return(sent, charged, until));
        }
        let is_there = sent.run == self.run && self.now >= self.down_until;
        let is_in_time = is_there && self.clock() <= until;
        let Some(cost) = Cost::new(sent.units).filter(|_| is_in_time) else {
            return;
        };
        if self.is_missing() {
            let until = until.saturating_add(1);
            let sent = Sent {
                proof: Some(until),
                told: Some(until),
                ..sent
            };
            self.begin(&sent);
            let delay = self.delay();
            return self.at(self.now + delay, Event::Returned(sent));
        }
        let charge = Charge::alone(&self.active, cost);
        let mut entry = Entry {
            charge: &charge,
            state: &mut self.state,
        };
        take_back(
            Now::from_nanos(self.now + self.skew),
            Now::from_nanos(charged),
            &mut entry,
        );
        self.keep();
        self.outcome.returned += sent.units;
        let now = self.now;
        // One that is late only by true time is paid for by the step.
        if now >= self.stepped_until {
            self.nodes[sent.node]
                .ledger(sent.start)
                .used(now, sent.units);
        }
        if self.clock() > charged + LIFE_NANOS + MS {
            self.outcome.violation = Some(("a late return", sent.units));
        }
        let delay = self.delay();
        self.at(self.now + delay, Event::Returned(sent));
    }

    /// Whether the store has no state of the key.
    const fn is_missing(&self) -> bool {
        self.is_lost || self.clock() >= self.expiry
    }

    /// The store has no state of the key: it begins one. No burst comes free if it was lost while the node that
    /// asks was told that it is there, or knows that another run of the store answered before.
    fn begin(&mut self, sent: &Sent) {
        let is_before = |until: u64| self.clock() < until;
        let is_told = sent.told.is_some_and(is_before) || sent.doubts;
        let is_proven = sent.proof.is_some_and(is_before);
        let doubts = sent.doubts && self.setup.mistake != Some(LeaseMistake::NotQuiet);
        if self.is_lost && !is_told {
            // Windows of the store before and after would overlap: it has lost nothing.
            if matches!(self.audit, Audit::Fixed { .. }) {
                self.is_lost = false;
                return;
            }
            let (limit, bound) = (self.setup.limit.clone(), self.bound);
            self.audit.forget(&limit, bound, self.now);
        }
        let was_lost = std::mem::take(&mut self.is_lost);
        self.state = State::rest(LimitId(1));
        // A message that is late by true time is not by a clock that stepped back.
        let is_certain = !sent.doubts && self.now >= self.stepped_until;
        if is_proven && !was_lost && is_certain {
            self.outcome.violation = Some(("a wrong refusal", self.terms.max));
        }
        if (is_proven || doubts) && self.setup.mistake != Some(LeaseMistake::LossIsRest) {
            let charge = Charge::alone(&self.active, Cost::ONE);
            let mut entry = Entry {
                charge: &charge,
                state: &mut self.state,
            };
            pay(
                Now::from_nanos(self.now + self.skew),
                self.terms.max,
                &mut entry,
            );
            self.keep();
        }
    }

    /// The store has written the state.
    fn keep(&mut self) {
        let now = Now::from_nanos(self.clock());
        let rest = self.state.time_to_own_rest(&self.active.limit, now);
        let rest = u64::try_from(rest.as_nanos()).unwrap_or(u64::MAX / 2);
        self.expiry = self.clock() + rest + KEPT;
        if rest == 0 && self.setup.mistake == Some(LeaseMistake::DropsAtRest) {
            self.expiry = self.clock();
        }
        while self
            .written
            .front()
            .is_some_and(|(at, ..)| at + SECOND < self.now)
        {
            self.written.pop_front();
        }
        self.written
            .push_back((self.now, self.state.clone(), self.expiry));
    }

    /// A replica takes over that lacks what was written since then. What was charged since may be admitted again.
    fn fail_over(&mut self, since: u64) {
        while self.written.back().is_some_and(|(at, ..)| *at > since) {
            self.written.pop_back();
        }
        let Some((_, state, expiry)) = self.written.back().cloned() else {
            return;
        };
        (self.state, self.expiry) = (state, expiry);
        if self.setup.mistake == Some(LeaseMistake::ReplicaIsEmpty) {
            self.state = State::rest(LimitId(1));
        }
        self.run += 1;
        let lost = self.charges.iter().filter(|(at, _)| *at > since);
        self.pool += lost.map(|(_, units)| units).sum::<u64>();
        self.charges.retain(|(at, _)| *at <= since);
    }

    /// The store starts again with nothing, a moment later. What is on its way is lost.
    fn restart(&mut self) {
        self.run += 1;
        self.is_lost = true;
        self.down_until = self.now + self.rng.between(0, 1_500 * MS);
        self.written.clear();
        self.charges.clear();
    }

    /// The store's clock steps: ahead, and the limit produces units for the time between; or back, and the store
    /// takes returns whose lease is over.
    fn step_clock(&mut self) {
        let step = self.rng.between(0, 2 * SECOND);
        if self.rng.chance(50) {
            self.skew += step;
            let produced = match self.terms.supply {
                Supply::Steady(units, time) => {
                    u128::from(units) * u128::from(step) / time.as_nanos() + 1
                }
                _ => u128::from(self.terms.max),
            };
            let produced = u64::try_from(produced).unwrap_or(u64::MAX);
            self.pool += produced.min(self.terms.max);
        } else {
            self.skew -= step.min(self.skew);
            self.stepped_until = self.now + 3 * SECOND;
            self.pool += self.bound;
            if self.setup.mistake == Some(LeaseMistake::StepBackForgets) {
                self.state = State::rest(LimitId(1));
            }
        }
        // A replica takes over the clock's time with the states.
        self.written.clear();
    }

    fn delay(&mut self) -> u64 {
        match self.setup.faults && self.rng.chance(5) {
            true => self.rng.between(0, 700 * MS),
            false => self.rng.between(MS / 10, MS),
        }
    }

    /// The store decides.
    fn arrive(&mut self, sent: Sent) {
        if self.frozen_until > self.now {
            return self.at(self.frozen_until, Event::Arrive(sent));
        }
        // Its connection was to another run of the store.
        if sent.run != self.run {
            return self.at(self.now + GIVES_UP, Event::Answer(sent, None));
        }
        let Some(cost) = Cost::new(sent.units) else {
            return;
        };
        if self.is_missing() {
            self.begin(&sent);
        }
        let charge = Charge::alone(&self.active, cost);
        let mut entry = Entry {
            charge: &charge,
            state: &mut self.state,
        };
        let now = Now::from_nanos(self.now + self.skew);
        let decision = decide_one(now, Operation::Acquire, &mut entry);
        if decision.outcome.is_allow() {
            self.keep();
            self.charges.push_back((self.now, sent.units));
            self.audit.charged(self.now, &decision);
            // A strict call is admitted when it is charged.
            if sent.number == 0 {
                self.admit(sent.units);
            }
        }
        self.answers.push((decision, self.now, self.clock()));
        let index = self.answers.len() - 1;
        let lost = self.setup.faults && self.rng.chance(3);
        let delay = self.delay();
        // The answer may come after the node gave up.
        if lost || delay > GIVES_UP {
            self.at(self.now + GIVES_UP, Event::Answer(sent, None));
        }
        if !lost {
            self.at(self.now + delay, Event::Answer(sent, Some(index)));
        }
    }

    fn answer(&mut self, sent: Sent, decided: Option<usize>) {
        let node = &mut self.nodes[sent.node];
        let clock = node.clock(self.now);
        let Some(lease) = node.lease.as_mut() else {
            return;
        };
        // A process does not hear what an earlier one asked.
        if node.start != sent.start {
            return;
        }
        let decided = decided.and_then(|index| self.answers.get(index));
        if let Some((decision, _, at)) = decided {
            node.proof.note(clock, decision, Wall::from_nanos(*at));
            let is_used = !decision.reset_after.is_zero();
            let fresh_until = self.now + LIFE_NANOS - 2 * MS;
            node.told = is_used.then_some((*at + LIFE_NANOS - 2 * MS, fresh_until));
        }
        if sent.number == 0 {
            if decided.is_some() {
                lease.resume();
            }
            return;
        }
        let Some((decision, at, store_time)) = decided else {
            node.ledger.gave_up(sent.number);
            lease.lost(clock, sent.number);
            return self.wake(sent.node);
        };
        if decision.outcome.is_allow() {
            node.ledger.granted(sent.number, *at, sent.units);
        } else {
            node.ledger.gave_up(sent.number);
        }
        let decided = Some(Wall::from_nanos(*store_time));
        lease.answer(clock, sent.number, decision, decided);
        self.wake(sent.node);
    }

    /// Callers that waited for the store ask again.
    fn wake(&mut self, node: usize) {
        for _ in 0..self.nodes[node].waiting.len() {
            if let Some(cost) = self.nodes[node].waiting.pop_front() {
                self.call(node, cost);
            }
        }
    }

    fn admit(&mut self, cost: u64) {
        self.outcome.admitted += cost;
        let forgotten = cost.min(self.pool);
        self.pool -= forgotten;
        if let Some(excess) = self.audit.admit(self.now, cost - forgotten) {
            self.outcome.violation = Some(("the bound", excess));
        }
    }

    fn fault(&mut self) {
        let node = self.rng.index(self.nodes.len());
        let has_windows = matches!(self.audit, Audit::Fixed { .. });
        let lag = self.rng.between(0, 300 * MS);
        match self.rng.number() % 8 {
            0 => self.frozen_until = self.now + self.rng.between(0, 800 * MS),
            1 => self.is_lost = true,
            4 if self.rng.chance(50) => self.restart(),
            // Windows of the store before and after would overlap.
            4 if !has_windows => self.fail_over(self.now - lag),
            5 if !has_windows => self.step_clock(),
            // Shorter and longer than a lease lasts.
            2 | 3 => self.nodes[node].paused_until = self.now + self.rng.between(0, 1_500 * MS),
            // Killed and started again; or a node leaves and another joins.
            _ => {
                if self.rng.chance(50) && self.nodes[node].paused_until <= self.now {
                    self.give_back(node, Lease::leave);
                }
                let (offset, down) = (self.rng.between(0, SECOND), self.rng.between(0, 500 * MS));
                let node = &mut self.nodes[node];
                node.start += 1;
                node.ended.push(std::mem::take(&mut node.ledger));
                node.lease = None;
                (node.proof, node.told) = (Proof::default(), None);
                node.run = None;
                node.waiting.clear();
                node.offset += offset;
                node.paused_until = self.now + down;
            }
        }
        let next = self.now + self.rng.between(10 * MS, 900 * MS);
        self.at(next, Event::Fault);
    }
}
