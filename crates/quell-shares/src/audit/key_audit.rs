//! Key audit: what one process can judge of a key that it decides in memory.
//!
//! All servers together may exceed a limit by `nodes * cap`. No process sees the calls of all of them. But each
//! sees what it admits, what the store charges for it, and what the store has left after that. So there are three
//! judges, and none of them reads a count of the protocol:
//!
//! ```text
//! calls      what this process admitted                  <= what the limit admits
//! overdraft  what it used and gave back in any interval  <= what was charged for it meanwhile, and cap
//! regained   what the store has more than before         <= what the limit produced, and nodes * cap
//! ```
//!
//! The last two judge the sum: if no process has an overdraft, all of them together admit at most what the store
//! charged, and `nodes * cap`; and the store charges at most the limit, and what came back to it unexplained.
//!
//! Admissions are counted, and judged every period. Nothing that is late, or that cannot be dated, counts: an
//! alarm that is wrong is switched off. What is not seen: the calls of a key that is not busy here, and all
//! judges begin anew with each busy time of a key, and with each change of its limit.

use core::time::Duration;

use quell_core::decision::Decision;
use quell_core::limit::Limit;
use quell_core::over_admission::LeaseTerms;
use quell_core::time::Monotonic;

use super::level::Level;
use super::promise::Promise;
use crate::synced::SyncRequest;

/// By how many units a promise was broken, at most, rounded up; 0: it was kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Excess {
    /// By how many units this process alone exceeded the limit.
    pub calls: u64,
    /// Number of units that the process used, or gave back, and that neither the store had charged nor its
    /// part of the bound covers.
    pub overdraft: u64,
    /// Number of units that came back to the limit on the store although it cannot have produced them, nor
    /// a process given them back from a lease.
    pub regained: u64,
}

impl Excess {
    /// The larger number of each.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            calls: self.calls.max(other.calls),
            overdraft: self.overdraft.max(other.overdraft),
            regained: self.regained.max(other.regained),
        }
    }
}

/// Judge of one process's admissions of one key, against the store's answers.
#[derive(Clone, Debug)]
pub struct KeyAudit {
    promise: Promise,
    level: Level,
    period: Duration,
    judged: Monotonic,
    /// Units admitted since then.
    units: u64,
    /// Units admitted in memory that are not in `drawn` yet.
    undrawn: u64,
    /// Units used and given back in the worst interval until now, less what was charged in it.
    drawn: u64,
    cap: u64,
    /// Units of the total of a synced key that the store has charged.
    paid: u64,
    worst: Excess,
}

impl KeyAudit {
    /// The audit of a key that becomes busy, which is judged once a `period`.
    #[must_use]
    pub fn new(limit: &Limit, terms: &LeaseTerms, period: Duration, now: Monotonic) -> Self {
        Self {
            promise: Promise::new(limit, period, now),
            level: Level::new(limit, terms.bound()),
            period,
            judged: now,
            units: 0,
            undrawn: 0,
            drawn: 0,
            cap: terms.cap,
            paid: 0,
            worst: Excess::default(),
        }
    }

    /// The limit has changed, or is not known to be the same. What this process owes the store stays.
    pub fn change(&mut self, limit: &Limit, terms: &LeaseTerms, now: Monotonic) {
        self.promise = Promise::new(limit, self.period, now);
        self.level = Level::new(limit, terms.bound());
        (self.judged, self.units) = (now, 0);
        // As much may still be uncharged.
        self.cap = self.cap.max(terms.cap);
    }

    /// Counts a call that was admitted in memory.
    pub const fn count(&mut self, cost: u64) {
        self.units = self.units.saturating_add(cost);
        self.undrawn = self.undrawn.saturating_add(cost);
    }

    /// Counts a call that was sent at `sent`, and that the store admitted and charged; not if it was sent before
    /// the last judgement, because answers that were late come at once.
    pub fn count_strict(&mut self, sent: Monotonic, cost: u64) {
        if sent >= self.judged {
            self.units = self.units.saturating_add(cost);
        }
    }

    /// Takes back a call that was admitted in memory: it was refused after all.
    pub const fn uncount(&mut self, cost: u64) {
        self.units = self.units.saturating_sub(cost);
        let judged = cost.saturating_sub(self.undrawn);
        self.undrawn = self.undrawn.saturating_sub(cost);
        self.drawn = self.drawn.saturating_sub(judged);
    }

    /// The store has charged units in advance.
    pub fn charged(&mut self, units: u64) {
        self.draw();
        self.drawn = self.drawn.saturating_sub(units);
    }

    /// The store's answer to a request: it has charged this much of all that was admitted on a synced key so far.
    /// Units that it was told to be paid, and had not said itself, were not charged.
    pub fn paid(&mut self, request: &SyncRequest, total: u64) {
        let known = self.paid.max(request.base);
        self.charged(total.saturating_sub(known));
        self.paid = known.max(total);
    }

    /// Units of a lease are sent back to the store.
    pub fn given_back(&mut self, units: u64) {
        self.undrawn = self.undrawn.saturating_add(units);
        self.draw();
    }

    /// Takes over the store's decision on a call of this process that was sent at `sent`, and answered at
    /// `landed`.
    pub fn observe(&mut self, sent: Monotonic, landed: Monotonic, decision: &Decision) {
        if self.promise.observe(sent, landed, decision.reset_after) {
            // It is not known on which side of the window's edge these were.
            self.units = 0;
        }
        let regained = self.level.observe(sent, landed, decision);
        self.worst.regained = self.worst.regained.max(regained);
    }

    /// Judges what was counted since the last time. Calls that were counted for longer than two periods are
    /// left out of [`Excess::calls`].
    pub fn judge(&mut self, now: Monotonic) -> Excess {
        self.draw();
        let units = core::mem::take(&mut self.units);
        let since = core::mem::replace(&mut self.judged, now);
        let is_late = now.since(since) > self.period * 2;
        let calls = match is_late {
            true => self.promise.miss(now),
            false => self.promise.admit(since, now, units),
        };
        let mut worst = core::mem::take(&mut self.worst);
        worst.calls = calls;
        worst
    }

    fn draw(&mut self) {
        let units = core::mem::take(&mut self.undrawn);
        self.drawn = self.drawn.saturating_add(units);
        let overdraft = self.drawn.saturating_sub(self.cap);
        self.worst.overdraft = self.worst.overdraft.max(overdraft);
    }
}
