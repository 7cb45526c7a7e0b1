//! `RateLimit-Policy`, `RateLimit` and `Retry-After`.

use std::num::NonZeroU64;
use std::time::Duration;

use quell_core::decision::{Decision, RetryAfter};
use quell_core::verdict::Verdict;
use quell_protocol::http::{RateLimitItem, definition_field, retry_after, status_field};

use crate::support::{allow, deny, verdict};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

const fn item<'a>(rule: &'a str, decision: &'a Decision) -> RateLimitItem<'a> {
    RateLimitItem {
        rule,
        window: Duration::from_secs(60),
        unit: None,
        partition_key: None,
        rung: None,
        bound: None,
        decision,
    }
}

#[test]
fn one_item_per_limit() {
    let login = deny(5, RetryAfter::After(ms(11_001)), ms(60_000));
    let api = allow(200, 150, ms(1_500));
    let items = [
        item("login-per-ip", &login),
        RateLimitItem {
            window: ms(2_001),
            ..item("api", &api)
        },
    ];
    assert_eq!(
        definition_field(&items).unwrap(),
        r#""login-per-ip";q=5;w=60, "api";q=200;w=3"#
    );
    assert_eq!(
        status_field(&items).unwrap(),
        r#""login-per-ip";r=0;t=12, "api";r=150;t=2"#
    );
}

#[test]
fn unit_and_partition_key() {
    let decision = allow(100, 99, ms(0));
    let items = [RateLimitItem {
        unit: Some("content-bytes"),
        partition_key: Some("dXNlcjo0Mg=="),
        ..item("upload", &decision)
    }];
    assert_eq!(
        definition_field(&items).unwrap(),
        r#""upload";q=100;w=60;qu="content-bytes";pk=:dXNlcjo0Mg==:"#
    );
    assert_eq!(
        status_field(&items).unwrap(),
        r#""upload";r=99;t=0;pk=:dXNlcjo0Mg==:"#
    );
}

/// The rung of a limit and its bound stay the same from answer to answer: they are of the policy.
#[test]
fn a_limit_that_is_not_exact_says_so() {
    let decision = allow(1_000, 990, ms(0));
    let items = [
        RateLimitItem {
            rung: Some("leased"),
            bound: NonZeroU64::new(20),
            ..item("api", &decision)
        },
        RateLimitItem {
            rung: Some("shares"),
            ..item("fleet", &decision)
        },
    ];
    assert_eq!(
        definition_field(&items).unwrap(),
        r#""api";q=1000;w=60;quell-rung=leased;quell-bound=20, "fleet";q=1000;w=60;quell-rung=shares"#
    );
    assert_eq!(
        status_field(&items).unwrap(),
        r#""api";r=990;t=0, "fleet";r=990;t=0"#
    );
}

#[test]
fn numbers_fit_the_fields() {
    let wide = allow(u64::MAX, u64::MAX, Duration::MAX);
    let items = [RateLimitItem {
        window: Duration::MAX,
        ..item("a", &wide)
    }];
    assert_eq!(
        definition_field(&items).unwrap(),
        r#""a";q=999999999999999;w=999999999999999"#
    );
    assert_eq!(
        status_field(&items).unwrap(),
        r#""a";r=999999999999999;t=999999999999999"#
    );
    let short = [RateLimitItem {
        window: Duration::from_nanos(5),
        ..item("a", &wide)
    }];
    assert!(definition_field(&short).unwrap().ends_with(";w=1"));
}

#[test]
fn never_has_no_time() {
    let never = deny(5, RetryAfter::Never, ms(9_000));
    assert_eq!(status_field(&[item("a", &never)]).unwrap(), r#""a";r=0"#);
}

#[test]
fn names_are_made_safe_and_stay_apart() {
    let decision = allow(1, 1, ms(0));
    for (name, expected) in [
        ("plain name", r#""plain name""#),
        (r#"a"b\c"#, r#""a\"b\\c""#),
        ("größe", r#""gr%C3%B6%C3%9Fe""#),
        ("a\r\nX-Evil: 1", r#""a%0D%0AX-Evil: 1""#),
        ("100%", r#""100%25""#),
        ("gr%C3%B6", r#""gr%25C3%25B6""#),
        ("\u{7f}", r#""%7F""#),
    ] {
        assert_eq!(
            status_field(&[item(name, &decision)]).unwrap(),
            format!("{expected};r=1;t=0")
        );
        assert!(
            definition_field(&[item(name, &decision)])
                .unwrap()
                .starts_with(expected)
        );
    }
}

#[test]
fn no_limit_no_field() {
    assert_eq!(definition_field(&[]), None);
    assert_eq!(status_field(&[]), None);
}

#[test]
fn retry_after_rounds_up() {
    let refused = |wait| verdict(&[("a", false, deny(5, wait, ms(60_000)))]);
    let after = |nanos| RetryAfter::After(Duration::from_nanos(nanos));
    for (verdict, jitter, expected) in [
        (refused(after(1)), ms(0), Some(1)),
        (refused(after(0)), ms(0), Some(1)),
        (refused(after(1_000_000_000)), ms(0), Some(1)),
        (refused(after(1_000_000_001)), ms(0), Some(2)),
        (refused(after(1_500_000_000)), ms(2_400), Some(4)),
        (
            refused(RetryAfter::After(Duration::MAX)),
            ms(1),
            Some(u64::MAX),
        ),
        (refused(RetryAfter::Never), ms(5_000), None),
        (
            verdict(&[("a", false, allow(5, 4, ms(1)))]),
            ms(5_000),
            None,
        ),
        (Verdict::default(), ms(0), None),
    ] {
        assert_eq!(retry_after(&verdict, jitter), expected);
    }
}
