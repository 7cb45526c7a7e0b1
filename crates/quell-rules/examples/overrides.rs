//! What overrides cost: `cargo run --release -p quell-rules --example overrides -- 100000`.
//!
//! Prints how long a decision takes to find its limit in a rule without overrides and in one with so many
//! (of tenants that have one, and of others), how long it takes to read the file and to bring one changed
//! number into force, and what an override needs in memory.

#![expect(clippy::print_stdout, reason = "that is what it is for")]

use std::fmt::Write;
use std::fs;
use std::hint::black_box;
use std::time::{Duration, Instant};

use quell_core::algorithm::Edges;
use quell_core::algorithm::fixed_window::Calendar;
use quell_core::charge::LimitSet;
use quell_core::rule::{CalendarEdges, DomainRules, LimitIds, RuleSet};
use quell_core::time::{Now, Wall};
use quell_rules::{Query, RuleChanges, parse_str};

/// Decisions of one run.
const CALLS: usize = 2_000_000;
/// Tenants that ask in turn.
const TENANTS: usize = 20_000;
/// Runs; the fastest counts, and rules without and with overrides alternate.
const RUNS: usize = 5;
/// Rule sets that are kept at a time, so that their memory can be told from what a parser left behind.
const KEPT: u64 = 4;

struct NoCalendar;

impl CalendarEdges for NoCalendar {
    fn edges(&self, _: &Calendar, _: Wall) -> Edges {
        unreachable!("no rule here follows a calendar")
    }
}

/// Every number occurs `plans` times in turn; `changed` has another one.
fn text(overrides: usize, plans: usize, changed: Option<usize>) -> String {
    let mut text = String::from(
        "domain: shop\nrules:\n  - name: api-per-tenant\n    match: { path: \"/api/*\" }\n    per: [tenant]\n    rate: 100/s\n",
    );
    if overrides > 0 {
        text += "    overrides:\n";
    }
    for tenant in 0..overrides {
        let rate = if changed == Some(tenant) {
            777_777
        } else {
            101 + tenant % plans
        };
        writeln!(
            text,
            "      - {{ when: {{ tenant: tenant-{tenant} }}, rate: {rate}/s }}"
        )
        .unwrap_or_default();
    }
    text
}

fn parse(text: &str) -> Vec<DomainRules> {
    match parse_str("overrides.yaml", text) {
        Ok(loaded) => loaded.domains,
        Err(problems) => unreachable!("{}", problems[0]),
    }
}

fn fresh(text: &str) -> RuleSet {
    let domains = parse(text);
    RuleSet::default()
        .reload(domains, Now::default(), &LimitIds::default())
        .0
}

/// The time of one call whose limit is looked up.
fn resolve(rules: &RuleSet, queries: &[Query<'_>]) -> Duration {
    let begin = Instant::now();
    for query in queries.iter().cycle().take(CALLS) {
        let mut set = LimitSet::new();
        rules.resolve_into(query, Now::default(), &NoCalendar, &mut set);
        black_box(&set);
    }
    begin.elapsed() / u32::try_from(CALLS).unwrap_or(u32::MAX)
}

/// Bytes of memory of this process.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = status
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse().ok());
    pages.unwrap_or(0_u64) * 4_096
}

fn queries(from: usize) -> Vec<Query<'static>> {
    // Not in the order in which they lie in memory.
    let tenants = (0..TENANTS).map(|place| from + place * 7_919 % TENANTS);
    let query = |tenant| {
        Query::new("shop")
            .entry("path", "/api/orders")
            .entry("tenant", format!("tenant-{tenant}"))
    };
    tenants.map(query).collect()
}

fn main() {
    let argument = std::env::args().nth(1);
    let overrides = argument
        .and_then(|count| count.parse().ok())
        .unwrap_or(100_000_usize);
    let (without, with) = (fresh(&text(0, 5, None)), fresh(&text(overrides, 5, None)));
    let (listed, others) = (queries(0), queries(overrides));
    let mut best = [Duration::MAX; 3];
    for _ in 0..RUNS {
        let times = [
            resolve(&without, &others),
            resolve(&with, &listed),
            resolve(&with, &others),
        ];
        for (best, time) in best.iter_mut().zip(times) {
            *best = time.min(*best);
        }
    }
    let [none, listed, other] = best;
    println!(
        "{overrides} overrides: a limit is found in {none:?} without any, {listed:?} of a tenant that is listed, {other:?} of others"
    );

    let (before, after) = (
        text(overrides, 5, None),
        text(overrides, 5, Some(overrides / 2)),
    );
    let begin = Instant::now();
    let old = parse(&before);
    let read = begin.elapsed();
    let ids = LimitIds::default();
    let (rules, _) = RuleSet::default().reload(old, Now::default(), &ids);
    let begin = Instant::now();
    let new = parse(&after);
    let (parsed, begin_change) = (begin.elapsed(), Instant::now());
    let named = rules.all().map(|(domain, rule)| (domain, rule.rule()));
    let changed = RuleChanges::between(
        named,
        new.iter()
            .flat_map(|domain| domain.rules.iter().map(|rule| (&*domain.domain, rule))),
    );
    let (_, changes) = rules.reload(new, Now::default(), &ids);
    println!(
        "read in {read:?}; one number changed: {:?}, of which {parsed:?} to read it ({changed}; {} limits replaced)",
        parsed + begin_change.elapsed(),
        changes.replaced.len()
    );

    for (plans, name) in [
        (5, "five plans"),
        (overrides.max(1), "each has its own number"),
    ] {
        let text = text(overrides, plans, None);
        // What the parser needs for a while is there already.
        let mut kept = vec![fresh(&text), fresh(&text)];
        let before = resident();
        kept.extend((0..KEPT).map(|_| fresh(&text)));
        let each = (resident() - before) / KEPT / overrides.max(1) as u64;
        println!("{each} bytes for each override, {name}");
        drop(kept);
    }
}
