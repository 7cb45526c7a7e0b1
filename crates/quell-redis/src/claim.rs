//! A claim as a script call: its arguments and its reply.

use std::time::Duration;

use crate::resp::Value;
use quell_core::actual::CostOrigin;
use quell_core::charge::Charge;
use quell_core::claim::Claim;
use quell_core::decision::Decision;
use quell_core::hold::OnExpiry;
use quell_core::time::Now;

use crate::answer::{RawDecision, Reply, complete};
use crate::encode::{NONE, micros_down, micros_up, number};
use crate::link::Failure;
use crate::opcode::Opcode;
use crate::script::ScriptArgs;
use crate::script_request::{GroupScript, ScriptRequest};
use crate::ticks::MAX_UNITS;

/// Facts about the whole set that a slot has to know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotContext {
    pub(crate) verdict: SetVerdict,
    /// The longest hold or lease of the set.
    pub(crate) stay: Option<Duration>,
    /// The longest delay of the set, of a caller that waits for it.
    pub(crate) delay: Duration,
    pub(crate) attempt: u64,
    /// True if the hold is counted here, of all slots.
    pub(crate) counts: bool,
}

/// The result of a peek at the whole set, just before the claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetVerdict {
    Passes = 0,
    /// A limit refuses it: nothing is charged anywhere, and refusals count for bans.
    Refused = 1,
    /// The caller would not wait for its delay.
    TooLong = 2,
}

/// The argument that follows a charge: units, lease (-1: none), units that a rule set, 1 if it is released
/// when its time is over, and the descriptors whose own cost it has.
fn charge_argument(charge: &Charge<'_>, origin: CostOrigin, claim: &Claim<'_>) -> Vec<u8> {
    let limit = &charge.active.limit;
    let is_released = match (limit.lease(), claim.hold) {
        (Some(_), _) => true,
        (None, Some(_)) => limit.at_expiry() == OnExpiry::Release,
        (None, None) => false,
    };
    // More than that never fits, and need not be counted exactly.
    let units = charge.units().min(MAX_UNITS + 1);
    let fixed = origin.fixed.min(MAX_UNITS + 1);
    let mut bytes = [number(units), optional_micros(limit.lease()), number(fixed)].concat();
    bytes.push(u8::from(is_released));
    bytes.extend(descriptors(origin));
    bytes
}

/// The descriptors whose own cost a charge has, a byte for each.
pub(crate) fn descriptors(origin: CostOrigin) -> impl Iterator<Item = u8> {
    origin
        .indices()
        .filter_map(|index| u8::try_from(index).ok())
}

fn optional_micros(duration: Option<Duration>) -> [u8; 8] {
    duration.map_or(NONE, |duration| number(micros_up(duration)))
}

/// The claim itself, and for a slot that has a part of the set, the context of the whole set.
fn claim_argument(claim: &Claim<'_>, descriptors: usize, context: Option<SlotContext>) -> Vec<u8> {
    // Rounded down: a caller does not wait for longer than it said.
    let patience = claim.wait.map_or([NONE; 2], |wait| {
        [wait.turn, wait.in_all].map(|limit| number(micros_down(limit)))
    });
    let mut argument = optional_micros(claim.hold).to_vec();
    argument.extend_from_slice(&patience.concat());
    argument.extend_from_slice(&number(descriptors as u64));
    if let Some(context) = context {
        let (stay, delay) = (optional_micros(context.stay), micros_up(context.delay));
        argument.push(context.verdict as u8);
        argument.extend_from_slice(&[stay, number(delay), number(context.attempt)].concat());
        argument.push(u8::from(context.counts));
    }
    argument
}

/// Claims charges that one script call may see; `record` is the name of the hold's record.
pub(crate) async fn claim_at(
    request: &ScriptRequest<'_>,
    group: &[usize],
    claim: &Claim<'_>,
    record: &[u8],
    context: Option<SlotContext>,
    now: Now,
) -> Result<ClaimReply, Failure> {
    let mut keys = vec![record.to_vec()];
    let mut arguments = vec![
        request
            .servers
            .clock
            .head(Opcode::Claim, Duration::ZERO, now),
        claim_argument(claim, request.set.descriptors(), context),
        claim.id.as_bytes().to_vec(),
    ];
    let origins = request.set.cost_origins();
    for index in group {
        let origin = origins.get(*index).copied().unwrap_or_default();
        let name = request.names.get(*index);
        let (code, charge) = (request.codes.get(*index), request.set.charges().get(*index));
        let (Some(name), Some(code), Some(charge)) = (name, code, charge) else {
            continue;
        };
        keys.push(name.clone());
        arguments.push(code.clone());
        arguments.push(charge_argument(charge, origin, claim));
    }
    let script = GroupScript {
        group,
        is_claim: true,
    };
    let args = ScriptArgs::new(keys, arguments);
    request.run_script(script, args, ClaimReply::read).await
}

/// The answer to a claim.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClaimReply {
    pub(crate) clock: u64,
    /// 0 if it is new, 1 if it was answered before, 2 if another claim has the id, 3 if there are too many
    /// holds, 4 if a later attempt at the same claim owns it.
    pub(crate) status: u64,
    pub(crate) wait: Option<Duration>,
    /// 0 if nothing is held, 1 if something is, 2 if only until the whole set is known to pass.
    pub(crate) held: u64,
    /// Holds that expired, in whatever process they were made.
    pub(crate) expired: u64,
    pub(crate) raw: Vec<RawDecision>,
    pub(crate) decisions: Vec<Decision>,
}

impl ClaimReply {
    fn read(reply: &Value) -> Option<Self> {
        let mut reply = Reply::new(reply)?;
        let clock = reply.natural()?;
        let status = reply.natural()?;
        let wait = reply.optional_micros()?;
        let held = reply.natural()?;
        let expired = reply.natural()?;
        let raw = RawDecision::read_all(reply, clock)?;
        Some(Self {
            decisions: complete(&raw),
            clock,
            status,
            wait,
            held,
            expired,
            raw,
        })
    }

    /// Another claim has the id.
    pub(crate) fn id_taken() -> Self {
        Self {
            status: 2,
            ..Self::default()
        }
    }

    /// The answer of an earlier, equal claim.
    pub(crate) fn repeated(raw: Vec<RawDecision>, clock: u64) -> Self {
        Self {
            clock,
            status: 1,
            held: 1,
            decisions: complete(&raw),
            raw,
            ..Self::default()
        }
    }

    /// Returns true if the claim was decided, now or before.
    pub(crate) const fn is_sound(&self) -> bool {
        self.status < 2
    }

    /// Longest wait of the claim's caller, if it waits.
    pub(crate) fn longest_wait(&self) -> Duration {
        let delays = self.decisions.iter().map(|decision| decision.delay);
        delays.max().max(self.wait).unwrap_or_default()
    }
}
