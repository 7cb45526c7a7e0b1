//! Claims on a cluster, where the id of a hold does not tell which slot has its record.
//!
//! ```text
//! write pointer --> claim                              one slot: one script decides, waiting included
//! write pointer + peek at all limits --> claim in each slot --> confirm           several slots
//!                                            '--one refuses--> take back the others
//! ```
//!
//! A pointer in the id's own slot lists the slots that have its records; a call that ends a hold reads it.
//! The pointer is written first, and not at all if no other process will end the claim (an acquire that
//! waits): that takes one round trip.
//!
//! In several slots every charge is a hold at first, so that it can be taken back exactly; charges that are
//! final become so when all slots have passed. A claim never waits for its turn in several slots: where a
//! limit says wait, the set is refused. Attempts at the same id are numbered: a later attempt finds what an
//! earlier one charged and takes it over, and an attempt does not take back what a later one owns.

use std::time::Duration;

use quell_core::claim::Claim;
use quell_core::time::Now;

use quell::store::StoreError;
use quell_store::remote::HoldFailure;

mod hold_location;
mod hold_lookup;
mod spread;
pub(crate) mod stored_pointer;

pub(crate) use hold_location::{HoldLocation, run_at};

use crate::claim::{ClaimReply, claim_at};
use crate::hold_gauges::hold_time;
use crate::link::Failure;
use crate::pointer::{MAX_STATES, Pointer};
use crate::script_request::{ScriptRequest, whole};
use crate::servers::{Servers, random};
use hold_lookup::look_up;
use spread::SpreadClaim;

/// Most attempts to write a pointer while other nodes write it, too.
const MAX_TRIES: usize = 5;

/// Pauses before a claim that was overtaken by another attempt is made again. They are longer than the
/// other attempt takes to end.
const RETRY_PAUSES: [Duration; 4] = [
    Duration::from_millis(2),
    Duration::from_millis(5),
    Duration::from_millis(20),
    Duration::ZERO,
];

/// The pointer of a claim that waits longer than this is prolonged.
const FIRST_WAIT: Duration = Duration::from_secs(60);

/// The error for a set that is too wide for a pointer.
const TOO_WIDE: &str = "one query holds at most 256 limits on a cluster: ask for them in several";

/// State of an id's pointer: the id may be claimed, or not.
enum PointerState {
    /// The id may be claimed, and this is its pointer.
    Free(Pointer),
    /// The id was claimed before, and this is the answer.
    Answered(ClaimReply),
}

/// Makes a claim on a cluster.
pub(crate) async fn claim_in_slots(
    request: &ScriptRequest<'_>,
    claim: &Claim<'_>,
    now: Now,
) -> Result<ClaimReply, HoldFailure<Failure>> {
    if request.names.len() > MAX_STATES {
        return Err(HoldFailure::Refused(StoreError::Unable(TOO_WIDE)));
    }
    let group = match request.groups.as_slice() {
        [] => return claim_nothing(request, claim, now).await,
        [group] => group,
        _ => return claim_spread(request, claim, now).await,
    };
    let pointer = match claim_pointer(request, claim, now).await? {
        PointerState::Answered(claimed) => return Ok(claimed),
        PointerState::Free(pointer) => pointer,
    };
    let servers = request.servers;
    let location = HoldLocation::new(servers, claim.id, request.names.clone());
    let claimed = claim_at(request, group, claim, &location.record, None, now).await;
    let claimed = claimed.map_err(|failure| whole(failure, group.iter().copied()))?;
    let longest = claimed.longest_wait();
    if longest > FIRST_WAIT {
        stored_pointer::prolong(servers, claim.id, &pointer, longest).await;
    }
    Ok(claimed)
}

/// Makes a claim in several slots. If another attempt at the same id overtakes it, it is made
/// again a little later.
async fn claim_spread(
    request: &ScriptRequest<'_>,
    claim: &Claim<'_>,
    now: Now,
) -> Result<ClaimReply, HoldFailure<Failure>> {
    for pause in RETRY_PAUSES {
        if let Some(claimed) = SpreadClaim::claim(request, claim, now).await? {
            return Ok(claimed);
        }
        // Spread, so that attempts do not meet again.
        let share = u32::try_from(random() % 256).unwrap_or(0);
        tokio::time::sleep(pause + pause * share / 256).await;
    }
    Ok(ClaimReply::id_taken())
}

/// Answers a claim without limits: it holds nothing, but its id may be known.
async fn claim_nothing(
    request: &ScriptRequest<'_>,
    claim: &Claim<'_>,
    now: Now,
) -> Result<ClaimReply, HoldFailure<Failure>> {
    let servers = request.servers;
    let earlier = match servers.pointer_cache.get(claim.id) {
        Some(remembered) => Some(Pointer::clone(&remembered)),
        None if claim.hold.is_some() => stored_pointer::fetch(servers, claim.id).await?,
        None => None,
    };
    let Some(earlier) = earlier else {
        return Ok(ClaimReply::default());
    };
    let hold_lookup = look_up(&earlier, request, claim, now).await?;
    Ok(hold_lookup.unwrap_or_default())
}

/// Writes the pointer of a claim, unless no other node will end the claim or its id is known.
async fn claim_pointer(
    request: &ScriptRequest<'_>,
    claim: &Claim<'_>,
    now: Now,
) -> Result<PointerState, HoldFailure<Failure>> {
    let servers = request.servers;
    let keep = hold_time(request.set, claim).unwrap_or_default();
    let is_one = request.groups.len() == 1;
    let remembered = servers.pointer_cache.get(claim.id);
    let mut expected = remembered.as_ref().map(|pointer| pointer.write());
    let mut seen = remembered.as_ref().map(|pointer| Pointer::clone(pointer));
    for _ in 0..MAX_TRIES {
        let mut new = Pointer {
            attempt: 1,
            nonce: if is_one { 0 } else { random() },
            keep,
            answer: None,
            states: request.names.clone(),
        };
        if let Some(earlier) = &seen {
            let is_here = is_one && is_one_slot(servers, &earlier.states, &request.names);
            if !is_here && let Some(claimed) = look_up(earlier, request, claim, now).await? {
                return Ok(PointerState::Answered(claimed));
            }
            new.attempt = earlier.attempt.saturating_add(1);
            new.keep = keep.max(earlier.keep);
            new.add(&earlier.states);
            // The script will see whether the id is known.
            if is_here && earlier.has(&new.states) && earlier.keep >= keep {
                new = earlier.clone();
            }
        }
        if new.states.len() > MAX_STATES {
            return Ok(PointerState::Answered(ClaimReply::id_taken()));
        }
        let written = match keep.is_zero() {
            true => None,
            false => {
                let expected = expected.as_deref().unwrap_or_default();
                let first = claim.wait.map_or(Duration::ZERO, |wait| wait.in_all);
                let first = first.min(FIRST_WAIT);
                stored_pointer::write(servers, claim.id, &new, expected, first).await?
            }
        };
        let Some(was) = written else {
            servers.pointer_cache.set(claim.id, new.clone());
            return Ok(PointerState::Free(new));
        };
        let mut earlier = Pointer::parse(&was)?;
        expected = Some(was);
        if let Some(remembered) = &remembered {
            earlier.add(&remembered.states);
        }
        seen = Some(earlier);
    }
    Err(HoldFailure::Refused(StoreError::HoldTaken))
}

fn is_one_slot(servers: &Servers, states: &[Vec<u8>], others: &[Vec<u8>]) -> bool {
    let mut slots = states
        .iter()
        .chain(others)
        .map(|state| servers.link.group_of(state));
    let first = slots.next();
    slots.all(|slot| Some(slot) == first)
}
