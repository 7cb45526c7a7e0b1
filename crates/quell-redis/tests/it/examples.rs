//! The example, on a real store and without it.

use quell::{Limiter, Query, Verdict};
use quell_redis::SharedStore;

use crate::server::Server;

#[expect(dead_code, reason = "the tests call its parts")]
#[path = "../../examples/three_limits.rs"]
mod three_limits;

async fn ask(limiter: &Limiter<SharedStore>, user: &str) -> Verdict {
    let query = Query::new("api").entry("user", user.to_owned());
    limiter.try_acquire(&query).await.unwrap()
}

async fn admitted(limiter: &Limiter<SharedStore>, user: &str, calls: usize) -> usize {
    let mut allowed = 0;
    for _ in 0..calls {
        allowed += usize::from(ask(limiter, user).await.is_allow());
    }
    allowed
}

#[tokio::test]
async fn three_limits_hold_together_and_a_quarter_of_them_alone() {
    let mut server = Server::start(&[]);
    let nodes = [(), ()].map(|()| three_limits::limiter(server.url()).unwrap());
    // One instant's calls on both nodes: five of them, and what 50 a second refill meanwhile.
    let refused = loop {
        let verdict = ask(&nodes[0], "ann").await;
        if !verdict.is_allow() {
            break verdict;
        }
        let verdict = ask(&nodes[1], "ann").await;
        if !verdict.is_allow() {
            break verdict;
        }
    };
    assert_eq!(&*refused.binding_rule().unwrap().rule, "burst");
    assert!(!refused.degraded);
    assert_eq!(refused.decisions.len(), 3, "all or nothing: {refused:?}");

    server.kill();
    // A quarter of a burst of 5 is 1; a quarter of 100 a minute is 25.
    let first = ask(&nodes[0], "bob").await;
    assert!(first.is_allow() && first.degraded, "{first:?}");
    let distributed = &first.decisions[2].decision;
    assert_eq!((distributed.limit, distributed.remaining), (25, 24));
    assert!(admitted(&nodes[0], "bob", 40).await < 25);
}
