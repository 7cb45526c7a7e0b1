//! Sessions over a store whose network, answers and clocks misbehave.
//!
//! They run on paused time, over a model of the store whose leases end by it. One test is over real etcds: it waits for
//! what must come, and knows no seconds.

use std::sync::Arc;
use std::time::Duration;

use quell::clock::{Clock as _, ManualClock};
use quell_coordinator::session::{Leadership, Session, SessionOptions, key};
use quell_coordinator::store::{
    ConfigStore, EtcdOptions, EtcdStore, Listing, StoreError, Transaction, Write,
};
use quell_core::time::{Monotonic, Now};
use quell_testkit::proxy::{Fault, Proxy};
use quell_testkit::wait::{self, until_it, until_some};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::etcd::{Etcd, PATIENCE};
use crate::faulty::{Faulty, until};
use crate::memory::Memory;
use crate::paused::on_runtime;
use crate::reopened::reopened;

const TTL: Duration = Duration::from_secs(1);
const CALL: Duration = PATIENCE;

/// A call over a network takes some time; one of the model takes none.
const SHORT: Duration = Duration::from_millis(1);

fn options(name: &str) -> SessionOptions {
    let options = SessionOptions {
        ttl: TTL,
        silence: Duration::from_millis(600),
        // Later than a test is patient: what a watch did not show is not found by chance.
        relist: PATIENCE * 10,
        ..SessionOptions::new("test", name)
    };
    on_runtime(options)
}

fn start<S: ConfigStore>(store: S, name: &str) -> Session<S> {
    Session::start_here(store, options(name))
}

/// A session on a thread of its own. Its clock stands still, so that no lease ends however slow this machine is.
fn start_apart<S: ConfigStore>(store: S, ttl: Duration) -> Session<S> {
    let options = SessionOptions {
        ttl,
        clock: Arc::new(ManualClock::new(Now::from_nanos(1))),
        ..options("a")
    };
    Session::start(store, options).unwrap()
}

/// The time by the session's clock.
fn now<S: ConfigStore>(session: &Session<S>) -> Monotonic {
    session.options().clock.monotonic()
}

async fn leads<S: ConfigStore>(session: &Session<S>) -> Leadership {
    until(&mut session.leadership(), Option::is_some)
        .await
        .unwrap()
}

async fn is_lost<S: ConfigStore>(session: &Session<S>) {
    until(&mut session.leadership(), Option::is_none).await;
}

/// Returns true if a time to live passes without a leadership.
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

#[tokio::test(start_paused = true)]
async fn the_next_one_leads_when_a_leader_resigns_or_dies() {
    let store = Memory::with_ends();
    let first = start(store.clone(), "a");
    let one = leads(&first).await;
    let second = start(store.clone(), "b");
    shows(&mut second.view(), key::LEADER, "a").await;
    let written = first.write(&one, Vec::new(), record("1")).await.unwrap();
    assert!(written.succeeded);
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
    let now = store.read("/quell/test/snapshot", CALL).await.unwrap();
    assert!(now.entries.is_empty());

    // The first one cannot write any more, even under a key that exists.
    let late = first.write(&one, Vec::new(), record("late")).await.unwrap();
    assert!(!late.succeeded);
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
    let (faulty, faults) = Faulty::new(Memory::default());
    let session = start_apart(faulty, Duration::from_millis(30));
    let before = leads(&session).await;
    let kept = || faults.lock().unwrap().kept;
    let first = kept();
    // This is the thread of the only runtime besides the session's.
    wait::until("it is kept ten times", || {
        let now = session.leadership().borrow().clone()?;
        assert_eq!(now.epoch, before.epoch);
        (kept() >= first + 10).then_some(())
    });
}

#[tokio::test(start_paused = true)]
async fn the_lease_is_kept_during_the_campaign() {
    let store = Memory::with_ends();
    let leader = start(store.clone(), "a");
    leads(&leader).await;
    let candidate = start(store.clone(), "b");
    shows(&mut candidate.view(), key::LEADER, "a").await;
    until_it("both have a lease", async || store.leases().len() == 2).await;
    let before = store.leases();
    assert!(stays_out(&candidate, TTL * 3).await);
    assert_eq!(store.leases(), before);
    drop(leader);
    let lease = leads(&candidate).await.lease.0;
    assert!(before.contains(&lease), "{lease} {before:?}");
}

#[tokio::test(start_paused = true)]
async fn a_session_that_lapses_during_the_campaign_does_not_lead() {
    let store = Memory::with_ends();
    let (faulty, faults) = Faulty::new(store.clone());
    {
        let mut faults = faults.lock().unwrap();
        // The key is created, but the answer arrives when its lease is over.
        faults.slow_commits.push_back(TTL * 2);
        // Later ones only take some time, as every call does.
        faults.slow_commits.extend([SHORT; 9]);
        faults.no_keep_alives = true;
    }
    let session = start(faulty, "a");
    let other = store.clone();
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

#[tokio::test(start_paused = true)]
async fn a_leader_acts_after_its_first_keep_alive() {
    let store = Memory::with_ends();
    let (faulty, faults) = Faulty::new(store.clone());
    {
        let mut faults = faults.lock().unwrap();
        // So that some time is between its lease and its key.
        faults.slow_commits.push_back(SHORT);
        faults.no_keep_alives = true;
    }
    let session = start(faulty, "a");
    let mut watch = session.view();
    // It has the key, and does not lead.
    shows(&mut watch, key::LEADER, "a").await;
    assert!(session.leadership().borrow().is_none());
    assert!(stays_out(&session, TTL / 2).await);
    let sent = now(&session);
    faults.lock().unwrap().no_keep_alives = false;
    assert!(leads(&session).await.asked >= sent);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_counts_from_the_sending_of_a_keep_alive() {
    let store = Memory::with_ends();
    let (faulty, faults) = Faulty::new(store.clone());
    let session = start(faulty, "a");
    leads(&session).await;
    let late = TTL / 4;
    faults.lock().unwrap().slow_keep_alives = late;
    let mut leadership = session.leadership();
    for _ in 0..3 {
        leadership.changed().await.unwrap();
    }
    let kept = leadership.borrow_and_update().clone().unwrap();
    let age = now(&session).since(kept.asked);
    assert!(age >= late, "{age:?}");
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_taken_away_ends_the_leadership() {
    let store = Memory::with_ends();
    let session = start(store.clone(), "a");
    let first = leads(&session).await;
    // Another process creates the key again: it has another revision and no lease.
    delete(&store, key::LEADER).await;
    put(&store, key::LEADER, "a").await;
    assert!(
        !session
            .write(&first, Vec::new(), record("x"))
            .await
            .unwrap()
            .succeeded
    );
    is_lost(&session).await;
    assert!(stays_out(&session, TTL).await);
    delete(&store, key::LEADER).await;
    assert!(leads(&session).await.epoch > first.epoch);
}

#[tokio::test(start_paused = true)]
async fn a_silent_watch_is_begun_again() {
    let store = Memory::with_ends();
    let (faulty, faults) = Faulty::new(store.clone());
    let session = start(faulty, "a");
    leads(&session).await;
    let mut view = session.view();
    put(&store, "config", "1").await;
    shows(&mut view, "config", "1").await;
    faults.lock().unwrap().forget_watches();
    put(&store, "config", "2").await;
    shows(&mut view, "config", "2").await;
}

#[tokio::test(start_paused = true)]
async fn changes_behind_a_silent_network_are_seen_afterwards() {
    let store = Memory::with_ends();
    let (faulty, faults) = Faulty::new(store.clone());
    let session = start(faulty, "a");
    let before = leads(&session).await;
    put(&store, "gone", "1").await;
    put(&store, "config", "1").await;
    let mut view = session.view();
    shows(&mut view, "config", "1").await;
    faults.lock().unwrap().go_offline();
    delete(&store, "gone").await;
    put(&store, "config", "2").await;
    is_lost(&session).await;
    until(&mut session.health(), |health| health.trouble().is_some()).await;
    let asked = now(&session);
    let late = session.write(&before, Vec::new(), record("x")).await;
    let late = late.unwrap_err();
    assert!(late.is_passing(), "{late}");
    assert!(now(&session).since(asked) < TTL);
    faults.lock().unwrap().offline = false;
    shows(&mut view, "config", "2").await;
    assert_eq!(value(&view.borrow(), "gone"), None);
    let after = leads(&session).await;
    assert!(after.epoch > before.epoch);
    let written = session.write(&after, Vec::new(), record("x")).await;
    assert!(written.unwrap().succeeded);
    until(&mut session.health(), |health| health.trouble().is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_ends_loses_no_change() {
    let store = Memory::with_ends();
    let (faulty, faults) = Faulty::new(store.clone());
    let session = start(faulty, "a");
    leads(&session).await;
    put(&store, "gone", "1").await;
    let mut view = session.view();
    shows(&mut view, "gone", "1").await;
    faults.lock().unwrap().lose_watch = true;
    delete(&store, "gone").await;
    until(&mut view, |view| value(view, "gone").is_none()).await;
    assert_eq!(faults.lock().unwrap().ended.len(), 1);
}

/// A watch begins right after the keys were read. So it can only miss what is compacted in between.
#[tokio::test(start_paused = true)]
async fn changes_that_were_compacted_before_a_watch_began_are_seen() {
    let store = Memory::with_ends();
    put(&store, "gone", "1").await;
    let (faulty, faults) = Faulty::new(store.clone());
    faults.lock().unwrap().no_watches = true;
    let session = start(faulty, "a");
    let mut view = session.view();
    shows(&mut view, "gone", "1").await;
    delete(&store, "gone").await;
    put(&store, "config", "2").await;
    let revision = store.compact();
    faults.lock().unwrap().no_watches = false;
    shows(&mut view, "config", "2").await;
    assert_eq!(value(&view.borrow(), "gone"), None);
    let ended = &faults.lock().unwrap().ended;
    let why = format!("the changes before revision {revision} are compacted");
    assert_eq!(ended[..], [StoreError::WatchEnded(why)]);
}

#[tokio::test(start_paused = true)]
async fn all_keys_are_read_again_whatever_the_watch_says() {
    let store = Memory::with_ends();
    let (faulty, faults) = Faulty::new(store.clone());
    let options = SessionOptions {
        relist: TTL,
        ..options("a")
    };
    let session = Session::start_here(faulty, options);
    leads(&session).await;
    faults.lock().unwrap().mute_watches = true;
    put(&store, "config", "1").await;
    shows(&mut session.view(), "config", "1").await;
}

/// Leads, and writes this record under its key, however often it loses that.
async fn writes<S: ConfigStore>(session: &Session<S>, text: &str) -> Leadership {
    until_some("it leads and writes", async || {
        let leadership = leads(session).await;
        let written = session.write(&leadership, Vec::new(), record(text)).await;
        written
            .is_ok_and(|written| written.succeeded)
            .then_some(leadership)
    })
    .await
}

#[tokio::test]
async fn a_session_over_etcd_goes_on_whatever_becomes_of_its_members() {
    let mut etcd = Etcd::three();
    let leader = etcd.leader();
    let others: Vec<usize> = (0..3).filter(|at| *at != leader).collect();
    // The first endpoint takes connections and never answers, the second one is etcd's leader.
    let silent = Proxy::start(etcd.members[others[0]].port());
    silent.set(Fault::Lose);
    let way = Proxy::start(etcd.members[leader].port());
    let endpoints = vec![silent.url(), way.url(), etcd.urls()[others[1]].clone()];
    let store = EtcdStore::new(endpoints, EtcdOptions::default()).unwrap();
    let session = Session::start(store, SessionOptions::new("test", "a")).unwrap();
    let mut view = session.view();
    let first = writes(&session, "1").await;
    shows(&mut view, key::RECORD, "1").await;
    way.set(Fault::Forgotten);
    writes(&session, "2").await;
    shows(&mut view, key::RECORD, "2").await;
    etcd.kill(leader);
    let second = writes(&session, "3").await;
    assert!(second.epoch >= first.epoch);
    others.iter().for_each(|at| etcd.kill(*at));
    is_lost(&session).await;
    until(&mut session.health(), |health| health.trouble().is_some()).await;
    others.iter().for_each(|at| etcd.members[*at].begin_again());
    let third = writes(&session, "4").await;
    assert!(third.epoch > second.epoch);
    shows(&mut view, key::RECORD, "4").await;
    drop(session);
    // It has given its key back.
    let store = etcd.store();
    let gone = until_some("etcd answers", async || {
        store.read("/quell/test/leader", CALL).await.ok()
    });
    assert_eq!(value(&gone.await, key::LEADER), None);
}

#[tokio::test(start_paused = true)]
async fn coordinators_that_disagree_about_the_time_to_live_do_not_lead() {
    let store = Memory::with_ends();
    let first = start(store.clone(), "a");
    leads(&first).await;
    let options = SessionOptions {
        ttl: TTL * 2,
        ..options("b")
    };
    let second = Session::start_here(store.clone(), options);
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
        let session = start_apart(reopened(&path).unwrap(), TTL);
        let leadership = leads(&session).await;
        assert!(leadership.epoch > last);
        last = leadership.epoch;
        let written = session.write(&leadership, Vec::new(), record("x")).await;
        assert!(written.unwrap().succeeded);
        delete(&*session.store(), key::LEADER).await;
        is_lost(&session).await;
        let late = session.write(&leadership, Vec::new(), record("late")).await;
        assert!(!late.unwrap().succeeded);
        let next = leads(&session).await;
        assert!(next.epoch > last);
        let large = Write::put(key::RECORD, vec![0; 2 << 20]);
        let refused = session.write(&next, Vec::new(), vec![large]).await;
        assert!(matches!(refused, Err(StoreError::TooLarge { .. })));
    }
}

#[tokio::test]
async fn stopping_gives_the_key_back_and_waits_for_nothing() {
    let store = Memory::default();
    let session = start_apart(store.clone(), TTL);
    leads(&session).await;
    drop(session);
    let listing = store.read("/quell/test/leader", CALL).await.unwrap();
    assert_eq!(value(&listing, key::LEADER), None);
    // Nor does it when etcd is gone.
    let dead = EtcdStore::new(vec!["http://127.0.0.1:9".into()], EtcdOptions::default());
    let session = start_apart(dead.unwrap(), TTL);
    until(&mut session.health(), |health| health.trouble().is_some()).await;
    drop(session);
}

/// As etcd, the store counts its revisions from the backup on, so the next epoch may be one that was already used: what
/// tells the two apart is the generation of the fleet.
#[tokio::test(start_paused = true)]
async fn after_a_restore_the_session_leads_with_what_the_backup_has() {
    let store = Memory::with_ends();
    let session = start(store.clone(), "a");
    let first = leads(&session).await;
    put(&store, "config", "old").await;
    let backup = store.back_up();
    for text in ["1", "2", "3"] {
        put(&store, "config", text).await;
    }
    shows(&mut session.view(), "config", "3").await;
    drop(session);
    let session = start(store.clone(), "b");
    let second = leads(&session).await;
    assert!(second.epoch > first.epoch);
    store.restore(&backup, false);
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
    let late = session
        .write(&second, Vec::new(), record("late"))
        .await
        .unwrap();
    assert!(!late.succeeded);
    assert!(
        session
            .write(&third, Vec::new(), record("x"))
            .await
            .unwrap()
            .succeeded
    );
}

/// A failure while it kept its lease is over when it keeps one again, although no key changes.
#[tokio::test(start_paused = true)]
async fn a_standby_that_lost_its_lease_is_well_again_when_it_has_another() {
    let store = Memory::with_ends();
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

#[tokio::test(start_paused = true)]
async fn a_leader_whose_task_hangs_gives_its_key_back_and_does_not_campaign() {
    let store = Memory::with_ends();
    let options = SessionOptions {
        hang: TTL,
        ..options("a")
    };
    let first = Session::start_here(store.clone(), options);
    first.beat();
    let one = leads(&first).await;
    // It is never heard again, and it keeps its lease.
    let second = start(store.clone(), "b");
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
