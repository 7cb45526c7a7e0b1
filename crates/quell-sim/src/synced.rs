//! Synced keys: nodes that admit calls on one key from memory and have them charged afterwards, under faults.
//!
//! The world is that of a [`shared key`](crate::shared_key); nodes also read new limits. The auditor counts what each
//! process admitted, and what the store charged for it, and reads no count of the protocol:
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
//! nothing else is allowed.

use std::collections::BTreeMap;

use quell_core::charge::{Operation, decide_one, pay};
use quell_core::cost::Cost;
use quell_core::decision::Decision;
use quell_core::over_admission::Supply;
use quell_core::time::Monotonic;
use quell_shares::synced::{SyncRequest, SyncStep, SyncedKey};

use crate::shared_key::{Answer, Call, Event, MS, Outcome, Protocol, Sent, Setup, SharedKey};
use crate::shared_store::ClockStep;

/// Greatest number of requests of one caller.
const MAX_WAITS: u8 = 3;
/// Processes that die in a run, at most: each forgets what was not charged.
const MAX_DEATHS: u64 = 3;

/// Runs a setup to its end, or to the first violation. Nothing happens if the limit cannot be synced.
#[must_use]
pub fn run(setup: Setup) -> Outcome {
    let Ok(terms) = setup.policy().synced_terms(&setup.limit, None) else {
        return Outcome::default();
    };
    let deaths = if setup.faults { MAX_DEATHS } else { 0 };
    let mut shared = SharedKey::new(Synced::default(), setup, terms, deaths);
    shared.run();
    shared.outcome
}

/// Units that one process admitted, and those of them that the store charged.
#[derive(Clone, Copy, Debug, Default)]
struct Ledger {
    admitted: u64,
    charged: u64,
    /// Units that may have been charged twice since the store forgot.
    doubled: u64,
    /// Total that it last said to be paid.
    base: u64,
}

#[derive(Default)]
struct Synced {
    /// By node and start.
    ledgers: BTreeMap<(usize, u64), Ledger>,
    deaths: u64,
    /// The end of the store's window, and what was admitted since it began: for fixed windows.
    window: (u64, u64),
}

#[derive(Default)]
struct Process {
    key: Option<SyncedKey>,
    /// The request whose answer would be taken.
    open: Option<SyncRequest>,
}

/// The other limits of a call that took this much allow it, or not: of which node, and start.
struct Decide {
    node: usize,
    start: u64,
    cost: u64,
    passes: bool,
}

impl Protocol for Synced {
    type Process = Process;
    /// Number 0 is a call that the store decides: the total is its cost.
    type Request = SyncRequest;
    /// Totals of each process that the store charged: by node and start.
    type Records = BTreeMap<(usize, u64), u64>;
    type Event = Decide;

    fn call(shared: &mut SharedKey<Self>, node: usize, call: Call) {
        let Call { cost, waits, read } = call;
        let terms = shared.terms;
        let of_node = &mut shared.nodes[node];
        let (clock, start) = (of_node.clock(shared.now), of_node.start);
        let key = of_node
            .process
            .key
            .get_or_insert_with(|| SyncedKey::new(terms, clock));
        let clock = read.unwrap_or(clock);
        let (step, request) = match waits {
            MAX_WAITS => (SyncStep::Strict, None),
            0 => key.take(clock, cost),
            _ => key.take_again(clock, cost),
        };
        match step {
            SyncStep::Allow => {
                of_node.audit.count(cost);
                // Some calls have other limits, which decide a moment later.
                if shared.setup.faults && shared.rng.chance(5) {
                    key.set_aside(cost);
                    let (delay, passes) = (shared.rng.between(0, MS), shared.rng.chance(50));
                    let decide = Decide {
                        node,
                        start,
                        cost,
                        passes,
                    };
                    shared.at(shared.now + delay, Event::Own(decide));
                } else {
                    shared.synced(node, start, cost);
                }
            }
            SyncStep::Deny(_) => {}
            SyncStep::Wait => {
                shared.outcome.waited += 1;
                shared.wait(node, cost, waits);
            }
            SyncStep::Strict => {
                shared.outcome.waited += 1;
                let (number, total, base) = (0, cost, 0);
                shared.send(
                    node,
                    SyncRequest {
                        number,
                        total,
                        base,
                    },
                );
            }
        }
        if let Some(request) = request {
            shared.sync(node, request);
        }
    }

    fn arrive(shared: &mut SharedKey<Self>, sent: Sent<SyncRequest>) {
        let now = shared.now;
        if shared.begins_free(&sent.word) {
            shared.protocol.window = (0, 0);
            shared.forget();
        }
        let strict = Cost::new(sent.request.total).filter(|_| sent.request.number == 0);
        let (decision, total) = match strict {
            Some(cost) => (shared.decide_strict(cost), 0),
            None => shared.charge(&sent),
        };
        if !decision.reset_after.is_zero() {
            shared.store.keep(now);
        }
        shared.reply(sent, decision, total);
    }

    fn answer(shared: &mut SharedKey<Self>, sent: Sent<SyncRequest>, answer: Option<&Answer>) {
        let SyncRequest { number, total, .. } = sent.request;
        let node = &mut shared.nodes[sent.node];
        let clock = node.clock(shared.now);
        let Process {
            key: Some(key),
            open,
        } = &mut node.process
        else {
            return;
        };
        let open = open.take_if(|open| open.number == number);
        match answer {
            Some(Answer { decision, .. }) if number == 0 => {
                key.resume();
                key.observe((sent.at, clock), total, decision);
                if decision.outcome.is_allow() {
                    node.audit.count_strict(sent.at, total);
                }
            }
            Some(Answer { decision, paid, .. }) => {
                if let Some(request) = open {
                    node.audit.paid(&request, *paid);
                }
                key.answer(clock, number, decision, *paid);
            }
            None if number == 0 => {}
            None => key.lost(clock, number),
        }
        if number > 0 {
            shared.wake(sent.node);
        }
    }

    fn tick(shared: &mut SharedKey<Self>, node: usize) {
        shared.ask_next(node, SyncedKey::due);
    }

    fn leave(shared: &mut SharedKey<Self>, node: usize) {
        shared.ask_next(node, SyncedKey::leave);
    }

    fn fault(shared: &mut SharedKey<Self>, node: usize, lag: u64) {
        match shared.rng.number() % 9 {
            0 => shared.freeze(),
            1 if shared.rng.chance(50) => {
                shared.store.forget();
                shared.doubled();
            }
            7 if shared.rng.chance(50) => {
                shared.store.restart(shared.now, &mut shared.rng);
                shared.doubled();
            }
            7 if shared.fail_over(lag) => shared.doubled(),
            7 => {}
            8 => shared.step_clock(),
            2 | 3 => shared.pause(node),
            // Rules are read again.
            4 => {
                let (terms, node) = (shared.terms, &mut shared.nodes[node]);
                let clock = node.clock(shared.now);
                if let Some(key) = &mut node.process.key {
                    key.change(terms);
                    node.audit.change(&shared.setup.limit, &terms, clock);
                }
            }
            _ if shared.protocol.deaths < MAX_DEATHS => {
                shared.protocol.deaths += 1;
                shared.replace(node);
            }
            _ => {}
        }
    }

    /// All limits of a call have decided.
    fn handle(shared: &mut SharedKey<Self>, event: Decide) {
        let Decide {
            node,
            start,
            cost,
            passes,
        } = event;
        let of_start = &mut shared.nodes[node];
        let is_same = of_start.start == start;
        let Some(key) = of_start.process.key.as_mut().filter(|_| is_same) else {
            return;
        };
        if passes {
            key.confirm(cost);
            shared.synced(node, start, cost);
        } else {
            key.put_back(cost);
            of_start.audit.uncount(cost);
        }
    }
}

impl SharedKey<Synced> {
    /// Sends what is not charged yet.
    fn ask_next(
        &mut self,
        node: usize,
        next: fn(&mut SyncedKey, Monotonic) -> Option<SyncRequest>,
    ) {
        let clock = self.nodes[node].clock(self.now);
        let key = self.nodes[node].process.key.as_mut();
        if let Some(request) = key.and_then(|key| next(key, clock)) {
            self.sync(node, request);
        }
    }

    /// A process admits a call from memory.
    fn synced(&mut self, node: usize, start: u64, cost: u64) {
        self.outcome.from_memory += cost;
        self.ledger(node, start).admitted += cost;
        self.check(node, start);
        self.admit(cost);
    }

    fn ledger(&mut self, node: usize, start: u64) -> &mut Ledger {
        self.protocol.ledgers.entry((node, start)).or_default()
    }

    /// Sends a total.
    fn sync(&mut self, node: usize, request: SyncRequest) {
        let ledger = self.ledger(node, self.nodes[node].start);
        let fallen = ledger.base.saturating_sub(request.base);
        ledger.base = request.base;
        if fallen > 0 {
            self.outcome.violation = Some(("what is paid stays so", fallen));
        }
        self.nodes[node].process.open = Some(request);
        self.send(node, request);
    }

    /// The store decides on a call.
    fn decide_strict(&mut self, cost: Cost) -> Decision {
        let decision = self.store.execute(self.now, cost, |clock, entry| {
            decide_one(clock, Operation::Acquire, entry)
        });
        if decision.outcome.is_allow() {
            self.store.charged(self.now, cost.get());
            self.charged(&decision);
            // A strict call is admitted when it is charged.
            self.admit(cost.get());
        }
        decision
    }

    /// The store charges what it can of a total. Returns how much of it is charged.
    fn charge(&mut self, sent: &Sent<SyncRequest>) -> (Decision, u64) {
        let SyncRequest { total, base, .. } = sent.request;
        let process = (sent.node, sent.start);
        let record = self.store.records.get(&process).copied().unwrap_or(0);
        let known = record.max(base);
        let (paid, decision) = self.store.execute(self.now, Cost::ONE, |clock, entry| {
            pay(clock, total.saturating_sub(known), entry)
        });
        if paid > 0 {
            self.charged(&decision);
            self.store.charged(self.now, paid);
            self.outcome.paid += paid;
            self.store.records.insert(process, known + paid);
            self.ledger(sent.node, sent.start).charged += paid;
            self.check(sent.node, sent.start);
        }
        (decision, known + paid)
    }

    /// Checks what a process admitted against what was charged for it.
    fn check(&mut self, node: usize, start: u64) {
        let cap = self.terms.cap;
        let ledger = self.ledger(node, start);
        let above = ledger.admitted.saturating_sub(ledger.charged + cap);
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
        if self.now >= self.protocol.window.0 {
            self.protocol.window = (self.now.saturating_add(rest), 0);
        }
    }

    fn admit(&mut self, cost: u64) {
        let counts = self.admitted(cost);
        let excess = if matches!(self.terms.supply, Supply::AtOnce(_)) {
            let window = &mut self.protocol.window;
            // A window of the calendar begins whether anything is charged or not.
            if let Some(edges) = self.store.edges(self.now)
                && self.now >= window.0
            {
                let left = edges.end.since(self.store.clock(self.now).wall);
                let left = u64::try_from(left.as_nanos()).unwrap_or(u64::MAX);
                *window = (self.now.saturating_add(left), 0);
            }
            window.1 += counts;
            let most = self.terms.max + self.bound;
            window.1.checked_sub(most).filter(|excess| *excess > 0)
        } else {
            self.audit.admit(self.now, counts)
        };
        if let Some(excess) = excess {
            self.outcome.violation = Some(("the bound", excess));
        }
    }

    /// The store forgets what it has charged of totals: as much may be charged again.
    fn doubled(&mut self) {
        for ledger in self.protocol.ledgers.values_mut() {
            ledger.doubled += self.terms.cap;
        }
    }

    fn step_clock(&mut self) {
        let units = match self.store.step_clock(self.now, &mut self.rng, &self.terms) {
            ClockStep::Ahead(units) | ClockStep::Back(units) => units,
        };
        self.allow(units);
    }
}
