//! `quell check` and `quell bans`: asking a running server from the shell.

use serde_json::Value;

use crate::files::{Folder, window_rules};
use crate::process::{Run, quell, run};
use crate::server::Server;

fn shop(limit: &str) -> (Folder, Server) {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", &window_rules("shop", limit));
    let server = Server::start(&["--rules", &rules]);
    (folder, server)
}

/// Runs the command against this server.
fn ask(server: &Server, arguments: &[&str]) -> Run {
    run(quell(arguments).args(["--url", &server.url("")]))
}

const ALICE: [&str; 5] = ["check", "--domain", "shop", "--entry", "user=alice"];

#[test]
fn check_tells_people_the_rule_and_the_wait() {
    let (_folder, server) = shop("2/h");
    let told = ask(&server, &ALICE);
    assert_eq!(told.code(), Some(0), "{told:?}");
    assert!(
        told.stdout
            .starts_with("allowed by per-user\n  remaining    1\n"),
        "{told:?}"
    );
    let twice = [&ALICE[..], &["--cost", "2"]].concat();
    let told = ask(&server, &twice);
    assert_eq!(told.code(), Some(1), "{told:?}");
    assert!(
        told.stdout
            .starts_with("refused by per-user\n  remaining    1\n  retry after  "),
        "{told:?}"
    );
    let never = [&ALICE[..], &["--cost", "3"]].concat();
    let told = ask(&server, &never);
    assert_eq!(told.code(), Some(1), "{told:?}");
    assert!(told.stdout.contains("retry after  never"), "{told:?}");
    server.stop();
}

#[test]
fn check_peeks_without_charging() {
    let (_folder, server) = shop("1/h");
    let peek = [&ALICE[..], &["--peek"]].concat();
    for _ in 0..3 {
        assert_eq!(ask(&server, &peek).code(), Some(0));
    }
    assert_eq!(ask(&server, &ALICE).code(), Some(0));
    assert_eq!(ask(&server, &peek).code(), Some(1));
    server.stop();
}

#[test]
fn check_gives_programs_the_verdict_as_it_came() {
    let (_folder, server) = shop("1/h");
    let json = [&ALICE[..], &["--json"]].concat();
    let told = ask(&server, &json);
    let verdict: Value = serde_json::from_str(&told.stdout).unwrap();
    assert_eq!((told.code(), &verdict["allowed"]), (Some(0), &true.into()));
    let told = ask(&server, &json);
    let verdict: Value = serde_json::from_str(&told.stdout).unwrap();
    assert_eq!((told.code(), &verdict["allowed"]), (Some(1), &false.into()));
    assert!(
        verdict["retry_after_ms"]
            .as_u64()
            .is_some_and(|wait| wait > 0),
        "{verdict}"
    );
    server.stop();
}

#[test]
fn check_finds_its_server_by_variable() {
    let (_folder, server) = shop("1/h");
    let told = run(quell(&ALICE).env("QUELL_URL", server.url("")));
    assert_eq!(told.code(), Some(0), "{told:?}");
    server.stop();
}

#[test]
fn check_passes_on_what_the_server_says_is_wrong() {
    let (_folder, server) = shop("1/h");
    let told = ask(&server, &["check", "-d", "nowhere"]);
    assert_eq!(told.code(), Some(2), "{told:?}");
    assert!(told.stderr.contains("the server said 404: no "), "{told:?}");
    assert!(
        told.stderr.contains("nowhere") && told.stderr.contains("shop"),
        "{told:?}"
    );
    // RESP is not HTTP: a client that asks the wrong port is told so.
    let told = run(quell(&ALICE).args(["--url", &format!("http://127.0.0.1:{}", server.resp)]));
    assert_eq!(told.code(), Some(3), "{told:?}");
    assert!(told.stderr.starts_with("error: "), "{told:?}");
    server.stop();
}

/// The server is there and its store is not: a rule's declared answer is an answer, what has none is not.
#[test]
fn a_store_that_is_gone_is_an_outage_for_what_has_no_declared_answer() {
    let folder = Folder::new();
    let rules = "{domain: shop, rules: [{name: r, rate: 1/h, on_failure: deny}]}";
    let rules = folder.write("shop.yaml", rules);
    let server = Server::start(&["--rules", &rules, "--store", "redis://127.0.0.1:1/0"]);
    let told = ask(&server, &["check", "-d", "shop"]);
    assert_eq!(told.code(), Some(1), "{told:?}");
    assert!(told.stdout.contains("degraded     yes"), "{told:?}");
    let told = ask(&server, &["bans", "list"]);
    assert_eq!(told.code(), Some(3), "{told:?}");
    assert!(told.stderr.contains("the server said 503"), "{told:?}");
    server.stop();
}

#[test]
fn bans_are_set_listed_and_lifted() {
    let (_folder, server) = shop("5/h");
    let list = ["bans", "list"];
    assert_eq!(ask(&server, &list).expect_success(), "no bans\n");
    let key = [
        "--domain",
        "shop",
        "--rule",
        "per-user",
        "-e",
        "user=mallory",
    ];
    let why = ["--reason", "tries \u{1b}[2J"];
    let set = [&["bans", "set", "--for", "1h"], &why[..], &key[..]].concat();
    ask(&server, &set).expect_success();
    let mallory = ["check", "-d", "shop", "-e", "user=mallory"];
    let told = ask(&server, &mallory);
    assert_eq!(told.code(), Some(1), "{told:?}");
    assert!(told.stdout.contains("banned       yes"), "{told:?}");
    assert_eq!(
        ask(&server, &ALICE).code(),
        Some(0),
        "others are not banned"
    );

    let told = ask(&server, &list).expect_success();
    let row = told.lines().nth(1).unwrap();
    assert!(
        row.ends_with("  shop    per-user  user=mallory  tries \\u{1b}[2J"),
        "{told}"
    );
    // A second may have passed.
    assert!(row.starts_with("1h") || row.starts_with("59m"), "{told}");
    let told = ask(&server, &["bans", "list", "--json"]).expect_success();
    let bans: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(bans["bans"].as_array().map(Vec::len), Some(1), "{bans}");
    assert_eq!(bans["bans"][0]["reason"], why[1]);

    let lift = [&["bans", "lift"], &key[..]].concat();
    ask(&server, &lift).expect_success();
    assert_eq!(ask(&server, &mallory).code(), Some(0));
    assert_eq!(ask(&server, &list).expect_success(), "no bans\n");
    let told = ask(&server, &lift);
    assert_eq!(told.code(), Some(1), "there is none to lift: {told:?}");
    server.stop();
}

#[test]
fn the_keys_that_are_refused_are_shown() {
    let (_folder, server) = shop("1/h");
    let told = ask(&server, &["top"]).expect_success();
    assert!(told.starts_with("no refusals in the last "), "{told}");
    for _ in 0..3 {
        ask(&server, &ALICE);
    }
    let told = ask(&server, &["top", "--domain", "shop"]).expect_success();
    let row = told.lines().nth(1).unwrap();
    assert_eq!(row, "2         shop    per-user  user=alice", "{told}");
    let told = ask(&server, &["top", "--hash", "--json"]).expect_success();
    let top: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(
        top["keys"][0]["hash"].as_str().map(str::len),
        Some(32),
        "{top}"
    );
    server.stop();
}

#[test]
fn bans_of_what_is_not_there_are_refused() {
    let (_folder, server) = shop("5/h");
    let wrong = [
        "bans", "set", "--for", "1h", "-d", "shop", "-r", "nothing", "-e", "user=a",
    ];
    let told = ask(&server, &wrong);
    assert_eq!(told.code(), Some(2), "{told:?}");
    assert!(told.stderr.contains("the server said 404: no "), "{told:?}");
    let wrong = [
        "bans", "set", "--for", "soon", "-d", "shop", "-r", "per-user", "-e", "user=a",
    ];
    let told = ask(&server, &wrong);
    assert_eq!(told.code(), Some(2), "{told:?}");
    assert!(told.stderr.contains("soon"), "{told:?}");
    server.stop();
}
