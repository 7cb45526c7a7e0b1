//! Reload: rules that change while the server runs, by file watch and by SIGHUP, and rules that must
//! be rejected.

use serde_json::Value;

use crate::files::{Folder, window_rules};
use crate::process::{quell, run, until};
use crate::server::Server;

/// The answer of `quell check` for `alice`, without charging her.
fn peek(server: &Server) -> Value {
    let url = server.url("");
    let arguments = [
        "check",
        "--json",
        "--peek",
        "-d",
        "shop",
        "-e",
        "user=alice",
        "--url",
        &url,
    ];
    let told = run(&mut quell(&arguments));
    serde_json::from_str(&told.stdout).unwrap_or_else(|error| panic!("{error}: {told:?}"))
}

/// Charges `alice` one unit.
fn charge(server: &Server) {
    let url = server.url("");
    run(&mut quell(&[
        "check",
        "-d",
        "shop",
        "-e",
        "user=alice",
        "--url",
        &url,
    ]))
    .expect_success();
}

fn limit(verdict: &Value) -> Option<u64> {
    verdict["decisions"][0]["limit"].as_u64()
}

#[test]
fn a_file_that_changes_is_read_and_use_stays() {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", &window_rules("shop", "5/h"));
    let server = Server::start(&["--rules", &rules]);
    charge(&server);
    charge(&server);
    assert_eq!(peek(&server)["remaining"], 3);
    folder.write("shop.yaml", &window_rules("shop", "10/h"));
    let verdict = until("the new limit is in force", || {
        Some(peek(&server)).filter(|verdict| limit(verdict) == Some(10))
    });
    assert_eq!(verdict["remaining"], 8, "two were used before: {verdict}");
    // A file overwritten in place, as by `>`, counts as well.
    std::fs::write(&rules, window_rules("shop", "20/h")).unwrap();
    until("the limit that was written in place is in force", || {
        (limit(&peek(&server)) == Some(20)).then_some(())
    });
    server.stop();
}

#[test]
fn a_directory_is_watched_for_files_that_come_and_go() {
    let folder = Folder::new();
    folder.write("shop.yaml", &window_rules("shop", "5/h"));
    let server = Server::start(&["--rules", &folder.path("")]);
    let domains = |expected: u64| {
        until("the domains change", || {
            (server.health()["domains"].as_u64() == Some(expected)).then_some(())
        });
    };
    domains(1);
    folder.write("bar.yaml", &window_rules("bar", "5/h"));
    domains(2);
    std::fs::remove_file(folder.path("bar.yaml")).unwrap();
    domains(1);
    server.stop();
}

#[test]
fn a_hangup_reads_the_rules_again() {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", &window_rules("shop", "5/h"));
    let server = Server::start(&["--rules", &rules]);
    let reloads = || server.metric("quell_reloads_total").unwrap_or(0);
    let before = reloads();
    server.signal("HUP");
    until("the reload is counted", || {
        (reloads() > before).then_some(())
    });
    assert_eq!(limit(&peek(&server)), Some(5));
    server.stop();
}

#[test]
fn rules_with_mistakes_leave_the_old_ones_in_force_and_everybody_knows() {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", &window_rules("shop", "5/h"));
    let server = Server::start(&["--rules", &rules]);
    charge(&server);
    folder.write("shop.yaml", &window_rules("shop", "5/moment"));
    server.signal("HUP");
    let health = until("health tells of the failure", || {
        Some(server.health()).filter(|health| health["status"] == "degraded")
    });
    let reasons = health["reload_failure"]["reasons"].to_string();
    assert!(
        reasons.contains("`moment`") && reasons.contains("shop.yaml:"),
        "{health}"
    );
    assert!(server.get("/readyz").contains("`moment`"));
    assert_eq!(server.metric("quell_reload_failed"), Some(1));
    assert!(server.log().contains("`moment`"), "{}", server.log());
    let verdict = peek(&server);
    assert_eq!(
        (limit(&verdict), &verdict["remaining"]),
        (Some(5), &4.into())
    );

    folder.write("shop.yaml", &window_rules("shop", "6/h"));
    server.signal("HUP");
    until("health is good again", || {
        (server.health()["status"] == "ok").then_some(())
    });
    assert_eq!(server.metric("quell_reload_failed"), Some(0));
    let verdict = peek(&server);
    assert_eq!(
        (limit(&verdict), &verdict["remaining"]),
        (Some(6), &5.into())
    );
    server.stop();
}

/// Files that the server itself writes next to the rules are no change of the rules, and a touched
/// file is not worth a log line; the first real change is the first that is reported.
#[test]
fn nothing_is_told_of_rules_that_are_as_they_were() {
    let folder = Folder::new();
    let text = window_rules("shop", "5/h");
    let rules = folder.write("shop.yaml", &text);
    let (state, decisions) = (folder.path("state"), folder.path("decisions.log"));
    let server = Server::start(&[
        "--rules",
        &rules,
        "--data-dir",
        &state,
        "--decision-log",
        &decisions,
    ]);
    let reloads = || server.metric("quell_reloads_total").unwrap_or(0);
    assert_eq!(reloads(), 0);
    folder.write("shop.yaml", &text);
    until("the touched file is read", || (reloads() > 0).then_some(()));
    folder.write("shop.yaml", &window_rules("shop", "6/h"));
    until("the change is told", || {
        server.log().contains("reloaded: 1 changed").then_some(())
    });
    let log = server.log();
    assert_eq!(log.matches("reloaded").count(), 1, "{log}");
    server.signal("HUP");
    until("who asks is told", || {
        server.log().contains("no rule changed").then_some(())
    });
    server.stop();
}

/// A domain that no file names is answered 404; a domain without rules is not limited. The log says
/// which applies.
#[test]
fn a_domain_that_loses_its_rules_is_told_with_what_its_callers_get() {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", &window_rules("shop", "5/h"));
    let server = Server::start(&["--rules", &rules]);
    for (text, told) in [
        ("domain: shop\nrules: []\n".to_owned(), "no longer limited"),
        (window_rules("shop", "5/h"), "1 added"),
        (window_rules("other", "5/h"), "answered 404"),
    ] {
        folder.write("shop.yaml", &text);
        until(told, || server.log().contains(told).then_some(()));
    }
    server.stop();
}
