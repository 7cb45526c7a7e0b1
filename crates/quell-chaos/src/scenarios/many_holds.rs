//! A key with almost as many holds as a key may have.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::redis::Redis;
use crate::resp::{Reply, Resp, frame};
use crate::rng::Rng;
use crate::server::Server;

const RULES: &str = "
domain: d
defaults: { on_failure: deny }
rules:
  - { name: jobs, match: { path: /jobs }, algorithm: concurrency, max: 990, lease: 1h }
";

/// Number of permits that are held. A key has at most 1,000 holds.
const HELD: usize = 990;

/// The longest that a script may block the store, on a machine that also does other work.
const LONGEST_US: i64 = 100_000;

/// The longest that a script may take on average.
const MEAN_US: f64 = 20_000.0;

pub(crate) async fn run(rng: &mut Rng) -> Result<String> {
    let redis = Redis::start(&[
        "--slowlog-log-slower-than",
        "0",
        "--slowlog-max-len",
        "5000",
    ])
    .await?;
    let words = ["--store", &redis.url(), "--store-timeout", "30s"];
    let server = Server::start(RULES, &words).await?;
    let begun = Instant::now();
    let mut stream = Resp::connect(server.resp).await?;
    let mut held = 0;
    while held < HELD {
        ensure!(
            begun.elapsed() < Duration::from_secs(100),
            "{held} held after 100 s"
        );
        let mut batch = Vec::new();
        let count = 30.min(HELD - held);
        for at in held..held + count {
            let (id, lease) = (
                format!("h{at}"),
                rng.within(1_000_000..3_600_000).to_string(),
            );
            batch.extend(frame(&["QUELL.RESERVE", "d", &id, &lease, "path", "/jobs"]));
        }
        stream.send(&batch).await?;
        for _ in 0..count {
            let reply = stream.read().await?;
            ensure!(
                reply.field("allowed") == Some(&Reply::Number(1)),
                "{reply:?}"
            );
        }
        held += count;
    }
    let filled = begun.elapsed();
    let after_filling = script_mean(&redis).await?;
    redis.command(&["CONFIG", "RESETSTAT"]).await?;
    for call in 0..60 {
        let words: &[&str] = match call % 3 {
            0 => &["QUELL.PEEK", "d", "path", "/jobs"],
            1 => &["QUELL.RESERVE", "d", "one-more", "1000", "path", "/jobs"],
            _ => &["QUELL.RELEASE", "d", &format!("h{call}")],
        };
        stream.command(words).await?;
        if call % 3 == 2 {
            let id = format!("again{call}");
            stream
                .command(&["QUELL.RESERVE", "d", &id, "3600000", "path", "/jobs"])
                .await?;
        }
    }
    let mean = script_mean(&redis).await?;
    let longest = longest(&redis).await?;
    ensure!(
        longest < LONGEST_US,
        "a script took {longest} us; {mean:.0} us on average"
    );
    ensure!(mean < MEAN_US, "a script takes {mean:.0} us on average");
    Ok(format!(
        "{held} held in {filled:.1?} ({after_filling:.0} us each), then {mean:.0} us a script, the longest {longest} us"
    ))
}

/// Time of the slowest command, in microseconds.
async fn longest(redis: &Redis) -> Result<i64> {
    let Reply::List(entries) = redis.command(&["SLOWLOG", "GET", "-1"]).await? else {
        bail!("SLOWLOG GET does not return a list");
    };
    let took = entries.iter().filter_map(|entry| match entry {
        Reply::List(fields) => match fields.get(2) {
            Some(Reply::Number(took)) => Some(*took),
            _ => None,
        },
        _ => None,
    });
    took.max().context("nothing was slow enough to be listed")
}

/// Mean time of a script, in microseconds.
async fn script_mean(redis: &Redis) -> Result<f64> {
    let stats = redis.command(&["INFO", "commandstats"]).await?.text();
    let number = |line: &str, name: &str| -> Option<f64> {
        let (_, rest) = line.split_once(name)?;
        rest.split([',', '\r']).next()?.parse().ok()
    };
    let (mut calls, mut spent) = (0.0, 0.0);
    let scripts = stats
        .lines()
        .filter(|line| line.starts_with("cmdstat_eval"));
    for line in scripts {
        calls += number(line, "calls=").context("no calls=")?;
        spent += number(line, "usec=").context("no usec=")?;
    }
    ensure!(calls > 0.0, "no script was called: {stats}");
    Ok(spent / calls)
}
