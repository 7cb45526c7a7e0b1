//! Network and server faults during a call: it gets its fallback answer, marked as degraded, and later
//! calls need no restart.

use quell::Limit;
use quell_redis::{RedisStore, RedisStoreBuilder};
use quell_testkit::proxy::{Fault, Proxy};

use crate::fallback::{Node, declaring, share};
use crate::limits::{SECOND, built};
use crate::patience::HASTY;
use crate::server::{SLOW, Server};

/// A large limit, since only degraded answers matter.
fn plenty() -> Limit {
    built(Limit::fixed_window(1_000_000, 3_600 * SECOND).build())
}

fn node(store: RedisStoreBuilder) -> Node {
    Node::new(store, declaring(&[plenty()], share(2)))
}

/// All answers are degraded and arrive within a bounded time; of many calls few are sent.
async fn is_degraded(node: &Node, what: &str) {
    node.until_gone("a").await;
    for _ in 0..30 {
        let verdict = node.ask("a", 1).await;
        assert!(
            verdict.degraded && verdict.is_allow(),
            "{what}: {verdict:?}"
        );
    }
    let numbers = node.limiter.store().store().numbers();
    let failed: u64 = numbers.failures.iter().map(|(_, count)| count).sum();
    assert!(failed > 0, "{what}: {numbers:?}");
}

async fn with_weather(weather: Fault) {
    let server = Server::start(&[]);
    let proxy = Proxy::start(server.port());
    let url = format!("redis://127.0.0.1:{}", proxy.port());
    let node = node(RedisStore::builder(url.parse().unwrap()).timeout(HASTY));
    for _ in 0..2 {
        node.until_back("a").await;
        proxy.set(weather);
        is_degraded(&node, &format!("{weather:?}")).await;
        proxy.set(Fault::None);
    }
    node.until_back("a").await;
}

#[tokio::test]
async fn a_connection_that_is_reset_in_the_middle_of_an_answer() {
    with_weather(Fault::Cut).await;
}

#[tokio::test]
async fn a_black_hole() {
    with_weather(Fault::Stall).await;
}

#[tokio::test]
async fn answers_that_come_a_second_late() {
    with_weather(SLOW).await;
}

#[tokio::test]
async fn a_connection_of_which_the_other_end_is_gone() {
    with_weather(Fault::HalfOpen).await;
}

#[tokio::test]
async fn a_port_where_nobody_listens() {
    let mut server = Server::start(&[]);
    let node = node(RedisStore::builder(server.url()).timeout(HASTY));
    for _ in 0..2 {
        node.until_back("a").await;
        server.kill();
        is_degraded(&node, "refused").await;
        let restart = move || {
            server.restart();
            server
        };
        server = tokio::task::spawn_blocking(restart).await.unwrap();
    }
    node.until_back("a").await;
}

/// A fault of the server itself: commands that cause it, and commands that end it.
async fn with_words(arguments: &[&str], fault: &[&[&str]], mended: &[&[&str]]) {
    let server = Server::start(arguments);
    let node = node(RedisStore::builder(server.url()).timeout(HASTY));
    node.until_back("a").await;
    for words in fault {
        let said = server.command(words);
        assert!(!said.contains("ERR"), "{words:?}: {said}");
    }
    is_degraded(&node, &format!("{fault:?}")).await;
    for words in mended {
        server.command(words);
    }
    node.until_back("a").await;
}

#[tokio::test]
async fn a_server_that_pauses() {
    // Scripts wait, for longer than anything here takes.
    let pause = ["CLIENT", "PAUSE", "600000", "WRITE"];
    with_words(&[], &[&pause], &[&["CLIENT", "UNPAUSE"]]).await;
}

#[tokio::test]
async fn a_server_that_is_out_of_memory() {
    with_words(
        &["--maxmemory-policy", "noeviction"],
        &[&["CONFIG", "SET", "maxmemory", "1"]],
        &[&["CONFIG", "SET", "maxmemory", "0"]],
    )
    .await;
}

#[tokio::test]
async fn a_server_that_became_a_replica() {
    let primary = Server::start(&[]);
    let port = primary.port().to_string();
    with_words(
        &[],
        &[&["REPLICAOF", "127.0.0.1", &port]],
        &[&["REPLICAOF", "NO", "ONE"]],
    )
    .await;
}

#[tokio::test]
async fn a_server_that_hangs() {
    let server = Server::start(&[]);
    let node = node(RedisStore::builder(server.url()).timeout(HASTY));
    node.until_back("a").await;
    server.freeze();
    is_degraded(&node, "frozen").await;
    server.thaw();
    node.until_back("a").await;
}

#[tokio::test]
async fn a_password_that_is_wrong() {
    let server = Server::start(&["--requirepass", "right"]);
    let url = format!("redis://:wrong@127.0.0.1:{}", server.port());
    let node = node(RedisStore::builder(url.parse().unwrap()).timeout(HASTY));
    is_degraded(&node, "a wrong password").await;
    let words = [
        &["AUTH", "right"][..],
        &["CONFIG", "SET", "requirepass", "wrong"],
    ];
    let said = crate::server::session(server.port(), &words);
    assert_eq!(said, ["OK", "OK"]);
    node.until_back("a").await;
}
