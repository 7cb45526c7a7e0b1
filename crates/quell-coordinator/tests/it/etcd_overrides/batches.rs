//! Batches that do not fit into one transaction: nobody sees half of one, whoever stops or writes meanwhile.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use quell::override_store::{
    ApplyOutcome, Change, OverrideStore, OverrideStoreError, StoredNumbers, StoredOverride,
};
use quell_conformance::override_store::{Follower, apply, delete, list_all, put, rate, tenant};
use quell_coordinator::etcd_overrides::EtcdOverrides;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::{PREFIX, at, keys, store};
use crate::etcd::Etcd;

/// Overrides of a batch: with these fields they are two parts, which are made in four steps.
const COUNT: u64 = 300;

/// Large numbers, which say the writer.
fn large(writer: u64) -> StoredNumbers {
    StoredNumbers::Fields(format!("{{\"a{writer}\":\"{}\"}}", "x".repeat(4_000)).into())
}

fn name(number: u64) -> String {
    format!("{number:04}")
}

/// Every twentieth is a deletion.
fn batch(writer: u64) -> Vec<Change> {
    let change = |number: u64| {
        let id = tenant("api", &name(number));
        match number % 20 {
            19 => delete(&id, None),
            _ => put(&id, large(writer), None),
        }
    };
    (0..COUNT).map(change).collect()
}

/// Polls a call whenever it is woken, so many times, and drops it when it is woken once more.
async fn stop_after<T>(polls: usize, call: impl Future<Output = T>) -> Option<T> {
    let (mut call, mut left) = (pin!(call), polls);
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        call.as_mut().poll(context).map(Some)
    })
    .await
}

/// All that a store has, at one look.
async fn look(store: &EtcdOverrides) -> BTreeMap<String, StoredOverride> {
    let page = store.all(None, 10_000).await.unwrap();
    assert_eq!(page.next, None, "it is one page");
    let named = |stored: StoredOverride| (stored.id.entries[0].1.to_string(), stored);
    page.overrides.into_iter().map(named).collect()
}

/// Deletes what dead writers attached to leases, as etcd does by itself.
fn end_leases(etcd: &Etcd) {
    let leases = etcd.ctl(&["lease", "list"]);
    for lease in leases.lines().skip(1) {
        etcd.ctl(&["lease", "revoke", lease]);
    }
}

/// After a writer stopped another one finds all of its batch, or nothing, and goes on. Returns whether it was made.
async fn goes_on(etcd: &Etcd, other: &EtcdOverrides, mut follower: Follower) -> bool {
    let (before, since) = (follower.overrides(), follower.position().clone());
    // A transaction of the writer may still be on its way.
    let (stored, position) = loop {
        follower.follow(other).await;
        let stored = look(other).await;
        let position = other.position().await.unwrap();
        if position == *follower.position() {
            break (stored, position);
        }
    };
    let made = since.revision() + COUNT - COUNT / 20 + 1;
    let stored: Vec<_> = stored.into_values().collect();
    assert_eq!(follower.overrides(), stored);
    if position == since {
        assert_eq!(stored, before);
    } else {
        // One deletion found something.
        assert_eq!(position.revision(), made);
        assert_eq!(stored.len() as u64, COUNT - COUNT / 20);
        assert!(stored.iter().all(|stored| stored.numbers == large(1)));
    }
    // The next writer is not disturbed.
    let first = apply(other, &batch(2)).await[0];
    assert!(first == Some(made + 1) || (position == since && first == Some(since.revision() + 1)));
    let stored = look(other).await;
    assert!(stored.values().all(|stored| stored.numbers == large(2)));
    end_leases(etcd);
    let left: Vec<_> = keys(etcd)
        .into_iter()
        .filter(|key| key.contains("/b/"))
        .collect();
    assert_eq!(left, Vec::<String>::new());
    first == Some(made + 1)
}

#[tokio::test]
async fn a_writer_may_stop_at_every_step() {
    let etcd = Etcd::start();
    let (mut made, mut not_made) = (0, 0);
    for polls in 1.. {
        let prefix = format!("{PREFIX}{polls}/");
        let [writer, other] = [(); 2].map(|()| at(&etcd, &prefix));
        let first = [0, 19].map(|number| put(&tenant("api", &name(number)), rate(1), None));
        apply(&writer, &first).await;
        let mut follower = Follower::default();
        follower.follow(&other).await;
        let changes = batch(1);
        let outcome = stop_after(polls, writer.apply(&changes)).await;
        let is_made = goes_on(&etcd, &other, follower).await;
        made += u32::from(is_made);
        not_made += u32::from(!is_made);
        if let Some(outcome) = outcome {
            assert!(
                matches!(outcome, Ok(ApplyOutcome::Applied { .. })),
                "{outcome:?}"
            );
            assert!(is_made);
            break;
        }
    }
    assert!(made > 5 && not_made > 5, "{made} and {not_made}");
}

/// A batch that is half made when etcd stops is whole when it is back.
#[tokio::test]
async fn a_batch_outlives_etcd() {
    let mut etcd = Etcd::start();
    let [writer, other] = [(); 2].map(|()| store(&etcd));
    let change = [put(&tenant("api", &name(0)), rate(1), None)];
    apply(&writer, &change).await;
    let changes = batch(1);
    let is_half = |head: &str| head.contains("\"part\":1");
    for polls in 1.. {
        stop_after(polls, writer.apply(&changes)).await;
        if is_half(&etcd.ctl(&["get", "/overrides/test/1/head"])) {
            break;
        }
        // Somebody else makes the others before the next.
        look(&other).await;
    }
    etcd.kill(0);
    let errors = [
        other.position().await.unwrap_err(),
        other.apply(&change).await.unwrap_err(),
        other.apply(&changes).await.unwrap_err(),
        other.all(None, 1).await.unwrap_err(),
    ];
    for error in errors {
        assert!(
            matches!(error, OverrideStoreError::NoAnswer(_)),
            "{error:?}"
        );
    }
    etcd.members[0].restart();
    let stored = look(&other).await;
    assert!(stored.values().all(|stored| stored.numbers == large(1)));
    assert_eq!(stored.len(), batch(1).len() - batch(1).len() / 20);
    assert!(!is_half(&etcd.ctl(&["get", "/overrides/test/1/head"])));
}

/// Two write large batches at once and a third small ones all the time, each by a store of its own. Whoever looks sees
/// one batch.
#[tokio::test]
async fn of_two_large_batches_nobody_sees_a_mixture() {
    const ROUNDS: u64 = 4;
    let etcd = Etcd::start();
    let (looks, _) = watch::channel(0_u64);
    let mut writing = Vec::new();
    for writer in 0..2 {
        let (store, mut looked) = (store(&etcd), looks.subscribe());
        writing.push(tokio::spawn(async move {
            for round in 0..ROUNDS {
                apply(&store, &batch(writer + 2 * round)).await;
                // One look begins after it was answered, and ends.
                let end = *looked.borrow() + 2;
                looked.wait_for(|looks| *looks >= end).await.unwrap();
            }
        }));
    }
    let small = store(&etcd);
    let is_over = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&is_over);
    let small = tokio::spawn(async move {
        let mut number = 0;
        while !ends.load(Ordering::SeqCst) {
            let change = put(&tenant("web", "small"), rate(number), None);
            apply(&small, &[change]).await;
            number += 1;
        }
        number
    });
    let other = store(&etcd);
    let mut follower = Follower::default();
    let mut seen = Vec::new();
    while !writing.iter().all(JoinHandle::is_finished) {
        let mut stored = look(&other).await;
        stored.remove("small");
        let numbers: Vec<_> = stored.values().map(|stored| &stored.numbers).collect();
        let is_one = numbers.windows(2).all(|pair| pair[0] == pair[1]);
        assert!(is_one, "a mixture");
        let count = numbers.len();
        assert!([0, 285].contains(&count), "{count} of them");
        seen.extend(numbers.first().map(|numbers| (*numbers).clone()));
        seen.dedup();
        looks.send_modify(|looks| *looks += 1);
        if *looks.borrow() % 3 == 0 {
            follower.follow(&other).await;
        }
    }
    is_over.store(true, Ordering::SeqCst);
    for one in writing {
        one.await.unwrap();
    }
    let smalls = small.await.unwrap();
    assert!(seen.len() > 1, "{} batches were seen", seen.len());
    follower.follow(&other).await;
    assert_eq!(follower.overrides(), list_all(&other, None, 10_000).await);
    let revision = follower.position().revision();
    assert_eq!(revision, 2 * ROUNDS * 285 + smalls);
}

/// The conditions of a large batch are checked when it is decided.
#[tokio::test]
async fn a_large_batch_conflicts_as_a_whole() {
    let etcd = Etcd::start();
    let store = store(&etcd);
    let change = |number: u64, expected| put(&tenant("api", &name(number)), rate(1), expected);
    let all = |expected| (0..1_000).map(move |number| change(number, expected));
    apply(&store, &all(Some(0)).collect::<Vec<_>>()).await;
    let mut racing = Vec::new();
    for _ in 0..2 {
        let store = at(&etcd, PREFIX);
        racing.push(tokio::spawn(async move {
            let changes = (0..1_000).map(|number| change(number, Some(number + 1)));
            let changes: Vec<_> = changes.collect();
            store.apply(&changes).await
        }));
    }
    let mut ends = Vec::new();
    for one in racing {
        ends.push(one.await.unwrap().unwrap());
    }
    let conflict = ApplyOutcome::Conflict {
        index: 0,
        current: 1_001,
    };
    assert_eq!(
        ends.iter().filter(|end| **end == conflict).count(),
        1,
        "{ends:?}"
    );
    assert_eq!(store.position().await.unwrap().revision(), 2_000);
    assert!(!keys(&etcd).iter().any(|key| key.contains("/b/")));
    assert_eq!(etcd.ctl(&["lease", "list"]).trim(), "found 0 leases");
}
