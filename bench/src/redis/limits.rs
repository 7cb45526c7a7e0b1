//! Limits that are measured, and limiters with them.

use std::fmt::Write;
use std::time::Duration;

use anyhow::{Result, anyhow};
use quell::{Limiter, Query};
use quell_redis::RedisStore;

/// Long enough that nothing fails because the machine is busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// The usual limit.
pub(super) const BUCKET: &str = "rate: 100/s, burst: 200";

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
    let store = RedisStore::builder(url.parse()?).timeout(PATIENCE);
    let limiter = Limiter::builder(store.build()).build();
    let loaded = quell_rules::parse_str("rules.yaml", &rules(limits));
    let loaded = loaded.map_err(|problems| anyhow!("{:?}", problems.first()))?;
    limiter.set_rules(loaded.domains)?;
    Ok(limiter)
}

/// A query for one user.
pub(super) fn query(user: usize) -> Query<'static> {
    Query::new("bench").entry("user", format!("user:{user:012}"))
}
