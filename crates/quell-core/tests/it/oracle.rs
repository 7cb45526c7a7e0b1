//! The oracle: a plain list of admissions, from which every answer is computed anew.
//!
//! It shares no code and no state with the algorithms: buckets are simulated as a fluid in
//! fractions of a unit, batches one by one, windows by summing up the list.

use crate::calendar;
use crate::kind::{Kind, Speed};

/// Everything that one key was allowed, and when.
#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    kind: Kind,
    since: u64,
    admitted: Vec<Admission>,
}

/// One allowed call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admission {
    pub(crate) at: u64,
    pub(crate) cost: u64,
}

/// Wait of a call, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    None,
    After(u128),
    Never,
}

impl Ledger {
    /// Oracle that has allowed nothing yet, under a rule that came into force at `since`.
    pub(crate) const fn new(kind: Kind, since: u64) -> Self {
        Self {
            kind,
            since,
            admitted: Vec::new(),
        }
    }

    /// Records an allowed call, no earlier than those before.
    pub(crate) fn admit(&mut self, at: u64, cost: u64) {
        self.admitted.push(Admission { at, cost });
    }

    /// The largest cost that is allowed at `t`.
    pub(crate) fn free(&self, t: u64) -> u64 {
        let max = self.kind.max();
        match self.kind {
            Kind::Token { speed, .. } | Kind::Leaky { speed, .. } => {
                let full = u128::from(max) * u128::from(speed.period);
                let units = (full - self.level(speed, t)) / u128::from(speed.period);
                u64::try_from(units).unwrap()
            }
            Kind::Refill { .. } => max - self.batches(t).used,
            _ => {
                let used: u128 = self.counting(u128::from(t)).map(|(_, cost)| cost).sum();
                u64::try_from(u128::from(max) - used).unwrap()
            }
        }
    }

    /// The answer to `cost` at `t`.
    pub(crate) fn wait(&self, t: u64, cost: u64) -> Wait {
        if cost > self.kind.max() {
            Wait::Never
        } else if cost <= self.free(t) {
            Wait::None
        } else {
            Wait::After(self.until_free(t, cost))
        }
    }

    /// The time from `t` until the key is at rest.
    pub(crate) fn reset(&self, t: u64) -> u128 {
        match self.kind {
            Kind::Token { speed, .. } | Kind::Leaky { speed, .. } => {
                self.level(speed, t).div_ceil(u128::from(speed.count))
            }
            Kind::Refill { .. } if self.batches(t).used == 0 => 0,
            _ => self.until_free(t, self.kind.max()),
        }
    }

    /// Delay of a call at `t` until its turn.
    pub(crate) fn delay(&self, t: u64) -> u128 {
        let Kind::Leaky {
            speed, delay_after, ..
        } = self.kind
        else {
            return 0;
        };
        let undelayed = u128::from(delay_after) * u128::from(speed.period);
        let waiting = self.level(speed, t).saturating_sub(undelayed);
        waiting.div_ceil(u128::from(speed.count))
    }

    /// The time from `t` until `cost` is free; the cost is possible.
    fn until_free(&self, t: u64, cost: u64) -> u128 {
        match self.kind {
            Kind::Token { speed, burst, .. } | Kind::Leaky { speed, burst, .. } => {
                let room = u128::from(burst - cost) * u128::from(speed.period);
                let excess = self.level(speed, t).saturating_sub(room);
                excess.div_ceil(u128::from(speed.count))
            }
            Kind::Refill {
                amount,
                every,
                burst,
                ..
            } => {
                let mut bucket = self.batches(t);
                let mut wait = u128::from(bucket.last + every - t);
                bucket.used = bucket.used.saturating_sub(amount);
                while bucket.used > burst - cost {
                    bucket.used = bucket.used.saturating_sub(amount);
                    wait += u128::from(every);
                }
                wait
            }
            _ => {
                let fits = |at: u128| {
                    let used: u128 = self.counting(at).map(|(_, cost)| cost).sum();
                    used + u128::from(cost) <= u128::from(self.kind.max())
                };
                let edges = self.expiries().into_iter().map(|(gone, _)| gone);
                let first = edges.filter(|gone| fits(*gone)).min();
                first.unwrap_or_default().saturating_sub(u128::from(t))
            }
        }
    }

    /// Level of a bucket at `t`, in units of `1/period`.
    fn level(&self, speed: Speed, t: u64) -> u128 {
        let period = u128::from(speed.period);
        let drained = |level: u128, from: u64, to: u64| {
            level.saturating_sub(u128::from(to - from) * u128::from(speed.count))
        };
        let mut level = u128::from(self.kind.missing()) * period;
        let mut last = self.since;
        for admission in &self.admitted {
            level = drained(level, last, admission.at) + u128::from(admission.cost) * period;
            last = admission.at;
        }
        drained(level, last, t)
    }

    /// A bucket filled in batches, at `t`.
    fn batches(&self, t: u64) -> Batches {
        let Kind::Refill { amount, every, .. } = self.kind else {
            return Batches { used: 0, last: t };
        };
        let mut bucket = Batches {
            used: self.kind.missing(),
            last: self.since,
        };
        for admission in &self.admitted {
            bucket.tick(amount, every, admission.at);
            bucket.used += admission.cost;
        }
        bucket.tick(amount, every, t);
        bucket
    }

    /// The costs that still count at `t`, for windows.
    fn counting(&self, t: u128) -> impl Iterator<Item = (u128, u128)> {
        let expiries = self.expiries().into_iter();
        expiries.filter(move |(gone, _)| *gone > t)
    }

    /// Instants at which admissions stop counting, and their costs, for windows.
    fn expiries(&self) -> Vec<(u128, u128)> {
        let mut opened: Option<u64> = None;
        let expiry = |admission: &Admission| {
            let gone = match self.kind {
                Kind::Fixed { window, .. } => {
                    let is_open = |start: &u64| admission.at - start < window;
                    let start = opened.filter(is_open).unwrap_or(admission.at);
                    opened = Some(start);
                    u128::from(start) + u128::from(window)
                }
                Kind::Calendar { .. } => u128::from(calendar::day(admission.at).1),
                Kind::Log { window, .. } => u128::from(admission.at) + u128::from(window),
                Kind::Segments {
                    window, segments, ..
                } => {
                    // In units of 1/segments ns a segment is `window` long.
                    let (segment, parts) = (u128::from(window), u128::from(segments));
                    let at = u128::from(admission.at) * parts;
                    let end = at - at % segment + segment;
                    (end + segment * parts).div_ceil(parts)
                }
                _ => unreachable!("buckets have no window"),
            };
            (gone, u128::from(admission.cost))
        };
        self.admitted.iter().map(expiry).collect()
    }
}

/// A bucket filled in batches.
struct Batches {
    used: u64,
    /// The last tick, or now if nothing is used.
    last: u64,
}

impl Batches {
    /// Lets batches come in until `t`, one by one.
    fn tick(&mut self, amount: u64, every: u64, t: u64) {
        while self.used > 0 && t - self.last >= every {
            self.used = self.used.saturating_sub(amount);
            self.last += every;
        }
        if self.used == 0 {
            self.last = t;
        }
    }
}
