//! A cached denial ends while thousands ask about its key: one caller probes for all, and every
//! caller gets the answer that it would get alone.

use std::sync::Arc;

use quell::store::Action;
use quell::{AskError, Cost, Limit, Query, RetryAfter, Verdict};
use quell_core::on_failure::OnFailure;
use quell_redis::StoreClock;
use tokio::task::JoinHandle;

use crate::fallback::{Node, declaring, scripts};
use crate::limits::{SECOND, built, rules};
use crate::patience::{PATIENCE, TIMEOUT, until_it};
use crate::server::Server;

/// More than may wait for the store.
const CROWD: usize = 6_000;

fn window(limit: u64) -> Limit {
    built(Limit::fixed_window(limit, 10 * SECOND).build())
}

/// A node whose clock also sets the store's time.
fn node(server: &Server, limit: Limit) -> Arc<Node> {
    let store = server.store().clock(StoreClock::Caller);
    Arc::new(Node::new(store, rules(&[limit])))
}

type Asked = JoinHandle<Result<Verdict, AskError>>;

/// Makes this many calls in parallel, each in a task of its own.
fn ask(node: &Arc<Node>, times: usize, cost: u64) -> Vec<Asked> {
    let asked = (0..times).map(|_| {
        let node = Arc::clone(node);
        tokio::spawn(async move {
            let query = Query::new("d").entry("user", "eve");
            let query = query.cost(Cost::new(cost).unwrap());
            node.limiter.try_acquire(&query).await
        })
    });
    asked.collect()
}

async fn answers(asked: Vec<Asked>) -> Vec<Verdict> {
    let mut answers = Vec::new();
    for asked in asked {
        let answer = tokio::time::timeout(4 * PATIENCE, asked).await;
        answers.push(answer.expect("no answer for ever").unwrap().unwrap());
    }
    answers
}

fn passed(answers: &[Verdict]) -> usize {
    answers.iter().filter(|answer| answer.is_allow()).count()
}

/// Uses up the limit, and is then refused with this cost.
async fn use_up(node: &Node, limit: u64, cost: u64) {
    assert!(node.ask("eve", limit).await.is_allow());
    assert!(!node.ask("eve", cost).await.is_allow());
}

#[tokio::test]
async fn one_asks_for_all_when_a_refusal_is_not_believed_any_more() {
    let server = Server::start(&[]);
    let node = node(&server, window(5));
    use_up(&node, 5, 1).await;
    for second in 1..6 {
        let before = scripts(&server);
        node.clock.advance(SECOND);
        let answers = answers(ask(&node, CROWD, 1)).await;
        assert_eq!(passed(&answers), 0);
        let wait = Some(RetryAfter::After((10 - second) * SECOND));
        assert!(answers.iter().all(|answer| answer.retry_after == wait));
        assert_eq!(scripts(&server) - before, 1, "one asked");
    }
}

#[tokio::test]
async fn as_many_pass_as_fit_when_the_wait_is_over() {
    let server = Server::start(&[]);
    for limit in [1, 5, 700] {
        let node = node(&server, window(limit));
        use_up(&node, limit, 1).await;
        let before = scripts(&server);
        node.clock.advance(10 * SECOND);
        // This call comes before the others, and may take the last unit.
        assert!(node.ask("eve", 1).await.is_allow());
        let answers = answers(ask(&node, CROWD, 1)).await;
        assert_eq!(passed(&answers) as u64, limit - 1);
        let wait = Some(RetryAfter::After(10 * SECOND));
        let refused = answers.iter().filter(|answer| !answer.is_allow());
        assert!(refused.clone().all(|answer| answer.retry_after == wait));
        let most = limit + 256;
        assert!(scripts(&server) - before <= most, "more asked than could");
        server.command(&["FLUSHALL"]);
    }
}

/// An answer is not applied to other costs for which it would be wrong.
#[tokio::test]
async fn smaller_and_larger_costs_are_answered_as_if_they_had_come_alone() {
    let server = Server::start(&[]);
    let limits = [
        window(10),
        built(Limit::sliding_log(10, 10 * SECOND).build()),
        built(Limit::per_minute(6).burst(10).build()),
    ];
    for limit in limits {
        let node = node(&server, limit);
        use_up(&node, 7, 4).await;
        node.clock.advance(SECOND);
        let (larger, smaller) = (ask(&node, 3_000, 4), ask(&node, 5, 1));
        let largest = ask(&node, 3_000, 10);
        assert_eq!(passed(&answers(larger).await), 0);
        assert_eq!(passed(&answers(smaller).await), 3);
        for cost in [4, 10] {
            let alone = node.ask("eve", cost).await;
            let peek = Query::new("d").entry("user", "eve");
            let peek = peek.cost(Cost::new(cost).unwrap());
            let said = node.limiter.peek(&peek).await.unwrap();
            assert_eq!(alone.retry_after, said.retry_after);
        }
        assert_eq!(passed(&answers(largest).await), 0);
        server.command(&["FLUSHALL"]);
    }
}

#[tokio::test]
async fn what_was_forgiven_elsewhere_and_a_raised_limit_show() {
    let server = Server::start(&[]);
    let (node, other) = (node(&server, window(5)), node(&server, window(5)));
    use_up(&node, 5, 1).await;
    let eve = Query::new("d").entry("user", "eve");
    let forgive = other.limiter.administer(&eve, Action::Forgive).await;
    assert_eq!(forgive.unwrap(), 1);
    node.clock.advance(SECOND);
    assert_eq!(passed(&answers(ask(&node, CROWD, 1)).await), 5);
    // The others wait for a caller that asks under the old limit.
    node.clock.advance(SECOND);
    let before = ask(&node, 1_000, 1);
    tokio::task::yield_now().await;
    node.limiter.set_rules(rules(&[window(8)])).unwrap();
    let after = ask(&node, 1_000, 1);
    let passed = passed(&answers(before).await) + passed(&answers(after).await);
    assert_eq!(passed, 3);
}

/// The caller that asked for all goes away: the next one asks.
#[tokio::test]
async fn whoever_goes_away_leaves_nobody_behind() {
    let server = Server::start(&[]);
    let node = node(&server, window(5));
    use_up(&node, 5, 1).await;
    node.clock.advance(10 * SECOND);
    server.freeze();
    let asked = ask(&node, 1_000, 1);
    tokio::task::yield_now().await;
    for (index, asked) in asked.iter().enumerate() {
        if index < 500 && index % 3 != 2 {
            asked.abort();
        }
    }
    tokio::task::yield_now().await;
    server.thaw();
    let rest = asked.into_iter().enumerate();
    let rest = rest.filter_map(|(index, asked)| (index >= 500 || index % 3 == 2).then_some(asked));
    let passed = passed(&answers(rest.collect()).await);
    // The first call may have been charged, like that of any caller that goes away.
    assert!((4..=5).contains(&passed), "{passed}");
}

/// The store does not answer: each caller gets the declared answer, and none waits for all the
/// others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_declared_is_answered_to_all_who_wait() {
    let server = Server::start(&[]);
    for declared in [OnFailure::Deny, OnFailure::Allow] {
        let store = server.store().timeout(TIMEOUT);
        let store = store.clock(StoreClock::Caller);
        let node = Arc::new(Node::new(store, declaring(&[window(5)], Some(declared))));
        node.until_back("somebody").await;
        use_up(&node, 5, 1).await;
        node.clock.advance(SECOND);
        server.freeze();
        let answers = answers(ask(&node, CROWD, 1)).await;
        assert!(answers.iter().all(|answer| answer.degraded));
        let expected = if declared == OnFailure::Allow {
            CROWD
        } else {
            0
        };
        assert_eq!(passed(&answers), expected);
        server.thaw();
        node.until_back("eve").await;
        until_it("the key is refused by the store", async || {
            let verdict = node.ask("eve", 1).await;
            !verdict.degraded && !verdict.is_allow()
        })
        .await;
        server.command(&["FLUSHALL"]);
    }
}

/// The caller that asks for all is not polled any more: the others wait for a while, and then ask.
#[tokio::test]
async fn who_is_not_polled_holds_nobody_up_for_ever() {
    let server = Server::start(&[]);
    let store = server.store().timeout(3 * TIMEOUT);
    let store = store.clock(StoreClock::Caller).unbatched();
    let node = Arc::new(Node::new(store, rules(&[window(5)])));
    use_up(&node, 5, 1).await;
    node.clock.advance(10 * SECOND);
    let query = Query::new("d").entry("user", "eve");
    let mut stuck = std::pin::pin!(node.limiter.try_acquire(&query));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(stuck.as_mut().poll(&mut context).is_pending());
    // It may have taken one unit.
    let passed = passed(&answers(ask(&node, 100, 1)).await);
    assert!((4..=5).contains(&passed), "{passed}");
    drop(stuck.await);
}
