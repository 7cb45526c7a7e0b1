//! Fallback answers for holds while the store is gone.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use quell::{AskError, Cost, Limit, Query};
use quell_core::on_failure::OnFailure;
use quell_redis::{RedisStore, RedisStoreBuilder};
use quell_testkit::proxy::{Fault, Proxy};

use crate::fallback::{Node, declaring, share};
use crate::limits::{SECOND, built, rules};
use crate::patience::{PATIENCE, TIMEOUT, until_it};
use crate::server::Server;

const HOLD: Duration = Duration::from_secs(60);

/// A store without a server.
fn nowhere() -> RedisStoreBuilder {
    let url = format!("redis://127.0.0.1:{}", crate::server::free_port());
    RedisStore::builder(url.parse().unwrap())
}

fn rate() -> Limit {
    built(Limit::fixed_window(10, 3_600 * SECOND).build())
}

fn permits() -> Limit {
    built(Limit::concurrency(10).build())
}

fn query(cost: u64) -> Query<'static> {
    let query = Query::new("d").entry("user", "a");
    query.cost(Cost::new(cost).unwrap())
}

#[tokio::test]
async fn a_share_of_a_rate_is_used_at_once_and_nothing_is_held() {
    let node = Node::new(nowhere(), declaring(&[rate()], share(2)));
    let reserve = async |name| node.limiter.reserve(&query(3), HOLD, Some(name)).await;
    let first = reserve("a").await.unwrap();
    assert!(first.is_allow() && first.degraded);
    assert_eq!(first.id, None, "nothing to settle");
    let second = reserve("b").await.unwrap();
    assert!(!second.is_allow() && second.degraded, "5 of 10 on 2 nodes");
    let settled = node.limiter.settle("d", "a", 1).await;
    assert!(matches!(settled, Err(AskError::Store(_))), "{settled:?}");
    // There is no queue meanwhile: the call is refused at once.
    let waited = node.limiter.acquire(&query(3)).await.unwrap();
    assert!(!waited.is_allow() && waited.degraded);
}

#[tokio::test]
async fn permits_are_refused_or_let_pass_as_declared() {
    let declared = [
        (share(2), false),
        (Some(OnFailure::Deny), false),
        (Some(OnFailure::Allow), true),
    ];
    for (on_failure, passes) in declared {
        let node = Node::new(nowhere(), declaring(&[permits(), rate()], on_failure));
        for _ in 0..20 {
            let verdict = node.limiter.try_acquire(&query(1)).await.unwrap();
            assert_eq!(verdict.is_allow(), passes, "{on_failure:?}");
            assert!(verdict.degraded);
            assert_eq!(verdict.id, None);
        }
    }
}

#[tokio::test]
async fn what_declares_nothing_has_no_answer() {
    let node = Node::new(nowhere(), declaring(&[permits()], None));
    let asked = node.limiter.try_acquire(&query(1)).await;
    assert!(matches!(asked, Err(AskError::Store(_))), "{asked:?}");
}

/// A claim whose answer is lost may have been made. If its name was generated, no one else knows it,
/// and it is taken back; a name that its caller may repeat, on any node, is left alone.
#[tokio::test]
async fn what_was_perhaps_held_is_taken_back_unless_its_caller_named_it() {
    let server = Server::start(&[]);
    let proxy = Proxy::start(server.port());
    let url = format!("redis://127.0.0.1:{}", proxy.port());
    let weak = RedisStore::builder(url.parse().unwrap()).timeout(TIMEOUT);
    let rules = declaring(&[rate()], Some(OnFailure::Deny));
    let (weak, sure) = (
        Node::new(weak, rules.clone()),
        Node::new(server.store(), rules),
    );
    // The server knows the script, so that each call below is one command.
    let known = weak.limiter.reserve(&query(1), HOLD, Some("known")).await;
    assert!(known.unwrap().id.is_some());
    assert!(weak.limiter.cancel("d", "known").await.is_ok());
    proxy.set(Fault::StallAnswers);
    for (name, cost) in [(Some("named"), 3), (None, 4)] {
        let lost = weak
            .limiter
            .reserve(&query(cost), HOLD, name)
            .await
            .unwrap();
        assert!(lost.degraded && lost.id.is_none(), "{lost:?}");
    }
    until_it("what nobody can say again is taken back", async || {
        sure.peek("a").await.remaining == Some(7)
    })
    .await;
    let again = sure.limiter.reserve(&query(3), HOLD, Some("named")).await;
    assert!(again.unwrap().is_allow());
    let settled = sure.limiter.settle("d", "named", 2).await.unwrap();
    assert!(!settled.repeated, "it stood until now");
    assert_eq!(sure.peek("a").await.remaining, Some(8));
    proxy.set(Fault::None);
}

/// A caller that waits when the store fails gets the declared answer at its turn, and its place is
/// given back.
#[tokio::test]
async fn who_waits_when_the_store_fails_is_answered_as_declared() {
    let declared = [
        (share(2), None),
        (Some(OnFailure::Deny), Some(false)),
        (Some(OnFailure::Allow), Some(true)),
    ];
    for (on_failure, passes) in declared {
        let server = Server::start(&[]);
        let proxy = Proxy::start(server.port());
        let url = format!("redis://127.0.0.1:{}", proxy.port());
        let store = RedisStore::builder(url.parse().unwrap()).timeout(TIMEOUT);
        let rules = declaring(&[rate()], on_failure);
        let node = Node::new(store, rules.clone());
        let sure = Node::new(server.store(), rules);
        assert!(node.limiter.acquire(&query(10)).await.unwrap().is_allow());
        let asked = query(3);
        let waits = node.limiter.acquire(&asked);
        let fails = async {
            until_it("it has its place", async || {
                node.limiter.waiting() == 1
                    && sure.peek("a").await.reset_after > Some(3_600 * SECOND)
            })
            .await;
            proxy.set(Fault::StallAnswers);
            node.clock.advance(3_601 * SECOND);
        };
        let (verdict, ()) = tokio::join!(waits, fails);
        let verdict = verdict.unwrap();
        assert!(verdict.degraded, "{on_failure:?} {verdict:?}");
        if let Some(passes) = passes {
            assert_eq!(verdict.is_allow(), passes, "{on_failure:?}");
        }
        assert_eq!(verdict.id, None);
        assert_eq!(node.limiter.waiting(), 0);
        proxy.set(Fault::None);
        until_it("its place is given back", async || {
            sure.peek("a").await.reset_after <= Some(3_600 * SECOND)
        })
        .await;
    }
}

/// Units reserved at the store count as used when a share begins, like acquired ones, even if no other
/// call ever asked about the key. A store that takes no writes could report them again; one that is
/// gone cannot.
#[tokio::test]
async fn what_was_reserved_leaves_less_of_a_share() {
    for is_gone in [false, true] {
        let mut server = Server::start(&[]);
        let store = RedisStore::builder(server.url()).timeout(PATIENCE);
        let node = Node::new(store, declaring(&[rate()], share(1)));
        let reserved = node.limiter.reserve(&query(6), HOLD, Some("a")).await;
        let reserved = reserved.unwrap();
        assert!(reserved.is_allow() && !reserved.degraded);
        if is_gone {
            server.kill();
            node.until_gone("other").await;
        } else {
            server.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
        }
        let mut passed = 0;
        for _ in 0..10 {
            let verdict = node.limiter.reserve(&query(1), HOLD, None).await.unwrap();
            assert!(verdict.degraded);
            passed += u64::from(verdict.is_allow());
        }
        assert_eq!(passed, 4, "of 10, of which 6 are reserved, {is_gone}");
    }
}

/// As `debts::what_the_store_admitted_and_nobody_heard_is_no_part_of_a_share`, for a reservation.
#[tokio::test]
async fn what_is_being_reserved_is_no_part_of_a_share() {
    let server = Server::start(&[]);
    let store = RedisStore::builder(server.url()).timeout(PATIENCE);
    let node = Node::new(store, declaring(&[rate()], share(1)));
    let watcher = Node::new(server.store(), rules(&[rate()]));
    let before = node.limiter.reserve(&query(1), HOLD, None).await.unwrap();
    assert!(before.is_allow() && !before.degraded);
    let query = query(6);
    let mut first = pin!(node.limiter.reserve(&query, HOLD, Some("a")));
    let is_pending = poll_fn(|context| Poll::Ready(first.as_mut().poll(context).is_pending()));
    assert!(is_pending.await);
    until_it("it is charged", async || {
        watcher.peek("a").await.remaining == Some(3)
    })
    .await;
    server.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let mut passed = 0;
    let mut ask = async || {
        for _ in 0..10 {
            let verdict = node.ask("a", 1).await;
            assert!(verdict.degraded);
            passed += u64::from(verdict.is_allow());
        }
        passed
    };
    assert_eq!(ask().await, 3, "while it is on its way");
    assert!(first.await.unwrap().is_allow());
    assert_eq!(ask().await, 3, "and after it was answered");
}

/// A node that does not know a key asks a store that refuses to write how much is left, for a
/// reservation too; a call on a used-up key is refused, and not degraded.
#[tokio::test]
async fn a_reservation_hears_what_is_left_from_a_store_that_takes_no_writes() {
    let server = Server::start(&[]);
    let rules = declaring(&[rate()], share(1));
    let [first, second] = [(); 2].map(|()| Node::new(server.store(), rules.clone()));
    assert!(first.ask("a", 7).await.is_allow());
    server.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let mut passed = 0;
    for _ in 0..10 {
        let verdict = second.limiter.reserve(&query(1), HOLD, None).await.unwrap();
        assert!(verdict.degraded && verdict.id.is_none());
        passed += u64::from(verdict.is_allow());
    }
    assert_eq!(passed, 3, "of 10, of which 7 are used");
    for _ in 0..2 {
        let node = Node::new(server.store(), rules.clone());
        let verdict = node.limiter.reserve(&query(4), HOLD, None).await.unwrap();
        assert!(!verdict.is_allow() && !verdict.degraded, "{verdict:?}");
    }
}
