//! An outage in which clients invent keys.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use quell_testkit::proxy::{Fault, Proxy};
use tokio::task::JoinSet;

use crate::process::wait;
use crate::redis::Redis;
use crate::resp::{Reply, Resp, frame};
use crate::rng::Rng;
use crate::server::Server;

const RULES: &str = "
domain: d
defaults: { on_failure: share, nodes: 1 }
rules:
  - { name: users, match: { path: /a }, per: [user], rate: 100/h }
";

const MIB: u64 = 1 << 20;

/// How much more memory an outage may take: 64 MiB of keys, and the process's other needs.
const MOST: u64 = 90 * MIB;

/// Bytes of keys that the clients send.
const SENT: u64 = 120 * MIB;

pub(crate) async fn run(rng: &mut Rng) -> Result<String> {
    let redis = Redis::start(&[]).await?;
    let proxy = Proxy::seeded(redis.port, rng.next());
    let server = Server::start(RULES, &["--store", &proxy.redis_url()]).await?;
    server.is_status("ok", Duration::from_secs(20)).await?;
    let length = usize::try_from(rng.within(6_000..8_000))?;
    let keys = usize::try_from(SENT)? / length;
    let before = server.process.memory("VmRSS");
    proxy.set(Fault::Refuse);
    let mut tasks: JoinSet<Result<usize>> = JoinSet::new();
    for client in 0..4 {
        let port = server.resp;
        tasks.spawn(async move {
            let (mut stream, mut allowed) = (Resp::connect(port).await?, 0);
            let padding = "x".repeat(length);
            for batch in 0..keys / 4 / 16 {
                let mut bytes = Vec::new();
                for call in 0..16 {
                    let user = format!("{client}-{batch}-{call}-{padding}");
                    bytes.extend(frame(&["QUELL.ACQUIRE", "d", "path", "/a", "user", &user]));
                }
                stream.send(&bytes).await?;
                for _ in 0..16 {
                    let reply = stream.read().await?;
                    ensure!(!matches!(reply, Reply::Error(_)), "{reply:?}");
                    allowed += usize::from(reply.field("allowed") == Some(&Reply::Number(1)));
                }
            }
            Ok(allowed)
        });
    }
    let mut allowed = 0;
    while let Some(done) = tasks.join_next().await {
        allowed += done??;
    }
    let grown = server.process.memory("VmRSS").saturating_sub(before);
    ensure!(allowed > 0, "no call was admitted");
    ensure!(
        grown <= MOST,
        "{} MiB for {keys} keys of {length} bytes; at most {} MiB",
        grown / MIB,
        MOST / MIB
    );
    proxy.set(Fault::None);
    let back = Instant::now();
    let paid = async || {
        let owed = server.metric("quell_store_owed_keys").await.ok()?;
        (owed < 0.5).then_some(())
    };
    wait("all is paid", Duration::from_secs(60), paid).await?;
    let took = back.elapsed();
    let stays = server.process.memory("VmRSS").saturating_sub(before);
    Ok(format!(
        "{keys} keys of {length} bytes, {allowed} let pass: {} MiB more, {} MiB when all is paid {took:.1?} later",
        grown / MIB,
        stays / MIB
    ))
}
