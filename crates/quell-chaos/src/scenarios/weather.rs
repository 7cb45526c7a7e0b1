//! Random faults of all kinds, over servers that share a store.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use quell_testkit::proxy::{Fault, Proxy};

use crate::load::{Account, Kind, Load};
use crate::process::wait;
use crate::redis::Redis;
use crate::rng::Rng;
use crate::server::Server;

/// Number of calls that every rule admits in an hour, so that nothing refills during this run.
const LIMIT: usize = 300;

/// A limit that no user comes near: the store must count every admitted call.
const COUNTED: (&str, usize) = ("/counted", 1_000_000);

const PATHS: [(&str, &str); 5] = [
    ("/counted", "algorithm: fixed_window, limit: 1000000/h"),
    ("/fixed", "algorithm: fixed_window, limit: 300/h"),
    ("/window", "algorithm: sliding_window, limit: 300/h"),
    ("/log", "algorithm: sliding_log, limit: 300/h"),
    ("/bucket", "rate: 12/h, burst: 300"),
];

/// Clients for each rule on each server.
const CLIENTS: usize = 2;

const USERS: usize = 2;

/// Time for which faults are injected.
const BAD: Duration = Duration::from_secs(7);

/// Longest recovery: a store is found within a second, limits stay shared for two more, then payments end,
/// and health says degraded for five seconds and checks once a second.
const WELL: Duration = Duration::from_secs(12);

/// Time after a fault in which a server may still have calls on their way that were sent during it.
const LATE: Duration = Duration::from_millis(150);

struct Sky {
    /// True if every command to the store arrives and only answers suffer: then it is known which calls
    /// were charged.
    only_answers: bool,
    redis: Redis,
    proxies: Vec<Proxy>,
    servers: Vec<Server>,
    /// Times in which calls may have been on their way to a store that was lost.
    lost: Vec<(Instant, Instant)>,
    /// Times in which answers of the store were changed on their way.
    garbled: Vec<(Instant, Instant)>,
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
        let proxy = Proxy::seeded(redis.port, rng.next());
        servers.push(Server::start(&rules(nodes), &["--store", &proxy.redis_url()]).await?);
        proxies.push(proxy);
    }
    let mut sky = Sky {
        only_answers: rng.within(0..2) == 0,
        redis,
        proxies,
        servers,
        lost: Vec::new(),
        garbled: Vec::new(),
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
    // First all servers learn of all keys.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let start = Instant::now();
    let mut events = Vec::new();
    while start.elapsed() < BAD {
        events.push(sky.event(rng).await.context("bad weather")?);
    }
    let events = events.join(", ");
    let mut accounts = Vec::new();
    for (path, load) in running {
        let account = load.finish().await?;
        let documented = account.is_documented();
        documented.with_context(|| format!("{path}; {events}"))?;
        sky.lost.extend(account.given_up());
        accounts.push((path, account));
    }
    let took = sky.is_well(rng).await.with_context(|| events.clone())?;
    let worst = sky.holds(&accounts).await.with_context(|| events.clone())?;
    let harmed = match sky.only_answers {
        true => "only answers harmed",
        false => "anything harmed",
    };
    Ok(format!(
        "{nodes} servers, {harmed}, {worst}, well after {took:.1?}; {events}"
    ))
}

impl Sky {
    /// Checks that no user was admitted more often than is promised. Returns which user came closest to
    /// that.
    async fn holds(&self, accounts: &[(&str, Account)]) -> Result<String> {
        let nodes = self.servers.len();
        let mut unanswered = 0.0;
        for server in &self.servers {
            unanswered += server.metric("quell_store_unanswered_units_total").await?;
        }
        let mut worst = (f64::MIN, String::new());
        for (path, account) in accounts {
            for user in account.per_user().into_keys() {
                let calls = account.of(user);
                let admitted = calls.allowed();
                let uncertain = calls.on_the_way(&self.lost);
                // A key's debt cannot exceed the calls that were admitted for it without the store.
                let degraded = calls.count(|call| call.is_degraded && call.kind == Kind::Allowed);
                let unanswered = unanswered.min(degraded as f64);
                if *path == COUNTED.0 {
                    self.is_counted(user, &calls, uncertain, unanswered).await?;
                    continue;
                }
                // A garbled answer may say anything.
                let misread = match self.garbled.is_empty() {
                    true => 0,
                    false => calls.allowed_in(&self.garbled) + LIMIT,
                };
                let promised = LIMIT * (2 * nodes - 1) / nodes;
                let most = (promised + uncertain + misread) as f64 + unanswered;
                let text = format!(
                    "{path} {user} {admitted} of {promised}, {uncertain} perhaps on their way, \
                     {unanswered} paid without an answer, {misread} perhaps misread"
                );
                ensure!(admitted as f64 <= most, "{text}; {calls}");
                let over = admitted as f64 - most;
                if over > worst.0 {
                    worst = (over, text);
                }
            }
        }
        Ok(worst.1)
    }

    /// Checks that the store counts each admitted call once, except those that may have been on their way.
    async fn is_counted(
        &self,
        user: &str,
        calls: &Account,
        uncertain: usize,
        unanswered: f64,
    ) -> Result<()> {
        let (path, limit) = COUNTED;
        let used = self.servers[0].used(path, user, limit).await?;
        let admitted = calls.allowed();
        let misread = calls.allowed_in(&self.garbled);
        // A garbled answer may say that a charge was refused although it was made: then the server charges
        // again.
        let least = match self.only_answers {
            true => admitted as f64,
            false => admitted as f64 - (uncertain + misread) as f64 - unanswered,
        };
        ensure!(
            used as f64 >= least && used <= calls.calls.len() + misread,
            "{path} {user}: {admitted} were admitted, {uncertain} perhaps on their way, {unanswered} \
             paid without an answer, {misread} perhaps misread, and the store counts {used}; {calls}"
        );
        Ok(())
    }

    /// Injects a fault for a while.
    async fn event(&mut self, rng: &mut Rng) -> Result<String> {
        tokio::time::sleep(Duration::from_millis(rng.within(50..500))).await;
        let length = Duration::from_millis(rng.within(50..1_200));
        let at = usize::try_from(rng.within(0..self.proxies.len() as u64))?;
        let begun = Instant::now();
        let choices = if self.only_answers { 5 } else { 9 };
        let what = match rng.within(0..choices) {
            0 => {
                self.redis.freeze();
                self.until_gone(begun, length, |_| true).await;
                self.redis.thaw();
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
            6 => {
                self.redis.command(&["SCRIPT", "FLUSH"]).await?;
                let kill = ["CLIENT", "KILL", "TYPE", "normal"];
                self.redis.command(&kill).await?;
                self.lost.push((begun, Instant::now() + LATE));
                "script flush, client kill".to_owned()
            }
            3 => {
                self.servers[at].process.signal("STOP");
                tokio::time::sleep(length).await;
                self.servers[at].process.signal("CONT");
                self.lost.push((begun, Instant::now() + LATE));
                format!("server {at} frozen")
            }
            5 => {
                self.proxies[at].set(Fault::Forgotten);
                self.until_gone(begun, Duration::from_millis(300), |index| index == at)
                    .await;
                format!("connections of {at} forgotten")
            }
            _ => self.fault(at, length, rng).await,
        };
        Ok(format!("{what} {} ms", length.as_millis()))
    }

    /// Waits for some time. Calls may be on their way until each server concerned takes the store for gone,
    /// or until that time is over.
    async fn until_gone(
        &mut self,
        begun: Instant,
        length: Duration,
        is_it: impl Fn(usize) -> bool,
    ) {
        for (index, server) in self.servers.iter().enumerate() {
            if is_it(index)
                && let Ok(times) = server.loses_store(begun, length).await
            {
                self.lost.push(times);
            }
        }
        let rest = length.saturating_sub(begun.elapsed());
        tokio::time::sleep(rest).await;
        // Late answers, and connections that end.
        let now = Instant::now();
        self.lost.push((now, now + LATE));
    }

    /// A fault on the connections of one server, or of all.
    async fn fault(&mut self, at: usize, length: Duration, rng: &mut Rng) -> String {
        let late = Duration::from_millis(rng.within(5..150));
        let of_answers = [Fault::Delay(late), Fault::LoseAnswers];
        let other = [
            Fault::Split,
            Fault::Stall,
            Fault::Lose,
            Fault::Refuse,
            Fault::Garble,
            Fault::Cut,
        ];
        let fault = match self.only_answers || rng.within(0..8) < 2 {
            true => rng.pick(&of_answers),
            false => rng.pick(&other),
        };
        let all = rng.within(0..2) == 0;
        let is_it = move |index: usize| all || index == at;
        let begun = Instant::now();
        let chosen = self.proxies.iter().enumerate();
        for (_, proxy) in chosen.filter(|(index, _)| is_it(*index)) {
            proxy.set(fault);
        }
        self.until_gone(begun, length, is_it).await;
        for proxy in &self.proxies {
            proxy.set(Fault::None);
        }
        let times = (begun, Instant::now() + LATE);
        // An answer that is only late may make the server lose the store between two that are in time.
        if matches!(fault, Fault::Delay(_) | Fault::Garble | Fault::Split) {
            self.lost.push(times);
        }
        if fault == Fault::Garble {
            self.garbled.push(times);
        }
        let whose = if all {
            "all".to_owned()
        } else {
            at.to_string()
        };
        format!("{fault:?} for {whose}")
    }

    /// Waits until every server is healthy, answers by the store and owes nothing.
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
            ensure!(panics == 0, "{}", server.process.stderr());
        }
        Ok(start.elapsed())
    }
}
