//! Hold: how holds are made, ended and moved up on the store, each in one trip.
//!
//! What is known of an id stands under a name of its own; the states it stands on bear the holds. One
//! script sees them all, so a claim that was sent twice finds what the first one did.

use std::sync::Arc;
use std::time::Duration;

use quell::store::{Fate, Finished, HoldTotals, Placed, StoreError};
use quell_core::charge::{Charge, LimitSet};
use quell_core::hold::{Claim, Ending, HoldId, OnExpiry};
use quell_core::time::{Now, Wall};
use redis::Value;

use crate::answer::{Reply, Said};
use crate::asked::{Asked, MOST_LOOKS, strange};
use crate::boxed::is_boxed;
use crate::code::micros_up;
use crate::gather::Words;
use crate::link::Failure;
use crate::own::Standing;
use crate::store::{RedisStore, Request};
use crate::ticks::MOST_UNITS;

/// What is said on a cluster, where an id alone does not say which server knows it.
const NO_CLUSTER: &str = "nothing waits, is reserved or held on a cluster yet: name one server or \
     its sentinels, redis://HOST:PORT/0 or redis+sentinel://HOST:PORT/0?master=NAME";

/// Holds whose time was over that are asked about at once.
const MOST_OVERDUE: usize = 64;

/// Keys and arguments of the script.
type Told = (Vec<Vec<u8>>, Vec<Vec<u8>>);

/// Why nothing was held.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The store cannot tell.
    Failed(Failure),
    /// It can, and says no.
    Refused(StoreError),
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl Trouble {
    pub(crate) fn error(self, store: &RedisStore) -> StoreError {
        match self {
            Self::Failed(failure) => store.error(&failure),
            Self::Refused(error) => error,
        }
    }
}

/// What the script is told of one charge beside its limit: units, lease (-1: none), and 1 if it is
/// released when its time is over, 2 if it can be settled.
fn extra(charge: &Charge<'_>, claim: &Claim<'_>) -> Vec<u8> {
    let limit = &charge.installed.limit;
    let is_released = match (limit.lease(), claim.hold) {
        (Some(_), _) => true,
        (None, Some(_)) => limit.at_expiry() == OnExpiry::Release,
        (None, None) => false,
    };
    let mut bytes = number(charge.cost.get().min(MOST_UNITS)).to_vec();
    bytes.extend_from_slice(&perhaps(limit.lease()));
    bytes.push(u8::from(is_released) + 2 * u8::from(!charge.counts_calls));
    bytes
}

#[expect(
    clippy::cast_precision_loss,
    reason = "at most 2^53, where doubles are exact"
)]
fn number(number: u64) -> [u8; 8] {
    (number.min(1 << 53) as f64).to_be_bytes()
}

/// A duration in microseconds; -1 for none.
fn perhaps(duration: Option<Duration>) -> [u8; 8] {
    duration.map_or((-1.0_f64).to_be_bytes(), |duration| {
        number(micros_up(duration))
    })
}

/// A duration in microseconds, rounded down: who would wait for so long does not wait for longer.
fn micros_down(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

impl RedisStore {
    /// Makes a claim.
    pub(crate) async fn try_hold(
        &self,
        set: &LimitSet<'_>,
        claim: &Claim<'_>,
        now: Now,
    ) -> Result<Placed, Trouble> {
        if self.link.is_spread() {
            return Err(Trouble::Refused(StoreError::Unable(NO_CLUSTER)));
        }
        self.catch_up().await?;
        let asked = Asked::new(self, set);
        let name = self.names.hold(claim.id.as_bytes());
        let claimed = self.claim(&asked, set, claim, now);
        let reply = self.in_time(&name, claimed).await?;
        let answer = Claimed::read(&reply);
        let answer = answer.ok_or_else(|| strange(&reply))?;
        let refused = match answer.status {
            2 => Some(StoreError::HoldTaken),
            3 => Some(StoreError::TooManyHolds),
            _ => None,
        };
        if let Some(error) = refused {
            return Err(Trouble::Refused(error));
        }
        if answer.wait.is_some() {
            self.calls.enter(claim.id, answer.clock, self.keeps_time());
        }
        // A claim that is repeated leaves states as they are.
        if answer.status == 0 {
            self.name_bans(set, &answer.said).await;
            self.touched(set, asked.into_names());
        }
        let decisions: Vec<_> = answer.said.into_iter().filter_map(Said::told).collect();
        self.own.expired(answer.expired);
        if answer.held && answer.status == 0 {
            let standing = Standing::of(set, claim, &decisions, answer.wait);
            self.own.made(claim.id, standing, now.monotonic);
        }
        if let Some(rehearsal) = &self.rehearsal {
            rehearsal.noted([self.names.hold(claim.id.as_bytes()), self.names.calls()]);
        }
        Ok(Placed {
            decisions,
            held: answer.held,
            wait: answer.wait,
            repeated: answer.status == 1,
            degraded: false,
        })
    }

    async fn claim(
        &self,
        asked: &Asked<'_>,
        set: &LimitSet<'_>,
        claim: &Claim<'_>,
        now: Now,
    ) -> Result<Value, Failure> {
        let mut keys = vec![self.names.hold(claim.id.as_bytes())];
        keys.extend(asked.names.iter().cloned());
        let mut numbers = perhaps(claim.hold).to_vec();
        match claim.wait {
            Some(wait) => {
                numbers.extend_from_slice(&number(micros_down(wait.turn)));
                numbers.extend_from_slice(&number(micros_down(wait.in_all)));
            }
            None => numbers.extend_from_slice(&[perhaps(None), perhaps(None)].concat()),
        }
        let head = self.head(Request::Claim, Duration::ZERO, now);
        let mut arguments = vec![head, numbers, claim.id.as_bytes().to_vec()];
        for (charge, code) in set.charges().iter().zip(&asked.codes) {
            arguments.push(code.clone());
            arguments.push(extra(charge, claim));
        }
        for _ in 0..MOST_LOOKS {
            let script = &self.scripts.hold;
            let reply = script.run(&self.link, &keys, &arguments).await?;
            let Some(wall) = other_edges(&reply) else {
                return Ok(reply);
            };
            for index in 0..asked.codes.len() {
                let code = asked.code_at(index, wall);
                if let (Some(code), Some(place)) = (code, arguments.get_mut(3 + 2 * index)) {
                    *place = code;
                }
            }
        }
        Err(Failure::Refused(
            "its clock does not stand still for as long as a look at the calendar takes".to_owned(),
        ))
    }

    /// Ends or renews a hold; `None` if nothing is known of it.
    pub(crate) async fn try_end(
        &self,
        id: &HoldId,
        ending: Ending,
        now: Now,
    ) -> Result<Option<Finished>, Failure> {
        if self.link.is_spread() {
            return Ok(None);
        }
        self.catch_up().await?;
        let (keys, arguments) = self.ending(id, ending, now);
        let reply = self.run_hold(&keys, &arguments).await?;
        let read = || -> Option<Option<Finished>> {
            let mut reply = Reply::of(&reply)?;
            reply.natural()?;
            let fate = match reply.number()? {
                -1 => return Some(None),
                0 => Fate::Stands,
                1 => Fate::Settled,
                2 => Fate::Cancelled,
                3 => Fate::Released,
                _ => Fate::Expired,
            };
            Some(Some(Finished {
                fate,
                repeated: reply.natural()? != 0,
                wait: u64::try_from(reply.number()?)
                    .ok()
                    .map(Duration::from_micros),
                next: {
                    self.own.expired(reply.natural()?);
                    ids(&mut reply)
                },
            }))
        };
        let finished = read().ok_or_else(|| strange(&reply))?;
        if finished.as_ref().is_none_or(|ended| ended.wait.is_none()) {
            self.calls.leave(id);
        }
        match &finished {
            Some(ended) if ended.fate != Fate::Stands => self.own.over(id),
            Some(ended) if ended.wait.is_some() => {}
            Some(_) if matches!(ending, Ending::Renew | Ending::Arrive) => {
                self.own.lasts(id, now.monotonic);
            }
            Some(_) => {}
            None => self.own.over(id),
        }
        Ok(finished)
    }

    /// Looks whether the turn of a hold comes sooner now; how long until then, and who is behind it.
    pub(crate) async fn try_advance(
        &self,
        id: &HoldId,
        now: Now,
    ) -> Result<Option<(Duration, Vec<HoldId>)>, Failure> {
        if self.link.is_spread() {
            return Ok(None);
        }
        self.catch_up().await?;
        let (keys, arguments) = self.of_hold(Request::Advance, id, Vec::new(), now);
        let reply = self.run_hold(&keys, &arguments).await?;
        let mut read = Reply::of(&reply).ok_or_else(|| strange(&reply))?;
        let (Some(_), Some(wait), Some(expired)) = (read.natural(), read.number(), read.natural())
        else {
            return Err(strange(&reply));
        };
        self.own.expired(expired);
        let next = ids(&mut read);
        let wait = u64::try_from(wait).ok().map(Duration::from_micros);
        Ok(wait.map(|wait| (wait, next)))
    }

    /// How many holds of this process there are. Asks about some whose time was over, so that those
    /// count as expired on keys that nobody asks about.
    pub async fn hold_totals(&self, now: Now) -> HoldTotals {
        let overdue = self
            .own
            .take_overdue(now.monotonic, self.timeout, MOST_OVERDUE);
        let mut overdue = overdue.into_iter();
        while let Some((due, id)) = overdue.next() {
            if self.try_advance(&id, now).await.is_err() {
                let rest = std::iter::once((due, id)).chain(overdue);
                self.own.put_back(rest.collect());
                break;
            }
        }
        self.own.totals(now.monotonic)
    }

    /// Asks the script for rates, or the one that knows holds where a state needs that.
    pub(crate) async fn ask(&self, words: &Arc<Words>) -> Result<Value, Failure> {
        if !self.scripts.boxed.has(&words.keys) {
            let reply = self.ask_rates(words).await?;
            if !is_boxed(&reply) {
                return Ok(reply);
            }
            self.scripts.boxed.add(&words.keys);
        }
        self.ask_holds(words).await
    }

    /// Asks the script that knows holds.
    pub(crate) async fn ask_holds(&self, words: &Words) -> Result<Value, Failure> {
        let script = &self.scripts.hold;
        script.run(&self.link, &words.keys, &words.arguments).await
    }

    async fn run_hold(&self, keys: &[Vec<u8>], arguments: &[Vec<u8>]) -> Result<Value, Failure> {
        let ran = self.scripts.hold.run(&self.link, keys, arguments);
        let name = keys.first().map_or(&[][..], Vec::as_slice);
        self.in_time(name, ran).await
    }

    /// What the script is told to end or renew a hold: keys and arguments.
    pub(crate) fn ending(&self, id: &HoldId, ending: Ending, now: Now) -> Told {
        let (code, units) = match ending {
            Ending::Settle(units) => (0, units.min(MOST_UNITS)),
            Ending::Cancel => (1, 0),
            Ending::Release => (2, 0),
            Ending::Renew => (3, 0),
            Ending::Arrive => (4, 0),
            Ending::Fail => (5, 0),
        };
        let mut argument = vec![code];
        argument.extend_from_slice(&number(units));
        self.of_hold(Request::End, id, argument, now)
    }

    fn of_hold(&self, request: Request, id: &HoldId, argument: Vec<u8>, now: Now) -> Told {
        let keys = vec![self.names.hold(id.as_bytes()), self.names.calls()];
        let head = self.head(request, Duration::ZERO, now);
        (keys, vec![head, argument, id.as_bytes().to_vec()])
    }
}

/// The store's clock, where the calendar's edges were not those around it.
fn other_edges(reply: &Value) -> Option<Wall> {
    let mut reply = Reply::of(reply)?;
    if reply.number()? != -1 {
        return None;
    }
    let wall = reply.natural()?;
    Some(Wall::from_nanos(wall.saturating_mul(1_000)))
}

/// The ids at the end of a reply.
pub(crate) fn ids(reply: &mut Reply<'_>) -> Vec<HoldId> {
    let mut ids: Vec<_> = std::iter::from_fn(|| reply.bytes())
        .filter_map(hold_id)
        .collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// The hold that these bytes name.
pub(crate) fn hold_id(bytes: &[u8]) -> Option<HoldId> {
    let at = bytes.iter().rposition(|byte| *byte == 0xFF)?;
    let (domain, name) = bytes.split_at_checked(at)?;
    let domain = std::str::from_utf8(domain).ok()?;
    HoldId::new(domain, std::str::from_utf8(name.get(1..)?).ok()?)
}

/// The answer of the script to a claim.
struct Claimed {
    clock: u64,
    status: u64,
    wait: Option<Duration>,
    held: bool,
    /// Holds that were over, whosever they were.
    expired: u64,
    said: Vec<Said>,
}

impl Claimed {
    fn read(reply: &Value) -> Option<Self> {
        let mut reply = Reply::of(reply)?;
        let clock = reply.natural()?;
        let status = reply.natural()?;
        let wait = u64::try_from(reply.number()?).ok();
        let held = reply.natural()? != 0;
        let expired = reply.natural()?;
        let mut said = Vec::new();
        while !reply.is_over() {
            said.push(Said::read(&mut reply, clock)?);
        }
        Some(Self {
            clock,
            status,
            wait: wait.map(Duration::from_micros),
            held,
            expired,
            said,
        })
    }
}
