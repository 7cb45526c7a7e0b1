//! The bound of a store, and the overrides whose time is over.

use std::collections::BTreeSet;

use quell::override_store::{
    ApplyOutcome, Change, OverrideId, OverrideStore, OverrideStoreError, Prorated, StoredNumbers,
    StoredOverride,
};
use quell_core::time::Wall;

use super::{apply, delete, list_all, position, put, rate, record, tenant};

/// A store that may have `most` overrides, at least 10, refuses what would be one more, also as part of a batch, of which
/// nothing is made then; it replaces and deletes as before. Begins in an empty store.
///
/// # Panics
/// If the store does not do what [`OverrideStore`] says.
pub async fn the_bound_holds(store: &dyn OverrideStore, most: u64) {
    let name = |number: u64| tenant("api", &number.to_string());
    let all: Vec<_> = (0..most - 1)
        .map(|n| put(&name(n), rate(n), None))
        .collect();
    apply(store, &all).await;
    // A boost is one of its own.
    apply(store, &[put(&name(0).counterpart(), rate(1), None)]).await;
    let before = (position(store).await, list_all(store, None, 100).await);
    assert_eq!(before.1.len() as u64, most);
    let one_more = put(&name(most), rate(1), None);
    let replaced = put(&name(1), rate(7), None);
    for (changes, count) in [
        (vec![one_more.clone()], most + 1),
        (vec![replaced.clone(), one_more.clone()], most + 1),
        // One goes, two come.
        (
            vec![
                put(&name(most + 1), rate(1), Some(0)),
                delete(&name(2), None),
                one_more.clone(),
            ],
            most + 1,
        ),
        // There is nothing to delete.
        (
            vec![delete(&name(most + 2), None), one_more.clone()],
            most + 1,
        ),
        (
            (0..10)
                .map(|n| put(&name(most + n), rate(1), None))
                .collect(),
            most + 10,
        ),
    ] {
        let full = Err(OverrideStoreError::Full { count, most });
        assert_eq!(store.apply(&changes).await, full, "{changes:?}");
    }
    let after = (position(store).await, list_all(store, None, 100).await);
    assert_eq!(after, before);
    // A conflict is told first.
    let conflicting = [put(&name(1), rate(1), Some(0)), one_more.clone()];
    let outcome = store.apply(&conflicting).await;
    assert!(
        matches!(outcome, Ok(ApplyOutcome::Conflict { index: 0, .. })),
        "{outcome:?}"
    );
    apply(store, &[replaced]).await;
    // One goes, one comes, in either order.
    apply(store, &[delete(&name(2), None), one_more.clone()]).await;
    apply(
        store,
        &[put(&name(2), rate(1), None), delete(&name(3), None)],
    )
    .await;
    apply(store, &[delete(&name(4), None)]).await;
    apply(store, &[put(&name(3), rate(1), None)]).await;
    let full = Err(OverrideStoreError::Full {
        count: most + 1,
        most,
    });
    assert_eq!(store.apply(&[put(&name(4), rate(1), None)]).await, full);
}

/// The overrides whose `until` is before an instant are found, to the nanosecond, page by page, and no others. Begins in
/// an empty store.
///
/// # Panics
/// If the store does not do what [`OverrideStore`] says.
pub async fn what_ended_is_found(store: &dyn OverrideStore) {
    let all = endings();
    let puts = all.iter().cloned().map(|record| Change::Put {
        record,
        expected: None,
    });
    apply(store, &puts.collect::<Vec<_>>()).await;
    for before in [
        0,
        AT - SECOND,
        AT - 1,
        AT,
        AT + 1,
        AT + 700,
        AT + 2 * SECOND,
    ] {
        let before = Wall::from_nanos(before);
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let page = store.ended(before, after.as_ref()).await;
            let page = page.unwrap_or_else(|error| unreachable!("{error}"));
            found.extend(page.overrides.into_iter().map(|stored| stored.id));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let expected = all
            .iter()
            .filter(|it| it.until.is_some_and(|it| it < before));
        let expected: BTreeSet<&OverrideId> = expected.map(|it| &it.id).collect();
        assert_eq!(found.len(), expected.len(), "before {before:?}");
        assert_eq!(found.iter().collect::<BTreeSet<_>>(), expected);
    }
}

const SECOND: u64 = 1_000_000_000;

/// An instant of some of [`endings`].
const AT: u64 = 1_900_000_000 * SECOND;

/// Overrides that end about [`AT`], or do not end, and only look so.
fn endings() -> Vec<StoredOverride> {
    let named = |name: &str, until: Option<u64>| {
        let id = tenant("api", name);
        let id = match until {
            Some(_) => id.counterpart(),
            None => id,
        };
        StoredOverride {
            until: until.map(Wall::from_nanos),
            ..record(&id, rate(1))
        }
    };
    let window = |until: u64| Prorated {
        limit: 1,
        until: Wall::from_nanos(until),
    };
    let mut all: Vec<StoredOverride> = vec![
        named("epoch", Some(1)),
        named("a second before", Some(AT - SECOND)),
        named("a moment before", Some(AT - 1)),
        named("now", Some(AT)),
        named("a moment after", Some(AT + 1)),
        named("a second after", Some(AT + SECOND)),
        named("the year 2500", Some(16_725_225_600 * SECOND)),
        named("without an end", None),
        // These look like an end, and are none.
        StoredOverride {
            prorated: Some(window(AT - SECOND)),
            ..named("first window", None)
        },
        StoredOverride {
            prorated: Some(window(AT - SECOND)),
            ..named("first window of one that goes on", Some(AT + SECOND))
        },
        StoredOverride {
            numbers: StoredNumbers::Fields("{\"until\":\"1999-01-01T00:00:00Z\"}".into()),
            ..named("fields", None)
        },
        StoredOverride {
            reason: "\"until\":\"1999-01-01T00:00:00Z\"".into(),
            ..named("reason", None)
        },
    ];
    all.extend((0..3_000).map(|number| named(&number.to_string(), Some(AT + number - 1_000))));
    all
}
