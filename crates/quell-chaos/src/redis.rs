//! Real stores: Redis servers, sentinels that watch them, and clusters.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use anyhow::Result;
use quell_testkit::proxy::Proxy;
use quell_testkit::redis::{self as kit, Options};
use quell_testkit::wall_clock::WallClock;
use tokio::task::spawn_blocking;

use crate::process::{PATIENCE, wait};
use crate::resp::{Reply, command};
use crate::rng::Rng;

/// Longest time of a store's answer to an operator's command.
const SOON: Duration = Duration::from_secs(30);

/// Sentinels take a primary for gone after this silence.
const DOWN_AFTER: Duration = Duration::from_secs(1);

/// Options with which servers of a store are started, for faults that need it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Extras {
    /// Each has a clock of its own that can be set.
    pub(crate) clocks: bool,
    /// Each is found behind a proxy.
    pub(crate) proxies: bool,
}

/// One server.
#[derive(Debug)]
pub(crate) struct Redis {
    server: kit::Redis,
    pub(crate) port: u16,
    pub(crate) clock: Option<WallClock>,
    pub(crate) proxy: Option<Proxy>,
}

impl Deref for Redis {
    type Target = kit::Redis;

    fn deref(&self) -> &kit::Redis {
        &self.server
    }
}

impl DerefMut for Redis {
    fn deref_mut(&mut self) -> &mut kit::Redis {
        &mut self.server
    }
}

/// Every server is started with these.
fn options(words: &[&str], clock: Option<&WallClock>) -> Options {
    Options {
        clock: clock.cloned(),
        ..Options::words(&[words, &["--enable-debug-command", "yes"]].concat())
    }
}

impl Redis {
    pub(crate) async fn start(words: &[&str]) -> Result<Self> {
        Self::start_by(Extras::default(), words, None).await
    }

    async fn start_by(extras: Extras, words: &[&str], rng: Option<&mut Rng>) -> Result<Self> {
        let clock = extras.clocks.then(WallClock::new);
        let options = options(words, clock.as_ref());
        let server = spawn_blocking(|| kit::Redis::start_with(options)).await?;
        Ok(Self::new(server, clock, rng.filter(|_| extras.proxies)))
    }

    /// A server with this clock, behind a proxy that leaves its chances to `rng`.
    fn new(server: kit::Redis, clock: Option<WallClock>, rng: Option<&mut Rng>) -> Self {
        let port = server.port();
        Self {
            server,
            port,
            clock,
            proxy: rng.map(|rng| Proxy::seeded(port, rng.next())),
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.front())
    }

    /// The port at which others find it.
    fn front(&self) -> u16 {
        self.proxy.as_ref().map_or(self.port, Proxy::port)
    }

    /// Sends one command; an error reply is an error.
    pub(crate) async fn command(&self, words: &[&str]) -> Result<Reply> {
        command(self.port, words, SOON).await
    }

    /// Changes one setting of its configuration.
    pub(crate) async fn configure(&self, name: &str, value: &str) -> Result<()> {
        self.command(&["CONFIG", "SET", name, value]).await?;
        Ok(())
    }

    /// Kills it, and starts it again, empty, on the same port, and at its place in a cluster.
    pub(crate) fn start_again(&mut self) {
        tokio::task::block_in_place(|| self.server.restart());
    }

    /// The port of its primary, if it is a replica.
    pub(crate) async fn primary(&self) -> Option<u16> {
        let role = self.command(&["ROLE"]).await.ok()?.text();
        let mut lines = role.lines();
        (lines.next()? == "slave").then(|| lines.nth(1)?.parse().ok())?
    }

    /// Waits until its reply to a command contains these words.
    pub(crate) async fn wait_for_reply(&self, words: &[&str], what: &str) -> Result<()> {
        let awaited = format!("{words:?} says {what:?}");
        wait(&awaited, PATIENCE, async || {
            let reply = self.command(words).await.ok()?;
            reply.text().contains(what).then_some(())
        })
        .await
    }
}

/// A store of one kind.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) url: String,
    /// First the only server, or the primary, or those of a cluster; after them sentinels.
    pub(crate) servers: Vec<Redis>,
}

impl Store {
    pub(crate) async fn start(kind: &str, extras: Extras, rng: &mut Rng) -> Result<Self> {
        let (url, servers) = match kind {
            "redis" => {
                let redis = Redis::start_by(extras, &[], Some(rng)).await?;
                (redis.url(), vec![redis])
            }
            "sentinel" => {
                let watched = SentinelSetup::start(extras, rng).await?;
                let (url, mut servers) = (watched.url(), vec![watched.primary, watched.replica]);
                servers.extend(watched.sentinels);
                (url, servers)
            }
            _ => {
                let cluster = Cluster::start(extras, rng).await?;
                (cluster.url(), cluster.servers)
            }
        };
        Ok(Self { url, servers })
    }
}

/// A primary with a replica, watched by three sentinels.
#[derive(Debug)]
pub(crate) struct SentinelSetup {
    pub(crate) primary: Redis,
    pub(crate) replica: Redis,
    pub(crate) sentinels: Vec<Redis>,
    url: String,
}

impl SentinelSetup {
    /// The primary is started with these extras.
    pub(crate) async fn start(extras: Extras, rng: &mut Rng) -> Result<Self> {
        let primary = Redis::start_by(extras, &[], Some(rng)).await?;
        let front = primary.front();
        let Redis {
            server,
            clock,
            proxy,
            port,
        } = primary;
        let started =
            spawn_blocking(move || kit::sentinel::SentinelSetup::watch(server, front, DOWN_AFTER));
        let started = started.await?;
        let url = started.url();
        let plain = |server| Redis::new(server, None, None);
        Ok(Self {
            primary: Redis {
                server: started.primary,
                port,
                clock,
                proxy,
            },
            replica: plain(started.replica),
            sentinels: started.sentinels.into_iter().map(plain).collect(),
            url,
        })
    }

    pub(crate) fn url(&self) -> String {
        self.url.clone()
    }
}

/// Three primaries with a replica each.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) servers: Vec<Redis>,
}

impl Cluster {
    pub(crate) async fn start(extras: Extras, rng: &mut Rng) -> Result<Self> {
        let clocks: Vec<Option<WallClock>> =
            (0..6).map(|_| extras.clocks.then(WallClock::new)).collect();
        let own = clocks.clone();
        let started = spawn_blocking(move || {
            let words = ["--cluster-node-timeout", "1500"];
            kit::cluster::Cluster::start_by(1, |at| options(&words, own[at].as_ref()))
        });
        let mut servers = Vec::new();
        for (server, clock) in started.await?.servers.into_iter().zip(clocks) {
            servers.push(Redis::new(
                server,
                clock,
                extras.proxies.then_some(&mut *rng),
            ));
        }
        let cluster = Self { servers };
        for server in &cluster.servers {
            if server.proxy.is_some() {
                let front = server.front().to_string();
                server.configure("cluster-announce-port", &front).await?;
            }
        }
        for server in &cluster.servers {
            for other in &cluster.servers {
                let front = format!("127.0.0.1:{}@", other.front());
                server.wait_for_reply(&["CLUSTER", "NODES"], &front).await?;
            }
            server
                .wait_for_reply(&["CLUSTER", "INFO"], "cluster_state:ok")
                .await?;
        }
        Ok(cluster)
    }

    pub(crate) fn url(&self) -> String {
        format!("redis+cluster://127.0.0.1:{}", self.servers[0].front())
    }
}

/// Returns true if a server says that it is a primary.
pub(crate) async fn is_primary(server: &Redis) -> bool {
    let role = server.command(&["ROLE"]).await;
    role.is_ok_and(|role| role.text().starts_with("master"))
}
