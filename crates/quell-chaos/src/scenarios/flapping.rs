//! A store that alternates between refusing and taking writes, many times a second.
//!
//! It always answers, so no call is ever lost on its way: the limit holds to the unit.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::load::Load;
use crate::process::wait;
use crate::redis::Redis;
use crate::rng::Rng;
use crate::server::Server;
use crate::stall::Stopwatch;

const RULES: &str = "
domain: d
defaults: { on_failure: share, nodes: 1 }
rules:
  - { name: bucket, match: { path: /bucket }, per: [user], rate: 20/s, burst: 100 }
  - { name: fixed, match: { path: /fixed }, per: [user], algorithm: fixed_window, limit: 500/h }
  - { name: log, match: { path: /log }, per: [user], algorithm: sliding_log, limit: 500/h }
";

const CLIENTS: usize = 6;

const LENGTH: Duration = Duration::from_secs(4);

/// Debts are paid at least every second, and limits stay shared for two more.
const WELL: Duration = Duration::from_secs(4);

pub(crate) async fn run(rng: &mut Rng) -> Result<String> {
    let redis = Redis::start(&[]).await?;
    // Every call is answered, however slow the machine is.
    let words = ["--store", &redis.url(), "--store-timeout", "10s"];
    let server = Server::start(RULES, &words).await?;
    let length = u64::try_from(LENGTH.as_millis())? + 200;
    let mut running = Vec::new();
    for (path, most) in [("/bucket", 100), ("/fixed", 500), ("/log", 500)] {
        let load = Load::on(server.http, path, "u").clients(CLIENTS).pause(8);
        running.push((path, most, load.length(length).start(rng)));
    }
    let (stopwatch, mut changes) = (Stopwatch::start(), 0);
    while stopwatch.elapsed() < LENGTH {
        let refusal = rng.pick(&["min-replicas-to-write", "maxmemory"]);
        for value in ["1", "0"] {
            redis.configure(refusal, value).await?;
            changes += 1;
            tokio::time::sleep(Duration::from_millis(rng.within(20..400))).await;
        }
    }
    let mut accounts = Vec::new();
    for (path, most, load) in running {
        let account = load.finish().await?;
        account.is_documented()?;
        ensure!(account.degraded() > 0, "no refusal was noticed: {account}");
        accounts.push((path, most, account));
    }
    // What is left after all debts are paid.
    for (path, _, account) in &mut accounts {
        wait("the store decides again", WELL, async || {
            let more = Load::on(server.http, path, "u").length(150);
            let more = more.run(rng).await.ok()?;
            let is_well = more.degraded() == 0;
            account.add(more);
            is_well.then_some(())
        })
        .await?;
    }
    server.has_paid(WELL).await?;
    let mut summary = Vec::new();
    for (path, most, account) in accounts {
        let (admitted, seconds) = (account.allowed(), account.length().as_secs_f64());
        let is_kept = match path {
            // All of the limit, and not one unit more.
            "/fixed" | "/log" => admitted == most,
            _ => admitted as f64 <= most as f64 + 20.0 * seconds,
        };
        ensure!(
            is_kept,
            "{path}: {admitted} of {most} in {seconds:.2} s, with {changes} changes; {account}"
        );
        summary.push(format!(
            "{} {admitted} of {most} in {seconds:.1} s",
            &path[1..]
        ));
    }
    Ok(format!("{changes} changes: {}", summary.join(", ")))
}
