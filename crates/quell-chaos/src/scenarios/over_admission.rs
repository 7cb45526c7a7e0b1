//! Servers that decide in memory, and charge a shared store in advance or afterwards: what happens to them and to
//! the store.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::over_admission_cell::{Cell, Fault, ON_REDIS, Offer, Rung};
use crate::load::{Account, Aim, Kind, Load, Running};
use crate::process::{PATIENCE, wait};
use crate::proxy::{self, Proxy};
use crate::redis::Redis;
use crate::rng::Rng;
use crate::server::Server;
use crate::wall_clock::WallClock;

/// What the rule accepts. Judged by the bound that servers state, which is at most this.
const ACCEPTED: u32 = 30;

/// For how long a server may use what it charged, and knows of a key.
const LIFE: Duration = Duration::from_millis(500);

/// A busy key's server asks the store more often than this.
const FRESH: Duration = Duration::from_millis(200);

/// Callers of one key.
const CALLERS: usize = 8;

/// The user whose limit is attacked.
pub(super) const USER: &str = "attacked";

/// Servers on one store, whose rule may be exceeded by a bound.
pub(super) struct Bounded {
    pub(super) servers: Vec<Server>,
    pub(super) cell: Cell,
    rules: String,
    store: String,
    /// By how much all of them together may exceed the limit, as they state.
    pub(super) bound: f64,
}

/// What was admitted in an attack.
#[derive(Debug, Default)]
pub(super) struct Attacked {
    pub(super) account: Account,
    /// When a server was killed, or began to leave.
    lost: Option<Instant>,
    /// When the store forgot what was charged, or its clock was set ahead.
    forgot: Option<Instant>,
    /// How many units it may give once more.
    again: f64,
}

/// What some faults need.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Means<'a> {
    /// Between servers and their store.
    proxy: Option<&'a Proxy>,
    /// The store's.
    clock: Option<&'a WallClock>,
}

impl Bounded {
    pub(super) async fn start(store: &str, cell: Cell) -> Result<Self> {
        let (count, name) = (cell.servers, cell.rung.name());
        let Offer { rate, burst, .. } = cell.offer;
        let rules = format!(
            "
domain: d
defaults: {{ on_failure: deny, nodes: {count}, rung: {name}, max_over_admission: {ACCEPTED} }}
rules:
  - {{ name: users, match: {{ path: /a }}, per: [user], rate: {rate}/s, burst: {burst} }}
"
        );
        let mut bounded = Self {
            servers: Vec::new(),
            cell,
            rules,
            store: store.to_owned(),
            bound: 0.0,
        };
        for _ in 0..count {
            let server = bounded.new_server().await?;
            bounded.servers.push(server);
        }
        Ok(bounded)
    }

    /// Starts one more, whose bound is that of the others.
    async fn new_server(&mut self) -> Result<Server> {
        let server = Server::start(&self.rules, &["--store", &self.store]).await?;
        let stated = server.metric("quell_over_admission_bound").await?;
        let is_first = self.servers.is_empty();
        let expected = if is_first { stated } else { self.bound };
        ensure!(
            0.0 < stated && stated <= ACCEPTED.into() && stated == expected,
            "a server states the bound {stated}, others {expected}"
        );
        self.bound = stated;
        Ok(server)
    }

    pub(super) fn burst(&self) -> f64 {
        self.cell.offer.burst.into()
    }

    /// What the limit admits in the time of these calls, and the bound.
    pub(super) fn promised(&self, account: &Account) -> f64 {
        let rate = f64::from(self.cell.offer.rate);
        self.burst() + rate * account.length().as_secs_f64() + self.bound
    }

    /// In no interval the servers exceeded the limit by more than the bound and so much `more`. Says by how much.
    pub(super) fn is_bounded(&self, account: &Account, more: f64) -> Result<String> {
        let bound = self.bound + more;
        let excess = account.excess(self.cell.offer.rate.into(), self.burst());
        ensure!(
            excess <= bound,
            "{}: {excess:.1} of {bound:.1} too many; {account}",
            self.cell
        );
        Ok(format!(
            "{excess:.0} of {bound:.0} beyond the limit; {account}"
        ))
    }

    /// What a server that was killed had admitted and not charged yet.
    fn forgotten(&self) -> f64 {
        match self.cell.rung {
            Rung::Leased => 0.0,
            Rung::Synced => self.bound / self.cell.servers as f64,
        }
    }

    /// Callers of one user, on all servers.
    pub(super) fn asked(&self, user: &str, ms: u64) -> Load {
        let load = Load::on(0, "/a", user).clients(CALLERS);
        let mut load = load.pause(self.cell.offer.pause).length(ms);
        load.ports = self.servers.iter().map(|server| server.http).collect();
        load
    }

    /// In steady load the limit is used, from memory, and kept.
    pub(super) async fn is_steady(&self, rng: &mut Rng) -> Result<String> {
        let steady = self.asked("steady", 2_500).run(rng).await?;
        steady.is_documented()?;
        self.is_bounded(&steady, 0.0)?;
        let (all, most) = (steady.allowed() as f64, self.promised(&steady));
        // A machine that is too slow for as many calls proves nothing.
        let is_busy = steady.calls.len() as f64 >= 1.3 * most;
        ensure!(
            all >= 0.9 * (most - self.bound) || !is_busy,
            "only {all} of {most:.0}; {steady}"
        );
        // One caller of a server, who calls 50 times a second, hardly makes a key hot.
        if self.cell.offer.times > 2 || self.servers.len() == 2 {
            let decided = self.servers[0]
                .metric("quell_leased_decisions_total")
                .await?;
            ensure!(decided > 0.0, "nothing was decided in memory; {steady}");
        }
        Ok(format!(
            "{}, bound {}: {all} of {most:.0} from {} calls",
            self.cell,
            self.bound,
            steady.calls.len()
        ))
    }

    /// Attacks servers that are under load, or their store, by the fault of the cell, which is none of a fail-over.
    pub(super) async fn attack(
        &mut self,
        store: &mut Redis,
        means: Means<'_>,
        rng: &mut Rng,
    ) -> Result<Attacked> {
        let load = self.asked(USER, 3_500);
        let aim = load.aim.clone();
        let load = load.start(rng);
        pause(rng.within(200..600)).await;
        let (mut attacked, mut others) = (Attacked::default(), Vec::new());
        match self.cell.fault {
            Fault::Several => self.several(store, &mut attacked, rng).await?,
            Fault::Paused => {
                self.servers[0].process.signal("STOP")?;
                pause(rng.within(550..900)).await;
                self.servers[0].process.signal("CONT")?;
            }
            Fault::Frozen => {
                store.freeze()?;
                pause(rng.within(300..700)).await;
                store.thaw()?;
            }
            Fault::AnswersLost => {
                let faults = [proxy::Fault::DropAnswers, proxy::Fault::None];
                for fault in faults {
                    means.proxy.context("there is no proxy")?.set(fault);
                    pause(rng.within(200..700)).await;
                }
            }
            Fault::Killed => {
                attacked.lost = Some(Instant::now());
                self.servers[1].process.crash();
                others.push(self.replace(1, rng).await?);
            }
            Fault::Replaced => {
                others.push(self.leave(&aim, &mut attacked, rng).await?);
            }
            Fault::Emptied => {
                (attacked.forgot, attacked.again) = (Some(Instant::now()), self.burst());
                store.command(&["FLUSHALL"]).await?;
            }
            Fault::StartedEmpty => {
                attacked.forgot = Some(Instant::now());
                store.start_again().await?;
            }
            Fault::ClockSteps => {
                let ahead = rng.within(300..1_500) as f64 / 1_000.0;
                attacked.forgot = Some(Instant::now());
                attacked.again = f64::from(self.cell.offer.rate) * ahead;
                for ahead in [ahead, 0.0] {
                    means.clock.context("there is no clock")?.set(ahead)?;
                    pause(rng.within(300..900)).await;
                }
            }
            Fault::Hangs | Fault::Dies | Fault::Lags => bail!("{} is no fail-over", self.cell),
        }
        for running in [load].into_iter().chain(others) {
            attacked.account.add(running.finish().await?);
        }
        Ok(attacked)
    }

    /// A server stands still, the store does, a server is killed, and the store is emptied.
    async fn several(
        &mut self,
        store: &Redis,
        attacked: &mut Attacked,
        rng: &mut Rng,
    ) -> Result<()> {
        self.servers[0].process.signal("STOP")?;
        pause(rng.within(300..900)).await;
        self.servers[0].process.signal("CONT")?;
        store.freeze()?;
        pause(rng.within(300..700)).await;
        store.thaw()?;
        pause(rng.within(200..400)).await;
        attacked.lost = Some(Instant::now());
        self.servers[1].process.crash();
        pause(rng.within(400..700)).await;
        (attacked.forgot, attacked.again) = (Some(Instant::now()), self.burst());
        store.command(&["FLUSHALL"]).await?;
        Ok(())
    }

    /// A new server comes in place of one that has ended, with callers of its own.
    async fn replace(&mut self, place: usize, rng: &mut Rng) -> Result<Running> {
        self.servers[place] = self.new_server().await?;
        let mut load = self.asked(USER, 1_000);
        load.ports = vec![self.servers[place].http];
        load.clients = CALLERS.div_ceil(self.servers.len());
        Ok(load.start(rng))
    }

    /// A server leaves, as behind a balancer; then another one joins.
    async fn leave(
        &mut self,
        aim: &Aim,
        attacked: &mut Attacked,
        rng: &mut Rng,
    ) -> Result<Running> {
        let others: Vec<usize> = (0..self.servers.len())
            .filter(|place| *place != 1)
            .collect();
        aim.at(&others);
        attacked.lost = Some(Instant::now());
        self.servers[1].process.signal("TERM")?;
        let ended = self.servers[1].end(PATIENCE).await?;
        ensure!(ended.success(), "the server that leaves ends with {ended}");
        self.replace(1, rng).await
    }

    /// Judges an attack by when what was forgotten.
    pub(super) async fn judge(&self, attacked: &Attacked) -> Result<String> {
        let account = &attacked.account;
        let mut more = 0.0;
        if let Some(lost) = attacked.lost {
            self.is_bounded(&account.until(lost), more)?;
            more += self.forgotten();
        }
        if let Some(forgot) = attacked.forgot {
            self.is_bounded(&account.until(forgot), more)?;
            more += attacked.again + self.bound;
        }
        let judged = self.is_bounded(account, more)?;
        self.is_observed(attacked.forgot.is_none()).await?;
        Ok(format!("under attack {judged}"))
    }

    /// The rule goes on: a server is answered by the store again.
    pub(super) async fn goes_on(&self, rng: &mut Rng) -> Result<Account> {
        let mut all = Account::default();
        wait("the store decides", PATIENCE, async || {
            let more = self.asked(USER, 200).run(rng).await.ok()?;
            let decided = more.count(|call| call.kind == Kind::Allowed && !call.is_degraded);
            all.add(more);
            (decided > 0).then_some(())
        })
        .await?;
        Ok(all)
    }

    /// Whether the only server that lives was answered by the store about its busy key shortly before it was
    /// emptied: it decided in memory although what it held before the store hung was over.
    fn is_in_use(&self, attacked: &Attacked) -> bool {
        let (Some(lost), Some(forgot)) = (attacked.lost, attacked.forgot) else {
            return false;
        };
        let since = (lost + LIFE).max(forgot.checked_sub(FRESH).unwrap_or(forgot));
        let decided = attacked.account.count(|call| {
            let is_then = call.begun > since && call.ended < forgot;
            is_then && call.kind == Kind::Allowed && !call.is_degraded
        });
        self.servers.len() == 2 && self.cell.offer.times > 2 && decided > 0
    }

    /// No server says that it used units that were not charged, or exceeded the limit by more than the bound; nor
    /// that the store forgot any, if it `remembers`. One that does not may give a burst once more. A server may be
    /// dead.
    pub(super) async fn is_observed(&self, remembers: bool) -> Result<()> {
        let again = if remembers { 0.0 } else { self.burst() };
        let mut asked = 0;
        for server in &self.servers {
            let Ok(observed) = server.metric("quell_observed_excess").await else {
                continue;
            };
            asked += 1;
            ensure!(
                observed <= self.bound + again,
                "{}: a server says that it exceeded the limit by {observed}",
                self.cell
            );
            let regained = server.metric("quell_regained_units").await?;
            ensure!(
                regained == 0.0 || !remembers,
                "{}: a server says that the store forgot {regained} units",
                self.cell
            );
            let overdraft = server.metric("quell_lease_overdraft_units").await?;
            ensure!(
                overdraft == 0.0,
                "{}: a server used {overdraft} units that were not charged",
                self.cell
            );
        }
        ensure!(asked + 1 >= self.servers.len(), "only {asked} answer");
        Ok(())
    }
}

async fn pause(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

pub(crate) async fn run(rng: &mut Rng) -> Result<String> {
    let cell = Cell::of(rng, &ON_REDIS);
    let clock = WallClock::new()?;
    let clock = (cell.fault == Fault::ClockSteps).then_some(&clock);
    let mut redis = Redis::start_by(clock, "", &[]).await?;
    let proxy = Proxy::start(redis.port, rng).await?;
    let is_direct = cell.fault != Fault::AnswersLost;
    let url = if is_direct { redis.url() } else { proxy.url() };
    let mut bounded = Bounded::start(&url, cell).await?;
    let steady = bounded.is_steady(rng).await?;
    let proxy = Some(&proxy);
    let means = Means { proxy, clock };
    let mut attacked = bounded.attack(&mut redis, means, rng).await?;
    // The store has forgotten a burst, and gives it once more if no server says that the key is in use.
    if bounded.is_in_use(&attacked) {
        attacked.again = 0.0;
    }
    let judged = bounded.judge(&attacked).await?;
    bounded.goes_on(rng).await?;
    Ok(format!("{steady}; {judged}"))
}
