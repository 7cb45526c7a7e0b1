//! Overrides when etcd loses answers or its history, is not there, or has keys of strangers.

use std::sync::Arc;
use std::time::Duration;

use quell::override_store::{
    ApplyOutcome, Changes, OverrideFilter, OverrideId, OverrideStore, OverrideStoreError, Position,
    key,
};
use quell_conformance::override_store::{Follower, apply, delete, put, rate, tenant};
use quell_coordinator::etcd_overrides::EtcdOverrides;
use quell_coordinator::store::{
    ConfigStore as _, EtcdOptions, EtcdStore, Listing, Transaction, Write,
};
use quell_testkit::proxy::{Fault, Proxy};
use quell_testkit::wait::{paced, until_it};

use super::{PREFIX, at, store};
use crate::etcd::Etcd;

const WITHIN: Duration = Duration::from_secs(5);

fn is_damaged<T>(answer: Result<T, OverrideStoreError>, key: &str) -> bool {
    match answer {
        Err(OverrideStoreError::Damaged { what, .. }) => what.contains(key),
        _ => false,
    }
}

/// The keys of the store, as etcd has them.
async fn raw(etcd: &EtcdStore) -> Listing {
    etcd.read(PREFIX, WITHIN).await.unwrap()
}

/// Writes an override past the store.
async fn write_raw(etcd: &EtcdStore, id: &OverrideId, json: &str) {
    let key = String::from_utf8(key::encode(id)).unwrap();
    let write = Write::put(format!("{PREFIX}1/o/{key}"), json.as_bytes().to_vec());
    let transaction = Transaction {
        conditions: Vec::new(),
        writes: vec![write],
    };
    etcd.commit(transaction, WITHIN).await.unwrap();
}

/// An etcd with a store whose keys people change.
struct ByHand {
    etcd: Etcd,
    store: EtcdOverrides,
}

impl ByHand {
    async fn start() -> Self {
        let etcd = Etcd::start();
        let store = store(&etcd);
        Self { etcd, store }
    }

    fn put(&self, key: &str, value: &str) {
        let key = format!("{PREFIX}1/{key}");
        self.etcd.ctl(&["put", &key, value]);
    }

    fn delete(&self, key: &str) {
        self.etcd.ctl(&["del", &format!("{PREFIX}1/{key}")]);
    }
}

#[tokio::test]
async fn keys_of_strangers_are_passed_over_or_told() {
    let hand = ByHand::start().await;
    let store = &hand.store;
    let id = tenant("api", "acme");
    hand.put("b/0000000000000001/00000", "x");
    hand.put("other", "x");
    assert_eq!(store.position().await, Ok(Position::default()));
    assert_eq!(apply(store, &[put(&id, rate(1), Some(0))]).await, [Some(1)]);
    // Keys that are no revisions, and one of the future.
    hand.put("l/99999999999999999999", "x");
    hand.put("l/x", "x");
    let mut follower = Follower::default();
    follower.follow(store).await;
    assert_eq!(apply(store, &[put(&id, rate(2), Some(1))]).await, [Some(2)]);
    follower.follow(store).await;
    assert_eq!(follower.overrides()[0].numbers, rate(2));
    hand.put("o/zzz", "{}");
    assert!(is_damaged(store.all(None, 10).await, "1/o/zzz"));
    let shop = OverrideFilter::domain("shop");
    assert!(store.list(&shop, None, 10).await.is_ok());
}

#[tokio::test]
async fn overrides_that_were_changed_by_hand_are_told() {
    let hand = ByHand::start().await;
    let (store, etcd) = (&hand.store, hand.etcd.store());
    let [id, other, third] = ["a", "b", "c"].map(|name| tenant("api", name));
    let all = |number| [&id, &other, &third].map(|id| put(id, rate(number), None));
    apply(store, &all(1)).await;
    let record = store.get(&id).await.unwrap().unwrap();
    write_raw(&etcd, &other, &record.to_json()).await;
    let key = "/o/shop\\u{0}\\u{2}api";
    assert!(is_damaged(store.get(&other).await, key), "it is another");
    write_raw(&etcd, &third, "{}").await;
    assert!(is_damaged(store.get(&third).await, "/o/shop"));
    assert!(is_damaged(store.all(None, 10).await, "/o/shop"));
    let expecting = [put(&third, rate(4), Some(3))];
    assert!(is_damaged(store.apply(&expecting).await, "/o/shop"));
    // A write replaces them.
    apply(store, &all(2)).await;
    assert_eq!(store.all(None, 10).await.unwrap().overrides.len(), 3);
    // One may be deleted that cannot be read.
    write_raw(&etcd, &third, "{}").await;
    assert_eq!(apply(store, &[delete(&third, None)]).await, [Some(7)]);
}

#[tokio::test]
async fn a_log_that_was_changed_by_hand_is_told() {
    let hand = ByHand::start().await;
    let store = &hand.store;
    let change = |number| [put(&tenant("api", "acme"), rate(number), None)];
    apply(store, &change(1)).await;
    let since = store.position().await.unwrap();
    apply(store, &change(2)).await;
    apply(store, &change(3)).await;
    let log = format!("l/{:020}", 2);
    hand.put(&log, "x");
    assert!(is_damaged(store.changes(&since, 10).await, &log));
    hand.delete(&log);
    assert_eq!(store.changes(&since, 10).await, Ok(Changes::TooOld));
}

#[tokio::test]
async fn a_head_that_was_changed_by_hand_is_told() {
    let hand = ByHand::start().await;
    let store = &hand.store;
    let change = |number| [put(&tenant("api", "acme"), rate(number), None)];
    apply(store, &change(1)).await;
    let newest = store.position().await.unwrap();
    for text in ["7", "", "{\"identity\":\"\",\"revision\":7,\"tag\":1}"] {
        hand.put("head", text);
        assert!(is_damaged(store.position().await, "1/head"), "{text}");
        let written = store.apply(&change(2)).await;
        assert!(is_damaged(written, "1/head"), "{text}");
    }
    // A batch whose parts are not there.
    let batch = "{\"tag\":2,\"parts\":1,\"part\":0,\"made\":0,\"revision\":7}";
    let head = "{\"identity\":\"a\",\"revision\":7,\"tag\":1,\"batch\":";
    hand.put("head", &format!("{head}{batch}}}"));
    let part = "1/b/0000000000000002/00000";
    assert!(is_damaged(store.position().await, part));
    // Somebody deletes it: revisions go on above those that are there.
    hand.delete("head");
    let revisions = apply(store, &change(3)).await;
    assert!(revisions[0] > Some(newest.revision()), "{revisions:?}");
    assert_eq!(store.changes(&newest, 10).await, Ok(Changes::TooOld));
    let mut follower = Follower::new(newest, Vec::new());
    follower.follow(store).await;
    assert_eq!(follower.overrides()[0].numbers, rate(3));
}

/// A restored backup is another history, also when it has more changes than a follower saw.
#[tokio::test]
async fn a_restored_backup_is_noticed() {
    let mut etcd = Etcd::start();
    let store = store(&etcd);
    let id = tenant("api", "acme");
    apply(&store, &[put(&id, rate(1), None)]).await;
    let folder = tempfile::tempdir().unwrap();
    let backup = folder.path().join("backup");
    let backup = backup.to_str().unwrap();
    etcd.members[0].back_up(backup);
    apply(&store, &[put(&id, rate(2), None)]).await;
    let mut follower = Follower::default();
    follower.follow(&store).await;
    let lost = follower.position().clone();

    etcd.members[0].restore(backup);
    store.wait(&lost).await;
    assert_eq!(
        store.changes(&lost, 10).await,
        Ok(Changes::TooOld),
        "it has an older revision"
    );
    for number in 3..=5 {
        apply(&store, &[put(&id, rate(number), None)]).await;
    }
    assert_eq!(
        store.changes(&lost, 10).await,
        Ok(Changes::TooOld),
        "it has the revision again"
    );
    follower.follow(&store).await;
    assert_eq!(follower.overrides()[0].numbers, rate(5));
}

/// The answer to the transaction that decides is lost: it is repeated, and finds itself in the log.
#[tokio::test]
async fn a_write_whose_answer_was_lost_is_made_once() {
    let etcd = Etcd::start();
    let (direct, etcd_store) = (store(&etcd), etcd.store());
    let many = |writer: u64| {
        let change =
            move |number: u64| put(&tenant("api", &number.to_string()), rate(writer), None);
        (0..200).map(change).collect::<Vec<_>>()
    };
    let one = |writer: u64| vec![put(&tenant("api", "0"), rate(writer), None)];
    for (round, changes) in [one(1), many(2), one(3), many(4)].into_iter().enumerate() {
        let proxy = Proxy::start(etcd.members[0].port());
        let store = EtcdOverrides::new(vec![proxy.url()], EtcdOptions::default(), PREFIX).unwrap();
        let before = store.position().await.unwrap();
        let written = raw(&etcd_store).await;
        proxy.set(Fault::Delay(Duration::from_millis(100)));
        let interrupt = async {
            let head = |listing: &Listing| listing.entries.get("/overrides/test/1/head").cloned();
            let is_decided = async || head(&raw(&etcd_store).await) != head(&written);
            until_it("it is decided", is_decided).await;
            proxy.set(Fault::Refuse);
            if round >= 2 {
                // Somebody else writes before it can look.
                apply(&direct, &[put(&tenant("web", "a"), rate(1), None)]).await;
            }
            paced().await;
            proxy.set(Fault::None);
        };
        let (outcome, ()) = tokio::join!(store.apply(&changes), interrupt);
        let first = before.revision() + 1;
        let expected: Vec<_> = (first..).take(changes.len()).map(Some).collect();
        match outcome {
            Ok(ApplyOutcome::Applied { revisions, .. }) => assert_eq!(revisions, expected),
            other => panic!("round {round}: {other:?}"),
        }
        let newest = direct.position().await.unwrap().revision();
        let others = u64::from(round >= 2);
        assert_eq!(newest, before.revision() + changes.len() as u64 + others);
    }
}

#[tokio::test]
async fn a_write_that_is_never_answered_is_told_as_unknown() {
    let etcd = Etcd::start();
    let direct = store(&etcd);
    let proxy = Proxy::start(etcd.members[0].port());
    let store = EtcdOverrides::new(vec![proxy.url()], EtcdOptions::default(), PREFIX).unwrap();
    assert_eq!(store.position().await, Ok(Position::default()));
    proxy.set(Fault::Delay(Duration::from_millis(100)));
    let change = [put(&tenant("api", "acme"), rate(1), Some(0))];
    let interrupt = async {
        let is_written = async || direct.position().await != Ok(Position::default());
        until_it("it is written", is_written).await;
        proxy.set(Fault::Refuse);
    };
    let (outcome, ()) = tokio::join!(store.apply(&change), interrupt);
    assert!(
        matches!(outcome, Err(OverrideStoreError::Unknown(_))),
        "{outcome:?}"
    );
    // It says what it expects, so it can be repeated.
    proxy.set(Fault::None);
    let conflict = ApplyOutcome::Conflict {
        index: 0,
        current: 1,
    };
    assert_eq!(store.apply(&change).await, Ok(conflict));
}

#[tokio::test]
async fn a_store_that_is_not_there_says_so() {
    let port = quell_testkit::port::free_port();
    let url = format!("http://me:secret@127.0.0.1:{port}");
    let options = EtcdOptions {
        user: Some(("me".into(), "secret".into())),
        tls: None,
    };
    let store = EtcdOverrides::new(vec![url], options, PREFIX).unwrap();
    assert_eq!(store.url(), format!("http://127.0.0.1:{port}"));
    let change = [put(&tenant("api", "acme"), rate(1), None)];
    for error in [
        store.position().await.unwrap_err(),
        store.apply(&change).await.unwrap_err(),
    ] {
        assert!(
            matches!(error, OverrideStoreError::NoAnswer(_)),
            "{error:?}"
        );
        assert!(!error.to_string().contains("secret"), "{error}");
    }
    assert!(!format!("{store:?}").contains("secret"));
    let refused = EtcdOverrides::new(Vec::new(), EtcdOptions::default(), PREFIX);
    assert!(refused.is_err());
}

/// A call goes on to the next endpoint.
#[tokio::test]
async fn one_of_three_may_be_gone() {
    let mut etcd = Etcd::three();
    let store = Arc::new(at(&etcd, PREFIX));
    let change = [put(&tenant("api", "acme"), rate(1), None)];
    apply(&*store, &change).await;
    etcd.kill(0);
    until_it("another member answers", async || {
        store.position().await.is_ok()
    })
    .await;
    apply(&*store, &change).await;
}
