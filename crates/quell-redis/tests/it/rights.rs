//! The rights listed in `docs/redis.md` are enough, and a missing one is reported.

use quell::rule_store::RuleStore;
use quell::store::{Action, HoldStatus};
use quell::{Ending, Limit, Query};
use quell_conformance::override_store::same_as_map;
use quell_conformance::rule_store::push;
use quell_conformance::{Carries, same_as_model_in_micros};
use quell_redis::{RedisOverrides, RedisRules, RedisStore};

use crate::cluster::Cluster;
use crate::limits::{SECOND, built, limiter};
use crate::patience::{PATIENCE, until_it};
use crate::server::Server;

/// The rights named on the page.
fn rights() -> Vec<&'static str> {
    let page = include_str!("../../../../docs/redis.md");
    let line = page
        .lines()
        .find(|line| line.starts_with("ACL SETUSER quell "));
    let words = line.expect("the page names the rights").split(' ');
    words
        .map(|word| if word == ">PASSWORD" { ">secret" } else { word })
        .collect()
}

fn url(server: &Server) -> String {
    format!("redis://quell:secret@127.0.0.1:{}", server.port())
}

/// Everything that a server does on its store.
async fn everything(url: &str) {
    let store = || RedisStore::builder(url.parse().unwrap()).timeout(PATIENCE);
    let limit = built(Limit::sliding_log(200, 60 * SECOND).build());
    let permits = built(Limit::concurrency(1).build());
    let rates = limiter(store().build(), std::slice::from_ref(&limit));
    let query = |user: &str| Query::new("d").entry("user", user.to_owned());
    // Long enough to be written in pieces.
    for _ in 0..200 {
        assert!(rates.try_acquire(&query("a")).await.unwrap().is_allow());
    }
    let ban = Action::Ban(60 * SECOND, Some("too fast"));
    rates.administer(&query("b"), ban).await.unwrap();
    let bans = rates.bans(10).await.unwrap();
    let reasons: Vec<_> = bans.iter().map(|ban| ban.reason.as_deref()).collect();
    assert_eq!(reasons, [Some("too fast")]);
    assert_eq!(rates.ban_count().await, Ok(1));
    rates.administer(&query("b"), Action::Lift).await.unwrap();
    assert_eq!(rates.bans(10).await.unwrap().len(), 0);
    let held = limiter(store().build(), &[permits]);
    let first = held
        .reserve(&query("a"), 60 * SECOND, Some("first"))
        .await
        .unwrap();
    assert!(first.is_allow());
    // A caller waits, and is woken when the permit comes back.
    let waits = query("a");
    let second = held.acquire_timeout(&waits, 60 * SECOND);
    let ended = async {
        until_it("somebody waits", async || held.waiting() == 1).await;
        held.end("d", "first", Ending::Release).await.unwrap()
    };
    let (second, ended) = futures_util::future::join(second, ended).await;
    assert!(second.unwrap().is_allow());
    assert_eq!(ended.status, HoldStatus::Released);
    let book = RedisRules::new(&url.parse().unwrap());
    push(&book, None, "domain: d").await;
    assert_eq!(book.latest().await.unwrap().unwrap().number(), 1);
    same_as_map(&RedisOverrides::new(&url.parse().unwrap()), 1, 50).await;
    let store = store().build();
    store.ping().await.unwrap();
    assert_eq!(store.warnings().await.unwrap(), [""; 0]);
}

#[tokio::test]
async fn the_rights_of_the_page_are_enough() {
    let server = Server::start(&[]);
    assert_eq!(server.command(&rights()), "OK");
    everything(&format!("{}/1", url(&server))).await;
    for seed in 1..4 {
        let store = RedisStore::builder(url(&server).parse().unwrap()).timeout(PATIENCE);
        let store = store.test_keys(&seed.to_string()).test_isolation().build();
        same_as_model_in_micros(store, Carries::AtOnce, seed, 300).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rights_of_the_page_are_enough_on_a_cluster() {
    let cluster = Cluster::start(0);
    for server in &cluster.servers {
        assert_eq!(server.command(&rights()), "OK");
    }
    let url = cluster
        .url()
        .replace("redis+cluster://", "redis+cluster://quell:secret@");
    everything(&url).await;
}

#[tokio::test]
async fn a_right_that_is_missing_is_told_by_its_name() {
    let server = Server::start(&[]);
    server.command(&rights());
    let store = RedisStore::builder(url(&server).parse().unwrap()).timeout(PATIENCE);
    let store = store.build();
    // Rights for rules, for other kinds of stores, and for warnings only.
    let others = [
        "+set",
        "+hset",
        "+hmget",
        "+role",
        "+info",
        "+select",
        "+asking",
        "+cluster|slots",
    ];
    let needed = rights()
        .into_iter()
        .filter(|word| word.starts_with('+') && !others.contains(word));
    for right in needed {
        server.command(&["ACL", "SETUSER", "quell", &right.replace('+', "-")]);
        let warnings = store.warnings().await.unwrap();
        let [warning] = warnings.as_slice() else {
            panic!("{right}: {warnings:?}");
        };
        let name = right.trim_start_matches('+');
        assert!(warning.contains(name), "{right}: {warning}");
        server.command(&["ACL", "SETUSER", "quell", right]);
    }
    assert_eq!(store.warnings().await.unwrap(), [""; 0]);
}

#[tokio::test]
async fn a_store_that_may_drop_states_is_told() {
    let server = Server::start(&["--maxmemory", "100mb"]);
    let store = server.store().build();
    assert_eq!(store.warnings().await.unwrap(), [""; 0]);
    server.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let warnings = store.warnings().await.unwrap();
    assert!(
        warnings[0].contains("maxmemory-policy allkeys-lru"),
        "{warnings:?}"
    );
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(store.warnings().await.unwrap(), [""; 0]);
}
