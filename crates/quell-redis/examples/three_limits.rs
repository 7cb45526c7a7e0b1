//! A local, a burst and a distributed limit, charged together or not at all.
//!
//! ```sh
//! redis-server --port 6379 --save '' --daemonize yes
//! cargo run -p quell-redis --example three_limits -- redis://127.0.0.1:6379/0
//! ```
//!
//! * `local`: what this process can take, decided here.
//! * `burst`: at most five of a user's calls at one instant, on all nodes together.
//! * `distributed`: a hundred a minute for each user on all nodes together. While Redis is gone, each of
//!   four nodes goes on with a quarter of both shared limits, and Redis is told afterwards.

use std::error::Error;
use std::time::Duration;

use quell::rule::{DomainRules, OnFailure, Rule, Rung};
use quell::{Limit, Limiter, Query};
use quell_redis::{RedisStore, StoreUrl};

/// The three limits.
pub(crate) fn rules() -> Result<Vec<DomainRules>, Box<dyn Error>> {
    let nodes = 4.try_into()?;
    let quarter = OnFailure::Share { nodes };
    let minute = Duration::from_secs(60);
    let rules = vec![
        Rule::new("local", Limit::per_second(500))?.policy(Rung::Local),
        Rule::new("burst", Limit::per_second(50).burst(5))?
            .per("user")
            .policy(quarter),
        Rule::new("distributed", Limit::sliding_window(100, minute))?
            .per("user")
            .policy(quarter),
    ];
    Ok(vec![DomainRules::new("api", rules)])
}

#[expect(clippy::print_stdout, reason = "it shows what it does")]
#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args()
        .nth(1)
        .ok_or("which store? write redis://127.0.0.1:6379/0")?;
    let url: StoreUrl = url.parse()?;
    let limiter = Limiter::new(RedisStore::new(url).with_fallback());
    limiter.set_rules(rules()?)?;
    for call in 1..=7 {
        let verdict = limiter
            .try_acquire(&Query::new("api").entry("user", "alice"))
            .await?;
        let rule = verdict.binding_rule().map(|binding| &*binding.rule);
        println!(
            "call {call}: allowed {}, {rule:?}, degraded {}",
            verdict.is_allow(),
            verdict.degraded
        );
    }
    Ok(())
}
