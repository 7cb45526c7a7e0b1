//! Follow: what the store of overrides has comes into force here.

use std::sync::Arc;
use std::time::Duration;

use quell::override_store::{
    AppliedChange, Changes, Cursor, MAX_OVERRIDE_PAGE, OverrideStoreError,
};
use quell_host::task;

use super::{keys_of, reader};
use crate::shared::Shared;

/// Changes that are read in one call.
const CHANGES: usize = 1_000;

/// Time between two attempts to read a store that fails: the first, and the longest. A server that is behind by more
/// is not fine, so it asks about as often.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// Longest time for which the start of a server waits for its overrides.
const FIRST: Duration = Duration::from_secs(10);

/// Brings the overrides into force before the server answers. If their store does not answer, the numbers of the rules
/// apply until it does.
pub(crate) async fn load(shared: &Arc<Shared>) {
    let loaded = tokio::time::timeout(FIRST, catch_up(shared)).await;
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
            if lists {
                list(&shared).await?;
            }
            catch_up(&shared).await
        };
        match caught_up.await {
            Ok(()) => {
                (pause, lists) = (RETRY.0, false);
                *overrides.behind.lock() = None;
                if overrides.attempts.succeeded() {
                    tracing::info!("the store of overrides answers again");
                }
                let seen = overrides.position();
                tokio::select! {
                    () = overrides.store().wait(&seen) => {}
                    () = overrides.list_again.notified() => lists = true,
                }
                fall_behind(&shared);
            }
            Err(error) => {
                fail(&shared, &error);
                tokio::time::sleep(pause).await;
                pause = RETRY.1.min(pause * 2);
            }
        }
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
            Changes::TooOld => list(shared).await?,
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
    let shared = Arc::clone(shared);
    let work = task::run_blocking(move || {
        let (rules, fields) = (shared.limiter.rules(), shared.overrides.fields());
        let keys = changes.iter().flat_map(|change| keys_of(change, &rules));
        let keys: Vec<_> = keys.collect();
        shared.limiter.change_overrides(&keys, &reader(&fields));
    });
    work.await;
}

/// Reads all overrides, and drops those that are gone.
async fn list(shared: &Arc<Shared>) -> Result<(), OverrideStoreError> {
    let overrides = &shared.overrides;
    let position = overrides.store().position().await?;
    let mut list = shared.limiter.list_overrides();
    let mut after: Option<Cursor> = None;
    loop {
        let page = overrides
            .store()
            .all(after.as_ref(), MAX_OVERRIDE_PAGE)
            .await?;
        let own = Arc::clone(shared);
        let work = task::run_blocking(move || {
            let (rules, fields) = (own.limiter.rules(), own.overrides.fields());
            let all = page.overrides.into_iter().map(AppliedChange::Put);
            let all: Vec<AppliedChange> = all.collect();
            let keys = all.iter().flat_map(|change| keys_of(change, &rules));
            let keys: Vec<_> = keys.collect();
            list.add(&keys, &reader(&fields));
            (list, page.next)
        });
        let Some((part, next)) = work.await else {
            return Ok(());
        };
        list = part;
        match next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    task::run_blocking(move || list.end()).await;
    overrides.seen.send_replace(position);
    Ok(())
}
