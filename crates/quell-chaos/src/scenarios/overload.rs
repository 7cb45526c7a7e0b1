//! More load than the store, or this process, can take.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tokio::task::JoinSet;

use crate::load::{Kind, Load};
use crate::process::wait;
use crate::redis::Redis;
use crate::resp::{Reply, Resp, frame};
use crate::rng::Rng;
use crate::server::Server;

const RULES: &str = "
domain: d
defaults: { on_failure: deny }
rules:
  - { name: users, match: { path: /a }, per: [user], rate: 1000000/s }
  - { name: also, match: { path: /a }, rate: 1000000/s }
  - { name: open, match: { path: /open }, rate: 1000000/s, on_failure: allow }
";

/// How long each kind of load lasts.
const LENGTH: Duration = Duration::from_millis(1_500);

pub(crate) async fn run(rng: &mut Rng) -> Result<String> {
    let redis = Redis::start(&[]).await?;
    let server = Server::start(RULES, &["--store", &redis.url()]).await?;
    let mut summary = Vec::new();
    for (name, pipeline, limit) in [("distinct keys", 400, 0), ("one refused key", 128, 1)] {
        let open = Load::on(server.http, "/open", "me").clients(2).pause(10);
        let open = open.length(1_500).start(rng);
        let (replies, errors) = flood(&server, pipeline, limit, rng).await?;
        let open = open.finish().await?;
        open.is_documented()?;
        ensure!(open.degraded() == 0, "{name}: HTTP was degraded, {open}");
        let wrong = errors.iter().find(|(error, _)| !error.contains("overload"));
        ensure!(wrong.is_none(), "{name}: of {replies} replies: {errors:?}");
        let refused: usize = errors.values().sum();
        summary.push(format!(
            "{name}: {replies} replies, {refused} too many; HTTP {open}"
        ));
        recovers(&server, rng).await?;
    }
    let many = Load::on(server.http, "/a", "u").clients(800).length(1_500);
    let many = many.run(rng).await?;
    many.is_documented()?;
    ensure!(many.degraded() == 0, "800 connections: {many}");
    let unavailable = many.kinds(Kind::Unavailable);
    ensure!(
        unavailable == 0,
        "800 connections: {}",
        many.said(Kind::Unavailable)
    );
    summary.push(format!("800 connections: {many}"));
    recovers(&server, rng).await?;
    let gone = server.logged("the store is gone");
    ensure!(gone == 0, "the store was taken for gone {gone} times");
    Ok(summary.join("; "))
}

/// Waits until answers are verdicts again.
async fn recovers(server: &Server, rng: &mut Rng) -> Result<()> {
    wait("it recovers", Duration::from_secs(5), async || {
        let load = Load::on(server.http, "/a", "u").clients(4).length(100);
        let account = load.run(rng).await.ok()?;
        (account.allowed() == account.calls.len()).then_some(())
    })
    .await
}

/// Keeps a pipeline of `CL.THROTTLE` going on each of 50 connections: for distinct keys, or for one
/// key with this limit. Returns the number of replies, and the texts of the errors among them.
async fn flood(
    server: &Server,
    pipeline: usize,
    limit: u64,
    rng: &mut Rng,
) -> Result<(usize, BTreeMap<String, usize>)> {
    let mut tasks: JoinSet<Result<(usize, BTreeMap<String, usize>)>> = JoinSet::new();
    for _ in 0..50 {
        let (port, mut rng) = (server.resp, rng.fork());
        tasks.spawn(async move {
            let mut stream = Resp::connect(port).await?;
            let (mut replies, mut errors) = (0, BTreeMap::new());
            let start = Instant::now();
            while start.elapsed() < LENGTH {
                let mut batch = Vec::new();
                for _ in 0..pipeline {
                    let key = rng.next().to_string();
                    let words = match limit {
                        0 => ["CL.THROTTLE", &key, "1000000", "1000000", "1"],
                        _ => ["CL.THROTTLE", "one", "0", "1", "86400"],
                    };
                    batch.extend(frame(&words));
                }
                stream.send(&batch).await?;
                for _ in 0..pipeline {
                    replies += 1;
                    if let Reply::Error(error) = stream.read().await? {
                        *errors.entry(error).or_default() += 1;
                    }
                }
            }
            Ok((replies, errors))
        });
    }
    let (mut replies, mut errors) = (0, BTreeMap::new());
    while let Some(done) = tasks.join_next().await {
        let (more, said) = done??;
        replies += more;
        for (error, count) in said {
            *errors.entry(error).or_default() += count;
        }
    }
    Ok((replies, errors))
}
