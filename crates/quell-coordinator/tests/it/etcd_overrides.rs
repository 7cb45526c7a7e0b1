//! Overrides in etcd pass the suite of override stores; and what only etcd can do to them.

use std::sync::Arc;

use quell::override_store::{Cursor, OverrideStore, OverrideStoreError};
use quell_conformance::override_store;
use quell_coordinator::etcd_overrides::EtcdOverrides;
use quell_coordinator::store::EtcdOptions;

use crate::etcd::Etcd;

const PREFIX: &str = "/overrides/test/";

fn store(etcd: &Etcd) -> EtcdOverrides {
    at(etcd, PREFIX)
}

fn at(etcd: &Etcd, prefix: &str) -> EtcdOverrides {
    EtcdOverrides::new(etcd.urls(), EtcdOptions::default(), prefix).unwrap()
}

/// Keys below the prefix, with a `?` for each byte that is no letter of them.
fn keys(etcd: &Etcd) -> Vec<String> {
    let printed = etcd.ctl(&["get", "--prefix", "--keys-only", PREFIX]);
    let lines = printed.lines().filter(|line| !line.is_empty());
    lines.map(str::to_owned).collect()
}

#[tokio::test]
async fn the_newest_form_is_kept() {
    let etcd = Etcd::start();
    override_store::keeps_the_newest_form(&store(&etcd)).await;
    for key in keys(&etcd) {
        assert!(key.starts_with("/overrides/test/1/"), "{key}");
    }
    assert_eq!(etcd.ctl(&["lease", "list"]).trim(), "found 0 leases");
}

#[tokio::test]
async fn a_batch_that_fails_changes_nothing() {
    let etcd = Etcd::start();
    override_store::a_batch_that_fails_changes_nothing(&store(&etcd)).await;
    assert!(!keys(&etcd).iter().any(|key| key.contains("/b/")));
    assert_eq!(etcd.ctl(&["lease", "list"]).trim(), "found 0 leases");
}

#[tokio::test]
async fn a_list_is_whole_while_others_write() {
    let etcd = Etcd::start();
    override_store::a_list_is_whole_while_others_write(&store(&etcd)).await;
}

#[tokio::test]
async fn large_overrides_come_in_parts() {
    let etcd = Etcd::start();
    override_store::large_overrides_come_in_parts(&store(&etcd)).await;
}

#[tokio::test]
async fn another_history_is_noticed() {
    let etcd = Etcd::start();
    override_store::another_history_is_noticed(&store(&etcd)).await;
}

#[tokio::test]
async fn a_change_wakes_who_waits() {
    let etcd = Etcd::start();
    let [one, other] = [(); 2].map(|()| store(&etcd));
    override_store::a_change_wakes_who_waits(&one, &other).await;
}

#[tokio::test]
async fn of_concurrent_writers_one_wins() {
    let etcd = Etcd::start();
    let open = || Arc::new(store(&etcd)) as Arc<dyn OverrideStore>;
    override_store::of_concurrent_writers_one_wins(open).await;
}

#[tokio::test]
async fn concurrent_writers_lose_nothing() {
    let etcd = Etcd::start();
    let open = || Arc::new(store(&etcd)) as Arc<dyn OverrideStore>;
    override_store::concurrent_writers_lose_nothing(open).await;
}

#[tokio::test]
async fn histories_are_those_of_a_map() {
    let etcd = Etcd::start();
    for seed in 0..10 {
        let store = at(&etcd, &format!("{PREFIX}{seed}/"));
        override_store::same_as_map(&store, seed, 100).await;
    }
}

/// A follower lists everything whenever the log is too short for it.
#[tokio::test]
async fn histories_with_a_short_log_are_those_of_a_map() {
    let etcd = Etcd::start();
    for seed in 100..105 {
        let store = at(&etcd, &format!("{PREFIX}{seed}/")).with_log(seed % 20 + 1);
        override_store::same_as_map(&store, seed, 100).await;
    }
}

#[tokio::test]
async fn the_oldest_changes_go() {
    let etcd = Etcd::start();
    override_store::the_oldest_changes_go(&store(&etcd).with_log(100), 100).await;
}

#[tokio::test]
async fn a_cursor_of_another_list_is_refused() {
    let etcd = Etcd::start();
    let cursor = Cursor::parse("AAAA").unwrap();
    let page = store(&etcd).all(Some(&cursor), 10).await;
    assert_eq!(page, Err(OverrideStoreError::ForeignCursor));
}
