//! Limits that are measured, and limiters with them.

use std::fmt::Write;
use std::time::Duration;

use anyhow::{Result, anyhow};
use quell::{Limiter, Query};
use quell_redis::{RedisStore, RedisStoreBuilder};

/// Long enough that nothing fails because the machine is busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// The usual limit.
pub(super) const BUCKET: &str = "rate: 100/s, burst: 200";
const HOURLY: &str = "rate: 10000/h, burst: 10000";
const DAILY: &str = "algorithm: fixed_window, limit: 1000000/day";
const BAN: &str =
    "algorithm: fixed_window, limit: 1000/min, ban: { after: 3, within: 10m, for: [1m] }";
const CALENDAR: &str =
    "algorithm: fixed_window, limit: 1000000/day, align: calendar, time_zone: Europe/Berlin";

/// A named set of limits.
pub(super) type Subject = (&'static str, &'static [&'static str]);

/// One limit of each kind, and sets of several.
pub(super) const SUBJECTS: [Subject; 12] = [
    ("token_bucket", &[BUCKET]),
    ("token_bucket, 7/min", &["rate: 7/min, burst: 700"]),
    (
        "token_bucket, refill",
        &["refill: { amount: 10, every: 1s }, burst: 1000"],
    ),
    (
        "leaky_bucket",
        &["algorithm: leaky_bucket, rate: 100/s, burst: 200"],
    ),
    (
        "fixed_window",
        &["algorithm: fixed_window, limit: 1000/min"],
    ),
    ("fixed_window, calendar", &[CALENDAR]),
    ("fixed_window, ban", &[BAN]),
    (
        "sliding_window",
        &["algorithm: sliding_window, limit: 1000/min"],
    ),
    ("sliding_log", &["algorithm: sliding_log, limit: 100/min"]),
    ("set of 2", &[BUCKET, HOURLY]),
    ("set of 3", &[BUCKET, HOURLY, DAILY]),
    ("set of 5", &[BUCKET, HOURLY, DAILY, BUCKET, HOURLY]),
];

/// Rules that apply all of `limits` to every user.
pub(super) fn rules(limits: &[&str]) -> String {
    let mut text = "domain: bench\nrules:\n".to_owned();
    for (number, limit) in limits.iter().enumerate() {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  - {{ name: rule-{number}, per: [user], {limit} }}");
    }
    text
}

/// A limiter on the store at `url`.
pub(super) fn limiter(url: &str, limits: &[&str]) -> Result<Limiter<RedisStore>> {
    on(RedisStore::builder(url.parse()?), limits)
}

/// The same, but it sends every call by itself.
pub(super) fn limiter_one_by_one(url: &str, limits: &[&str]) -> Result<Limiter<RedisStore>> {
    on(RedisStore::builder(url.parse()?).unbatched(), limits)
}

fn on(store: RedisStoreBuilder, limits: &[&str]) -> Result<Limiter<RedisStore>> {
    let limiter = Limiter::builder(store.timeout(PATIENCE).build()).build();
    let loaded = quell_rules::parse_str("rules.yaml", &rules(limits));
    let loaded = loaded.map_err(|problems| anyhow!("{:?}", problems.first()))?;
    limiter.set_rules(loaded.domains)?;
    Ok(limiter)
}

/// A query for one user.
pub(super) fn query(user: usize) -> Query<'static> {
    Query::new("bench").entry("user", format!("user:{user:012}"))
}
