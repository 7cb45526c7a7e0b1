//! A store that comes and goes while its limit refills.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::load::Load;
use crate::proxy::{Fault, Proxy};
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

/// Calls on their way when the store is lost count as charged, whether or not it heard of them: as
/// many as are asked at a time, and those that it takes to find it lost.
const ON_THE_WAY: usize = 5 + CLIENTS;

pub(crate) async fn run(rng: &mut Rng) -> Result<String> {
    let redis = Redis::start(&[]).await?;
    let proxy = Proxy::start(redis.port, rng).await?;
    let server = Server::start(RULES, &["--store", &proxy.url()]).await?;
    let load = Load::on(server.http, "/a", "u").clients(CLIENTS).pause(2);
    let load = load.length(7_000).start(rng);
    let mut faults = 0;
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(rng.within(100..900))).await;
        proxy.set(rng.pick(&[Fault::Refuse, Fault::Stall, Fault::Drop, Fault::DropAnswers]));
        faults += 1;
        tokio::time::sleep(Duration::from_millis(rng.within(300..1_800))).await;
        // What is not answered any more is not answered later either: the connection ends.
        proxy.set(Fault::Refuse);
        tokio::time::sleep(Duration::from_millis(20)).await;
        proxy.set(Fault::None);
    }
    let account = load.finish().await?;
    account.is_documented()?;
    let seconds = account.length().as_secs_f64();
    let most = 200.0 + 20.0 * seconds + (2 * faults * ON_THE_WAY) as f64;
    let admitted = account.allowed();
    ensure!(
        (admitted as f64) <= most,
        "{admitted} of {most:.0} in {seconds:.1} s with {faults} outages; {account}"
    );
    ensure!(account.degraded() > 0, "no outage was noticed; {account}");
    Ok(format!(
        "{admitted} of {most:.0} in {seconds:.1} s, {faults} outages; {account}"
    ))
}
