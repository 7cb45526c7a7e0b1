//! Makes holds on the store, in one round trip if one script sees all their states.
//!
//! Each hold has a record under its id, and the states of its keys list the hold. One script sees all of
//! them, so a claim that is sent twice finds the first one. On a cluster a script sees one slot: see
//! `slots`.

use std::pin::pin;
use std::time::Duration;

use crate::resp::{Value, cmd};
use futures_util::future::{Either, join_all, select};
use quell::store::{HoldTotals, Placed, StoreError};
use quell_core::charge::LimitSet;
use quell_core::claim::Claim;
use quell_core::hold::{HoldId, HoldView};
use quell_core::time::{Now, Wall};
use quell_store::remote::{HoldFailure, SetFailure};

use crate::answer::{Reply, wall};
use crate::bans::Bans;
use crate::claim::claim_at;
use crate::end_hold;
use crate::hold_gauges::GaugedHold;
use crate::link::Failure;
use crate::opcode::{Opcode, StoreClock};
use crate::script_request::{ScriptRequest, put_in_order, whole};
use crate::servers::Servers;
use crate::slots::{HoldLocation, claim_in_slots};
use crate::turn_notifications::{MAX_MESSAGES, POLL_INTERVAL};

/// Most overdue holds that one call asks the store about.
const MAX_OVERDUE: usize = 64;

/// Makes a claim; also returns the store's time.
pub(crate) async fn hold(
    servers: &Servers,
    set: &LimitSet<'_>,
    claim: &Claim<'_>,
    now: Now,
) -> Result<(Placed, Wall), HoldFailure<Failure>> {
    servers.apply_limit_changes().await?;
    let request = ScriptRequest::new(servers, set);
    let all: Vec<_> = (0..request.names.len()).collect();
    let claimed = if servers.link.is_spread() {
        claim_in_slots(&request, claim, now).await
    } else {
        let name = servers.names.hold(claim.id.as_bytes(), None);
        let claimed = claim_at(&request, &all, claim, &name, None, now).await;
        claimed.map_err(|failure| whole(failure, all.iter().copied()).into())
    };
    let answer = claimed.map_err(|failure| with_uncertain(failure, &all))?;
    match answer.status {
        2 | 4 => return Err(HoldFailure::Refused(StoreError::HoldTaken)),
        3 => return Err(HoldFailure::Refused(StoreError::TooManyHolds)),
        // The first set had other charges beside these.
        1 if answer.decisions.len() != all.len() => {
            return Err(HoldFailure::Refused(StoreError::HoldTaken));
        }
        _ => {}
    }
    if answer.wait.is_some() || servers.test_isolation.is_some() {
        for location in HoldLocation::all(servers, claim.id, &request.names) {
            if answer.wait.is_some() {
                let is_own = servers.clock == StoreClock::Own;
                servers
                    .turn_notifications
                    .add(claim.id, &location.stream, answer.clock, is_own);
            }
            if let Some(isolation) = &servers.test_isolation {
                isolation.note_names([location.record, location.stream]);
            }
        }
    }
    // A repeated claim leaves states as they are.
    if answer.status == 0 {
        Bans::new(servers).list_new(set, &answer.raw).await;
        servers.note_charged(set, request.names);
    }
    servers.hold_gauges.add_expired(answer.expired);
    if answer.held == 1 && answer.status == 0 {
        let gauged = GaugedHold::new(set, claim, &answer.decisions, answer.wait);
        servers.hold_gauges.add(claim.id, gauged, now.monotonic);
    }
    let placed = Placed {
        places: None,
        decisions: answer.decisions,
        held: answer.held == 1,
        wait: answer.wait,
        repeated: answer.status == 1,
        degraded: false,
    };
    Ok((placed, wall(answer.clock)))
}

/// Holds and waiting callers on each key of a set that is not empty, in order of time. Nothing is written.
pub(crate) async fn list_holds(
    servers: &Servers,
    set: &LimitSet<'_>,
    now: Now,
) -> Result<Vec<Vec<HoldView>>, Failure> {
    servers.apply_limit_changes().await?;
    let request = ScriptRequest::new(servers, set);
    let mut all = vec![Vec::new(); request.names.len()];
    for group in &request.groups {
        let head = servers.clock.head(Opcode::ListHolds, Duration::ZERO, now);
        let (script, args) = request.script(group, head);
        let read = |reply: &Value| {
            let mut reply = Reply::new(reply)?;
            reply.natural()?;
            let each = group.iter().map(|_| read_holds(&mut reply));
            each.collect::<Option<Vec<_>>>()
        };
        let holds = request.run_script(script, args, read).await?;
        put_in_order(&mut all, group, &holds);
    }
    Ok(all)
}

/// Reads the holds of one key.
fn read_holds(reply: &mut Reply<'_>) -> Option<Vec<HoldView>> {
    let mut holds = Vec::new();
    loop {
        let is_waiting = match reply.flags()? {
            0 => false,
            1 => true,
            _ => break,
        };
        let left = Duration::from_micros(reply.natural()?);
        let units = reply.natural()?;
        let name = reply.bytes()?.rsplit(|byte| *byte == 0xFF).next()?;
        holds.push(HoldView {
            left,
            is_waiting,
            name: String::from_utf8_lossy(name).into_owned(),
            units,
        });
    }
    holds.sort_unstable();
    Some(holds)
}

/// A failure that is about no charge: all charges are uncertain if it is unknown whether the call ran.
fn with_uncertain(failure: HoldFailure<Failure>, all: &[usize]) -> HoldFailure<Failure> {
    match failure {
        HoldFailure::Failed(SetFailure {
            failure: failure @ Failure::Unknown(_),
            failed,
            ..
        }) if failed.is_empty() => HoldFailure::Failed(SetFailure {
            failure,
            failed,
            uncertain: all.to_vec(),
        }),
        other => other,
    }
}

/// Number of holds of this process. Asks the store about some that are overdue, so that expired holds are
/// counted also on keys without calls.
pub(crate) async fn totals(servers: &Servers, now: Now) -> HoldTotals {
    let gauges = &servers.hold_gauges;
    let overdue = gauges.take_overdue(now.monotonic, servers.timeout, MAX_OVERDUE);
    let mut overdue = overdue.into_iter();
    while let Some((due, id)) = overdue.next() {
        if end_hold::advance(servers, &id, now).await.is_err() {
            let rest = std::iter::once((due, id)).chain(overdue);
            gauges.put_back(rest.collect());
            break;
        }
    }
    gauges.totals(now.monotonic)
}

/// Completes when the turn of `id` may come sooner, by a message of the store.
pub(crate) async fn wait_promoted(servers: &Servers, id: &HoldId) {
    let notifications = &servers.turn_notifications;
    let Some(notify) = notifications.notify_of(id) else {
        return std::future::pending().await;
    };
    let mut woken = pin!(notify.notified());
    let reader = match select(woken.as_mut(), pin!(notifications.reader.lock())).await {
        Either::Left(_) => return,
        Either::Right((reader, _)) => reader,
    };
    loop {
        let due = notifications.due();
        let reads = due.iter().map(|(name, last)| async move {
            let mut read = cmd("XREAD");
            read.arg("COUNT").arg(MAX_MESSAGES);
            read.arg("STREAMS").arg(&**name).arg(last.to_string());
            match servers.call(name, &read).await {
                Ok(reply) => notifications.dispatch(name, *last, reply),
                Err(_) => notifications.failed(name),
            }
        });
        join_all(reads).await;
        let pause = pin!(tokio::time::sleep(POLL_INTERVAL));
        if let Either::Left(_) = select(woken.as_mut(), pause).await {
            break;
        }
    }
    drop(reader);
}
