//! The suite that every override store must pass.
//!
//! Random batches run against the store and against a map; pages, changes and followers are compared with it
//! ([`same_as_map`]). The other functions check what needs several writers, or a store that forgets.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use quell::override_store::{
    AppliedChange, ApplyOutcome, Change, Changes, MAX_OVERRIDE_BATCH, OverrideFilter, OverrideId,
    OverrideStore, OverrideStoreError, Page, Position, RuleFilter, StoredNumbers, StoredOverride,
};
use quell_core::time::Wall;
use tokio::time::timeout;

mod bound;
mod follower;
mod trace;

pub use bound::{the_bound_holds, what_ended_is_found};
pub use follower::Follower;
pub use trace::{same_as_bounded_map, same_as_map};

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The id of a tenant's override, without an end.
#[must_use]
pub fn tenant(rule: &str, name: &str) -> OverrideId {
    let entries = [(Arc::from("tenant"), Arc::from(name))];
    let rule = (rule != "*").then(|| Arc::from(rule));
    let id = OverrideId::new("shop", rule, entries, false);
    id.unwrap_or_else(|error| unreachable!("{error}"))
}

/// An override by Ann.
#[must_use]
pub fn record(id: &OverrideId, numbers: StoredNumbers) -> StoredOverride {
    let day = 1_800_000_000_000_000_000;
    StoredOverride {
        id: id.clone(),
        numbers,
        from: None,
        until: id.has_end.then(|| Wall::from_nanos(day)),
        prorated: None,
        reason: "why".into(),
        by: "ann".into(),
        at: Wall::from_nanos(day - 1),
        revision: 0,
    }
}

/// Numbers of so many a second.
#[must_use]
pub fn rate(per_second: u64) -> StoredNumbers {
    StoredNumbers::Fields(format!("{{\"rate\":\"{per_second}/s\"}}").into())
}

/// A change that writes this override.
#[must_use]
pub fn put(id: &OverrideId, numbers: StoredNumbers, expected: Option<u64>) -> Change {
    Change::Put {
        record: record(id, numbers),
        expected,
    }
}

/// A change that deletes this override.
#[must_use]
pub fn delete(id: &OverrideId, expected: Option<u64>) -> Change {
    Change::Delete {
        id: id.clone(),
        expected,
    }
}

/// Makes these changes. Returns their revisions.
///
/// # Panics
/// If they are not made.
pub async fn apply(store: &dyn OverrideStore, changes: &[Change]) -> Vec<Option<u64>> {
    match store.apply(changes).await {
        Ok(ApplyOutcome::Applied { revisions, .. }) => revisions,
        other => unreachable!("{other:?}"),
    }
}

/// All pages of a list, or of all overrides, of at most `most` each.
///
/// # Panics
/// If the store fails, or a page is too long.
pub async fn list_all(
    store: &dyn OverrideStore,
    filter: Option<&OverrideFilter>,
    most: usize,
) -> Vec<StoredOverride> {
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = match filter {
            Some(filter) => store.list(filter, after.as_ref(), most).await,
            None => store.all(after.as_ref(), most).await,
        };
        let page: Page = page.unwrap_or_else(|error| unreachable!("{error}"));
        assert!(page.overrides.len() <= most, "a page of {most}");
        found.extend(page.overrides);
        after = page.next;
        if after.is_none() {
            return found;
        }
    }
}

async fn get(store: &dyn OverrideStore, id: &OverrideId) -> Option<StoredOverride> {
    let found = store.get(id).await;
    found.unwrap_or_else(|error| unreachable!("{error}"))
}

async fn position(store: &dyn OverrideStore) -> Position {
    let found = store.position().await;
    found.unwrap_or_else(|error| unreachable!("{error}"))
}

/// The usual steps, in an empty store: overrides are written, replaced, deleted, and found.
///
/// # Panics
/// If the store does not do what [`OverrideStore`] says.
pub async fn keeps_the_newest_form(store: &dyn OverrideStore) {
    let (acme, every) = (tenant("api", "acme"), tenant("*", "acme"));
    assert_eq!(position(store).await.revision(), 0);
    assert_eq!(get(store, &acme).await, None);
    assert_eq!(store.all(None, 10).await, Ok(Page::default()));
    let before = position(store).await;
    let boost = acme.counterpart();
    let changes = [
        put(&acme, rate(10), Some(0)),
        put(&boost, StoredNumbers::Unlimited, None),
        put(&every, StoredNumbers::Plan("gold".into()), None),
    ];
    assert_eq!(apply(store, &changes).await, [Some(1), Some(2), Some(3)]);
    let stored = get(store, &acme).await.unwrap_or_else(|| unreachable!());
    let expected = StoredOverride {
        revision: 1,
        ..record(&acme, rate(10))
    };
    assert_eq!(stored, expected);
    let numbers = get(store, &boost).await.map(|it| it.numbers);
    assert_eq!(numbers, Some(StoredNumbers::Unlimited));
    assert_eq!(get(store, &every).await.map(|it| it.revision), Some(3));
    assert_ne!(position(store).await.identity(), &Arc::from(""));
    replaces_and_deletes(store, &acme).await;
    let after = position(store).await;
    assert_eq!(after.revision(), 5);
    assert!(!before.identity().is_empty() || after.identity() != before.identity());
    finds_by_filter(store).await;
}

async fn replaces_and_deletes(store: &dyn OverrideStore, acme: &OverrideId) {
    let change = [put(acme, rate(20), Some(1))];
    assert_eq!(apply(store, &change).await, [Some(4)]);
    let late = store.apply(&change).await;
    let conflict = ApplyOutcome::Conflict {
        index: 0,
        current: 4,
    };
    assert_eq!(late, Ok(conflict));
    assert_eq!(get(store, acme).await.map(|it| it.numbers), Some(rate(20)));
    assert_eq!(apply(store, &[delete(acme, Some(4))]).await, [Some(5)]);
    assert_eq!(get(store, acme).await, None);
    // There is nothing left to delete, which is no change.
    let again = [delete(acme, None), delete(&tenant("a", "b"), Some(0))];
    assert_eq!(apply(store, &again).await, [None, None]);
    let late = store.apply(&[delete(acme, Some(4))]).await;
    let conflict = ApplyOutcome::Conflict {
        index: 0,
        current: 0,
    };
    assert_eq!(late, Ok(conflict));
    assert_eq!(apply(store, &[]).await, []);
}

/// Begins with a boost of `api`, and the plan of `*`.
async fn finds_by_filter(store: &dyn OverrideStore) {
    let shop = || OverrideFilter::domain("shop");
    let named = RuleFilter::Named("api".into());
    let count = async |filter: OverrideFilter| list_all(store, Some(&filter), 1).await.len();
    assert_eq!(count(shop()).await, 2);
    assert_eq!(count(OverrideFilter::domain("sho")).await, 0);
    assert_eq!(count(OverrideFilter::domain("shops")).await, 0);
    for (rule, expected) in [(named, 1), (RuleFilter::Star, 1), (RuleFilter::Any, 2)] {
        let filter = OverrideFilter { rule, ..shop() };
        assert_eq!(count(filter).await, expected);
    }
    for (prefix, expected) in [("ac", 2), ("acme", 2), ("acme\"", 0), ("b", 0)] {
        let prefix = Arc::from(prefix);
        let filter = OverrideFilter { prefix, ..shop() };
        assert_eq!(count(filter).await, expected);
    }
    for (plan, expected) in [("gold", 1), ("free", 0)] {
        let plan = Some(Arc::from(plan));
        assert_eq!(count(OverrideFilter { plan, ..shop() }).await, expected);
    }
    assert_eq!(list_all(store, None, 10).await.len(), 2);
}

/// A batch is made or not: one that conflicts or does not fit changes nothing, and says which change it was. Begins
/// in an empty store.
///
/// # Panics
/// If the store does not do what [`OverrideStore`] says.
pub async fn a_batch_that_fails_changes_nothing(store: &dyn OverrideStore) {
    let ids: Vec<_> = (0..100)
        .map(|number| tenant("api", &format!("t{number}")))
        .collect();
    let all = |expected| ids.iter().map(move |id| put(id, rate(1), expected));
    let first: Vec<_> = all(Some(0)).collect();
    apply(store, &first).await;
    let before = (position(store).await, list_all(store, None, 1_000).await);
    let mut changes: Vec<_> = all(None).collect();
    let last = tenant("api", "t99");
    changes.pop();
    changes.push(put(&last, rate(2), Some(0)));
    let conflict = ApplyOutcome::Conflict {
        index: 99,
        current: 100,
    };
    assert_eq!(store.apply(&changes).await, Ok(conflict));
    changes.pop();
    changes.push(delete(&tenant("api", "t0"), None));
    let unfit = store.apply(&changes).await;
    assert!(
        matches!(&unfit, Err(OverrideStoreError::Unfit { index: Some(99), reason }) if reason.contains("change 0")),
        "{unfit:?}"
    );
    let mut long = record(&last, rate(1));
    long.reason = "x".repeat(501).into();
    let expected = None;
    let record = long;
    changes.pop();
    changes.push(Change::Put { record, expected });
    let unfit = store.apply(&changes).await;
    assert!(
        matches!(&unfit, Err(OverrideStoreError::Unfit { index: Some(99), reason }) if reason.contains("501")),
        "{unfit:?}"
    );
    let many = (0..=MAX_OVERRIDE_BATCH).map(|number| tenant("api", &format!("n{number}")));
    let many: Vec<_> = many.map(|id| put(&id, rate(1), None)).collect();
    let unfit = store.apply(&many).await;
    assert!(
        matches!(&unfit, Err(OverrideStoreError::Unfit { index: None, .. })),
        "{unfit:?}"
    );
    let after = (position(store).await, list_all(store, None, 1_000).await);
    assert_eq!(after, before);
    // As many as there may be.
    let most = many.get(1..).unwrap_or_default();
    let revisions = apply(store, most).await;
    assert_eq!(revisions.len(), MAX_OVERRIDE_BATCH);
    assert_eq!(revisions.last(), Some(&Some(10_100)));
    let mut follower = Follower::new(before.0, before.1);
    follower.follow(store).await;
    assert_eq!(follower.overrides().len(), MAX_OVERRIDE_BATCH + 100);
}

/// Twenty at once expect the same revision, five times, each by a store of its own: one wins, and every other is
/// told the revision that won. Begins in an empty store.
///
/// # Panics
/// If the store does not do what [`OverrideStore`] says.
pub async fn of_concurrent_writers_one_wins(open: impl Fn() -> Arc<dyn OverrideStore>) {
    let id = tenant("api", "acme");
    for seen in 0..5 {
        let mut racing = Vec::new();
        for number in 0..20 {
            let (store, id) = (open(), id.clone());
            racing.push(tokio::spawn(async move {
                store.apply(&[put(&id, rate(number), Some(seen))]).await
            }));
        }
        let mut ends = Vec::new();
        for one in racing {
            ends.push(one.await.unwrap_or_else(|error| unreachable!("{error}")));
        }
        let won = ends.iter().filter_map(|end| match end {
            Ok(ApplyOutcome::Applied { revisions, .. }) => revisions.first().copied().flatten(),
            _ => None,
        });
        let won: Vec<u64> = won.collect();
        assert_eq!(won, [seen + 1], "{ends:?}");
        let told = Ok(ApplyOutcome::Conflict {
            index: 0,
            current: seen + 1,
        });
        assert_eq!(ends.iter().filter(|end| **end == told).count(), 19);
    }
}

/// Many write different overrides at once, each by a store of its own: all are there, every revision is given once,
/// and who follows meanwhile has the same. Begins in an empty store.
///
/// # Panics
/// If the store does not do what [`OverrideStore`] says.
pub async fn concurrent_writers_lose_nothing(open: impl Fn() -> Arc<dyn OverrideStore>) {
    const WRITERS: u64 = 20;
    const EACH: u64 = 25;
    let mut writing = Vec::new();
    for writer in 0..WRITERS {
        let store = open();
        writing.push(tokio::spawn(async move {
            let mut given = Vec::new();
            for number in 0..EACH {
                let id = tenant("api", &format!("{writer}-{number}"));
                given.extend(apply(&*store, &[put(&id, rate(number), Some(0))]).await);
            }
            given
        }));
    }
    let store = open();
    let mut follower = Follower::default();
    while follower.position().revision() < WRITERS * EACH {
        let next = store.wait(follower.position());
        let next = timeout(PATIENCE, next).await;
        assert!(next.is_ok(), "the writers go on");
        follower.follow(&*store).await;
    }
    let mut given = Vec::new();
    for one in writing {
        given.extend(one.await.unwrap_or_else(|error| unreachable!("{error}")));
    }
    given.sort_unstable();
    let all: Vec<_> = (1..=WRITERS * EACH).map(Some).collect();
    assert_eq!(given, all);
    let mut stored = list_all(&*store, None, 100).await;
    stored.sort_by(|one, other| one.id.cmp(&other.id));
    assert_eq!(follower.overrides(), stored);
}

/// Large overrides come in answers that are bounded, and all come. Begins in an empty store.
///
/// # Panics
/// If the store does not do what [`OverrideStore`] says.
pub async fn large_overrides_come_in_parts(store: &dyn OverrideStore) {
    const COUNT: usize = 2_500;
    let fields = format!("{{\"a\":\"{}\"}}", "x".repeat(4_000));
    let fields = StoredNumbers::Fields(fields.into());
    apply(store, &[put(&tenant("api", "first"), rate(1), None)]).await;
    let since = position(store).await;
    let all =
        (1..COUNT).map(|number| put(&tenant("api", &number.to_string()), fields.clone(), None));
    let all: Vec<_> = all.collect();
    for batch in all.chunks(500) {
        apply(store, batch).await;
    }
    let page = store.all(None, COUNT).await;
    let page = page.unwrap_or_else(|error| unreachable!("{error}"));
    assert!((1..COUNT / 2).contains(&page.overrides.len()));
    assert_ne!(page.next, None);
    assert_eq!(list_all(store, None, COUNT).await.len(), COUNT);
    let filter = OverrideFilter::domain("shop");
    assert_eq!(list_all(store, Some(&filter), COUNT).await.len(), COUNT);
    match store.changes(&since, COUNT).await {
        Ok(Changes::Since { changes, .. }) => {
            assert!((1..COUNT / 2).contains(&changes.len()));
        }
        other => unreachable!("{other:?}"),
    }
    let mut follower = Follower::new(since, Vec::new());
    follower.follow(store).await;
    assert_eq!(follower.overrides().len(), COUNT - 1);
}

/// Pages list each override once that nobody touches meanwhile, and none twice. Begins in an empty store.
///
/// # Panics
/// If the store does not do what [`OverrideStore`] says.
pub async fn a_list_is_whole_while_others_write(store: &dyn OverrideStore) {
    let name = |number: u64| tenant("api", &format!("{number:04}"));
    let all: Vec<_> = (0..1_000).map(|n| put(&name(n), rate(n), None)).collect();
    apply(store, &all).await;
    let filter = OverrideFilter::domain("shop");
    for filter in [None, Some(&filter)] {
        let (mut found, mut after, mut pages) = (Vec::new(), None, 0);
        loop {
            let page = match filter {
                Some(filter) => store.list(filter, after.as_ref(), 37).await,
                None => store.all(after.as_ref(), 37).await,
            };
            let page = page.unwrap_or_else(|error| unreachable!("{error}"));
            found.extend(page.overrides.into_iter().map(|stored| stored.id));
            after = page.next;
            if after.is_none() {
                break;
            }
            // Every third one goes or comes back, and is written between.
            let touched = (0..1_000).filter(|number| number % 3 == 0);
            let changes = touched.map(|number| match (number + pages) % 2 {
                0 => delete(&name(number), None),
                _ => put(&name(number), StoredNumbers::Refuse, None),
            });
            apply(store, &changes.collect::<Vec<_>>()).await;
            pages += 1;
        }
        assert!(pages > 10, "{pages} pages");
        found.sort_unstable();
        let count = found.len();
        found.dedup();
        assert_eq!(found.len(), count, "none is listed twice");
        for number in (0..1_000).filter(|number| number % 3 != 0) {
            assert!(found.binary_search(&name(number)).is_ok(), "{number}");
        }
    }
}

/// A follower that was away for longer than the log is told so, and one that was not gets what it missed. `log` is
/// what the store was told to keep; it may keep some hundred more. Begins in an empty store.
///
/// # Panics
/// If the store does not do what [`OverrideStore`] says.
pub async fn the_oldest_changes_go(store: &dyn OverrideStore, log: u64) {
    let name = |number: u64| tenant("api", &(number % 7).to_string());
    apply(store, &[put(&name(0), rate(0), None)]).await;
    let first = position(store).await;
    let mut positions = Vec::new();
    for number in 1..=log + 1_000 {
        apply(store, &[put(&name(number), rate(number), None)]).await;
        positions.push(position(store).await);
    }
    assert_eq!(store.changes(&first, 10).await, Ok(Changes::TooOld));
    let beginning = Position::new(Arc::clone(first.identity()), 0, 0);
    assert_eq!(store.changes(&beginning, 10).await, Ok(Changes::TooOld));
    let newest = position(store).await;
    for away in [1, log / 2, log - 1] {
        let revision = newest.revision() - away;
        let since = positions.iter().find(|it| it.revision() == revision);
        let since = since.unwrap_or_else(|| unreachable!("it was noted"));
        match store.changes(since, 10_000).await {
            Ok(Changes::Since { changes, .. }) => {
                let last = changes.last().map(AppliedChange::revision);
                assert_eq!(last, Some(newest.revision()), "{away} changes");
            }
            other => unreachable!("{away} changes: {other:?}"),
        }
    }
    let mut follower = Follower::new(first, Vec::new());
    follower.follow(store).await;
    assert_eq!(follower.overrides().len(), 7);
    assert_eq!(follower.position(), &newest);
}

/// A position that the store never had is told as one that is too old: of another store, after the newest change,
/// or of a history that was lost. Begins in an empty store.
///
/// # Panics
/// If the store does not do what [`OverrideStore`] says.
pub async fn another_history_is_noticed(store: &dyn OverrideStore) {
    let id = tenant("api", "acme");
    apply(
        store,
        &[
            put(&id, rate(1), None),
            put(&id.counterpart(), rate(2), None),
        ],
    )
    .await;
    let newest = position(store).await;
    let nothing_new = Changes::Since {
        changes: Vec::new(),
        position: newest.clone(),
        newest: newest.revision(),
    };
    assert_eq!(store.changes(&newest, 10).await, Ok(nothing_new));
    let other = Arc::from("0123456789abcdef");
    for position in [
        Position::default(),
        newest.at(newest.revision() + 1, newest.tag()),
        newest.at(newest.revision(), newest.tag() ^ 1),
        newest.at(u64::MAX, u64::MAX),
        Position::new(other, newest.revision(), newest.tag()),
    ] {
        let changes = store.changes(&position, 10).await;
        let is_noticed = matches!(changes, Ok(Changes::TooOld | Changes::Lost));
        assert!(is_noticed, "{position}: {changes:?}");
        let next = timeout(PATIENCE, store.wait(&position)).await;
        assert!(next.is_ok(), "there is another position");
    }
}

/// An override that is written wakes a caller that waits, at once if it came before. Begins in an empty store; `other`
/// is another way to the same one.
///
/// # Panics
/// If the store does not do what [`OverrideStore`] says.
pub async fn a_change_wakes_who_waits(store: &dyn OverrideStore, other: &dyn OverrideStore) {
    for number in 1..=3 {
        let seen = position(store).await;
        let follow = async {
            loop {
                store.wait(&seen).await;
                let found = position(store).await;
                if found != seen {
                    return found;
                }
            }
        };
        let mut follow = pin!(follow);
        // It has begun to wait.
        let waits = poll_fn(|context| Poll::Ready(follow.as_mut().poll(context).is_pending()));
        assert!(waits.await);
        apply(other, &[put(&tenant("api", "acme"), rate(number), None)]).await;
        let found = timeout(PATIENCE, follow).await;
        assert_eq!(found.map(|it| it.revision()), Ok(number));
    }
}
