//! A full disk: the server cannot write snapshots, decisions or its log.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::load::{Account, Kind, Load};
use crate::process::{run as program, wait};
use crate::rng::Rng;
use crate::server::Server;

const RULES: &str = "
domain: d
rules:
  - { name: users, match: { path: /a }, per: [user], algorithm: fixed_window, limit: 5/h }
";

const USERS: u64 = 100;

/// Time by which health may lag behind the facts.
const SOON: Duration = Duration::from_secs(12);

pub(crate) async fn run(rng: &mut Rng) -> Result<String> {
    let data = tempfile::tempdir()?;
    let (states, decisions) = (
        data.path().join("states"),
        data.path().join("decisions.log"),
    );
    let words = [
        "--data-dir",
        &states.to_string_lossy(),
        "--snapshot-interval",
        "400ms",
        "--decision-log",
        &decisions.to_string_lossy(),
    ];
    let server = Server::start(RULES, &words).await?;
    let used = load(&server, "before").length(300).run(rng).await?;
    ensure!(used.allowed() == 5, "{used}");
    snapshots(&server, rng).await?;

    // Nothing fits, or a snapshot breaks off half way.
    let room = rng.pick(&[0, 100, 1_000]);
    let (mut calls, mut written) = (Account::default(), 0.0);
    for is_last in [false, true] {
        limit(&server, &room.to_string()).await?;
        calls.add(answers(&server, rng).await?);
        let health = is_degraded(&server, rng).await?;
        ensure!(
            health.contains("snapshot_failure") && health.contains("\"decision_log_failing\":true"),
            "health says {health}"
        );
        calls.add(answers(&server, rng).await?);
        if is_last {
            break;
        }
        limit(&server, "unlimited").await?;
        snapshots(&server, rng).await?;
        server.is_status("ok", SOON).await?;
        written = server.metric("quell_decision_log_lines_total").await?;
    }
    let dropped = server.metric("quell_decision_log_dropped_total").await?;
    ensure!(dropped > 0.5, "{dropped} decisions count as not written");

    // A crash, with the remains of a snapshot that did not fit.
    let mut server = server;
    server.process.kill();
    let next = Server::start(RULES, &words).await?;
    let after = load(&next, "before").length(300).run(rng).await?;
    after.is_documented()?;
    ensure!(
        after.allowed() == 0,
        "used up before the disk was full, and after a crash {after}"
    );
    Ok(format!(
        "room for {room} bytes: {calls}; {written} decisions written, {dropped} dropped; after a crash {after}"
    ))
}

/// From now on no file grows beyond this many bytes.
async fn limit(server: &Server, bytes: &str) -> Result<()> {
    let (process, size) = (server.process.id().to_string(), format!("--fsize={bytes}:"));
    let done = program("prlimit", &["--pid", &process, &size]).await;
    done.map(drop).context("prlimit of util-linux")
}

fn load(server: &Server, user: &str) -> Load {
    Load::on(server.http, "/a", user).pause(5)
}

/// Different users make calls, and a user who has used up everything stays refused.
async fn answers(server: &Server, rng: &mut Rng) -> Result<Account> {
    let users = (0..USERS)
        .map(|_| rng.next().to_string())
        .collect::<Vec<_>>();
    let many = Load {
        users,
        ..load(server, "").clients(4).pause(1)
    };
    let many = many.length(700).start(rng);
    let before = load(server, "before").length(700).run(rng).await?;
    let mut account = many.finish().await?;
    let (most, again) = (
        account.per_user().into_values().max().unwrap_or(0),
        before.allowed(),
    );
    ensure!(
        again == 0 && most <= 5,
        "{again} of 0, {most} of 5; {account}"
    );
    account.add(before);
    account.is_documented()?;
    let verdicts = account.kinds(Kind::Allowed) + account.kinds(Kind::Refused);
    ensure!(
        verdicts == account.calls.len() && account.degraded() == 0,
        "not all are answered: {account}"
    );
    Ok(account)
}

/// Waits until health says degraded, and returns what it says.
async fn is_degraded(server: &Server, rng: &mut Rng) -> Result<String> {
    wait("both failures are in health", SOON, async || {
        // A snapshot is written only after a change.
        drop(load(server, "other").length(20).run(rng).await);
        let health = server.health().await.ok()?.to_string();
        let both = health.contains("snapshot_failure") && health.contains("decision_log_failing");
        (both && health.contains("\"status\":\"degraded\"")).then_some(health)
    })
    .await
}

/// Waits for two snapshots: the second began after this was called.
async fn snapshots(server: &Server, rng: &mut Rng) -> Result<()> {
    let count = async || server.metric("quell_snapshots_total").await;
    let before = count().await?;
    wait("two snapshots are written", SOON, async || {
        // A snapshot is written only after a change.
        let user = rng.next().to_string();
        drop(load(server, &user).length(20).run(rng).await);
        (count().await.ok()? > before + 1.5).then_some(())
    })
    .await
}
