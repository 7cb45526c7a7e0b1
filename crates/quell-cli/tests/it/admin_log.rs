//! Admin log: what the server's log says of an operator's actions, whoever took them.

use std::process::Command;

use crate::files::Folder;
use crate::process::{quell, run, until};
use crate::server::Server;

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
