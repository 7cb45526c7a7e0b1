//! The origin of requests: host names that a stranger could own, and requests that a stranger's page
//! made a browser send.

use crate::harness::{Answer, Fixture, SHOP, send};

const ROUTES: [(&str, &str); 29] = [
    ("POST", "/v1/acquire"),
    ("POST", "/v1/peek"),
    ("POST", "/v1/reserve"),
    ("POST", "/v1/settle"),
    ("POST", "/v1/cancel"),
    ("POST", "/v1/release"),
    ("POST", "/v1/renew"),
    ("GET", "/v1/rules"),
    ("GET", "/v1/bans"),
    ("POST", "/v1/bans"),
    ("DELETE", "/v1/bans"),
    ("DELETE", "/v1/keys"),
    ("POST", "/v1/holds"),
    ("GET", "/v1/top"),
    ("GET", "/v1/candidate"),
    ("POST", "/v1/candidate"),
    ("DELETE", "/v1/candidate"),
    ("POST", "/v1/overrides/batch"),
    ("GET", "/v1/overrides/changes?since=0"),
    ("GET", "/v1/overrides/{domain}"),
    ("GET", "/v1/overrides/{domain}/{rule}"),
    ("PUT", "/v1/overrides/{domain}/{rule}"),
    ("DELETE", "/v1/overrides/{domain}/{rule}"),
    ("GET", "/healthz"),
    ("GET", "/readyz"),
    ("GET", "/metrics"),
    ("GET", "/openapi.json"),
    ("GET", "/console"),
    ("GET", "/nowhere"),
];

#[test]
fn no_route_is_forgotten_here() {
    let routes = include_str!("../../src/http.rs");
    let (_, routes) = routes.split_once("Router::new()").unwrap();
    let all = routes.split('"').filter(|text| text.starts_with('/'));
    let tested = |path: &&str| {
        ROUTES
            .iter()
            .any(|(_, route)| route.split('?').next() == Some(path))
    };
    let missing: Vec<&str> = all
        .filter(|path| *path != "/v1/authorize" && !tested(path))
        .collect();
    assert_eq!(missing, [""; 0]);
}

/// A page whose name was made to resolve to this server sends that name as the host, and reads the
/// answers.
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
        // Either of the two may be the host that counts, so both have to be allowed.
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

#[test]
fn such_a_name_is_refused_by_the_listener_for_administration() {
    let server = Fixture::new(SHOP, "admin = '127.0.0.1:0'");
    for (method, path) in ROUTES {
        let ask = |host: &str| {
            let request = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
            Answer::read(&send(server.admin(), request.as_bytes()))
        };
        ask("evil.example:8080").assert_problem(403, "--allow-host evil.example");
        assert_ne!(ask("localhost").status, 403, "{path}");
    }
}

/// Gateways pass on the site's host and the browser's headers, and add headers of their own.
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
    // A request under the site's own name needs the gateway's headers, whatever a browser sends.
    for fields in [
        "",
        "Sec-Fetch-Site: same-origin\r\n",
        "Sec-Fetch-Site: none\r\n",
    ] {
        ask(fields).assert_problem(403, "X-Original-URI or X-Forwarded-Uri");
        assert_eq!(
            ask(&format!("{fields}X-Original-URI: /\r\n")).status,
            204,
            "{fields}"
        );
    }
}

/// A page whose name resolves to this server sends that name with this listener's port. A gateway that
/// uses such a name must be allowed by name, or use an address.
#[test]
fn a_gateway_may_name_this_server_as_no_page_can() {
    let server = Fixture::new(SHOP, "allow_host = ['quell.internal']");
    let port = server.http().port();
    for (host, status) in [
        (format!("127.0.0.1:{port}"), 204),
        (format!("localhost:{port}"), 204),
        (format!("quell:{port}"), 204),
        (format!("quell.internal:{port}"), 204),
        ("shop.example".to_owned(), 204),
        ("shop.example:1".to_owned(), 204),
        (format!("shop.example:{port}"), 403),
        (format!("shop.example.:{port}"), 403),
    ] {
        let request = format!(
            "GET /v1/authorize?domain=shop HTTP/1.1\r\nHost: {host}\r\nX-Original-URI: /\r\n\
             Connection: close\r\n\r\n"
        );
        let answer = Answer::read(&send(server.http(), request.as_bytes()));
        assert_eq!(answer.status, status, "{host}: {answer:?}");
    }
}

/// The headers of every request of a browser.
const CHROMIUM: &str = "Connection: keep-alive\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64) \
    AppleWebKit/537.36 (KHTML, like Gecko) HeadlessChrome/156.0.0.0 Safari/537.36\r\n\
    Accept-Encoding: gzip, deflate\r\nAccept-Language: en-US,en;q=0.9\r\n";

const IMAGE: &str =
    "Accept: image/jxl,image/avif,image/webp,image/apng,image/svg+xml,image/*,*/*;q=0.8";
const NAVIGATION: &str = "Cache-Control: max-age=0\r\nUpgrade-Insecure-Requests: 1\r\nAccept: text/html,\
    application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
const FORM: &str = "multipart/form-data; boundary=----WebKitFormBoundarycImoMAeUEgHS4wcU";

/// A request that a page makes a browser send: a method, a path, and headers besides [`CHROMIUM`].
type Sent = (&'static str, &'static str, &'static [&'static str]);

/// Requests that any page may make a browser send without a preflight: `fetch` with `no-cors`, beacons,
/// images, scripts, frames, forms, sockets. Chromium 156 sends no type at all for a typeless `Blob`.
const UNASKED: [Sent; 18] = [
    ("GET", "/v1/bans", &["Accept: */*"]),
    ("GET", "/metrics", &["Accept: */*"]),
    ("GET", "/v1/bans", &[IMAGE]),
    ("GET", "/v1/bans", &[NAVIGATION]),
    (
        "GET",
        "/v1/bans",
        &[
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: dFVoLXn+xXvWgGWB6U9Pcg==",
        ],
    ),
    ("POST", "/v1/bans", &["Accept: */*", ORIGIN]),
    (
        "POST",
        "/v1/bans",
        &["Accept: */*", ORIGIN, "Content-Type: text/plain"],
    ),
    (
        "POST",
        "/v1/bans",
        &[
            "Accept: */*",
            ORIGIN,
            "Content-Type: text/plain;charset=UTF-8",
        ],
    ),
    (
        "POST",
        "/v1/bans",
        &[NAVIGATION, ORIGIN, "Content-Type: text/plain"],
    ),
    (
        "POST",
        "/v1/bans",
        &[
            NAVIGATION,
            ORIGIN,
            "Content-Type: application/x-www-form-urlencoded",
        ],
    ),
    (
        "POST",
        "/v1/bans",
        &[NAVIGATION, ORIGIN, "Content-Type: ", FORM],
    ),
    (
        "POST",
        "/v1/acquire",
        &[
            "Accept: */*",
            ORIGIN,
            "Content-Type: text/plain;charset=UTF-8",
        ],
    ),
    ("POST", "/v1/acquire", &["Accept: */*", ORIGIN]),
    ("GET", "/v1/authorize?domain=shop", &["Accept: */*"]),
    ("GET", "/v1/authorize?domain=shop", &[IMAGE]),
    (
        "POST",
        "/v1/authorize?domain=shop",
        &[
            "Accept: */*",
            ORIGIN,
            "Content-Type: text/plain;charset=UTF-8",
        ],
    ),
    (
        "POST",
        "/v1/authorize?domain=shop",
        &[NAVIGATION, ORIGIN, "Content-Type: text/plain"],
    ),
    (
        "OPTIONS",
        "/v1/authorize?domain=shop",
        &[
            "Accept: */*",
            ORIGIN,
            "Access-Control-Request-Method: GET",
            "Access-Control-Request-Headers: x-original-uri,x-quell-entry-user",
        ],
    ),
];

/// Requests that need a preflight, unless the page is of the same origin: then they are sent right away.
const ASKED: [Sent; 6] = [
    (
        "POST",
        "/v1/bans",
        &["Accept: */*", ORIGIN, "Content-Type: application/json"],
    ),
    (
        "DELETE",
        "/v1/bans",
        &["Accept: */*", ORIGIN, "Content-Type: application/json"],
    ),
    (
        "DELETE",
        "/v1/keys",
        &["Accept: */*", ORIGIN, "Content-Type: application/json"],
    ),
    (
        "POST",
        "/v1/acquire",
        &["Accept: */*", ORIGIN, "Content-Type: application/json"],
    ),
    (
        "POST",
        "/v1/check",
        &["Accept: */*", ORIGIN, "Content-Type: application/json"],
    ),
    (
        "GET",
        "/v1/authorize?domain=shop",
        &[
            "Accept: */*",
            "X-Original-URI: /login",
            "X-Quell-Entry-User: victim",
        ],
    ),
];

/// The page's origin; the name is replaced by its host.
const ORIGIN: &str = "Origin: http://evil.example";

fn send_as_browser(server: &Fixture, host: &str, sent: &Sent, more: &str) -> Answer {
    let (method, path, said) = sent;
    let body = match *method {
        "GET" | "OPTIONS" => "",
        _ => r#"{"domain":"shop","entries":{"path":"/login","user":"victim"},"for":"1h"}"#,
    };
    let said = said
        .join("\r\n")
        .replace("Content-Type: \r\n", "Content-Type: ");
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {host}\r\n{CHROMIUM}{more}{said}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    Answer::read(&send(server.http(), request.as_bytes()))
}

/// The requests that Chromium 156 sends for a page that tries to reach a server on this machine, as
/// recorded: from another origin of its name, from a name that now resolves to this server, and across
/// sites to an address. They charge nothing, ban no key, lift nothing, and read nothing.
#[test]
fn what_a_page_makes_a_browser_send_does_nothing() {
    let server = Fixture::new(SHOP, "");
    let ban = r#"{"domain":"shop","rule":"strict","entries":{"user":"victim"},"for":"1h"}"#;
    assert_eq!(server.request("POST", "/v1/bans", ban).status, 200);
    let port = server.http().port();
    // A name that resolves to this server: the browser sends no site headers, because the context is not
    // secure.
    let name = format!("evil.example:{port}");
    for sent in UNASKED.iter().chain(&ASKED) {
        let answer = send_as_browser(&server, &name, sent, "");
        answer.assert_problem(403, "");
        assert!(!answer.body.contains("victim"), "{sent:?}: {answer:?}");
    }
    // Through another port that leads here, only the requests without a preflight can be distinguished
    // from a gateway's.
    for sent in &UNASKED {
        send_as_browser(&server, "evil.example:1", sent, "").assert_problem(403, "");
    }
    let across =
        "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\nSec-Fetch-Dest: empty\r\n";
    for sent in &UNASKED {
        let answer = send_as_browser(&server, &format!("127.0.0.1:{port}"), sent, across);
        // No page can read the answer: for that it would have to be allowed.
        assert_eq!(
            answer.field("access-control-allow-origin"),
            None,
            "{sent:?}"
        );
        let is_read = sent.0 == "GET" && !sent.1.contains("authorize");
        assert_eq!(answer.status == 200, is_read, "{sent:?}: {answer:?}");
    }
    let charged = ["allow", "deny"].map(|outcome| {
        let series = format!("quell_queries_total{{domain=\"shop\",outcome=\"{outcome}\"}}");
        server.metric(&series)
    });
    assert_eq!(charged.map(|number| number.unwrap()), ["0", "0"]);
    let bans = server.get("/v1/bans").json();
    let bans = bans["bans"].as_array().unwrap();
    assert_eq!(bans.len(), 1, "{bans:?}");
    assert_eq!(bans[0]["rule"], "strict");
    // If a browser speaks HTTP to the other listener, its connection is closed.
    let post =
        format!("POST / HTTP/1.1\r\nHost: evil.example\r\n{CHROMIUM}\r\nCL.THROTTLE a 1 1 1\r\n");
    let told = crate::harness::try_send(server.resp(), post.as_bytes()).unwrap_or_default();
    assert!(!String::from_utf8_lossy(&told).contains("*5"), "{told:?}");
    assert_eq!(
        server.metric("quell_resp_commands_total").as_deref(),
        Some("0")
    );
}
