//! Health while a store refuses, compared with the answers that callers get.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::load::Load;
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

/// A lost store is found again within a second, and limits stay shared for two more.
const BACK: Duration = Duration::from_secs(4);

/// Health says degraded until no answer was degraded for five seconds, and checks once a second.
const SAID: Duration = Duration::from_secs(7);

#[derive(Clone, Copy, Debug)]
enum Fault {
    Replicas,
    Memory,
    ReadOnly,
    Frozen,
}

impl Fault {
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
            Self::Frozen => {
                match is_on {
                    true => redis.freeze(),
                    false => redis.thaw(),
                }
                Ok(())
            }
        }
    }
}

pub(crate) async fn run(rng: &mut Rng) -> Result<String> {
    let redis = Redis::start(&[]).await?;
    let words = ["--store", &redis.url(), "--store-timeout", "300ms"];
    let server = Server::start(RULES, &words).await?;
    server.is_status("ok", Duration::from_secs(20)).await?;
    let mut summary = Vec::new();
    let refuses = rng.pick(&[Fault::Replicas, Fault::Memory]);
    for trouble in [refuses, rng.pick(&[Fault::ReadOnly, Fault::Frozen])] {
        trouble.set(&redis, true).await?;
        let health = becomes_degraded(&server, rng).await?;
        let failure = health["store"]["failure"].as_str().unwrap_or_default();
        if !matches!(trouble, Fault::Frozen) {
            let is_told = !failure.is_empty() && !failure.contains("no answer");
            ensure!(is_told, "{trouble:?} is reported as {failure:?}; {health}");
        }
        let gone = server.metric("quell_degraded").await?;
        ensure!(gone > 0.5, "{trouble:?}: quell_degraded {gone}");
        trouble.set(&redis, false).await?;
        is_well(&server, rng).await?;
        let gone = server.metric("quell_degraded").await?;
        ensure!(gone < 0.5, "after {trouble:?}: quell_degraded {gone}");
        summary.push(format!("{trouble:?} {failure:?}"));
    }
    let log = server.process.stderr();
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

fn load(server: &Server) -> Load {
    Load::on(server.http, "/a", "u").pause(10).length(100)
}

/// From the first degraded answer on health says degraded; soon all answers are.
async fn becomes_degraded(server: &Server, rng: &mut Rng) -> Result<Value> {
    wait("an answer is degraded", BACK, async || {
        (load(server).run(rng).await.ok()?.degraded() > 0).then_some(())
    })
    .await?;
    let health = server.health().await?;
    ensure!(
        health["status"] == "degraded",
        "an answer was degraded: {health}"
    );
    wait("all answers are degraded", BACK, async || {
        let account = load(server).run(rng).await.ok()?;
        (account.degraded() == account.calls.len()).then_some(())
    })
    .await?;
    // By now the server knows the reason that the store gave.
    server.health().await
}

/// Waits until answers are no longer degraded; health must agree some seconds later, and not
/// before.
async fn is_well(server: &Server, rng: &mut Rng) -> Result<()> {
    let mut last = None;
    wait("no answer is degraded", BACK, async || {
        let account = load(server).run(rng).await.ok()?;
        let degraded = account.calls.iter().filter(|call| call.is_degraded);
        last = degraded.map(|call| call.begun).max().or(last);
        (account.degraded() == 0).then_some(())
    })
    .await?;
    let (account, health) = wait("health says ok", SAID, async || {
        let account = load(server).run(rng).await.ok()?;
        let health = server.health().await.ok()?;
        let is_over = account.degraded() > 0 || health["status"] == "ok";
        is_over.then_some((account, health))
    })
    .await?;
    ensure!(
        account.degraded() == 0,
        "degraded again: {account}; {health}"
    );
    let after = last.map(|last| last.elapsed());
    ensure!(
        after.is_none_or(|after| after >= Duration::from_secs(5)),
        "ok {after:.1?} after a degraded answer"
    );
    Ok(())
}
