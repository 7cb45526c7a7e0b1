//! A store that fails and returns while its limit refills.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use quell_testkit::proxy::{Fault, Proxy};

use crate::load::Load;
use crate::redis::Redis;
use crate::rng::Rng;
use crate::server::Server;

const RULES: &str = "
domain: d
defaults: { on_failure: share, nodes: 1 }
rules:
  - { name: users, match: { path: /a }, per: [user], rate: 20/s, burst: 200 }
";

const CLIENTS: usize = 4;

/// How long a store that is back may still be taken for lost, or be owed.
const PAID: Duration = Duration::from_secs(4);

pub(crate) async fn run(rng: &mut Rng) -> Result<String> {
    let redis = Redis::start(&[]).await?;
    let proxy = Proxy::seeded(redis.port, rng.next());
    let server = Server::start(RULES, &["--store", &proxy.redis_url()]).await?;
    let load = Load::on(server.http, "/a", "u").clients(CLIENTS).pause(10);
    let load = load.length(7_500).start(rng);
    let mut times = Vec::new();
    for _ in 0..2 {
        // A payment without an answer would come on top.
        server.has_paid(PAID).await?;
        tokio::time::sleep(Duration::from_millis(rng.within(0..300))).await;
        let begun = Instant::now();
        proxy.set(rng.pick(&[Fault::Refuse, Fault::Stall, Fault::Lose, Fault::LoseAnswers]));
        times.push(server.loses_store(begun, Duration::from_secs(2)).await?);
        tokio::time::sleep(Duration::from_millis(rng.within(1_200..1_800))).await;
        // A call that has no answer by now never gets one: its connection ends.
        proxy.set(Fault::Refuse);
        tokio::time::sleep(Duration::from_millis(20)).await;
        proxy.set(Fault::None);
    }
    let account = load.finish().await?;
    account.is_documented()?;
    times.extend(account.given_up());
    let (seconds, uncertain) = (account.length().as_secs_f64(), account.on_the_way(&times));
    let promised = 200.0 + 20.0 * seconds;
    let admitted = account.allowed();
    ensure!(
        admitted as f64 <= promised + uncertain as f64,
        "{admitted} of {promised:.0} in {seconds:.1} s, and {uncertain} perhaps on their way; {account}"
    );
    ensure!(account.degraded() > 0, "no outage was noticed; {account}");
    Ok(format!(
        "{admitted} of {promised:.0} in {seconds:.1} s, {uncertain} perhaps on their way; {account}"
    ))
}
