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
    get("/v1/authorize?dommain=shop").assert_problem(400, "write domain and deny_status");
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
