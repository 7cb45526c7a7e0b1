//! The migration of `docs/coming-from.md`: limits in Redis hashes become rules in the same Redis.

use std::process::Command;

use serde_json::Value;

use super::Shelf;
use crate::clients::{ab, require};
use crate::files::of_repository;
use crate::process::{run, run_with_input, until};
use crate::server::Server;

/// The fenced block of the page that begins with this.
fn block(beginning: &str) -> String {
    let page = std::fs::read_to_string(of_repository("docs/coming-from.md")).unwrap();
    let (_, rest) = page.split_once(beginning).unwrap();
    rest.split("```").next().unwrap().to_owned()
}

/// A server's answer for a call of this path.
fn peek(server: &Server, path: &str) -> Value {
    server.peek("org1", &format!("path={path}")).unwrap()
}

/// Number of 110 calls of `/user/list`, ten at a time, that are refused.
fn refused(server: &Server) -> u64 {
    let url = server.url("/v1/authorize?domain=org1");
    let path = "X-Quell-Entry-Path: /user/list";
    let report = run(ab().args(["-n", "110", "-c", "10", "-H", path, &url])).expect_success();
    let line = report
        .lines()
        .find_map(|line| line.strip_prefix("Non-2xx responses:"));
    line.map_or(0, |count| count.trim().parse().unwrap())
}

#[test]
fn old_hashes_become_rules_that_servers_follow() {
    require("redis-cli");
    let shelf = Shelf::new();
    // The page's second becomes an hour, so that the test has time.
    let hashes = [
        ["HMSET", "org1/user/list", "expire", "1", "limitReq", "100"],
        ["HMSET", "org1/order/add", "expire", "60", "limitReq", "5"],
        ["HMSET", "org2/user/list", "expire", "1", "limitReq", "7"],
    ];
    for hash in &hashes {
        shelf.redis.command(hash);
    }
    // A counter of the old script is stored next to its limit.
    shelf
        .redis
        .command(&["SET", "org1/user/list:10.0.0.1", "3"]);
    let port = format!("redis-cli -p {}", shelf.redis.port());
    let script = block("```sh\n# migrate.sh").replace("redis-cli", &port);
    let migrate = || run(Command::new("sh").args(["-c", &format!("# {script}")])).expect_success();
    assert_eq!(migrate(), block("$ sh migrate.sh\n"));

    shelf
        .redis
        .command(&["HSET", "org1/user/list", "expire", "3600"]);
    let push = ["push", "-", "--note", "from the hashes"];
    let pushed = run_with_input(&mut shelf.command(&push), migrate().as_bytes());
    assert!(pushed.expect_success().contains("version 1 is in"));
    let url = shelf.redis.url();
    let words = ["--rules", &url, "--store", &url, "--store-timeout", "10s"];
    let servers = [Server::start(&words), Server::start(&words)];
    // The check at the end of the recipe; a path without an entry has no limit.
    assert_eq!(refused(&servers[0]), 10);
    assert_eq!(refused(&servers[1]), 110, "they are one limiter");
    assert_eq!(peek(&servers[1], "/user/get")["unmatched"], true);

    // hmset .. limitReq 200: a hundred more, because what was used still counts.
    shelf.good(&["set", "user-list", "limit=200/3600s"]);
    for server in &servers {
        until("the new limit is in force", || {
            (peek(server, "/user/list")["decisions"][0]["limit"] == 200).then_some(())
        });
    }
    assert_eq!(refused(&servers[0]), 10);
    let told = shelf.bad(&["set", "user-list", "limit=1oo/s"], 1);
    assert!(told.contains("version 3:11:12: rules[1].limit: "), "{told}");

    // del: without an entry there is no limit.
    let file = shelf.folder.path("org1.yaml");
    shelf.good(&["pull", "--output", &file]);
    let text = std::fs::read_to_string(&file).unwrap();
    let (kept, _) = text.split_once("  - name: user-list").unwrap();
    shelf.folder.write("org1.yaml", kept);
    assert!(shelf.good(&["push", &file]).contains("- org1/user-list: "));
    until("the limit is gone", || {
        (peek(&servers[1], "/user/list")["unmatched"] == true).then_some(())
    });
    for server in servers {
        server.stop();
    }
}
