//! What health says while a store refuses, and what the callers are answered.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use serde_json::Value;

use crate::load::{Kind, Load};
use crate::process::wait;
use crate::redis::Redis;
use crate::rng::Rng;
use crate::server::Server;

const RULES: &str = "
domain: d
defaults: { on_failure: share, nodes: 1 }
rules:
  - { name: users, match: { path: /a }, per: [user], rate: 1000/s }
";

/// How long health may say something else than the answers: it says degraded for five seconds longer.
const SOON: Duration = Duration::from_secs(12);

#[derive(Clone, Copy, Debug)]
enum Trouble {
    Replicas,
    Memory,
    ReadOnly,
    Frozen,
}

impl Trouble {
    async fn set(self, redis: &Redis, is_on: bool) -> Result<()> {
        match self {
            Self::Replicas => {
                let least = if is_on { "1" } else { "0" };
                redis.configure("min-replicas-to-write", least).await
            }
            Self::Memory => {
                let most = if is_on { "1" } else { "0" };
                redis.configure("maxmemory", most).await
            }
            Self::ReadOnly if is_on => {
                redis.command(&["REPLICAOF", "127.0.0.1", "1"]).await?;
                Ok(())
            }
            Self::ReadOnly => {
                redis.command(&["REPLICAOF", "NO", "ONE"]).await?;
                Ok(())
            }
            Self::Frozen if is_on => redis.freeze(),
            Self::Frozen => redis.thaw(),
        }
    }
}

pub(crate) async fn run(rng: &mut Rng) -> Result<String> {
    let redis = Redis::start(&[]).await?;
    let words = ["--store", &redis.url(), "--store-timeout", "300ms"];
    let server = Server::start(RULES, &words).await?;
    server.is_status("ok", Duration::from_secs(20)).await?;
    let mut summary = Vec::new();
    let refuses = rng.pick(&[Trouble::Replicas, Trouble::Memory]);
    for trouble in [refuses, rng.pick(&[Trouble::ReadOnly, Trouble::Frozen])] {
        trouble.set(&redis, true).await?;
        let health = agree(&server, true, rng).await?;
        let failure = health["store"]["failure"].as_str().unwrap_or_default();
        if !matches!(trouble, Trouble::Frozen) {
            let is_told = !failure.is_empty() && !failure.contains("no answer");
            ensure!(is_told, "{trouble:?} is told as {failure:?}; {health}");
        }
        let gone = server.metric("quell_degraded").await?;
        ensure!(gone > 0.5, "{trouble:?}: quell_degraded {gone}");
        trouble.set(&redis, false).await?;
        agree(&server, false, rng).await?;
        let gone = server.metric("quell_degraded").await?;
        ensure!(gone < 0.5, "after {trouble:?}: quell_degraded {gone}");
        summary.push(format!("{trouble:?} {failure:?}"));
    }
    let log = server.process.log();
    let changes: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("store is gone") || line.contains("store is back"))
        .collect();
    let last = changes.last().copied().unwrap_or_default();
    ensure!(
        last.contains("back"),
        "the last of {} changes: {last}",
        changes.len()
    );
    Ok(format!(
        "{}; {} lines in the log",
        summary.join("; "),
        changes.len()
    ))
}

/// Waits until all answers are degraded, or none, and health says the same.
async fn agree(server: &Server, is_degraded: bool, rng: &mut Rng) -> Result<Value> {
    let what = format!("answers and health agree: degraded {is_degraded}");
    let mut last = String::new();
    let seen = wait(&what, SOON, async || {
        let load = Load::on(server.http, "/a", "u").pause(10).length(400);
        let account = load.run(rng).await.ok()?;
        let health = server.health().await.ok()?;
        let degraded = account.degraded();
        let unavailable = account.kinds(Kind::Unavailable);
        let are_all = degraded + unavailable == account.calls.len();
        let answers = if is_degraded {
            are_all
        } else {
            degraded + unavailable == 0
        };
        let says = health["status"] == "degraded";
        last = format!("{account}; {health}");
        (answers && says == is_degraded).then_some(health)
    })
    .await;
    match seen {
        Ok(health) => Ok(health),
        Err(error) => bail!("{error}: {last}"),
    }
}
