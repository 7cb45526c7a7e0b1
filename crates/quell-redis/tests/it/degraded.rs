//! Health follows the answers that callers get, not whether the store answers a ping.

use quell::Limit;

use crate::fallback::{Node, declaring, share};
use crate::limits::{SECOND, built};
use crate::patience::{TIMEOUT, until_it};
use crate::server::Server;

fn node(server: &Server) -> Node {
    let limit = built(Limit::fixed_window(1_000_000, 3_600 * SECOND).build());
    let store = server.store().timeout(TIMEOUT);
    Node::new(store, declaring(&[limit], share(2)))
}

fn is_degraded(node: &Node) -> bool {
    node.limiter.store().fallback_numbers().is_degraded
}

/// The reply to a charge of a server that answers every ping, and what ends this state.
const REFUSALS: [(&str, &[&str], &[&str]); 3] = [
    (
        "NOREPLICAS",
        &["CONFIG", "SET", "min-replicas-to-write", "1"],
        &["CONFIG", "SET", "min-replicas-to-write", "0"],
    ),
    (
        "OOM",
        &["CONFIG", "SET", "maxmemory", "1"],
        &["CONFIG", "SET", "maxmemory", "0"],
    ),
    (
        "READONLY",
        &["REPLICAOF", "127.0.0.1", "1"],
        &["REPLICAOF", "NO", "ONE"],
    ),
];

#[tokio::test]
async fn a_store_that_answers_and_refuses_is_told_until_it_decides() {
    let server = Server::start(&["--maxmemory-policy", "noeviction"]);
    for (word, fault, mended) in REFUSALS {
        let node = node(&server);
        node.until_back("a").await;
        assert_eq!(node.limiter.store().trouble().await, None);
        assert!(!is_degraded(&node));
        server.command(fault);
        assert_eq!(server.command(&["PING"]), "PONG");
        // Also before the first call.
        let failure = node.limiter.store().trouble().await.unwrap().reason;
        assert!(failure.contains(word), "{failure}");
        assert!(!is_degraded(&node), "nobody was answered so");
        assert!(node.ask("a", 1).await.degraded);
        assert!(is_degraded(&node));
        let failure = node.limiter.store().trouble().await.unwrap().reason;
        assert!(failure.contains(word), "{failure}");
        server.command(mended);
        // Without any calls, this still ends.
        until_it("it is over", async || {
            !is_degraded(&node) && node.limiter.store().trouble().await.is_none()
        })
        .await;
        assert!(!node.ask("a", 1).await.degraded);
    }
}
