//! The suite that every rule store must pass.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use quell::rule_store::{Draft, Head, PushOutcome, RuleStore};
use tokio::time::timeout;

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A version by Ann.
#[must_use]
pub const fn draft(text: &str) -> Draft<'_> {
    Draft {
        text,
        who: "ann",
        change: "1 changed (d/a)",
        note: "",
    }
}

/// Pushes `text` in place of `from`.
///
/// # Panics
/// If that fails, or somebody came first.
pub async fn push(store: &dyn RuleStore, from: Option<&Head>, text: &str) -> Head {
    match store.push(from, draft(text)).await {
        Ok(PushOutcome::Done(head)) => head,
        other => unreachable!("{other:?}"),
    }
}

/// The usual steps, in a store without versions: adds some, reads them, finds them in the list.
///
/// # Panics
/// If the store does not do what [`RuleStore`] says.
pub async fn adds_and_keeps_versions(store: &dyn RuleStore) {
    assert_eq!(store.head().await, Ok(None));
    assert_eq!(store.latest().await, Ok(None));
    assert_eq!(store.history(10).await, Ok(Vec::new()));
    let first = push(store, None, "domain: d # one").await;
    let second = push(store, Some(&first), "domain: d # 二\n").await;
    assert_eq!((first.number(), second.number()), (1, 2));
    assert_eq!(store.head().await, Ok(Some(second.clone())));
    let latest = store.latest().await.ok().flatten();
    let latest = latest.unwrap_or_else(|| unreachable!("there is a version"));
    assert_eq!(latest.text, "domain: d # 二\n");
    assert_eq!((latest.head(), &*latest.entry.who), (&second, "ann"));
    let first = store.version(1).await.ok().flatten();
    let first = first.unwrap_or_else(|| unreachable!("the first version is kept"));
    assert_eq!(first.text, "domain: d # one");
    assert!(first.entry.at_ms > 0 && first.entry.at_ms <= latest.entry.at_ms);
    assert_eq!(store.version(3).await, Ok(None));
    let history = store.history(10).await.unwrap_or_default();
    let numbers: Vec<u64> = history.iter().map(|entry| entry.head.number()).collect();
    assert_eq!(numbers, [2, 1]);
    assert_eq!(history.first(), Some(&latest.entry));
    assert_eq!(store.history(1).await.map(|list| list.len()), Ok(1));
    takes_back_and_repeats(store, &second).await;
}

/// A rollback is another version with the same text; a push that is repeated is one version.
async fn takes_back_and_repeats(store: &dyn RuleStore, second: &Head) {
    let third = push(store, Some(second), "domain: d # one").await;
    assert_eq!(third.number(), 3);
    assert_eq!(push(store, Some(second), "domain: d # one").await, third);
    let late = store.push(Some(second), draft("domain: f")).await;
    assert_eq!(late, Ok(PushOutcome::Overtaken(Some(third.clone()))));
    let from_nothing = store.push(None, draft("domain: f")).await;
    assert_eq!(from_nothing, Ok(PushOutcome::Overtaken(Some(third))));
}

/// Twenty at once from one head, five times, each by a store of its own: one wins, and every other is told
/// who did. Begins in a store without versions.
///
/// # Panics
/// If the store does not do what [`RuleStore`] says.
pub async fn of_many_who_push_at_once_one_wins(open: impl Fn() -> Arc<dyn RuleStore>) {
    let mut from: Option<Head> = None;
    for _ in 0..5 {
        let mut racing = Vec::new();
        for number in 0..20 {
            let (store, from) = (open(), from.clone());
            racing.push(tokio::spawn(async move {
                let text = format!("domain: d{number}");
                store.push(from.as_ref(), draft(&text)).await
            }));
        }
        let mut ends = Vec::new();
        for one in racing {
            ends.push(one.await.unwrap_or_else(|error| unreachable!("{error}")));
        }
        let won = ends.iter().filter_map(|end| match end {
            Ok(PushOutcome::Done(head)) => Some(head.clone()),
            _ => None,
        });
        let won: Vec<Head> = won.collect();
        assert_eq!(won.len(), 1, "{ends:?}");
        let told = Ok(PushOutcome::Overtaken(won.first().cloned()));
        assert_eq!(ends.iter().filter(|end| **end == told).count(), 19);
        from = won.into_iter().next();
    }
    assert_eq!(from.map(|head| head.number()), Some(5));
}

/// As many versions are kept as the store says. Begins in a store without versions.
///
/// # Panics
/// If the store does not do what [`RuleStore`] says.
pub async fn the_oldest_versions_go(store: &dyn RuleStore) {
    let mut head = push(store, None, "domain: first").await;
    for number in 2..=store.kept() + 2 {
        head = push(store, Some(&head), &format!("domain: d{number}")).await;
    }
    assert_eq!(store.version(2).await, Ok(None));
    let oldest = store.version(3).await.ok().flatten();
    assert_eq!(
        oldest.map(|version| version.text),
        Some("domain: d3".to_owned())
    );
    let history = store.history(usize::MAX).await.unwrap_or_default();
    assert_eq!(history.len() as u64, store.kept());
    assert_eq!(history.last().map(|entry| entry.head.number()), Some(3));
}

/// As many bytes are kept as the store was told: 10,000. Begins in a store without versions.
///
/// # Panics
/// If the store does not do what [`RuleStore`] says.
pub async fn large_versions_go_early(store: &dyn RuleStore) {
    let text = |bytes: usize| format!("domain: d # {}", "x".repeat(bytes - 12));
    let mut head = None;
    let sizes = [2_000; 12].into_iter().chain([9_000, 20_000, 100]);
    for (pushed, bytes) in (1..).zip(sizes) {
        head = Some(push(store, head.as_ref(), &text(bytes)).await);
        let kept: u64 = match pushed {
            13.. => 2,
            _ => pushed.min(5),
        };
        let history = store.history(usize::MAX).await.unwrap_or_default();
        let numbers: Vec<u64> = history.iter().map(|entry| entry.head.number()).collect();
        let expected: Vec<u64> = (pushed + 1 - kept..=pushed).rev().collect();
        assert_eq!(numbers, expected, "after {bytes} bytes");
        for number in numbers {
            assert!(matches!(store.version(number).await, Ok(Some(_))));
        }
    }
}

/// A push wakes a caller that waits for another head, at once if it came before. Begins in a store without
/// versions; `other` is another way to the same one.
///
/// # Panics
/// If the store does not do what [`RuleStore`] says.
pub async fn a_push_wakes_who_waits(store: &dyn RuleStore, other: &dyn RuleStore) {
    let mut seen = None;
    for number in 1..=3 {
        seen = Some(wakes(store, other, seen, number).await);
    }
}

async fn wakes(
    store: &dyn RuleStore,
    other: &dyn RuleStore,
    seen: Option<Head>,
    number: u64,
) -> Head {
    let follow = async {
        loop {
            store.wait(seen.as_ref()).await;
            let head = store.head().await;
            match head {
                Ok(Some(head)) if Some(&head) != seen.as_ref() => return head,
                _ => assert_eq!(head, Ok(seen.clone())),
            }
        }
    };
    let mut follow = pin!(follow);
    // It has begun to wait.
    let waits = poll_fn(|context| Poll::Ready(follow.as_mut().poll(context).is_pending()));
    assert!(waits.await);
    let pushed = push(other, seen.as_ref(), &format!("domain: d{number}")).await;
    let found = timeout(PATIENCE, follow).await;
    assert_eq!(found.as_ref(), Ok(&pushed));
    pushed
}
