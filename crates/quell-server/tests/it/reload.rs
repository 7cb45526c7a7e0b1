//! Rules that change while the server runs.

use std::io::Write;
use std::net::Shutdown;

use quell_testkit::proxy::{Fault, Proxy};
use quell_testkit::redis::Redis;
use serde_json::json;

use crate::harness::{Fixture, SHOP, connect, eventually, exchange, replace};

fn limit(server: &Fixture) -> String {
    let rules = server.get("/v1/rules").json();
    let login = &rules["domains"][0]["rules"][0];
    login["limit"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn a_file_that_is_replaced_comes_into_force_and_use_stays() {
    let server = Fixture::with_clock(SHOP, "");
    for _ in 0..100 {
        server.acquire("/login", "a");
    }
    assert_eq!(server.acquire("/login", "a").json()["allowed"], false);
    replace(
        &server.path("rules.yaml"),
        &SHOP.replace("100/min", "150/min"),
    );
    eventually("the new limit is in force", || {
        limit(&server).contains("150/min")
    });
    let verdict = server.acquire("/login", "a").json();
    assert_eq!(verdict["allowed"], true);
    let remaining = verdict["remaining"].as_u64().unwrap();
    assert_eq!(remaining, 49);
    // The counters keep their values as well.
    let labels = "{domain=\"shop\",rule=\"login\",outcome=\"allow\"}";
    let allowed = server.metric(&format!("quell_decisions_total{labels}"));
    assert_eq!(allowed.as_deref(), Some("101"));
}

#[test]
fn a_bad_file_keeps_the_rules_in_force_and_says_so() {
    let server = Fixture::new(SHOP, "");
    let file = server.path("rules.yaml");
    std::fs::write(&file, SHOP.replace("100/min", "100/fortnight")).unwrap();
    eventually("the failure is known", || {
        server.metric("quell_reload_failures_total").as_deref() != Some("0")
    });
    assert!(limit(&server).contains("100/min"));
    assert_eq!(server.acquire("/login", "a").json()["allowed"], true);
    let health = server.get("/healthz").json();
    assert_eq!(health["status"], "degraded");
    let reason = health["reload_failure"]["reasons"][0].as_str().unwrap();
    assert!(
        reason.contains("rules.yaml:") && reason.contains("fortnight"),
        "{reason}"
    );
    assert_eq!(
        server.get("/readyz").status,
        200,
        "the old rules still decide"
    );
    assert_eq!(server.metric("quell_reload_failed").as_deref(), Some("1"));
    std::fs::write(&file, SHOP.replace("100/min", "7/min")).unwrap();
    eventually("it is mended", || limit(&server).contains("7/min"));
    eventually("health is back", || {
        server.get("/healthz").json()["status"] == "ok"
    });
}

/// A store that servers share counts up to 2^50 exactly. Nobody listens at this one: rules are refused all the same.
#[test]
fn what_a_shared_store_cannot_count_is_refused_at_the_start_and_at_a_reload() {
    let rules = |limit: &str| {
        format!(
            "domain: shop\ndefaults: {{ on_failure: deny }}\nrules: [{{ name: traffic, algorithm: fixed_window, \
             limit: {limit}, align: calendar }}]\n"
        )
    };
    let expected = "up to 2^50 units (1125899906842624) exactly: count in a larger unit, such as kB in place of bytes";
    let store = "store = 'redis://127.0.0.1:1/0'";
    let large = rules("5000000000000000/month");
    let error = Fixture::try_new(&large, store).err().unwrap().to_string();
    assert!(error.contains(expected), "{error}");
    let server = Fixture::new(&rules("5000000000000/month"), store);
    std::fs::write(server.path("rules.yaml"), &large).unwrap();
    assert!(!server.reload());
    let health = server.get("/healthz").json();
    let reason = health["reload_failure"]["reasons"][0].as_str().unwrap();
    assert!(
        reason.contains("traffic") && reason.contains(expected),
        "{reason}"
    );
    assert!(
        limit(&server).contains("5000000000000 per"),
        "the old ones stay: {}",
        limit(&server)
    );
}

/// A question behind one that waits for the store is decided by the rules in force when its turn comes.
#[test]
fn a_pipelined_question_is_not_decided_by_rules_of_before() {
    let redis = Redis::start(&[]);
    let proxy = Proxy::start(redis.port());
    let store = format!("store = '{}'\nstore_timeout = '60s'", proxy.redis_url());
    let rules = format!("{SHOP}defaults: {{ on_failure: deny }}\n");
    let server = Fixture::new(&rules, &store);
    assert_eq!(server.acquire("/login", "a").json()["allowed"], true);
    proxy.set(Fault::Stall);
    let body = r#"{"domain":"shop","entries":{"path":"/login","user":"a"}}"#;
    let length = body.len();
    // As the fast path takes it.
    let question = format!(
        "POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    );
    let mut stream = connect(server.http());
    stream.write_all(question.repeat(2).as_bytes()).unwrap();
    eventually("the first question waits", || proxy.stalled() > 0);
    std::fs::write(
        server.path("rules.yaml"),
        rules.replace("100/min", "150/min"),
    )
    .unwrap();
    eventually("the new limit is in force", || {
        limit(&server).contains("150/min")
    });
    proxy.set(Fault::None);
    stream.shutdown(Shutdown::Write).unwrap();
    let answers = String::from_utf8(exchange(stream, b"").unwrap()).unwrap();
    let limits: Vec<_> = answers.split("\"limit\":").skip(1).collect();
    assert_eq!(limits.len(), 2, "{answers}");
    assert!(limits[1].starts_with("150,"), "{answers}");
}

#[test]
fn a_directory_is_watched_too() {
    let mut server = Fixture::prepare("", "rules = ['DIR/rules.d']");
    let directory = server.path("rules.d");
    std::fs::create_dir(&directory).unwrap();
    let error = server.start().unwrap_err().to_string();
    assert!(error.contains("no rules in this directory"), "{error}");
    std::fs::write(directory.join("none.yaml"), "{domain: void, rules: []}").unwrap();
    server.start().unwrap();
    let none = json!({"domains": [{"domain": "void", "rules": []}]});
    assert_eq!(server.get("/v1/rules").json(), none);
    std::fs::write(directory.join("shop.yaml"), SHOP).unwrap();
    eventually("a new file is in force", || {
        limit(&server).contains("100/min")
    });
    std::fs::remove_file(directory.join("shop.yaml")).unwrap();
    eventually("a file that is gone is not", || {
        server.get("/v1/rules").json() == none
    });
}

/// A file that is being written, or is not mounted, is empty: that is no reason to remove all
/// rules.
#[test]
fn rules_that_say_nothing_leave_the_old_ones_in_force() {
    let server = Fixture::new(SHOP, "");
    for text in ["", "# none\n", "domain: shop\n", "domain: shop\nrules:\n"] {
        std::fs::write(server.path("rules.yaml"), text).unwrap();
        assert!(!server.reload(), "{text:?}");
        assert!(limit(&server).contains("/min"), "{text:?}");
    }
    std::fs::write(server.path("rules.yaml"), "domain: shop\nrules: []\n").unwrap();
    assert!(server.reload());
}

/// A domain that has lost its rules limits no call: this is reported for as long as it lasts.
#[test]
fn a_domain_that_lost_its_rules_shows_in_health_and_metrics() {
    let server = Fixture::new(SHOP, "");
    let emptied = || {
        let health = server.get("/healthz").json();
        assert_eq!(health["status"], "ok", "the rules are as files say");
        (
            health["emptied_domains"].clone(),
            server.metric("quell_emptied_domains"),
        )
    };
    let reload = |text: &str| {
        std::fs::write(server.path("rules.yaml"), text).unwrap();
        assert!(server.reload());
    };
    let none = (serde_json::Value::Null, Some("0".to_owned()));
    let shop = (json!(["shop"]), Some("1".to_owned()));
    assert_eq!(emptied(), none);
    reload("{domain: shop, rules: []}");
    assert_eq!(emptied(), shop);
    let other = "{domain: other, rules: [{name: r, rate: 1/s}]}";
    reload(other);
    assert_eq!(emptied(), shop, "still");
    reload(&format!("{other}\n---\n{SHOP}"));
    assert_eq!(emptied(), none);
}

#[test]
fn a_reload_can_be_asked_for() {
    let server = Fixture::new(SHOP, "");
    assert!(server.reload());
    std::fs::write(server.path("rules.yaml"), "domain: [").unwrap();
    assert!(!server.reload());
    std::fs::write(server.path("rules.yaml"), SHOP).unwrap();
    assert!(server.reload());
}

#[test]
fn a_server_with_wrong_rules_does_not_start() {
    let error = Fixture::try_new("domain: shop\nrules: [{name: a, rate: 0/s}]", "");
    let error = error.err().unwrap().to_string();
    assert!(error.contains("the rules have mistakes:"), "{error}");
    assert!(error.contains("rules.yaml:2:"), "{error}");
}
