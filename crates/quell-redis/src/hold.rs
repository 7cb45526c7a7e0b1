//! Makes holds on the store, in one round trip if one script sees all their states.
//!
//! Each hold has a record under its id, and the states of its keys list the hold. One script sees all of
//! them, so a claim that is sent twice finds the first one. On a cluster a script sees one slot: see
//! `slots`.

use std::sync::Arc;
use std::time::Duration;

use quell::store::{HoldTotals, Placed, StoreError};
use quell_core::charge::{Charge, LimitSet};
use quell_core::claim::Claim;
use quell_core::decision::Decision;
use quell_core::hold::{HoldId, OnExpiry};
use quell_core::time::Now;
use redis::Value;

use crate::answer::{RawDecision, Reply};
use crate::batch::{ScriptArgs, run_rate_script};
use crate::encode::{micros_up, number};
use crate::hold_gauges::GaugedHold;
use crate::hold_hints::needs_hold_script;
use crate::link::Failure;
use crate::script_request::{ChargePositions, GroupScript, ScriptRequest, strange};
use crate::slots::{HoldLocation, SlotContext, claim_in_slots};
use crate::store::{Opcode, RedisStore, StoreClock};
use crate::ticks::MAX_UNITS;

/// Holds whose time was over that are asked about at once.
const MAX_OVERDUE: usize = 64;

/// Why nothing was held.
#[derive(Debug)]
pub(crate) enum HoldError {
    /// The store cannot tell.
    Failed(Failure),
    /// It can, and says no.
    Refused(StoreError),
}

impl From<Failure> for HoldError {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl HoldError {
    pub(crate) fn error(self, store: &RedisStore) -> StoreError {
        match self {
            Self::Failed(failure) => store.error(&failure),
            Self::Refused(error) => error,
        }
    }
}

/// What the script is told of one charge beside its limit: units, lease (-1: none), and 1 if it is
/// released when its time is over, 2 if it can be settled.
fn charge_argument(charge: &Charge<'_>, claim: &Claim<'_>) -> Vec<u8> {
    let limit = &charge.active.limit;
    let is_released = match (limit.lease(), claim.hold) {
        (Some(_), _) => true,
        (None, Some(_)) => limit.at_expiry() == OnExpiry::Release,
        (None, None) => false,
    };
    let mut bytes = number(charge.cost.get().min(MAX_UNITS)).to_vec();
    bytes.extend_from_slice(&optional_micros(limit.lease()));
    bytes.push(u8::from(is_released) + 2 * u8::from(!charge.counts_calls));
    bytes
}

/// A duration in microseconds; -1 for none.
fn optional_micros(duration: Option<Duration>) -> [u8; 8] {
    duration.map_or((-1.0_f64).to_be_bytes(), |duration| {
        number(micros_up(duration))
    })
}

/// What is asked beyond an acquire, and what is said of the whole set to one that has a part of it.
fn claim_argument(claim: &Claim<'_>, context: Option<SlotContext>) -> Vec<u8> {
    let mut claim_argument = optional_micros(claim.hold).to_vec();
    match claim.wait {
        Some(wait) => {
            claim_argument.extend_from_slice(&number(micros_down(wait.turn)));
            claim_argument.extend_from_slice(&number(micros_down(wait.in_all)));
        }
        None => claim_argument
            .extend_from_slice(&[optional_micros(None), optional_micros(None)].concat()),
    }
    if let Some(context) = context {
        claim_argument.push(context.verdict as u8);
        claim_argument.extend_from_slice(&optional_micros(context.stay));
        claim_argument.extend_from_slice(&number(micros_up(context.delay)));
        claim_argument.extend_from_slice(&number(context.attempt));
        claim_argument.push(u8::from(context.counts));
    }
    claim_argument
}

/// A duration in microseconds, rounded down: who would wait for so long does not wait for longer.
fn micros_down(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// How long what a claim holds lasts, where others can end it: reservations and permits.
pub(crate) fn hold_time(set: &LimitSet<'_>, claim: &Claim<'_>) -> Option<Duration> {
    let leases = set.charges().iter();
    let leases = leases.filter_map(|charge| charge.active.limit.lease());
    leases.chain(claim.hold).max()
}

impl RedisStore {
    /// Makes a claim; with the clock of the server that did, in microseconds.
    pub(crate) async fn try_hold(
        &self,
        set: &LimitSet<'_>,
        claim: &Claim<'_>,
        now: Now,
    ) -> Result<(Placed, u64), HoldError> {
        self.apply_limit_changes().await?;
        let request = ScriptRequest::new(self, set);
        let answer = if self.link.is_spread() {
            claim_in_slots(&request, claim, now).await?
        } else {
            let all: Vec<_> = (0..request.names.len()).collect();
            let name = self.names.hold(claim.id.as_bytes(), None);
            let claimed = self.claim_at(&request, &all, claim, &name, None, now);
            self.in_time(&name, claimed).await?
        };
        let refused = match answer.status {
            2 | 4 => Some(StoreError::HoldTaken),
            3 => Some(StoreError::TooManyHolds),
            _ => None,
        };
        if let Some(error) = refused {
            return Err(HoldError::Refused(error));
        }
        if answer.wait.is_some() || self.test_isolation.is_some() {
            for location in HoldLocation::all(self, claim.id, &request.names) {
                if answer.wait.is_some() {
                    let is_own = self.clock() == StoreClock::Own;
                    self.turn_notifications
                        .add(claim.id, &location.stream, answer.clock, is_own);
                }
                if let Some(isolation) = &self.test_isolation {
                    isolation.note_names([location.record, location.stream]);
                }
            }
        }
        // A claim that is repeated leaves states as they are.
        if answer.status == 0 {
            self.list_bans(set, &answer.raw).await;
            self.note_charged(set, request.into_names());
        }
        self.hold_gauges.add_expired(answer.expired);
        if answer.held == 1 && answer.status == 0 {
            let standing = GaugedHold::of(set, claim, &answer.decisions, answer.wait);
            self.hold_gauges.add(claim.id, standing, now.monotonic);
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
        request: &ScriptRequest<'_>,
        group: &[usize],
        claim: &Claim<'_>,
        record: &[u8],
        context: Option<SlotContext>,
        now: Now,
    ) -> Result<ClaimReply, Failure> {
        let mut keys = vec![record.to_vec()];
        let mut arguments = vec![
            self.head(Opcode::Claim, Duration::ZERO, now),
            claim_argument(claim, context),
            claim.id.as_bytes().to_vec(),
        ];
        for index in group {
            let name = request.names.get(*index);
            let (code, charge) = (request.codes.get(*index), request.set.charges().get(*index));
            let (Some(name), Some(code), Some(charge)) = (name, code, charge) else {
                continue;
            };
            keys.push(name.clone());
            arguments.push(code.clone());
            arguments.push(charge_argument(charge, claim));
        }
        let script = GroupScript {
            group,
            record: Some(record),
            charges: ChargePositions { first: 3, step: 2 },
            is_of_holds: true,
        };
        let args = ScriptArgs { keys, arguments };
        let reply = request.run_script(script, args).await?;
        ClaimReply::read(&reply).ok_or_else(|| strange(&reply))
    }

    /// How many holds of this process there are. Asks about some whose time was over, so that those
    /// count as expired on keys that nobody asks about.
    pub async fn hold_totals(&self, now: Now) -> HoldTotals {
        let overdue = self
            .hold_gauges
            .take_overdue(now.monotonic, self.timeout, MAX_OVERDUE);
        let mut overdue = overdue.into_iter();
        while let Some((due, id)) = overdue.next() {
            if self.try_advance(&id, now).await.is_err() {
                let rest = std::iter::once((due, id)).chain(overdue);
                self.hold_gauges.put_back(rest.collect());
                break;
            }
        }
        self.hold_gauges.totals(now.monotonic)
    }

    /// Runs the script for rates, or the hold script if one of the states needs it.
    pub(crate) async fn run_script(&self, args: &Arc<ScriptArgs>) -> Result<Value, Failure> {
        if !self.scripts.hold_hints.has(&args.keys) {
            let reply = run_rate_script(self, args).await?;
            if !needs_hold_script(&reply) {
                return Ok(reply);
            }
            self.scripts.hold_hints.add(&args.keys);
        }
        self.run_hold_script(args).await
    }

    /// Runs the hold script.
    pub(crate) async fn run_hold_script(&self, args: &ScriptArgs) -> Result<Value, Failure> {
        let script = &self.scripts.hold;
        script.run(&self.link, &args.keys, &args.arguments).await
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
pub(crate) struct ClaimReply {
    pub(crate) clock: u64,
    /// 0 if it is new, 1 if it was answered before, 2 if the id stands for something else, 3 if there
    /// are too many holds, 4 if a later attempt at the same has it.
    pub(crate) status: u64,
    pub(crate) wait: Option<Duration>,
    /// 0 if nothing is held, 1 if something is, 2 if it is until the whole set is known to pass.
    pub(crate) held: u64,
    /// Holds that were over, whosever they were.
    pub(crate) expired: u64,
    pub(crate) raw: Vec<RawDecision>,
    pub(crate) decisions: Vec<Decision>,
}

impl ClaimReply {
    fn read(reply: &Value) -> Option<Self> {
        let mut reply = Reply::of(reply)?;
        let clock = reply.natural()?;
        let status = reply.natural()?;
        let wait = u64::try_from(reply.number()?).ok();
        let held = reply.natural()?;
        let expired = reply.natural()?;
        let mut raw = Vec::new();
        while !reply.is_over() {
            raw.push(RawDecision::read(&mut reply, clock)?);
        }
        Some(Self {
            wait: wait.map(Duration::from_micros),
            decisions: raw.iter().filter_map(|raw| raw.complete()).collect(),
            clock,
            status,
            held,
            expired,
            raw,
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
    pub(crate) fn repeated(raw: Vec<RawDecision>, clock: u64) -> Self {
        Self {
            clock,
            status: 1,
            held: 1,
            decisions: raw.iter().filter_map(|raw| raw.complete()).collect(),
            raw,
            ..Self::default()
        }
    }

    /// Whether it is an answer to what was asked.
    pub(crate) const fn is_sound(&self) -> bool {
        self.status < 2
    }

    /// How long its caller waits, if it does.
    pub(crate) fn longest_wait(&self) -> Duration {
        let delays = self.decisions.iter().map(|decision| decision.delay);
        delays.max().max(self.wait).unwrap_or_default()
    }
}
