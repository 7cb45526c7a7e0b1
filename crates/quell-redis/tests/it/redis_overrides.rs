//! Overrides in Redis pass the suite of override stores; and what only Redis can do to them.

use std::sync::Arc;
use std::time::Duration;

use quell::override_store::{Changes, Cursor, OverrideStore, OverrideStoreError, Position};
use quell_conformance::override_store::{self, Follower, apply, put, rate, tenant};
use quell_redis::RedisOverrides;
use quell_testkit::proxy::{Fault, Proxy};
use tokio::time::timeout;

use crate::cluster::Cluster;
use crate::patience::until_it;
use crate::redis_rules::swallow_answer;
use crate::server::Server;

fn store(server: &Server) -> RedisOverrides {
    RedisOverrides::new(&server.url())
}

#[tokio::test]
async fn the_newest_form_is_kept() {
    let server = Server::start(&[]);
    override_store::keeps_the_newest_form(&store(&server)).await;
    let keys = server.command(&["KEYS", "*"]);
    for key in keys.lines() {
        assert!(key.starts_with("quell:overrides:1:{overrides}:"), "{key}");
        assert_eq!(server.command(&["PTTL", key]), "-1", "nothing expires");
    }
}

#[tokio::test]
async fn a_cluster_keeps_overrides_in_one_slot() {
    let cluster = Cluster::start(0);
    let store = RedisOverrides::new(&cluster.url().parse().unwrap());
    override_store::same_as_map(&store, 1, 100).await;
}

#[tokio::test]
async fn a_batch_that_fails_changes_nothing() {
    let server = Server::start(&[]);
    override_store::a_batch_that_fails_changes_nothing(&store(&server)).await;
}

#[tokio::test]
async fn a_list_is_whole_while_others_write() {
    let server = Server::start(&[]);
    override_store::a_list_is_whole_while_others_write(&store(&server)).await;
}

#[tokio::test]
async fn large_overrides_come_in_parts() {
    let server = Server::start(&[]);
    override_store::large_overrides_come_in_parts(&store(&server)).await;
}

#[tokio::test]
async fn another_history_is_noticed() {
    let server = Server::start(&[]);
    override_store::another_history_is_noticed(&store(&server)).await;
}

#[tokio::test]
async fn a_change_wakes_who_waits() {
    let server = Server::start(&[]);
    let [one, other] = [(); 2].map(|()| store(&server));
    override_store::a_change_wakes_who_waits(&one, &other).await;
}

#[tokio::test]
async fn of_concurrent_writers_one_wins() {
    let server = Server::start(&[]);
    let open = || Arc::new(store(&server)) as Arc<dyn OverrideStore>;
    override_store::of_concurrent_writers_one_wins(open).await;
}

#[tokio::test]
async fn concurrent_writers_lose_nothing() {
    let server = Server::start(&[]);
    let open = || Arc::new(store(&server)) as Arc<dyn OverrideStore>;
    override_store::concurrent_writers_lose_nothing(open).await;
}

#[tokio::test]
async fn histories_are_those_of_a_map() {
    let server = Server::start(&[]);
    for seed in 0..20 {
        server.command(&["FLUSHALL"]);
        override_store::same_as_map(&store(&server), seed, 200).await;
    }
}

/// A follower lists everything whenever the log is too short for it.
#[tokio::test]
async fn histories_with_a_short_log_are_those_of_a_map() {
    let server = Server::start(&[]);
    server.command(&["CONFIG", "SET", "stream-node-max-entries", "2"]);
    for seed in 100..110 {
        server.command(&["FLUSHALL"]);
        let store = store(&server).with_log(seed % 20 + 1);
        override_store::same_as_map(&store, seed, 200).await;
    }
}

#[tokio::test]
async fn there_are_no_more_than_there_may_be() {
    let server = Server::start(&[]);
    override_store::the_bound_holds(&store(&server).with_max(25), 25).await;
    for seed in 200..210 {
        server.command(&["FLUSHALL"]);
        let most = seed % 8;
        let store = store(&server).with_max(most);
        override_store::same_as_bounded_map(&store, seed, 200, most).await;
    }
}

/// The count of a store that somebody changed by hand is made again before anybody is refused.
#[tokio::test]
async fn what_was_deleted_by_hand_makes_room() {
    let server = Server::start(&[]);
    let store = store(&server).with_max(3);
    let named = |number: u64| tenant("api", &number.to_string());
    let put_new = |number: u64| put(&named(number), rate(1), Some(0));
    apply(&store, &[0, 1, 2].map(put_new)).await;
    let full = |count| Err(OverrideStoreError::Full { count, most: 3 });
    assert_eq!(store.apply(&[put_new(3)]).await, full(4));
    let keys = server.command(&["KEYS", "*:???"]);
    let bucket = keys.lines().find(|key| !key.ends_with(":log")).unwrap();
    server.command(&["DEL", bucket]);
    apply(&store, &[put_new(3)]).await;
    assert_eq!(store.apply(&[put_new(4)]).await, full(4));
    for key in ["count", "head"] {
        server.command(&["DEL", &format!("quell:overrides:1:{{overrides}}:{key}")]);
        assert_eq!(store.apply(&[put_new(4)]).await, full(4), "without {key}");
    }
    // A server that allows fewer than there are changes and deletes them all the same.
    let less = RedisOverrides::new(&server.url()).with_max(1);
    apply(&less, &[put(&named(3), rate(2), None)]).await;
    assert_eq!(
        less.apply(&[put_new(4)]).await,
        Err(OverrideStoreError::Full { count: 4, most: 1 })
    );
    let all = store.all(None, 10).await.unwrap().overrides;
    assert_eq!(all.len(), 3);
    let changes: Vec<_> = all
        .iter()
        .map(|stored| override_store::delete(&stored.id, None))
        .collect();
    apply(&less, &changes).await;
    apply(&less, &[put_new(4)]).await;
}

#[tokio::test]
async fn what_ended_is_found() {
    let server = Server::start(&[]);
    override_store::what_ended_is_found(&store(&server)).await;
}

#[tokio::test]
async fn the_oldest_changes_go() {
    let server = Server::start(&[]);
    override_store::the_oldest_changes_go(&store(&server).with_log(100), 100).await;
}

/// The followers that are registered, and the revision up to which each has everything.
async fn followers(store: &RedisOverrides) -> Vec<(String, u64)> {
    let followers = store.followers().await.unwrap().into_iter();
    let followers = followers.map(|one| (one.name.to_string(), one.revision));
    followers.collect()
}

fn named(followers: &[(&str, u64)]) -> Vec<(String, u64)> {
    let one = |(name, revision): &(&str, u64)| ((*name).to_owned(), *revision);
    followers.iter().map(one).collect()
}

#[tokio::test]
async fn a_follower_is_registered_with_what_it_has() {
    let mut server = Server::start(&[]);
    let store = store(&server);
    let id = tenant("api", "acme");
    assert_eq!(followers(&store).await, []);
    let begin = store.position().await.unwrap();
    store.report("a", &begin, Duration::ZERO).await.unwrap();
    assert_eq!(followers(&store).await, named(&[("a", 0)]));
    apply(&store, &[put(&id, rate(1), None)]).await;
    let first = store.position().await.unwrap();
    apply(&store, &[put(&id, rate(2), None)]).await;
    let second = store.position().await.unwrap();
    store.report("b", &second, Duration::ZERO).await.unwrap();
    let late = Duration::from_secs(5);
    store.report("a", &first, late).await.unwrap();
    let all = store.followers().await.unwrap();
    assert_eq!(followers(&store).await, named(&[("a", 1), ("b", 2)]));
    assert!(all[0].behind >= late && all[1].behind.is_zero(), "{all:?}");

    // A follower that waits reports, at once and again.
    let wait = store.wait_as("c", &second);
    let is_seen = async {
        while followers(&store).await.len() < 3 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! { () = wait => panic!("nothing changed"), () = is_seen => {} }
    assert_eq!(followers(&store).await[2], ("c".to_owned(), 2));
    store.leave("b").await.unwrap();
    assert_eq!(followers(&store).await, named(&[("a", 1), ("c", 2)]));
    let key = "quell:overrides:1:{overrides}:followers";
    assert_ne!(server.command(&["PTTL", key]), "-1", "the register expires");

    // What it has is of a history that is lost.
    store.report("a", &second, Duration::ZERO).await.unwrap();
    server.restart();
    while store.report("a", &second, Duration::ZERO).await.is_err() {}
    for number in 3..=5 {
        apply(&store, &[put(&id, rate(number), None)]).await;
    }
    assert_eq!(followers(&store).await, named(&[("a", 0)]));
    let other = second.at(2, second.tag() ^ 1);
    store.report("a", &other, Duration::ZERO).await.unwrap();
    let newest = store.position().await.unwrap();
    let lost = newest.at(2, newest.tag());
    store.report("b", &lost, Duration::ZERO).await.unwrap();
    store.report("c", &newest, Duration::ZERO).await.unwrap();
    let expected = named(&[("a", 0), ("b", 0), ("c", 3)]);
    assert_eq!(followers(&store).await, expected);
}

/// Servers that are gone leave nothing, however many there were.
#[tokio::test]
async fn followers_that_are_gone_are_forgotten() {
    let server = Server::start(&[]);
    let store = store(&server);
    let begin = store.position().await.unwrap();
    let key = "quell:overrides:1:{overrides}:followers";
    let time = server.command(&["TIME"]);
    let seconds: i64 = time.lines().next().unwrap().parse().unwrap();
    let mut set = vec!["HSET".to_owned(), key.to_owned()];
    for number in 0..1_000 {
        // Reported long ago, and by a clock that was ahead.
        let offset = if number % 2 == 0 { -3_600 } else { 3_600 };
        let report = format!("{} 0 0-0-", (seconds + offset) * 1_000);
        set.extend([format!("gone-{number}"), report]);
    }
    let set: Vec<&str> = set.iter().map(String::as_str).collect();
    server.command(&set);
    server.command(&["HSET", key, "foreign", "?"]);
    assert_eq!(followers(&store).await, []);
    store.report("new", &begin, Duration::ZERO).await.unwrap();
    assert_eq!(server.command(&["HKEYS", key]), "new");
    assert_eq!(followers(&store).await, named(&[("new", 0)]));
}

/// A server that takes no writes can be followed.
#[tokio::test]
async fn a_store_that_takes_no_writes_is_followed() {
    let server = Server::start(&[]);
    let store = store(&server);
    let id = tenant("api", "acme");
    apply(&store, &[put(&id, rate(1), None)]).await;
    let seen = store.position().await.unwrap();
    server.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    assert!(store.report("a", &seen, Duration::ZERO).await.is_err());
    let before = seen.at(0, 0);
    store.wait_as("a", &before).await;
    assert!(store.changes(&before, 10).await.is_ok());
    assert_eq!(followers(&store).await, []);
}

/// What was restored from a dump, or failed over to a replica that lacked the last writes, is another history, also when
/// it has more changes than a follower saw.
#[tokio::test]
async fn a_server_that_lost_changes_is_noticed() {
    let mut server = Server::start(&[]);
    let store = store(&server);
    let id = tenant("api", "acme");
    apply(&store, &[put(&id, rate(1), None)]).await;
    let older = server.command(&["GET", "quell:overrides:1:{overrides}:head"]);
    apply(&store, &[put(&id, rate(2), None)]).await;
    let mut follower = Follower::default();
    follower.follow(&store).await;
    let lost = follower.position().clone();

    // As the server was before the second write.
    server.command(&["SET", "quell:overrides:1:{overrides}:head", &older]);
    let log = "quell:overrides:1:{overrides}:log";
    let first = server.command(&["XRANGE", log, "-", "+", "COUNT", "1"]);
    let first: Vec<&str> = first.lines().collect();
    server.command(&["DEL", log]);
    server.command(&["XADD", log, first[0], first[1], first[2]]);
    store.wait(&lost).await;
    let changes = store.changes(&lost, 10).await;
    assert_eq!(changes, Ok(Changes::Lost), "it has an older revision");
    for number in 3..=5 {
        apply(&store, &[put(&id, rate(number), None)]).await;
    }
    let changes = store.changes(&lost, 10).await;
    assert_eq!(changes, Ok(Changes::Lost), "it has the revision again");
    follower.follow(&store).await;
    assert_eq!(follower.overrides()[0].numbers, rate(5));

    // Somebody deletes the head: revisions go on above those that are there.
    server.command(&["DEL", "quell:overrides:1:{overrides}:head"]);
    follower.follow(&store).await;
    let revisions = apply(&store, &[put(&id, rate(6), None)]).await;
    assert!(revisions[0] > Some(5), "{revisions:?}");
    follower.follow(&store).await;
    assert_eq!(follower.overrides()[0].numbers, rate(6));

    server.restart();
    let lost = follower.position().clone();
    store.wait(&lost).await;
    assert_eq!(
        store.changes(&lost, 10).await,
        Ok(Changes::Lost),
        "it is empty"
    );
    follower.follow(&store).await;
    assert_eq!(
        (follower.overrides().len(), follower.position()),
        (0, &Position::default())
    );
    for number in 0..10 {
        apply(&store, &[put(&id, rate(number), None)]).await;
    }
    let changes = store.changes(&lost, 10).await;
    assert_eq!(changes, Ok(Changes::Lost), "it is another store");
    follower.follow(&store).await;
    assert_eq!(follower.overrides()[0].numbers, rate(9));
}

#[tokio::test]
async fn what_was_changed_by_hand_is_told() {
    let server = Server::start(&[]);
    let store = store(&server);
    let id = tenant("api", "acme");
    apply(&store, &[put(&id, rate(1), None)]).await;
    let keys = server.command(&["KEYS", "*:???"]);
    let bucket = keys.lines().find(|key| !key.ends_with(":log")).unwrap();
    let field = server.command(&["HKEYS", bucket]);
    server.command(&["HSET", bucket, &field, "{\"revision\":1}"]);
    let error = store.get(&id).await.unwrap_err();
    assert!(
        matches!(&error, OverrideStoreError::Damaged { what, .. } if what == bucket),
        "{error}"
    );
    assert!(store.all(None, 10).await.is_err());
    // A write replaces it.
    apply(&store, &[put(&id, rate(2), Some(1))]).await;
    assert!(store.get(&id).await.unwrap().is_some());

    // A key of another kind fails all of a batch.
    let head = server.command(&["GET", "quell:overrides:1:{overrides}:head"]);
    server.command(&["DEL", bucket]);
    server.command(&["LPUSH", bucket, "1"]);
    let others = (0..50).map(|number| put(&tenant("api", &number.to_string()), rate(1), None));
    let batch: Vec<_> = others.chain([put(&id, rate(3), None)]).collect();
    let error = store.apply(&batch).await.unwrap_err();
    assert!(
        matches!(error, OverrideStoreError::NoAnswer(_)),
        "{error:?}"
    );
    assert!(error.to_string().contains("Quell did not write"), "{error}");
    assert_eq!(
        server.command(&["GET", "quell:overrides:1:{overrides}:head"]),
        head
    );
    assert_eq!(server.command(&["DBSIZE"]), "4");
    server.command(&["DEL", bucket]);
    server.command(&["SET", "quell:overrides:1:{overrides}:head", "7"]);
    assert!(store.position().await.is_err());
    let error = store.apply(&[put(&id, rate(3), None)]).await.unwrap_err();
    assert!(error.to_string().contains("Quell did not write"), "{error}");
}

#[tokio::test]
async fn a_write_whose_answer_is_lost_is_told_as_unknown() {
    let server = Server::start(&[]);
    let proxy = Proxy::start(server.port());
    let url = format!("redis://127.0.0.1:{}", proxy.port());
    let store = RedisOverrides::new(&url.parse().unwrap());
    let id = tenant("api", "acme");
    assert_eq!(store.position().await, Ok(Position::default()));
    proxy.set(Fault::LoseAnswers);
    let error = store
        .apply(&[put(&id, rate(1), Some(0))])
        .await
        .unwrap_err();
    assert!(matches!(error, OverrideStoreError::Unknown(_)), "{error:?}");
}

/// Something on the way forgot the connection, or the machine at its other end is gone, and no packet says so: a
/// follower, which asks all the time, finds another connection.
#[tokio::test]
async fn a_connection_that_is_silent_is_replaced() {
    let server = Server::start(&[]);
    let proxy = Proxy::start(server.port());
    let url = format!("redis://127.0.0.1:{}", proxy.port());
    let timeout = Duration::from_millis(300);
    let store = RedisOverrides::with_timeout(&url.parse().unwrap(), timeout);
    let begin = store.position().await.unwrap();
    let follow = async {
        loop {
            store.wait_as("a", &begin).await;
        }
    };
    let replaced = async {
        // It was in use a moment ago, and always is.
        proxy.set(Fault::Lose);
        assert!(store.position().await.is_err());
        proxy.set(Fault::None);
        until_it("the store answers again", async || {
            store.position().await.is_ok()
        })
        .await;
    };
    tokio::select! { () = follow => {}, () = replaced => {} }
}

/// An answer that was swallowed, as by a byte that changed on the way: from then on each is that of another command, and
/// none is missing for long while two tasks ask in turn.
#[tokio::test]
async fn answers_of_other_commands_are_noticed() {
    let server = Server::start(&[]);
    let proxy = Proxy::start(server.port());
    let url = format!("redis://127.0.0.1:{}", proxy.port());
    let store = Arc::new(RedisOverrides::new(&url.parse().unwrap()));
    let id = tenant("api", "acme");
    store.apply(&[put(&id, rate(1), None)]).await.unwrap();
    let asking = Arc::clone(&store);
    let lost = swallow_answer(&server, &proxy, async move { asking.position().await }).await;
    let other = async {
        loop {
            // It asks again whatever it hears, as a follower does that reports how far it is.
            drop(timeout(Duration::from_millis(20), store.position()).await);
        }
    };
    let answered = until_it("the store answers again", async || {
        let stored = timeout(Duration::from_millis(50), store.get(&id)).await;
        stored.is_ok_and(|stored| stored.is_ok_and(|stored| stored.is_some()))
    });
    tokio::select! { () = other => {}, _ = answered => {} }
    drop(lost.await);
}

#[tokio::test]
async fn a_store_that_is_not_there_says_so() {
    let port = crate::server::free_port();
    let url = format!("redis://me:secret@127.0.0.1:{port}");
    let store = RedisOverrides::new(&url.parse().unwrap());
    let change = [put(&tenant("api", "acme"), rate(1), None)];
    for error in [
        store.position().await.unwrap_err(),
        store.apply(&change).await.unwrap_err(),
    ] {
        assert!(
            matches!(error, OverrideStoreError::NoAnswer(_)),
            "{error:?}"
        );
        let text = error.to_string();
        assert!(
            text.starts_with("not reachable: ") && !text.contains("secret"),
            "{text}"
        );
    }
    assert!(!format!("{store:?}").contains("secret"));
}

#[tokio::test]
async fn a_cursor_of_another_list_is_refused() {
    let server = Server::start(&[]);
    let cursor = Cursor::parse("AAAA").unwrap();
    let page = store(&server).all(Some(&cursor), 10).await;
    assert_eq!(page, Err(OverrideStoreError::ForeignCursor));
}
