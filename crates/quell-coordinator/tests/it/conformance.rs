//! One suite for both stores, and for the model of them that other tests use.

use std::time::Duration;

use quell_coordinator::store::{
    Change, Condition, ConfigStore, EmbeddedStore, EtcdOptions, EtcdStore, Lease, MAX_WRITE,
    OpenError, StoreError, Transaction, Watch, Write,
};
use tokio::time::timeout;

use crate::etcd::{Etcd, PATIENCE};
use crate::memory::Memory;
use crate::reopened::reopened;

const CALL: Duration = PATIENCE;

fn put(key: &str, value: &str) -> Write {
    Write::put(key, value.as_bytes().to_vec())
}

fn leased(key: &str, lease: Lease) -> Write {
    Write::Put {
        key: key.to_owned(),
        value: Vec::new(),
        lease: Some(lease),
    }
}

fn transaction(conditions: Vec<Condition>, writes: Vec<Write>) -> Transaction {
    Transaction { conditions, writes }
}

fn created(key: &str, revision: u64) -> Condition {
    Condition::Created {
        key: key.to_owned(),
        revision,
    }
}

fn changed(key: &str, revision: u64) -> Condition {
    Condition::Changed {
        key: key.to_owned(),
        revision,
    }
}

/// The next changes that are not empty.
async fn next(watch: &mut impl Watch) -> Vec<Change> {
    loop {
        let changes = timeout(PATIENCE, watch.next()).await.unwrap().unwrap();
        if !changes.is_empty() {
            return changes;
        }
    }
}

async fn transactions(store: &impl ConfigStore) {
    let before = store.read("t/", CALL).await.unwrap();
    assert!(before.entries.is_empty());
    let commit = |conditions, writes| store.commit(transaction(conditions, writes), CALL);
    let first = commit(
        vec![created("t/a", 0)],
        vec![put("t/a", "1"), put("t/b", "1")],
    )
    .await;
    let first = first.unwrap();
    assert!(first.succeeded && first.revision > before.revision);
    let again = commit(vec![created("t/a", 0)], vec![put("t/a", "2")])
        .await
        .unwrap();
    assert!(!again.succeeded);
    let old = commit(
        vec![changed("t/a", first.revision - 1)],
        vec![put("t/a", "2")],
    )
    .await;
    assert!(!old.unwrap().succeeded);
    // Not within the prefix.
    commit(vec![], vec![put("t", "-"), put("u", "-")])
        .await
        .unwrap();
    let second = commit(vec![changed("t/a", first.revision)], vec![put("t/a", "2")]).await;
    let second = second.unwrap();
    assert!(second.succeeded);
    let listing = store.read("t/", CALL).await.unwrap();
    assert_eq!(listing.revision, second.revision);
    let found: Vec<_> = listing.entries.iter().collect();
    let [(a, one), (b, other)] = found[..] else {
        panic!("{found:?}");
    };
    assert_eq!((a.as_str(), b.as_str()), ("t/a", "t/b"));
    assert_eq!(
        (one.created, one.changed),
        (first.revision, second.revision)
    );
    assert_eq!((&one.value[..], one.lease), (&b"2"[..], None));
    assert_eq!(other.changed, first.revision);
    // One condition of two fails: nothing is written. A key that was deleted is created anew.
    let both = vec![created("t/a", first.revision), created("t/b", 0)];
    assert!(
        !commit(both, vec![Write::delete("t/a")])
            .await
            .unwrap()
            .succeeded
    );
    commit(vec![], vec![Write::delete("t/a")]).await.unwrap();
    let anew = commit(vec![created("t/a", 0)], vec![put("t/a", "3")])
        .await
        .unwrap();
    assert!(anew.succeeded && anew.revision > second.revision);
}

async fn leases(store: &impl ConfigStore) {
    let ttl = Duration::from_secs(30);
    let lease = store.grant(ttl, CALL).await.unwrap();
    let other = store.grant(ttl, CALL).await.unwrap();
    assert_ne!(lease, other);
    let attach = transaction(vec![], vec![leased("l/a", lease), leased("l/b", other)]);
    store.commit(attach, CALL).await.unwrap();
    let by = |lease| Condition::LeasedBy {
        key: "l/a".to_owned(),
        lease,
    };
    for (lease, holds) in [(other, false), (lease, true)] {
        let guarded = transaction(vec![by(lease)], vec![put("l/c", "")]);
        assert_eq!(store.commit(guarded, CALL).await.unwrap().succeeded, holds);
    }
    store.keep_alive(lease, CALL).await.unwrap();
    store.revoke(lease, CALL).await.unwrap();
    store.revoke(lease, CALL).await.unwrap();
    let listing = store.read("l/", CALL).await.unwrap();
    let keys: Vec<&str> = listing.entries.keys().map(String::as_str).collect();
    assert_eq!(keys, ["l/b", "l/c"]);
    assert_eq!(listing.entries["l/b"].lease, Some(other));
    assert_eq!(
        store.keep_alive(lease, CALL).await,
        Err(StoreError::LeaseEnded)
    );
    let late = transaction(vec![], vec![leased("l/a", lease)]);
    assert_eq!(store.commit(late, CALL).await, Err(StoreError::LeaseEnded));
}

async fn watches(store: &impl ConfigStore) {
    let from = store.read("w/", CALL).await.unwrap().revision + 1;
    let mut watch = store.watch("w/", from, CALL).await.unwrap();
    let write = |writes| store.commit(transaction(vec![], writes), CALL);
    let first = write(vec![put("w/a", "1"), put("x", "")])
        .await
        .unwrap()
        .revision;
    write(vec![Write::delete("w/a")]).await.unwrap();
    let changes = next(&mut watch).await;
    let put = changes[0].entry.as_ref().unwrap();
    assert_eq!(
        (changes[0].key.as_str(), &put.value[..]),
        ("w/a", &b"1"[..])
    );
    assert_eq!((put.created, put.changed), (first, first));
    let deleted = match &changes[1..] {
        [] => next(&mut watch).await[0].clone(),
        [change] => change.clone(),
        _ => panic!("{changes:?}"),
    };
    assert_eq!((deleted.key.as_str(), deleted.entry), ("w/a", None));
    // Nothing happens: it says that it lives, if it is asked.
    let quiet = Duration::from_millis(200);
    while timeout(quiet, watch.next()).await.is_ok() {}
    watch.request_progress().await.unwrap();
    let sign = timeout(PATIENCE, watch.next()).await.unwrap().unwrap();
    assert_eq!(sign, []);
    // A lease that ends deletes its keys, which a watch sees.
    let lease = store.grant(Duration::from_secs(30), CALL).await.unwrap();
    write(vec![leased("w/l", lease)]).await.unwrap();
    assert!(next(&mut watch).await[0].entry.is_some());
    store.revoke(lease, CALL).await.unwrap();
    assert_eq!(next(&mut watch).await[0].entry, None);
}

/// Deadlines are those of calls: a watch outlives its own.
async fn idle_watches(store: &impl ConfigStore) {
    let within = Duration::from_millis(200);
    let from = store.read("i/", CALL).await.unwrap().revision + 1;
    let mut watch = loop {
        match store.watch("i/", from, within).await {
            Err(StoreError::Timeout(_)) => {}
            begun => break begun.unwrap(),
        }
    };
    let idle = timeout(within * 5, async {
        loop {
            assert_eq!(watch.next().await, Ok(Vec::new()));
        }
    });
    idle.await.unwrap_err();
    let late = transaction(vec![], vec![put("i/late", "")]);
    store.commit(late, CALL).await.unwrap();
    assert_eq!(next(&mut watch).await[0].key, "i/late");
}

async fn sizes(store: &impl ConfigStore) {
    let write = |bytes| {
        let large = Write::put("s/large", vec![7; bytes]);
        store.commit(transaction(vec![], vec![large]), CALL)
    };
    let most = MAX_WRITE - "s/large".len();
    assert!(write(most).await.unwrap().succeeded);
    let error = write(most + 1).await.unwrap_err();
    assert_eq!(
        error,
        StoreError::TooLarge {
            bytes: MAX_WRITE + 1
        }
    );
    assert!(error.to_string().contains("fewer limits or members"));
    // More than one message of gRPC is by default.
    for part in 0..4 {
        let part = Write::put(format!("s/{part}"), vec![7; most]);
        let written = store.commit(transaction(vec![], vec![part]), CALL).await;
        assert!(written.unwrap().succeeded);
    }
    let listing = store.read("s/", CALL).await.unwrap();
    assert_eq!(listing.entries.len(), 5);
    assert!(
        listing
            .entries
            .values()
            .all(|entry| entry.value.len() == most)
    );
}

async fn suite(store: &impl ConfigStore) {
    transactions(store).await;
    leases(store).await;
    watches(store).await;
    idle_watches(store).await;
    sizes(store).await;
}

/// A watch cannot begin at what was compacted.
async fn compactions(store: &impl ConfigStore) {
    let mut watch = store.watch("t/", 1, CALL).await.unwrap();
    let ended = loop {
        match timeout(PATIENCE, watch.next()).await.unwrap() {
            Ok(changes) => assert_eq!(changes, []),
            Err(ended) => break ended,
        }
    };
    assert!(
        matches!(&ended, StoreError::WatchEnded(why) if why.contains("compacted")),
        "{ended}"
    );
}

/// A lease that nobody keeps ends.
async fn ends_of_leases(store: &impl ConfigStore) {
    let watched = store.read("t/", CALL).await.unwrap().revision + 1;
    let lease = loop {
        let lease = store.grant(Duration::from_millis(10), CALL).await.unwrap();
        let attach = transaction(vec![], vec![leased("t/lease", lease)]);
        match store.commit(attach, CALL).await {
            // It was over before.
            Err(StoreError::LeaseEnded) => {}
            attached => break attached.map(|_| lease).unwrap(),
        }
    };
    let mut watch = store.watch("t/", watched, CALL).await.unwrap();
    while next(&mut watch).await[0].entry.is_some() {}
    assert_eq!(
        store.keep_alive(lease, CALL).await,
        Err(StoreError::LeaseEnded)
    );
}

#[tokio::test]
async fn etcd_is_a_store() {
    let etcd = Etcd::start();
    let store = etcd.store();
    suite(&store).await;
    let revision = store.read("t/", CALL).await.unwrap().revision;
    etcd.ctl(&["compact", &revision.to_string()]);
    compactions(&store).await;
    ends_of_leases(&store).await;
}

/// The model that other tests use in place of etcd.
#[tokio::test(start_paused = true)]
async fn the_model_of_a_store_is_a_store() {
    let store = Memory::with_ends();
    suite(&store).await;
    store.compact();
    compactions(&store).await;
    ends_of_leases(&store).await;
}

/// As when a right is taken away between two calls.
#[tokio::test]
async fn a_watch_that_etcd_cancels_has_ended() {
    let etcd = Etcd::start();
    for name in ["root", "quell"] {
        etcd.ctl(&["user", "add", &format!("{name}:secret")]);
        etcd.ctl(&["role", "add", name]);
        etcd.ctl(&["user", "grant-role", name, name]);
    }
    etcd.ctl(&["auth", "enable"]);
    let options = EtcdOptions {
        user: Some(("quell".to_owned(), "secret".to_owned())),
        ..EtcdOptions::default()
    };
    let store = EtcdStore::new(etcd.urls(), options).unwrap();
    let mut watch = store.watch("t/", 1, CALL).await.unwrap();
    let ended = timeout(PATIENCE, watch.next()).await.unwrap();
    assert!(
        matches!(&ended, Err(StoreError::WatchEnded(why)) if why.contains("permission denied")),
        "{ended:?}"
    );
}

#[tokio::test]
async fn a_file_is_a_store() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fleet.db");
    let store = EmbeddedStore::open(&path).unwrap();
    suite(&store).await;
    let revision = store.read("", CALL).await.unwrap().revision;
    let old = store.watch("", revision, CALL).await.unwrap_err();
    assert!(matches!(old, StoreError::WatchEnded(_)));
    // Another process.
    let second = EmbeddedStore::open(&path).unwrap_err();
    assert!(matches!(second, OpenError::Locked(_)), "{second}");
    assert!(
        second
            .to_string()
            .contains("several coordinators need etcd")
    );
    let lease = store.grant(Duration::from_secs(1), CALL).await.unwrap();
    let attach = transaction(vec![], vec![leased("f/lease", lease), put("f/plain", "x")]);
    let last = store.commit(attach, CALL).await.unwrap().revision;
    let before = store.read("f/plain", CALL).await.unwrap();
    drop(store);
    // What was attached to the process is gone, and the revision is higher.
    let store = reopened(&path).unwrap();
    let after = store.read("f/", CALL).await.unwrap();
    assert!(after.revision > last);
    assert_eq!(after.entries, before.entries);
    assert_eq!(
        store.keep_alive(lease, CALL).await,
        Err(StoreError::LeaseEnded)
    );
}

#[test]
fn a_damaged_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fleet.db");
    drop(EmbeddedStore::open(&path).unwrap());
    let good = std::fs::read(&path).unwrap();
    let open = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let opened = reopened(&path).map(drop);
        opened.map_err(|error| error.to_string())
    };
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1;
        let error = open(&bad).unwrap_err();
        let told = error.contains("damaged") || error.contains("has format 0,");
        assert!(told, "byte {at}: {error}");
        assert!(open(&good[..at]).unwrap_err().contains("damaged"), "{at}");
    }
    open(&good).unwrap();
}

/// A second coordinator would give the same quota once more.
#[tokio::test]
async fn a_file_is_one_store_by_whatever_link_it_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir_in(folder.path()).unwrap();
    let path = folder.path().join("fleet.db");
    drop(EmbeddedStore::open(&path).unwrap());
    let symbolic = elsewhere.path().join("symbolic.db");
    std::os::unix::fs::symlink(&path, &symbolic).unwrap();
    let hard = elsewhere.path().join("hard.db");
    std::fs::hard_link(&path, &hard).unwrap();
    let names = [&path, &symbolic, &hard];
    for (at, name) in names.into_iter().enumerate() {
        let store = reopened(name).unwrap();
        let value = at.to_string();
        let write = transaction(vec![], vec![put("f/plain", &value)]);
        assert!(store.commit(write, CALL).await.unwrap().succeeded);
        for other in names {
            let second = EmbeddedStore::open(other).unwrap_err();
            assert!(matches!(second, OpenError::Locked(_)), "{second}");
        }
        drop(store);
        // Whoever comes next by another name has what was written.
        for other in names {
            let listing = reopened(other)
                .unwrap()
                .read("f/plain", CALL)
                .await
                .unwrap();
            assert_eq!(
                listing.entries["f/plain"].value,
                value.as_bytes(),
                "{other:?}"
            );
        }
    }
    assert!(std::fs::symlink_metadata(&symbolic).unwrap().is_symlink());
    // A link to a file that there is not makes that file.
    let dangling = elsewhere.path().join("dangling.db");
    std::os::unix::fs::symlink(folder.path().join("new.db"), &dangling).unwrap();
    drop(EmbeddedStore::open(&dangling).unwrap());
    drop(reopened(&folder.path().join("new.db")).unwrap());
    assert!(std::fs::symlink_metadata(&dangling).unwrap().is_symlink());
}

#[test]
fn what_is_not_a_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    for path in [
        pipe.as_path(),
        folder.path(),
        std::path::Path::new("/dev/null"),
    ] {
        let error = EmbeddedStore::open(path).unwrap_err();
        assert!(matches!(error, OpenError::NotAFile(_)), "{path:?}: {error}");
    }
}

/// A power cut while the file is written leaves the copy.
#[tokio::test]
async fn a_file_that_was_half_written_is_completed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fleet.db");
    let store = EmbeddedStore::open(&path).unwrap();
    let write = transaction(vec![], vec![put("f/plain", "x")]);
    store.commit(write, CALL).await.unwrap();
    drop(store);
    let whole = std::fs::read(&path).unwrap();
    let copy = folder.path().join("fleet.db.copy");
    assert!(!copy.exists());
    for half in [0, 5, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&copy, &whole).unwrap();
        std::fs::write(&path, &whole[..half]).unwrap();
        let listing = reopened(&path)
            .unwrap()
            .read("f/plain", CALL)
            .await
            .unwrap();
        assert_eq!(listing.entries["f/plain"].value, b"x", "{half}");
        assert!(!copy.exists());
    }
    // A copy that is not whole either is of no use, and one beside a whole file is of none.
    std::fs::write(&copy, &whole[..9]).unwrap();
    std::fs::write(&path, &whole[..9]).unwrap();
    let error = reopened(&path).unwrap_err();
    assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
    std::fs::write(&path, &whole).unwrap();
    drop(reopened(&path).unwrap());
    assert!(!copy.exists());
}
