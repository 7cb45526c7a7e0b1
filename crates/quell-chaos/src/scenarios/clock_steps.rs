//! A wall clock that is set ahead and back while a server runs on memory.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use quell_testkit::wall_clock::WallClock;
use serde_json::json;

use crate::load::{Kind, Load};
use crate::process::wait;
use crate::rng::Rng;
use crate::server::{Server, quell};

const LIMIT: usize = 20;

const RULES: &str = "
domain: d
rules:
  - { name: daily, match: { path: /daily }, per: [user], algorithm: fixed_window, limit: 20/day, align: calendar }
  - { name: fixed, match: { path: /fixed }, per: [user], algorithm: fixed_window, limit: 20/h }
  - { name: window, match: { path: /window }, per: [user], algorithm: sliding_window, limit: 20/h }
  - { name: log, match: { path: /log }, per: [user], algorithm: sliding_log, limit: 20/h }
  - { name: bucket, match: { path: /bucket }, per: [user], rate: 20/h }
  - { name: quick, match: { path: /quick }, per: [user], rate: 20/s }
";

/// Paths of limits that refill nothing during this run, with the time of a full refill in minutes; a sliding
/// window counts up to a tenth longer.
const PATHS: [(&str, u64); 5] = [
    ("/daily", 1_440),
    ("/fixed", 60),
    ("/window", 66),
    ("/log", 60),
    ("/bucket", 60),
];

const DAY: i64 = 86_400;

pub(crate) async fn run(rng: &mut Rng) -> Result<String> {
    let clock = WallClock::new();
    let mut command = Command::new(quell()?);
    clock.give_to(&mut command);
    let server = Server::start_by(command, RULES, &[]).await?;
    let mut admitted = [0; PATHS.len()];
    let (mut offset, mut ahead) = (0, 0);
    let mut steps = vec![0];
    for round in 0..6 {
        ask(&server, &mut admitted, rng).await?;
        for ((path, _), admitted) in PATHS.iter().zip(admitted) {
            let days = if *path == "/daily" { 1 + ahead } else { 1 };
            let most = LIMIT * days;
            ensure!(
                admitted <= most,
                "{path}: {admitted} of {most} after steps to {steps:?} s"
            );
        }
        let step = match rng.within(0..4) {
            // Every run sets the clock ahead and back by a day.
            _ if round < 2 => [DAY, -DAY][round],
            0 => -i64::try_from(rng.within(1..400_000))?,
            1 => -DAY,
            2 => DAY,
            _ => i64::try_from(rng.within(1..400_000))?,
        };
        offset += step;
        ahead += usize::from(step > 0);
        clock.set(offset as f64);
        steps.push(offset);
    }
    let panics = server.logged("panicked");
    ensure!(panics == 0, "{}", server.process.stderr());
    let admitted: Vec<String> = PATHS
        .iter()
        .zip(admitted)
        .map(|((path, _), admitted)| format!("{} {admitted}", &path[1..]))
        .collect();
    Ok(format!(
        "admitted of {LIMIT} (daily of {}): {}; steps to {steps:?} s",
        LIMIT * (1 + ahead),
        admitted.join(", ")
    ))
}

/// Uses up all limits, and checks how long each of them is to stay used up.
async fn ask(server: &Server, admitted: &mut [usize], rng: &mut Rng) -> Result<()> {
    for ((path, minutes), admitted) in PATHS.iter().zip(admitted) {
        let mut is_used_up = false;
        // A slow machine may need several rounds to make as many calls as the limit allows.
        for _ in 0..50 {
            let account = Load::on(server.http, path, "u").length(80).run(rng).await?;
            account.is_documented()?;
            *admitted += account.allowed();
            is_used_up = account.kinds(Kind::Refused) > 0;
            if is_used_up {
                break;
            }
        }
        ensure!(is_used_up, "{path}: nothing is refused");
        let entries = json!({"path": path, "user": "u"});
        let body = json!({"domain": "d", "entries": entries});
        let refused = server.client().post("/v1/acquire", &body).await?;
        let wait = refused.body["retry_after_ms"].as_u64();
        let is_soon = wait.is_some_and(|ms| ms <= minutes * 60_000);
        ensure!(is_soon, "{path} is locked for longer: {}", refused.text);
    }
    let quick = async || {
        let load = Load::on(server.http, "/quick", "u").length(50);
        (load.run(rng).await.ok()?.allowed() > 0).then_some(())
    };
    wait("a limit of 20/s passes", Duration::from_secs(5), quick).await
}
