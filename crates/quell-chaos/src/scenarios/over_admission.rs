//! Servers that decide in memory, and charge a shared store in advance or afterwards: what happens to them and to
//! the store.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures_util::future::join_all;
use quell_testkit::proxy;

use super::over_admission_cell::{Algorithm, Cell, Fault, ON_REDIS, Offer, Rung};
use crate::load::{Account, Aim, Load, Running};
use crate::process::{PATIENCE, wait};
use crate::redis::{Redis, Store};
use crate::rng::Rng;
use crate::server::Server;

/// Over-admission that the rule accepts. Judged by the bound that servers state, which is at most this.
const ACCEPTED: u32 = 30;

/// For how long a server can prove by an answer that a key is in use, less what a late script may take.
const PROVEN: Duration = Duration::from_millis(450);

/// In this time a busy key's server asks the store twice.
const FRESH: Duration = Duration::from_millis(250);

/// For how long it is awaited that all servers are busy at a time.
const AWAITED: Duration = Duration::from_millis(1_200);

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

/// Units that were admitted in an attack.
#[derive(Debug, Default)]
pub(super) struct Attacked {
    pub(super) account: Account,
    /// Instant at which a server was killed, or began to leave.
    lost: Option<Instant>,
    /// Instant at which the store forgot what was charged, or its clock was set ahead.
    forgot: Option<Instant>,
    /// Number of units that it may give once more.
    again: f64,
    /// True if every server could prove that the key was in use when the store was emptied.
    is_in_use: bool,
}

impl Bounded {
    pub(super) async fn start(store: &str, cell: Cell) -> Result<Self> {
        let (count, name) = (cell.servers, cell.rung.name());
        let Offer {
            rate,
            burst,
            window,
            ..
        } = cell.offer;
        let limit = match cell.algorithm {
            Algorithm::Bucket => format!("rate: {rate}/s, burst: {burst}"),
            Algorithm::Window => {
                format!("algorithm: fixed_window, limit: {window}/min, align: calendar")
            }
        };
        let rules = format!(
            "
domain: d
defaults: {{ on_failure: deny, nodes: {count}, rung: {name}, max_over_admission: {ACCEPTED} }}
rules:
  - {{ name: users, match: {{ path: /a }}, per: [user], {limit} }}
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

    /// Units that come free if the store forgets a key that was used up: a burst, or a window.
    pub(super) fn burst(&self) -> f64 {
        let Offer { burst, window, .. } = self.cell.offer;
        match self.cell.algorithm {
            Algorithm::Bucket => burst.into(),
            Algorithm::Window => window.into(),
        }
    }

    fn rate(&self) -> f64 {
        match self.cell.algorithm {
            Algorithm::Bucket => self.cell.offer.rate.into(),
            Algorithm::Window => 0.0,
        }
    }

    /// In no interval, or window, the servers exceeded the limit by more than the bound and so much `more`. Says by
    /// how much.
    pub(super) fn is_bounded(&self, account: &Account, more: f64) -> Result<String> {
        let excess = match self.cell.algorithm {
            Algorithm::Bucket => account.excess(self.rate(), self.burst()),
            Algorithm::Window => account.excess_in_minutes(self.burst()),
        };
        let bound = match (self.cell.algorithm, self.cell.rung) {
            // A lease ends with its window.
            (Algorithm::Window, Rung::Leased) => more,
            _ => self.bound + more,
        };
        ensure!(
            excess <= bound,
            "{}: {excess:.1} of {bound:.1} too many; {account}",
            self.cell
        );
        Ok(format!(
            "{excess:.0} of {bound:.0} beyond the limit; {account}"
        ))
    }

    /// Units that a killed server had admitted and not charged yet.
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
        let produced = self.rate() * steady.length().as_secs_f64();
        // A window gets its share of calls during the attack, which is longer.
        let least = match self.cell.algorithm {
            Algorithm::Bucket => produced * f64::from(self.cell.offer.times) / 2.0,
            Algorithm::Window => self.burst(),
        };
        let calls = steady.calls.len();
        ensure!(
            calls as f64 >= least,
            "{}: the machine is too busy: {calls} calls, and {least:.0} are the least",
            self.cell
        );
        let (all, most) = (steady.allowed() as f64, self.burst() + produced);
        // A machine that is too slow for as many calls proves nothing.
        let is_busy = calls as f64 >= 1.3 * (most + self.bound);
        ensure!(
            all >= 0.9 * most || !is_busy,
            "{}: only {all} of {most:.0}; {steady}",
            self.cell
        );
        // One caller of a server, who calls 50 times a second, hardly makes a key hot.
        if self.cell.offer.times > 2 || self.servers.len() == 2 {
            let decided = self.servers[0]
                .metric("quell_leased_decisions_total")
                .await?;
            ensure!(decided > 0.0, "nothing was decided in memory; {steady}");
        }
        Ok(format!(
            "{}, bound {}: {all} of {most:.0} and the bound from {calls} calls",
            self.cell, self.bound,
        ))
    }

    /// Attacks servers that are under load, or their store, by the fault of the cell, which is none of a fail-over.
    pub(super) async fn attack(&mut self, store: &mut Redis, rng: &mut Rng) -> Result<Attacked> {
        let load = self.asked(USER, 3_500);
        let aim = load.aim.clone();
        let load = load.start(rng);
        pause(rng.within(200..600)).await;
        let (mut attacked, mut others) = (Attacked::default(), Vec::new());
        match self.cell.fault {
            Fault::Several => self.several(store, &mut attacked, rng).await?,
            Fault::Paused => {
                self.servers[0].process.signal("STOP");
                pause(rng.within(550..900)).await;
                self.servers[0].process.signal("CONT");
            }
            Fault::Frozen => {
                store.freeze();
                pause(rng.within(300..700)).await;
                store.thaw();
            }
            Fault::AnswersLost => {
                let proxy = store.proxy.as_ref().context("there is no proxy")?;
                for fault in [proxy::Fault::LoseAnswers, proxy::Fault::None] {
                    proxy.set(fault);
                    // Sentinels miss their answers as well, and must not yet promote the replica.
                    pause(rng.within(200..500)).await;
                }
            }
            Fault::Killed => {
                attacked.lost = Some(Instant::now());
                self.servers[1].process.kill();
                others.push(self.replace(1, rng).await?);
            }
            Fault::Replaced => {
                others.push(self.leave(&aim, &mut attacked, rng).await?);
            }
            Fault::Emptied => self.forgets(empty(store), &mut attacked).await?,
            Fault::StartedEmpty => {
                let begun = async {
                    store.start_again();
                    Ok(())
                };
                self.forgets(begun, &mut attacked).await?;
            }
            Fault::ClockSteps => {
                let ahead = rng.within(300..1_500) as f64 / 1_000.0;
                attacked.forgot = Some(Instant::now());
                // When it steps back, leases that are given back count once more.
                attacked.again = (self.rate() * ahead).min(self.burst()) + self.bound;
                for ahead in [ahead, 0.0] {
                    store
                        .clock
                        .as_ref()
                        .context("there is no clock")?
                        .set(ahead);
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
        self.servers[0].process.signal("STOP");
        pause(rng.within(300..900)).await;
        self.servers[0].process.signal("CONT");
        store.freeze();
        pause(rng.within(300..700)).await;
        store.thaw();
        pause(rng.within(200..400)).await;
        attacked.lost = Some(Instant::now());
        self.servers[1].process.kill();
        pause(rng.within(400..700)).await;
        self.forgets(empty(store), attacked).await
    }

    /// The store loses its memory. It gives nothing again if every server that lives was answered about its busy key
    /// just before, and asked again in time; else a burst, or a window, and the bound.
    async fn forgets(
        &self,
        loss: impl Future<Output = Result<()>>,
        attacked: &mut Attacked,
    ) -> Result<()> {
        let begun = Instant::now();
        let (mut since, mut is_busy) = (begun, false);
        while !is_busy && begun.elapsed() < AWAITED {
            since = Instant::now();
            // The second request follows the answer to the first.
            is_busy = self.ask_again(2.0).await;
        }
        attacked.forgot = Some(Instant::now());
        loss.await?;
        attacked.is_in_use = is_busy && self.ask_again(1.0).await && since.elapsed() < PROVEN;
        // Who connects to it again learns that it was started again.
        if !attacked.is_in_use && self.cell.fault != Fault::StartedEmpty {
            attacked.again = self.burst() + self.bound;
        }
        Ok(())
    }

    /// Returns true if all servers that live ask the store so many times more, soon.
    async fn ask_again(&self, times: f64) -> bool {
        let (before, begun) = (self.requests().await, Instant::now());
        while begun.elapsed() < FRESH {
            let now = self.requests().await;
            let mut both = before.iter().zip(&now);
            if both.all(|(before, now)| *now >= before + times) {
                return true;
            }
            pause(5).await;
        }
        false
    }

    /// Number of requests of each server to the store; without end if the server is dead.
    async fn requests(&self) -> Vec<f64> {
        let servers = self.servers.iter();
        let asked = servers.map(|server| server.metric("quell_lease_requests_total"));
        let asked = join_all(asked).await.into_iter();
        asked.map(|asked| asked.unwrap_or(f64::INFINITY)).collect()
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
        self.servers[1].process.signal("TERM");
        let ended = self.servers[1].end(PATIENCE).await?;
        ensure!(ended.success(), "the server that leaves ends with {ended}");
        self.replace(1, rng).await
    }

    /// The limit is kept in steady load and under attack, and the rule goes on.
    pub(super) async fn check(&mut self, store: &mut Redis, rng: &mut Rng) -> Result<String> {
        let steady = self.is_steady(rng).await?;
        let mut attacked = self.attack(store, rng).await?;
        let after = self.goes_on(&[USER], rng).await?;
        attacked.account.add(after.of(USER));
        let judged = self.judge(&attacked).await?;
        Ok(format!("{steady}; {judged}"))
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
            more += attacked.again;
        }
        let judged = self.is_bounded(account, more)?;
        self.is_observed(attacked.forgot.is_none()).await?;
        let known = match attacked.is_in_use {
            true => ", in use",
            false => "",
        };
        Ok(format!("under attack{known} {judged}"))
    }

    /// Callers of users go on until the store decides on one who is new, and a while longer.
    pub(super) async fn goes_on(&self, users: &[&str], rng: &mut Rng) -> Result<Account> {
        let (mut all, mut count) = (Account::default(), 0);
        wait("the store decides", PATIENCE, async || {
            count += 1;
            let new = format!("new-{count}");
            let asked = [users, &[&new]].concat();
            let more = self.ask_all(&asked, 200, rng).await.ok()?;
            let decided = more.of(&new).allowed() > 0 && more.degraded() == 0;
            all.add(more);
            decided.then_some(())
        })
        .await?;
        all.add(self.ask_all(users, 1_000, rng).await?);
        Ok(all)
    }

    /// Callers of each of these users at a time, far above the limit.
    pub(super) async fn ask_all(&self, users: &[&str], ms: u64, rng: &mut Rng) -> Result<Account> {
        let start = |user: &&str| self.asked(user, ms).pause(4).start(rng);
        let running: Vec<Running> = users.iter().map(start).collect();
        let mut all = Account::default();
        for running in running {
            all.add(running.finish().await?);
        }
        Ok(all)
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

async fn empty(store: &Redis) -> Result<()> {
    store.command(&["FLUSHALL"]).await.map(drop)
}

async fn pause(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

pub(crate) async fn run(rng: &mut Rng) -> Result<String> {
    let cell = Cell::new(rng, &ON_REDIS);
    let mut store = Store::start(cell.store, cell.extras(), rng).await?;
    let mut bounded = Bounded::start(&store.url, cell).await?;
    bounded.check(&mut store.servers[0], rng).await
}
