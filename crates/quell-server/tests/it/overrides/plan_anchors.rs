//! Anchors of plans and of overrides, and windows that are divided.

use std::sync::Arc;
use std::time::Duration;

use quell::clock::{Clock as _, ManualClock, SystemClock};
use quell_testkit::redis::{Redis, try_command};
use serde_json::{Value, json};

use super::{Fixture, HOUR, KEPT, advance, batch, call, put, set};
use crate::harness::{eventually, store_settings};

#[test]
fn a_plan_may_begin_its_windows_elsewhere() {
    let rules = "
domain: shop
plans:
  gold: { monthly: { limit: 500 }, api: { rate: 100/s } }
  silver: { api: { rate: 50/s } }
defaults: { on_failure: deny }
rules:
  - { name: api, match: { kind: api }, per: [tenant], rate: 5/s }
  - { name: monthly, match: { kind: monthly }, per: [tenant], algorithm: fixed_window, limit: 9/month,
      align: calendar }
";
    let server = Fixture::with_clock(rules, "");
    let star = "/v1/overrides/shop/*?tenant=acme";
    let record = set(&server, star, &json!({"plan": "gold", "anchor": 17}));
    assert_eq!(
        (&record["plan"], &record["anchor"], record.get("fields")),
        (&json!("gold"), &json!(17), None)
    );
    assert_eq!(call(&server, "api", "acme", 1)["remaining"], 99);
    assert_eq!(call(&server, "monthly", "acme", 100)["remaining"], 400);
    // It is November 14.
    advance(&server, 2 * 24 * HOUR);
    assert_eq!(call(&server, "monthly", "acme", 1)["remaining"], 399);
    advance(&server, 24 * HOUR);
    assert_eq!(call(&server, "monthly", "acme", 1)["remaining"], 499);
    let shown = server.get("/v1/overrides/shop/monthly?tenant=acme").json();
    let link = &shown["chain"][1];
    assert_eq!(
        (&link["plan"], &link["limit"], &link["in_force"]),
        (
            &json!("gold"),
            &json!("fixed_window 500 per calendar month from day 17 in UTC"),
            &json!(true)
        )
    );
    let listed = server.get("/v1/overrides/shop?plan=gold").json();
    assert_eq!(listed["overrides"][0]["anchor"], 17);
    let listed = listed["overrides"].as_array().unwrap().clone();
    assert_eq!(batch(&server, &listed).json()["changed"], 1);
    // Use is kept when the anchor goes.
    set(&server, star, &json!({"plan": "gold"}));
    assert_eq!(call(&server, "monthly", "acme", 1)["remaining"], 498);
    let api = "/v1/overrides/shop/api?tenant=acme";
    for (target, body, words) in [
        (
            api,
            json!({"plan": "gold", "anchor": 17}),
            "has no limit with `align: calendar` for rule `api`",
        ),
        (
            star,
            json!({"plan": "gold", "anchor": "noon"}),
            "unknown anchor `noon`",
        ),
        (star, json!({"plan": "gold", "burst": 7}), "leave burst out"),
        (
            star,
            json!({"plan": "golf", "anchor": 17}),
            "no plan `golf`",
        ),
        (
            star,
            json!({"refuse": true, "change": "prorate"}),
            "this is for api and monthly: write `change: prorate` for each rule",
        ),
        (
            star,
            json!({"plan": "silver", "change": "prorate"}),
            "for no rule of these keys",
        ),
        (
            api,
            json!({"plan": "gold", "change": "prorate"}),
            "only windows of the calendar",
        ),
    ] {
        put(&server, target, &body).assert_problem(400, words);
    }
    // From 9 a month to 500 in a window of 31 days, of which half a day is over.
    call(&server, "monthly", "b", 1);
    let body = json!({"plan": "gold", "anchor": 17, "change": "prorate"});
    let record = set(&server, "/v1/overrides/shop/monthly?tenant=b", &body);
    assert_eq!(
        (&record["prorated"]["until"], &record["anchor"]),
        (&json!("2023-12-17T00:00:00Z"), &json!(17))
    );
    let limit = record["prorated"]["limit"].as_u64().unwrap();
    assert!((480..500).contains(&limit), "{record}");
    let used = call(&server, "monthly", "b", 1);
    assert_eq!(used["remaining"], limit - 2);
    // The same for all rules of the key, of which this one alone has windows.
    call(&server, "monthly", "c", 1);
    let record = set(&server, "/v1/overrides/shop/*?tenant=c", &body);
    assert_eq!(record["prorated"]["limit"], limit);
    assert_eq!(call(&server, "monthly", "c", 1)["remaining"], limit - 2);
    assert_eq!(call(&server, "api", "c", 1)["remaining"], 99);
    let shown = server.get("/v1/overrides/shop/monthly?tenant=c").json();
    let words = shown["chain"][1]["limit"].as_str().unwrap();
    assert!(
        words.starts_with(&format!("fixed_window {limit} per")),
        "{shown}"
    );
    advance(&server, 31 * 24 * HOUR);
    assert_eq!(call(&server, "monthly", "c", 1)["remaining"], 499);
}

/// A window that is divided already keeps what it gained until then, however often its numbers change.
#[test]
fn a_window_is_divided_by_the_times_of_its_numbers() {
    let server = Fixture::with_clock(BY_PERIOD, "");
    let target = "/v1/overrides/shop/monthly?tenant=acme";
    let prorate = |limit: &str| {
        let answer = put(
            &server,
            target,
            &json!({"limit": limit, "change": "prorate"}),
        );
        answer.json()["prorated"]["limit"].as_u64()
    };
    // November 16, of which 15 days of 30 are over.
    advance(
        &server,
        24 * HOUR + Duration::from_secs(3_600 + 46 * 60 + 40),
    );
    for _ in 0..3 {
        assert_eq!(prorate("1000/month"), Some(550));
    }
    assert_eq!(prorate("100/month"), Some(100));
    assert_eq!(prorate("1000/month"), Some(550));
    // A third of the rest.
    advance(&server, 5 * 24 * HOUR);
    assert_eq!(prorate("100/month"), Some(250));
    assert_eq!(call(&server, "monthly", "acme", 1)["remaining"], 249);
    let other = put(
        &server,
        target,
        &json!({"limit": "5/day", "change": "prorate"}),
    );
    other.assert_problem(
        400,
        "the limit was for each month, and this one is for each day",
    );
    let listed = json!({"limit": "7/month", "prorated": {"limit": 0, "until": "1h"}});
    put(&server, target, &listed).assert_problem(400, "`prorated` does not go with");
}

/// A key whose use cannot be forgotten now is told.
#[test]
fn a_restart_below_a_boost_without_a_limit_is_not_made_in_silence() {
    let server = Fixture::with_clock(BY_PERIOD, "");
    let target = "/v1/overrides/shop/monthly?tenant=acme";
    call(&server, "monthly", "acme", 80);
    set(&server, target, &json!({"unlimited": true, "until": "1h"}));
    let restart = json!({"limit": "100/month", "change": "restart"});
    put(&server, target, &restart)
        .assert_problem(504, "another override lets it pass without a limit now");
    advance(&server, HOUR);
    assert_eq!(call(&server, "monthly", "acme", 1)["remaining"], 19);
    set(&server, target, &restart);
    assert_eq!(call(&server, "monthly", "acme", 1)["remaining"], 99);
}

const BY_PERIOD: &str = "
domain: shop
defaults: { on_failure: deny }
rules:
  - { name: monthly, match: { kind: monthly }, per: [tenant], algorithm: fixed_window, limit: 100/month,
      align: calendar }
  - { name: yearly, match: { kind: yearly }, per: [tenant], algorithm: fixed_window, limit: 9/year, align: calendar }
";

/// Nobody calls between the change and the end of the old window.
#[test]
fn a_new_anchor_counts_although_nobody_calls_meanwhile() {
    let server = Fixture::with_clock(BY_PERIOD, "");
    let monthly = |anchor: u32| json!({"limit": "100/month", "anchor": anchor});
    let named = |tenant: &str| format!("/v1/overrides/shop/monthly?tenant={tenant}");
    set(&server, &named("deleted"), &monthly(12));
    let tenants = ["put", "batch", "deleted", "ended", "there and back"];
    for tenant in tenants {
        assert_eq!(call(&server, "monthly", tenant, 80)["remaining"], 20);
    }
    // It is November 14.
    set(&server, &named("put"), &monthly(10));
    let lines = [
        json!({"rule": "monthly", "entries": {"tenant": "batch"}, "limit": "100/month", "anchor": 10}),
    ];
    assert_eq!(batch(&server, &lines).json()["changed"], 1);
    let deleted = server.request("DELETE", &named("deleted"), "");
    assert_eq!(deleted.json()["deleted"], 1, "{deleted:?}");
    let back = named("there%20and%20back");
    set(&server, &back, &monthly(10));
    advance(&server, HOUR);
    assert_eq!(server.request("DELETE", &back, "").status, 200);
    // December 3, when the month of anchor 1 is over, and that of anchor 10 is not.
    advance(&server, 19 * 24 * HOUR);
    for (tenant, left) in [
        ("put", 19),
        ("batch", 19),
        ("ended", 99),
        ("there and back", 99),
        ("new", 99),
    ] {
        assert_eq!(
            call(&server, "monthly", tenant, 1)["remaining"],
            left,
            "{tenant}"
        );
    }
    // Use under anchor 12 counted until the first edge of the rule's own windows.
    assert_eq!(call(&server, "monthly", "deleted", 1)["remaining"], 99);
    advance(&server, 7 * 24 * HOUR);
    assert_eq!(call(&server, "monthly", "put", 1)["remaining"], 99);
}

/// Nobody calls from before the override begins or ends until the old window has ended. It is November 14, 22:13.
#[test]
fn an_anchor_counts_from_the_instant_at_which_its_override_begins_or_ends() {
    let mut server = Fixture::with_clock(BY_PERIOD, "");
    anchors_by_the_clock(&mut server, |server, time| advance(server, time));
}

#[test]
fn an_anchor_counts_that_begins_or_ends_while_the_server_is_down() {
    let mut server = Fixture::with_clock(BY_PERIOD, KEPT);
    anchors_by_the_clock(&mut server, |server, time| {
        server.stop();
        advance(server, time);
        server.start().unwrap();
    });
}

fn anchors_by_the_clock(server: &mut Fixture, pass: impl Fn(&mut Fixture, Duration)) {
    let named = |tenant: &str| format!("/v1/overrides/shop/monthly?tenant={tenant}");
    let later = |tenant: &str, body: Value| {
        let answer = put(server, &named(tenant), &body);
        assert_eq!(answer.status, 201, "{answer:?}");
    };
    let from_25 = json!({"limit": "100/month", "anchor": 25});
    let at = "2023-11-20T00:00:00Z";
    let until = json!({"limit": "100/month", "anchor": 25, "until": at});
    set(server, &named("ends"), &until);
    set(server, &named("replaced"), &from_25);
    set(server, &named("put%20off"), &until);
    let tenants = ["begins", "ends", "replaced", "put off", "deleted"];
    for tenant in tenants {
        assert_eq!(call(server, "monthly", tenant, 80)["remaining"], 20);
    }
    let from = json!({"limit": "100/month", "anchor": 10, "from": at});
    later("begins", from.clone());
    later("deleted", from);
    // Without a limit until then, and meanwhile the anchor goes.
    set(
        server,
        &named("replaced"),
        &json!({"unlimited": true, "until": at}),
    );
    for tenant in ["replaced", "deleted"] {
        let target = format!("{}&which=standing", named(tenant));
        assert_eq!(server.request("DELETE", &target, "").json()["deleted"], 1);
    }
    let longer = json!({"limit": "100/month", "anchor": 25, "until": "2024-11-20T00:00:00Z"});
    set(server, &named("put%20off"), &longer);
    // November 20; who follows changes carries what is due before.
    pass(server, 6 * 24 * HOUR);
    set(server, &named("another"), &from_25);
    // November 27, when the month of anchor 25 is over, and that of anchor 1 is not.
    advance(server, 7 * 24 * HOUR);
    for (tenant, left) in [("ends", 19), ("replaced", 19), ("put off", 99)] {
        let used = call(server, "monthly", tenant, 1);
        assert_eq!(used["remaining"], left, "{tenant}");
    }
    // December 3, when the month of anchor 1 is over, and that of anchor 10 is not.
    advance(server, 6 * 24 * HOUR);
    for (tenant, left) in [("begins", 19), ("ends", 99), ("deleted", 99)] {
        let used = call(server, "monthly", tenant, 1);
        assert_eq!(used["remaining"], left, "{tenant}");
    }
}

/// A Redis, a server over it whose windows of a year end in 30 days, and one key whose state has been there since it used
/// 5 of 9. The store's clock is that of the machine, and the server's is set.
struct Yearly {
    redis: Redis,
    server: Fixture,
    state: Vec<u8>,
}

const YEARLY: &str = "/v1/overrides/shop/yearly?tenant=acme";

impl Yearly {
    fn new() -> Self {
        let redis = Redis::start(&["--appendonly", "yes", "--appendfsync", "always"]);
        let rules = format!(
            "
domain: shop
defaults: {{ on_failure: deny }}
rules:
  - {{ name: yearly, per: [tenant], algorithm: fixed_window, limit: 9/year, align: calendar, anchor: {} }}
",
            date(30)
        );
        let clock = Arc::new(ManualClock::new(SystemClock::new().now()));
        let mut server = Fixture::prepare(&rules, &store_settings(&redis));
        server.clock = Some(clock);
        server.start().unwrap();
        let before = redis.keys();
        call(&server, "yearly", "acme", 5);
        let mut new = redis.keys();
        new.retain(|key| !before.contains(key));
        let [state] = new.try_into().unwrap();
        Self {
            redis,
            server,
            state,
        }
    }

    /// Windows that end in 364 days.
    fn later() -> Value {
        json!({"limit": "9/year", "anchor": date(-1)})
    }

    /// Returns true if the state is kept until the later window ends.
    fn is_moved(&self) -> bool {
        let answer = try_command(self.redis.port(), &[b"PTTL", &self.state[..]]);
        let left: i64 = answer.unwrap().trim().parse().unwrap();
        left > 300 * 86_400_000
    }
}

/// The date so many days from now.
fn date(days: i64) -> String {
    let now = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC);
    now.date()
        .saturating_add(jiff::Span::new().days(days))
        .to_string()
}

/// On a store that servers share the state is kept longer at once.
#[test]
fn a_new_anchor_reaches_the_state_on_a_shared_store_at_once() {
    let one = Yearly::new();
    assert!(!one.is_moved());
    set(&one.server, YEARLY, &Yearly::later());
    assert!(one.is_moved());
    assert_eq!(call(&one.server, "yearly", "acme", 1)["remaining"], 3);
}

#[test]
fn an_anchor_that_begins_later_reaches_the_state_on_a_shared_store() {
    let one = Yearly::new();
    let mut body = Yearly::later();
    body["from"] = json!("1h");
    assert_eq!(put(&one.server, YEARLY, &body).status, 201);
    assert!(!one.is_moved());
    advance(&one.server, HOUR);
    eventually("it is carried", || one.is_moved());
    assert_eq!(call(&one.server, "yearly", "acme", 1)["remaining"], 3);
}

/// The anchor changes while the key is refused, and its window would end before it is not.
#[test]
fn a_new_anchor_reaches_a_refused_key_on_a_shared_store() {
    for numbers in ["refuse", "unlimited"] {
        let one = Yearly::new();
        let boost = json!({numbers: true, "until": "100d"});
        set(&one.server, YEARLY, &boost);
        let standing = put(&one.server, YEARLY, &Yearly::later());
        assert_eq!(standing.status, 201, "{standing:?}");
        assert!(one.is_moved(), "{numbers}");
        let boost = format!("{YEARLY}&which=boost");
        one.server.request("DELETE", &boost, "");
        let used = call(&one.server, "yearly", "acme", 1);
        assert_eq!(used["remaining"], 3, "{numbers}");
    }
}

/// A store that does not answer when an override begins is asked again, until it answers.
#[test]
fn a_new_anchor_waits_for_the_store() {
    let mut one = Yearly::new();
    let mut body = Yearly::later();
    body["from"] = json!("1h");
    assert_eq!(put(&one.server, YEARLY, &body).status, 201);
    one.redis.kill();
    eventually("the store is gone", || {
        let health = one.server.get("/healthz").json();
        health["overrides"].get("failure").is_some()
    });
    advance(&one.server, HOUR);
    one.redis.restart();
    eventually("it is carried", || one.is_moved());
    eventually("the use is there when the store answers", || {
        one.server.get(YEARLY).json()["remaining"] == 4
    });
}
