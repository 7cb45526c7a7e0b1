//! Faults of all kinds at random, over servers that share a store.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::load::{Account, Load};
use crate::process::wait;
use crate::proxy::{Fault, Proxy};
use crate::redis::Redis;
use crate::rng::Rng;
use crate::server::Server;

/// What every rule admits in an hour, so that nothing comes back here.
const LIMIT: usize = 300;

const PATHS: [(&str, &str); 4] = [
    ("/fixed", "algorithm: fixed_window, limit: 300/h"),
    ("/window", "algorithm: sliding_window, limit: 300/h"),
    ("/log", "algorithm: sliding_log, limit: 300/h"),
    ("/bucket", "rate: 12/h, burst: 300"),
];

/// Of each rule on each server.
const CLIENTS: usize = 2;

const USERS: usize = 2;

/// How long the weather is bad.
const BAD: Duration = Duration::from_secs(7);

/// How long all may take to be well again.
const WELL: Duration = Duration::from_secs(20);

/// Calls on their way count as charged, whether or not the store heard of them: as many as a server
/// has at a time, and those that it takes to find the store lost.
const ON_THE_WAY: usize = 5 + CLIENTS * PATHS.len();

struct Sky {
    redis: Redis,
    proxies: Vec<Proxy>,
    servers: Vec<Server>,
    events: usize,
    is_garbled: bool,
}

fn rules(nodes: usize) -> String {
    let rule = |(path, fields): &(&str, &str)| {
        let name = &path[1..];
        format!("  - {{ name: {name}, match: {{ path: {path} }}, per: [user], {fields} }}\n")
    };
    let rules: String = PATHS.iter().map(rule).collect();
    format!("domain: d\ndefaults: {{ on_failure: share, nodes: {nodes} }}\nrules:\n{rules}")
}

pub(crate) async fn run(rng: &mut Rng) -> Result<String> {
    let nodes = usize::try_from(rng.within(1..4))?;
    let redis = Redis::start(&[]).await?;
    let (mut proxies, mut servers) = (Vec::new(), Vec::new());
    for _ in 0..nodes {
        let proxy = Proxy::start(redis.port, rng).await?;
        servers.push(Server::start(&rules(nodes), &["--store", &proxy.url()]).await?);
        proxies.push(proxy);
    }
    let mut sky = Sky {
        redis,
        proxies,
        servers,
        events: 0,
        is_garbled: false,
    };
    let mut running = Vec::new();
    for (path, _) in PATHS {
        let load = Load {
            ports: sky.servers.iter().map(|server| server.http).collect(),
            users: (0..USERS).map(|user| format!("u{user}")).collect(),
            ..Load::on(0, path, "").clients(CLIENTS * nodes).pause(8)
        };
        running.push((path, load.length(9_000).start(rng)));
    }
    // All servers hear of all keys first.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let start = Instant::now();
    let mut events = Vec::new();
    while start.elapsed() < BAD {
        events.push(sky.event(rng).await.context("bad weather")?);
    }
    let events = events.join(", ");
    let mut all = Account::default();
    let most = LIMIT * (2 * nodes - 1) / nodes + sky.events * ON_THE_WAY;
    let mut worst = (0, String::new());
    for (path, load) in running {
        let account = load.finish().await?;
        account
            .is_documented()
            .with_context(|| format!("{path}; {events}"))?;
        for (user, admitted) in account.per_user() {
            worst = worst.max((admitted, format!("{path} {user}")));
        }
        all.add(account);
    }
    let (admitted, whose) = worst;
    let is_kept = sky.is_garbled || admitted <= most;
    ensure!(
        is_kept,
        "{whose}: {admitted} of {LIMIT}, at most {most} on {nodes} servers; {events}; {all}"
    );
    let took = sky.is_well(rng).await.with_context(|| events.clone())?;
    Ok(format!(
        "{nodes} servers, at most {admitted} of {LIMIT} ({most}), well after {took:.1?}; {all}; {events}"
    ))
}

impl Sky {
    /// Something goes wrong for a while.
    async fn event(&mut self, rng: &mut Rng) -> Result<String> {
        tokio::time::sleep(Duration::from_millis(rng.within(50..500))).await;
        let length = Duration::from_millis(rng.within(50..1_200));
        let at = usize::try_from(rng.within(0..self.proxies.len() as u64))?;
        self.events += 1;
        let what = match rng.within(0..9) {
            0 => {
                self.redis.freeze()?;
                tokio::time::sleep(length).await;
                self.redis.thaw()?;
                "freeze".to_owned()
            }
            1 => {
                self.redis.configure("min-replicas-to-write", "1").await?;
                tokio::time::sleep(length).await;
                self.redis.configure("min-replicas-to-write", "0").await?;
                "noreplicas".to_owned()
            }
            2 => {
                self.redis.configure("maxmemory", "1").await?;
                tokio::time::sleep(length).await;
                self.redis.configure("maxmemory", "0").await?;
                "oom".to_owned()
            }
            3 => {
                self.redis.command(&["SCRIPT", "FLUSH"]).await?;
                self.redis
                    .command(&["CLIENT", "KILL", "TYPE", "normal"])
                    .await?;
                "script flush, client kill".to_owned()
            }
            4 => {
                self.servers[at].process.signal("STOP")?;
                tokio::time::sleep(length).await;
                self.servers[at].process.signal("CONT")?;
                format!("server {at} frozen")
            }
            5 => {
                self.proxies[at].forget_connections();
                format!("connections of {at} forgotten")
            }
            _ => self.fault(at, length, rng).await,
        };
        Ok(format!("{what} {} ms", length.as_millis()))
    }

    /// A fault on the way of one server, or of all.
    async fn fault(&mut self, at: usize, length: Duration, rng: &mut Rng) -> String {
        let late = Duration::from_millis(rng.within(5..150));
        let fault = rng.pick(&[
            Fault::Delay(late),
            Fault::Stall,
            Fault::Drop,
            Fault::DropAnswers,
            Fault::Refuse,
            Fault::Garble,
            Fault::Split,
            Fault::Cut,
        ]);
        self.is_garbled |= fault == Fault::Garble;
        let all = rng.within(0..2) == 0;
        let chosen = |index: usize| all || index == at;
        for (index, proxy) in self.proxies.iter().enumerate() {
            if chosen(index) {
                proxy.set(fault);
                self.events += usize::from(index != at);
            }
        }
        tokio::time::sleep(length).await;
        for proxy in &self.proxies {
            proxy.set(Fault::None);
        }
        let whose = if all {
            "all".to_owned()
        } else {
            at.to_string()
        };
        format!("{fault:?} for {whose}")
    }

    /// Waits until every server is fine, answers by the store and owes nothing.
    async fn is_well(&mut self, rng: &mut Rng) -> Result<Duration> {
        let start = Instant::now();
        for server in &mut self.servers {
            let mut last = String::new();
            let seen = wait("all is well", WELL, async || {
                let load = Load::on(server.http, "/fixed", "new").pause(5).length(60);
                let account = load.run(rng).await.ok()?;
                let health = server.health().await.ok()?;
                last = format!("{account}; {health}");
                let is_fine = health["status"] == "ok" && health["store"]["owed_keys"] == 0;
                (account.degraded() == 0 && is_fine).then_some(())
            })
            .await;
            if let Err(error) = seen {
                bail!("{error}: {last}");
            }
            let panics = server.logged("panicked");
            ensure!(panics == 0, "{}", server.process.log());
        }
        Ok(start.elapsed())
    }
}
