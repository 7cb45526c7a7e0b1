//! Sweep: overrides whose time is over leave the store, some time after it.
//!
//! Every server does it, also of those over one store, and for a fleet the coordinator that leads. A deletion expects
//! the revision that was seen. So several may sweep at once, and an override that is written anew meanwhile stays.

use std::time::Duration;

use quell::override_store::{
    ApplyOutcome, Change, Cursor, MAX_OVERRIDE_BATCH, OverrideStore, OverrideStoreError, Position,
};
use quell_core::time::Wall;

/// Time for which an override stays after its end. For a week people see what applied, and clocks that differ by minutes
/// do no harm.
const KEPT: Duration = Duration::from_secs(7 * 24 * 3_600);

/// Pause between two steps. Each looks at some ten thousand overrides, for 20 ms; a million take two hours, and a hundred
/// servers over one Redis take a few hundredths of its time.
const STEP: Duration = Duration::from_secs(60);

/// Pause after the last step.
const ROUND: Duration = Duration::from_secs(3_600);

/// Sweeps a store for ever. `now` is the wall clock, or nothing while others sweep; `note` counts what was deleted.
pub async fn sweep_ended(
    store: &dyn OverrideStore,
    now: impl Fn() -> Option<Wall>,
    note: impl Fn(u64),
) {
    let (mut after, mut pause) = (None, STEP);
    loop {
        tokio::time::sleep(pause).await;
        let Some(now) = now() else {
            (after, pause) = (None, STEP);
            continue;
        };
        match step(store, now.saturating_sub(KEPT), after.as_ref()).await {
            Ok(swept) => {
                if swept.deleted > 0 {
                    note(swept.deleted);
                    let (deleted, revision) = (swept.deleted, swept.position.revision());
                    tracing::info!(
                        deleted,
                        revision,
                        "overrides deleted whose time was over for a week"
                    );
                }
                pause = swept.next.as_ref().map_or(ROUND, |_| STEP);
                after = swept.next;
            }
            // The followers of the store tell that it fails.
            Err(error) => {
                tracing::debug!(%error, "no sweep of overrides");
                (after, pause) = (None, ROUND);
            }
        }
    }
}

/// Progress of one step.
#[derive(Debug, Default)]
struct Swept {
    deleted: u64,
    /// The position of the store after a deletion.
    position: Position,
    /// The place where the next step goes on; `None` at the end.
    next: Option<Cursor>,
}

/// Deletes those of a page of overrides that ended before an instant.
async fn step(
    store: &dyn OverrideStore,
    before: Wall,
    after: Option<&Cursor>,
) -> Result<Swept, OverrideStoreError> {
    let page = store.ended(before, after).await?;
    let mut swept = Swept {
        next: page.next,
        ..Swept::default()
    };
    let changes = page.overrides.into_iter().map(|record| Change::Delete {
        expected: Some(record.revision),
        id: record.id,
    });
    let changes: Vec<Change> = changes.take(MAX_OVERRIDE_BATCH).collect();
    if changes.is_empty() {
        return Ok(swept);
    }
    // After a conflict the next round finds what is left.
    if let ApplyOutcome::Applied {
        revisions,
        position,
    } = store.apply(&changes).await?
    {
        swept.deleted = revisions.iter().flatten().count() as u64;
        swept.position = position;
    }
    Ok(swept)
}

#[cfg(test)]
mod tests {
    use quell::override_store::{EmbeddedOverrides, OverrideId, StoredNumbers, StoredOverride};

    use super::*;

    /// An override of a tenant that ends at this second.
    fn ending(tenant: &str, until: Option<u64>) -> Change {
        let entries = [("tenant".into(), tenant.into())];
        Change::Put {
            record: StoredOverride {
                id: OverrideId::new("shop", None, entries, until.is_some()).unwrap(),
                numbers: StoredNumbers::Unlimited,
                from: None,
                until: until.map(second),
                prorated: None,
                reason: "".into(),
                by: "".into(),
                at: Wall::ORIGIN,
                revision: 0,
            },
            expected: None,
        }
    }

    fn second(number: u64) -> Wall {
        Wall::from_nanos(number * 1_000_000_000)
    }

    #[tokio::test]
    async fn overrides_go_a_while_after_their_end() {
        let store = EmbeddedOverrides::in_memory().unwrap();
        let all = [
            ending("a", None),
            ending("a", Some(100)),
            ending("b", Some(101)),
        ];
        store.apply(&all).await.unwrap();
        for (now, deleted) in [(100, 0), (101, 1), (101, 0), (102, 1), (u64::MAX >> 40, 0)] {
            let swept = step(&store, second(now), None).await.unwrap();
            assert_eq!((swept.deleted, swept.next), (deleted, None), "{now}");
        }
        let left = store.all(None, 10).await.unwrap().overrides;
        assert_eq!(left.len(), 1, "one without an end stays");
        let position = store.position().await.unwrap();
        assert_eq!(position.revision(), 5, "deletions have revisions");
    }

    /// Two servers sweep at once: each override is deleted once, and nothing that was written anew.
    #[tokio::test]
    async fn servers_may_sweep_at_once() {
        let store = EmbeddedOverrides::in_memory().unwrap();
        let all: Vec<Change> = (0..100)
            .map(|number| ending(&number.to_string(), Some(100)))
            .collect();
        store.apply(&all).await.unwrap();
        let renewed = [ending("7", Some(1_000))];
        let (one, other, renewal) = tokio::join!(
            step(&store, second(200), None),
            step(&store, second(200), None),
            store.apply(&renewed),
        );
        renewal.unwrap();
        let mut deleted = one.unwrap().deleted + other.unwrap().deleted;
        deleted += step(&store, second(200), None).await.unwrap().deleted;
        let left = store.all(None, 10).await.unwrap().overrides;
        let ends: Vec<_> = left.iter().map(|record| record.until).collect();
        assert_eq!(ends, [Some(second(1_000))]);
        assert!((99..=100).contains(&deleted), "{deleted}");
    }
}
