//! `on_failure` while the store is gone, and repayment when it is back.

use quell::store::Action;
use quell::{Cost, Limit, Operation, Query, Rate, RetryAfter};
use quell_core::ban::Ban;
use quell_core::on_failure::OnFailure;
use quell_redis::{RedisStore, RedisStoreBuilder};
use quell_testkit::proxy::{Fault, Proxy};

use crate::fallback::{Node, declaring, scripts, share};
use crate::limits::{SECOND, built, rules};
use crate::patience::{TIMEOUT, until_it};
use crate::server::Server;

fn a_hundred() -> Limit {
    built(Limit::fixed_window(100, 3_600 * SECOND).build())
}

/// A store without a server.
fn nowhere() -> RedisStoreBuilder {
    let url = format!("redis://127.0.0.1:{}", crate::server::free_port());
    RedisStore::builder(url.parse().unwrap())
}

/// A store behind a proxy.
fn behind(proxy: &Proxy) -> RedisStoreBuilder {
    let url = format!("redis://127.0.0.1:{}", proxy.port());
    RedisStore::builder(url.parse().unwrap()).timeout(TIMEOUT)
}

async fn passed(node: &Node, user: &str, calls: usize) -> (usize, usize) {
    let (mut passed, mut degraded) = (0, 0);
    for _ in 0..calls {
        let verdict = node.ask(user, 1).await;
        passed += usize::from(verdict.is_allow());
        degraded += usize::from(verdict.degraded);
    }
    (passed, degraded)
}

#[tokio::test]
async fn of_100_on_2_nodes_each_lets_50_pass() {
    let nodes = [(); 2].map(|()| Node::new(nowhere(), declaring(&[a_hundred()], share(2))));
    for node in &nodes {
        assert_eq!(passed(node, "a", 60).await, (50, 60));
        let refused = node.ask("a", 1).await;
        assert!(refused.degraded && !refused.is_allow());
        assert_eq!(refused.retry_after, Some(RetryAfter::After(3_600 * SECOND)));
        assert_eq!(passed(node, "b", 3).await, (3, 3), "keys stay apart");
        assert_eq!(node.limiter.store().fallback_numbers().shared, 64);
    }
}

/// A task may sleep between reading the clock and its decision: no share is credited for that.
#[tokio::test]
async fn an_old_reading_is_credited_to_no_share() {
    let rate = Rate::new(2, SECOND / 1_000).unwrap();
    let limit = built(Limit::token_bucket(rate).burst(20).build());
    let node = Node::new(nowhere(), declaring(&[limit], share(2)));
    let query = Query::new("d").entry("user", "a");
    let mut admitted = 0;
    for call in 0..1_000_u32 {
        let mut now = node.limiter.now();
        if call % 3 == 0 {
            now.monotonic = now.monotonic.saturating_sub(SECOND / 250);
        }
        let asked = node.limiter.ask(Operation::Acquire, &query, now);
        admitted += u32::from(asked.await.unwrap().is_allow());
        node.clock.advance(SECOND / 100_000);
    }
    assert!(
        (18..=20).contains(&admitted),
        "{admitted} in 10 ms at 1/ms, burst 10"
    );
}

#[tokio::test]
async fn a_key_begins_with_its_part_of_what_was_last_known_to_be_left() {
    let mut server = Server::start(&[]);
    let nodes = [(); 2].map(|()| Node::new(server.store(), declaring(&[a_hundred()], share(2))));
    for _ in 0..30 {
        for node in &nodes {
            assert!(!node.ask("a", 1).await.degraded);
        }
    }
    let banned = Query::new("d").entry("user", "b");
    nodes[0]
        .limiter
        .administer(&banned, Action::Ban(60 * SECOND, None))
        .await
        .unwrap();
    assert!(nodes[0].ask("b", 1).await.banned);
    server.kill();
    nodes[0].until_gone("other").await;
    nodes[1].until_gone("other").await;
    // The first node last learned 41, the second 40; together no more than what was left.
    assert_eq!(passed(&nodes[0], "a", 60).await.0, 20);
    assert_eq!(passed(&nodes[1], "a", 60).await.0, 20);
    nodes[0].clock.advance(2 * SECOND);
    let verdict = nodes[0].ask("b", 1).await;
    assert!(verdict.banned && verdict.degraded, "{verdict:?}");
}

#[tokio::test]
async fn deny_and_allow_say_so() {
    let ten = || built(Limit::per_second(10).build());
    let node = Node::new(nowhere(), declaring(&[ten()], Some(OnFailure::Deny)));
    let verdict = node.ask("a", 1).await;
    assert!(verdict.degraded);
    assert_eq!(verdict.retry_after, Some(RetryAfter::After(SECOND)));
    assert_eq!(verdict.remaining, Some(0));
    let node = Node::new(nowhere(), declaring(&[ten()], Some(OnFailure::Allow)));
    for _ in 0..30 {
        let verdict = node.ask("a", 1).await;
        assert!(verdict.degraded && verdict.is_allow());
        assert_eq!(verdict.remaining, Some(10), "nothing is counted");
    }
    let peeked = node.peek("a").await;
    assert!(peeked.degraded && peeked.is_allow());
}

/// All or none, whatever each rule declares.
#[tokio::test]
async fn rules_that_declare_differently_are_charged_together() {
    let five = || built(Limit::fixed_window(5, 60 * SECOND).build());
    let mut mixed = declaring(&[five(), five(), five()], share(1));
    mixed[0].rules[1].policy.on_failure = Some(OnFailure::Allow);
    mixed[0].rules[2].policy.on_failure = Some(OnFailure::Deny);
    let node = Node::new(nowhere(), mixed.clone());
    for _ in 0..10 {
        let verdict = node.ask("a", 1).await;
        let allows = verdict
            .decisions
            .iter()
            .map(|said| said.decision.outcome.is_allow());
        assert_eq!(allows.collect::<Vec<_>>(), [true, true, false]);
        assert_eq!(verdict.decisions[0].decision.remaining, 5, "uncharged");
    }
    // In shadow the rule has no effect.
    mixed[0].rules[2].shadow = true;
    node.limiter.set_rules(mixed).unwrap();
    assert_eq!(passed(&node, "a", 10).await, (5, 10));
}

#[tokio::test]
async fn where_nothing_is_declared_there_is_no_answer() {
    let node = Node::new(nowhere(), rules(&[a_hundred()]));
    let query = Query::new("d").entry("user", "a");
    let error = node.limiter.try_acquire(&query).await.unwrap_err();
    assert!(error.to_string().contains("127.0.0.1"), "{error}");
    let bucket = Limit::per_second(1);
    let now = node.limiter.now();
    let asked = node
        .limiter
        .ask_ad_hoc(Operation::Acquire, b"k", &bucket, Cost::ONE, now);
    assert!(asked.await.is_err());
}

#[tokio::test]
async fn while_it_is_gone_no_call_waits_for_it() {
    let server = Server::start(&[]);
    let proxy = Proxy::start(server.port());
    let store = behind(&proxy).timeout(SECOND / 4);
    let node = Node::new(store, declaring(&[a_hundred()], share(1)));
    node.until_back("a").await;
    proxy.set(Fault::Stall);
    // Five failures in a row open the breaker, whether they are of calls or of payments meanwhile.
    let before = node.trips();
    let (_, degraded) = passed(&node, "b", 2).await;
    assert_eq!(degraded, 2);
    assert!(!node.limiter.store().store().numbers().is_gone);
    until_it("the store counts as gone", async || {
        assert!(node.ask("b", 1).await.degraded);
        node.limiter.store().store().numbers().is_gone
    })
    .await;
    let failures = node.trips() - before;
    assert!((5..10).contains(&failures), "{failures}");
    // From now on only probes are sent, a few per second, and no caller waits for them.
    let before = node.trips();
    let (_, degraded) = passed(&node, "c", 10_000).await;
    assert_eq!(degraded, 10_000);
    let probes = node.trips() - before;
    assert!(probes < 1_000, "{probes} of 10,000 calls went out");
    proxy.set(Fault::None);
    node.until_back("d").await;
    assert!(!node.limiter.store().store().numbers().is_gone);
}

/// Calls admitted during the outage are charged to the store: there is no fresh burst on top.
#[tokio::test]
async fn what_was_used_apart_is_charged_once_the_store_is_back() {
    let server = Server::start(&[]);
    let mut proxies = Vec::new();
    for _ in 0..2 {
        proxies.push(Proxy::start(server.port()));
    }
    let declared = || declaring(&[a_hundred()], share(2));
    let nodes: Vec<Node> = proxies
        .iter()
        .map(|proxy| Node::new(behind(proxy), declared()))
        .collect();
    let watcher = Node::new(server.store(), declared());
    for node in &nodes {
        node.until_back("warm").await;
    }
    for proxy in &proxies {
        proxy.set(Fault::Refuse);
    }
    for node in &nodes {
        node.until_gone("elsewhere").await;
        until_it("the store is thought gone", async || {
            node.ask("elsewhere", 1).await;
            node.limiter.store().store().numbers().is_gone
        })
        .await;
        // One unit is refilled on the other node, two keys on none.
        assert_eq!(passed(node, "hot", 30).await, (30, 30));
        assert_eq!(passed(node, "cold", 60).await, (50, 60));
        assert_eq!(passed(node, "few", 3).await, (3, 3));
    }
    assert_eq!(watcher.peek("hot").await.remaining, Some(100));
    proxies[0].set(Fault::None);
    // The store's first answer includes what this node admitted, and its share has less: 20 of 50.
    until_it("the store is asked again", async || {
        !nodes[0].peek("hot").await.degraded
    })
    .await;
    until_it("the store alone decides", async || {
        let left = nodes[0].peek("hot").await.remaining;
        assert!([Some(20), Some(70)].contains(&left), "{left:?}");
        left == Some(70)
    })
    .await;
    assert_eq!(nodes[0].ask("hot", 1).await.remaining, Some(69));
    proxies[1].set(Fault::None);
    nodes[1].until_back("other").await;
    for node in &nodes {
        node.until_paid().await;
    }
    for (user, left) in [("hot", 39), ("cold", 0), ("few", 94)] {
        assert_eq!(watcher.peek(user).await.remaining, Some(left), "{user}");
    }
}

#[tokio::test]
async fn a_ban_that_began_apart_stands_on_the_store_afterwards() {
    let server = Server::start(&[]);
    let proxy = Proxy::start(server.port());
    let ban = Ban::new(2, Some(60 * SECOND), vec![600 * SECOND]).unwrap();
    let limit = built(Limit::fixed_window(4, 60 * SECOND).build()).with_ban(ban);
    let node = Node::new(
        behind(&proxy),
        declaring(std::slice::from_ref(&limit), share(2)),
    );
    let watcher = Node::new(server.store(), rules(&[limit]));
    node.until_back("warm").await;
    proxy.set(Fault::Refuse);
    node.until_gone("elsewhere").await;
    until_it("she is banned", async || node.ask("eve", 1).await.banned).await;
    proxy.set(Fault::None);
    let verdict = node.until_back("eve").await;
    assert!(verdict.banned, "{verdict:?}");
    assert!(watcher.peek("eve").await.banned);
    assert_eq!(watcher.limiter.bans(10).await.unwrap().len(), 1);
}

/// A changed rule also applies to keys that are counted locally during an outage.
#[tokio::test]
async fn a_limit_may_change_while_the_store_is_gone() {
    let node = Node::new(nowhere(), declaring(&[a_hundred()], share(2)));
    assert_eq!(passed(&node, "a", 20).await.0, 20);
    let less = built(Limit::fixed_window(60, 3_600 * SECOND).build());
    node.limiter
        .set_rules(declaring(std::slice::from_ref(&less), share(2)))
        .unwrap();
    assert_eq!(passed(&node, "a", 20).await.0, 10, "20 of 30 were used");
    node.limiter
        .set_rules(declaring(&[less], share(1)))
        .unwrap();
    assert_eq!(passed(&node, "a", 40).await.0, 30, "30 of 60 were used");
}

#[tokio::test]
async fn a_refusal_of_the_store_never_asks_the_fallback() {
    let server = Server::start(&[]);
    let two = built(Limit::fixed_window(2, 3_600 * SECOND).build());
    let node = Node::new(server.store(), declaring(&[two], share(1)));
    for calls in 0..10 {
        let verdict = node.ask("a", 1).await;
        assert_eq!((verdict.is_allow(), verdict.degraded), (calls < 2, false));
    }
    assert_eq!(node.limiter.store().fallback_numbers().shared, 0);
    assert!(scripts(&server) > 0);
}

/// A replica runs nothing, so everything admitted meanwhile is owed.
#[tokio::test]
async fn what_passes_while_the_store_is_a_replica_is_charged_afterwards() {
    let server = Server::start(&[]);
    let store = server.store().timeout(TIMEOUT);
    let node = Node::new(store, declaring(&[a_hundred()], share(1)));
    node.until_back("warm").await;
    server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    assert_eq!(passed(&node, "a", 3).await, (3, 3));
    server.command(&["REPLICAOF", "NO", "ONE"]);
    node.until_back("warm").await;
    node.until_paid().await;
    assert_eq!(node.peek("a").await.remaining, Some(97));
}
