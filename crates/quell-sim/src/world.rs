//! World: the queue of events, the network, and the effect of each event.

pub(crate) mod changes;
mod entitled;
mod faults;
mod network;
mod nodes;
pub(crate) mod operator;
mod rights;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use quell_shares::leader::Effect;
use quell_shares::message::{Request, Response};
use quell_shares::plan::{LimitId, Record};

use crate::check::{Judge, Violation};
use crate::clock::Clock;
use crate::coordinator::Chair;
use crate::fault::{Counts, Fault};
use crate::node::Node;
use crate::rng::Rng;
use crate::setup::{MILLI, SECOND, Setup};
use crate::store::{Ask, Reply, Store};

/// An event.
#[derive(Clone, Debug)]
pub enum Event {
    /// A member's request reaches a coordinator.
    Request(usize, Request),
    /// An answer reaches a node.
    Response(usize, Response),
    /// A node's agent wakes up.
    Agent(usize, u32),
    /// A node serves its callers.
    Callers(usize, u32),
    /// A node has sealed an adoption.
    Sealed(usize, u32, u64),
    /// A coordinator wakes up.
    Tick(usize, u32),
    /// A question reaches the store.
    Ask(usize, u32, Ask),
    /// An answer of the store reaches a coordinator.
    Reply(usize, u32, Reply),
    /// The current record reaches a coordinator.
    Watch(usize, Record),
    /// A fault, or its repair.
    Fault(Fault),
}

/// The whole simulated system.
#[derive(Debug)]
pub struct World {
    /// The numbers of the run.
    pub setup: Setup,
    /// True time in nanoseconds.
    pub now: u64,
    /// The random numbers of the seed.
    pub rng: Rng,
    queue: BinaryHeap<Reverse<(u64, u64, usize)>>,
    events: Vec<Option<Event>>,
    free: Vec<usize>,
    order: u64,
    /// Nodes.
    pub nodes: Vec<Node>,
    /// Coordinators.
    pub chairs: Vec<Chair>,
    /// The store.
    pub store: Store,
    /// The store answers no one before this instant.
    pub store_down: u64,
    /// For each pair of node and coordinator: messages to it and from it are lost before these
    /// instants.
    pub cuts: Vec<(u64, u64)>,
    /// True once faults are over: no message is lost or late.
    pub quiet: bool,
    /// The checks of each limit, in the order of their numbers.
    pub judges: Vec<Judge>,
    /// The numbers of these limits.
    pub judged: Vec<LimitId>,
    /// A backup of the store.
    pub backup: Option<Store>,
    /// The first violation.
    pub violation: Option<Violation>,
    /// The faults that were injected.
    pub counts: Counts,
    /// Events handled.
    pub steps: u64,
    /// True if the store was restored from a backup, so that a leader may say so.
    pub restored: bool,
    /// Set by a schedule: the next grant to this node is this late.
    pub slow_next: Option<(usize, u64)>,
    /// Set by a schedule: all pushes are this late.
    pub slow_pushes: u64,
    /// Set by a schedule: every leave arrives once more after this time.
    pub double_leaves: u64,
    /// Set by a schedule: every join arrives once more after this time.
    pub double_joins: u64,
    /// Set by a schedule: every report arrives once more after this time, at the coordinator that
    /// leads then.
    pub double_reports: u64,
    /// Set by a schedule: the leader pauses for this long after its next decision.
    pub pause_next: Option<u64>,
    /// Set by a schedule: the next seal of this node that a leader waits for takes this long.
    pub slow_seal: Option<(usize, u64)>,
    /// Set by a schedule: the next report in which this node says what it holds is this late.
    pub slow_held: Option<(usize, u64)>,
    /// The events so far, if a trace was requested.
    pub trace: Option<Vec<String>>,
    /// Number of nodes that follow each plan.
    followers: BTreeMap<u64, u32>,
    /// The version of the record that the checks' bounds were set from, if they are up to date.
    bounded: Option<u64>,
    /// Instant at which seats or plans last were in between, as a grant showed.
    unsteady: u64,
    nonces: u64,
    /// The highest generation that an operator raised the fleet to.
    pub generation: u64,
    curve: Vec<(u64, u64)>,
    admitted: Vec<(LimitId, u64, Option<Violation>)>,
    pub(crate) effects: Vec<Effect>,
}

impl World {
    /// A world in which every process starts within the first second.
    #[must_use]
    pub fn new(setup: Setup, rng: Rng) -> Self {
        let members = setup.weights.len();
        let rules = setup.plan.limits.len();
        let node = |(index, weight): (usize, &u32)| {
            Node::new(u32::try_from(index).unwrap_or(0), *weight, rules)
        };
        let mut nodes: Vec<Node> = setup.weights.iter().enumerate().map(node).collect();
        if let Some(group) = setup.plan.groups.first() {
            let members = nodes.iter_mut().zip(&setup.memberships);
            for (node, _) in members.filter(|(_, is_in)| **is_in) {
                node.groups = vec![group.name.clone()];
            }
        }
        let mut begins_with = setup.plan.clone();
        begins_with.limits.truncate(setup.begins_with);
        let lasts = u64::try_from(crate::coordinator::KEY_LASTS.as_nanos()).unwrap_or(0);
        let store = Store::new(Record::new(begins_with), lasts);
        Self {
            now: 0,
            rng,
            queue: BinaryHeap::new(),
            events: Vec::new(),
            free: Vec::new(),
            order: 0,
            nodes,
            chairs: (0..setup.coordinators)
                .map(|_| Chair::new(setup.drift))
                .collect(),
            store,
            store_down: 0,
            cuts: vec![(0, 0); (members + 1) * setup.coordinators],
            quiet: false,
            judges: Vec::new(),
            judged: Vec::new(),
            backup: None,
            violation: None,
            counts: Counts::default(),
            steps: 0,
            restored: false,
            slow_next: None,
            slow_pushes: 0,
            double_leaves: 0,
            double_joins: 0,
            double_reports: 0,
            pause_next: None,
            slow_seal: None,
            slow_held: None,
            trace: None,
            followers: BTreeMap::new(),
            bounded: None,
            unsteady: 0,
            nonces: 0,
            generation: 0,
            curve: Vec::new(),
            admitted: Vec::new(),
            effects: Vec::new(),
            setup,
        }
    }

    /// Puts an event into the queue.
    pub fn at(&mut self, at: u64, event: Event) {
        let slot = match self.free.pop() {
            Some(slot) => {
                self.events[slot] = Some(event);
                slot
            }
            None => {
                self.events.push(Some(event));
                self.events.len() - 1
            }
        };
        self.order += 1;
        self.queue
            .push(Reverse((at.max(self.now), self.order, slot)));
    }

    /// Handles events until `end` or the first violation.
    pub fn run(&mut self, end: u64) {
        while self.violation.is_none() {
            let Some(Reverse((at, _, slot))) = self.queue.peek().copied() else {
                return;
            };
            if at > end {
                self.now = end;
                return;
            }
            self.queue.pop();
            self.free.push(slot);
            let Some(event) = self.events[slot].take() else {
                continue;
            };
            self.now = at;
            self.steps += 1;
            if let Some(trace) = &mut self.trace {
                trace.push(format!("{:>12} us  {event:?}", at / 1_000));
            }
            self.handle(event);
        }
        self.describe_rights();
    }

    fn handle(&mut self, event: Event) {
        if let Some(later) = self.deferred(&event) {
            self.at(later, event);
            return;
        }
        match event {
            Event::Request(chair, request) => self.request(chair, request),
            Event::Response(node, answer) => self.answer(node, &answer),
            Event::Agent(node, life) => self.agent(node, life),
            Event::Callers(node, life) => self.callers(node, life),
            Event::Sealed(node, life, ticket) => self.sealed(node, life, ticket),
            Event::Tick(chair, life) => self.tick(chair, life),
            Event::Ask(chair, life, ask) => self.ask(chair, life, ask),
            Event::Reply(chair, life, reply) => self.reply(chair, life, reply),
            Event::Watch(chair, record) => self.watch(chair, record),
            Event::Fault(fault) => self.inject(fault),
        }
    }

    /// Instant until which an event has to wait because its process is paused or cut off.
    fn deferred(&self, event: &Event) -> Option<u64> {
        let until = match event {
            Event::Request(chair, _) | Event::Tick(chair, _) | Event::Reply(chair, ..) => {
                self.chairs[*chair].paused
            }
            // Nor does the store reach a coordinator that is cut off from it.
            Event::Watch(chair, _) => {
                let chair = &self.chairs[*chair];
                chair.paused.max(chair.cut_off)
            }
            Event::Response(node, _) | Event::Agent(node, _) | Event::Sealed(node, ..) => {
                let node = &self.nodes[*node];
                node.paused.max(node.stalled)
            }
            Event::Callers(node, _) => self.nodes[*node].paused,
            Event::Ask(..) | Event::Fault(_) => 0,
        };
        (until > self.now).then_some(until)
    }

    fn request(&mut self, chair: usize, request: Request) {
        if !self.chairs[chair].alive {
            return;
        }
        let local = self.chairs[chair].clock.local(self.now);
        self.chairs[chair]
            .core
            .receive(local, request, &mut self.effects);
        let held = self.pause_in_the_middle(chair);
        self.perform(chair, held);
    }

    /// Pauses a leader, at random or by a schedule, between deciding and sending.
    fn pause_in_the_middle(&mut self, chair: usize) -> u64 {
        let pause = match self.pause_next.take() {
            Some(pause) => pause,
            None if self.quiet || !self.setup.slow || !self.rng.number().is_multiple_of(4_000) => {
                return 0;
            }
            None => self.rng.between(SECOND, 25 * SECOND),
        };
        self.counts.paused_leaders += 1;
        let until = self.now + pause;
        self.chairs[chair].paused = until;
        until
    }

    fn tick(&mut self, chair: usize, life: u32) {
        if !self.chairs[chair].alive || self.chairs[chair].life != life {
            return;
        }
        // A few times per report period.
        let report = Node::period(self.store.record.plan.timing.report);
        let every = (report / 5 * 2).min(200 * MILLI);
        let again = self.now + every + self.rng.between(0, every / 10);
        self.at(again, Event::Tick(chair, life));
        let local = self.chairs[chair].clock.local(self.now);
        if let Some(ask) = self.chairs[chair].asks(self.now) {
            // A write that was not answered is sent again.
            self.chairs[chair].core.not_stored(local, &mut self.effects);
            self.ask_later(chair, ask, 0);
        }
        self.chairs[chair].core.tick(local, &mut self.effects);
        self.perform(chair, 0);
        self.look(chair);
    }

    fn ask(&mut self, chair: usize, life: u32, ask: Ask) {
        if self.store_down > self.now {
            return;
        }
        let (reply, changed) = self.store.ask(self.now, chair, ask);
        if changed {
            self.publish();
        }
        if let Some(reply) = reply
            && self.chairs[chair].cut_off <= self.now
        {
            let late = !self.quiet && self.rng.chance(1) && self.setup.slow;
            let most = if late { 4 * SECOND } else { 8 * MILLI };
            let delay = self.rng.between(MILLI / 2, most);
            self.at(self.now + delay, Event::Reply(chair, life, reply));
        }
    }

    /// Sends the record to all coordinators; some receive it late.
    pub fn publish(&mut self) {
        self.note_plan();
        for chair in 0..self.chairs.len() {
            let late = !self.quiet && self.rng.chance(5) && self.setup.slow;
            let most = if late { 4 * SECOND } else { 10 * MILLI };
            let delay = self.rng.between(MILLI, most);
            let record = self.store.record.clone();
            self.at(self.now + delay, Event::Watch(chair, record));
        }
    }

    fn reply(&mut self, chair: usize, life: u32, reply: Reply) {
        if !self.chairs[chair].alive || self.chairs[chair].life != life {
            return;
        }
        if matches!(reply, Reply::Elected { .. }) {
            self.counts.elections += 1;
        }
        if let Reply::Stored(record) = reply {
            self.watch(chair, record);
            return;
        }
        // A refused write is tried again when a newer record arrives, or after a second.
        self.chairs[chair].receive(self.now, reply, &mut self.effects);
        self.perform(chair, 0);
    }

    fn watch(&mut self, chair: usize, record: Record) {
        if !self.chairs[chair].alive {
            return;
        }
        let local = self.chairs[chair].clock.local(self.now);
        let seen = &mut self.chairs[chair].seen;
        if seen
            .as_ref()
            .is_none_or(|seen| seen.version < record.version)
        {
            *seen = Some(record.clone());
        }
        self.chairs[chair]
            .core
            .stored(local, record, &mut self.effects);
        self.perform(chair, 0);
    }

    /// Restores the store from its backup. Connections break, so what was asked and watched is lost.
    pub fn restore(&mut self, bump: bool) {
        let Some(backup) = self.backup.clone() else {
            return;
        };
        self.restored = true;
        self.store = backup.restored(self.now, bump);
        self.bounded = None;
        for event in &mut self.events {
            if matches!(event, Some(Event::Ask(..) | Event::Watch(..))) {
                *event = None;
            }
        }
        for chair in &mut self.chairs {
            chair.seen = None;
        }
        self.publish();
    }

    /// Starts a coordinator's process.
    pub fn start_chair(&mut self, chair: usize) {
        let clock = self.clock();
        self.chairs[chair].start(clock);
        let life = self.chairs[chair].life;
        let first = self.rng.between(0, 200 * MILLI);
        self.at(self.now + first, Event::Tick(chair, life));
    }

    /// A clock that drifts by the most that is allowed, fast or slow, or by less.
    fn clock(&mut self) -> Clock {
        let most = self.setup.ppm;
        let ppm = match self.rng.index(3) {
            0 => most,
            1 => -most,
            _ => i64::try_from(self.rng.between(0, 2 * most.unsigned_abs())).unwrap_or(0) - most,
        };
        Clock::new(self.rng.between(SECOND, 1_000_000 * SECOND), ppm)
    }
}
