//! An override inherits the fields that it does not set from its rule.

use quell_core::algorithm::fixed_window::{Anchor, CalendarUnit};
use quell_core::algorithm::token_bucket::TokenBucket;
use quell_core::ban::Ban;
use quell_core::limit::Limit;
use quell_core::limit_error::LimitError;
use quell_core::rule::{Effect, Override, Pattern};

use super::{bucket, matchers, rate, rule, seconds};

/// Fields of a rule, those of its override, and the limit that they make.
type OverCase = (&'static str, &'static str, Result<Limit, LimitError>);

fn check_overrides(cases: Vec<OverCase>) {
    let when = matchers("t", Pattern::Exact("x".into()));
    for (base, over, limit) in cases {
        let said = rule(&format!(
            "{base}, overrides: [{{ when: {{ t: x }}, {over} }}]"
        ));
        let expected = Override {
            when: when.clone().into(),
            effect: Effect::Limit(limit.unwrap()),
        };
        assert_eq!(said.overrides, [expected], "{base} | {over}");
    }
}

#[test]
fn overrides_of_buckets_take_over_what_they_do_not_say() {
    let bucket = |count| bucket(count, seconds(1));
    let ban = Ban::new(1, None, vec![seconds(60)]).unwrap();
    check_overrides(vec![
        ("rate: 10/s", "rate: 20/s", bucket(20).build()),
        (
            "rate: 10/s, burst: 15",
            "rate: 20/s",
            bucket(20).burst(15).build(),
        ),
        ("rate: 10/s", "burst: 20", bucket(10).burst(20).build()),
        (
            "rate: 10/s, burst: 15, initial: 3",
            "burst: 20",
            bucket(10).burst(20).initial(3).build(),
        ),
        (
            "rate: 10/s",
            "refill: { amount: 7, every: 1s }",
            TokenBucket::refill(7, seconds(1)).build(),
        ),
        (
            "refill: { amount: 7, every: 1s }",
            "rate: 20/s",
            bucket(20).build(),
        ),
        (
            "algorithm: leaky_bucket, rate: 10/s, delay_after: burst",
            "burst: 20",
            Limit::leaky_bucket(rate(10, seconds(1)))
                .burst(20)
                .delay_after(20)
                .build(),
        ),
        (
            "rate: 10/s, ban: { after: 1, for: 1m }",
            "burst: 20",
            bucket(10)
                .burst(20)
                .build()
                .map(|limit| limit.with_ban(ban)),
        ),
    ]);
}

#[test]
fn overrides_of_windows_take_over_what_they_do_not_say() {
    let monthly = |limit| Limit::calendar_window(limit, CalendarUnit::Month, "UTC");
    check_overrides(vec![
        (
            "algorithm: fixed_window, limit: 5/min",
            "limit: 7",
            Limit::fixed_window(7, seconds(60)).build(),
        ),
        (
            "algorithm: fixed_window, limit: 5/min",
            "window: 1h",
            Limit::fixed_window(5, seconds(3600)).build(),
        ),
        (
            "algorithm: fixed_window, limit: 5/day, align: calendar, time_zone: Asia/Tokyo",
            "limit: 7",
            Limit::calendar_window(7, CalendarUnit::Day, "Asia/Tokyo").build(),
        ),
        (
            "algorithm: fixed_window, limit: 5/month, align: calendar, anchor: 17",
            "limit: 7/month",
            monthly(7).anchor(Anchor::DayOfMonth(17)).build(),
        ),
        (
            "algorithm: fixed_window, limit: 5/month, align: calendar, anchor: 17",
            "anchor: 2026-01-31, time_zone: Asia/Tokyo",
            Limit::calendar_window(5, CalendarUnit::Month, "Asia/Tokyo")
                .anchor(Anchor::DayOfMonth(31))
                .build(),
        ),
        // Another window takes no anchor.
        (
            "algorithm: fixed_window, limit: 5/month, align: calendar, anchor: 17",
            "limit: 7/day",
            Limit::calendar_window(7, CalendarUnit::Day, "UTC").build(),
        ),
        (
            "algorithm: sliding_window, limit: 5/min, segments: 6",
            "limit: 7",
            Limit::sliding_window(7, seconds(60)).segments(6).build(),
        ),
    ]);
}

/// `max`, with its queue, and `adaptive` replace each other.
#[test]
fn overrides_of_permits_take_over_what_they_do_not_say() {
    let fixed = "algorithm: concurrency, max: 4, queue: 2, unit_delay: 1s, lease: 9s";
    let learned = "algorithm: concurrency, adaptive: { min: 2, max: 50 }, lease: 9s";
    let permits = |max| Limit::concurrency(max).lease(seconds(9));
    check_overrides(vec![
        (
            fixed,
            "max: 7",
            permits(7).queue(2).unit_delay(seconds(1)).build(),
        ),
        (
            fixed,
            "adaptive: { min: 1, max: 8 }",
            permits(8).adaptive(1).build(),
        ),
        (
            learned,
            "lease: 3s",
            permits(50).adaptive(2).lease(seconds(3)).build(),
        ),
        (
            learned,
            "adaptive: { min: 3, max: 8 }",
            permits(8).adaptive(3).build(),
        ),
        (learned, "max: 7", permits(7).build()),
        (learned, "max: 7, queue: 1", permits(7).queue(1).build()),
    ]);
}
