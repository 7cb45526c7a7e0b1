//! Hold: how holds are made on the store, in one trip where one script sees all that they stand on.
//!
//! What is known of an id stands under a name of its own; the states it stands on bear the holds. One
//! script sees them all, so a claim that was sent twice finds what the first one did. On a cluster it
//! sees one slot of them: see `slots`.

use std::sync::Arc;
use std::time::Duration;

use quell::store::{HoldTotals, Placed, StoreError};
use quell_core::charge::{Charge, LimitSet};
use quell_core::decision::Decision;
use quell_core::hold::{Claim, HoldId, OnExpiry};
use quell_core::time::Now;
use redis::Value;

use crate::answer::{Reply, Said};
use crate::asked::{Asked, Codes, strange};
use crate::boxed::is_boxed;
use crate::code::{micros_up, number};
use crate::gather::Words;
use crate::link::Failure;
use crate::own::Standing;
use crate::slots::Part;
use crate::store::{RedisStore, Request};
use crate::ticks::MOST_UNITS;

/// Holds whose time was over that are asked about at once.
const MOST_OVERDUE: usize = 64;

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

/// A duration in microseconds; -1 for none.
fn perhaps(duration: Option<Duration>) -> [u8; 8] {
    duration.map_or((-1.0_f64).to_be_bytes(), |duration| {
        number(micros_up(duration))
    })
}

/// What is asked beyond an acquire, and what is said of the whole set to one that has a part of it.
fn wish(claim: &Claim<'_>, part: Option<Part>) -> Vec<u8> {
    let mut wish = perhaps(claim.hold).to_vec();
    match claim.wait {
        Some(wait) => {
            wish.extend_from_slice(&number(micros_down(wait.turn)));
            wish.extend_from_slice(&number(micros_down(wait.in_all)));
        }
        None => wish.extend_from_slice(&[perhaps(None), perhaps(None)].concat()),
    }
    if let Some(part) = part {
        wish.push(part.whole as u8);
        wish.extend_from_slice(&perhaps(part.stay));
        wish.extend_from_slice(&number(micros_up(part.delay)));
        wish.extend_from_slice(&number(part.attempt));
        wish.push(u8::from(part.counts));
    }
    wish
}

/// A duration in microseconds, rounded down: who would wait for so long does not wait for longer.
fn micros_down(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// How long what a claim holds lasts, where others can end it: reservations and permits.
pub(crate) fn keep_of(set: &LimitSet<'_>, claim: &Claim<'_>) -> Option<Duration> {
    let leases = set.charges().iter();
    let leases = leases.filter_map(|charge| charge.installed.limit.lease());
    leases.chain(claim.hold).max()
}

impl RedisStore {
    /// Makes a claim; with the clock of the server that did, in microseconds.
    pub(crate) async fn try_hold(
        &self,
        set: &LimitSet<'_>,
        claim: &Claim<'_>,
        now: Now,
    ) -> Result<(Placed, u64), Trouble> {
        self.catch_up().await?;
        let asked = Asked::new(self, set);
        let answer = if self.link.is_spread() {
            self.claim_in_slots(&asked, claim, now).await?
        } else {
            let all: Vec<_> = (0..asked.names.len()).collect();
            let name = self.names.hold(claim.id.as_bytes(), None);
            let claimed = self.claim_at(&asked, &all, claim, &name, None, now);
            self.in_time(&name, claimed).await?
        };
        let refused = match answer.status {
            2 | 4 => Some(StoreError::HoldTaken),
            3 => Some(StoreError::TooManyHolds),
            _ => None,
        };
        if let Some(error) = refused {
            return Err(Trouble::Refused(error));
        }
        if answer.wait.is_some() || self.rehearsal.is_some() {
            for spot in self.spots(claim.id, &asked.names) {
                if answer.wait.is_some() {
                    let is_own = self.keeps_time();
                    self.calls
                        .enter(claim.id, &spot.calls, answer.clock, is_own);
                }
                if let Some(rehearsal) = &self.rehearsal {
                    rehearsal.noted([spot.record, spot.calls]);
                }
            }
        }
        // A claim that is repeated leaves states as they are.
        if answer.status == 0 {
            self.name_bans(set, &answer.said).await;
            self.touched(set, asked.into_names());
        }
        self.own.expired(answer.expired);
        if answer.held == 1 && answer.status == 0 {
            let standing = Standing::of(set, claim, &answer.decisions, answer.wait);
            self.own.made(claim.id, standing, now.monotonic);
        }
        let placed = Placed {
            decisions: answer.decisions,
            held: answer.held == 1,
            wait: answer.wait,
            repeated: answer.status == 1,
            degraded: false,
        };
        Ok((placed, answer.clock))
    }

    /// Makes a claim on charges that one script may see, under the record of this name.
    pub(crate) async fn claim_at(
        &self,
        asked: &Asked<'_>,
        group: &[usize],
        claim: &Claim<'_>,
        record: &[u8],
        part: Option<Part>,
        now: Now,
    ) -> Result<Claimed, Failure> {
        let head = self.head(Request::Claim, Duration::ZERO, now);
        let claimed = self.claim_once(asked, group, claim, record, part, &head);
        match claimed.await {
            Err(Failure::Foreign(reason)) => {
                let replaced = asked.replace_foreign(group, Some(record), &head, &reason);
                replaced.await?;
                let again = self.claim_once(asked, group, claim, record, part, &head);
                again.await
            }
            claimed => claimed,
        }
    }

    async fn claim_once(
        &self,
        asked: &Asked<'_>,
        group: &[usize],
        claim: &Claim<'_>,
        record: &[u8],
        part: Option<Part>,
        head: &[u8],
    ) -> Result<Claimed, Failure> {
        let mut keys = vec![record.to_vec()];
        let mut arguments = vec![
            head.to_vec(),
            wish(claim, part),
            claim.id.as_bytes().to_vec(),
        ];
        for index in group {
            let name = asked.names.get(*index);
            let (code, charge) = (asked.codes.get(*index), asked.set.charges().get(*index));
            let (Some(name), Some(code), Some(charge)) = (name, code, charge) else {
                continue;
            };
            keys.push(name.clone());
            arguments.push(code.clone());
            arguments.push(extra(charge, claim));
        }
        let words = Words { keys, arguments };
        let reply = asked.ask(group, words, Codes { first: 3, step: 2 }, true);
        let reply = reply.await?;
        Claimed::read(&reply).ok_or_else(|| strange(&reply))
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

/// The answer to a claim.
#[derive(Clone, Debug, Default)]
pub(crate) struct Claimed {
    pub(crate) clock: u64,
    /// 0 if it is new, 1 if it was answered before, 2 if the id stands for something else, 3 if there
    /// are too many holds, 4 if a later attempt at the same has it.
    pub(crate) status: u64,
    pub(crate) wait: Option<Duration>,
    /// 0 if nothing is held, 1 if something is, 2 if it is until the whole set is known to pass.
    pub(crate) held: u64,
    /// Holds that were over, whosever they were.
    pub(crate) expired: u64,
    pub(crate) said: Vec<Said>,
    pub(crate) decisions: Vec<Decision>,
}

impl Claimed {
    fn read(reply: &Value) -> Option<Self> {
        let mut reply = Reply::of(reply)?;
        let clock = reply.natural()?;
        let status = reply.natural()?;
        let wait = u64::try_from(reply.number()?).ok();
        let held = reply.natural()?;
        let expired = reply.natural()?;
        let mut said = Vec::new();
        while !reply.is_over() {
            said.push(Said::read(&mut reply, clock)?);
        }
        Some(Self {
            wait: wait.map(Duration::from_micros),
            decisions: said.iter().filter_map(|said| said.told()).collect(),
            clock,
            status,
            held,
            expired,
            said,
        })
    }

    /// The id stands for something else.
    pub(crate) fn taken() -> Self {
        Self {
            status: 2,
            ..Self::default()
        }
    }

    /// What was answered before.
    pub(crate) fn again(said: Vec<Said>, clock: u64) -> Self {
        Self {
            clock,
            status: 1,
            held: 1,
            decisions: said.iter().filter_map(|said| said.told()).collect(),
            said,
            ..Self::default()
        }
    }

    /// Whether it is an answer to what was asked.
    pub(crate) const fn is_sound(&self) -> bool {
        self.status < 2
    }

    /// How long its caller waits, if it does.
    pub(crate) fn longest(&self) -> Duration {
        let delays = self.decisions.iter().map(|decision| decision.delay);
        delays.max().max(self.wait).unwrap_or_default()
    }
}
