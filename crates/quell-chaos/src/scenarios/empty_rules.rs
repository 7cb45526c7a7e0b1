//! A server that reads its rules from a store that has none.

use std::fs;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::process::{run as program, wait};
use crate::redis::Redis;
use crate::rng::Rng;
use crate::server::{Server, quell};

const RULES: &str = "
domain: d
defaults: { on_failure: deny }
rules:
  - { name: users, match: { path: /a }, per: [user], rate: 1000/s }
";

/// The server checks eviction and its rights when it starts.
const SOON: Duration = Duration::from_secs(5);

pub(crate) async fn run(rng: &mut Rng) -> Result<String> {
    let redis =
        Redis::start(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]).await?;
    let url = redis.url();
    let server = Server::start("", &["--rules", &url, "--store", &url]).await?;
    let ready = server.client().get("/readyz").await?;
    ensure!(
        ready.status == 503,
        "it has no rules and says {} {}",
        ready.status,
        ready.text
    );
    let warning = wait("the server reports a store that evicts", SOON, async || {
        let log = server.process.stderr();
        let line = log.lines().find(|line| line.contains("allkeys-lru"));
        line.map(str::to_owned)
    })
    .await?;
    let right = lacks_right(&redis, rng).await?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("rules.yaml");
    fs::write(&file, RULES)?;
    let file = file.to_string_lossy();
    program(quell()?, &["rules", "push", "--store", &url, &file]).await?;
    let is_ready = wait(
        "new rules make it ready",
        Duration::from_secs(15),
        async || {
            let ready = server.client().get("/readyz").await.ok()?;
            (ready.status == 200).then_some(())
        },
    );
    is_ready.await?;
    // A flush deletes the rules in the store; the server keeps those in force.
    redis.command(&["FLUSHALL"]).await?;
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    let ready = server.client().get("/readyz").await?;
    ensure!(
        ready.status == 200,
        "after a flush: {} {}",
        ready.status,
        ready.text
    );
    // A server that starts on this store now has no rules.
    let next = Server::start("", &["--rules", &url, "--store", &url]).await?;
    let ready = next.client().get("/readyz").await?;
    ensure!(
        ready.status == 503,
        "on a flushed store: {} {}",
        ready.status,
        ready.text
    );
    Ok(format!(
        "not ready without rules; told of {right}; {}",
        warning.trim()
    ))
}

/// Checks that a server reports, when it starts, a missing right that a script would need only
/// after its first write. Returns the right.
async fn lacks_right(redis: &Redis, rng: &mut Rng) -> Result<&'static str> {
    let right = rng.pick(&["pexpire", "zadd", "setrange", "psetex", "xadd"]);
    let without = [
        "ACL", "SETUSER", "few", "on", ">secret", "~*", "&*", "+@all",
    ];
    redis.command(&without).await?;
    let lacks = format!("-{right}");
    redis.command(&["ACL", "SETUSER", "few", &lacks]).await?;
    let limited = redis.url().replace("redis://", "redis://few:secret@");
    let few = Server::start(RULES, &["--store", &limited]).await?;
    wait("the server reports a missing right", SOON, async || {
        let told = few.health().await.ok()?["store"]["warnings"].to_string();
        (told.contains(&format!("+{right}")) && few.logged(&format!("+{right}")) > 0).then_some(())
    })
    .await?;
    Ok(right)
}
