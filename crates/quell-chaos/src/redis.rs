//! Real stores: Redis servers, sentinels that watch them, and clusters.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use crate::process::{PATIENCE, Process, free_port, run, wait};
use crate::proxy::Proxy;
use crate::resp::{Reply, command};
use crate::rng::Rng;
use crate::wall_clock::WallClock;

/// How long a store may take to answer an operator's command.
const SOON: Duration = Duration::from_secs(30);

/// What servers of a store are started with, for faults that need it.
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
    process: Process,
    pub(crate) port: u16,
    words: Vec<String>,
    pub(crate) clock: Option<WallClock>,
    pub(crate) proxy: Option<Proxy>,
}

/// Names of states are not text, so the script finds them inside the store.
const SPOIL: &str = "
local count = 0
for _, key in ipairs(redis.call('KEYS', 'quell:1:{*')) do
    redis.call('DEL', key)
    redis.call(ARGV[1], key, ARGV[2])
    count = count + 1
end
return count";

impl Redis {
    pub(crate) async fn start(words: &[&str]) -> Result<Self> {
        Self::start_with("", words).await
    }

    /// Starts a server that first reads this configuration; it may write its own configuration there.
    pub(crate) async fn start_with(configuration: &str, words: &[&str]) -> Result<Self> {
        Self::launch(None, configuration, words).await
    }

    async fn start_by(extras: Extras, words: &[&str], rng: &mut Rng) -> Result<Self> {
        let clock = extras.clocks.then(WallClock::new).transpose()?;
        let mut redis = Self::launch(clock, "", words).await?;
        if extras.proxies {
            redis.proxy = Some(Proxy::start(redis.port, rng).await?);
        }
        Ok(redis)
    }

    async fn launch(clock: Option<WallClock>, configuration: &str, words: &[&str]) -> Result<Self> {
        for _ in 0..5 {
            let port = free_port()?;
            let folder = tempfile::tempdir()?;
            fs::write(folder.path().join("redis.conf"), configuration)?;
            let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
            let command = launch(port, &folder, &words, clock.as_ref())?;
            let mut redis = Self {
                process: Process::start(command, folder)?,
                port,
                words,
                clock: clock.clone(),
                proxy: None,
            };
            if redis.is_up().await? {
                return Ok(redis);
            }
        }
        bail!("cannot start a redis-server");
    }

    /// Whether it is up; false if it ended at once because its port was taken.
    async fn is_up(&mut self) -> Result<bool> {
        wait("redis-server answers", PATIENCE, async || {
            if self.process.end().is_some() {
                return Some(false);
            }
            let pong = command(self.port, &["PING"], SOON).await;
            pong.is_ok().then_some(true)
        })
        .await
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.front())
    }

    /// The port at which others find it.
    fn front(&self) -> u16 {
        self.proxy.as_ref().map_or(self.port, |proxy| proxy.port)
    }

    /// Sends one command; an error reply is an error.
    pub(crate) async fn command(&self, words: &[&str]) -> Result<Reply> {
        command(self.port, words, SOON).await
    }

    /// Overwrites every state with garbage, by a command and the word after the key. Returns the
    /// number of states.
    pub(crate) async fn spoil(&self, garbage: [&str; 2]) -> Result<u64> {
        let words = [&["EVAL", SPOIL, "0"][..], &garbage].concat();
        Ok(self.command(&words).await?.text().parse()?)
    }

    /// Changes one setting of its configuration.
    pub(crate) async fn configure(&self, name: &str, value: &str) -> Result<()> {
        self.command(&["CONFIG", "SET", name, value]).await?;
        Ok(())
    }

    /// Freezes it: it neither answers nor closes its connections.
    pub(crate) fn freeze(&self) -> Result<()> {
        self.process.signal("STOP")
    }

    pub(crate) fn thaw(&self) -> Result<()> {
        self.process.signal("CONT")
    }

    pub(crate) fn crash(&mut self) {
        self.process.crash();
    }

    /// Kills it, and starts it again, empty, on the same port, and at its place in a cluster.
    pub(crate) async fn start_again(&mut self) -> Result<()> {
        self.crash();
        let folder = tempfile::tempdir()?;
        fs::write(folder.path().join("redis.conf"), "")?;
        let nodes = self.process.folder().join("nodes.conf");
        if nodes.is_file() {
            fs::copy(nodes, folder.path().join("nodes.conf"))?;
        }
        let command = launch(self.port, &folder, &self.words, self.clock.as_ref())?;
        self.process = Process::start(command, folder)?;
        ensure!(self.is_up().await?, "it does not start again");
        Ok(())
    }

    /// The port of its primary, if it is a replica.
    pub(crate) async fn primary(&self) -> Option<u16> {
        let role = self.command(&["ROLE"]).await.ok()?.text();
        let mut lines = role.lines();
        (lines.next()? == "slave").then(|| lines.nth(1)?.parse().ok())?
    }

    /// Waits until a replica has everything that its primary had.
    pub(crate) async fn follows(&self) -> Result<()> {
        self.says(&["INFO", "replication"], "master_link_status:up")
            .await
    }

    /// Waits until its reply to a command contains these words.
    pub(crate) async fn says(&self, words: &[&str], what: &str) -> Result<()> {
        let awaited = format!("{words:?} says {what:?}");
        wait(&awaited, PATIENCE, async || {
            let reply = self.command(words).await.ok()?;
            reply.text().contains(what).then_some(())
        })
        .await
    }
}

fn launch(
    port: u16,
    folder: &TempDir,
    words: &[String],
    clock: Option<&WallClock>,
) -> Result<Command> {
    let folder = folder.path();
    let mut command = Command::new("redis-server");
    command.arg(folder.join("redis.conf"));
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--dir"]);
    command.arg(folder);
    if !words.iter().any(|word| word == "--sentinel") {
        command.args(["--save", "", "--enable-debug-command", "yes"]);
    }
    command.args(words);
    if let Some(clock) = clock {
        clock.give_to(&mut command)?;
    }
    Ok(command)
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
                let redis = Redis::start_by(extras, &[], rng).await?;
                (redis.url(), vec![redis])
            }
            "sentinel" => {
                let watched = Watched::start(extras, rng).await?;
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
pub(crate) struct Watched {
    pub(crate) primary: Redis,
    pub(crate) replica: Redis,
    pub(crate) sentinels: Vec<Redis>,
}

impl Watched {
    /// The primary is started with these extras.
    pub(crate) async fn start(extras: Extras, rng: &mut Rng) -> Result<Self> {
        let primary = Redis::start_by(extras, &[], rng).await?;
        let port = primary.front().to_string();
        let replica = Redis::start(&["--replicaof", "127.0.0.1", &port]).await?;
        replica.follows().await?;
        let configuration = format!(
            "sentinel monitor shop 127.0.0.1 {port} 2\n\
             sentinel down-after-milliseconds shop 1000\n\
             sentinel failover-timeout shop 5000\n"
        );
        let mut sentinels = Vec::new();
        for _ in 0..3 {
            sentinels.push(Redis::start_with(&configuration, &["--sentinel"]).await?);
        }
        for sentinel in &sentinels {
            for found in ["num-slaves\n1", "num-other-sentinels\n2"] {
                sentinel
                    .says(&["SENTINEL", "MASTER", "shop"], found)
                    .await?;
            }
        }
        Ok(Self {
            primary,
            replica,
            sentinels,
        })
    }

    pub(crate) fn url(&self) -> String {
        let hosts = self.sentinels.iter();
        let hosts: Vec<String> = hosts.map(|one| format!("127.0.0.1:{}", one.port)).collect();
        format!("redis+sentinel://{}/0?master=shop", hosts.join(","))
    }
}

/// Three primaries with a replica each.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) servers: Vec<Redis>,
}

impl Cluster {
    pub(crate) async fn start(extras: Extras, rng: &mut Rng) -> Result<Self> {
        let words = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1500"];
        let mut servers = Vec::new();
        for _ in 0..6 {
            servers.push(Redis::start_by(extras, &words, rng).await?);
        }
        let hosts: Vec<String> = servers
            .iter()
            .map(|one| format!("127.0.0.1:{}", one.port))
            .collect();
        let mut words = vec!["--cluster", "create"];
        words.extend(hosts.iter().map(String::as_str));
        words.extend(["--cluster-replicas", "1", "--cluster-yes"]);
        run("redis-cli", &words)
            .await
            .context("redis-cli of Debian's redis-tools")?;
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
                server.says(&["CLUSTER", "NODES"], &front).await?;
            }
            server
                .says(&["CLUSTER", "INFO"], "cluster_state:ok")
                .await?;
            if !is_primary(server).await {
                server.follows().await?;
            }
        }
        Ok(cluster)
    }

    pub(crate) fn url(&self) -> String {
        format!("redis+cluster://127.0.0.1:{}", self.servers[0].front())
    }
}

/// Whether a server says that it is a primary.
pub(crate) async fn is_primary(server: &Redis) -> bool {
    let role = server.command(&["ROLE"]).await;
    role.is_ok_and(|role| role.text().starts_with("master"))
}
