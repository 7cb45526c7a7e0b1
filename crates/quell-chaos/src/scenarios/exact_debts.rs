//! Outages under load; once all debts are paid, the store's own count must match the admitted
//! calls.
//!
//! The limits are so large that no call is refused: the store must count each admitted call exactly
//! once. Only calls that were on their way when the store was lost may be missing.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use quell_testkit::proxy::{Fault, Proxy};

use crate::load::Load;
use crate::process::wait;
use crate::redis::Redis;
use crate::rng::Rng;
use crate::server::Server;

const LIMIT: usize = 1_000_000;

const RULES: &str = "
domain: d
defaults: { on_failure: share, nodes: 1 }
rules:
  - { name: fixed, match: { path: /fixed }, per: [user], algorithm: fixed_window, limit: 1000000/day }
  - { name: window, match: { path: /window }, per: [user], algorithm: sliding_window, limit: 1000000/day }
";

const PATHS: [&str; 2] = ["/fixed", "/window"];

const CLIENTS: usize = 3;

/// How long after its return the store may still be taken for lost.
const FOUND: Duration = Duration::from_secs(4);

/// How the store is lost.
#[derive(Clone, Copy, Debug)]
enum Loss {
    Network(Fault),
    Frozen,
    Refuses(&'static str, &'static str, &'static str),
}

impl Loss {
    /// Whether every call that was sent was charged, so that no call is uncertain.
    fn is_exact(self) -> bool {
        matches!(self, Self::Network(Fault::LoseAnswers) | Self::Refuses(..))
    }
}

const LOSSES: [Loss; 7] = [
    Loss::Network(Fault::Refuse),
    Loss::Network(Fault::Lose),
    Loss::Network(Fault::LoseAnswers),
    Loss::Network(Fault::Cut),
    Loss::Frozen,
    Loss::Refuses("min-replicas-to-write", "1", "0"),
    Loss::Refuses("maxmemory", "1", "0"),
];

pub(crate) async fn run(rng: &mut Rng) -> Result<String> {
    let redis = Redis::start(&[]).await?;
    let proxy = Proxy::seeded(redis.port, rng.next());
    let server = Server::start(RULES, &["--store", &proxy.redis_url()]).await?;
    server.is_status("ok", Duration::from_secs(20)).await?;
    let mut losses = LOSSES.to_vec();
    let mut summary = Vec::new();
    for _ in 0..2 {
        let at = usize::try_from(rng.within(0..losses.len() as u64))?;
        let loss = losses.swap_remove(at);
        let text = outage(&redis, &proxy, &server, loss, rng).await;
        summary.push(text.with_context(|| format!("{loss:?}"))?);
    }
    Ok(summary.join("; "))
}

/// Loses the store under load, and compares the counts once it is back.
async fn outage(
    redis: &Redis,
    proxy: &Proxy,
    server: &Server,
    loss: Loss,
    rng: &mut Rng,
) -> Result<String> {
    let user = rng.next().to_string();
    let load = |path| {
        let load = Load::on(server.http, path, &user).clients(CLIENTS);
        load.pause(10).length(1_300)
    };
    let running = PATHS.map(|path| load(path).start(rng));
    tokio::time::sleep(Duration::from_millis(rng.within(100..400))).await;
    let begun = Instant::now();
    match loss {
        Loss::Network(fault) => proxy.set(fault),
        Loss::Frozen => redis.freeze(),
        Loss::Refuses(name, on, _) => redis.configure(name, on).await?,
    }
    let mut times = vec![];
    if !matches!(loss, Loss::Refuses(..)) {
        times.push(server.loses_store(begun, Duration::from_secs(1)).await?);
    }
    let mut accounts = Vec::new();
    for load in running {
        let account = load.finish().await?;
        times.extend(account.given_up());
        accounts.push(account);
    }
    // All calls have ended: those that are not answered by now never will be.
    match loss {
        Loss::Network(_) => {
            proxy.set(Fault::Refuse);
            tokio::time::sleep(Duration::from_millis(20)).await;
            proxy.set(Fault::None);
        }
        Loss::Frozen => redis.thaw(),
        Loss::Refuses(name, _, off) => redis.configure(name, off).await?,
    }
    server.has_paid(FOUND).await?;
    let mut text = format!("{loss:?}");
    for (path, account) in PATHS.into_iter().zip(accounts) {
        let admitted = account.allowed();
        let all = account.calls.len();
        let uncertain = if loss.is_exact() {
            0
        } else {
            account.on_the_way(&times)
        };
        ensure!(admitted == all, "some calls were refused: {account}");
        ensure!(account.degraded() > 0, "no outage was noticed: {account}");
        let used = used(server, path, &user).await?;
        ensure!(
            used <= admitted && used + uncertain >= admitted,
            "{path}: {admitted} were admitted, {uncertain} of them perhaps on their way, and the store \
             counts {used}; {account}"
        );
        text.push_str(&format!(", {used} of {admitted} ({uncertain} uncertain)"));
    }
    Ok(text)
}

/// What the store has counted, once the server asks it again.
async fn used(server: &Server, path: &str, user: &str) -> Result<usize> {
    wait("the store is asked again", FOUND, async || {
        server.used(path, user, LIMIT).await.ok()
    })
    .await
}
