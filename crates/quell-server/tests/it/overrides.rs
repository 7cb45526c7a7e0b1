//! Overrides of single keys: over HTTP, in every store, while rules change and time passes.

use std::time::Duration;

use quell_testkit::redis::Redis;
use serde_json::{Value, json};

use crate::harness::{Answer, Fixture, eventually, replace, store_settings};

mod addresses;
mod batch_checks;
mod followers;
mod later;
mod missing_plans;
mod plan_anchors;
mod servers;

const RULES: &str = "
domain: shop
plans:
  free: { other: { limit: 1/day } }
  gold: { api: { limit: 500/day } }
defaults: { on_failure: deny }
rules:
  - name: api
    match: { kind: api }
    per: [tenant]
    algorithm: fixed_window
    limit: 100/day
    align: calendar
    plan: { entry: plan }
    overrides: [{ when: { tenant: old }, limit: 50/day }]
  - { name: other, match: { kind: other }, per: [tenant], algorithm: fixed_window, limit: 10/day }
  - { name: pair, match: { kind: pair }, per: [tenant, user], rate: 10/s }
";

const ACME: &str = "/v1/overrides/shop/api?tenant=acme";

/// One call by a tenant.
fn call(server: &Fixture, kind: &str, tenant: &str, cost: u64) -> Value {
    let body = json!({"domain": "shop", "entries": {"kind": kind, "tenant": tenant}, "cost": cost});
    server
        .request("POST", "/v1/acquire", &body.to_string())
        .json()
}

fn put(server: &Fixture, target: &str, body: &Value) -> Answer {
    server.request("PUT", target, &body.to_string())
}

/// Writes an override, which is there and in force.
#[track_caller]
fn set(server: &Fixture, target: &str, body: &Value) -> Value {
    let answer = put(server, target, body);
    assert!([200, 201].contains(&answer.status), "{answer:?}");
    let record = answer.json();
    assert_eq!(record["in_force"], true, "{record}");
    record
}

fn batch(server: &Fixture, lines: &[Value]) -> Answer {
    let body: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let kind = "Content-Type: application/x-ndjson\r\n";
    server.request_with("POST", "/v1/overrides/batch?domain=shop", kind, &body)
}

/// The links of a chain: source, limit, and whether it decides.
fn links(key: &Value) -> Vec<(&str, &str, bool)> {
    let links = key["chain"].as_array().unwrap().iter();
    let text = |link: &'_ Value, name: &str| link[name].as_str().map(str::len);
    links
        .map(|link| {
            assert!(text(link, "source").is_some(), "{link}");
            let limit = link["limit"].as_str().unwrap_or_default();
            let source = link["source"].as_str().unwrap();
            (source, limit, link["in_force"].as_bool().unwrap())
        })
        .collect()
}

fn advance(server: &Fixture, time: Duration) {
    server.clock.as_ref().unwrap().advance(time);
}

const HOUR: Duration = Duration::from_secs(3_600);

#[test]
fn an_override_is_set_shown_replaced_and_deleted_and_use_stays() {
    let server = Fixture::with_clock(RULES, "");
    assert_eq!(call(&server, "api", "acme", 30)["remaining"], 70);
    let bare = server.get(ACME);
    assert_eq!((bare.status, bare.field("etag")), (200, None));
    let bare = bare.json();
    assert_eq!(
        (&bare["used"], &bare["remaining"]),
        (&json!(30), &json!(70))
    );
    assert_eq!(
        links(&bare),
        [("rule", "fixed_window 100 per calendar day in UTC", true)]
    );

    let new = put(
        &server,
        ACME,
        &json!({"limit": "200/day", "reason": "sale"}),
    );
    assert_eq!((new.status, new.field("etag")), (201, Some("\"1\"")));
    let at = "2023-11-14T22:13:20Z";
    assert_eq!(
        new.json(),
        json!({
            "domain": "shop", "rule": "api", "entries": {"tenant": "acme"}, "limit": "200/day",
            "reason": "sale", "by": "", "at": at, "revision": 1, "in_force": true,
        })
    );
    assert_eq!(call(&server, "api", "acme", 1)["remaining"], 169);
    assert_eq!(call(&server, "api", "other", 1)["remaining"], 99);

    let again = put(&server, ACME, &json!({"limit": 300}));
    assert_eq!((again.status, again.field("etag")), (200, Some("\"2\"")));
    let shown = server.get(ACME);
    assert_eq!(shown.field("etag"), Some("\"2\""));
    let shown = shown.json();
    assert_eq!(shown["overrides"], json!([again.json()]));
    assert_eq!(
        (&shown["used"], &shown["remaining"]),
        (&json!(31), &json!(269))
    );
    let limit = "fixed_window 300 per calendar day in UTC";
    assert_eq!(links(&shown)[1], ("override", limit, true));
    assert_eq!(
        (&shown["limit"], &shown["chain"][1]["revision"]),
        (&json!(limit), &json!(2))
    );

    let deleted = server.request("DELETE", ACME, "");
    assert_eq!(deleted.json(), json!({"deleted": 1, "revision": 3}));
    assert_eq!(call(&server, "api", "acme", 1)["remaining"], 68);
    let deleted = server.request("DELETE", ACME, "");
    assert_eq!(deleted.json(), json!({"deleted": 0, "revision": 3}));
    let page = server.get("/console").body;
    for line in [
        "override set: api tenant=acme",
        "override deleted: api tenant=acme",
    ] {
        assert!(page.contains(line), "{page}");
    }
}

#[test]
fn unlimited_refused_and_plans_are_numbers_too() {
    let server = Fixture::with_clock(RULES, "");
    call(&server, "api", "acme", 60);
    set(&server, ACME, &json!({"unlimited": true}));
    assert_eq!(call(&server, "api", "acme", 1_000)["allowed"], true);
    let shown = server.get(ACME).json();
    assert_eq!(
        (&shown["limit"], shown.get("used")),
        (&json!("unlimited"), None)
    );
    set(&server, ACME, &json!({"refuse": true}));
    let refused = call(&server, "api", "acme", 1);
    assert_eq!(
        (&refused["allowed"], &refused["permanent"]),
        (&json!(false), &json!(true))
    );
    assert_eq!(server.get(ACME).json()["limit"], "refused");
    set(&server, ACME, &json!({"plan": "gold"}));
    assert_eq!(call(&server, "api", "acme", 1)["remaining"], 439);
    let shown = server.get(ACME).json();
    assert_eq!(shown["chain"][1]["plan"], "gold");
    assert_eq!(shown["overrides"][0]["plan"], "gold");
    // A plan that has no numbers for the rule leaves it as it is.
    set(&server, ACME, &json!({"plan": "free"}));
    assert_eq!(call(&server, "api", "acme", 1)["remaining"], 38);
    let chain = server.get("/v1/overrides/shop/api?tenant=old").json();
    let day = "per calendar day in UTC";
    assert_eq!(
        links(&chain),
        [
            ("rule", &*format!("fixed_window 100 {day}"), false),
            ("override_of_file", &*format!("fixed_window 50 {day}"), true),
        ]
    );
    assert_eq!(chain["chain"][1]["when"], "tenant: old");
}

/// A tenant on a plan whose month begins on the day of its subscription.
#[test]
fn a_boost_goes_before_the_override_without_an_end_until_its_time_is_over() {
    let server = Fixture::with_clock(RULES, "");
    set(&server, ACME, &json!({"limit": "200/day"}));
    let boost = put(
        &server,
        ACME,
        &json!({"limit": "900/day", "from": "1h", "until": "3h"}),
    );
    assert_eq!(
        boost.status, 201,
        "another record of the same key: {boost:?}"
    );
    let boost = boost.json();
    assert_eq!(boost["in_force"], false, "its time is to come");
    assert_eq!(boost["until"], "2023-11-15T01:13:20Z");
    assert_eq!(call(&server, "other", "acme", 1)["remaining"], 9);
    assert_eq!(call(&server, "api", "acme", 1)["remaining"], 199);
    advance(&server, HOUR);
    assert_eq!(call(&server, "api", "acme", 1)["remaining"], 898);
    let shown = server.get(ACME).json();
    let decides: Vec<bool> = links(&shown).iter().map(|link| link.2).collect();
    assert_eq!(decides, [false, false, true]);
    assert_eq!(
        shown["overrides"][0]["in_force"], true,
        "its time is now too"
    );
    // Midnight is between: a new window, still boosted.
    advance(&server, HOUR);
    assert_eq!(call(&server, "api", "acme", 1)["remaining"], 899);
    advance(&server, HOUR);
    assert_eq!(call(&server, "api", "acme", 1)["remaining"], 198);
    let over = put(
        &server,
        ACME,
        &json!({"limit": 1, "until": "2023-11-14T22:13:20Z"}),
    );
    over.assert_problem(400, "write an instant in the future");
    let one = server
        .request("DELETE", &format!("{ACME}&which=boost"), "")
        .json();
    assert_eq!(one["deleted"], 1);
    assert_eq!(call(&server, "api", "acme", 1)["remaining"], 197);
}

#[test]
fn every_rule_whose_keys_have_these_entries_has_one_override() {
    let server = Fixture::with_clock(RULES, "");
    let star = "/v1/overrides/shop/*?tenant=acme";
    set(&server, star, &json!({"limit": "70/day"}));
    assert_eq!(call(&server, "api", "acme", 1)["remaining"], 69);
    assert_eq!(call(&server, "other", "acme", 1)["remaining"], 69);
    let shown = server.get(star).json();
    assert_eq!((&shown["rule"], shown.get("chain")), (&json!("*"), None));
    set(&server, ACME, &json!({"limit": "80/day"}));
    assert_eq!(
        call(&server, "api", "acme", 1)["remaining"],
        78,
        "that of the rule goes first"
    );
    assert_eq!(links(&server.get(ACME).json()).len(), 3);
    let none = put(
        &server,
        "/v1/overrides/shop/*?nobody=x",
        &json!({"limit": 1}),
    );
    none.assert_problem(404, "write those of one");
}

#[test]
fn a_change_keeps_what_was_used_or_divides_the_window_or_begins_anew() {
    let server = Fixture::with_clock(RULES, "");
    let target = |tenant: &str| format!("/v1/overrides/shop/api?tenant={tenant}");
    for tenant in ["a", "b", "c", "e"] {
        call(&server, "api", tenant, 40);
    }
    set(
        &server,
        &target("a"),
        &json!({"limit": "400/day", "change": "keep"}),
    );
    assert_eq!(call(&server, "api", "a", 1)["remaining"], 359);
    let prorated = set(
        &server,
        &target("b"),
        &json!({"limit": "400/day", "change": "prorate"}),
    );
    // 80,000 of 86,400 s at 100, and the rest at 400.
    assert_eq!(
        prorated["prorated"],
        json!({"limit": 123, "until": "2023-11-15T00:00:00Z"})
    );
    assert_eq!(call(&server, "api", "b", 1)["remaining"], 82);
    let of_plan = json!({"plan": "gold", "change": "prorate"});
    let prorated = set(&server, &target("e"), &of_plan);
    assert_eq!(prorated["prorated"]["limit"], 130);
    assert_eq!(call(&server, "api", "e", 1)["remaining"], 89);
    let shown = server.get(&target("e")).json();
    assert_eq!(
        links(&shown).last().unwrap().1,
        "fixed_window 130 per calendar day in UTC"
    );
    advance(&server, 2 * HOUR);
    assert_eq!(call(&server, "api", "b", 1)["remaining"], 399);
    assert_eq!(call(&server, "api", "e", 1)["remaining"], 499);
    call(&server, "api", "c", 40);
    set(
        &server,
        &target("c"),
        &json!({"limit": "400/day", "change": "restart"}),
    );
    assert_eq!(call(&server, "api", "c", 1)["remaining"], 399);
    // A limit that is a number alone, and ends before its window does.
    call(&server, "api", "d", 40);
    let short = json!({"limit": 400, "change": "prorate", "until": "1h"});
    set(&server, &target("d"), &short);
    assert_eq!(call(&server, "api", "d", 1)["decisions"][0]["limit"], 398);
    advance(&server, HOUR);
    assert_eq!(call(&server, "api", "d", 1)["decisions"][0]["limit"], 100);
    for (body, words) in [
        (
            json!({"unlimited": true, "change": "restart"}),
            "counts nothing",
        ),
        (
            json!({"limit": 5, "change": "prorate", "from": "1h"}),
            "leave `change` out",
        ),
        (
            json!({"unlimited": true, "change": "prorate"}),
            "only a limit",
        ),
    ] {
        put(&server, &target("a"), &body).assert_problem(400, words);
    }
}

#[test]
fn what_the_caller_saw_is_a_condition() {
    let server = Fixture::with_clock(RULES, "");
    let put = |field: &str, limit: u64| {
        let fields = format!("Content-Type: application/json\r\n{field}");
        server.request_with("PUT", ACME, &fields, &json!({"limit": limit}).to_string())
    };
    let none = put("If-Match: \"1\"\r\n", 1);
    none.assert_problem(412, "no such override");
    assert_eq!(none.json()["revision"], 0);
    assert_eq!(put("If-None-Match: *\r\n", 1).status, 201);
    let there = put("If-None-Match: *\r\n", 2);
    there.assert_problem(412, "If-Match: \"1\"");
    assert_eq!(there.json()["revision"], 1);
    assert_eq!(put("If-Match: \"1\"\r\n", 3).status, 200);
    put("If-Match: \"1\"\r\n", 4).assert_problem(412, "revision 2");
    put("If-Match: 2\r\n", 4).assert_problem(400, "write If-Match: \"7\"");
    let delete = |field: &str| server.request_with("DELETE", ACME, field, "");
    delete("If-Match: \"1\"\r\n").assert_problem(412, "revision 2");
    assert_eq!(delete("If-Match: \"2\"\r\n").json()["deleted"], 1);
}

#[test]
fn what_is_wrong_is_told_with_what_to_write() {
    let server = Fixture::with_clock(RULES, "");
    for (target, status, words) in [
        (
            "/v1/overrides/shop/nosuch?tenant=a",
            404,
            "no rule `nosuch`",
        ),
        ("/v1/overrides/bank/api?tenant=a", 404, "no domain `bank`"),
        (
            "/v1/overrides/shop/api?user=a",
            400,
            "has the entries tenant",
        ),
        ("/v1/overrides/shop/api", 400, "has the entries tenant"),
        ("/v1/overrides/shop/pair?tenant=a", 400, "tenant, user"),
        ("/v1/overrides/shop/api?tenant=a&tenant=b", 400, "each once"),
        (
            "/v1/overrides/shop/api?tenant=a&wait=1m",
            400,
            "at most 10 s",
        ),
        (
            "/v1/overrides/shop/api?tenant=a&which=boost",
            400,
            "`which` is no entry",
        ),
    ] {
        put(&server, target, &json!({"limit": 5})).assert_problem(status, words);
    }
    for (body, words) in [
        (json!({}), "the numbers are missing"),
        (json!({"limits": 5}), "did you mean `limit`"),
        (json!({"plan": "silver"}), "write one of free, gold"),
        (json!({"limit": 5, "until": "soon"}), "such as 2h"),
        (json!({"max": 5}), "max"),
        (json!({"limit": 5, "reason": "x".repeat(501)}), "500"),
        (json!([]), "write an object"),
    ] {
        put(&server, ACME, &body).assert_problem(400, words);
    }
    server
        .get("/v1/overrides/bank")
        .assert_problem(404, "no domain `bank`");
    server
        .get("/v1/overrides/shop?most=0")
        .assert_problem(400, "write 1 to 1000");
    server
        .get("/v1/overrides/shop?cursor=AA")
        .assert_problem(400, "cursor");
    server
        .get("/v1/overrides/shop?tenant=a")
        .assert_problem(400, "rule, plan, prefix");
    server
        .get("/v1/overrides/changes?since=x")
        .assert_problem(400, "since=x");
    assert_eq!(
        server.get("/v1/overrides/shop").json(),
        json!({"overrides": [], "next": null})
    );
}

#[test]
fn there_are_no_more_overrides_than_the_server_allows() {
    let server = Fixture::with_clock(RULES, "max_overrides = 2");
    let target = |tenant: &str| format!("/v1/overrides/shop/api?tenant={tenant}");
    for tenant in ["a", "b"] {
        set(&server, &target(tenant), &json!({"limit": 5}));
    }
    let full = put(&server, &target("c"), &json!({"limit": 5}));
    full.assert_problem(507, "there would be 3 overrides, and the server allows 2");
    full.assert_problem(507, "--max-overrides");
    set(&server, &target("b"), &json!({"limit": 6}));
    let line = |tenant: &str| json!({"rule": "api", "entries": {"tenant": tenant}, "limit": 9});
    let whole = batch(&server, &[line("a"), line("c"), line("d")]);
    whole.assert_problem(507, "there would be 4");
    assert_eq!(call(&server, "api", "a", 1)["remaining"], 4);
    let mut gone = line("a");
    gone["delete"] = json!(true);
    assert_eq!(batch(&server, &[line("c"), gone]).json()["changed"], 2);
    assert_eq!(call(&server, "api", "c", 1)["remaining"], 8);
    put(&server, &target("a"), &json!({"limit": 5})).assert_problem(507, "allows 2");
}

/// An export of yesterday can be sent as a whole.
#[test]
fn lines_whose_time_is_over_are_passed_over_on_request() {
    let server = Fixture::with_clock(RULES, "");
    let line = |tenant: &str, until: &str| json!({"rule": "api", "entries": {"tenant": tenant}, "limit": 9, "until": until});
    let lines = [
        line("a", "2023-11-14T22:13:20Z"),
        line("b", "1h"),
        line("c", "2023-11-01T00:00:00Z"),
    ];
    let strict = batch(&server, &lines);
    strict.assert_problem(422, "line 1: `until` is over");
    let send = |ended: &str, lines: &[Value]| {
        let body: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let kind = "Content-Type: application/x-ndjson\r\n";
        let target = format!("/v1/overrides/batch?domain=shop&ended={ended}");
        server.request_with("POST", &target, kind, &body)
    };
    send("refuse", &lines).assert_problem(422, "line 1");
    send("drop", &lines).assert_problem(400, "write skip or refuse");
    let made = send("skip", &lines).json();
    assert_eq!((&made["changed"], &made["skipped"]), (&json!(1), &json!(2)));
    assert_eq!(call(&server, "api", "b", 1)["remaining"], 8);
    // What is wrong is told all the same.
    let wrong = [line("a", "2023-11-01T00:00:00Z"), line("b", "soon")];
    send("skip", &wrong).assert_problem(422, "line 2");
    let none = send("skip", &lines[..1]).json();
    assert_eq!(
        (&none["changed"], &none["revision"]),
        (&json!(0), &json!(1))
    );
}

#[test]
fn a_batch_is_made_whole_or_not_at_all() {
    let server = Fixture::with_clock(RULES, "");
    let line = |tenant: &str, limit: Value| json!({"rule": "api", "entries": {"tenant": tenant}, "limit": limit});
    let wrong = batch(
        &server,
        &[
            line("a", json!(5)),
            line("b", json!("many")),
            json!({"entries": {}, "limit": 5}),
            json!({"rule": "api", "entries": {"tenant": "c"}, "domain": "bank", "limit": 5}),
            line("a", json!(6)),
        ],
    );
    wrong.assert_problem(422, "line 2");
    let errors = wrong.json()["errors"].clone();
    let lines: Vec<u64> = { errors.as_array().unwrap().iter() }
        .map(|error| error["line"].as_u64().unwrap())
        .collect();
    assert_eq!(lines, [2, 3, 4, 5], "{errors}");
    assert_eq!(server.metric("quell_overrides").as_deref(), Some("0"));

    let made = batch(
        &server,
        &[
            line("a", json!(5)),
            json!({"rule": "*", "entries": {"tenant": "b"}, "refuse": true}),
        ],
    );
    assert_eq!(
        made.json(),
        json!({"changed": 2, "skipped": 0, "revision": 2, "in_force": true})
    );
    assert_eq!(call(&server, "api", "a", 1)["remaining"], 4);
    assert_eq!(call(&server, "other", "b", 1)["allowed"], false);

    // What is listed can be sent back, and what changed meanwhile is a conflict.
    let listed = server.get("/v1/overrides/shop").json()["overrides"].clone();
    let listed = listed.as_array().unwrap().clone();
    assert_eq!(batch(&server, &listed).json()["changed"], 2);
    let conflict = batch(&server, &[line("new", json!(1)), listed[0].clone()]);
    conflict.assert_problem(412, "line 2");
    let conflict = conflict.json();
    assert_eq!(conflict["errors"][0]["line"], 2);
    assert!(conflict["revision"].as_u64().unwrap() > 2, "{conflict}");
    assert_eq!(
        server.get("/v1/overrides/shop?prefix=new").json()["overrides"],
        json!([])
    );

    let mut gone = json!({"rule": "api", "entries": {"tenant": "a"}, "delete": true});
    assert_eq!(
        batch(&server, std::slice::from_ref(&gone)).json()["changed"],
        1
    );
    assert_eq!(
        batch(&server, std::slice::from_ref(&gone)).json()["changed"],
        0
    );
    gone["which"] = json!("neither");
    batch(&server, &[gone]).assert_problem(422, "write boost");
    let kind = "Content-Type: application/json\r\n";
    let target = "/v1/overrides/batch?domain=shop";
    let json = server.request_with("POST", target, kind, "{}");
    json.assert_problem(415, "application/x-ndjson");
    let target = "/v1/overrides/batch";
    server
        .request("POST", target, "")
        .assert_problem(400, "?domain=NAME");
    let page = server.get("/console").body;
    assert!(
        page.contains("batch of overrides: 2 set, 0 deleted"),
        "{page}"
    );
}

#[test]
fn a_list_goes_on_where_the_page_before_ended() {
    let server = Fixture::with_clock(RULES, "");
    let tenants: Vec<String> = (0..25).map(|number| format!("t{number:02}")).collect();
    let lines: Vec<Value> = { tenants.iter() }
        .map(|tenant| {
            let plan = if tenant.ends_with('7') {
                "gold"
            } else {
                "free"
            };
            json!({"rule": "api", "entries": {"tenant": tenant}, "plan": plan})
        })
        .collect();
    batch(&server, &lines);
    let all = |parameters: &str| {
        let (mut tenants, mut cursor) = (Vec::new(), String::new());
        loop {
            let target = format!("/v1/overrides/shop?most=10{parameters}{cursor}");
            let page = server.get(&target).json();
            let overrides = page["overrides"].as_array().unwrap().clone();
            assert!(overrides.len() <= 10);
            let named = overrides
                .iter()
                .map(|one| one["entries"]["tenant"].as_str().unwrap().to_owned());
            tenants.extend(named);
            match page["next"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        tenants.sort_unstable();
        tenants
    };
    assert_eq!(all(""), tenants);
    assert_eq!(all("&plan=gold"), ["t07", "t17"]);
    assert_eq!(all("&prefix=t2").len(), 5);
    assert_eq!(all("&rule=api").len(), 25);
    assert_eq!(all("&rule=*").len(), 0);
    assert_eq!(server.metric("quell_overrides").as_deref(), Some("25"));
    assert_eq!(
        server.metric("quell_overrides_revision").as_deref(),
        Some("25")
    );
}

const KEPT: &str = "data_dir = 'DIR/data'\nsnapshot_interval = '1h'";

/// What was acknowledged is there after a crash.
#[test]
fn overrides_survive_a_crash() {
    let mut server = Fixture::with_clock(RULES, KEPT);
    let record = set(
        &server,
        ACME,
        &json!({"limit": "200/day", "reason": "contract"}),
    );
    server.kill();
    server.start().unwrap();
    assert_eq!(call(&server, "api", "acme", 1)["remaining"], 199);
    assert_eq!(server.get(ACME).json()["overrides"], json!([record]));
    let next = set(&server, ACME, &json!({"limit": "300/day"}));
    assert!(next["revision"].as_u64() > record["revision"].as_u64());
}

/// After a restart the use of keys with different numbers counts until their own windows end, also if nobody calls
/// meanwhile. It is 22:13.
#[test]
fn use_under_overrides_survives_a_restart() {
    let mut server = Fixture::with_clock(RULES, KEPT);
    let tenants = [("a", "22:45"), ("b", "23:00"), ("c", "23:15")];
    let named = |tenant: &str| format!("/v1/overrides/shop/api?tenant={tenant}");
    for (tenant, anchor) in tenants {
        let body = json!({"limit": "200/day", "anchor": anchor});
        set(&server, &named(tenant), &body);
        call(&server, "api", tenant, 150);
    }
    server.stop();
    server.start().unwrap();
    for (minutes, tenant) in [(35, "a"), (15, "b"), (15, "c")] {
        advance(&server, Duration::from_secs(60 * minutes));
        let first = call(&server, "api", tenant, 1);
        assert_eq!(first["remaining"], 199, "{tenant}");
    }
}

#[test]
fn servers_that_share_a_store_have_the_same_overrides() {
    let redis = Redis::start(&[]);
    let store = store_settings(&redis);
    let (one, other) = (Fixture::new(RULES, &store), Fixture::new(RULES, &store));
    let limit = |server: &Fixture| {
        server.get(ACME).json()["limit"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    set(
        &one,
        &format!("{ACME}&wait=10s"),
        &json!({"limit": "200/day"}),
    );
    eventually("the other server has it", || limit(&other).contains("200"));
    assert_eq!(call(&other, "api", "acme", 50)["remaining"], 150);
    assert_eq!(call(&one, "api", "acme", 1)["remaining"], 149);
    set(
        &other,
        &format!("{ACME}&wait=10s"),
        &json!({"limit": "500/day", "change": "restart"}),
    );
    eventually("the first server has it", || limit(&one).contains("500"));
    assert_eq!(call(&one, "api", "acme", 1)["remaining"], 499);
    // A server that comes later has all of them before it answers.
    let third = Fixture::new(RULES, &store);
    assert_eq!(call(&third, "api", "acme", 1)["remaining"], 498);
}

/// It keeps what it has, says so, and lists what it missed.
#[test]
fn a_server_without_its_store_goes_on_with_what_it_has() {
    let mut redis = Redis::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let server = Fixture::new(RULES, &format!("store = '{}'", redis.url()));
    set(
        &server,
        &format!("{ACME}&wait=10s"),
        &json!({"unlimited": true}),
    );
    redis.kill();
    eventually("health says so", || {
        let health = server.get("/healthz").json();
        health["overrides"]["failure"]["reasons"][0].is_string()
    });
    assert_eq!(server.get("/readyz").status, 200);
    assert_eq!(call(&server, "api", "acme", 1_000)["allowed"], true);
    let answer = put(&server, ACME, &json!({"limit": 5}));
    assert!([503, 504].contains(&answer.status), "{answer:?}");
    let behind = server.metric("quell_overrides_behind_seconds").unwrap();
    assert_ne!(behind, "0.000000000");
    redis.restart();
    eventually("it follows again", || {
        let health = server.get("/healthz").json();
        health["overrides"].get("failure").is_none()
    });
    eventually("it writes again", || {
        put(&server, ACME, &json!({"limit": "200/day"})).status == 200
    });
}

#[test]
fn a_reload_keeps_overrides_where_they_go_with_the_rules() {
    let server = Fixture::with_clock(RULES, "");
    set(&server, ACME, &json!({"limit": "200/day"}));
    set(
        &server,
        "/v1/overrides/shop/other?tenant=acme",
        &json!({"limit": 20}),
    );
    call(&server, "api", "acme", 50);
    call(&server, "other", "acme", 5);
    let file = server.path("rules.yaml");
    let reload = |text: &str| {
        replace(&file, text);
        assert!(server.reload());
    };
    // Fields that the override leaves out are the rule's.
    reload(&RULES.replace("limit: 10/day", "limit: 10/h"));
    let other = call(&server, "other", "acme", 1);
    assert_eq!(other["decisions"][0]["limit"], 20, "{other}");
    // Other keys: the override is of none.
    let pairs = RULES.replacen("per: [tenant]\n", "per: [tenant, user]\n", 1);
    reload(&pairs);
    let body = r#"{"domain":"shop","entries":{"kind":"api","tenant":"acme","user":"u"}}"#;
    let pair = server.request("POST", "/v1/acquire", body).json();
    assert_eq!(pair["remaining"], 99);
    let listed = server.get("/v1/overrides/shop?rule=api").json();
    assert_eq!(listed["overrides"][0]["in_force"], false, "{listed}");
    put(&server, ACME, &json!({"limit": 5})).assert_problem(400, "tenant, user");
    set(
        &server,
        &format!("{ACME}&user=u"),
        &json!({"limit": "700/day"}),
    );
    let pair = server.request("POST", "/v1/acquire", body).json();
    assert_eq!(pair["remaining"], 698);
    // The old keys again, with what they used.
    reload(RULES);
    eventually("the override is listed again", || {
        server.get(ACME).json()["limit"]
            .as_str()
            .is_some_and(|limit| limit.contains("200"))
            && call(&server, "api", "acme", 1)["decisions"][0]["limit"] == 200
    });
    // A rule that is gone leaves overrides that can be deleted.
    reload("{domain: shop, rules: []}");
    assert_eq!(server.get(ACME).json()["overrides"][0]["in_force"], false);
    assert_eq!(server.request("DELETE", ACME, "").json()["deleted"], 1);
    server.get(ACME).assert_problem(404, "no rule `api`");
}

/// Unknown plans count by rule, however many names there are.
#[test]
fn plans_that_there_are_not_are_counted() {
    let server = Fixture::with_clock(RULES, "");
    for plan in ["silver", "bronze", "gold", "free"] {
        let entries = json!({"kind": "api", "tenant": "a", "plan": plan});
        let body = json!({"domain": "shop", "entries": entries}).to_string();
        server.request("POST", "/v1/acquire", &body);
        server.request("POST", "/v1/peek", &body);
    }
    let series = "quell_unknown_plans_total{domain=\"shop\",rule=\"api\"}";
    assert_eq!(server.metric(series).as_deref(), Some("2"));
    set(&server, ACME, &json!({"limit": "200/day"}));
    call(&server, "api", "acme", 1);
    let allowed = "quell_decisions_total{domain=\"shop\",rule=\"api\",outcome=\"allow\"}";
    assert_eq!(
        server.metric(allowed).as_deref(),
        Some("5"),
        "under stored numbers too"
    );
}
