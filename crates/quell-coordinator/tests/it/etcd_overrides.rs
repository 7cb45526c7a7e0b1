//! Overrides in etcd pass the suite of override stores; and what only etcd can do to them.

use std::future::poll_fn;
use std::path::PathBuf;
use std::sync::Arc;
use std::task::Poll;

use quell::override_store::{Changes, Cursor, OverrideStore, OverrideStoreError, Position};
use quell_conformance::override_store::{
    self, Follower, apply, delete, list_all, put, rate, tenant,
};
use quell_coordinator::config::EtcdAccess;
use quell_coordinator::etcd_overrides::EtcdOverrides;
use quell_coordinator::store::EtcdOptions;
use quell_testkit::etcd::Etcd as GuardedEtcd;
use quell_testkit::wait::until_it;

use crate::etcd::Etcd;

mod batches;
mod faults;

const PREFIX: &str = "/overrides/test/";

fn store(etcd: &Etcd) -> EtcdOverrides {
    at(etcd, PREFIX)
}

fn at(etcd: &Etcd, prefix: &str) -> EtcdOverrides {
    EtcdOverrides::new(etcd.urls(), EtcdOptions::default(), prefix).unwrap()
}

/// Keys below the prefix.
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

/// Each of them has a store of its own, or all share one, which makes their changes in one transaction.
fn opener(etcd: &Etcd, shared: bool) -> impl Fn() -> Arc<dyn OverrideStore> {
    let open = |etcd: &Etcd| Arc::new(store(etcd)) as Arc<dyn OverrideStore>;
    let (one, urls) = (open(etcd), etcd.urls());
    move || match shared {
        true => Arc::clone(&one),
        false => {
            let options = EtcdOptions::default();
            Arc::new(EtcdOverrides::new(urls.clone(), options, PREFIX).unwrap())
        }
    }
}

#[tokio::test]
async fn of_concurrent_writers_one_wins() {
    for shared in [false, true] {
        let etcd = Etcd::start();
        override_store::of_concurrent_writers_one_wins(opener(&etcd, shared)).await;
    }
}

#[tokio::test]
async fn concurrent_writers_lose_nothing() {
    for shared in [false, true] {
        let etcd = Etcd::start();
        override_store::concurrent_writers_lose_nothing(opener(&etcd, shared)).await;
    }
}

/// A transaction may write a key once, and the batches of several callers write it more often.
#[tokio::test]
async fn one_override_changes_often_at_once() {
    let etcd = Etcd::start();
    let store = Arc::new(store(&etcd));
    let mut follower = Follower::default();
    let mut writing = Vec::new();
    for number in 0..200 {
        let writer = Arc::clone(&store);
        let id = tenant("api", &(number % 3).to_string());
        let change = match number % 4 {
            3 => delete(&id, None),
            _ => put(&id, rate(number), None),
        };
        writing.push(tokio::spawn(async move {
            let revisions = apply(&*writer, &[change]).await;
            let found = writer.changes(&Position::default(), 1).await;
            assert_eq!(found, Ok(Changes::TooOld));
            revisions[0]
        }));
        if number % 50 == 10 {
            follower.follow(&*store).await;
        }
    }
    let mut revisions = Vec::new();
    for one in writing {
        revisions.extend(one.await.unwrap());
    }
    revisions.sort_unstable();
    assert!(revisions.iter().copied().eq(1..=revisions.len() as u64));
    follower.follow(&*store).await;
    assert_eq!(follower.overrides(), list_all(&*store, None, 10).await);
}

/// A caller that gives up before its turn has written nothing, or all.
#[tokio::test]
async fn a_caller_may_give_up() {
    let etcd = Etcd::start();
    let store = store(&etcd);
    let change = |number: u64| [put(&tenant("api", &number.to_string()), rate(1), None)];
    for number in 0..20 {
        let changes = change(number);
        let mut call = store.apply(&changes);
        poll_fn(|context| Poll::Ready(call.as_mut().poll(context).is_pending())).await;
        drop(call);
        apply(&store, &change(100 + number)).await;
    }
    let mut follower = Follower::default();
    follower.follow(&store).await;
    let stored = list_all(&store, None, 10).await;
    assert_eq!(follower.overrides(), stored);
    let kept = stored.iter().filter(|it| it.id.entries[0].1.len() == 3);
    assert_eq!(kept.count(), 20);
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

/// Small batches, and those that are made in stages; also where another writer comes between.
#[tokio::test]
async fn the_bound_holds() {
    for most in [25, 300] {
        let etcd = Etcd::start();
        override_store::the_bound_holds(&store(&etcd).with_max(most), most).await;
    }
    let etcd = Etcd::start();
    for most in 0..3 {
        let store = at(&etcd, &format!("/overrides/bound/{most}/")).with_max(most);
        override_store::same_as_bounded_map(&store, most, 60, most).await;
    }
    let [one, other] = [(); 2].map(|()| store(&etcd).with_max(10));
    for number in 0..20 {
        let store = [&one, &other][number % 2];
        let put = put(&tenant("api", &number.to_string()), rate(1), None);
        let made = store.apply(&[put]).await.is_ok();
        assert_eq!(made, number < 10, "{number}");
    }
}

#[tokio::test]
async fn what_ended_is_found() {
    let etcd = Etcd::start();
    override_store::what_ended_is_found(&store(&etcd)).await;
}

/// Also batches that lie in etcd in parts, under a lease: the right to the prefix is enough for that.
#[tokio::test]
async fn a_guarded_etcd_keeps_them_below_their_prefix() {
    let etcd = GuardedEtcd::guarded("quell", "of the fleet", &[PREFIX]);
    let path = |name: &str| PathBuf::from(etcd.certificates().path(name));
    let password = path("password");
    std::fs::write(&password, "of the fleet\n").unwrap();
    let access = EtcdAccess {
        authority: Some(path("ca.pem")),
        identity: Some((path("client.pem"), path("client.key"))),
        user: Some(("quell".to_owned(), password)),
    };
    let open = |access: &EtcdAccess, prefix: &str| {
        let options = access.options(true).unwrap();
        EtcdOverrides::new(vec![etcd.endpoint()], options, prefix).unwrap()
    };
    let store = open(&access, PREFIX);
    until_it("etcd answers over TLS", async || {
        store.position().await.is_ok()
    })
    .await;
    override_store::large_overrides_come_in_parts(&store).await;
    // Less credentials, or more than the role allows: an error, and nothing is written.
    let no_certificate = EtcdAccess {
        identity: None,
        ..access.clone()
    };
    let no_user = EtcdAccess {
        user: None,
        ..access.clone()
    };
    let change = [put(&tenant("api", "acme"), rate(7), None)];
    for refused in [
        open(&no_certificate, PREFIX),
        open(&no_user, PREFIX),
        open(&access, "/overrides/other/"),
    ] {
        let read = refused.position().await;
        assert!(read.is_err(), "{read:?}");
        let made = refused.apply(&change).await;
        assert!(made.is_err(), "{made:?}");
    }
}
