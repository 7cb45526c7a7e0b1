//! Random rules for the conformance suite.

use std::sync::Arc;
use std::time::Duration;

use quell_core::algorithm::fixed_window::CalendarUnit;
use quell_core::algorithm::token_bucket::TokenBucket;
use quell_core::ban::Ban;
use quell_core::cost::Cost;
use quell_core::hold::{DEFAULT_MAX_HOLD, OnExpiry};
use quell_core::limit::Limit;
use quell_core::limit_error::LimitError;
use quell_core::policy::Policy;
use quell_core::rate::Rate;
use quell_core::rule::{
    DomainRules, Effect, EmptyValue, Matcher, OnMissing, Override, Pattern, Per, Prefix, Rule,
};
use quell_core::time::Now;

use crate::later;

/// A small generator: the same seed gives the same trace on every machine.
#[derive(Debug)]
pub(crate) struct Random {
    state: u64,
    seed: u64,
    /// True if rates and segments are whole microseconds.
    in_micros: bool,
    /// True if days pass between some steps, and rules change every few steps.
    in_days: bool,
    /// True if all buckets are full at the start.
    from_full: bool,
    /// True if overrides of keys change where rules do.
    has_overrides: bool,
}

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            seed,
            in_micros: false,
            in_days: false,
            from_full: false,
            has_overrides: false,
        }
    }

    /// The same, for rules that count in whole microseconds.
    pub(crate) fn in_micros(seed: u64) -> Self {
        Self {
            in_micros: true,
            ..Self::new(seed)
        }
    }

    /// The same, for windows of days and longer that change often.
    pub(crate) fn in_days(seed: u64) -> Self {
        Self {
            in_days: true,
            ..Self::new(seed)
        }
    }

    /// The same, for buckets without `initial`: while numbers that have it are away, it depends on the store whether a key
    /// at rest is forgotten, which lacks tokens when they come back.
    pub(crate) fn from_full(seed: u64) -> Self {
        Self {
            from_full: true,
            ..Self::new(seed)
        }
    }

    /// The same, where overrides of keys change beside rules.
    pub(crate) const fn with_overrides(mut self) -> Self {
        self.has_overrides = true;
        self
    }

    /// One for something else, under the same rules.
    pub(crate) fn reseeded(&self, seed: u64) -> Self {
        Self {
            in_micros: self.in_micros,
            in_days: self.in_days,
            from_full: self.from_full,
            has_overrides: self.has_overrides,
            ..Self::new(seed)
        }
    }

    /// Decides whether rules change in this step: in one of `usual`.
    pub(crate) fn changes_rules(&mut self, usual: u64) -> bool {
        self.one_in(if self.in_days { 8 } else { usual })
    }

    /// Decides whether overrides change in this step.
    pub(crate) fn changes_overrides(&mut self) -> bool {
        self.has_overrides && self.one_in(6)
    }

    pub(crate) const fn seed(&self) -> u64 {
        self.seed
    }

    /// A divisor of a window.
    fn divisor(&mut self, usual: &[u64]) -> u64 {
        let whole: &[u64] = &[1, 2, 4, 5];
        let of = if self.in_micros { whole } else { usual };
        of.get(self.index(of.len())).copied().unwrap_or(1)
    }

    /// A number below `bound`, or 0 if `bound` is 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 11).checked_rem(bound).unwrap_or(0)
    }

    pub(crate) fn index(&mut self, bound: usize) -> usize {
        usize::try_from(self.below(bound as u64)).unwrap_or(0)
    }

    pub(crate) fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    /// The next instant: usually slightly later, seldom much later. In steps of a microsecond, so that
    /// a store with that unit can give the same answers.
    pub(crate) fn step_clock(&mut self, now: Now) -> Now {
        let forward = match self.below(20) {
            0 if self.in_days => Duration::from_secs(self.below(14 * 86_400)),
            1 if self.in_days => Duration::from_secs(self.below(2 * 86_400)),
            0 => Duration::from_secs(self.below(7_200)),
            1..=3 => Duration::from_millis(self.below(3_000)),
            4..=9 => Duration::ZERO,
            _ => Duration::from_micros(self.below(300_000)),
        };
        later(now, forward)
    }
}

/// Some rules of domain `d`: any algorithm, overrides, bans and flags. Names recur from one call to
/// the next, so that a reload changes limits under keys that are in use.
pub(crate) fn random_rules(random: &mut Random) -> Vec<DomainRules> {
    let count = 1 + random.below(4);
    let mut rules = Vec::new();
    for number in 0..count {
        if random.one_in(8) {
            continue;
        }
        rules.push(random_rule(random, &format!("rule-{number}")));
    }
    vec![DomainRules::new("d", rules)]
}

/// The same rules without overrides: a key has the same numbers for all of its calls. Where refusals are remembered or
/// given back, or holds are made, an algorithm that changes from call to call would show what no rules file can say.
pub(crate) fn steady_rules(random: &mut Random) -> Vec<DomainRules> {
    let mut rules = random_rules(random);
    for rule in rules.iter_mut().flat_map(|domain| &mut domain.rules) {
        rule.overrides.clear();
    }
    rules
}

/// The same rules, some of which have permits, grant on credit, or release what expires; a few learn
/// their number of permits, if the store can.
pub(crate) fn with_permits(
    random: &mut Random,
    mut rules: Vec<DomainRules>,
    can_learn: bool,
) -> Vec<DomainRules> {
    let all = rules.iter_mut().flat_map(|domain| &mut domain.rules);
    for rule in all {
        let Effect::Limit(limit) = &rule.effect else {
            continue;
        };
        let limit = match random.below(6) {
            0 if can_learn => Limit::concurrency(1 + random.below(6))
                .adaptive(1)
                .lease(Duration::from_millis(1 + random.below(20_000)))
                .build(),
            0 | 1 => permits(random),
            2 if random.one_in(2) => warm(random),
            2 => Limit::per_second(random.divisor(&[1, 2, 3]))
                .debt(true)
                .build(),
            3 | 4 => Ok(limit.clone().on_expiry(OnExpiry::Release)),
            _ => continue,
        };
        if let Ok(limit) = limit {
            rule.effect = Effect::Limit(limit);
        }
    }
    rules
}

/// A limit of permits, few of which are there.
pub(crate) fn permits(random: &mut Random) -> Result<Limit, LimitError> {
    Limit::concurrency(1 + random.below(3))
        .queue(random.below(3))
        .lease(Duration::from_millis(1 + random.below(20_000)))
        .unit_delay(Duration::from_millis(random.below(200)))
        .build()
}

/// A limit that warms up; in microseconds one that counts in them, which takes a long window.
fn warm(random: &mut Random) -> Result<Limit, LimitError> {
    let (window, factor) = match random.in_micros {
        true => (86_400_000 - random.below(1_000_000), 400),
        false => (1 + random.below(9_000), 2 + random.below(4)),
    };
    Limit::per_second(random.divisor(&[1, 2, 3]))
        .warm_up(Duration::from_millis(window))
        .cold_factor(u32::try_from(factor).unwrap_or(2))
        .build()
}

/// The same rules, whose limits are fixed windows, half of them on the calendar with an overdraft, some with bans.
pub(crate) fn random_budgets(random: &mut Random) -> Vec<DomainRules> {
    let mut rules = random_rules(random);
    for rule in rules.iter_mut().flat_map(|domain| &mut domain.rules) {
        let overrides = rule.overrides.iter_mut().map(|entry| &mut entry.effect);
        for effect in overrides.chain([&mut rule.effect]) {
            let Effect::Limit(limit) = effect else {
                continue;
            };
            let units = [CalendarUnit::Second, CalendarUnit::Hour, CalendarUnit::Day];
            let unit = units.get(random.index(units.len())).copied();
            let unit = unit.unwrap_or(CalendarUnit::Day);
            let budget = Limit::calendar_window(limit.max(), unit, "Europe/Berlin");
            let budget = match random.below(4) {
                0 => budget.build(),
                1 => Limit::fixed_window(limit.max(), Duration::from_secs(1 + random.below(900)))
                    .build(),
                _ => budget.overdraft().build(),
            };
            let budget = budget.map(|budget| match limit.ban() {
                Some(ban) => budget.with_ban(ban.clone()),
                None => budget,
            });
            *effect = budget.map_or(Effect::Unlimited, Effect::Limit);
        }
    }
    rules
}

fn random_rule(random: &mut Random, name: &str) -> Rule {
    let per = ["a", "b"]
        .into_iter()
        .filter(|_| !random.one_in(3))
        .map(|entry| Per {
            entry: Arc::from(entry),
            prefix: (entry == "b").then(|| Prefix::new(16, 64)).flatten(),
            colocate: false,
        });
    let per = per.collect();
    let mut matchers = Vec::new();
    if random.one_in(3) {
        matchers.push(matcher("c", &["x", "10.0.0.0/8", "*y"]));
    }
    // By an entry that is not in `per`: one key, and numbers that change from call to call.
    let mut overrides = Vec::new();
    for value in ["y", "x"] {
        if random.one_in(3) {
            let effect = match random.below(8) {
                0 | 1 => Effect::Unlimited,
                2 => Effect::Refuse,
                _ => effect(random),
            };
            let when = [matcher("c", &[value])].into();
            overrides.push(Override { when, effect });
        }
    }
    Rule {
        name: Arc::from(name),
        matchers,
        per,
        on_missing: if random.one_in(2) {
            OnMissing::Skip
        } else {
            OnMissing::SharedKey
        },
        empty: if random.one_in(4) {
            EmptyValue::Keep
        } else {
            EmptyValue::Missing
        },
        effect: effect(random),
        overrides,
        plans: None,
        cost: (random.one_in(6).then(|| Cost::new(1 + random.below(3)))).flatten(),
        shadow: random.one_in(6),
        policy: Policy::STRICT,
        nodes: None,
        group: None,
        max_hold: DEFAULT_MAX_HOLD,
        reserve: None,
        refusal_page: None,
    }
}

fn matcher(entry: &str, patterns: &[&str]) -> Matcher {
    Matcher {
        entry: Arc::from(entry),
        patterns: patterns.iter().map(|text| Pattern::parse(text)).collect(),
    }
}

pub(crate) fn effect(random: &mut Random) -> Effect {
    let limit = random_limit(random);
    debug_assert!(limit.is_ok(), "the numbers below are possible: {limit:?}");
    limit.map_or(Effect::Unlimited, Effect::Limit)
}

fn random_limit(random: &mut Random) -> Result<Limit, LimitError> {
    let size = 1 + random.below(8);
    let periods = [90, 1_000, 7_000, 60_000, 3_600_000];
    let millis = periods
        .get(random.index(periods.len()))
        .copied()
        .unwrap_or(1_000);
    let window = Duration::from_millis(millis);
    let rate = Rate::new(random.divisor(&[1, 2, 3, 4, 5, 6, 7]), window)?;
    let limit = match random.below(7) {
        0 | 1 => Limit::token_bucket(rate).burst(size).build()?,
        2 => {
            let initial = random.below(size + 1);
            let initial = if random.from_full { size } else { initial };
            let batches = TokenBucket::refill(1 + random.below(4), window);
            batches.burst(size).initial(initial).build()?
        }
        3 => Limit::leaky_bucket(rate)
            .burst(size)
            .delay_after(random.below(size + 1))
            .build()?,
        4 if random.one_in(2) => Limit::fixed_window(size, window).build()?,
        4 => {
            let units = [
                CalendarUnit::Second,
                CalendarUnit::Minute,
                CalendarUnit::Hour,
                CalendarUnit::Day,
            ];
            let unit = units
                .get(random.index(4))
                .copied()
                .unwrap_or(CalendarUnit::Day);
            Limit::calendar_window(size, unit, "Europe/Berlin").build()?
        }
        5 => {
            let third = if random.in_micros { 5 } else { 3 };
            let segments = [2, third, 10].get(random.index(3)).copied().unwrap_or(10);
            Limit::sliding_window(size, window)
                .segments(segments)
                .build()?
        }
        _ => Limit::sliding_log(size, window).build()?,
    };
    if random.one_in(4) {
        let after = 1 + u32::try_from(random.below(3)).unwrap_or(0);
        let steps = vec![Duration::from_millis(500), Duration::from_secs(10)];
        return Ok(limit.with_ban(Ban::new(after, Some(window), steps)?));
    }
    Ok(limit)
}

/// A rule of domain `d` with this name and one limit for one key; none if the limit is invalid.
pub(crate) fn one_limit(name: &str, limit: Result<Limit, LimitError>) -> Vec<DomainRules> {
    let rule = limit.map(|limit| plain_rule(name, Vec::new(), Effect::Limit(limit)));
    vec![DomainRules::new("d", rule.into_iter().collect())]
}

/// Three permits of 30 s per user, and 100 a minute per team.
pub(crate) fn permits_and_budgets() -> Vec<DomainRules> {
    let jobs = Limit::concurrency(2).lease(Duration::from_secs(30));
    let budget = Limit::fixed_window(100, Duration::from_secs(60));
    let rules = vec![
        rule_per("jobs", &["user"], jobs.build()),
        rule_per("budget", &["team"], budget.build()),
    ];
    vec![DomainRules::new("d", rules)]
}

/// A limit per user and one for all users; every call charges both.
pub(crate) fn two_limits(per_user: u64, in_all: u64) -> Vec<DomainRules> {
    let rule = |name: &str, per: &[&str], limit: u64| {
        let limit = Limit::fixed_window(limit, Duration::from_secs(3_600));
        rule_per(name, per, limit.build())
    };
    let rules = vec![
        rule("per-user", &["user"], per_user),
        rule("in-all", &[], in_all),
    ];
    vec![DomainRules::new("d", rules)]
}

pub(crate) fn rule_per(name: &str, per: &[&str], limit: Result<Limit, LimitError>) -> Rule {
    let per = per.iter().map(|entry| Per::value(entry));
    let effect = limit.map_or(Effect::Unlimited, Effect::Limit);
    plain_rule(name, per.collect(), effect)
}

/// A rule with only these fields.
fn plain_rule(name: &str, per: Vec<Per>, effect: Effect) -> Rule {
    Rule {
        name: Arc::from(name),
        matchers: Vec::new(),
        per,
        on_missing: OnMissing::Skip,
        empty: EmptyValue::Missing,
        effect,
        overrides: Vec::new(),
        plans: None,
        cost: None,
        shadow: false,
        policy: Policy::STRICT,
        nodes: None,
        group: None,
        max_hold: DEFAULT_MAX_HOLD,
        reserve: None,
        refusal_page: None,
    }
}
