//! Rules in Redis pass the suite of rule stores; and what only Redis can do to them.

use std::sync::Arc;
use std::time::Duration;

use quell::rule_store::{PushOutcome, RuleStore, RuleStoreError};
use quell_conformance::rule_store::{self, draft, push};
use quell_redis::RedisRules;
use quell_testkit::proxy::{Fault, Proxy};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::cluster::Cluster;
use crate::patience::{TIMEOUT, until_it};
use crate::server::Server;

/// Asks by a `GET` whose answer is swallowed. Answers that come later are passed on.
pub(crate) async fn swallow_answer<T: Send + 'static>(
    server: &Server,
    proxy: &Proxy,
    ask: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    let reads = || {
        let stats = server.command(&["INFO", "commandstats"]);
        let of_get = stats.lines().find(|line| line.starts_with("cmdstat_get:"));
        of_get.unwrap_or_default().to_owned()
    };
    let before = reads();
    proxy.set(Fault::Swallow);
    let asked = tokio::spawn(ask);
    until_it("it is asked", async || reads() != before).await;
    proxy.set(Fault::None);
    asked
}

#[tokio::test]
async fn versions_are_added_and_kept() {
    let server = Server::start(&[]);
    rule_store::adds_and_keeps_versions(&RedisRules::new(&server.url())).await;
    let keys = server.command(&["KEYS", "*"]);
    assert!(
        keys.lines()
            .all(|key| key.starts_with("quell:rules:1:{book}:")),
        "{keys}"
    );
    for key in keys.lines() {
        assert_eq!(server.command(&["PTTL", key]), "-1", "rules do not expire");
    }
}

#[tokio::test]
async fn a_cluster_keeps_a_book_in_one_slot() {
    let cluster = Cluster::start(0);
    rule_store::adds_and_keeps_versions(&cluster.book()).await;
}

#[tokio::test]
async fn large_versions_go_early() {
    let server = Server::start(&[]);
    let store = RedisRules::new(&server.url()).with_kept_bytes(10_000);
    rule_store::large_versions_go_early(&store).await;
}

#[tokio::test]
async fn of_many_who_push_at_once_one_wins() {
    let server = Server::start(&[]);
    let open = || Arc::new(RedisRules::new(&server.url())) as Arc<dyn RuleStore>;
    rule_store::of_many_who_push_at_once_one_wins(open).await;
}

#[tokio::test]
async fn a_push_wakes_who_waits() {
    let server = Server::start(&[]);
    let [book, other] = [(); 2].map(|()| RedisRules::new(&server.url()));
    rule_store::a_push_wakes_who_waits(&book, &other).await;
}

/// A client that does not know whether its push arrived pushes again, to a server that was restarted.
#[tokio::test]
async fn a_server_without_the_script_is_given_it() {
    let server = Server::start(&[]);
    let book = RedisRules::new(&server.url());
    let first = push(&book, None, "domain: d").await;
    assert_eq!(push(&book, None, "domain: d").await, first);
    server.command(&["SCRIPT", "FLUSH"]);
    let second = push(&book, Some(&first), "domain: e").await;
    assert_eq!(second.number(), 2);
    let late = book.push(Some(&first), draft("domain: f")).await;
    assert_eq!(late, Ok(PushOutcome::Overtaken(Some(second))));
}

#[tokio::test]
async fn the_oldest_versions_go() {
    let server = Server::start(&[]);
    rule_store::the_oldest_versions_go(&RedisRules::new(&server.url())).await;
    // A head and a thousand versions.
    assert_eq!(server.command(&["DBSIZE"]), "1001");
}

#[tokio::test]
async fn what_was_changed_by_hand_is_told() {
    let server = Server::start(&[]);
    let book = RedisRules::new(&server.url());
    push(&book, None, "domain: d").await;
    let key = "quell:rules:1:{book}:1";
    let reason = async |words: &[&str]| {
        server.command(words);
        book.latest().await.unwrap_err().to_string()
    };
    let text = reason(&["HSET", key, "text", "domain: e"]).await;
    assert!(
        text.contains(key) && text.contains("another text"),
        "{text}"
    );
    assert!(text.contains("quell rules rollback"), "{text}");
    let text = reason(&["HDEL", key, "text"]).await;
    assert!(text.contains("has no text"), "{text}");
    let text = reason(&["DEL", key]).await;
    assert!(text.contains("is gone"), "{text}");
    let text = reason(&["SET", "quell:rules:1:{book}:head", "7"]).await;
    assert!(text.contains("does not name a version"), "{text}");
    let text = reason(&["SET", key, "text"]).await;
    assert!(text.contains("does not name a version"), "{text}");
    server.command(&["DEL", "quell:rules:1:{book}:head"]);
    server.command(&["LPUSH", "quell:rules:1:{book}:head", "7"]);
    let error = book.head().await.unwrap_err();
    assert!(matches!(error, RuleStoreError::NoAnswer(_)), "{error:?}");
    assert!(error.to_string().contains("Quell did not write"), "{error}");
}

/// Something on the way forgot the connection, or the machine at its other end is gone, and no packet says so: a server
/// that follows the rules finds another connection, and what was written meanwhile.
#[tokio::test]
async fn a_connection_that_is_silent_is_replaced() {
    let server = Server::start(&[]);
    let proxy = Proxy::start(server.port());
    let url = proxy.redis_url().parse().unwrap();
    let book = RedisRules::with_timeout(&url, TIMEOUT);
    let first = push(&book, None, "domain: d").await;
    // The connection was in use a moment ago.
    proxy.set(Fault::Forgotten);
    assert!(book.latest().await.is_err());
    let direct = RedisRules::new(&server.url());
    let second = push(&direct, Some(&first), "domain: e").await;
    until_it("the new rules are read", async || {
        let latest = book.latest().await;
        latest.is_ok_and(|version| version.is_some_and(|version| *version.head() == second))
    })
    .await;
}

/// An answer that was swallowed: from then on each is that of another command, and none is missing for long while
/// somebody asks for something else.
#[tokio::test]
async fn answers_of_other_commands_are_noticed() {
    let server = Server::start(&[]);
    let proxy = Proxy::start(server.port());
    let book = Arc::new(RedisRules::new(&proxy.redis_url().parse().unwrap()));
    let head = push(&*book, None, "domain: d").await;
    let asking = Arc::clone(&book);
    let lost = swallow_answer(&server, &proxy, async move { asking.head().await }).await;
    let other = async {
        loop {
            drop(timeout(Duration::from_millis(20), book.head()).await);
        }
    };
    let answered = until_it("the rules are read", async || {
        let version = timeout(Duration::from_millis(50), book.version(head.number())).await;
        version.is_ok_and(|version| version.is_ok_and(|version| version.is_some()))
    });
    tokio::select! { () = other => {}, () = answered => {} }
    drop(lost.await);
}

#[tokio::test]
async fn a_store_that_is_not_there_says_so() {
    let port = crate::server::free_port();
    let url = format!("redis://me:secret@127.0.0.1:{port}");
    let book = RedisRules::new(&url.parse().unwrap());
    let error = book.head().await.unwrap_err().to_string();
    assert!(
        error.starts_with("not reachable: ") && !error.contains("secret"),
        "{error}"
    );
    assert!(!format!("{book:?}").contains("secret"));
}
