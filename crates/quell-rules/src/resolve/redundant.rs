//! Redundant: rules that can never refuse beside another one, if both count the same.
//!
//! A rule that counts tokens (100,000 a minute) and one that counts calls (60 a minute) are both charged
//! what a call costs, unless the second says `cost: 1`. What that looks like is a rule that another one
//! always forestalls: so either it is superfluous, or the two were meant to count different things.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use quell_core::algorithm::Algorithm;
use quell_core::algorithm::fixed_window::{CalendarUnit, Window};
use quell_core::limit::Limit;
use quell_core::policy::Policy;
use quell_core::rule::{Effect, Matcher, OnMissing, Rule};

use crate::path::Span;
use crate::problem::Sink;

/// The most rules with one domain and `match` that others are compared with: a person writes a few.
const MAX_COMPARED: usize = 20;

/// The rules so far, by what decides which calls they have in common.
#[derive(Debug, Default)]
pub(super) struct Redundancies(HashMap<Common, Vec<Arc<Rule>>>);

#[derive(Debug, PartialEq, Eq, Hash)]
struct Common {
    domain: Arc<str>,
    matchers: Vec<Matcher>,
}

impl Redundancies {
    /// Adds a rule, and warns if it or one before it can never refuse beside the other.
    pub(super) fn check(&mut self, domain: &Arc<str>, rule: &Rule, span: &Span, sink: &mut Sink) {
        if !is_comparable(rule) {
            return;
        }
        let key = |matchers: &[Matcher]| Common {
            domain: Arc::clone(domain),
            matchers: matchers.to_vec(),
        };
        let alike = self.0.entry(key(&rule.matchers)).or_default();
        let both = |other: &&Arc<Rule>| {
            let either = || forestalls(other, rule).or_else(|| forestalls(rule, other));
            repeats(other, rule).or_else(either)
        };
        let mut found = alike.iter().find_map(|other| both(&other));
        if alike.len() < MAX_COMPARED {
            alike.push(Arc::new(rule.clone()));
        }
        // A rule for all calls also has those of this one.
        if found.is_none() && !rule.matchers.is_empty() {
            let all = self.0.get(&key(&[])).map_or(&[][..], Vec::as_slice);
            found = all.iter().find_map(|other| forestalls(other, rule));
        }
        if let Some(message) = found {
            sink.warn(span, message);
        }
    }
}

/// Returns true if the rule has one limit for each key, is charged what a call costs, and can refuse.
fn is_comparable(rule: &Rule) -> bool {
    let Effect::Limit(limit) = &rule.effect else {
        return false;
    };
    let is_alone = rule.overrides.is_empty() && rule.plans.is_none();
    rule.own_cost(limit).is_none() && is_alone && !rule.shadow
}

/// Returns true if every key of `loose` has calls of one key of `tight` only: then `tight` has seen all of
/// them. `loose` has no calls that `tight` does not match.
fn is_within(loose: &Rule, tight: &Rule) -> bool {
    let is_same = tight.per == loose.per && tight.on_missing == loose.on_missing;
    // A shared key has calls with any values of the entries that they have.
    let is_finer =
        loose.on_missing == OnMissing::Skip && tight.per.iter().all(|per| loose.per.contains(per));
    let keys = (is_same || is_finer) && tight.empty == loose.empty;
    let Policy { rung, .. } = tight.policy;
    (keys || tight.per.is_empty()) && tight.group == loose.group && rung == loose.policy.rung
}

/// The message if two rules of the same calls are one rule with two names.
fn repeats(first: &Rule, second: &Rule) -> Option<String> {
    let (Effect::Limit(one), Effect::Limit(other)) = (&first.effect, &second.effect) else {
        return None;
    };
    let is_same = first.per == second.per && first.refusal_page == second.refusal_page;
    (is_same && one == other && is_within(first, second) && is_within(second, first)).then(|| {
        format!(
            "`{}` refuses what `{}` refuses, and nothing else, since both have the same calls, keys and limit: \
             leave one of them out",
            second.name, first.name
        )
    })
}

/// The message if `tight` refuses whatever `loose` could; `loose` has no calls that `tight` does not have.
fn forestalls(tight: &Rule, loose: &Rule) -> Option<String> {
    let (Effect::Limit(less), Effect::Limit(more)) = (&tight.effect, &loose.effect) else {
        return None;
    };
    // Of the same calls under the same keys, one with the same numbers bans beside the other, or says something else.
    let is_alike = tight.matchers == loose.matchers && tight.per == loose.per;
    let is_other = !is_alike || less.to_string() != more.to_string();
    if !is_within(loose, tight) || !is_other || !Flow::new(less)?.never_reaches(more) {
        return None;
    }
    Some(format!(
        "`{}` ({more}) can never refuse beside `{}` ({less}), since both are charged what a call costs: write \
         `cost: 1` in the one that counts calls, or leave `{}` out",
        loose.name, tight.name, loose.name
    ))
}

/// Flow that a limit lets through in any interval: at most so much at once, and so much per period.
struct Flow {
    at_once: u64,
    count: u64,
    period: Duration,
}

impl Flow {
    /// `None` if a limit may let through more than these numbers say.
    fn new(limit: &Limit) -> Option<Self> {
        let new = |at_once: u64, count, period| {
            Some(Self {
                at_once,
                count,
                period,
            })
        };
        match limit.algorithm() {
            Algorithm::TokenBucket(bucket) if bucket.in_batches || bucket.debt => None,
            Algorithm::TokenBucket(bucket) => new(limit.max(), bucket.count, bucket.period),
            Algorithm::LeakyBucket(bucket) => {
                new(bucket.burst, bucket.rate.count(), bucket.rate.period())
            }
            // On both sides of an edge.
            Algorithm::FixedWindow(fixed) => new(
                fixed.limit.saturating_mul(2),
                fixed.limit,
                lengths(&fixed.window).0,
            ),
            Algorithm::SlidingWindow(window) => new(window.limit, window.limit, window.window),
            Algorithm::SlidingLog(log) => new(log.limit, log.limit, log.window),
            Algorithm::Concurrency(_) => None,
        }
    }

    /// Returns true if the flow never makes `limit` refuse.
    fn never_reaches(&self, limit: &Limit) -> bool {
        match limit.algorithm() {
            Algorithm::TokenBucket(bucket) => {
                let is_plain = !bucket.in_batches && bucket.warm_up.is_none();
                let is_full = bucket.initial.is_none_or(|initial| initial >= limit.max());
                is_plain && is_full && self.fits(limit.max(), bucket.count, bucket.period)
            }
            // One that delays does more than refuse.
            Algorithm::LeakyBucket(bucket) => {
                let (count, period) = (bucket.rate.count(), bucket.rate.period());
                !limit.may_delay() && self.fits(bucket.burst, count, period)
            }
            Algorithm::FixedWindow(fixed) => {
                self.fits_within(fixed.limit, lengths(&fixed.window).1)
            }
            Algorithm::SlidingWindow(window) => self.fits_within(window.limit, window.window),
            Algorithm::SlidingLog(log) => self.fits_within(log.limit, log.window),
            Algorithm::Concurrency(_) => false,
        }
    }

    /// Returns true if a bucket with these numbers never runs empty.
    fn fits(&self, burst: u64, count: u64, period: Duration) -> bool {
        let own = u128::from(self.count).saturating_mul(period.as_nanos());
        let other = u128::from(count).saturating_mul(self.period.as_nanos());
        self.at_once <= burst && own <= other
    }

    /// Returns true if a window with this limit is never full.
    fn fits_within(&self, limit: u64, window: Duration) -> bool {
        let steady = u128::from(self.count).saturating_mul(window.as_nanos());
        let steady = steady.div_ceil(self.period.as_nanos().max(1));
        u128::from(self.at_once).saturating_add(steady) <= u128::from(limit)
    }
}

/// The shortest and the longest that a window can be.
fn lengths(window: &Window) -> (Duration, Duration) {
    const HOUR: u64 = 3_600;
    const DAY: u64 = 24 * HOUR;
    // A day with a change of the clock is up to an hour shorter or longer.
    let (shortest, longest) = match window {
        Window::FirstRequest(length) => return (*length, *length),
        Window::Calendar(calendar) => match calendar.unit {
            CalendarUnit::Second => (1, 1),
            CalendarUnit::Minute => (60, 60),
            CalendarUnit::Hour => (HOUR, HOUR),
            CalendarUnit::Day => (DAY - HOUR, DAY + HOUR),
            CalendarUnit::Week => (7 * DAY - HOUR, 7 * DAY + HOUR),
            CalendarUnit::Month => (28 * DAY - HOUR, 31 * DAY + HOUR),
            CalendarUnit::Year => (365 * DAY, 366 * DAY),
        },
    };
    (Duration::from_secs(shortest), Duration::from_secs(longest))
}
