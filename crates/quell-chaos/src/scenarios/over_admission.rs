//! Servers that decide in memory, and charge a shared store in advance or afterwards: what happens to them and to
//! the store.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::load::{Account, Kind, Load};
use crate::redis::Redis;
use crate::rng::Rng;
use crate::server::Server;

/// All servers together exceed the limit by at most this.
const BOUND: f64 = 30.0;

/// For how long a server may use what it charged, and knows of a key.
const LIFE: Duration = Duration::from_millis(500);

/// A busy key's server asks the store more often than this.
const FRESH: Duration = Duration::from_millis(200);

/// The rung of the servers' rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rung {
    /// They charge in advance.
    Leased,
    /// They charge afterwards.
    Synced,
}

impl Rung {
    /// Drawn first, by all scenarios alike.
    pub(super) fn drawn(rng: &mut Rng) -> Self {
        rng.pick(&[Self::Leased, Self::Synced])
    }

    pub(super) const fn other(self) -> Self {
        match self {
            Self::Leased => Self::Synced,
            Self::Synced => Self::Leased,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Leased => "leased",
            Self::Synced => "synced",
        }
    }
}

/// How much is offered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer {
    /// About how many times the limit.
    times: u32,
    /// The limit, per second; the burst is twice that.
    rate: u32,
    /// The pause of each of the callers between two calls, in milliseconds.
    pause: u64,
}

/// A machine that is shared makes some 2,000 calls a second at best, so 40 times the limit is offered to a
/// smaller one.
const OFFERS: [Offer; 3] = [
    Offer {
        times: 2,
        rate: 200,
        pause: 20,
    },
    Offer {
        times: 10,
        rate: 200,
        pause: 4,
    },
    Offer {
        times: 40,
        rate: 50,
        pause: 4,
    },
];

/// Servers on one store, whose rule may be exceeded by a bound.
pub(super) struct Bounded {
    pub(super) servers: Vec<Server>,
    rung: Rung,
    offer: Offer,
}

impl Bounded {
    /// Two or eight servers, and what is offered to them.
    pub(super) async fn start(store: &str, rung: Rung, rng: &mut Rng) -> Result<Self> {
        let (count, offer) = (rng.pick(&[2, 2, 2, 8]), rng.pick(&OFFERS));
        let (rate, burst) = (offer.rate, 2 * offer.rate);
        let name = rung.name();
        let rules = format!(
            "
domain: d
defaults: {{ on_failure: deny, nodes: {count}, rung: {name}, max_over_admission: {BOUND} }}
rules:
  - {{ name: users, match: {{ path: /a }}, per: [user], rate: {rate}/s, burst: {burst} }}
"
        );
        let mut servers = Vec::new();
        for _ in 0..count {
            servers.push(Server::start(&rules, &["--store", store]).await?);
        }
        Ok(Self {
            servers,
            rung,
            offer,
        })
    }

    pub(super) fn burst(&self) -> f64 {
        2.0 * f64::from(self.offer.rate)
    }

    /// What the limit admits in the time of these calls, and the bound.
    pub(super) fn promised(&self, account: &Account) -> f64 {
        self.burst() + f64::from(self.offer.rate) * account.length().as_secs_f64() + BOUND
    }

    /// In no interval the servers exceeded the limit by more than the bound, and by what those of them that
    /// were killed had not charged yet.
    pub(super) fn is_bounded(&self, account: &Account, killed: u32) -> Result<()> {
        let bound = BOUND + self.forgotten(killed);
        let excess = account.excess(self.offer.rate.into(), self.burst());
        ensure!(
            excess <= bound,
            "{}: {excess:.1} of {bound:.1} too many; {account}",
            self.rung.name()
        );
        Ok(())
    }

    /// What servers that were killed had admitted and not charged yet.
    fn forgotten(&self, killed: u32) -> f64 {
        match self.rung {
            Rung::Leased => 0.0,
            Rung::Synced => BOUND / self.servers.len() as f64 * f64::from(killed),
        }
    }

    /// Callers of one user, on all servers.
    pub(super) fn asked(&self, user: &str, ms: u64) -> Load {
        let load = Load::on(0, "/a", user).clients(8);
        let mut load = load.pause(self.offer.pause).length(ms);
        load.ports = self.servers.iter().map(|server| server.http).collect();
        load
    }

    /// In steady load the limit is used, from memory, and kept.
    pub(super) async fn is_steady(&self, rng: &mut Rng) -> Result<String> {
        let steady = self.asked("steady", 2_500).run(rng).await?;
        steady.is_documented()?;
        self.is_bounded(&steady, 0)?;
        let (all, most) = (steady.allowed() as f64, self.promised(&steady));
        // A machine that is too slow for as many calls proves nothing.
        let is_busy = steady.calls.len() as f64 >= 2.0 * most;
        ensure!(
            all >= 0.9 * (most - BOUND) || !is_busy,
            "only {all} of {most:.0}; {steady}"
        );
        // One caller of a server, who calls 50 times a second, hardly makes a key hot.
        if self.offer.times > 2 || self.servers.len() == 2 {
            let decided = self.servers[0]
                .metric("quell_leased_decisions_total")
                .await?;
            ensure!(decided > 0.0, "nothing was decided in memory; {steady}");
        }
        let times = f64::from(self.offer.times);
        Ok(format!(
            "{}, {} servers, {times} times the limit: {all} of {most:.0} from {} calls",
            self.rung.name(),
            self.servers.len(),
            steady.calls.len()
        ))
    }

    /// Whether the only server that lives was answered by the store about its busy key shortly before it was
    /// emptied: it decided in memory although what it held before the store hung was over.
    fn is_in_use(&self, account: &Account, thawed: Instant, flushed: Instant) -> bool {
        let since = (thawed + LIFE).max(flushed - FRESH);
        let decided = account.count(|call| {
            let is_then = call.begun > since && call.ended < flushed;
            is_then && call.kind == Kind::Allowed && !call.is_degraded
        });
        self.servers.len() == 2 && self.offer.times > 2 && decided > 0
    }

    /// No server of these says that it exceeded the limit by more than the bound. One may be dead.
    pub(super) async fn is_observed(&self) -> Result<()> {
        let mut asked = 0;
        for server in &self.servers {
            let Ok(observed) = server.metric("quell_observed_excess").await else {
                continue;
            };
            asked += 1;
            ensure!(
                observed <= BOUND,
                "a server says that it exceeded the limit by {observed}"
            );
        }
        ensure!(asked + 1 >= self.servers.len(), "only {asked} answer");
        Ok(())
    }
}

pub(crate) async fn run(rng: &mut Rng) -> Result<String> {
    let rung = Rung::drawn(rng);
    let redis = Redis::start(&[]).await?;
    let mut bounded = Bounded::start(&redis.url(), rung, rng).await?;
    let steady = bounded.is_steady(rng).await?;

    let load = bounded.asked("attacked", 4_500).start(rng);
    let pause = async |ms| tokio::time::sleep(Duration::from_millis(ms)).await;
    pause(rng.within(200..600)).await;
    bounded.servers[0].process.signal("STOP")?;
    pause(rng.within(300..900)).await;
    bounded.servers[0].process.signal("CONT")?;
    redis.freeze()?;
    pause(rng.within(300..900)).await;
    redis.thaw()?;
    let thawed = Instant::now();
    pause(rng.within(200..500)).await;
    let killed = Instant::now();
    bounded.servers[1].process.crash();
    pause(rng.within(400..700)).await;
    let flushed = Instant::now();
    redis.command(&["FLUSHALL"]).await?;
    let attacked = load.finish().await?;
    bounded.is_bounded(&attacked.until(killed), 0)?;
    bounded.is_bounded(&attacked.until(flushed), 1)?;
    // The store has forgotten a burst, and gives it once more if no server says that the key is in use.
    let is_known = bounded.is_in_use(&attacked, thawed, flushed);
    let again = if is_known { 0.0 } else { bounded.burst() };
    let (admitted, promise) = (
        attacked.allowed() as f64,
        bounded.promised(&attacked) + again + BOUND + bounded.forgotten(1),
    );
    ensure!(
        admitted <= promise,
        "{admitted} of {promise:.0}, {again} of them once more; {attacked}"
    );
    bounded.is_observed().await?;
    Ok(format!(
        "{steady}; under attack {admitted} of {promise:.0}, {again} of them once more; {attacked}"
    ))
}
