//! Shared key: nodes that use one key on one store, under faults, driven by a queue of events.
//!
//! It is the world of [`leases`](crate::leases) and [`synced`](crate::synced) keys; a `Protocol` says what their
//! nodes and the store do. One store decides (`shared_store`). Messages are late, lost and in any order, and the store
//! loses its memory in every way. Nodes have clocks that drift; they pause, die, start again and leave. Callers come
//! to all nodes at once, in waves, or to one node after the other.
//!
//! The auditor sees all that is admitted. The judge of production ([`KeyAudit`]) runs in each process, as there. It
//! knows no more than the process does, and must not accuse it while the auditor sees every promise kept.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU32;
use std::time::Duration;

use quell_core::decision::Decision;
use quell_core::limit::Limit;
use quell_core::over_admission::{LeasePolicy, LeaseTerms, OverAdmission};
use quell_core::time::{Monotonic, Wall};
use quell_shares::audit::KeyAudit;
use quell_shares::lease::DEMAND_INTERVAL;

use crate::audit::{Audit, START, accusation};
use crate::clock::Clock;
use crate::rng::Rng;
use crate::shared_store::{Known, SharedStore, Word};

pub(crate) const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
/// The most by which a clock drifts, in millionths.
const DRIFT: u64 = 500;
/// After how long without an answer a node gives up.
const GIVES_UP: u64 = 100 * MS;
/// Longest pause of a node, or of a call on it: longer than a lease lasts.
const LONGEST_PAUSE: u64 = 1_500 * MS;
/// Number of calls in 100 that are paused between reading the clock and deciding, under faults.
const LATE: u64 = 1;
/// Callers of one node that wait at a time.
const MAX_WAITING: usize = 20;

/// Setup of a simulation.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Determines the whole run.
    pub seed: u64,
    /// The limit of the key.
    pub limit: Limit,
    /// Amount by which the limit may be exceeded.
    pub over: OverAdmission,
    /// Greatest number of nodes, as the rule says.
    pub nodes: u32,
    /// Number of nodes that run in addition, which the rule does not know of.
    pub more: u32,
    /// Number of nodes that have no callers.
    pub idle: u32,
    /// Calls offered to all nodes together, per second.
    pub offered: u64,
    /// The cost of every call; `None` if most cost 1, and some up to 4.
    pub cost: Option<u64>,
    /// Callers all ask one node that has some, and go on to the next after this time; `None` if each asks its own.
    pub turn: Option<Duration>,
    /// Simulated time.
    pub seconds: u64,
    /// True if anything goes wrong.
    pub faults: bool,
}

impl Setup {
    /// Policy of the rule.
    #[must_use]
    pub fn policy(&self) -> LeasePolicy {
        LeasePolicy {
            over: self.over,
            nodes: NonZeroU32::new(self.nodes).unwrap_or(NonZeroU32::MIN),
        }
    }
}

/// Outcome of a simulation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The first promise that was broken, and by how much.
    pub violation: Option<(&'static str, u64)>,
    /// The first thing of which production's judge accused a process, and by how much.
    pub accused: Option<(&'static str, u64)>,
    /// Units admitted.
    pub admitted: u64,
    /// Units of these that a node admitted by itself.
    pub from_memory: u64,
    /// Calls to the store, without those that give units back.
    pub requests: u64,
    /// Leases: calls to the store that give units back.
    pub returns: u64,
    /// Leases: units given back to it.
    pub returned: u64,
    /// Leases: of what was admitted, the units since the first caller was refused.
    pub after_refusal: Option<u64>,
    /// Synced keys: calls that waited for the store, or were left to it.
    pub waited: u64,
    /// Synced keys: units that the store charged afterwards.
    pub paid: u64,
}

/// Protocol by which nodes share a key. It holds what it keeps of all of them.
pub(crate) trait Protocol: Sized {
    /// State of one process.
    type Process: Default;
    /// Request of a node to the store.
    type Request: Copy;
    /// Records that the store keeps beside the key's state.
    type Records: Clone + Default;
    /// Event of this protocol alone.
    type Event;

    /// A node decides on a call, and is not paused.
    fn call(shared: &mut SharedKey<Self>, node: usize, call: Call);
    /// A request reaches the store.
    fn arrive(shared: &mut SharedKey<Self>, sent: Sent<Self::Request>);
    /// Its outcome reaches the process that sent it: nothing if that gives up.
    fn answer(shared: &mut SharedKey<Self>, sent: Sent<Self::Request>, answer: Option<&Answer>);
    /// A node looks for what it has to tell the store.
    fn tick(shared: &mut SharedKey<Self>, node: usize);
    /// A process ends, and knows it.
    fn leave(shared: &mut SharedKey<Self>, node: usize);
    /// A fault begins: a node, and by how much a replica lags.
    fn fault(shared: &mut SharedKey<Self>, node: usize, lag: u64);
    /// One of its own events.
    fn handle(shared: &mut SharedKey<Self>, event: Self::Event);
}

/// A call, as it is decided.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    pub(crate) cost: u64,
    /// Number of times that it waited already.
    pub(crate) waits: u8,
    /// Instant at which it came, by its node's clock, if it was paused after reading that.
    pub(crate) read: Option<Monotonic>,
}

impl Call {
    const fn new(cost: u64, waits: u8) -> Self {
        let read = None;
        Self { cost, waits, read }
    }
}

/// Event; see [`Protocol`].
pub(crate) enum Event<P: Protocol> {
    Call(usize, u64),
    /// A call that this start of a node was paused on goes on.
    Late(usize, u64, Call),
    Arrive(Sent<P::Request>),
    Answer(Sent<P::Request>, Option<Answer>),
    Tick(usize),
    Fault,
    Own(P::Event),
}

/// A message of a node.
#[derive(Clone, Copy)]
pub(crate) struct Sent<R> {
    pub(crate) node: usize,
    /// Start of the node that sent it.
    pub(crate) start: u64,
    pub(crate) request: R,
    /// Instant of sending, by the node's clock.
    pub(crate) at: Monotonic,
    pub(crate) word: Word,
}

/// Answer of the store.
pub(crate) struct Answer {
    pub(crate) decision: Decision,
    /// Instant of the answer, also by the store's clock.
    pub(crate) at: u64,
    pub(crate) wall: Wall,
    /// Synced keys: how much is charged of a total.
    pub(crate) paid: u64,
}

pub(crate) struct Node<P: Protocol> {
    pub(crate) process: P::Process,
    /// The number of its start.
    pub(crate) start: u64,
    offset: u64,
    ppm: i64,
    pub(crate) paused_until: u64,
    /// Callers that wait for the store: their costs, and how often they have waited.
    waiting: VecDeque<(u64, u8)>,
    known: Known,
    pub(crate) audit: KeyAudit,
}

impl<P: Protocol> Node<P> {
    pub(crate) fn clock(&self, now: u64) -> Monotonic {
        Clock::new(START + self.offset, self.ppm).local(now - START)
    }
}

pub(crate) struct SharedKey<P: Protocol> {
    pub(crate) protocol: P,
    pub(crate) setup: Setup,
    pub(crate) terms: LeaseTerms,
    /// By how many units all processes of the run may exceed the limit together.
    pub(crate) bound: u64,
    pub(crate) rng: Rng,
    pub(crate) now: u64,
    /// By when they happen, and in which order they were planned; boxed, since a tree moves what it holds.
    queue: BTreeMap<(u64, u64), Box<Event<P>>>,
    planned: u64,
    pub(crate) store: SharedStore<P::Records>,
    /// Units that may be admitted in addition, since the store has forgotten as many.
    pool: u64,
    /// Units that some process may see admitted or given back beyond the limit and the bound of the rule, in all.
    allowed: u64,
    pub(crate) nodes: Vec<Node<P>>,
    /// Number of nodes that have callers.
    busy: usize,
    pub(crate) audit: Audit,
    pub(crate) outcome: Outcome,
}

impl<P: Protocol> SharedKey<P> {
    /// A key on these terms, of which at most so many processes die.
    pub(crate) fn new(protocol: P, setup: Setup, terms: LeaseTerms, deaths: u64) -> Self {
        let mut rng = Rng::new(setup.seed);
        let count = setup.nodes + setup.more;
        let bound = terms.cap * (u64::from(count) + deaths);
        let nodes = (0..count).map(|_| Node {
            process: P::Process::default(),
            start: 0,
            offset: rng.between(0, 3_600 * SECOND),
            ppm: i64::try_from(rng.between(0, 2 * DRIFT)).unwrap_or(0)
                - i64::try_from(DRIFT).unwrap_or(0),
            paused_until: 0,
            waiting: VecDeque::new(),
            known: Known::default(),
            audit: KeyAudit::new(&setup.limit, &terms, DEMAND_INTERVAL, Monotonic::ORIGIN),
        });
        Self {
            nodes: nodes.collect(),
            busy: usize::try_from(count - setup.idle).unwrap_or(usize::MAX),
            audit: Audit::new(&setup.limit, bound),
            bound,
            store: SharedStore::new(setup.limit.clone()),
            pool: 0,
            allowed: bound - terms.bound(),
            terms,
            rng,
            now: START,
            queue: BTreeMap::new(),
            planned: 0,
            outcome: Outcome::default(),
            setup,
            protocol,
        }
    }

    /// Runs to the end, or to the first violation.
    pub(crate) fn run(&mut self) {
        let end = START + self.setup.seconds * SECOND;
        for node in 0..self.nodes.len() {
            if node < self.busy {
                self.next_call(node);
            }
            self.at(START, Event::Tick(node));
        }
        if self.setup.faults {
            self.at(START + 200 * MS, Event::Fault);
        }
        while let Some(((at, _), event)) = self.queue.pop_first() {
            if at > end || self.outcome.violation.is_some() {
                break;
            }
            self.now = at;
            self.handle(*event);
        }
        for node in 0..self.nodes.len() {
            self.judge(node);
        }
    }

    /// Checks a process by production's judge.
    fn judge(&mut self, node: usize) {
        let node = &mut self.nodes[node];
        let excess = node.audit.judge(node.clock(self.now));
        let accused = accusation(excess, self.terms.bound(), self.allowed);
        self.outcome.accused = self.outcome.accused.or(accused);
    }

    pub(crate) fn at(&mut self, at: u64, event: Event<P>) {
        self.planned += 1;
        self.queue.insert((at, self.planned), Box::new(event));
    }

    /// Under faults callers come in waves, to all nodes at once: what nodes hold after one wave is used at the
    /// beginning of the next, when the limit has recovered.
    fn next_call(&mut self, node: usize) {
        let callers = self.setup.turn.map_or(self.busy, |_| 1);
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
            at = in_turn(node, self.busy, at, turn);
        }
        self.at(at, Event::Call(node, cost));
    }

    fn handle(&mut self, event: Event<P>) {
        match event {
            Event::Call(node, cost) => {
                self.next_call(node);
                if self.fails(LATE) {
                    let of_node = &self.nodes[node];
                    let (start, read) = (of_node.start, Some(of_node.clock(self.now)));
                    let late = self.now + self.rng.between(0, LONGEST_PAUSE);
                    let call = Call::new(cost, 0);
                    self.at(late, Event::Late(node, start, Call { read, ..call }));
                } else if self.nodes[node].paused_until <= self.now {
                    P::call(self, node, Call::new(cost, 0));
                }
            }
            Event::Late(node, start, call) => {
                let of_node = &self.nodes[node];
                if of_node.paused_until > self.now {
                    let resumes = of_node.paused_until;
                    self.at(resumes, Event::Late(node, start, call));
                } else if of_node.start == start {
                    P::call(self, node, call);
                }
            }
            Event::Arrive(sent) => {
                let resumes = self.store.frozen_until;
                if resumes > self.now {
                    return self.at(resumes, Event::Arrive(sent));
                }
                // Its connection was to another run of the store.
                if !self.store.hears(&sent.word) {
                    return self.at(self.now + GIVES_UP, Event::Answer(sent, None));
                }
                P::arrive(self, sent);
            }
            Event::Answer(sent, answer) => self.answer(sent, answer),
            Event::Tick(node) => {
                let interval = u64::try_from(DEMAND_INTERVAL.as_nanos()).unwrap_or(u64::MAX);
                self.at(self.now + interval, Event::Tick(node));
                if self.nodes[node].paused_until <= self.now {
                    self.judge(node);
                    P::tick(self, node);
                }
            }
            Event::Fault => {
                let node = self.rng.index(self.nodes.len());
                let lag = self.rng.between(0, 300 * MS);
                P::fault(self, node, lag);
                let next = self.now + self.rng.between(10 * MS, 900 * MS);
                self.at(next, Event::Fault);
            }
            Event::Own(event) => P::handle(self, event),
        }
    }

    fn answer(&mut self, sent: Sent<P::Request>, answer: Option<Answer>) {
        let node = &mut self.nodes[sent.node];
        if node.paused_until > self.now {
            let resumes = node.paused_until;
            return self.at(resumes, Event::Answer(sent, answer));
        }
        // A process does not hear what an earlier one asked.
        if node.start != sent.start {
            return;
        }
        if let Some(answer) = &answer {
            let (clock, decision) = (node.clock(self.now), &answer.decision);
            node.known.note(self.now, clock, decision, answer.wall);
            node.audit.observe(sent.at, clock, decision);
        }
        P::answer(self, sent, answer.as_ref());
    }

    /// A caller waits for the store, unless too many do.
    pub(crate) fn wait(&mut self, node: usize, cost: u64, waits: u8) {
        let waiting = &mut self.nodes[node].waiting;
        if waiting.len() < MAX_WAITING {
            waiting.push_back((cost, waits.saturating_add(1)));
        }
    }

    /// Callers that waited for the store ask again.
    pub(crate) fn wake(&mut self, node: usize) {
        for _ in 0..self.nodes[node].waiting.len() {
            if let Some((cost, waits)) = self.nodes[node].waiting.pop_front() {
                P::call(self, node, Call::new(cost, waits));
            }
        }
    }

    /// A message that a node sends now, to the store that there is.
    pub(crate) fn message<R>(&mut self, node: usize, request: R) -> Sent<R> {
        let of_node = &mut self.nodes[node];
        let clock = of_node.clock(self.now);
        Sent {
            node,
            start: of_node.start,
            request,
            at: clock,
            word: self.store.word(&mut of_node.known, self.now, clock),
        }
    }

    /// A node sends a request.
    pub(crate) fn send(&mut self, node: usize, request: P::Request) {
        self.outcome.requests += 1;
        let sent = self.message(node, request);
        if self.store.is_down(self.now) || self.fails(2) {
            return self.at(self.now + GIVES_UP, Event::Answer(sent, None));
        }
        let delay = self.delay();
        self.at(self.now + delay, Event::Arrive(sent));
    }

    /// The store answers a request: with a decision, and how much of a total is charged.
    pub(crate) fn reply(&mut self, sent: Sent<P::Request>, decision: Decision, paid: u64)
    where
        Sent<P::Request>: Copy,
    {
        let answer = Answer {
            decision,
            at: self.now,
            wall: self.store.clock(self.now).wall,
            paid,
        };
        let lost = self.fails(3);
        let delay = self.delay();
        // The answer may come after the node gave up.
        if lost || delay > GIVES_UP {
            self.at(self.now + GIVES_UP, Event::Answer(sent, None));
        }
        if !lost {
            self.at(self.now + delay, Event::Answer(sent, Some(answer)));
        }
    }

    /// Returns true if something fails, of which so many in 100 do under faults.
    pub(crate) fn fails(&mut self, percent: u64) -> bool {
        self.setup.faults && self.rng.chance(percent)
    }

    /// Travel time of a message.
    pub(crate) fn delay(&mut self) -> u64 {
        match self.fails(5) {
            true => self.rng.between(0, 700 * MS),
            false => self.rng.between(MS / 10, MS),
        }
    }

    /// Units are admitted. Returns how many of them count, without what the store has forgotten.
    pub(crate) fn admitted(&mut self, cost: u64) -> u64 {
        self.outcome.admitted += cost;
        let forgotten = cost.min(self.pool);
        self.pool -= forgotten;
        cost - forgotten
    }

    /// If the store has no state of the key, it begins one for a message. No burst comes free if it was lost while the
    /// node that sends it knew that the key was in use, or that another run of the store answered before. Returns
    /// whether one does.
    pub(crate) fn begins_free(&mut self, word: &Word) -> bool {
        if !self.store.is_missing(self.now) {
            return false;
        }
        let begun = self.store.begin(self.now, word, self.terms.max);
        if begun.is_wrong {
            self.outcome.violation = Some(("a wrong refusal", self.terms.max));
        }
        begun.comes_free
    }

    /// The store has forgotten everything: the limit may be used from the start once more.
    pub(crate) fn forget(&mut self) {
        self.audit.forget(&self.setup.limit, self.bound, self.now);
        self.allowed += self.terms.max + self.bound;
    }

    /// Allows so many units in addition.
    pub(crate) const fn allow(&mut self, units: u64) {
        self.pool += units;
        self.allowed += units;
    }

    /// The store stands still.
    pub(crate) fn freeze(&mut self) {
        self.store.frozen_until = self.now + self.rng.between(0, 800 * MS);
    }

    /// A replica takes over, unless there is none. Returns whether it does.
    pub(crate) fn fail_over(&mut self, lag: u64) -> bool {
        let lost = self.store.fail_over(self.now - lag);
        let units = lost.unwrap_or_default();
        self.allow(units.charged);
        self.allowed += units.withheld;
        lost.is_some()
    }

    /// A node pauses.
    pub(crate) fn pause(&mut self, node: usize) {
        self.nodes[node].paused_until = self.now + self.rng.between(0, LONGEST_PAUSE);
    }

    /// A process is killed and started again; or a node leaves and another joins.
    pub(crate) fn replace(&mut self, node: usize) {
        if self.rng.chance(50) && self.nodes[node].paused_until <= self.now {
            self.judge(node);
            P::leave(self, node);
        }
        let (offset, down) = (self.rng.between(0, SECOND), self.rng.between(0, 500 * MS));
        let node = &mut self.nodes[node];
        node.start += 1;
        node.process = P::Process::default();
        node.known = Known::default();
        node.waiting.clear();
        node.offset += offset;
        node.paused_until = self.now + down;
        let (limit, began) = (&self.setup.limit, node.clock(self.now));
        node.audit = KeyAudit::new(limit, &self.terms, DEMAND_INTERVAL, began);
    }
}

/// Instant at which it is the turn of one of so many nodes, at `at` or later.
fn in_turn(node: usize, nodes: usize, at: u64, turn: Duration) -> u64 {
    let turn = u64::try_from(turn.as_nanos()).unwrap_or(u64::MAX);
    let (nodes, node) = (nodes as u64, node as u64);
    let present = at / turn;
    let ahead = (node + nodes - present % nodes) % nodes;
    match ahead {
        0 => at,
        turns => (present + turns) * turn,
    }
}
