//! The denial cache: denied keys cost few round trips, and its answers are right.

use quell::store::Action;
use quell::{Limit, Query, RetryAfter};
use quell_core::algorithm::fixed_window::CalendarUnit;
use quell_core::ban::Ban;
use quell_redis::StoreClock;
use std::time::Duration;

use crate::fallback::{Node, declaring, scripts, share};
use crate::limits::{SECOND, built, rules};
use crate::server::Server;

fn five_an_hour() -> Limit {
    built(Limit::fixed_window(5, 3_600 * SECOND).build())
}

fn after(verdict: &quell::Verdict) -> Duration {
    match verdict.retry_after {
        Some(RetryAfter::After(wait)) => wait,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_hammered_key_costs_a_round_trip_a_second() {
    let server = Server::start(&[]);
    let node = Node::new(server.store(), rules(&[five_an_hour()]));
    for _ in 0..5 {
        assert!(node.ask("eve", 1).await.is_allow());
    }
    let first = node.ask("eve", 1).await;
    assert!(!first.is_allow() && !first.degraded);
    let before = scripts(&server);
    for _ in 0..1_000 {
        let again = node.ask("eve", 1).await;
        assert_eq!(again.retry_after, first.retry_after, "the clock stands");
        assert_eq!(
            (again.remaining, again.reset_after),
            (Some(0), first.reset_after)
        );
    }
    assert_eq!(scripts(&server), before, "none was asked for");
    node.clock.advance(Duration::from_millis(800));
    let later = node.ask("eve", 1).await;
    assert_eq!(after(&later), after(&first) - Duration::from_millis(800));
    assert_eq!(scripts(&server), before);
    // Ten seconds of it, a thousand calls in each.
    for _ in 0..100 {
        node.clock.advance(Duration::from_millis(100));
        for _ in 0..100 {
            assert!(!node.ask("eve", 1).await.is_allow());
        }
    }
    let trips = scripts(&server) - before;
    assert!(
        (10..=12).contains(&trips),
        "{trips} round trips in ten seconds"
    );
    assert_eq!(
        node.limiter.store().fallback_numbers().remembered,
        11_001 - trips
    );
}

#[tokio::test]
async fn larger_costs_are_refused_from_memory_and_smaller_ones_asked_for() {
    let server = Server::start(&[]);
    let limits = [built(Limit::per_minute(60).burst(10).build())];
    // The store's own clock would go on meanwhile.
    let store = server.store().clock(StoreClock::Caller);
    let node = Node::new(store, rules(&limits));
    assert!(node.ask("eve", 8).await.is_allow());
    let first = node.ask("eve", 4).await;
    let before = scripts(&server);
    let larger = node.ask("eve", 7).await;
    // A unit a second.
    assert_eq!(after(&larger), after(&first) + 3 * SECOND);
    assert_eq!(larger.remaining, Some(2));
    let never = node.ask("eve", 11).await;
    assert_eq!(never.retry_after, Some(RetryAfter::Never));
    assert_eq!(scripts(&server), before);
    assert!(node.ask("eve", 2).await.is_allow());
    assert_eq!(scripts(&server), before + 1);
    assert!(!node.ask("eve", 4).await.is_allow());
    assert_eq!(scripts(&server), before + 2, "what was left is less now");
}

#[tokio::test]
async fn what_another_node_forgives_shows_within_a_second() {
    let server = Server::start(&[]);
    let ban = Ban::new(1, None, vec![36_000 * SECOND]).unwrap();
    let limits = [five_an_hour().with_ban(ban)];
    let node = Node::new(server.store(), rules(&limits));
    let other = Node::new(server.store(), rules(&limits));
    let eve = Query::new("d").entry("user", "eve");
    for (action, is_banned) in [(Action::Forgive, false), (Action::Lift, true)] {
        for _ in 0..5 {
            node.ask("eve", 1).await;
        }
        assert!(node.ask("eve", 1).await.banned);
        other.limiter.administer(&eve, action).await.unwrap();
        assert!(node.ask("eve", 1).await.banned, "still believed");
        node.clock.advance(SECOND);
        let verdict = node.ask("eve", 1).await;
        // A lifted ban leaves what was used; that refusal is the first that counts towards the next
        // ban.
        assert_eq!(
            (verdict.is_allow(), verdict.banned),
            (!is_banned, is_banned)
        );
        node.limiter
            .administer(&eve, Action::Forgive)
            .await
            .unwrap();
    }
    // This node's own actions take effect at once.
    for _ in 0..6 {
        node.ask("eve", 1).await;
    }
    node.limiter
        .administer(&eve, Action::Forgive)
        .await
        .unwrap();
    assert!(node.ask("eve", 1).await.is_allow());
}

#[tokio::test]
async fn a_raised_limit_counts_at_once() {
    let server = Server::start(&[]);
    let node = Node::new(server.store(), rules(&[five_an_hour()]));
    for _ in 0..6 {
        node.ask("eve", 1).await;
    }
    let raised = built(Limit::fixed_window(7, 3_600 * SECOND).build());
    node.limiter.set_rules(rules(&[raised])).unwrap();
    let verdict = node.ask("eve", 1).await;
    assert_eq!((verdict.is_allow(), verdict.remaining), (true, Some(1)));
}

#[tokio::test]
async fn refusals_that_count_towards_a_ban_reach_the_store() {
    let server = Server::start(&[]);
    let ban = Ban::new(3, Some(3_600 * SECOND), vec![6_000 * SECOND]).unwrap();
    let node = Node::new(server.store(), rules(&[five_an_hour().with_ban(ban)]));
    for _ in 0..5 {
        node.ask("eve", 1).await;
    }
    for refusals in 1..=3 {
        assert_eq!(node.ask("eve", 1).await.banned, refusals == 3);
    }
    let before = scripts(&server);
    for cost in [1, 1, 5, 2] {
        let verdict = node.ask("eve", cost).await;
        assert!(verdict.banned);
        assert!(after(&verdict) > 5_000 * SECOND);
    }
    assert_eq!(scripts(&server), before, "the ban stands");
}

#[tokio::test]
async fn one_limit_that_is_known_to_refuse_decides_for_a_set() {
    let server = Server::start(&[]);
    let wide = built(Limit::per_second(1_000).build());
    let mut both = rules(&[wide.clone(), five_an_hour()]);
    let node = Node::new(server.store(), both.clone());
    for _ in 0..5 {
        node.ask("eve", 1).await;
    }
    assert_eq!(node.ask("eve", 1).await.decisions.len(), 2);
    let before = scripts(&server);
    let verdict = node.ask("eve", 1).await;
    let said: Vec<&str> = verdict.decisions.iter().map(|said| &*said.rule).collect();
    assert_eq!(said, ["rule-1"], "nobody asked the other");
    assert_eq!(
        verdict.binding_rule().map(|rule| &*rule.rule),
        Some("rule-1")
    );
    assert_eq!(scripts(&server), before);
    // If another rule has a ban, the store must be asked: that rule might refuse as well.
    let ban = Ban::new(2, Some(SECOND), vec![SECOND]).unwrap();
    both = rules(&[wide.with_ban(ban), five_an_hour()]);
    node.limiter.set_rules(both).unwrap();
    node.ask("eve", 1).await;
    node.ask("eve", 1).await;
    assert_eq!(scripts(&server), before + 2);
}

#[tokio::test]
async fn shadows_and_peeks_are_asked_for_each_time() {
    let server = Server::start(&[]);
    let mut shadow = rules(&[five_an_hour()]);
    shadow[0].rules[0].shadow = true;
    let node = Node::new(server.store(), shadow);
    for _ in 0..7 {
        assert!(node.ask("eve", 1).await.is_allow());
    }
    assert_eq!(
        scripts(&server),
        8,
        "one was sent twice, to teach the script"
    );
    let node = Node::new(server.store(), rules(&[five_an_hour()]));
    for _ in 0..3 {
        assert!(!node.ask("eve", 1).await.is_allow());
        assert!(!node.peek("eve").await.is_allow());
    }
    assert_eq!(scripts(&server), 12, "three peeks and one refusal");
}

#[tokio::test]
async fn a_calendar_window_is_remembered_by_what_is_left_of_it() {
    let server = Server::start(&[]);
    let limit = Limit::calendar_window(1, CalendarUnit::Year, "Europe/Berlin");
    let node = Node::new(server.store(), rules(&[built(limit.build())]));
    node.ask("eve", 1).await;
    let first = node.ask("eve", 1).await;
    let before = scripts(&server);
    node.clock.advance(Duration::from_millis(700));
    let later = node.ask("eve", 1).await;
    assert_eq!(after(&later), after(&first) - Duration::from_millis(700));
    assert_eq!(scripts(&server), before);
}

#[tokio::test]
async fn a_limit_that_comes_with_the_call_is_remembered_as_well() {
    let server = Server::start(&[]);
    let node = Node::new(server.store(), declaring(&[five_an_hour()], share(2)));
    let bucket = Limit::per_hour(1);
    let ask = async || {
        let limiter = &node.limiter;
        let now = limiter.now();
        let operation = quell::Operation::Acquire;
        let asked = limiter.ask_ad_hoc(operation, b"key", &bucket, quell::Cost::ONE, now);
        asked.await.unwrap()
    };
    assert!(ask().await.outcome.is_allow());
    assert!(!ask().await.outcome.is_allow());
    let before = scripts(&server);
    for _ in 0..10 {
        assert!(!ask().await.outcome.is_allow());
    }
    assert_eq!(scripts(&server), before);
}
