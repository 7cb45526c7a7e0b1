//! Twins: the fields and problem documents of a layer are, byte for byte, those of the server.

use std::time::Duration;

use quell::tower::{Entries, LimitLayer};
use quell::{Cost, Limit, Operation, Query, Rate, Verdict};
use quell_core::ban::Ban;
use quell_protocol::http::{Problem, RateLimitItem, definition_field, retry_after, status_field};

use super::support::{Read, app, ask, get, limiter, rule};

/// Limits of every kind, with names that need care on the wire.
fn limits() -> Vec<(&'static str, Limit)> {
    let third = Rate::new(3, Duration::from_secs(1)).unwrap();
    let slow = Rate::new(1, Duration::from_secs(86_400 * 365)).unwrap();
    let ban = Ban::new(
        2,
        Some(Duration::from_secs(60)),
        vec![Duration::from_millis(90_500)],
    )
    .unwrap();
    let log = Limit::sliding_log(4, Duration::from_millis(1_500))
        .build()
        .unwrap();
    vec![
        (
            "plain",
            Limit::token_bucket(third).burst(5).build().unwrap(),
        ),
        (
            "with \"quotes\" and \\",
            Limit::leaky_bucket(third)
                .burst(6)
                .delay_after(6)
                .build()
                .unwrap(),
        ),
        (
            "größer/100%",
            Limit::fixed_window(7, Duration::from_secs(10))
                .build()
                .unwrap(),
        ),
        (
            "huge",
            Limit::token_bucket(slow).burst(u64::MAX).build().unwrap(),
        ),
        (
            "sliding",
            Limit::sliding_window(6, Duration::from_secs(7))
                .build()
                .unwrap(),
        ),
        ("tab\tand\u{7f}", log.with_ban(ban)),
    ]
}

fn expected(items: &[RateLimitItem<'_>], verdict: &Verdict) -> [Option<String>; 4] {
    let problem = (!verdict.is_allow()).then(|| {
        let problem = Problem::refusal(verdict);
        serde_json::to_string(&problem).unwrap()
    });
    [
        definition_field(items),
        status_field(items),
        retry_after(verdict, Duration::ZERO).map(|seconds| seconds.to_string()),
        problem,
    ]
}

fn got(read: &Read) -> [Option<String>; 4] {
    let field = |name| read.field(name).map(str::to_owned);
    let problem = read.status.is_client_error().then(|| read.body.clone());
    [
        field("ratelimit-policy"),
        field("ratelimit"),
        field("retry-after"),
        problem,
    ]
}

#[tokio::test]
async fn a_layer_and_the_server_write_the_same_bytes() {
    let limits = limits();
    let rules = |shadowed: usize| {
        let rules = limits.iter().enumerate();
        let rules = rules.map(|(index, (name, limit))| {
            let mut rule = rule(name, limit.clone(), &[]);
            rule.shadow = index == shadowed;
            rule
        });
        rules.collect::<Vec<_>>()
    };
    let mut outcomes = [0, 0];
    for shadowed in [usize::MAX, 0, 4] {
        let (wire, wire_clock) = limiter(rules(shadowed));
        let (reference, clock) = limiter(rules(shadowed));
        let entries = Entries::new().cost(|request| {
            let cost = request.uri.query().and_then(|cost| cost.parse().ok());
            cost.and_then(Cost::new).unwrap_or_default()
        });
        let app = app(LimitLayer::new(wire, "shop", entries));
        for step in 0..120_u64 {
            let cost = if step % 17 == 16 { 900 } else { 1 + step % 2 };
            let query = Query::new("shop").cost(Cost::new(cost).unwrap());
            let now = reference.now();
            let verdict = reference
                .ask(Operation::Acquire, &query, now)
                .await
                .unwrap();
            let items: Vec<RateLimitItem<'_>> = verdict
                .decisions
                .iter()
                .zip(&limits)
                .filter(|(decided, _)| !decided.shadow)
                .map(|(decided, (_, limit))| RateLimitItem {
                    rule: &decided.rule,
                    window: limit.full_refill(),
                    unit: None,
                    partition_key: None,
                    rung: None,
                    bound: None,
                    decision: &decided.decision,
                })
                .collect();
            let read = ask(&app, get(&format!("/?{cost}"), &[])).await;
            assert_eq!(got(&read), expected(&items, &verdict), "step {step}");
            outcomes[usize::from(verdict.is_allow())] += 1;
            let pause = Duration::from_micros(step * step % 977 * 9_337);
            clock.advance(pause);
            wire_clock.advance(pause);
        }
    }
    assert!(outcomes.iter().all(|count| *count > 50), "{outcomes:?}");
}
