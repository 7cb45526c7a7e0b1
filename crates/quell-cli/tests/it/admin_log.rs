//! Admin log: what the server's log says of an operator's actions, whoever took them.

use std::process::Command;

use crate::clients::{curl, redis_cli};
use crate::files::Folder;
use crate::listener_tls::Certificates;
use crate::process::{quell, run, until};
use crate::server::Server;
use crate::shared_store::Redis;

const RULES: &str = "
domain: shop
rules:
  - { name: login, per: [user], rate: 100/min }
  - { name: network, match: { path: /api }, per: [{ remote_address: { v4: 24 } }], rate: 5/min }
";

/// The lines of the log that have all of these words, once there is one.
fn lines(server: &Server, words: &[&str]) -> Vec<String> {
    until(&format!("the log says {words:?}"), || {
        let log = server.log();
        let has_all = |line: &&str| words.iter().all(|word| line.contains(word));
        let found: Vec<String> = log.lines().filter(has_all).map(str::to_owned).collect();
        (!found.is_empty()).then_some(found)
    })
}

fn bans(server: &Server, arguments: &[&str]) -> Command {
    let mut command = quell(&["bans"]);
    command.args(arguments).args(["--url", &server.url("")]);
    command
}

#[test]
fn each_action_is_one_line_with_key_caller_and_length() {
    let folder = Folder::new();
    let (rules, credentials) = (
        folder.write("shop.yaml", RULES),
        folder.path("credentials.toml"),
    );
    let roles = ["--role", "admin", "--role", "ask"];
    let new = [
        &["token", "new", "ops", "--append", &credentials][..],
        &roles,
    ]
    .concat();
    let token = run(&mut quell(&new)).expect_success();
    let server = Server::start(&["--rules", &rules, "--credentials", &credentials]);
    let key = ["--domain", "shop", "--rule", "login", "-e", "user=eve"];
    for arguments in [&["set", "--for", "90m"][..], &["lift"], &["lift"]] {
        let arguments = [arguments, &key].concat();
        run(bans(&server, &arguments).env("QUELL_TOKEN", token.trim()));
    }
    let mut forgive = bans(&server, &["forgive", "--domain", "shop", "-e", "user=eve"]);
    forgive.args(["-e", "path=/api", "-e", "remote_address=10.0.0.7"]);
    let forgiven = run(forgive.env("QUELL_TOKEN", token.trim()));
    assert_eq!(forgiven.code(), Some(1), "nothing was used: {forgiven:?}");
    let mut check = quell(&["check", "-d", "shop", "-e", "user=eve"]);
    check
        .args(["--url", &server.url("")])
        .env("QUELL_TOKEN", token.trim());
    run(&mut check).expect_success();
    let mut forgive = bans(&server, &[&["forgive"][..], &key].concat());
    run(forgive.env("QUELL_TOKEN", token.trim())).expect_success();
    let mut nobody = bans(&server, &["set", "--for", "5m", "-d", "shop"]);
    let nobody = run(nobody
        .args(["-e", "unknown=eve"])
        .env("QUELL_TOKEN", token.trim()));
    assert_eq!(nobody.code(), Some(1), "no rule matches: {nobody:?}");

    let who = "by=\"the token `ops`\" from=\"127.0.0.1\"";
    for (message, keys, changed) in [
        ("banned for 1 hour, 30 minutes", r#"["login user=eve"]"#, 1),
        ("ban lifted", r#"["login user=eve"]"#, 1),
        ("there was no ban to lift", r#"["login user=eve"]"#, 0),
        ("use forgiven", r#"["login user=eve"]"#, 1),
        ("banned no key", "[]", 0),
        (
            "there was no use to forgive",
            r#"["login user=eve", "network remote_address=10.0.0.0"]"#,
            0,
        ),
    ] {
        let expected = format!("{message} domain=\"shop\" keys={keys} changed={changed} {who}");
        assert_eq!(lines(&server, &[message]).len(), 1, "{}", server.log());
        assert!(
            server.log().contains(&expected),
            "no {expected}\n{}",
            server.log()
        );
    }

    // An action that is refused is not taken, and says so to its caller.
    let refused = run(&mut bans(
        &server,
        &[&["set", "--for", "7m"][..], &key].concat(),
    ));
    assert_eq!(refused.code(), Some(3), "no token: nobody is asked");
    assert!(!server.log().contains("7 minutes"), "{}", server.log());
    server.stop();
}

#[test]
fn keys_are_hashes_where_the_decision_log_has_hashes() {
    let folder = Folder::new();
    let (rules, log) = (
        folder.write("shop.yaml", RULES),
        folder.path("decisions.log"),
    );
    let hashed = ["--decision-log", &log, "--decision-log-hash-keys"];
    let server = Server::start(&[&["--rules", &rules][..], &hashed].concat());
    run(&mut quell(&[
        "check",
        "--url",
        &server.url(""),
        "-d",
        "shop",
        "-e",
        "user=eve",
    ]))
    .expect_success();
    let ban = [
        "set", "-d", "shop", "-r", "login", "-e", "user=eve", "--for", "10m",
    ];
    run(&mut bans(&server, &ban)).expect_success();
    let line = lines(&server, &["banned for 10 minutes"]).remove(0);
    let decided = until("the decision is written", || {
        let text = std::fs::read_to_string(&log).ok()?;
        let line = text.lines().next()?;
        serde_json::from_str::<serde_json::Value>(line).ok()
    });
    let hash = decided["key"].as_str().unwrap();
    assert!(
        line.contains(&format!("keys=[\"login {hash}\"]")),
        "{hash}: {line}"
    );
    assert!(!line.contains("eve"), "{line}");
    assert!(
        line.contains("by=\"anyone, since there are no credentials\""),
        "{line}"
    );
    server.stop();
}

#[test]
fn what_a_stranger_wrote_forges_no_line_and_no_field() {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", RULES);
    let server = Server::start(&[
        "--rules",
        &rules,
        "--admin",
        &format!("unix:{}", folder.path("admin")),
    ]);
    let body = r#"{"domain":"shop","rule":"login","for":"1m","entries":{"user":"a\" by=\"root\n2026-11-23 ERROR forged \u001b[2J\u202e"}}"#;
    let (socket, url) = (folder.path("admin"), "http://localhost/v1/bans");
    run(curl().args(["-s", "--unix-socket", &socket, "--json", body, url])).expect_success();
    let told = lines(&server, &["banned for 1 minute"]);
    let [line] = &told[..] else {
        panic!("{told:?}")
    };
    assert!(line.contains("from=\"a Unix socket\""), "{line}");
    assert!(!line.contains(" by=\"root"), "{line}");
    assert!(!line.contains(['\u{1b}', '\u{202e}']), "{line}");
    assert!(
        !server
            .log()
            .lines()
            .any(|line| line.starts_with("2026-11-23 ERROR"))
    );
    // Long values are shortened.
    let long = format!(
        r#"{{"domain":"shop","rule":"login","for":"2m","entries":{{"user":"{}"}}}}"#,
        "x".repeat(8_000)
    );
    run(curl().args(["-s", "--unix-socket", &socket, "--json", &long, url])).expect_success();
    let line = lines(&server, &["banned for 2 minutes"]).remove(0);
    assert!(line.len() < 400 && line.contains("xxx...#"), "{line}");
    server.stop();
}

#[test]
fn a_certificate_is_a_caller() {
    let certificates = Certificates::new();
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", RULES);
    let entry = "[[certificates]]\nname = \"ops-laptop\"\nsan = \"spiffe://example.org/checkout\"\nroles = [\"admin\"]\n";
    let credentials = folder.write("credentials.toml", entry);
    let authority = certificates.path("ca.pem");
    let mut serve = quell(&[
        "serve",
        "--http",
        "127.0.0.1:0",
        "--resp",
        "off",
        "--rules",
        &rules,
    ]);
    serve.args(["--credentials", &credentials, "--tls-client-ca", &authority]);
    let server = Server::spawn(serve.args(certificates.flags()));
    let url = format!("https://localhost:{}", server.http);
    let mut ban = quell(&["bans", "set", "-d", "shop", "-r", "login", "-e", "user=eve"]);
    ban.args(["--for", "1d", "--url", &url, "--ca", &authority]);
    ban.args([
        "--cert",
        &certificates.path("client.pem"),
        "--key",
        &certificates.path("client.key"),
    ]);
    run(&mut ban).expect_success();
    let line = lines(&server, &["banned for 24 hours"]).remove(0);
    assert!(
        line.contains("by=\"the certificate `ops-laptop`\""),
        "{line}"
    );
    server.stop();
}

/// An operator who hangs up has banned all the same, and whoever reads the log sees who it was.
#[test]
fn a_ban_is_a_line_although_who_banned_hangs_up_or_the_store_does_not_say() {
    let (redis, folder) = (Redis::start(), Folder::new());
    let declared = RULES.replace("rules:", "defaults: { on_failure: deny }\nrules:");
    let (rules, url) = (folder.write("shop.yaml", &declared), redis.url());
    let start = |timeout: &str| {
        let store = ["--store", &url, "--store-timeout", timeout];
        Server::start(&[&["--rules", &rules][..], &store].concat())
    };
    let ban = |server: &Server, user: &str, length: &str| {
        let body = format!(
            r#"{{"domain":"shop","rule":"login","entries":{{"user":"{user}"}},"for":"{length}","reason":"spam"}}"#
        );
        let mut curl = curl();
        curl.args(["--http2-prior-knowledge", "--silent", "--json", &body]);
        run(curl.args(["--max-time", "5", &server.url("/v1/bans")]))
    };
    let server = start("60s");
    redis.say(&["CLIENT", "PAUSE", "60000", "WRITE"]);
    let hung_up = ban(&server, "eve", "3m");
    assert_eq!(hung_up.code(), Some(28), "{hung_up:?}");
    redis.say(&["CLIENT", "UNPAUSE"]);
    lines(&server, &["banned for 3 minutes", "login user=eve"]);
    let list = run(&mut bans(&server, &["list"])).expect_success();
    assert!(list.contains("eve") && list.contains("spam"), "{list}");
    server.stop();

    let server = start("100ms");
    redis.say(&["CLIENT", "PAUSE", "60000", "WRITE"]);
    let unknown = ban(&server, "bob", "4m").expect_success();
    assert!(
        unknown.contains("the store does not say whether it was done")
            && unknown.contains("; doing it again does no harm"),
        "{unknown}"
    );
    let told = "banned for 4 minutes, or perhaps not: the store did not answer";
    lines(&server, &[told, "login user=bob"]);
    redis.say(&["CLIENT", "UNPAUSE"]);
    // Where the store says no, nothing was done.
    redis.say(&["CONFIG", "SET", "maxmemory", "1"]);
    let refused = ban(&server, "kim", "6m").expect_success();
    assert!(refused.contains("it refused: OOM"), "{refused}");
    assert!(!server.log().contains("6 minutes"), "{}", server.log());
    server.stop();
}

/// RESP has no command for administration. What it brings is another version of the rules, through the
/// store that keeps them.
#[test]
fn a_push_a_rollback_and_a_reload_are_lines() {
    let (redis, folder) = (Redis::start(), Folder::new());
    let url = redis.url();
    let file = folder.write("shop.yaml", RULES);
    let rules = |words: &[&str]| {
        let store = ["--store", &url, "--by", "ann"];
        run(quell(&["rules"]).args(words).args(store))
    };
    rules(&["push", &file]).expect_success();
    let server = Server::start(&["--rules", &url]);
    let changed = folder.write("shop.yaml", &RULES.replace("100/min", "50/min"));
    rules(&["push", &changed, "--expect", "1"]).expect_success();
    let line = lines(&server, &["version 2 of"]).remove(0);
    assert!(
        line.contains("reloaded: 1 changed (shop/login); version 2 of"),
        "{line}"
    );
    assert!(line.contains(", by ann "), "{line}");
    assert!(
        line.contains("occasion=\"a new version in the store\""),
        "{line}"
    );
    rules(&["rollback", "1"]).expect_success();
    lines(&server, &["reloaded: 1 changed (shop/login); version 3 of"]);
    server.signal("HUP");
    lines(
        &server,
        &["reloaded: no rule changed", "occasion=\"SIGHUP\""],
    );

    let commands = run(redis_cli(server.resp).args(["COMMAND", "LIST"])).expect_success();
    assert!(commands.contains("quell.acquire"), "{commands}");
    for word in ["ban", "lift", "forgive", "push", "reload"] {
        assert!(!commands.to_lowercase().contains(word), "{commands}");
    }
    server.stop();
}
