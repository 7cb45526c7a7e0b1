//! A rule's own status and body.

use axum::http::HeaderName;
use quell::Limit;
use quell::rule::{RefusalPage, Rule};
use quell::tower::{Entries, LimitLayer};

use super::support::{app, ask, get, limiter};

const USER: HeaderName = HeaderName::from_static("x-user");

fn page(status: u16) -> RefusalPage {
    RefusalPage::new().status(status).unwrap()
}

fn rule(name: &str) -> Rule {
    Rule::new(name, Limit::per_minute(1)).unwrap().per("user")
}

#[tokio::test]
async fn the_rule_that_refuses_says_status_and_body() {
    let html = "<h1>Slow down</h1>";
    let with_body = page(403).body(html, "text/html; charset=utf-8").unwrap();
    let rules = vec![
        rule("body")
            .matching("path", &["/body"])
            .refusal_page(with_body),
        rule("status")
            .matching("path", &["/status"])
            .refusal_page(page(420)),
        rule("neither").matching("path", &["/neither"]),
    ];
    let (limiter, _) = limiter(rules);
    let entries = Entries::new().path().header("user", USER);
    let app = app(LimitLayer::new(limiter, "shop", entries));
    for path in ["/body", "/status", "/neither"] {
        // What a caller sends is in no page.
        let request = || get(path, &[("x-user", "<script>")]);
        assert_eq!(ask(&app, request()).await.body, "hello");
        let no = ask(&app, request()).await;
        assert_eq!(no.field("retry-after"), Some("60"), "{path}");
        assert!(no.field("ratelimit").is_some(), "{path}");
        assert!(!no.body.contains("script"), "{no:?}");
        let kind = no.field("content-type").unwrap().to_owned();
        let problem = "application/problem+json";
        match path {
            "/body" => {
                assert_eq!(
                    (no.status.as_u16(), &*kind),
                    (403, "text/html; charset=utf-8")
                );
                assert_eq!(no.body, html);
            }
            "/status" => {
                assert_eq!((no.status.as_u16(), &*kind), (420, problem));
                assert!(no.body.contains(r#""status":420"#), "{no:?}");
            }
            _ => assert_eq!((no.status.as_u16(), &*kind), (429, problem)),
        }
    }
}

#[tokio::test]
async fn a_layer_has_a_page_for_rules_without_one() {
    let limit = Limit::per_minute(1);
    let layer = LimitLayer::each("all", limit, Entries::new()).unwrap();
    let slow = page(503).body("later", "text/plain").unwrap();
    let app = app(layer.refusal_page(slow));
    ask(&app, get("/", &[])).await;
    let no = ask(&app, get("/", &[])).await;
    assert_eq!((no.status.as_u16(), &*no.body), (503, "later"));

    // gRPC has its own way to refuse.
    let grpc = ask(&app, get("/", &[("content-type", "application/grpc")])).await;
    assert_eq!((grpc.status.as_u16(), &*grpc.body), (200, ""));
    assert_eq!(grpc.field("grpc-status"), Some("8"));
}
