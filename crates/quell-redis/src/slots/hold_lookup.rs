//! Looks up an id that was claimed before, to answer a repeated claim.

use std::time::Duration;

use crate::resp::Value;
use futures_util::future::join_all;
use quell_core::actual::CostOrigin;
use quell_core::charge::Charge;
use quell_core::claim::Claim;
use quell_core::hold::HoldId;
use quell_core::time::Now;

use super::hold_location::HoldLocation;
use crate::answer::{RawDecision, Reply, strange};
use crate::claim::{ClaimReply, descriptors};
use crate::link::Failure;
use crate::opcode::Opcode;
use crate::pointer::Pointer;
use crate::script::DECIDE;
use crate::script_request::ScriptRequest;
use crate::servers::Servers;
use crate::ticks::MAX_UNITS;

/// Record of an id in one slot.
struct HoldLookup {
    stands: bool,
    /// True for a part of a set that spans slots.
    is_part: bool,
    /// Number of descriptors of the hold.
    descriptors: u64,
    places: Vec<HeldCharge>,
    answer: Vec<RawDecision>,
    clock: u64,
}

/// A state with a hold.
#[derive(PartialEq, Eq)]
struct HeldCharge {
    name: Vec<u8>,
    units: u64,
    /// Units that a rule set.
    fixed: u64,
    /// The descriptors whose own cost it has.
    descriptors: Vec<u8>,
}

impl HeldCharge {
    fn new(name: &[u8], charge: &Charge<'_>, origin: CostOrigin) -> Self {
        Self {
            name: name.to_vec(),
            units: charge.units().min(MAX_UNITS + 1),
            fixed: origin.fixed.min(MAX_UNITS + 1),
            descriptors: descriptors(origin).collect(),
        }
    }

    fn read(reply: &mut Reply<'_>) -> Option<Self> {
        Some(Self {
            name: reply.bytes()?.to_vec(),
            units: reply.natural()?,
            fixed: reply.natural()?,
            descriptors: reply.bytes()?.to_vec(),
        })
    }
}

impl HoldLookup {
    /// `None` if the reply is invalid; `Some(None)` if the id is not known.
    fn read(reply: &Value) -> Option<Option<Self>> {
        let mut reply = Reply::new(reply)?;
        let clock = reply.natural()?;
        let Ok(status) = u64::try_from(reply.number()?) else {
            return Some(None);
        };
        let is_part = reply.natural()? != 0;
        let descriptors = reply.natural()?;
        let count = reply.natural()?;
        let places = (0..count).map(|_| HeldCharge::read(&mut reply));
        let places = places.collect::<Option<_>>()?;
        Some(Some(Self {
            stands: status == 0,
            is_part,
            descriptors,
            places,
            answer: RawDecision::read_all(reply, clock)?,
            clock,
        }))
    }

    async fn at(
        servers: &Servers,
        id: &HoldId,
        location: &HoldLocation,
        now: Now,
    ) -> Result<Option<Self>, Failure> {
        let head = servers.clock.head(Opcode::LookUp, Duration::ZERO, now);
        let arguments = [head, Vec::new(), id.as_bytes().to_vec()];
        let keys = std::slice::from_ref(&location.record);
        let reply = servers.run(&DECIDE, keys, &arguments).await?;
        Self::read(&reply).ok_or_else(|| strange(&reply))
    }
}

/// The answer to a claim whose id is known at the locations of `earlier`; `None` if it is not known, or
/// if an earlier attempt never ended.
pub(super) async fn look_up(
    earlier: &Pointer,
    request: &ScriptRequest<'_>,
    claim: &Claim<'_>,
    now: Now,
) -> Result<Option<ClaimReply>, Failure> {
    let servers = request.servers;
    let locations = HoldLocation::all(servers, claim.id, &earlier.states);
    let looks = locations
        .iter()
        .map(|location| HoldLookup::at(servers, claim.id, location, now));
    let mut found = Vec::new();
    for look in join_all(looks).await {
        found.extend(look?);
    }
    if found.is_empty() {
        return Ok(None);
    }
    let places = || found.iter().flat_map(|found| &found.places);
    let mut standing = found.iter().filter(|found| found.stands).peekable();
    let Some(clock) = standing.peek().map(|found| found.clock) else {
        return Ok(Some(ClaimReply::id_taken()));
    };
    let raw = match &earlier.answer {
        Some(answer) => RawDecision::read_all(Reply { rest: answer }, clock),
        None => standing
            .find(|found| !found.is_part)
            .map(|found| found.answer.clone()),
    };
    let Some(raw) = raw else {
        // The earlier claim was never answered. A claim on the same limits continues it.
        let is_same = places().all(|place| request.names.contains(&place.name));
        return Ok((!is_same).then(ClaimReply::id_taken));
    };
    let charges = request.set.charges().iter().zip(request.set.cost_origins());
    let mut charges = charges.zip(&request.names);
    let is_same = charges.all(|((charge, origin), name)| {
        let is_for_good = claim.hold.is_none() && charge.active.limit.lease().is_none();
        let held = HeldCharge::new(name, charge, origin);
        charge.shadow || is_for_good || places().any(|place| *place == held)
    });
    let count = request.set.descriptors() as u64;
    let is_same = is_same && found.iter().all(|found| found.descriptors == count);
    Ok(Some(match is_same {
        true => ClaimReply::repeated(raw, clock),
        false => ClaimReply::id_taken(),
    }))
}
