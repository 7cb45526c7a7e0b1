//! Synced keys: nodes that admit calls on one key from memory and have them charged afterwards, under faults.
//!
//! One store charges (`shared_store`). Messages are late, lost and in any order, and the store loses its memory in
//! every way. Nodes have clocks that drift; they pause, die, start again, leave, and read new limits. The auditor
//! counts what each process admitted, and what the store charged for it, and reads no count of the protocol:
//!
//! ```text
//! each process      0 <= admitted - charged <= cap, at any time
//! buckets           admitted <= limit + n * cap, over any interval, also if the store is emptied while a node
//!                   knows that the key is in use
//! windows           admitted <= limit + n * cap, in any window
//! ```
//!
//! A replica that takes over admits once more what was charged in its lag, and a clock that steps ahead what the
//! limit produces in that time, a burst at most; one that steps back over the end of a calendar window that window.
//! A process that dies forgets up to `cap` units that were not
//! charged, and a store that forgets may charge up to `cap` units of each process twice: all of that is counted, and
//! nothing else is allowed. The judge of production runs in each process, as in [`leases`](crate::leases).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::num::NonZeroU32;
use std::time::Duration;

use quell_core::charge::{Charge, Entry, Operation, decide_one, pay};
use quell_core::cost::Cost;
use quell_core::decision::Decision;
use quell_core::limit::Limit;
use quell_core::over_admission::{LeasePolicy, LeaseTerms, OverAdmission, Supply};
use quell_core::time::{Monotonic, Wall};
use quell_shares::audit::KeyAudit;
use quell_shares::lease::DEMAND_INTERVAL;
use quell_shares::synced::{SyncRequest, SyncStep, SyncedKey};
use quell_shares::synced_mistake::SyncedMistake;

use crate::audit::{Audit, START, accusation};
use crate::leases::in_turn;
use crate::rng::Rng;
use crate::shared_store::{ClockStep, Known, SharedStore, StoreMistake, Word};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
/// The most by which a clock drifts, in millionths.
const DRIFT: u64 = 500;
/// After how long without an answer a node gives up.
const GIVES_UP: u64 = 100 * MS;
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
    /// The cost of every call; `None` if most cost 1, and some up to 4.
    pub cost: Option<u64>,
    /// Callers all ask one node that has some, and go on to the next after this time; `None` if each asks its own.
    pub turn: Option<Duration>,
    /// Simulated time.
    pub seconds: u64,
    /// Whether anything goes wrong.
    pub faults: bool,
    /// A deliberate mistake.
    pub mistake: Option<SyncedMistake>,
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
    /// Of those, units from memory.
    pub synced: u64,
    /// Calls to the store.
    pub requests: u64,
    /// Calls that waited for the store, or were left to it.
    pub waited: u64,
    /// Units that the store charged afterwards.
    pub paid: u64,
    /// The first thing of which production's judge accused a process, and by how much.
    pub accused: Option<(&'static str, u64)>,
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
    word: Word,
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
    known: Known,
    audit: KeyAudit,
    /// The request whose answer would be taken.
    open: Option<SyncRequest>,
}

impl Node {
    fn clock(&self, now: u64) -> Monotonic {
        let elapsed = i128::from(now - START);
        let drifted = elapsed + elapsed * i128::from(self.ppm) / 1_000_000;
        Monotonic::from_nanos(START + self.offset + u64::try_from(drifted).unwrap_or(0))
    }
}

struct World {
    setup: Setup,
    terms: LeaseTerms,
    bound: u64,
    rng: Rng,
    now: u64,
    queue: BinaryHeap<Reverse<(u64, u64, Event)>>,
    order: u64,
    /// With what it charged of the totals of each process: by node and start.
    store: SharedStore<BTreeMap<(usize, u64), u64>>,
    /// Units that may be admitted in addition, since the store has forgotten as many.
    pool: u64,
    /// Units that some process may see admitted or given back beyond the limit and the bound of the rule, in all.
    allowed: u64,
    /// Decisions, what is charged of a total, and when they were made by the store's clock.
    answers: Vec<(Decision, u64, Wall)>,
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
    let Ok(terms) = policy.synced_terms(&setup.limit, None) else {
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
        known: Known::default(),
        audit: KeyAudit::new(&setup.limit, &terms, DEMAND_INTERVAL, Monotonic::ORIGIN),
        open: None,
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
        for node in 0..self.nodes.len() {
            self.judge(node);
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

    /// Under faults callers come in waves, to all nodes at once, when the limit has recovered.
    fn next_call(&mut self, node: usize) {
        let callers = self.setup.turn.map_or(self.setup.busy, |_| 1);
        let gap = SECOND * u64::from(callers) / self.setup.offered.max(1);
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
            let busy = usize::try_from(self.setup.busy).unwrap_or(usize::MAX);
            at = in_turn(node, busy, at, turn);
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
                    self.judge(node);
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
        let of_node = &mut self.nodes[node];
        let (clock, start) = (of_node.clock(self.now), of_node.start);
        let key = of_node
            .key
            .get_or_insert_with(|| SyncedKey::new(terms, clock).with(mistake));
        let (step, request) = match waits {
            MAX_WAITS => (SyncStep::Strict, None),
            0 => key.take(clock, cost),
            _ => key.take_again(clock, cost),
        };
        match step {
            SyncStep::Allow => {
                of_node.audit.count(cost);
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
            of_start.audit.uncount(cost);
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
        let (start, now) = (self.nodes[node].start, self.now);
        let clock = self.nodes[node].clock(now);
        let word = self.store.word(&mut self.nodes[node].known, now, clock);
        let sent = Sent {
            node,
            start,
            number: request.number,
            total: request.total,
            base: request.base,
            sent: clock.as_nanos(),
            word,
        };
        if sent.number > 0 {
            let ledger = self.ledgers.entry((node, start)).or_default();
            if let Some(fallen) = ledger.base.checked_sub(sent.base).filter(|by| *by > 0) {
                self.outcome.violation = Some(("what is paid stays so", fallen));
            }
            ledger.base = sent.base;
            self.nodes[node].open = Some(request);
        }
        if self.store.is_down(self.now) || (self.setup.faults && self.rng.chance(2)) {
            return self.at(self.now + GIVES_UP, Event::Answer(sent, None));
        }
        let delay = self.delay();
        self.at(self.now + delay, Event::Arrive(sent));
    }

    fn delay(&mut self) -> u64 {
        match self.setup.faults && self.rng.chance(5) {
            true => self.rng.between(0, 700 * MS),
            false => self.rng.between(MS / 10, MS),
        }
    }

    /// The store decides on a call, or charges what it can of a total.
    fn arrive(&mut self, sent: Sent) {
        let now = self.now;
        if self.store.frozen_until > now {
            return self.at(self.store.frozen_until, Event::Arrive(sent));
        }
        // Its connection was to another run of the store.
        if !self.store.hears(&sent.word) {
            return self.at(now + GIVES_UP, Event::Answer(sent, None));
        }
        if self.store.is_missing(now) {
            self.begin(&sent.word);
        }
        let clock = self.store.clock(now);
        let cost = Cost::new(sent.total).filter(|_| sent.number == 0);
        let mut charge = Charge::alone(&self.store.active, cost.unwrap_or(Cost::ONE));
        charge.edges = self.store.edges(now);
        let mut entry = Entry {
            charge: &charge,
            state: &mut self.store.state,
        };
        let (decision, total) = if cost.is_some() {
            let decision = decide_one(clock, Operation::Acquire, &mut entry);
            if decision.outcome.is_allow() {
                self.store.charged(now, sent.total);
                self.charged(&decision);
                // A strict call is admitted when it is charged.
                self.admit(sent.total);
            }
            (decision, 0)
        } else {
            let process = match self.setup.mistake {
                Some(SyncedMistake::SameId) => (sent.node, 0),
                _ => (sent.node, sent.start),
            };
            let record = self.store.records.get(&process).copied().unwrap_or(0);
            let known = match self.setup.mistake {
                Some(SyncedMistake::NoRecord) => sent.base,
                _ => record.max(sent.base),
            };
            let (paid, decision) = pay(clock, sent.total.saturating_sub(known), &mut entry);
            if paid > 0 {
                self.charged(&decision);
                self.store.charged(now, paid);
                self.outcome.paid += paid;
                self.store.records.insert(process, known + paid);
                let ledger = self.ledgers.entry((sent.node, sent.start)).or_default();
                ledger.charged += paid;
                self.check(sent.node, sent.start);
            }
            (decision, known + paid)
        };
        if !decision.reset_after.is_zero() {
            self.store.keep(now);
        }
        self.answers.push((decision, total, clock.wall));
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

    fn answer(&mut self, sent: Sent, answer: Option<usize>) {
        let node = &mut self.nodes[sent.node];
        let clock = node.clock(self.now);
        // A process does not hear what an earlier one asked.
        let Some(key) = node.key.as_mut().filter(|_| node.start == sent.start) else {
            return;
        };
        let answer = answer.and_then(|index| self.answers.get(index));
        let sent_at = Monotonic::from_nanos(sent.sent);
        if let Some((decision, _, at)) = answer {
            node.known.note(self.now, clock, decision, *at);
            node.audit.observe(sent_at, clock, decision);
        }
        let open = node.open.take_if(|open| open.number == sent.number);
        match (sent.number, answer) {
            (0, None) => return,
            (0, Some((decision, ..))) => {
                key.resume();
                key.observe(sent_at, sent.total, decision);
                if decision.outcome.is_allow() {
                    node.audit.count_strict(sent_at, sent.total);
                }
                return;
            }
            (number, Some((decision, paid, _))) => {
                if let Some(request) = open {
                    node.audit.paid(&request, *paid);
                }
                key.answer(clock, number, decision, *paid);
            }
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
            // A window of the calendar begins whether anything is charged or not.
            if let Some(edges) = self.store.edges(self.now)
                && self.now >= self.window.0
            {
                let left = edges.end.since(self.store.clock(self.now).wall);
                let left = u64::try_from(left.as_nanos()).unwrap_or(u64::MAX);
                self.window = (self.now.saturating_add(left), 0);
            }
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

    /// The store has no state of the key, and begins one for a message. No burst comes free if it was lost while the
    /// node that sends it knew that the key was in use, or that another run of the store answered before.
    fn begin(&mut self, word: &Word) {
        let begun = self.store.begin(self.now, word, self.terms.max);
        if begun.comes_free {
            self.window = (0, 0);
            let limit = self.setup.limit.clone();
            self.audit.forget(&limit, self.bound, self.now);
            self.allowed += self.terms.max + self.bound;
        }
        if begun.is_wrong {
            self.outcome.violation = Some(("a wrong refusal", self.terms.max));
        }
    }

    /// The store forgets what it has charged of totals: as much may be charged again.
    fn doubled(&mut self) {
        for ledger in self.ledgers.values_mut() {
            ledger.doubled += self.terms.cap;
        }
    }

    fn fail_over(&mut self, since: u64) {
        if let Some(lost) = self.store.fail_over(since) {
            self.allow(lost.charged);
            self.allowed += lost.withheld;
            self.doubled();
        }
    }

    fn step_clock(&mut self) {
        let units = match self.store.step_clock(self.now, &mut self.rng, &self.terms) {
            ClockStep::Ahead(units) | ClockStep::Back(units) => units,
        };
        self.allow(units);
    }

    const fn allow(&mut self, units: u64) {
        self.pool += units;
        self.allowed += units;
    }

    fn fault(&mut self) {
        let node = self.rng.index(self.nodes.len());
        let lag = self.rng.between(0, 300 * MS);
        match self.rng.number() % 9 {
            0 => self.store.frozen_until = self.now + self.rng.between(0, 800 * MS),
            1 if self.rng.chance(50) => {
                self.store.forget();
                self.doubled();
            }
            7 if self.rng.chance(50) => {
                self.store.restart(self.now, &mut self.rng);
                self.doubled();
            }
            7 => self.fail_over(self.now - lag),
            8 => self.step_clock(),
            2 | 3 => self.nodes[node].paused_until = self.now + self.rng.between(0, 1_500 * MS),
            // Rules are read again.
            4 => {
                let (terms, node) = (self.terms, &mut self.nodes[node]);
                let clock = node.clock(self.now);
                if let Some(key) = &mut node.key {
                    key.change(terms);
                    node.audit.change(&self.setup.limit, &terms, clock);
                }
            }
            // Killed and started again; or a node leaves and another joins.
            _ if self.deaths < MOST_DEATHS => {
                self.deaths += 1;
                if self.rng.chance(50) && self.nodes[node].paused_until <= self.now {
                    self.judge(node);
                    self.tell(node, SyncedKey::leave);
                }
                let (offset, down) = (self.rng.between(0, SECOND), self.rng.between(0, 500 * MS));
                let node = &mut self.nodes[node];
                node.start += 1;
                node.key = None;
                node.known = Known::default();
                node.waiting.clear();
                node.offset += offset;
                node.paused_until = self.now + down;
                let (limit, began) = (&self.setup.limit, node.clock(self.now));
                node.audit = KeyAudit::new(limit, &self.terms, DEMAND_INTERVAL, began);
                node.open = None;
            }
            _ => {}
        }
        let next = self.now + self.rng.between(10 * MS, 900 * MS);
        self.at(next, Event::Fault);
    }
}
