//! Synced keys: nodes that admit calls on one key from memory and have them charged afterwards, under faults.
//!
//! One store charges by the core's own code. Messages are late, lost and in any order; the store stands still,
//! is emptied, starts again without its memory, goes on as a replica that lacks the last charges, and its clock
//! steps. Nodes have clocks that drift; they pause, die, start again, leave, and read new
//! limits. The auditor counts what each process admitted, and what the store charged for it, and reads no
//! count of the protocol:
//!
//! ```text
//! each process      0 <= admitted - charged <= cap, at any time
//! buckets           admitted <= limit + n * cap, over any interval, also if the store is emptied while a node
//!                   knows that the key is in use
//! windows           admitted <= limit + n * cap, in any window
//! ```
//!
//! A replica that takes over admits once more what was charged in its lag, and a clock that steps ahead what the
//! limit produces in that time, a burst at most. A process that dies forgets up to `cap` units that were not charged, and a store that forgets may charge up
//! to `cap` units of each process twice: both are counted, and nothing else is allowed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::num::NonZeroU32;

use quell_core::charge::{Charge, Entry, Operation, decide_one, pay};
use quell_core::cost::Cost;
use quell_core::decision::Decision;
use quell_core::limit::{ActiveLimit, Limit, LimitId};
use quell_core::over_admission::{LeasePolicy, LeaseTerms, OverAdmission, Supply};
use quell_core::state::State;
use quell_core::time::{Monotonic, Now, Wall};
use quell_shares::lease::DEMAND_INTERVAL;
use quell_shares::proof::Proof;
use quell_shares::synced::{SyncRequest, SyncStep, SyncedKey};
use quell_shares::synced_mistake::SyncedMistake;

use crate::leases::{Audit, START};
use crate::rng::Rng;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
/// The most by which a clock drifts, in millionths.
const DRIFT: u64 = 500;
/// After how long without an answer a node gives up.
const GIVES_UP: u64 = 100 * MS;
/// For how long the store keeps a state that is at rest, and a node may say that it does.
const KEPT: u64 = 502 * MS;
const LIFE_NANOS: u64 = 500 * MS;
/// By how much the store's clock is ahead at first, so that it can step back.
const SKEW: u64 = 1_000 * SECOND;
/// For how long a node doubts a run of the store that is not the one before.
const QUIET: u64 = SECOND;
/// Callers of one node that wait at a time, and how often one of them asks.
const MOST_WAITING: usize = 20;
const MAX_WAITS: u8 = 3;
/// Processes that die in a run, at most: each forgets what was not charged.
const MOST_DEATHS: u64 = 3;

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
    /// Of those, how many have callers.
    pub busy: u32,
    /// Calls offered to all nodes together, per second.
    pub offered: u64,
    /// Simulated time.
    pub seconds: u64,
    /// Whether anything goes wrong.
    pub faults: bool,
    /// A deliberate mistake.
    pub mistake: Option<SyncedMistake>,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The first promise that was broken, and by how much.
    pub violation: Option<(&'static str, u64)>,
    /// Units admitted.
    pub admitted: u64,
    /// Of those, units from memory.
    pub synced: u64,
    /// Calls to the store.
    pub requests: u64,
    /// Calls that waited for the store, or were left to it.
    pub waited: u64,
    /// Units that the store charged afterwards.
    pub paid: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A call of this cost reaches a node; how often it waited already.
    Call(usize, u64, u8),
    /// The other limits of a call that took this much allow it, or not: of which node, and start.
    Decide(usize, u64, u64, bool),
    /// A message reaches the store.
    Arrive(Sent),
    /// Its outcome reaches the node: the index of the answer, or nothing if the node gives up.
    Answer(Sent, Option<usize>),
    /// A node looks for units that are not charged.
    Tick(usize),
    /// A fault begins.
    Fault,
}

/// A message of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Sent {
    node: usize,
    /// Which start of the node sent it.
    start: u64,
    /// The number of the request; 0 for a call that the store decides.
    number: u64,
    /// The total, and what is known to be paid; or the cost of the call.
    total: u64,
    base: u64,
    /// When, by the node's clock.
    sent: u64,
    /// Until when the node says that the state is there, and until when it is by what the node was told.
    proof: Option<u64>,
    told: Option<u64>,
    /// Which run of the store it is sent to, and whether its node knows that another answered before.
    run: u64,
    doubts: bool,
}

/// What one process admitted, and what the store charged for it.
#[derive(Clone, Copy, Debug, Default)]
struct Ledger {
    admitted: u64,
    charged: u64,
    /// What may have been charged twice since the store forgot.
    doubled: u64,
    /// What it last said to be paid.
    base: u64,
}

#[derive(Clone, Debug)]
struct Node {
    key: Option<SyncedKey>,
    start: u64,
    offset: u64,
    ppm: i64,
    paused_until: u64,
    /// Callers that wait for the store.
    waiting: VecDeque<(u64, u8)>,
    proof: Proof,
    /// Until when the store keeps the state, by its last answer to this process: by the store's clock, and
    /// until when that is said.
    told: Option<(u64, u64)>,
    /// Which run of the store it was connected to, and until when it doubts the present one.
    run: Option<u64>,
    quiet_until: u64,
}

impl Node {
    fn clock(&self, now: u64) -> Monotonic {
        let elapsed = i128::from(now - START);
        let drifted = elapsed + elapsed * i128::from(self.ppm) / 1_000_000;
        Monotonic::from_nanos(START + self.offset + u64::try_from(drifted).unwrap_or(0))
    }
}

/// What the store has of the key, and since when.
#[derive(Clone)]
struct Written {
    at: u64,
    state: State,
    expiry: u64,
    records: BTreeMap<(usize, u64), u64>,
}

struct World {
    setup: Setup,
    terms: LeaseTerms,
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
    written: VecDeque<Written>,
    charges: VecDeque<(u64, u64)>,
    /// Units that may be admitted in addition, since the store has forgotten as many.
    pool: u64,
    /// What the store charged of the totals of each process: by node and start.
    records: BTreeMap<(usize, u64), u64>,
    frozen_until: u64,
    /// Decisions, what is charged of a total, and when they were made by the store's clock.
    answers: Vec<(Decision, u64, u64)>,
    nodes: Vec<Node>,
    ledgers: BTreeMap<(usize, u64), Ledger>,
    deaths: u64,
    audit: Audit,
    /// The end of the store's window, and what was admitted since it began: for fixed windows.
    window: (u64, u64),
    outcome: Outcome,
}

/// Runs a setup to its end, or to the first violation.
#[must_use]
pub fn run(setup: Setup) -> Outcome {
    let nodes = NonZeroU32::new(setup.nodes).unwrap_or(NonZeroU32::MIN);
    let policy = LeasePolicy {
        over: setup.over,
        nodes,
    };
    let Ok(terms) = policy.synced_terms(&setup.limit) else {
        return Outcome::default();
    };
    let mut rng = Rng::new(setup.seed);
    let deaths = if setup.faults { MOST_DEATHS } else { 0 };
    let count = setup.nodes + setup.more;
    let bound = terms.cap * (u64::from(count) + deaths);
    let all = (0..count).map(|_| Node {
        key: None,
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
        records: BTreeMap::new(),
        terms,
        rng,
        now: START,
        queue: BinaryHeap::new(),
        order: 0,
        frozen_until: 0,
        answers: Vec::new(),
        nodes,
        ledgers: BTreeMap::new(),
        deaths: 0,
        window: (0, 0),
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
            if node < usize::try_from(self.setup.busy).unwrap_or(usize::MAX) {
                self.next_call(node);
            }
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
    }

    fn at(&mut self, at: u64, event: Event) {
        self.order += 1;
        self.queue.push(Reverse((at, self.order, event)));
    }

    /// Under faults callers come in waves, to all nodes at once, when the limit has recovered.
    fn next_call(&mut self, node: usize) {
        let gap = SECOND * u64::from(self.setup.busy) / self.setup.offered.max(1);
        let gap = self.rng.between(gap / 2, gap + gap / 2 + 1);
        let cost = match self.rng.chance(10) {
            true => self.rng.between(1, 4),
            false => 1,
        };
        let mut at = self.now + gap;
        if self.setup.faults {
            let wave = (150 + self.setup.seed * 37 % 700) * MS;
            if at % wave > wave / 3 {
                at = at - at % wave + wave;
            }
        }
        self.at(at, Event::Call(node, cost, 0));
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Call(node, cost, waits) => {
                if waits == 0 {
                    self.next_call(node);
                }
                if self.nodes[node].paused_until <= self.now {
                    self.call(node, cost, waits);
                }
            }
            Event::Decide(node, start, cost, passes) => self.decide(node, start, cost, passes),
            Event::Arrive(sent) => self.arrive(sent),
            Event::Answer(sent, answer) => {
                let resumes = self.nodes[sent.node].paused_until;
                if resumes > self.now {
                    return self.at(resumes, Event::Answer(sent, answer));
                }
                self.answer(sent, answer);
            }
            Event::Tick(node) => {
                let interval = u64::try_from(DEMAND_INTERVAL.as_nanos()).unwrap_or(u64::MAX);
                self.at(self.now + interval, Event::Tick(node));
                if self.nodes[node].paused_until <= self.now {
                    self.tell(node, SyncedKey::due);
                }
            }
            Event::Fault => self.fault(),
        }
    }

    /// Sends what is not charged yet.
    fn tell(&mut self, node: usize, next: fn(&mut SyncedKey, Monotonic) -> Option<SyncRequest>) {
        let clock = self.nodes[node].clock(self.now);
        let key = self.nodes[node].key.as_mut();
        if let Some(request) = key.and_then(|key| next(key, clock)) {
            self.send(node, request);
        }
    }

    fn call(&mut self, node: usize, cost: u64, waits: u8) {
        let (terms, mistake) = (self.terms, self.setup.mistake);
        let clock = self.nodes[node].clock(self.now);
        let start = self.nodes[node].start;
        let key = self.nodes[node]
            .key
            .get_or_insert_with(|| SyncedKey::new(terms, clock).with(mistake));
        let (step, request) = match waits {
            MAX_WAITS => (SyncStep::Strict, None),
            _ => key.take(clock, cost),
        };
        match step {
            SyncStep::Allow => {
                // Some calls have other limits, which decide a moment later.
                if self.setup.faults && self.rng.chance(5) {
                    key.set_aside(cost);
                    let (delay, passes) = (self.rng.between(0, MS), self.rng.chance(50));
                    self.at(self.now + delay, Event::Decide(node, start, cost, passes));
                } else {
                    self.synced(node, start, cost);
                }
            }
            SyncStep::Deny(_) => {}
            SyncStep::Wait => {
                self.outcome.waited += 1;
                let waiting = &mut self.nodes[node].waiting;
                if waiting.len() < MOST_WAITING {
                    waiting.push_back((cost, waits + 1));
                }
            }
            SyncStep::Strict => {
                self.outcome.waited += 1;
                let request = SyncRequest {
                    number: 0,
                    total: cost,
                    base: 0,
                };
                self.send(node, request);
            }
        }
        if let Some(request) = request {
            self.send(node, request);
        }
    }

    /// All limits of a call have decided.
    fn decide(&mut self, node: usize, start: u64, cost: u64, passes: bool) {
        let of_start = &mut self.nodes[node];
        let is_same = of_start.start == start;
        let Some(key) = of_start.key.as_mut().filter(|_| is_same) else {
            return;
        };
        if passes {
            key.confirm(cost);
            self.synced(node, start, cost);
        } else {
            key.put_back(cost);
        }
    }

    /// A process admits a call from memory.
    fn synced(&mut self, node: usize, start: u64, cost: u64) {
        self.outcome.synced += cost;
        self.ledgers.entry((node, start)).or_default().admitted += cost;
        self.check(node, start);
        self.admit(cost);
    }

    fn send(&mut self, node: usize, request: SyncRequest) {
        self.outcome.requests += 1;
        let start = self.nodes[node].start;
        let clock = self.nodes[node].clock(self.now);
        let doubts = self.meet(node);
        let told = self.nodes[node].told;
        let told = told.filter(|(_, fresh_until)| self.now < *fresh_until);
        let proof = self.nodes[node].proof.until(clock).map(Wall::as_nanos);
        let sent = Sent {
            node,
            start,
            number: request.number,
            total: request.total,
            base: request.base,
            sent: clock.as_nanos(),
            proof: proof.filter(|_| self.setup.mistake != Some(SyncedMistake::NoProof)),
            told: told.map(|(until, _)| until),
            run: self.run,
            doubts,
        };
        if sent.number > 0 {
            let ledger = self.ledgers.entry((node, start)).or_default();
            if let Some(fallen) = ledger.base.checked_sub(sent.base).filter(|by| *by > 0) {
                self.outcome.violation = Some(("what is paid stays so", fallen));
            }
            ledger.base = sent.base;
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
    const fn clock(&self) -> Now {
        Now::from_nanos(self.now + self.skew)
    }

    fn delay(&mut self) -> u64 {
        match self.setup.faults && self.rng.chance(5) {
            true => self.rng.between(0, 700 * MS),
            false => self.rng.between(MS / 10, MS),
        }
    }

    /// The store decides on a call, or charges what it can of a total.
    fn arrive(&mut self, sent: Sent) {
        if self.frozen_until > self.now {
            return self.at(self.frozen_until, Event::Arrive(sent));
        }
        // Its connection was to another run of the store.
        if sent.run != self.run {
            return self.at(self.now + GIVES_UP, Event::Answer(sent, None));
        }
        let now = self.clock();
        if self.is_lost || now.wall.as_nanos() >= self.expiry {
            self.begin(&sent);
        }
        let cost = Cost::new(sent.total).filter(|_| sent.number == 0);
        let charge = Charge::alone(&self.active, cost.unwrap_or(Cost::ONE));
        let mut entry = Entry {
            charge: &charge,
            state: &mut self.state,
        };
        let answer = if cost.is_some() {
            let decision = decide_one(now, Operation::Acquire, &mut entry);
            if decision.outcome.is_allow() {
                self.charges.push_back((self.now, sent.total));
                self.charged(&decision);
                // A strict call is admitted when it is charged.
                self.admit(sent.total);
            }
            (decision, 0, now.wall.as_nanos())
        } else {
            let process = match self.setup.mistake {
                Some(SyncedMistake::SameId) => (sent.node, 0),
                _ => (sent.node, sent.start),
            };
            let record = self.records.get(&process).copied().unwrap_or(0);
            let known = match self.setup.mistake {
                Some(SyncedMistake::NoRecord) => sent.base,
                _ => record.max(sent.base),
            };
            let (paid, decision) = pay(now, sent.total.saturating_sub(known), &mut entry);
            if paid > 0 {
                self.charged(&decision);
                self.charges.push_back((self.now, paid));
                self.outcome.paid += paid;
                self.records.insert(process, known + paid);
                let ledger = self.ledgers.entry((sent.node, sent.start)).or_default();
                ledger.charged += paid;
                self.check(sent.node, sent.start);
            }
            (decision, known + paid, now.wall.as_nanos())
        };
        self.keep(&answer.0);
        self.answers.push(answer);
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

    /// The store has written what it has, if the key is in use.
    fn keep(&mut self, decision: &Decision) {
        let rest = u64::try_from(decision.reset_after.as_nanos()).unwrap_or(u64::MAX / 2);
        if rest > 0 {
            self.expiry = self.now + self.skew + rest + KEPT;
        }
        let recent = self.now.saturating_sub(SECOND);
        while self.written.front().is_some_and(|old| old.at < recent) {
            self.written.pop_front();
        }
        self.written.push_back(Written {
            at: self.now,
            state: self.state.clone(),
            expiry: self.expiry,
            records: self.records.clone(),
        });
    }

    fn answer(&mut self, sent: Sent, answer: Option<usize>) {
        let node = &mut self.nodes[sent.node];
        let clock = node.clock(self.now);
        // A process does not hear what an earlier one asked.
        let Some(key) = node.key.as_mut().filter(|_| node.start == sent.start) else {
            return;
        };
        let answer = answer.and_then(|index| self.answers.get(index));
        if let Some((decision, at)) = answer.map(|(decision, _, at)| (decision, *at)) {
            node.proof.note(clock, decision, Wall::from_nanos(at));
            let is_used = !decision.reset_after.is_zero();
            let fresh_until = self.now + LIFE_NANOS - 2 * MS;
            node.told = is_used.then_some((at + LIFE_NANOS - 2 * MS, fresh_until));
        }
        match (sent.number, answer) {
            (0, None) => return,
            (0, Some((decision, ..))) => {
                key.resume();
                key.observe(Monotonic::from_nanos(sent.sent), decision);
                return;
            }
            (number, Some((decision, paid, _))) => key.answer(clock, number, decision, *paid),
            (number, None) => key.lost(clock, number),
        }
        // Callers that waited for the store ask again.
        for _ in 0..self.nodes[sent.node].waiting.len() {
            if let Some((cost, waits)) = self.nodes[sent.node].waiting.pop_front() {
                self.call(sent.node, cost, waits);
            }
        }
    }

    /// Checks what a process admitted against what was charged for it.
    fn check(&mut self, node: usize, start: u64) {
        let ledger = self.ledgers.entry((node, start)).or_default();
        let most = ledger.charged + self.terms.cap;
        let above = ledger.admitted.saturating_sub(most);
        let twice = ledger
            .charged
            .saturating_sub(ledger.admitted + ledger.doubled);
        if above > 0 {
            self.outcome.violation = Some(("the cap", above));
        } else if twice > 0 {
            self.outcome.violation = Some(("charged once", twice));
        }
    }

    /// The store made a charge: where it began a window, what is admitted counts from there.
    fn charged(&mut self, decision: &Decision) {
        let rest = u64::try_from(decision.reset_after.as_nanos()).unwrap_or(u64::MAX);
        if self.now >= self.window.0 {
            self.window = (self.now.saturating_add(rest), 0);
        }
    }

    fn admit(&mut self, cost: u64) {
        self.outcome.admitted += cost;
        let forgotten = cost.min(self.pool);
        self.pool -= forgotten;
        let cost = cost - forgotten;
        let excess = if matches!(self.terms.supply, Supply::AtOnce(_)) {
            self.window.1 += cost;
            let most = self.terms.max + self.bound;
            self.window.1.checked_sub(most).filter(|excess| *excess > 0)
        } else {
            self.audit.admit(self.now, cost)
        };
        if let Some(excess) = excess {
            self.outcome.violation = Some(("the bound", excess));
        }
    }

    /// The store has no state of the key, and begins one for a message. If it is lost while its node was told that
    /// it is there, or knows that another run of the store answered before, no burst comes free.
    fn begin(&mut self, sent: &Sent) {
        let was_lost = std::mem::take(&mut self.is_lost);
        let now = self.clock();
        let is_before = |until: u64| now.wall.as_nanos() < until;
        let is_told = sent.told.is_some_and(is_before) || sent.doubts;
        if was_lost && !is_told {
            self.window = (0, 0);
            let limit = self.setup.limit.clone();
            self.audit.forget(&limit, self.bound, self.now);
        }
        self.state = State::rest(LimitId(1));
        let is_proven = sent.proof.is_some_and(is_before);
        let doubts = sent.doubts && self.setup.mistake != Some(SyncedMistake::NotQuiet);
        // A message that is late by true time is not by a clock that stepped back.
        let is_certain = !sent.doubts && self.now >= self.stepped_until;
        if is_proven && !was_lost && is_certain {
            self.outcome.violation = Some(("a wrong refusal", self.terms.max));
        }
        if (is_proven || doubts) && self.setup.mistake != Some(SyncedMistake::LossIsRest) {
            let charge = Charge::alone(&self.active, Cost::ONE);
            let mut entry = Entry {
                charge: &charge,
                state: &mut self.state,
            };
            pay(now, self.terms.max, &mut entry);
        }
    }

    /// The store is restarted empty: what it had charged without an answer may be charged again.
    fn forget(&mut self) {
        self.is_lost = true;
        self.records.clear();
        for ledger in self.ledgers.values_mut() {
            ledger.doubled += self.terms.cap;
        }
    }

    /// The store starts again with nothing, a moment later. What is on its way is lost.
    fn restart(&mut self) {
        self.forget();
        self.run += 1;
        self.down_until = self.now + self.rng.between(0, 1_500 * MS);
        self.written.clear();
        self.charges.clear();
    }

    /// A replica takes over that lacks what was written since then. What was charged since may be admitted again,
    /// or charged again.
    fn fail_over(&mut self, since: u64) {
        while self.written.back().is_some_and(|last| last.at > since) {
            self.written.pop_back();
        }
        let Some(last) = self.written.back().cloned() else {
            return;
        };
        (self.state, self.expiry, self.records) = (last.state, last.expiry, last.records);
        if self.setup.mistake == Some(SyncedMistake::ReplicaIsEmpty) {
            self.state = State::rest(LimitId(1));
        }
        self.run += 1;
        let lost = self.charges.iter().filter(|(at, _)| *at > since);
        self.pool += lost.map(|(_, units)| units).sum::<u64>();
        self.charges.retain(|(at, _)| *at <= since);
        for ledger in self.ledgers.values_mut() {
            ledger.doubled += self.terms.cap;
        }
    }

    /// The store's clock steps; ahead, the limit produces units for the time between.
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
            if self.setup.mistake == Some(SyncedMistake::StepBackForgets) {
                self.state = State::rest(LimitId(1));
            }
        }
        self.written.clear();
    }

    fn fault(&mut self) {
        let node = self.rng.index(self.nodes.len());
        let has_windows = matches!(self.terms.supply, Supply::AtOnce(_));
        let lag = self.rng.between(0, 300 * MS);
        match self.rng.number() % 9 {
            0 => self.frozen_until = self.now + self.rng.between(0, 800 * MS),
            1 if self.rng.chance(50) => self.forget(),
            7 if self.rng.chance(50) => self.restart(),
            // Windows of the store before and after would overlap.
            7 if !has_windows => self.fail_over(self.now - lag),
            8 if !has_windows => self.step_clock(),
            7 | 8 => {}
            2 | 3 => self.nodes[node].paused_until = self.now + self.rng.between(0, 1_500 * MS),
            // Rules are read again.
            4 => {
                let terms = self.terms;
                if let Some(key) = &mut self.nodes[node].key {
                    key.change(terms);
                }
            }
            // Killed and started again; or a node leaves and another joins.
            _ if self.deaths < MOST_DEATHS => {
                self.deaths += 1;
                if self.rng.chance(50) && self.nodes[node].paused_until <= self.now {
                    self.tell(node, SyncedKey::leave);
                }
                let (offset, down) = (self.rng.between(0, SECOND), self.rng.between(0, 500 * MS));
                let node = &mut self.nodes[node];
                node.start += 1;
                node.key = None;
                (node.proof, node.told) = (Proof::default(), None);
                node.run = None;
                node.waiting.clear();
                node.offset += offset;
                node.paused_until = self.now + down;
            }
            _ => {}
        }
        let next = self.now + self.rng.between(10 * MS, 900 * MS);
        self.at(next, Event::Fault);
    }
}
