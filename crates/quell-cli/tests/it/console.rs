//! The console in a browser: `tests/clients/console.mjs` uses it as a person does, by keyboard, on a wide
//! and on a narrow screen, and looks for what is in the way of people who cannot see it.

use std::net::TcpListener;

use crate::clients::browser;
use crate::files::Folder;
use crate::process::{quell, run, run_with_input};
use crate::restart::Script;
use crate::server::Server;
use crate::shared_store::Redis;

const RULES: &str = "
domain: shop
rules:
  - name: login
    match: { path: /login }
    per: [user]
    algorithm: sliding_log
    limit: 2/min
    ban: { after: 5, within: 10m, for: [1h] }
";

/// Rules for a store.
const STORED: &str = "# the shop's limits
domain: shop
rules:
  - name: login   # by address
    per: [user]
    algorithm: fixed_window
    limit: 5/min # a lot
  - { name: search, rate: 100/s }
";

/// A port that a second server can have after the first.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// Adds a person to the credentials in `file`.
pub(crate) fn add_person(file: &str, name: &str, roles: &[&str]) {
    let mut command = quell(&["token", "password", name, "--append", file]);
    roles.iter().for_each(|role| {
        command.args(["--role", role]);
    });
    run_with_input(&mut command, b"four words of theirs\n").expect_success();
}

#[test]
fn a_person_uses_the_console_in_a_browser() {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", RULES);
    let credentials = folder.write("credentials.toml", "");
    add_person(&credentials, "ada", &["read", "admin"]);
    add_person(&credentials, "rea", &["read"]);
    let guarded = Server::start(&["--rules", &rules, "--credentials", &credentials]);
    let (redis, first) = (Redis::start(), folder.write("first.yaml", STORED));
    run(quell(&["rules", "push", "--store", &redis.url(), &first]).env("USER", "ann"))
        .expect_success();
    let stored = Server::start(&["--rules", &redis.url()]);
    let port = free_port();
    let open = |port| Server::start_on(port, 0, &["--rules", &rules]);
    let server = open(port);
    let script = Script::start(&mut browser(
        "console.mjs",
        &[guarded.http, port, stored.http],
    ));
    script.expect("logged in and out by keyboard");
    script.expect("a key is looked up and banned");
    script.expect("rules are edited by two people and brought back");
    let log = stored.log();
    let pushed = r#"note="more people" change="1 changed (shop/login)""#;
    assert!(log.contains(pushed), "{log}");
    let history = run(&mut quell(&["rules", "history", "--store", &redis.url()])).expect_success();
    assert!(history.contains("back to version 1"), "{history}");
    script.expect("refusals are shown as they happen");
    server.kill();
    script.expect("the page says that the connection is lost");
    let server = open(port);
    script.expect("and that it is back");
    server.stop();
    guarded.stop();
    script.end();
}
