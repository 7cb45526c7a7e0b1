//! Leases: nodes that take units of one key from a shared store in advance, under faults.
//!
//! One store decides (`shared_store`). Its answers are late or lost, and it loses its memory in every way. Nodes
//! have clocks that drift; they pause, die, start again, join, leave, and give back what they do not need. After
//! each admission the auditor says whether the bound was kept:
//!
//! ```text
//! buckets           limit + n * cap, over any interval, also if the store is emptied while a lease lives
//! sliding windows   limit + n * cap, in any window
//! fixed windows     limit, in each window of the store, also of the calendar
//! lost memory       a window once more, if no node that asks knows that the key is in use
//! fail-over         what was charged in the lag, once more
//! clock steps       what the limit produces in the step, at most a burst; back: what the nodes hold, and a
//!                   calendar window that ends again once more
//! returns           none is executed after its grant is over
//! refusals          none because a state is missing that expired in its time, or was given back
//! each process      granted + cap, used and given back in any interval
//! ```
//!
//! The judge of production ([`KeyAudit`]) runs in each process, as there. It knows no more than the process does, and
//! must not accuse it while the auditor sees all of this kept.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::num::NonZeroU32;
use std::time::Duration;

use quell_core::charge::{Charge, Entry, Operation, decide_one, take_back};
use quell_core::cost::Cost;
use quell_core::decision::Decision;
use quell_core::limit::Limit;
use quell_core::over_admission::{LeasePolicy, LeaseTerms, OverAdmission};
use quell_core::time::{Monotonic, Now, Wall};
use quell_shares::audit::KeyAudit;
use quell_shares::lease::{DEMAND_INTERVAL, Lease, Request, Return, Step};
use quell_shares::lease_mistake::LeaseMistake;

use crate::audit::{Audit, START, accusation};
use crate::lease_ledger::LeaseLedger;
use crate::rng::Rng;
use crate::shared_store::{ClockStep, Known, SharedStore, StoreMistake, Word};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
/// The most by which a clock drifts, in millionths.
const DRIFT: u64 = 500;
/// After how long without an answer a node gives up.
const GIVES_UP: u64 = 100 * MS;
/// Callers of one node that wait at a time.
const MOST_WAITING: usize = 20;
/// How long a grant lasts.
const LIFE_NANOS: u64 = 500 * MS;
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
    /// The cost of every call; `None` if most cost 1, and some up to 4.
    pub cost: Option<u64>,
    /// Callers all ask one node, and go on to the next after this time; `None` if each asks its own.
    pub turn: Option<Duration>,
    /// Simulated time.
    pub seconds: u64,
    /// Whether anything goes wrong.
    pub faults: bool,
    /// A deliberate mistake.
    pub mistake: Option<LeaseMistake>,
    /// A deliberate mistake of the store.
    pub of_store: Option<StoreMistake>,
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
    /// Calls to the store that give units back.
    pub returns: u64,
    /// Units given back to it.
    pub returned: u64,
    /// Of what was admitted, the units since the first caller was refused.
    pub after_refusal: Option<u64>,
    /// The first thing of which production's judge accused a process, and by how much.
    pub accused: Option<(&'static str, u64)>,
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
    /// When, by the node's clock.
    sent: u64,
    word: Word,
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
    known: Known,
    audit: KeyAudit,
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

struct World {
    setup: Setup,
    terms: LeaseTerms,
    /// By how many units the nodes that run may exceed the limit together.
    bound: u64,
    rng: Rng,
    now: u64,
    queue: BinaryHeap<Reverse<(u64, u64, Event)>>,
    order: u64,
    store: SharedStore<()>,
    /// Units that may be admitted in addition, since the store has forgotten as many.
    pool: u64,
    /// Units that some process may see admitted or given back beyond the limit and the bound of the rule, in all.
    allowed: u64,
    /// Decisions, when they were made, and when by the store's clock.
    answers: Vec<(Decision, u64, Wall)>,
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
    let Ok(terms) = policy.terms(&setup.limit, None) else {
        return Outcome::default();
    };
    let mut rng = Rng::new(setup.seed);
    let count = setup.nodes + setup.more;
    let bound = terms.cap * u64::from(count);
    let all = (0..count).map(|_| Node {
        lease: None,
        start: 0,
        audit: KeyAudit::new(&setup.limit, &terms, DEMAND_INTERVAL, Monotonic::ORIGIN),
        offset: rng.between(0, 3_600 * SECOND),
        ppm: i64::try_from(rng.between(0, 2 * DRIFT)).unwrap_or(0)
            - i64::try_from(DRIFT).unwrap_or(0),
        paused_until: 0,
        waiting: VecDeque::new(),
        known: Known::default(),
        ledger: LeaseLedger::default(),
        ended: Vec::new(),
    });
    let nodes = all.collect();
    let mut world = World {
        audit: Audit::new(&setup.limit, bound),
        bound,
        store: SharedStore::new(setup.limit.clone(), setup.of_store),
        pool: 0,
        allowed: bound - terms.bound(),
        terms,
        rng,
        now: START,
        queue: BinaryHeap::new(),
        order: 0,
        answers: Vec::new(),
        nodes,
        outcome: Outcome::default(),
        setup,
    };
    world.run();
    world.outcome
}

/// When it is the turn of one of so many nodes, at `at` or later.
pub(crate) fn in_turn(node: usize, nodes: usize, at: u64, turn: Duration) -> u64 {
    let turn = u64::try_from(turn.as_nanos()).unwrap_or(u64::MAX);
    let (nodes, node) = (nodes as u64, node as u64);
    let present = at / turn;
    let ahead = (node + nodes - present % nodes) % nodes;
    match ahead {
        0 => at,
        turns => (present + turns) * turn,
    }
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
        for node in 0..self.nodes.len() {
            self.judge(node);
        }
        let cap = self.terms.cap;
        for node in &mut self.nodes {
            let ledgers = node.ended.iter_mut().chain([&mut node.ledger]);
            let excess = ledgers.map(|ledger| ledger.close(cap)).max().unwrap_or(0);
            if excess > 0 && self.outcome.violation.is_none() {
                self.outcome.violation = Some(("the cap", excess));
            }
        }
    }

    /// What production's judge says of a process.
    fn judge(&mut self, node: usize) {
        let node = &mut self.nodes[node];
        let excess = node.audit.judge(node.clock(self.now));
        let accused = accusation(excess, self.terms.bound(), self.allowed);
        self.outcome.accused = self.outcome.accused.or(accused);
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
        let cost = match self.setup.cost {
            Some(cost) => cost,
            None if self.rng.chance(10) => self.rng.between(1, 4),
            None => 1,
        };
        let mut at = self.now + gap;
        if self.setup.faults {
            let wave = (150 + self.setup.seed * 37 % 700) * MS;
            if at % wave > wave / 3 {
                at = at - at % wave + wave;
            }
        }
        if let Some(turn) = self.setup.turn {
            at = in_turn(node, self.nodes.len(), at, turn);
        }
        self.at(at, Event::Call(node, cost));
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Call(node, cost) => {
                self.next_call(node);
                if self.nodes[node].paused_until <= self.now {
                    self.call(node, cost, false);
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
                    self.judge(node);
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

    fn call(&mut self, node: usize, cost: u64, again: bool) {
        let (terms, mistake) = (self.terms, self.setup.mistake);
        let clock = self.nodes[node].clock(self.now);
        let lease = self.nodes[node]
            .lease
            .get_or_insert_with(|| Lease::new(terms, clock).with(mistake));
        let step = match again {
            false => lease.take(clock, cost),
            true => lease.take_again(clock, cost),
        };
        match step {
            Step::Allow { refill } => {
                self.outcome.leased += cost;
                let now = self.now;
                self.nodes[node].ledger.used(now, cost);
                self.nodes[node].audit.count(cost);
                self.admit(cost);
                if let Some(request) = refill {
                    self.send(node, request);
                }
            }
            Step::Deny(_) => self.refuse(),
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
        let sent = Sent {
            node,
            start: self.nodes[node].start,
            number: request.number,
            units: request.units,
            sent: self.nodes[node].clock(self.now).as_nanos(),
            word: self.word(node),
        };
        if sent.number > 0 {
            self.nodes[node].ledger.asked(sent.number);
        }
        if self.store.is_down(self.now) || (self.setup.faults && self.rng.chance(2)) {
            return self.at(self.now + GIVES_UP, Event::Answer(sent, None));
        }
        let delay = self.delay();
        self.at(self.now + delay, Event::Arrive(sent));
    }

    /// What a node says to the store.
    fn word(&mut self, node: usize) -> Word {
        let node = &mut self.nodes[node];
        let clock = node.clock(self.now);
        self.store.word(&mut node.known, self.now, clock)
    }

    /// Sends what the node gives back, once: a return may be lost, or late.
    fn give_back(&mut self, node: usize, next: fn(&mut Lease, Monotonic) -> Option<Return>) {
        let clock = self.nodes[node].clock(self.now);
        for _ in 0..2 {
            let lease = self.nodes[node].lease.as_mut();
            let Some(back) = lease.and_then(|lease| next(lease, clock)) else {
                return;
            };
            self.outcome.returns += 1;
            let sent = Sent {
                node,
                start: self.nodes[node].start,
                number: back.number,
                units: back.units,
                sent: clock.as_nanos(),
                word: self.word(node),
            };
            self.nodes[node].audit.given_back(back.units);
            if !(self.setup.faults && self.rng.chance(2)) {
                let (charged, until) = (back.charged.as_nanos(), back.until.as_nanos());
                let delay = self.delay();
                self.at(self.now + delay, Event::Return(sent, charged, until));
            }
        }
    }

    /// The store takes units back, if it is not too late.
    fn take_back(&mut self, sent: Sent, charged: u64, until: u64) {
        let now = self.now;
        if self.store.frozen_until > now {
            return self.at(self.store.frozen_until, Event::Return(sent, charged, until));
        }
        let is_there = self.store.hears(&sent.word) && !self.store.is_down(now);
        let clock = self.store.clock(now);
        let is_in_time = is_there && clock.wall.as_nanos() <= until;
        let Some(cost) = Cost::new(sent.units).filter(|_| is_in_time) else {
            return;
        };
        if self.store.is_missing(now) {
            self.begin(&sent.word.until(until.saturating_add(1)));
            let delay = self.delay();
            return self.at(now + delay, Event::Returned(sent));
        }
        let mut charge = Charge::alone(&self.store.active, cost);
        charge.edges = self.store.edges(now);
        let mut entry = Entry {
            charge: &charge,
            state: &mut self.store.state,
        };
        take_back(clock, Now::from_nanos(charged), &mut entry);
        self.store.keep(now);
        self.outcome.returned += sent.units;
        // One that is late only by true time is paid for by the step.
        if !self.store.has_stepped(now) {
            self.nodes[sent.node]
                .ledger(sent.start)
                .used(now, sent.units);
        }
        if clock.wall.as_nanos() > charged + LIFE_NANOS + MS {
            self.outcome.violation = Some(("a late return", sent.units));
        }
        let delay = self.delay();
        self.at(now + delay, Event::Returned(sent));
    }

    /// The store has no state of the key, and begins one for a message. No burst comes free if it was lost while the
    /// node that sends it knew that the key was in use, or that another run of the store answered before.
    fn begin(&mut self, word: &Word) {
        let begun = self.store.begin(self.now, word, self.terms.max);
        if begun.comes_free && self.has_windows() {
            self.allow(self.terms.max);
            self.audit.stretch();
        } else if begun.comes_free {
            let (limit, bound) = (self.setup.limit.clone(), self.bound);
            self.audit.forget(&limit, bound, self.now);
            self.allowed += self.terms.max + bound;
        }
        if begun.is_wrong {
            self.outcome.violation = Some(("a wrong refusal", self.terms.max));
        }
    }

    const fn has_windows(&self) -> bool {
        matches!(self.audit, Audit::Fixed { .. })
    }

    /// The store's clock steps, and units may be admitted or given back that may not be otherwise.
    fn step_clock(&mut self) {
        self.audit.stretch();
        let units = match self.store.step_clock(self.now, &mut self.rng, &self.terms) {
            ClockStep::Ahead(produced) => produced,
            ClockStep::Back(again) => self.bound + again,
        };
        self.allow(units);
    }

    const fn allow(&mut self, units: u64) {
        self.pool += units;
        self.allowed += units;
    }

    fn delay(&mut self) -> u64 {
        match self.setup.faults && self.rng.chance(5) {
            true => self.rng.between(0, 700 * MS),
            false => self.rng.between(MS / 10, MS),
        }
    }

    /// The store decides.
    fn arrive(&mut self, sent: Sent) {
        let now = self.now;
        if self.store.frozen_until > now {
            return self.at(self.store.frozen_until, Event::Arrive(sent));
        }
        // Its connection was to another run of the store.
        if !self.store.hears(&sent.word) {
            return self.at(now + GIVES_UP, Event::Answer(sent, None));
        }
        let Some(cost) = Cost::new(sent.units) else {
            return;
        };
        if self.store.is_missing(now) {
            self.begin(&sent.word);
        }
        let clock = self.store.clock(now);
        let mut charge = Charge::alone(&self.store.active, cost);
        charge.edges = self.store.edges(now);
        let mut entry = Entry {
            charge: &charge,
            state: &mut self.store.state,
        };
        let decision = decide_one(clock, Operation::Acquire, &mut entry);
        if decision.outcome.is_allow() {
            self.store.keep(now);
            self.store.charged(now, sent.units);
            self.audit.charged(now, &decision);
            // A strict call is admitted when it is charged.
            if sent.number == 0 {
                self.admit(sent.units);
            }
        } else if sent.number == 0 {
            self.refuse();
        }
        self.answers.push((decision, now, clock.wall));
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
        let sent_at = Monotonic::from_nanos(sent.sent);
        if let Some((decision, _, at)) = decided {
            node.known.note(self.now, clock, decision, *at);
            node.audit.observe(sent_at, clock, decision);
        }
        if sent.number == 0 {
            if let Some((decision, ..)) = decided {
                lease.resume();
                lease.observe(sent_at, decision);
                if decision.outcome.is_allow() {
                    node.audit.count_strict(sent_at, sent.units);
                }
            }
            return;
        }
        let Some((decision, at, store_time)) = decided else {
            node.ledger.gave_up(sent.number);
            lease.lost(clock, sent.number);
            return self.wake(sent.node);
        };
        if decision.outcome.is_allow() {
            if node.ledger.granted(sent.number, *at, sent.units) {
                node.audit.charged(sent.units);
            }
        } else {
            node.ledger.gave_up(sent.number);
        }
        lease.answer(clock, sent.number, decision, Some(*store_time));
        self.wake(sent.node);
    }

    /// Callers that waited for the store ask again.
    fn wake(&mut self, node: usize) {
        for _ in 0..self.nodes[node].waiting.len() {
            if let Some(cost) = self.nodes[node].waiting.pop_front() {
                self.call(node, cost, true);
            }
        }
    }

    const fn refuse(&mut self) {
        if self.outcome.after_refusal.is_none() {
            self.outcome.after_refusal = Some(0);
        }
    }

    fn admit(&mut self, cost: u64) {
        self.outcome.admitted += cost;
        if let Some(units) = &mut self.outcome.after_refusal {
            *units += cost;
        }
        let forgotten = cost.min(self.pool);
        self.pool -= forgotten;
        if let Some(excess) = self.audit.admit(self.now, cost - forgotten) {
            self.outcome.violation = Some(("the bound", excess));
        }
    }

    fn fault(&mut self) {
        let node = self.rng.index(self.nodes.len());
        let lag = self.rng.between(0, 300 * MS);
        match self.rng.number() % 8 {
            0 => self.store.frozen_until = self.now + self.rng.between(0, 800 * MS),
            1 => self.store.forget(),
            4 if self.rng.chance(50) => self.store.restart(self.now, &mut self.rng),
            4 => {
                self.audit.stretch();
                let lost = self.store.fail_over(self.now - lag).unwrap_or_default();
                self.allow(lost.charged);
                self.allowed += lost.withheld;
            }
            5 => self.step_clock(),
            // Shorter and longer than a lease lasts.
            2 | 3 => self.nodes[node].paused_until = self.now + self.rng.between(0, 1_500 * MS),
            // Killed and started again; or a node leaves and another joins.
            _ => {
                if self.rng.chance(50) && self.nodes[node].paused_until <= self.now {
                    self.judge(node);
                    self.give_back(node, Lease::leave);
                }
                let (offset, down) = (self.rng.between(0, SECOND), self.rng.between(0, 500 * MS));
                let node = &mut self.nodes[node];
                node.start += 1;
                node.ended.push(std::mem::take(&mut node.ledger));
                node.lease = None;
                node.known = Known::default();
                node.waiting.clear();
                node.offset += offset;
                node.paused_until = self.now + down;
                let (limit, began) = (&self.setup.limit, node.clock(self.now));
                node.audit = KeyAudit::new(limit, &self.terms, DEMAND_INTERVAL, began);
            }
        }
        let next = self.now + self.rng.between(10 * MS, 900 * MS);
        self.at(next, Event::Fault);
    }
}
