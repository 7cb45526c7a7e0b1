//! Sessions over a real etcd whose network, answers and clocks misbehave.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use quell_coordinator::clock::boottime;
use quell_coordinator::session::{Leadership, Session, SessionOptions, key};
use quell_coordinator::store::{
    ConfigStore, EtcdOptions, EtcdStore, Listing, StoreError, Transaction, Write,
};
use quell_testkit::proxy::{Fault, Proxy};
use quell_testkit::wait;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::etcd::Etcd;
use crate::faulty::{Faulty, until};
use crate::memory::Memory;
use crate::reopened::reopened;

const TTL: Duration = Duration::from_secs(1);
const CALL: Duration = Duration::from_secs(5);

fn options(name: &str) -> SessionOptions {
    SessionOptions {
        ttl: TTL,
        silence: Duration::from_millis(600),
        ..SessionOptions::new("test", name)
    }
}

fn start<S: ConfigStore>(store: S, name: &str) -> Session<S> {
    Session::start(store, options(name)).unwrap()
}

async fn leads<S: ConfigStore>(session: &Session<S>) -> Leadership {
    until(&mut session.leadership(), Option::is_some)
        .await
        .unwrap()
}

async fn is_lost<S: ConfigStore>(session: &Session<S>) {
    until(&mut session.leadership(), Option::is_none).await;
}

/// Whether a time to live passes without a leadership.
async fn stays_out<S: ConfigStore>(session: &Session<S>, during: Duration) -> bool {
    let mut leadership = session.leadership();
    timeout(during, leadership.wait_for(Option::is_some))
        .await
        .is_err()
}

fn value(listing: &Listing, key: &str) -> Option<String> {
    let entry = listing.entries.get(&format!("/quell/test/{key}"))?;
    Some(String::from_utf8(entry.value.clone()).unwrap())
}

async fn shows(view: &mut watch::Receiver<Arc<Listing>>, key: &str, wanted: &str) {
    until(view, |view| value(view, key).as_deref() == Some(wanted)).await;
}

async fn put(store: &impl ConfigStore, key: &str, text: &str) {
    let write = Write::put(format!("/quell/test/{key}"), text.as_bytes().to_vec());
    let transaction = Transaction {
        conditions: Vec::new(),
        writes: vec![write],
    };
    assert!(store.commit(transaction, CALL).await.unwrap().succeeded);
}

async fn delete(store: &impl ConfigStore, key: &str) {
    let transaction = Transaction {
        conditions: Vec::new(),
        writes: vec![Write::delete(format!("/quell/test/{key}"))],
    };
    assert!(store.commit(transaction, CALL).await.unwrap().succeeded);
}

fn record(text: &str) -> Vec<Write> {
    vec![Write::put(key::RECORD, text.as_bytes().to_vec())]
}

/// Whether a leader can write the record.
async fn writes<S: ConfigStore>(session: &Session<S>, leadership: &Leadership, text: &str) -> bool {
    let written = session.write(leadership, Vec::new(), record(text)).await;
    written.unwrap().succeeded
}

#[tokio::test]
async fn the_next_one_leads_when_a_leader_resigns_or_dies() {
    let etcd = Etcd::start();
    let first = start(etcd.store(), "a");
    let one = leads(&first).await;
    let second = start(etcd.store(), "b");
    shows(&mut second.view(), key::LEADER, "a").await;
    assert!(writes(&first, &one, "1").await);
    shows(&mut second.view(), key::RECORD, "1").await;

    // What is handed over is there for the next leader, and only for it.
    let part = |at: u8| vec![Write::put(format!("{}{at}", key::SNAPSHOT), vec![at])];
    let parts = vec![part(0), part(1)];
    assert!(first.resign(&one, parts, part(2)).await.unwrap().succeeded);
    let two = leads(&second).await;
    assert!(two.epoch > one.epoch);
    let keys = two.listing.entries.keys();
    let is_part = |key: &&String| key.starts_with("/quell/test/snapshot/");
    assert_eq!(keys.filter(is_part).count(), 3);
    assert_eq!(value(&two.listing, key::LEADER).as_deref(), Some("b"));
    let now = etcd
        .store()
        .read("/quell/test/snapshot", CALL)
        .await
        .unwrap();
    assert!(now.entries.is_empty());

    // The first one cannot write any more, even under a key that exists.
    assert!(!writes(&first, &one, "late").await);
    assert!(
        !first
            .resign(&one, Vec::new(), Vec::new())
            .await
            .unwrap()
            .succeeded
    );
    is_lost(&first).await;
    drop(second);
    let three = leads(&first).await;
    assert!(three.epoch > two.epoch);
    assert_eq!(value(&three.listing, key::RECORD).as_deref(), Some("1"));
}

#[tokio::test]
async fn the_key_is_kept_while_the_main_runtime_is_blocked() {
    let etcd = Etcd::start();
    let session = start(etcd.store(), "a");
    let before = leads(&session).await;
    // This is the thread of the only runtime besides the session's.
    wait::until("it is kept for three times to live", || {
        let now = session.leadership().borrow().clone()?;
        assert_eq!(now.epoch, before.epoch);
        (now.asked.since(before.asked) > TTL * 3).then_some(())
    });
}

#[tokio::test]
async fn the_lease_is_kept_during_the_campaign() {
    let etcd = Etcd::start();
    let leader = start(etcd.store(), "a");
    leads(&leader).await;
    let candidate = start(etcd.store(), "b");
    shows(&mut candidate.view(), key::LEADER, "a").await;
    // In no order.
    let leases = || -> BTreeSet<String> {
        let list = etcd.ctl(&["lease", "list"]);
        list.lines().map(str::to_owned).collect()
    };
    let before = leases();
    assert_eq!(before.len(), 3, "{before:?}");
    assert!(stays_out(&candidate, TTL * 3).await);
    assert_eq!(leases(), before);
    drop(leader);
    let lease = leads(&candidate).await.lease.0;
    assert!(
        before.contains(&format!("{lease:016x}")),
        "{lease:016x} {before:?}"
    );
}

#[tokio::test]
async fn a_session_that_lapses_during_the_campaign_does_not_lead() {
    let etcd = Etcd::start();
    let (store, faults) = Faulty::new(etcd.store());
    {
        let mut faults = faults.lock().unwrap();
        // The key is created, but the answer arrives when its lease is over.
        faults.slow_commits.push_back(TTL * 2);
        faults.no_keep_alives = true;
    }
    let session = start(store, "a");
    let other = etcd.store();
    let mut keys = other.watch("/quell/test/leader", 1, CALL).await.unwrap();
    let mut created = None;
    while created.is_none() {
        use quell_coordinator::store::Watch as _;
        let changes = keys.next().await.unwrap();
        created = changes.first().and_then(|change| change.entry.clone());
    }
    assert!(stays_out(&session, TTL * 2).await);
    // And with the network back it leads with another key.
    faults.lock().unwrap().no_keep_alives = false;
    let leadership = leads(&session).await;
    assert!(leadership.epoch > created.as_ref().unwrap().created);
    assert_ne!(Some(leadership.lease), created.unwrap().lease);
}

#[tokio::test]
async fn a_leader_acts_after_its_first_keep_alive() {
    let etcd = Etcd::start();
    let (store, faults) = Faulty::new(etcd.store());
    faults.lock().unwrap().no_keep_alives = true;
    let session = start(store, "a");
    let mut watch = session.view();
    // It has the key, and does not lead.
    shows(&mut watch, key::LEADER, "a").await;
    assert!(session.leadership().borrow().is_none());
    assert!(stays_out(&session, TTL / 2).await);
    let sent = boottime();
    faults.lock().unwrap().no_keep_alives = false;
    assert!(leads(&session).await.asked >= sent);
}

#[tokio::test]
async fn a_deadline_counts_from_the_sending_of_a_keep_alive() {
    let etcd = Etcd::start();
    let (store, faults) = Faulty::new(etcd.store());
    let session = start(store, "a");
    leads(&session).await;
    let late = TTL / 4;
    faults.lock().unwrap().slow_keep_alives = late;
    let mut leadership = session.leadership();
    for _ in 0..3 {
        leadership.changed().await.unwrap();
    }
    let kept = leadership.borrow_and_update().clone().unwrap();
    let age = boottime().since(kept.asked);
    assert!(age >= late, "{age:?}");
}

#[tokio::test]
async fn a_key_that_is_taken_away_ends_the_leadership() {
    let etcd = Etcd::start();
    let session = start(etcd.store(), "a");
    let first = leads(&session).await;
    // Another process creates the key again: it has another revision and no lease.
    delete(&etcd.store(), key::LEADER).await;
    put(&etcd.store(), key::LEADER, "a").await;
    assert!(!writes(&session, &first, "x").await);
    is_lost(&session).await;
    assert!(stays_out(&session, TTL).await);
    delete(&etcd.store(), key::LEADER).await;
    assert!(leads(&session).await.epoch > first.epoch);
}

#[tokio::test]
async fn a_silent_watch_is_begun_again() {
    let etcd = Etcd::start();
    let proxy = Proxy::start(etcd.members[0].port());
    let store = EtcdStore::new(vec![proxy.url()], EtcdOptions::default()).unwrap();
    let session = start(store, "a");
    leads(&session).await;
    let mut view = session.view();
    put(&etcd.store(), "config", "1").await;
    shows(&mut view, "config", "1").await;
    proxy.set(Fault::Forgotten);
    put(&etcd.store(), "config", "2").await;
    shows(&mut view, "config", "2").await;
}

#[tokio::test]
async fn changes_behind_a_silent_network_are_seen_afterwards() {
    let etcd = Etcd::start();
    let proxy = Proxy::start(etcd.members[0].port());
    let store = EtcdStore::new(vec![proxy.url()], EtcdOptions::default()).unwrap();
    let session = start(store, "a");
    leads(&session).await;
    put(&etcd.store(), "gone", "1").await;
    put(&etcd.store(), "config", "1").await;
    let mut view = session.view();
    shows(&mut view, "config", "1").await;
    proxy.set(Fault::Lose);
    delete(&etcd.store(), "gone").await;
    put(&etcd.store(), "config", "2").await;
    is_lost(&session).await;
    until(&mut session.health(), |health| health.trouble().is_some()).await;
    proxy.set(Fault::None);
    shows(&mut view, "config", "2").await;
    assert_eq!(value(&view.borrow(), "gone"), None);
    leads(&session).await;
    until(&mut session.health(), |health| health.trouble().is_none()).await;
}

#[tokio::test]
async fn a_watch_that_ends_loses_no_change() {
    let etcd = Etcd::start();
    let (store, faults) = Faulty::new(etcd.store());
    let session = start(store, "a");
    leads(&session).await;
    put(&etcd.store(), "gone", "1").await;
    let mut view = session.view();
    shows(&mut view, "gone", "1").await;
    faults.lock().unwrap().lose_watch = true;
    delete(&etcd.store(), "gone").await;
    until(&mut view, |view| value(view, "gone").is_none()).await;
    assert_eq!(faults.lock().unwrap().ended.len(), 1);
}

/// A watch begins right after the keys were read. So it can only miss what is compacted in between.
#[tokio::test]
async fn changes_that_were_compacted_before_a_watch_began_are_seen() {
    let etcd = Etcd::start();
    put(&etcd.store(), "gone", "1").await;
    let (store, faults) = Faulty::new(etcd.store());
    faults.lock().unwrap().no_watches = true;
    let session = start(store, "a");
    let mut view = session.view();
    shows(&mut view, "gone", "1").await;
    delete(&etcd.store(), "gone").await;
    put(&etcd.store(), "config", "2").await;
    let revision = etcd.store().read("x", CALL).await.unwrap().revision;
    etcd.ctl(&["compact", &revision.to_string()]);
    faults.lock().unwrap().no_watches = false;
    shows(&mut view, "config", "2").await;
    assert_eq!(value(&view.borrow(), "gone"), None);
    let ended = &faults.lock().unwrap().ended;
    let why = format!("the changes before revision {revision} are compacted");
    assert_eq!(ended[..], [StoreError::WatchEnded(why)]);
}

#[tokio::test]
async fn all_keys_are_read_again_whatever_the_watch_says() {
    let etcd = Etcd::start();
    let (store, faults) = Faulty::new(etcd.store());
    let options = SessionOptions {
        relist: TTL,
        ..options("a")
    };
    let session = Session::start(store, options).unwrap();
    leads(&session).await;
    faults.lock().unwrap().mute_watches = true;
    put(&etcd.store(), "config", "1").await;
    shows(&mut session.view(), "config", "1").await;
}

#[tokio::test]
async fn all_of_etcd_is_gone_and_comes_back() {
    let mut etcd = Etcd::start();
    let session = start(etcd.store(), "a");
    let before = leads(&session).await;
    etcd.kill(0);
    is_lost(&session).await;
    let asked = boottime();
    let failed = session
        .write(&before, Vec::new(), record("x"))
        .await
        .unwrap_err();
    assert!(failed.is_passing(), "{failed}");
    assert!(boottime().since(asked) < TTL);
    etcd.members[0].restart();
    let after = leads(&session).await;
    assert!(after.epoch > before.epoch);
    assert!(writes(&session, &after, "x").await);
}

#[tokio::test]
async fn one_of_three_is_gone_and_another_is_silent() {
    let mut etcd = Etcd::three();
    let leader = etcd.leader();
    let others: Vec<usize> = (0..3).filter(|at| *at != leader).collect();
    // The first endpoint takes connections and never answers, the second one is etcd's leader.
    let silent = Proxy::start(etcd.members[others[0]].port());
    silent.set(Fault::Lose);
    let urls = etcd.urls();
    let endpoints = vec![silent.url(), urls[leader].clone(), urls[others[1]].clone()];
    let session = start(
        EtcdStore::new(endpoints, EtcdOptions::default()).unwrap(),
        "a",
    );
    let before = leads(&session).await;
    etcd.kill(leader);
    let mut leadership = session.leadership();
    let killed = boottime();
    let is_after = |leadership: &Option<Leadership>| {
        leadership
            .as_ref()
            .is_some_and(|l| l.asked > killed.saturating_add(TTL / 2))
    };
    let after = until(&mut leadership, is_after).await.unwrap();
    assert!(after.epoch >= before.epoch);
    assert!(writes(&session, &after, "x").await);
}

#[tokio::test]
async fn coordinators_that_disagree_about_the_time_to_live_do_not_lead() {
    let etcd = Etcd::start();
    let first = start(etcd.store(), "a");
    leads(&first).await;
    let options = SessionOptions {
        ttl: TTL * 2,
        ..options("b")
    };
    let second = Session::start(etcd.store(), options).unwrap();
    let health = until(&mut second.health(), |h| h.other_ttl.is_some()).await;
    assert_eq!(health.other_ttl.as_deref(), Some("1000"));
    drop(first);
    assert!(stays_out(&second, TTL).await);
}

#[tokio::test]
async fn a_file_elects_its_only_process_at_every_start() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fleet.db");
    let mut last = 0;
    for _ in 0..3 {
        let session = start(reopened(&path).unwrap(), "a");
        let leadership = leads(&session).await;
        assert!(leadership.epoch > last);
        last = leadership.epoch;
        assert!(writes(&session, &leadership, "x").await);
        delete(&*session.store(), key::LEADER).await;
        is_lost(&session).await;
        assert!(!writes(&session, &leadership, "late").await);
        assert!(leads(&session).await.epoch > last);
        let large = Write::put(key::RECORD, vec![0; 2 << 20]);
        let refused = session
            .write(&leads(&session).await, Vec::new(), vec![large])
            .await;
        assert!(matches!(refused, Err(StoreError::TooLarge { .. })));
    }
}

#[tokio::test]
async fn stopping_gives_the_key_back_and_waits_for_nothing() {
    let etcd = Etcd::start();
    let session = start(etcd.store(), "a");
    leads(&session).await;
    drop(session);
    let listing = etcd.store().read("/quell/test/leader", CALL).await.unwrap();
    assert_eq!(value(&listing, key::LEADER), None);
    // Nor does it when etcd is gone.
    let dead = EtcdStore::new(vec!["http://127.0.0.1:9".into()], EtcdOptions::default());
    let session = start(dead.unwrap(), "a");
    until(&mut session.health(), |health| health.trouble().is_some()).await;
    drop(session);
}

/// etcd counts its revisions from the backup on, so the next epoch may be one that was already used: what
/// tells the two apart is the generation of the fleet.
#[tokio::test]
async fn after_a_restore_the_session_leads_with_what_the_backup_has() {
    let mut etcd = Etcd::start();
    let session = start(etcd.store(), "a");
    let first = leads(&session).await;
    put(&etcd.store(), "config", "old").await;
    let backup = etcd.back_up();
    for text in ["1", "2", "3"] {
        put(&etcd.store(), "config", text).await;
    }
    shows(&mut session.view(), "config", "3").await;
    drop(session);
    let session = start(etcd.store(), "b");
    let second = leads(&session).await;
    assert!(second.epoch > first.epoch);
    etcd.restore(&backup);
    // The backup has the key of the first leader, whose lease nobody keeps.
    shows(&mut session.view(), "config", "old").await;
    let is_new = |lead: &Option<Leadership>| lead.as_ref().is_some_and(|l| l.lease != second.lease);
    let third = until(&mut session.leadership(), is_new).await.unwrap();
    assert!(
        third.epoch <= second.epoch,
        "{} {}",
        third.epoch,
        second.epoch
    );
    assert!(!writes(&session, &second, "late").await);
    assert!(writes(&session, &third, "x").await);
}

/// What failed while it kept its lease is over when it keeps one again, although no key changes.
#[tokio::test]
async fn a_standby_that_lost_its_lease_is_well_again_when_it_has_another() {
    let store = Memory::default();
    let leader = start(store.clone(), "a");
    leads(&leader).await;
    let (faulty, faults) = Faulty::new(store);
    let standby = start(faulty, "b");
    shows(&mut standby.view(), key::LEADER, "a").await;
    faults.lock().unwrap().no_keep_alives = true;
    until(&mut standby.health(), |health| health.trouble().is_some()).await;
    faults.lock().unwrap().no_keep_alives = false;
    until(&mut standby.health(), |health| health.trouble().is_none()).await;
}

#[tokio::test]
async fn a_leader_whose_task_hangs_gives_its_key_back_and_does_not_campaign() {
    let etcd = Etcd::start();
    let options = SessionOptions {
        hang: TTL,
        ..options("a")
    };
    let first = Session::start(etcd.store(), options).unwrap();
    first.beat();
    let one = leads(&first).await;
    // It is never heard again, and it keeps its lease.
    let second = start(etcd.store(), "b");
    let two = leads(&second).await;
    assert!(two.epoch > one.epoch);
    is_lost(&first).await;
    drop(second);
    // Nobody leads now, and it could. When it is heard, it does.
    assert!(stays_out(&first, TTL).await);
    first.beat();
    let three = leads(&first).await;
    assert!(three.epoch > two.epoch);
}
