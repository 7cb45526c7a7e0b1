//! Follow: what the store of overrides has comes into force here.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use quell::override_store::{
    AppliedChange, Changes, Cursor, MAX_OVERRIDE_PAGE, OverrideStoreError, Position,
};
use quell_host::task;
use tokio::time::{sleep, timeout};

use super::carry::{KeyCalendars, UsePlace};
use super::due::{DueKeys, carry_due, carry_for_ever};
use super::{MissingPlans, keys_of, reader};
use crate::shared::Shared;

/// Changes that are read in one call.
const CHANGES: usize = 1_000;

/// Time between two attempts to read a store that fails: the first, and the longest. A server that is behind by more
/// is not fine, so it asks about as often.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// Interval at which a server reports how far it is while it reads, or waits to try again.
const REPORT: Duration = Duration::from_millis(500);

/// Longest time for which a server that stops waits until the store has taken it off the register.
const LEAVE: Duration = Duration::from_secs(1);

/// Longest time for which the start of a server waits for its overrides.
const FIRST: Duration = Duration::from_secs(10);

/// Brings the overrides into force before the server answers. If their store does not answer, the numbers of the rules
/// apply until it does.
pub(crate) async fn load(shared: &Arc<Shared>) {
    // They are listed here, so the rules that just came into force are no reason to list them once more.
    let asked = shared.overrides.list_again.notified();
    timeout(Duration::ZERO, asked).await.ok();
    // It is registered before it answers, so that who waits for all servers waits for it.
    let load = async { tokio::join!(report(shared), reporting(shared, catch_up(shared))).1 };
    let loaded = timeout(FIRST, load).await;
    let loaded = loaded.unwrap_or_else(|_| {
        let reason = format!("no answer in {} s", FIRST.as_secs());
        Err(OverrideStoreError::NoAnswer(reason))
    });
    match loaded {
        Ok(()) => {
            let keys = shared.limiter.override_count();
            if keys > 0 {
                let url = shared.overrides.store().url();
                tracing::info!(keys, url, "overrides in force");
            }
            shared.overrides.missing_plans.tell();
        }
        Err(error) => {
            fall_behind(shared);
            fail(shared, &error);
        }
    }
}

/// Follows the store for ever.
pub(crate) async fn follow(shared: Arc<Shared>) {
    let overrides = &shared.overrides;
    let (mut pause, mut lists) = (RETRY.0, false);
    loop {
        let caught_up = async {
            carry_due(&shared).await;
            if lists {
                list(&shared).await?;
                shared.overrides.missing_plans.tell();
            }
            catch_up(&shared).await
        };
        match reporting(&shared, caught_up).await {
            Ok(()) => {
                (pause, lists) = (RETRY.0, false);
                *overrides.behind.lock() = None;
                if overrides.attempts.succeeded() {
                    tracing::info!("the store of overrides answers again");
                }
                let seen = overrides.position();
                tokio::select! {
                    () = overrides.store().wait_as(overrides.register.name(), &seen) => {}
                    () = overrides.list_again.notified() => lists = true,
                    never = carry_for_ever(&shared) => match never {},
                }
                fall_behind(&shared);
            }
            Err(error) => {
                fail(&shared, &error);
                reporting(&shared, sleep(pause)).await;
                pause = RETRY.1.min(pause * 2);
            }
        }
    }
}

/// Takes this server off the register, since it stops.
pub(crate) async fn leave(shared: &Shared) {
    let overrides = &shared.overrides;
    let leave = overrides.store().leave(overrides.register.name());
    // One that cannot say so is forgotten some seconds later.
    timeout(LEAVE, leave).await.ok();
}

/// Reports how far this server is.
async fn report(shared: &Shared) {
    let overrides = &shared.overrides;
    let behind = overrides.behind(shared.limiter.now().monotonic);
    let (name, seen) = (overrides.register.name(), overrides.position());
    // The next report says as much.
    overrides.store().report(name, &seen, behind).await.ok();
}

/// Goes on with some work, and reports meanwhile how far this server is.
async fn reporting<T>(shared: &Shared, work: impl Future<Output = T>) -> T {
    tokio::select! {
        biased;
        done = work => done,
        never = report_for_ever(shared) => match never {},
    }
}

async fn report_for_ever(shared: &Shared) -> Infallible {
    loop {
        sleep(REPORT).await;
        report(shared).await;
    }
}

/// Notes that the store has, or may have, what is not in force here.
fn fall_behind(shared: &Shared) {
    let now = shared.limiter.now().monotonic;
    shared.overrides.behind.lock().get_or_insert(now);
}

fn fail(shared: &Shared, error: &OverrideStoreError) {
    let (attempts, reason) = (&shared.overrides.attempts, error.to_string());
    if attempts.failure().is_none() {
        tracing::warn!(
            reason,
            "the store of overrides fails: what is known of them stays in force"
        );
    }
    attempts.failed(vec![reason]);
}

/// Brings everything into force that the store has now.
async fn catch_up(shared: &Arc<Shared>) -> Result<(), OverrideStoreError> {
    let overrides = &shared.overrides;
    loop {
        let seen = overrides.position();
        match overrides.store().changes(&seen, CHANGES).await? {
            Changes::TooOld => {
                let (keys, was_emptied) = (
                    shared.limiter.override_count(),
                    shared.has_emptied_overrides(),
                );
                list(shared).await?;
                match (was_emptied, shared.has_emptied_overrides()) {
                    (true, false) => tell_replaced(shared, &seen, keys),
                    (false, true) => tell_lost(shared, &seen, keys),
                    _ => {}
                }
            }
            Changes::Lost => {
                let keys = shared.limiter.override_count();
                list(shared).await?;
                tell_lost(shared, &seen, keys);
            }
            Changes::Since {
                changes,
                position,
                newest,
            } => {
                let is_newest = position.revision() >= newest;
                apply(shared, changes).await;
                overrides.seen.send_replace(position);
                if is_newest {
                    return Ok(());
                }
            }
        }
    }
}

async fn apply(shared: &Arc<Shared>, changes: Vec<AppliedChange>) {
    if changes.is_empty() {
        return;
    }
    let ids: Vec<_> = changes.iter().map(AppliedChange::id).collect();
    let calendars = KeyCalendars::now(shared, UsePlace::Here, &ids).await;
    let own = Arc::clone(shared);
    let work = task::run_blocking(move || {
        let shared = own;
        let (rules, fields) = (shared.limiter.rules(), shared.overrides.fields());
        let keys = changes.iter().flat_map(|change| keys_of(change, &rules));
        let keys: Vec<_> = keys.collect();
        let (due, ids) = (&shared.overrides.due, changes.iter().map(AppliedChange::id));
        let wall = shared.limiter.now().wall;
        due.forget(&rules, ids.clone(), wall);
        shared.limiter.change_overrides(&keys, &reader(&fields));
        let missing = &shared.overrides.missing_plans;
        missing.note(&changes, (&rules, &fields), wall);
        due.note(&shared.limiter.rules(), ids, wall);
    });
    let is_here = work.await.is_some();
    calendars.carry_moved(shared, is_here).await;
}

/// Tells that the store lost changes that this server had seen.
fn tell_lost(shared: &Shared, before: &Position, keys_before: usize) {
    shared.overrides.lost.fetch_add(1, Ordering::Relaxed);
    if shared.has_emptied_overrides() {
        tracing::warn!(
            keys = keys_before,
            revision = before.revision(),
            "the store of overrides is empty: those known here stay in force until something is written to it; \
             import them again in one batch"
        );
    } else {
        tell_replaced(shared, before, keys_before);
    }
}

/// Tells that numbers which were in force here are replaced by those of a store that does not know them.
fn tell_replaced(shared: &Shared, before: &Position, keys_before: usize) {
    let keys = shared.limiter.override_count();
    let (had, has) = (before.revision(), shared.overrides.position().revision());
    tracing::warn!(
        keys_before,
        keys,
        revision_before = had,
        revision = has,
        "the store of overrides lost changes, or is another one: what it has now is in force"
    );
}

/// Reads all overrides, and drops those that are gone.
async fn list(shared: &Arc<Shared>) -> Result<(), OverrideStoreError> {
    let store = shared.overrides.store();
    loop {
        let position = store.position().await?;
        if list_from(shared, &position).await? {
            shared.overrides.seen.send_replace(position);
            return Ok(());
        }
    }
}

/// Reads all overrides of a store that was at `begin`. Returns false, and drops none, if it lost changes meanwhile.
async fn list_from(shared: &Arc<Shared>, begin: &Position) -> Result<bool, OverrideStoreError> {
    let store = shared.overrides.store();
    let mut list = shared.limiter.list_overrides();
    let (mut missing, mut due) = (MissingPlans::default(), DueKeys::default());
    let mut after: Option<Cursor> = None;
    loop {
        let page = store.all(after.as_ref(), MAX_OVERRIDE_PAGE).await?;
        let own = Arc::clone(shared);
        let work = task::run_blocking(move || {
            let (rules, fields) = (own.limiter.rules(), own.overrides.fields());
            let all = page.overrides.into_iter().map(AppliedChange::Put);
            let all: Vec<AppliedChange> = all.collect();
            let keys = all.iter().flat_map(|change| keys_of(change, &rules));
            let keys: Vec<_> = keys.collect();
            list.add(&keys, &reader(&fields));
            let wall = own.limiter.now().wall;
            missing.note(&all, (&rules, &fields), wall);
            let timed = all.iter().filter(|change| has_time(change));
            due.note(&own.limiter.rules(), timed.map(AppliedChange::id), wall);
            (list, missing, due, page.next)
        });
        let Some((part, of_part, due_of_part, next)) = work.await else {
            return Ok(true);
        };
        (list, missing, due) = (part, of_part, due_of_part);
        match next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    let end = store.position().await?;
    if end.identity() != begin.identity() || end.revision() < begin.revision() {
        return Ok(false);
    }
    shared.overrides.missing_plans.replace(missing);
    shared.overrides.due.replace(due);
    // A store that was never written to, or was emptied, says of nothing that it is gone.
    if !begin.identity().is_empty() {
        task::run_blocking(move || list.end()).await;
    }
    Ok(true)
}

/// Whether an override begins or ends by the clock.
const fn has_time(change: &AppliedChange) -> bool {
    match change {
        AppliedChange::Put(record) => record.from.is_some() || record.until.is_some(),
        AppliedChange::Deleted { .. } => false,
    }
}
