//! Leases: nodes that take units of one key from a shared store in advance, under faults.
//!
//! The world is that of a [`shared key`](crate::shared_key); nodes also give back what they do not need. After each
//! admission the auditor says whether the bound was kept:
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

use std::cmp::Reverse;
use std::collections::BTreeMap;

use quell_core::charge::{Operation, decide_one, take_back};
use quell_core::cost::Cost;
use quell_core::time::{Monotonic, Now};
use quell_shares::lease::{Lease, Request, Return, Step};

use crate::audit::Audit;
use crate::lease_ledger::LeaseLedger;
use crate::shared_key::{Answer, Call, Event, MS, Outcome, Protocol, Sent, Setup, SharedKey};
use crate::shared_store::{ClockStep, Word};

/// Lifetime of a grant.
const LIFE_NANOS: u64 = 500 * MS;

/// Runs a setup to its end, or to the first violation. Nothing happens if the limit cannot be leased.
#[must_use]
pub fn run(setup: Setup) -> Outcome {
    let Ok(terms) = setup.policy().terms(&setup.limit, None) else {
        return Outcome::default();
    };
    let mut shared = SharedKey::new(Leased::default(), setup, terms, 0);
    shared.run();
    shared.close();
    shared.outcome
}

/// Units that each process charged, used and gave back: by node and start.
#[derive(Default)]
struct Leased {
    ledgers: BTreeMap<(usize, u64), LeaseLedger>,
}

enum ReturnEvent {
    /// A return reaches the store.
    Arrive(Sent<Return>),
    /// The node learns that the store has executed it.
    Confirm(Sent<Return>),
}

impl Protocol for Leased {
    type Process = Option<Lease>;
    /// Number 0 is a call that the store decides.
    type Request = Request;
    type Records = ();
    type Event = ReturnEvent;

    fn call(shared: &mut SharedKey<Self>, node: usize, call: Call) {
        let Call { cost, waits, read } = call;
        let terms = shared.terms;
        let of_node = &mut shared.nodes[node];
        let clock = of_node.clock(shared.now);
        let lease = of_node
            .process
            .get_or_insert_with(|| Lease::new(terms, clock));
        let clock = match lease.ends_with_window() {
            true => clock,
            false => read.unwrap_or(clock),
        };
        let step = match waits {
            0 => lease.take(clock, cost),
            _ => lease.take_again(clock, cost),
        };
        match step {
            Step::Allow { refill } => {
                of_node.audit.count(cost);
                shared.outcome.from_memory += cost;
                let now = shared.now;
                shared.ledger(node).used(now, cost);
                shared.admit(cost);
                if let Some(request) = refill {
                    shared.ask(node, request);
                }
            }
            Step::Deny(_) => shared.refuse(),
            Step::Ask(request) => {
                shared.ask(node, request);
                shared.wait(node, cost, waits);
            }
            Step::Wait => shared.wait(node, cost, waits),
            Step::Strict => {
                let (number, units) = (0, cost);
                shared.send(node, Request { number, units });
            }
        }
    }

    fn arrive(shared: &mut SharedKey<Self>, sent: Sent<Request>) {
        let Request { number, units } = sent.request;
        let Some(cost) = Cost::new(units) else {
            return;
        };
        shared.begin(&sent.word);
        let now = shared.now;
        let decision = shared.store.execute(now, cost, |clock, entry| {
            decide_one(clock, Operation::Acquire, entry)
        });
        if decision.outcome.is_allow() {
            shared.store.keep(now);
            shared.store.charged(now, units);
            shared.audit.charged(now, &decision);
            // A strict call is admitted when it is charged.
            if number == 0 {
                shared.admit(units);
            }
        } else if number == 0 {
            shared.refuse();
        }
        shared.reply(sent, decision, 0);
    }

    fn answer(shared: &mut SharedKey<Self>, sent: Sent<Request>, answer: Option<&Answer>) {
        let Request { number, units } = sent.request;
        let node = &mut shared.nodes[sent.node];
        let clock = node.clock(shared.now);
        let Some(lease) = &mut node.process else {
            return;
        };
        if number == 0 {
            if let Some(Answer { decision, .. }) = answer {
                lease.resume();
                lease.observe(sent.at, decision);
                if decision.outcome.is_allow() {
                    node.audit.count_strict(sent.at, units);
                }
            }
            return;
        }
        let ledger = shared.protocol.ledgers.entry((sent.node, sent.start));
        let ledger = ledger.or_default();
        match answer {
            Some(answer) if answer.decision.outcome.is_allow() => {
                if ledger.granted(number, answer.at, units) {
                    node.audit.charged(units);
                }
            }
            _ => ledger.gave_up(number),
        }
        match answer {
            Some(answer) => lease.answer(clock, number, &answer.decision, Some(answer.wall)),
            None => lease.lost(number),
        }
        shared.wake(sent.node);
    }

    fn tick(shared: &mut SharedKey<Self>, node: usize) {
        shared.give_back(node, Lease::surplus);
    }

    fn leave(shared: &mut SharedKey<Self>, node: usize) {
        shared.give_back(node, Lease::leave);
    }

    fn fault(shared: &mut SharedKey<Self>, node: usize, lag: u64) {
        match shared.rng.number() % 8 {
            0 => shared.freeze(),
            1 => shared.store.forget(),
            4 if shared.rng.chance(50) => shared.store.restart(shared.now, &mut shared.rng),
            4 => {
                shared.audit.stretch();
                shared.fail_over(lag);
            }
            5 => shared.step_clock(),
            2 | 3 => shared.pause(node),
            _ => shared.replace(node),
        }
    }

    fn handle(shared: &mut SharedKey<Self>, event: ReturnEvent) {
        match event {
            ReturnEvent::Arrive(sent) => shared.take_back(sent),
            ReturnEvent::Confirm(sent) => {
                let node = &mut shared.nodes[sent.node];
                if let Some(lease) = node.process.as_mut().filter(|_| node.start == sent.start) {
                    lease.returned(sent.request.number);
                }
            }
        }
    }
}

impl SharedKey<Leased> {
    /// Checks what each process held.
    fn close(&mut self) {
        let cap = self.terms.cap;
        let ledgers = std::mem::take(&mut self.protocol.ledgers).into_iter();
        let excess = ledgers.map(|((node, _), ledger)| (Reverse(node), ledger.close(cap)));
        // Of the first node that held too much, the most.
        let broken = excess.filter(|(_, excess)| *excess > 0).max();
        let broken = broken.map(|(_, excess)| ("the cap", excess));
        self.outcome.violation = self.outcome.violation.or(broken);
    }

    /// Ledger of the process that runs.
    fn ledger(&mut self, node: usize) -> &mut LeaseLedger {
        let start = self.nodes[node].start;
        self.protocol.ledgers.entry((node, start)).or_default()
    }

    /// Asks the store for units.
    fn ask(&mut self, node: usize, request: Request) {
        self.ledger(node).note_request(request.number);
        self.send(node, request);
    }

    /// Sends what the node gives back, once: a return may be lost, or late.
    fn give_back(&mut self, node: usize, next: fn(&mut Lease, Monotonic) -> Option<Return>) {
        let clock = self.nodes[node].clock(self.now);
        for _ in 0..2 {
            let lease = self.nodes[node].process.as_mut();
            let Some(back) = lease.and_then(|lease| next(lease, clock)) else {
                return;
            };
            self.outcome.returns += 1;
            let sent = self.message(node, back);
            self.nodes[node].audit.given_back(back.units);
            if !self.fails(2) {
                self.after_delay(ReturnEvent::Arrive(sent));
            }
        }
    }

    fn after_delay(&mut self, event: ReturnEvent) {
        let delay = self.delay();
        self.at(self.now + delay, Event::Own(event));
    }

    /// The store takes units back, if it is not too late.
    fn take_back(&mut self, sent: Sent<Return>) {
        let (now, back) = (self.now, sent.request);
        if self.store.frozen_until > now {
            let resumes = self.store.frozen_until;
            return self.at(resumes, Event::Own(ReturnEvent::Arrive(sent)));
        }
        let is_there = self.store.hears(&sent.word) && !self.store.is_down(now);
        let wall = self.store.clock(now).wall;
        let is_in_time = is_there && wall <= back.until;
        let Some(cost) = Cost::new(back.units).filter(|_| is_in_time) else {
            return;
        };
        if self.store.is_missing(now) {
            let until = back.until.as_nanos().saturating_add(1);
            self.begin(&sent.word.until(until));
            return self.after_delay(ReturnEvent::Confirm(sent));
        }
        let charged = back.charged.as_nanos();
        self.store.execute(now, cost, |clock, entry| {
            take_back(clock, Now::from_nanos(charged), entry);
        });
        self.store.keep(now);
        self.outcome.returned += back.units;
        // One that is late only by true time is paid for by the step.
        if !self.store.has_stepped(now) {
            let ledger = self.protocol.ledgers.entry((sent.node, sent.start));
            ledger.or_default().used(now, back.units);
        }
        if wall.as_nanos() > charged + LIFE_NANOS + MS {
            self.outcome.violation = Some(("a late return", back.units));
        }
        self.after_delay(ReturnEvent::Confirm(sent));
    }

    /// The store begins a state for a message, if it has none.
    fn begin(&mut self, word: &Word) {
        if !self.begins_free(word) {
            return;
        }
        if matches!(self.audit, Audit::Fixed { .. }) {
            self.allow(self.terms.max);
            self.audit.stretch();
        } else {
            self.forget();
        }
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

    const fn refuse(&mut self) {
        if self.outcome.after_refusal.is_none() {
            self.outcome.after_refusal = Some(0);
        }
    }

    fn admit(&mut self, cost: u64) {
        if let Some(units) = &mut self.outcome.after_refusal {
            *units += cost;
        }
        let counts = self.admitted(cost);
        if let Some(excess) = self.audit.admit(self.now, counts) {
            self.outcome.violation = Some(("the bound", excess));
        }
    }
}
