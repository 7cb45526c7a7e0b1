//! `curl`: every kind of answer of the HTTP listener, above all refusals and errors.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::clients::curl;
use crate::files::{Folder, window_rules};
use crate::process::{run, run_with_input};
use crate::server::Server;

/// An answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// Names in lower case.
    fields: BTreeMap<String, String>,
    pub(crate) body: String,
}

impl Reply {
    /// A field's value, empty if it is not there.
    pub(crate) fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Checks that this is a problem document of this kind that contains these words.
    fn problem(&self, status: u16, kind: &str, words: &str) {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(
            self.field("content-type"),
            "application/problem+json",
            "{self:?}"
        );
        let problem = self.json();
        assert_eq!(problem["status"], status, "{self:?}");
        assert!(
            problem["type"]
                .as_str()
                .is_some_and(|uri| uri.ends_with(kind)),
            "{self:?}"
        );
        let detail = problem["detail"].as_str().unwrap_or_default();
        assert!(detail.contains(words), "no {words:?} in {self:?}");
    }
}

/// Asks with these arguments of curl; the last is the path.
fn ask(server: &Server, arguments: &[&str]) -> Reply {
    ask_with(server, arguments, b"")
}

fn ask_with(server: &Server, arguments: &[&str], input: &[u8]) -> Reply {
    let (path, arguments) = arguments.split_last().unwrap();
    let url = server.url(path);
    reply_of(&[arguments, &[&url]].concat(), input)
}

/// The answer that curl gets with these arguments; the last is the address.
pub(crate) fn reply_of(arguments: &[&str], input: &[u8]) -> Reply {
    let mut command = curl();
    command
        .args(["--silent", "--show-error", "--include"])
        .args(arguments);
    let text = run_with_input(&mut command, input).expect_success();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1));
    Reply {
        status: status.and_then(|status| status.parse().ok()).unwrap(),
        fields: lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect(),
        body: body.to_owned(),
    }
}

fn post(server: &Server, path: &str, body: &str) -> Reply {
    let json = [
        "--header",
        "Content-Type: application/json",
        "--data-binary",
        body,
        path,
    ];
    ask(server, &json)
}

fn shop(limit: &str) -> (Folder, Server) {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", &window_rules("shop", limit));
    let server = Server::start(&["--rules", &rules]);
    (folder, server)
}

const ALICE: &str = r#"{"domain": "shop", "entries": {"user": "alice"}}"#;

#[test]
fn a_verdict_is_200_allowed_or_not() {
    let (_folder, server) = shop("1/h");
    for allowed in [true, false] {
        let reply = post(&server, "/v1/acquire", ALICE);
        assert_eq!(
            (reply.status, reply.field("content-type")),
            (200, "application/json")
        );
        let verdict = reply.json();
        assert_eq!(verdict["allowed"], allowed);
        assert_eq!(verdict["binding"], "per-user");
        assert_eq!(verdict["retry_after_ms"].is_null(), allowed, "{verdict}");
        assert_eq!(verdict["decisions"][0]["limit"], 1);
        for field in [
            "remaining",
            "reset_after_ms",
            "delay_ms",
            "permanent",
            "banned",
            "degraded",
            "unmatched",
        ] {
            assert!(!verdict[field].is_null(), "{field}: {verdict}");
        }
    }
    let peek = post(&server, "/v1/peek", ALICE).json();
    assert_eq!(peek["allowed"], false);
    let never = ALICE.replace("}}", r#"}, "cost": 2}"#);
    let never = post(&server, "/v1/acquire", &never).json();
    assert_eq!(
        (&never["permanent"], &never["retry_after_ms"]),
        (&true.into(), &Value::Null)
    );
    server.stop();
}

#[test]
fn several_descriptors_are_charged_together_or_not_at_all() {
    let (_folder, server) = shop("3/h");
    let both = r#"{"domain": "shop", "descriptors": [
        {"entries": {"user": "alice"}, "cost": 2}, {"entries": {"user": "bob"}, "cost": 4}]}"#;
    let verdict = post(&server, "/v1/acquire", both).json();
    assert_eq!(verdict["allowed"], false);
    let peek = post(&server, "/v1/peek", ALICE).json();
    assert_eq!(
        peek["remaining"], 3,
        "alice was not charged for what bob was refused"
    );
    server.stop();
}

#[test]
fn authorize_answers_gateways() {
    let (_folder, server) = shop("1/h");
    let alice = [
        "--header",
        "X-Quell-Entry-User: alice",
        "/v1/authorize?domain=shop",
    ];
    let reply = ask(&server, &alice);
    assert_eq!((reply.status, reply.body.as_str()), (204, ""));
    assert_eq!(reply.field("ratelimit-policy"), "\"per-user\";q=1;w=3600");
    assert!(
        reply.field("ratelimit").starts_with("\"per-user\";r=0;t="),
        "{reply:?}"
    );
    assert_eq!(reply.field("retry-after"), "");

    let reply = ask(&server, &alice);
    reply.problem(429, "quota-exceeded", "");
    assert_eq!(
        reply.json()["violated-policies"],
        serde_json::json!(["per-user"])
    );
    let wait: u64 = reply.field("retry-after").parse().unwrap();
    assert!((1..=3_600).contains(&wait), "{wait}");
    assert_eq!(
        reply.field("ratelimit"),
        format!("\"per-user\";r=0;t={wait}")
    );
    assert_eq!(reply.field("x-ratelimit-limit"), "", "only when asked for");

    let mut insistent = alice;
    insistent[2] = "/v1/authorize?domain=shop&deny_status=403";
    let reply = ask(&server, &insistent);
    assert_eq!(reply.status, 403);
    assert_eq!(reply.json()["status"], 403);
    // Another user is another key; any method will do.
    let bob = [
        "--request",
        "DELETE",
        "--header",
        "X-Quell-Entry-User: bob",
        "/v1/authorize",
    ];
    assert_eq!(ask(&server, &bob).status, 204);
    server.stop();
}

#[test]
fn authorize_makes_entries_of_what_gateways_send() {
    let folder = Folder::new();
    let text = "domain: shop
rules:
  - { name: login, match: { method: POST, path: /login }, per: [remote_address], algorithm: fixed_window, limit: 1/h }
";
    let rules = folder.write("shop.yaml", text);
    let server = Server::start(&["--rules", &rules, "--x-rate-limit-headers"]);
    let nginx = |address: &str| {
        let address = format!("X-Real-IP: {address}");
        let headers = [
            "--header",
            "X-Original-Method: POST",
            "--header",
            "X-Original-URI: /login?next=/",
            "--header",
            &address,
            "/v1/authorize?domain=shop",
        ];
        ask(&server, &headers)
    };
    assert_eq!(nginx("10.0.0.1").status, 204);
    assert_eq!(nginx("10.0.0.1").status, 429);
    let other = nginx("10.0.0.2");
    assert_eq!((other.status, other.field("x-ratelimit-limit")), (204, "1"));
    let traefik = [
        "--header",
        "X-Forwarded-Method: POST",
        "--header",
        "X-Forwarded-Uri: /login",
        "--header",
        "X-Forwarded-For: 10.0.0.2",
        "/v1/authorize?domain=shop",
    ];
    assert_eq!(ask(&server, &traefik).status, 429);
    server.stop();
}

#[test]
fn parameters_of_authorize_that_mean_nothing_are_400() {
    let (_folder, server) = shop("1/h");
    let authorize = |parameters: &str| ask(&server, &[&format!("/v1/authorize?{parameters}")]);
    authorize("domian=shop").problem(400, "", "domain");
    authorize("domain=shop&deny_status=200").problem(400, "", "deny_status=200");
    authorize("domain=nowhere").problem(404, "unknown-domain", "write one of shop");
    server.stop();
}

#[test]
fn queries_that_mean_nothing_are_problems_that_say_what_to_write() {
    let (_folder, server) = shop("1/h");
    let bodies = [
        ("", 400, ""),
        ("{", 400, ""),
        ("[]", 400, ""),
        (
            r#"{"domain": "shop", "entries": {}, "hits": 1}"#,
            400,
            "hits",
        ),
        (r#"{"domain": 7}"#, 400, "domain"),
        (r#"{"domain": "", "entries": {}}"#, 400, "domain"),
        (r#"{"entries": {}}"#, 400, "domain"),
        (r#"{"domain": "shop", "entries": {"user": 7}}"#, 400, "user"),
        (
            r#"{"domain": "shop", "entries": {}, "cost": 0}"#,
            400,
            "at least 1",
        ),
        (
            r#"{"domain": "shop", "entries": {}, "cost": -1}"#,
            400,
            "cost",
        ),
        (
            r#"{"domain": "shop", "entries": {}, "cost": 1.5}"#,
            400,
            "cost",
        ),
        (
            r#"{"domain": "shop", "descriptors": []}"#,
            400,
            "at least one",
        ),
        (
            r#"{"domain": "shop", "entries": {"a": "1", "a": "2"}}"#,
            400,
            "twice",
        ),
        (
            r#"{"domain": "nowhere", "entries": {}}"#,
            404,
            "write one of shop",
        ),
    ];
    for path in ["/v1/acquire", "/v1/peek"] {
        for (body, status, words) in bodies {
            let reply = post(&server, path, body);
            assert_eq!(reply.status, status, "{body}: {reply:?}");
            let text = reply.body.clone();
            reply.problem(status, "", "");
            assert!(text.contains(words), "{body}: no {words:?} in {text}");
        }
    }
    // A peek waits for nothing: a query that asks it to wait is refused.
    let waiting = ALICE.replace("}}", r#"}, "max_wait_ms": 5}"#);
    post(&server, "/v1/peek", &waiting).problem(400, "", "does not wait");
    server.stop();
}

#[test]
fn bodies_of_another_size_or_kind_are_refused() {
    let (_folder, server) = shop("1/h");
    let large = format!(
        r#"{{"domain": "shop", "entries": {{"user": "{}"}}}}"#,
        "a".repeat(300_000)
    );
    let json = [
        "--header",
        "Content-Type: application/json",
        "--data-binary",
        "@-",
    ];
    let length_said = [&json[..], &["/v1/acquire"]].concat();
    let reply = ask_with(&server, &length_said, large.as_bytes());
    reply.problem(413, "", "262144");
    let chunked = [
        &json[..],
        &["--header", "Transfer-Encoding: chunked", "/v1/acquire"],
    ]
    .concat();
    let reply = ask_with(&server, &chunked, large.as_bytes());
    reply.problem(413, "", "262144");
    let form = ["--data-binary", ALICE, "/v1/acquire"];
    assert_eq!(ask(&server, &form).status, 200, "as curl sends it unasked");
    let page = ["--header", "Origin: http://evil.example"];
    ask(&server, &[&page[..], &form].concat()).problem(415, "", "application/json");
    assert_eq!(
        post(&server, "/v1/acquire", ALICE).status,
        200,
        "the server goes on"
    );
    server.stop();
}

#[test]
fn paths_and_methods_that_are_not_there_are_problems() {
    let (_folder, server) = shop("1/h");
    ask(&server, &["/v2/acquire"]).problem(404, "", "/v2/acquire");
    let reply = ask(&server, &["/v1/acquire"]);
    reply.problem(405, "", "GET");
    assert!(reply.field("allow").contains("POST"), "{reply:?}");
    let head = ask(&server, &["--head", "/healthz"]);
    assert_eq!(head.status, 200);
    server.stop();
}

#[test]
fn health_metrics_and_the_description_are_there() {
    let (_folder, server) = shop("1/h");
    for path in ["/healthz", "/readyz"] {
        let reply = ask(&server, &[path]);
        assert_eq!(
            (reply.status, &reply.json()["status"]),
            (200, &"ok".into()),
            "{path}"
        );
    }
    let metrics = ask(&server, &["/metrics"]);
    assert!(
        metrics
            .field("content-type")
            .starts_with("text/plain; version=0.0.4")
    );
    assert!(
        metrics
            .body
            .contains("# TYPE quell_decisions_total counter")
    );
    let openapi = ask(&server, &["/openapi.json"]).json();
    assert!(
        openapi["openapi"]
            .as_str()
            .is_some_and(|version| version.starts_with("3."))
    );
    for path in [
        "/v1/acquire",
        "/v1/peek",
        "/v1/authorize",
        "/v1/rules",
        "/v1/bans",
        "/v1/keys",
    ] {
        assert!(openapi["paths"][path].is_object(), "{path}");
    }
    let rules = ask(&server, &["/v1/rules"]);
    assert!(rules.body.contains("per-user"), "{rules:?}");
    server.stop();
}

#[test]
fn http_2_is_spoken_as_well() {
    let (_folder, server) = shop("1/h");
    let version = [
        "--http2-prior-knowledge",
        "--output",
        "/dev/null",
        "--write-out",
        "%{http_version} %{http_code}",
    ];
    let mut command = curl();
    command
        .arg("--silent")
        .args(version)
        .arg(server.url("/v1/authorize?domain=shop"));
    assert_eq!(run(&mut command).expect_success(), "2 204");
    server.stop();
}
