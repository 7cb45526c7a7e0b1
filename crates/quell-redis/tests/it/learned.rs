//! Two nodes learn one adaptive ceiling, in front of a service whose capacity is known.

use std::collections::VecDeque;

use quell::{Cost, Limit, Limiter, Operation, Query};
use quell_core::claim::Claim;
use quell_core::end_hold::Ending;
use quell_core::hold::HoldId;
use quell_redis::{RedisStore, StoreClock};

use crate::limits::{SECOND, START, ask, at, built, limiter};
use crate::server::Server;

/// Calls that the service does at a time, and how long each takes then, in microseconds.
const PLACES: usize = 16;
const CALL: u64 = 100_000;

fn learned() -> Limit {
    let limit = Limit::concurrency(200).adaptive(2).lease(30 * SECOND);
    built(limit.build())
}

/// Returns true if `node` gets a permit under this name.
async fn acquire(node: &Limiter<RedisStore>, id: &HoldId, now: u64) -> bool {
    let query = Query::new("d").entry("user", "a").cost(Cost::ONE);
    let claim = Claim {
        id,
        hold: None,
        wait: None,
        is_named: true,
        pending: None,
    };
    let verdict = node.hold_at(&query, &claim, at(now)).await.unwrap();
    verdict.is_allow()
}

/// Calls begin at either node in turn and end at the other: what each learns is known to both, and
/// the result is near the knee as in one process (`quell-core`'s `adaptive` tests).
#[tokio::test]
async fn two_nodes_learn_one_ceiling() {
    let server = Server::start(&[]);
    let store = || server.store().clock(StoreClock::Caller).build();
    let nodes = [(); 2].map(|()| limiter(store(), &[learned()]));
    let mut now = START;
    // Calls in service, or queued in front of it, in order of arrival; and when each place is free.
    let mut calls: VecDeque<(u64, HoldId)> = VecDeque::new();
    let mut places = [START; PLACES];
    let mut ceilings = Vec::new();
    for call in 0..6_000_usize {
        let id = HoldId::new("d", &format!("call-{call}")).unwrap();
        if acquire(&nodes[call % 2], &id, now).await {
            let place = places.iter_mut().min().unwrap();
            *place = now.max(*place) + CALL;
            calls.push_back((*place, id));
            continue;
        }
        let (end, id) = calls.pop_front().unwrap();
        now = now.max(end);
        let ended = nodes[call % 3 % 2].end_at(&id, Ending::Release, at(now));
        ended.await.unwrap().unwrap();
        if call > 4_000 {
            let seen = ask(&nodes[1], Operation::Peek, "a", 1, now).await;
            ceilings.push(seen.decisions[0].decision.limit);
        }
    }
    let one = ask(&nodes[0], Operation::Peek, "a", 1, now).await;
    let other = ask(&nodes[1], Operation::Peek, "a", 1, now).await;
    assert_eq!(one.decisions, other.decisions);
    ceilings.sort_unstable();
    let middle = ceilings[ceilings.len() / 2];
    assert!((16..=21).contains(&middle), "{ceilings:?}");
}
