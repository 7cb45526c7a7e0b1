//! Reload: rules that change while the server runs, by file watch and by SIGHUP, and rules that must
//! be rejected.

use serde_json::Value;

use crate::files::{Folder, window_rules};
use crate::process::{quell, run, until};
use crate::server::Server;

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
    server.log_with("`moment`");
    let verdict = server.peek("shop", "user=alice").unwrap();
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
    let verdict = server.peek("shop", "user=alice").unwrap();
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
