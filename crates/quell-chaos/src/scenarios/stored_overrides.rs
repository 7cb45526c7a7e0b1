//! Stored overrides that change all the time, while servers and their store are lost and come back: what was
//! acknowledged, what servers decide by, and what they tell of a store that lost changes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use quell_testkit::proxy::{Fault, Proxy};
use serde_json::json;
use tokio::task::JoinSet;

use super::stored_overrides_history::{
    BASE, Callers, History, PATH, RULES, TENANTS, WRITERS, tenant,
};
use crate::process::{PATIENCE, wait};
use crate::redis::{Extras, Redis, SentinelSetup, is_primary};
use crate::rng::Rng;
use crate::server::Server;

/// Servers on a store that stays where it is.
const SERVERS: usize = 3;

/// Servers on a store that fails over.
const SERVERS_THERE: usize = 2;

/// Faults on a store that stays where it is.
const FAULTS: usize = 6;

/// Longest time until servers have what the store has, once all is well.
const WELL: Duration = Duration::from_secs(12);

pub(crate) async fn run(rng: &mut Rng) -> Result<String> {
    let (mut here, mut there) = (rng.fork(), rng.fork());
    let (here, there) = tokio::try_join!(weather(&mut here), fail_over(&mut there))?;
    Ok(format!("{here}; {there}"))
}

/// The servers that share a store, and where they are found.
struct Fleet {
    servers: Vec<Server>,
    urls: Vec<String>,
    callers: Callers,
}

/// Starts a server on a store, which it does not take for lost because the machine is busy.
async fn start(url: &str) -> Result<Server> {
    Server::start(RULES, &["--store", url, "--store-timeout", "2s"]).await
}

impl Fleet {
    async fn start(urls: Vec<String>) -> Result<Self> {
        let mut servers = Vec::new();
        for url in &urls {
            servers.push(start(url).await?);
        }
        let callers = Callers::new(servers.iter().map(|server| server.http).collect());
        Ok(Self {
            servers,
            urls,
            callers,
        })
    }

    /// Kills a server, and starts it again. It has the overrides of its store before it answers.
    async fn kill(&mut self, at: usize) -> Result<()> {
        self.callers.set_port(at, None);
        self.servers[at].process.kill();
        self.servers[at] = start(&self.urls[at]).await?;
        self.callers.set_port(at, Some(self.servers[at].http));
        Ok(())
    }

    /// Waits until each server decides every tenant by what the store has, and has nothing to tell. Returns the numbers
    /// of the store, and their revisions.
    async fn converges(&self) -> Result<HashMap<usize, (u64, u64)>> {
        let mut stored = HashMap::new();
        for number in 0..TENANTS {
            let path = format!("{PATH}{}", tenant(number));
            let what = "the store is read";
            let body = wait(what, WELL, async || {
                let answer = self.servers[0].client().get(&path).await.ok()?;
                (answer.status == 200).then_some(answer.body)
            })
            .await?;
            if let Some(record) = body["overrides"][0].as_object() {
                let limit = record["limit"].as_u64();
                let revision = record["revision"].as_u64();
                let pair = limit.zip(revision).context("a record without numbers")?;
                stored.insert(number, pair);
            }
        }
        for (at, server) in self.servers.iter().enumerate() {
            let mut last = String::new();
            let seen = wait("a server has what its store has", WELL, async || {
                for number in 0..TENANTS {
                    let expected = stored.get(&number).map_or(BASE, |(limit, _)| *limit);
                    let decided = Callers::decided(&mut server.client(), number).await;
                    if decided != Some(expected) {
                        last = format!("{} has {decided:?} for {expected}", tenant(number));
                        return None;
                    }
                }
                let health = server.health().await.ok()?;
                last = health.to_string();
                let ours = &health["overrides"];
                let has_trouble = !ours["failure"].is_null() || !ours["behind_ms"].is_null();
                (!has_trouble && ours["emptied"].is_null()).then_some(())
            });
            let seen = seen.await;
            seen.with_context(|| format!("server {at}: {last}"))?;
            let panics = server.logged("panicked");
            ensure!(panics == 0, "{}", server.process.stderr());
        }
        Ok(stored)
    }

    /// A change that waits is in force on all servers when it is answered.
    async fn waits_for_all(&self, history: &History) -> Result<()> {
        let alive = self.servers.len();
        for at in 0..alive {
            let number = history.next_number();
            let path = format!("{PATH}{}&wait=5s", tenant(0));
            let body = json!({"limit": number}).to_string();
            let asked = history.begin(0, number);
            let mut client = self.servers[at].client();
            let answer = client.request("PUT", &path, body.into()).await?;
            history.end(asked, &answer);
            ensure!(answer.status == 200, "{}", answer.text);
            let have = answer.body["servers"]["have"].as_u64();
            // Those that were killed are missing for some seconds.
            ensure!(have == Some(alive as u64), "of {alive}: {}", answer.text);
            for server in &self.servers {
                let decided = Callers::decided(&mut server.client(), 0).await;
                ensure!(decided == Some(number), "{decided:?} after {}", answer.text);
            }
        }
        Ok(())
    }
}

/// Writers and callers, who go on until they are told to stop.
struct Load(JoinSet<Result<()>>);

impl Load {
    fn start(fleet: &Fleet, history: &Arc<History>, rng: &mut Rng) -> Self {
        let mut tasks = JoinSet::new();
        for writer in 0..WRITERS {
            let (callers, history) = (fleet.callers.clone(), Arc::clone(history));
            tasks.spawn(callers.write(writer, history, rng.fork()));
        }
        for _ in 0..3 {
            let (callers, history) = (fleet.callers.clone(), Arc::clone(history));
            tasks.spawn(callers.call(history, rng.fork()));
        }
        Self(tasks)
    }

    async fn stop(mut self, fleet: &Fleet) -> Result<()> {
        fleet.callers.stop();
        while let Some(ended) = self.0.join_next().await {
            ended??;
        }
        Ok(())
    }
}

/// Three servers, each with a connection of its own that is cut, over a store that stands still and, in the end, comes
/// back empty.
async fn weather(rng: &mut Rng) -> Result<String> {
    let mut redis = Redis::start(&[]).await?;
    let proxies: Vec<Proxy> = (0..SERVERS)
        .map(|_| Proxy::seeded(redis.port, rng.next()))
        .collect();
    let urls = proxies.iter().map(Proxy::redis_url).collect();
    let mut fleet = Fleet::start(urls).await?;
    let history = Arc::new(History::default());
    fleet.callers.write_all(&history).await?;
    fleet.converges().await?;
    let load = Load::start(&fleet, &history, rng);
    let mut events = Vec::new();
    for _ in 0..FAULTS {
        events.push(fault(&mut fleet, &redis, &proxies, rng).await?);
    }
    let events = events.join(", ");
    load.stop(&fleet).await.with_context(|| events.clone())?;
    let stored = fleet.converges().await.with_context(|| events.clone())?;
    let kept = history.is_kept(&stored, None);
    let kept = kept.with_context(|| events.clone())?;
    fleet.waits_for_all(&history).await?;
    let seen = history.is_honest().with_context(|| events.clone())?;
    emptied(&fleet, &mut redis, &history).await?;
    Ok(format!("{kept}, {seen}, {events}"))
}

/// A fault, which is over when this returns.
async fn fault(
    fleet: &mut Fleet,
    redis: &Redis,
    proxies: &[Proxy],
    rng: &mut Rng,
) -> Result<String> {
    tokio::time::sleep(Duration::from_millis(rng.within(50..300))).await;
    let length = Duration::from_millis(rng.within(100..700));
    let at = usize::try_from(rng.within(0..SERVERS as u64))?;
    let what = match rng.within(0..5) {
        0 => {
            fleet.kill(at).await?;
            format!("server {at} killed")
        }
        1 => {
            redis.freeze();
            tokio::time::sleep(length).await;
            redis.thaw();
            "freeze".to_owned()
        }
        2 => {
            let kill = ["CLIENT", "KILL", "TYPE", "normal"];
            redis.command(&kill).await?;
            "connections killed".to_owned()
        }
        _ => {
            let faults = [
                Fault::Refuse,
                Fault::Stall,
                Fault::Lose,
                Fault::LoseAnswers,
                Fault::Cut,
            ];
            let fault = rng.pick(&faults);
            proxies[at].set(fault);
            tokio::time::sleep(length).await;
            proxies[at].set(Fault::None);
            format!("{fault:?} for {at}")
        }
    };
    Ok(format!("{what} {} ms", length.as_millis()))
}

/// The store comes back empty: servers say so and keep what they know, until something is written to it.
async fn emptied(fleet: &Fleet, redis: &mut Redis, history: &History) -> Result<()> {
    let mut known = Vec::new();
    for number in 0..TENANTS {
        let decided = Callers::decided(&mut fleet.servers[0].client(), number).await;
        known.push(decided.context("no answer while all is well")?);
    }
    redis.start_again();
    for server in &fleet.servers {
        wait(
            "a server says that its store is empty",
            PATIENCE,
            async || {
                let health = server.health().await.ok()?;
                let is_told =
                    health["status"] == "degraded" && health["overrides"]["emptied"] == true;
                is_told.then_some(())
            },
        )
        .await?;
        ensure!(server.metric("quell_overrides_emptied").await? > 0.5);
        ensure!(server.logged("the store of overrides is empty") > 0);
        for (number, expected) in known.iter().enumerate() {
            // The first call may find a connection that is gone.
            wait("an empty store takes nothing away", PATIENCE, async || {
                let decided = Callers::decided(&mut server.client(), number).await?;
                (decided == *expected).then_some(())
            })
            .await?;
        }
    }
    let before = history.next_number();
    let asked = history.begin(0, before);
    let path = format!("{PATH}{}&wait=5s", tenant(0));
    let body = json!({"limit": before}).to_string();
    let mut client = fleet.servers[0].client();
    let answer = client.request("PUT", &path, body.into()).await?;
    history.end(asked, &answer);
    let stored = fleet.converges().await?;
    ensure!(stored.len() == 1, "the store has {stored:?}");
    for server in &fleet.servers {
        ensure!(server.metric("quell_overrides_lost_total").await? > 0.5);
        ensure!(server.logged("the store of overrides lost changes") > 0);
    }
    Ok(())
}

/// A primary that is killed: its replica takes over, and may lack what was acknowledged last.
async fn fail_over(rng: &mut Rng) -> Result<String> {
    let mut store = SentinelSetup::start(Extras::default(), rng).await?;
    let urls = vec![store.url(); SERVERS_THERE];
    let fleet = Fleet::start(urls).await?;
    let history = Arc::new(History::default());
    fleet.callers.write_all(&history).await?;
    fleet.converges().await?;
    store.primary.command(&["WAIT", "1", "5000"]).await?;
    let load = Load::start(&fleet, &history, rng);
    tokio::time::sleep(Duration::from_millis(rng.within(200..600))).await;
    // It lacks what is written from now on.
    store.replica.freeze();
    let kill = ["CLIENT", "KILL", "TYPE", "replica"];
    store.primary.command(&kill).await?;
    tokio::time::sleep(Duration::from_millis(rng.within(100..500))).await;
    store.primary.kill();
    let killed = Instant::now();
    store.replica.thaw();
    wait("the replica is promoted", PATIENCE, async || {
        is_primary(&store.replica).await.then_some(())
    })
    .await?;
    let took = killed.elapsed();
    let goes_on = Duration::from_millis(rng.within(300..1_500));
    tokio::time::sleep(goes_on).await;
    load.stop(&fleet).await?;
    let stored = fleet.converges().await?;
    let kept = history.is_kept(&stored, Some(killed))?;
    fleet.waits_for_all(&history).await?;
    let seen = history.is_honest()?;
    for server in &fleet.servers {
        let lost = server.metric("quell_overrides_lost_total").await?;
        let is_told = lost > 0.5 && server.logged("lost changes") > 0;
        ensure!(is_told || !history.has_lost(), "nothing was told of {kept}");
    }
    Ok(format!("fail-over in {took:.1?}: {kept}, {seen}"))
}
