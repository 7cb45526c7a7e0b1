//! Who asks: names that a stranger could own, and requests that a stranger's page sent.

use crate::harness::{Answer, Fixture, SHOP, send};

const ROUTES: [(&str, &str); 12] = [
    ("POST", "/v1/acquire"),
    ("POST", "/v1/peek"),
    ("POST", "/v1/reserve"),
    ("POST", "/v1/settle"),
    ("GET", "/v1/rules"),
    ("GET", "/v1/bans"),
    ("POST", "/v1/bans"),
    ("DELETE", "/v1/bans"),
    ("DELETE", "/v1/keys"),
    ("GET", "/healthz"),
    ("GET", "/metrics"),
    ("GET", "/nowhere"),
];

/// A page whose name was made to point here sends its name as the host, and reads the answers.
#[test]
fn a_name_that_was_made_to_point_here_is_refused_on_every_route() {
    let server = Fixture::new(SHOP, "allow_host = ['quell.internal']");
    let body = r#"{"domain":"shop","entries":{"path":"/login","user":"a"}}"#;
    let ask = |method: &str, path: &str, host: &str| {
        let request = format!(
            "{method} {path} HTTP/1.1\r\n{host}Content-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        Answer::read(&send(server.http(), request.as_bytes()))
    };
    for (method, path) in ROUTES {
        let evil = ask(method, path, "Host: evil.example:8080\r\n");
        evil.assert_problem(403, "--allow-host evil.example");
        for host in [
            "Host: 127.0.0.1:8080\r\n",
            "Host: localhost\r\n",
            "Host: quell.internal:80\r\n",
        ] {
            assert_ne!(ask(method, path, host).status, 403, "{path} {host}");
        }
        // The host that counts is one of the two; both have to be good.
        let absolute = format!("http://evil.example{path}");
        let evil = ask(method, &absolute, "Host: localhost\r\n");
        evil.assert_problem(403, "evil.example");
    }
    let allowed = server.metric("quell_queries_total{domain=\"shop\",outcome=\"allow\"}");
    assert_eq!(
        allowed.as_deref(),
        Some("6"),
        "acquired and reserved under three names, and under no other"
    );
}

/// Gateways pass on the site's host and what browsers say of its visitors, and say what it is about.
#[test]
fn a_gateway_may_pass_on_any_host_and_a_page_may_not_ask_in_its_place() {
    let server = Fixture::new(SHOP, "");
    let ask = |fields: &str| {
        let request = format!(
            "GET /v1/authorize?domain=shop HTTP/1.1\r\nHost: shop.example\r\n\
             Connection: close\r\n{fields}\r\n"
        );
        Answer::read(&send(server.http(), request.as_bytes()))
    };
    for site in ["cross-site", "same-site"] {
        let page = format!("Sec-Fetch-Site: {site}\r\n");
        ask(&page).assert_problem(403, "X-Original-URI or X-Forwarded-Uri");
        for uri in ["X-Original-URI: /", "X-Forwarded-Uri: /"] {
            assert_eq!(ask(&format!("{page}{uri}\r\n")).status, 204, "{uri}");
        }
    }
    for fields in [
        "",
        "Sec-Fetch-Site: same-origin\r\n",
        "Sec-Fetch-Site: none\r\n",
    ] {
        assert_eq!(ask(fields).status, 204, "{fields}");
    }
}
