//! `/v1/authorize`: the requests of gateways.

use crate::harness::{Fixture, SHOP};

const ALICE: &str = "X-Original-URI: /strict?x=1\r\nX-Quell-Entry-User: alice\r\n";

#[test]
fn no_content_has_no_length() {
    let server = Fixture::new(SHOP, "");
    for method in ["GET", "HEAD", "POST"] {
        let answer = server.request(method, "/v1/authorize?domain=shop", "");
        assert_eq!((answer.status, &*answer.body), (204, ""), "{method}");
        assert_eq!(answer.field("content-length"), None, "{method}: {answer:?}");
        assert_eq!(answer.field("transfer-encoding"), None, "{method}");
    }
}

#[test]
fn a_gateway_is_told_yes_or_no() {
    let server = Fixture::with_clock(SHOP, "");
    let ask = |target: &str| server.request_with("GET", target, ALICE, "");
    let yes = ask("/v1/authorize?domain=shop");
    assert_eq!(yes.status, 204, "{yes:?}");
    assert_eq!(yes.field("ratelimit-policy"), Some("\"strict\";q=1;w=60"));
    assert_eq!(yes.field("ratelimit"), Some("\"strict\";r=0;t=60"));
    assert_eq!(yes.field("x-ratelimit-limit"), None);
    let no = ask("/v1/authorize?domain=shop");
    no.assert_problem(429, "Too many requests");
    assert_eq!(no.field("retry-after"), Some("60"));
    assert_eq!(no.json()["violated-policies"][0], "strict");
    // The domain may be omitted while there is only one; and some gateways know only 403.
    ask("/v1/authorize?deny_status=403").assert_problem(403, "Too many refusals");
}

/// Envoy's `ext_authz` takes 204 for a refusal.
#[test]
fn a_gateway_may_want_200_for_a_yes() {
    let server = Fixture::with_clock(SHOP, "");
    let ask = |target: &str| server.request_with("GET", target, ALICE, "");
    let yes = ask("/v1/authorize?allow_status=200");
    assert_eq!((yes.status, &*yes.body), (200, ""));
    assert_eq!(yes.field("content-length"), Some("0"));
    assert_eq!(yes.field("ratelimit"), Some("\"strict\";r=0;t=60"));
    ask("/v1/authorize?allow_status=200").assert_problem(429, "Too many requests");
    let other = server.get("/v1/authorize?domain=shop&allow_status=204");
    assert_eq!(other.status, 204);
}

/// docs/decisions/0181
#[test]
fn a_rule_says_status_and_body_and_the_gateway_has_the_last_word_on_the_status() {
    let rules = "
domain: edge
rules:
  - { name: page, match: { path: /page }, rate: 1/h, status: 403, body: '<b>no</b>', body_type: text/html }
  - { name: text, match: { path: /text }, rate: 1/h, body: slow down }
  - { name: status, match: { path: /status }, rate: 1/h, status: 503 }
  - { name: never, match: { path: /never }, rate: 1/h, cost: 2, status: 503 }
";
    let server = Fixture::with_clock(rules, "");
    let ask = |path: &str, target: &str| {
        let fields = format!("X-Original-URI: {path}\r\n");
        server.request_with("GET", target, &fields, "")
    };
    for path in ["/page", "/text", "/status"] {
        assert_eq!(ask(path, "/v1/authorize").status, 204);
    }
    let no = ask("/page", "/v1/authorize");
    assert_eq!((no.status, &*no.body), (403, "<b>no</b>"));
    assert_eq!(no.field("content-type"), Some("text/html"));
    assert_eq!(no.field("retry-after"), Some("3600"));
    assert!(no.field("ratelimit").is_some());
    assert_eq!(ask("/page", "/v1/authorize?deny_status=401").status, 401);
    let no = ask("/text", "/v1/authorize");
    assert_eq!((no.status, &*no.body), (429, "slow down"));
    assert_eq!(no.field("content-type"), Some("text/plain; charset=utf-8"));
    ask("/status", "/v1/authorize").assert_problem(503, "Too many requests");
    assert_eq!(
        ask("/status", "/v1/authorize").field("retry-after"),
        Some("3600")
    );
    let never = ask("/never", "/v1/authorize");
    assert_eq!((never.status, never.field("retry-after")), (503, None));

    // A question about a limit is answered with a verdict, whatever end users get.
    let body = r#"{"domain":"edge","entries":{"path":"/page"}}"#;
    let verdict = server.request("POST", "/v1/acquire", body);
    assert_eq!(
        (verdict.status, &verdict.json()["allowed"]),
        (200, &serde_json::json!(false))
    );
    let rules = server.get("/v1/rules").json();
    let page = &rules["domains"][0]["rules"][0];
    assert_eq!(
        (&page["status"], &page["body_type"]),
        (&403.into(), &"text/html".into())
    );
}

#[test]
fn any_method_and_the_connections_own_address() {
    let rules = "
domain: edge
rules: [{ name: per-address, match: { remote_address: 127.0.0.0/8 }, per: [remote_address], rate: 1/h }]
";
    let server = Fixture::new(rules, "x_rate_limit_headers = true");
    let first = server.request_with("PUT", "/v1/authorize", "", "");
    assert_eq!(first.status, 204);
    assert_eq!(first.field("x-ratelimit-limit"), Some("1"));
    assert_eq!(first.field("x-ratelimit-remaining"), Some("0"));
    assert_eq!(
        server.request_with("PATCH", "/v1/authorize", "", "").status,
        429
    );
    let other = "X-Forwarded-For: 10.0.0.1, 127.0.0.2\r\n";
    assert_eq!(
        server
            .request_with("GET", "/v1/authorize", other, "")
            .status,
        204
    );
}

#[test]
fn mistakes_say_what_to_write() {
    let server = Fixture::new(SHOP, "");
    let get = |target: &str| server.get(target);
    get("/v1/authorize?domain=nosuch").assert_problem(404, "write one of shop");
    let known = "write domain, allow_status and deny_status";
    get("/v1/authorize?dommain=shop").assert_problem(400, known);
    get("/v1/authorize?allow_status=202").assert_problem(400, "write 200 or 204");
    get("/v1/authorize?deny_status=200").assert_problem(400, "write 400 to 599");
    let twice = "X-Original-URI: /a\r\nX-Forwarded-Uri: /b\r\n";
    let answer = server.request_with("GET", "/v1/authorize", twice, "");
    answer.assert_problem(400, "differ");
}

#[test]
fn the_headers_that_count_can_be_chosen() {
    let settings = "
[authorize]
gateway = 'forwarded'
prefix = ''
entries = [{ entry = 'user', headers = ['X-User'] }]
";
    let server = Fixture::new(SHOP, settings);
    let ask = |fields: &str| {
        server
            .request_with("GET", "/v1/authorize", fields, "")
            .status
    };
    let strict = "X-Forwarded-Uri: /strict\r\nX-User: bob\r\n";
    assert_eq!((ask(strict), ask(strict)), (204, 429));
    // Headers that are not mapped make no entries, so no rule applies.
    assert_eq!((ask(ALICE), ask(ALICE)), (204, 204));
}

/// Four callers behind a proxy whose address the gateway appends are four keys.
#[test]
fn callers_behind_trusted_proxies_have_keys_of_their_own() {
    let rules = "{domain: edge, rules: [{name: per-address, per: [remote_address], algorithm: fixed_window, limit: 3/h}]}";
    let settings =
        "authorize = { gateway = 'forwarded', trusted_proxies = ['10.0.0.0/8', '2001:db8::1'] }";
    let server = Fixture::new(rules, settings);
    let ask = |fields: &str| {
        let answer = server.request_with("GET", "/v1/authorize", fields, "");
        answer.status
    };
    for caller in 1..=4 {
        let chain = format!("X-Forwarded-For: 203.0.113.{caller}, 10.1.2.3\r\n");
        assert_eq!(
            [(); 4].map(|()| ask(&chain)),
            [204, 204, 204, 429],
            "{caller}"
        );
        // What the caller writes itself comes first, or in a line of its own.
        for lie in ["1.1.1.1", "10.9.9.9", "\"", "unknown", "::ffff:1.1.1.1"] {
            let chain = format!("X-Forwarded-For: {lie}, 203.0.113.{caller}, 2001:db8::1\r\n");
            assert_eq!(ask(&chain), 429, "{chain}");
            let lines = format!(
                "X-Forwarded-For: {lie}\r\nForwarded: for={lie}\r\nX-Real-IP: {lie}\r\nX-Forwarded-For: 203.0.113.{caller}:99, [2001:db8::1]:5\r\n"
            );
            assert_eq!(ask(&lines), 429, "{lines}");
        }
    }
}

#[test]
fn callers_behind_so_many_hops_have_keys_of_their_own() {
    let rules = "{domain: edge, rules: [{name: per-address, per: [remote_address], algorithm: fixed_window, limit: 1/h}]}";
    let server = Fixture::new(rules, "authorize = { gateway = 'forwarded', hops = 1 }");
    let ask = |chain: &str| {
        let fields = format!("X-Forwarded-For: {chain}\r\n");
        server
            .request_with("GET", "/v1/authorize", &fields, "")
            .status
    };
    assert_eq!(ask("1.1.1.1, 203.0.113.1, 198.51.100.1"), 204);
    assert_eq!(ask("2.2.2.2, 203.0.113.1, 198.51.100.2"), 429);
    assert_eq!(ask("1.1.1.1, 203.0.113.2, 198.51.100.1"), 204);
}

#[test]
fn an_empty_entry_is_a_missing_one_unless_the_rule_keeps_it() {
    let rules = "
domain: edge
rules:
  - name: per-key
    match: { path: /keyed }
    per: [api_key]
    on_missing: shared_key
    algorithm: fixed_window
    limit: 1/h
    overrides: [{ when: { api_key: \"*\" }, unlimited: true }]
  - { name: kept, match: { path: /kept }, per: [api_key], empty: keep, algorithm: fixed_window, limit: 1/h }
";
    let server = Fixture::new(rules, "");
    let ask = |path: &str, key: &str| {
        let fields = format!("X-Original-URI: {path}\r\n{key}");
        server
            .request_with("GET", "/v1/authorize", &fields, "")
            .status
    };
    let empty = "X-Quell-Entry-Api_Key:\r\n";
    assert_eq!([ask("/keyed", empty), ask("/keyed", empty)], [204, 429]);
    assert_eq!(ask("/keyed", ""), 429, "with those that send no header");
    assert_eq!(ask("/keyed", "X-Quell-Entry-Api_Key: a\r\n"), 204);
    assert_eq!([ask("/kept", empty), ask("/kept", empty)], [204, 429]);
    assert_eq!([ask("/kept", ""), ask("/kept", "")], [204, 204]);
}

/// A gateway would hold five permits for a minute each, and let a delayed call go at once.
#[test]
fn what_a_gateway_cannot_do_is_refused_and_nothing_is_charged() {
    let rules = "
domain: edge
rules:
  - { name: all, algorithm: fixed_window, limit: 100/h }
  - { name: exports, match: { path: /export }, algorithm: concurrency, max: 5 }
  - { name: checkout, match: { path: /checkout }, algorithm: leaky_bucket, rate: 2/s, burst: 5 }
  - { name: policed, match: { path: /police }, algorithm: leaky_bucket, rate: 2/s, burst: 5, delay_after: burst }
  - { name: trial, match: { path: /trial }, algorithm: concurrency, max: 5, shadow: true }
  - name: batch
    match: { path: /batch }
    algorithm: leaky_bucket
    rate: 9/s
    burst: 5
    delay_after: burst
    overrides: [{ when: { method: PUT }, rate: 2/s, delay_after: 0 }]
";
    let server = Fixture::new(rules, "");
    let ask = |path: &str, more: &str| {
        let fields = format!("X-Original-URI: {path}\r\n{more}");
        server.request_with("GET", "/v1/authorize?deny_status=403", &fields, "")
    };
    ask("/export", "").assert_problem(501, "/v1/release");
    ask("/checkout", "").assert_problem(501, "`delay_after: burst`");
    ask("/batch", "X-Original-Method: PUT\r\n").assert_problem(501, "rule `batch`");
    for (path, left) in [("/police", 99), ("/trial", 98), ("/batch", 97), ("/", 96)] {
        let yes = ask(path, "");
        assert_eq!(yes.status, 204, "{path}: {yes:?}");
        let fields = yes.field("ratelimit").unwrap();
        assert!(fields.contains(&format!("\"all\";r={left};")), "{fields}");
    }
}
