//! Two versions of one limit in force at the same time, as in every rolling deploy.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::load::Load;
use crate::redis::Redis;
use crate::resp::{Reply, Resp};
use crate::rng::Rng;
use crate::server::Server;

/// Each algorithm, and how many units per second its larger version refills.
const ALGORITHMS: [(&str, &str, u64); 5] = [
    ("/fixed", "algorithm: fixed_window, limit: N/h", 0),
    ("/window", "algorithm: sliding_window, limit: N/h", 0),
    ("/log", "algorithm: sliding_log, limit: N/h", 0),
    ("/bucket", "rate: 10/s, burst: N", 10),
    (
        "/leaky",
        "algorithm: leaky_bucket, rate: 10/s, burst: N",
        10,
    ),
];

fn rules(limit: u64, store: bool) -> String {
    let failure = if store {
        "defaults: { on_failure: deny }\n"
    } else {
        ""
    };
    let rule = |(path, fields, _): &(&str, &str, u64)| {
        let fields = fields.replace('N', &limit.to_string());
        let name = &path[1..];
        format!("  - {{ name: {name}, match: {{ path: {path} }}, per: [user], {fields} }}\n")
    };
    let rules: String = ALGORITHMS.iter().map(rule).collect();
    format!("domain: d\n{failure}rules:\n{rules}")
}

pub(crate) async fn run(rng: &mut Rng) -> Result<String> {
    let large = rng.within(40..90);
    let small = rng.within(large / 4..large * 3 / 4);
    let redis = Redis::start(&[]).await?;
    let url = redis.url();
    let store = ["--store", &url, "--store-timeout", "10s"];
    let one = Server::start(&rules(large, true), &store).await?;
    let other = Server::start(&rules(small, true), &store).await?;
    let ports = vec![one.http, other.http];
    let shared = hammer(ports, large, rng, || Ok(())).await;
    let shared = shared.context("two servers on one store")?;

    let memory = Server::start(&rules(large, false), &[]).await?;
    let mut is_small = false;
    let reloaded = hammer(vec![memory.http], large, rng, || {
        is_small = !is_small;
        memory.write_rules(&rules(if is_small { small } else { large }, false))
    });
    let reloaded = reloaded.await.context("a file that changes")?;

    let mut calls = Vec::new();
    for (name, port) in [("memory", memory.resp), ("store", one.resp)] {
        let admitted = in_turn(port).await?;
        ensure!(
            admitted <= 20,
            "CL.THROTTLE in turn, {name}: {admitted} of 20"
        );
        calls.push(format!("{name} {admitted} of 20"));
    }
    Ok(format!(
        "{large} beside {small}: store {shared}; reloads {reloaded}; CL.THROTTLE {}",
        calls.join(", ")
    ))
}

/// Sends calls for every algorithm in parallel, and runs an action every 100 ms. Returns what was
/// admitted.
async fn hammer(
    ports: Vec<u16>,
    limit: u64,
    rng: &mut Rng,
    mut meanwhile: impl FnMut() -> Result<()>,
) -> Result<String> {
    let start = Instant::now();
    let mut running = Vec::new();
    for (path, _, _) in ALGORITHMS {
        let load = Load::on(ports[0], path, "u").clients(2).pause(3);
        let ports = ports.clone();
        running.push(Load { ports, ..load }.length(3_000).start(rng));
    }
    while start.elapsed() < Duration::from_secs(3) {
        meanwhile()?;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let (mut said, mut broken) = (Vec::new(), Vec::new());
    for ((path, _, per_second), load) in ALGORITHMS.into_iter().zip(running) {
        let account = load.finish().await?;
        account.is_documented()?;
        let most = limit as f64 + per_second as f64 * account.length().as_secs_f64();
        let admitted = account.allowed();
        let text = format!("{} {admitted} of {most:.1}", &path[1..]);
        if admitted as f64 > most {
            broken.push(format!("{text} ({account})"));
        }
        said.push(text);
    }
    ensure!(
        broken.is_empty(),
        "admitted too much: {}",
        broken.join("; ")
    );
    Ok(said.join(", "))
}

/// Calls for one key that carry different numbers, in turn.
async fn in_turn(port: u16) -> Result<i64> {
    let mut stream = Resp::connect(port).await?;
    let mut admitted = 0;
    for _ in 0..20 {
        for (burst, quantity) in [("19", 20), ("9", 10)] {
            let words = [
                "CL.THROTTLE",
                "k",
                burst,
                "1",
                "3600",
                &quantity.to_string(),
            ];
            let reply = stream.command(&words).await?;
            let Reply::List(numbers) = &reply else {
                anyhow::bail!("{reply:?}");
            };
            if numbers.first() == Some(&Reply::Number(0)) {
                admitted += quantity;
            }
        }
    }
    Ok(admitted)
}
