//! Servers that read their rules from a store.

use std::process::Command;

use quell_testkit::redis::{Options, Redis};
use serde_json::Value;

use super::Shelf;
use crate::clients::curl;
use crate::files::window_rules;
use crate::process::{quell, run, run_with_input, until};
use crate::server::Server;

/// The limit of `login` that a server reports.
pub(super) fn limit(server: &Server) -> Option<u64> {
    let verdict = server.peek("shop", "user=alice")?;
    verdict["decisions"][0]["limit"].as_u64()
}

fn readiness(server: &Server) -> String {
    let mut curl = curl();
    curl.args(["-s", "-o", "/dev/null", "-w", "%{http_code}"]);
    run(curl.arg(server.url("/readyz"))).expect_success()
}

pub(super) fn follows(server: &Server, expected: u64) {
    until(&format!("the limit is {expected}"), || {
        (limit(server) == Some(expected)).then_some(())
    });
}

#[test]
fn servers_follow_what_is_pushed() {
    let shelf = Shelf::new();
    let url = shelf.redis.url();
    let start = || Server::start(&["--rules", &url]);
    let servers = [start(), start()];
    for server in &servers {
        let log = server.log();
        assert!(
            log.contains(&format!("quell rules push --store {url} FILE")),
            "{log}"
        );
        assert_eq!(limit(server), None);
        assert_eq!(readiness(server), "503", "it would answer 404");
        assert_eq!(server.health()["status"], "degraded");
    }
    let told_so = Server::start(&["--rules", &url, "--allow-empty-rules"]);
    assert_eq!(readiness(&told_so), "200");
    told_so.stop();
    shelf.push(&window_rules("shop", "5/h"));
    servers.iter().for_each(|server| follows(server, 5));
    assert_eq!(readiness(&servers[0]), "200");
    shelf.good(&["set", "per-user", "limit=7/h"]);
    servers.iter().for_each(|server| follows(server, 7));
    let told: Value = serde_json::from_str(&servers[0].get("/v1/rules")).unwrap();
    let version = &told["stores"][0];
    assert_eq!(
        (&version["version"], &version["by"]),
        (&2.into(), &"ann".into())
    );
    assert!(version["at"].as_str().unwrap().starts_with("20"), "{told}");
    assert_eq!(servers[0].health()["rules_stores"][0]["version"], 2);
    let series = format!("quell_rules_version{{store=\"{url}\"}}");
    assert_eq!(servers[1].metric(&series), Some(2));
    let log = servers[0].log();
    let line = format!("reloaded: 1 changed (shop/per-user); version 2 of {url}, by ann");
    assert_eq!(log.matches(&line).count(), 1, "{log}");
    shelf.good(&["rollback", "1"]);
    servers.iter().for_each(|server| follows(server, 5));
    for server in servers {
        server.stop();
    }
}

/// Rules from a store are used together with those from files, and a hangup reloads both.
#[test]
fn files_and_stores_stand_side_by_side() {
    let shelf = Shelf::new();
    shelf.push(&window_rules("shop", "5/h"));
    let file = shelf.folder.write("bar.yaml", &window_rules("bar", "5/h"));
    let both = format!("{file},{}", shelf.redis.url());
    let server = Server::start(&["--rules", &both]);
    assert_eq!(server.health()["domains"], 2);
    assert_eq!(limit(&server), Some(5));
    // The same rule in both is a mistake, reported with both places.
    shelf.folder.write("bar.yaml", &window_rules("shop", "6/h"));
    let health = until("the mistake is told", || {
        Some(server.health()).filter(|health| health["status"] == "degraded")
    });
    let reasons = health["reload_failure"]["reasons"].to_string();
    assert!(
        reasons.contains("version 1:3:11: ") && reasons.contains("bar.yaml:3:11"),
        "{reasons}"
    );
    shelf.folder.write("bar.yaml", &window_rules("bar", "6/h"));
    until("all is well", || {
        (server.health()["status"] == "ok").then_some(())
    });
    let hangups = || server.log().matches("no rule changed").count();
    let before = hangups();
    server.signal("HUP");
    until("the hangup is told", || (hangups() > before).then_some(()));
    server.stop();
}

/// A version that a server cannot use, because it was written by hand or by a newer program.
#[test]
fn a_bad_version_keeps_the_old_rules_and_everybody_knows() {
    let shelf = Shelf::new();
    shelf.push(&window_rules("shop", "5/h"));
    let url = shelf.redis.url();
    let server = Server::start(&["--rules", &url]);
    let failed = || server.metric("quell_reload_failed");
    let prefix = "quell:rules:1:{book}:";

    // A head that names a version which does not exist.
    let say = |words: &[&str]| shelf.redis.command(words);
    say(&["SET", &format!("{prefix}head"), "2 0123456789ab"]);
    until("health tells", || (failed() == Some(1)).then_some(()));
    let health = server.health();
    assert_eq!(health["status"], "degraded");
    let reason = health["rules_stores"][0]["failure"]["reasons"][0]
        .as_str()
        .unwrap();
    let gone = format!("version 2 in {url} is gone");
    assert!(reason.contains(&gone), "{reason}");
    assert!(server.get("/readyz").contains("is gone"));

    // One that exists, but is not a rules file.
    let text = window_rules("shop", "5/moment");
    let bad = digest(&text);
    let version = format!("{prefix}3");
    let head = format!("3 {bad}");
    say(&["HSET", &version, "head", &head, "text", &text]);
    say(&["SET", &format!("{prefix}head"), &head]);
    let reasons = until("the mistake is told", || {
        let reasons = server.health()["reload_failure"]["reasons"].to_string();
        reasons.contains("moment").then_some(reasons)
    });
    assert!(
        reasons.contains("version 3:7:12: rules[0].limit: "),
        "{reasons}"
    );
    assert_eq!((limit(&server), failed()), (Some(5), Some(1)));
    let series = format!("quell_rules_version{{store=\"{url}\"}}");
    assert_eq!(
        server.metric(&series),
        Some(1),
        "the version in force, not the newest"
    );
    // A server that starts now reports why it cannot.
    let start =
        run(quell(&["serve", "--http", "127.0.0.1:0", "--resp", "off"]).args(["--rules", &url]));
    assert_eq!(start.code(), Some(1));
    assert!(start.stderr.contains("version 3:7:12: "), "{start:?}");

    // A rollback repairs it, although the change cannot be described.
    let told = shelf.run(&["rollback", "1"]);
    assert!(
        told.stderr.contains("the change is not described"),
        "{told:?}"
    );
    assert!(told.expect_success().contains("version 4 is in"));
    until("all is well", || (failed() == Some(0)).then_some(()));
    assert_eq!(server.metric(&series), Some(4));
    let log = server.log();
    assert_eq!(
        log.matches("the rules in force stay").count(),
        2,
        "one line per change: {log}"
    );
    server.stop();
}

/// The first twelve digits of the SHA-256 of `text`.
fn digest(text: &str) -> String {
    let sum = run_with_input(&mut Command::new("sha256sum"), text.as_bytes());
    sum.expect_success()[..12].to_owned()
}

#[test]
fn a_store_that_goes_keeps_the_rules_in_force() {
    let shelf = Shelf::new();
    shelf.push(&window_rules("shop", "5/h"));
    let (url, port) = (shelf.redis.url(), shelf.redis.port());
    let server = Server::start(&["--rules", &url]);
    let Shelf { redis, folder } = shelf;
    drop(redis);
    let readable = format!("quell_rules_store_readable{{store=\"{url}\"}}");
    until("it is told that the store is gone", || {
        (server.metric(&readable) == Some(0)).then_some(())
    });
    assert_eq!(limit(&server), Some(5));
    assert_eq!(server.metric("quell_reload_failed"), Some(1));
    let stranger = run(&mut quell(&[
        "serve",
        "--rules",
        &url,
        "--http",
        "127.0.0.1:0",
    ]));
    assert_eq!(stranger.code(), Some(3), "{stranger:?}");
    assert!(
        stranger
            .stderr
            .contains(&format!("cannot read the rules from {url}: not reachable")),
        "{stranger:?}"
    );

    // The store comes back empty: no caller gets past the limits.
    let shelf = Shelf {
        redis: Redis::start_on(port, Options::default()),
        folder,
    };
    until("it is told that nothing is there", || {
        server
            .get("/healthz")
            .contains("has no rules any more")
            .then_some(())
    });
    assert_eq!(limit(&server), Some(5));
    shelf.push(&window_rules("shop", "6/h"));
    follows(&server, 6);
    until("all is well", || {
        (server.health()["status"] == "ok").then_some(())
    });
    assert_eq!(server.metric(&readable), Some(1));
    let log = server.log();
    assert_eq!(log.matches("the rules in force stay").count(), 2, "{log}");
    assert_eq!(
        log.matches("can be read from the store again").count(),
        1,
        "{log}"
    );
    server.stop();
}
