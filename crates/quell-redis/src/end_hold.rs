//! Ends, renews and promotes holds on the store.

use std::sync::Arc;
use std::time::Duration;

use crate::resp::Value;
use futures_util::future::join_all;
use quell::store::{Finished, HoldStatus};
use quell_core::end_hold::Ending;
use quell_core::hold::HoldId;
use quell_core::time::Now;

use crate::answer::{Reply, ids, strange};
use crate::encode::number;
use crate::link::Failure;
use crate::opcode::Opcode;
use crate::pointer::Pointer;
use crate::script::DECIDE;
use crate::servers::Servers;
use crate::slots::{HoldLocation, run_at, stored_pointer};

/// Pauses before the attempts to end the hold of a caller that is gone. If all fail, the hold ends when its
/// time is over.
const RETRY_PAUSES: [Duration; 4] = [
    Duration::ZERO,
    Duration::from_millis(200),
    Duration::from_secs(2),
    Duration::from_secs(10),
];

/// Longest time of one of these attempts.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(1);

/// Ends or renews a hold; `None` if its id is not known.
pub(crate) async fn end(
    servers: &Servers,
    id: &HoldId,
    ending: Ending,
    now: Now,
) -> Result<Option<Finished>, Failure> {
    servers.apply_limit_changes().await?;
    let arguments = end_arguments(servers, id, &ending, now);
    let finished = if servers.link.is_spread() {
        end_in_slots(servers, id, &ending, &arguments).await?
    } else {
        let location = HoldLocation::new(servers, id, Vec::new());
        end_at(servers, &[location], &arguments).await?
    };
    let has_ended = |ended: &Finished| ended.wait.is_none() && ended.unsettled.is_none();
    if finished.as_ref().is_none_or(has_ended) {
        servers.turn_notifications.remove(id);
    }
    let gauges = &servers.hold_gauges;
    match &finished {
        None => gauges.remove(id),
        Some(ended) if ended.status != HoldStatus::Stands => gauges.remove(id),
        Some(ended) if ended.wait.is_none() && restarts(&ending) => {
            gauges.restart(id, now.monotonic);
        }
        Some(ended) if ending == Ending::Arrive => {
            gauges.postpone(id, now.monotonic, ended.wait.unwrap_or_default());
        }
        Some(_) => {}
    }
    Ok(finished)
}

/// Returns true if an ending restarts the time of a hold.
const fn restarts(ending: &Ending) -> bool {
    matches!(ending, Ending::Renew | Ending::Arrive)
}

/// Checks whether the turn of a hold comes sooner now: how long until then, and the holds behind it.
pub(crate) async fn advance(
    servers: &Servers,
    id: &HoldId,
    now: Now,
) -> Result<Option<(Duration, Vec<HoldId>)>, Failure> {
    servers.apply_limit_changes().await?;
    let locations = HoldLocation::find(servers, id, stored_pointer::fetch(servers, id)).await?;
    let arguments = arguments_about(servers, Opcode::Advance, id, Vec::new(), now);
    // It waits in one location at most.
    let mut advanced = None;
    for reply in run_at(servers, &locations, &arguments).await {
        let reply = reply?;
        let mut read = Reply::new(&reply).ok_or_else(|| strange(&reply))?;
        let (Some(_), Some(wait), Some(expired)) = (read.natural(), read.number(), read.natural())
        else {
            return Err(strange(&reply));
        };
        servers.hold_gauges.add_expired(expired);
        if let Ok(wait) = u64::try_from(wait) {
            let wait = Duration::from_micros(wait);
            servers.hold_gauges.postpone(id, now.monotonic, wait);
            advanced = Some((wait, ids(&mut read)));
        }
    }
    Ok(advanced)
}

/// Ends a hold at the locations in this node's pointer cache, or else in the stored pointer.
async fn end_in_slots(
    servers: &Servers,
    id: &HoldId,
    ending: &Ending,
    arguments: &[Vec<u8>],
) -> Result<Option<Finished>, Failure> {
    if let Some(pointer) = servers.pointer_cache.get(id) {
        let finished = end_pointed(servers, id, &pointer, ending, arguments).await?;
        if finished.is_some() {
            return Ok(finished);
        }
    }
    match stored_pointer::fetch(servers, id).await? {
        Some(pointer) => end_pointed(servers, id, &pointer, ending, arguments).await,
        None => Ok(None),
    }
}

async fn end_pointed(
    servers: &Servers,
    id: &HoldId,
    pointer: &Pointer,
    ending: &Ending,
    arguments: &[Vec<u8>],
) -> Result<Option<Finished>, Failure> {
    let locations = HoldLocation::all(servers, id, &pointer.states);
    let finished = end_at(servers, &locations, arguments).await?;
    if let Some(finished) = &finished {
        if let (Some(wait), Ending::Arrive) = (finished.wait, ending) {
            stored_pointer::prolong(servers, id, pointer, wait).await;
        }
        let stands = finished.status == HoldStatus::Stands && finished.wait.is_none();
        if stands && restarts(ending) {
            stored_pointer::prolong(servers, id, pointer, Duration::ZERO).await;
        } else if finished.status != HoldStatus::Stands && !finished.repeated {
            stored_pointer::expire(servers, id, pointer);
        }
    }
    Ok(finished)
}

async fn end_at(
    servers: &Servers,
    locations: &[HoldLocation],
    arguments: &[Vec<u8>],
) -> Result<Option<Finished>, Failure> {
    let mut all = Vec::new();
    for reply in run_at(servers, locations, arguments).await {
        let reply = reply?;
        let (ended, expired) = read_end(&reply).ok_or_else(|| strange(&reply))?;
        servers.hold_gauges.add_expired(expired);
        all.extend(ended);
    }
    Ok(merge(all))
}

/// Ends the hold of a caller that is gone, in a task of its own. If that fails it is tried again: a hold
/// that is ended twice ends once.
pub(crate) fn end_later(servers: &Arc<Servers>, id: &HoldId, ending: &Ending, now: Now) {
    servers.turn_notifications.remove(id);
    let Ok(runtime) = tokio::runtime::Handle::try_current() else {
        tracing::debug!(?id, "no runtime to end a hold: the hold expires by itself");
        return;
    };
    let arguments = end_arguments(servers, id, ending, now);
    let (servers, id) = (Arc::clone(servers), id.clone());
    runtime.spawn(async move {
        for pause in RETRY_PAUSES {
            tokio::time::sleep(pause).await;
            let ended = end_unawaited(&servers, &id, &arguments);
            match tokio::time::timeout(ATTEMPT_TIMEOUT, ended).await {
                Ok(Ok(())) => return servers.hold_gauges.remove(&id),
                Ok(Err(failure)) => {
                    tracing::debug!(
                        %failure,
                        "cannot end the hold of a caller that is gone; the hold expires by itself"
                    );
                }
                Err(_) => tracing::debug!(
                    "cannot end the hold of a caller that is gone, for lack of an answer; the hold expires \
                    by itself"
                ),
            }
        }
    });
}

/// Ends a hold whose caller is gone, and wakes callers whose turn may come sooner now.
async fn end_unawaited(
    servers: &Servers,
    id: &HoldId,
    arguments: &[Vec<u8>],
) -> Result<(), Failure> {
    let fetched = stored_pointer::fetch_unawaited(servers, id);
    let locations = HoldLocation::find(servers, id, fetched).await?;
    let ended = locations.iter().map(async |location| {
        let command = DECIDE.command(&location.keys(), arguments);
        servers.link.call(&location.record, command).await
    });
    let ended: Result<Vec<_>, _> = join_all(ended).await.into_iter().collect();
    for (finished, expired) in ended?.iter().filter_map(read_end) {
        servers.hold_gauges.add_expired(expired);
        let next = finished.map(|finished| finished.next).unwrap_or_default();
        servers.turn_notifications.notify(&next);
    }
    Ok(())
}

/// The arguments of a script call that ends or renews a hold.
fn end_arguments(servers: &Servers, id: &HoldId, ending: &Ending, now: Now) -> Vec<Vec<u8>> {
    let (code, actual) = match ending {
        Ending::Settle(actual) => (0, actual.units()),
        Ending::Cancel => (1, &[][..]),
        Ending::Release => (2, &[][..]),
        Ending::Renew => (3, &[][..]),
        Ending::Arrive => (4, &[][..]),
        Ending::Fail => (5, &[][..]),
    };
    let mut argument = vec![code];
    argument.extend(actual.iter().flat_map(|units| number(*units)));
    arguments_about(servers, Opcode::End, id, argument, now)
}

fn arguments_about(
    servers: &Servers,
    opcode: Opcode,
    id: &HoldId,
    argument: Vec<u8>,
    now: Now,
) -> Vec<Vec<u8>> {
    let head = servers.clock.head(opcode, Duration::ZERO, now);
    vec![head, argument, id.as_bytes().to_vec()]
}

/// Reads the reply to an ending, with `None` if the id is not known, and how many holds expired; or that
/// the hold was not settled, and with how many numbers it would be.
fn read_end(reply: &Value) -> Option<(Option<Finished>, u64)> {
    let mut reply = Reply::new(reply)?;
    reply.natural()?;
    let status = match reply.number()? {
        -2 => {
            let finished = Finished {
                status: HoldStatus::Stands,
                repeated: false,
                wait: None,
                next: Vec::new(),
                unsettled: usize::try_from(reply.natural()?).ok(),
            };
            return Some((Some(finished), 0));
        }
        -1 => None,
        0 => Some(HoldStatus::Stands),
        1 => Some(HoldStatus::Settled),
        2 => Some(HoldStatus::Cancelled),
        3 => Some(HoldStatus::Released),
        _ => Some(HoldStatus::Expired),
    };
    let repeated = reply.natural()? != 0;
    let wait = reply.optional_micros()?;
    let expired = reply.natural()?;
    let next = ids(&mut reply);
    let finished = status.map(|status| Finished {
        status,
        repeated,
        wait,
        next,
        unsettled: None,
    });
    Some((finished, expired))
}

/// The state of a hold from the replies of several slots: it is held if any slot says so, and expired
/// only if all say so.
fn merge(all: Vec<Finished>) -> Option<Finished> {
    all.into_iter().reduce(|mut one, other| {
        let rank = |status| match status {
            HoldStatus::Stands => 0,
            HoldStatus::Expired => 2,
            _ => 1,
        };
        if rank(other.status) < rank(one.status) {
            one.status = other.status;
        }
        one.repeated &= other.repeated;
        one.wait = one.wait.max(other.wait);
        one.unsettled = one.unsettled.or(other.unsettled);
        one.next.extend(other.next);
        one.next.sort_unstable();
        one.next.dedup();
        one
    })
}
