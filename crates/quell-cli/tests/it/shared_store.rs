//! Servers that share a store have one limit, whichever of them is asked.

use quell_testkit::redis::Redis;

use crate::clients::{ab, redis_cli};
use crate::files::{Folder, of_repository, shared_rules};
use crate::process::{quell, run, until};
use crate::server::Server;

/// Two servers with the same rules and a shared store, whose timeout is enough even for a busy
/// machine.
pub(crate) fn two_servers(redis: &Redis, rules: &str) -> [Server; 2] {
    let (folder, store) = (Folder::new(), redis.url());
    let rules = folder.write("shared.yaml", rules);
    let arguments = ["--rules", &rules, "--store", &store];
    let arguments = [&arguments[..], &["--store-timeout", "10s"]].concat();
    [(); 2].map(|()| Server::start(&arguments))
}

#[test]
fn of_110_calls_spread_over_two_servers_100_pass() {
    let redis = Redis::start(&[]);
    let servers = two_servers(&redis, &shared_rules("ab", "100/min"));
    // In parallel, so that both servers are asked at the same time.
    let reports = std::thread::scope(|scope| {
        let asked = servers.each_ref().map(|server| {
            let url = server.url("/v1/authorize?domain=ab");
            scope.spawn(move || run(ab().args(["-n", "55", "-c", "5", &url])).expect_success())
        });
        asked.map(|asked| asked.join().unwrap())
    });
    let mut passed = 0;
    for report in reports {
        let refused = report
            .lines()
            .find_map(|line| line.strip_prefix("Non-2xx responses:"));
        let refused: u64 = refused.map_or(0, |count| count.trim().parse().unwrap());
        passed += 55 - refused;
    }
    assert_eq!(passed, 100);
    for server in servers {
        server.stop();
    }
}

#[test]
fn every_scenario_goes_on_redis_as_it_says() {
    let redis = Redis::start(&[]);
    let arguments = [
        "rules",
        "test",
        "--store",
        &redis.url(),
        &of_repository("examples"),
    ];
    run(&mut quell(&arguments)).expect_success();
    assert_eq!(
        redis.command(&["DBSIZE"]).trim(),
        "0",
        "nothing is left behind"
    );
}

/// Clients get the declared answer, and are told that it is one.
#[test]
fn an_outage_shows_on_every_wire_and_in_every_number() {
    let redis = Redis::start(&[]);
    let folder = Folder::new();
    let rules = folder.write(
        "outage.yaml",
        "domain: d\nrules:\n\
         - { name: shared, match: { path: /shared }, rate: 10/h }\n\
         - { name: denied, match: { path: /denied }, rate: 10/h, on_failure: deny }\n\
         - { name: allowed, match: { path: /allowed }, rate: 10/h, on_failure: allow }\n\
         defaults: { on_failure: share, nodes: 2 }\n",
    );
    let log = folder.path("decisions.jsonl");
    let store = ["--store", &*redis.url(), "--store-timeout", "10s"];
    let words = ["--rules", &*rules, "--decision-log", &log];
    let server = Server::start(&[&words[..], &store].concat());
    let ask = |path: &str| {
        let url = server.url("/v1/authorize?domain=d");
        let mut curl = crate::clients::curl();
        curl.args(["-s", "-i", "-H", &format!("X-Original-URI: {path}"), &url]);
        run(&mut curl).expect_success()
    };
    assert!(!ask("/shared").contains("quell-degraded"));
    drop(redis);
    until("the store is found gone", || {
        ask("/allowed");
        (server.metric("quell_store_gone") == Some(1)).then_some(())
    });
    let denied = ask("/denied");
    assert!(denied.starts_with("HTTP/1.1 503"), "{denied}");
    assert!(denied.contains("retry-after: 1") && denied.contains("temporary-reduced-capacity"));
    let allowed = ask("/allowed");
    assert!(allowed.starts_with("HTTP/1.1 204") && allowed.contains("quell-degraded: ?1"));
    until("the share of 5 is used up", || {
        ask("/shared").starts_with("HTTP/1.1 503").then_some(())
    });
    let said = run(redis_cli(server.resp).args(["QUELL.ACQUIRE", "d", "path", "/allowed"]));
    let said = said.expect_success();
    let lines: Vec<&str> = said.lines().collect();
    let degraded = lines.iter().position(|line| *line == "degraded").unwrap();
    assert_eq!(lines[degraded + 1], "1", "{said}");
    // A limit that comes with the call declares nothing, and its reply has no field to report that.
    let throttled = run(redis_cli(server.resp).args(["CL.THROTTLE", "k", "1", "1", "1"]));
    assert!(
        throttled.stdout.contains("the store does not answer"),
        "{throttled:?}"
    );
    for (name, least) in [
        ("quell_store_gone", 1),
        ("quell_degraded_decisions_total{on_failure=\"share\"}", 5),
        ("quell_degraded_decisions_total{on_failure=\"deny\"}", 1),
        ("quell_degraded_decisions_total{on_failure=\"allow\"}", 2),
        ("quell_store_calls_total", 1),
        ("quell_store_owed_keys", 1),
        ("quell_share_bytes", 100),
    ] {
        assert!(
            server.metric(name) >= Some(least),
            "{name}: {:?}",
            server.metric(name)
        );
    }
    let lines = server.log().matches("the store is gone").count();
    assert_eq!(lines, 1, "{}", server.log());
    let text = until("decisions are written", || {
        let text = std::fs::read_to_string(&log).unwrap();
        text.contains("\"degraded\":true").then_some(text)
    });
    let first = text.lines().next().unwrap();
    assert!(first.contains("\"store_time\":\"20"), "{first}");
    server.stop();
}

#[test]
fn what_cannot_be_meant_says_what_to_write() {
    for (arguments, words) in [
        (
            vec!["--store", "localhost:6379"],
            "write redis://HOST:PORT/DATABASE",
        ),
        (
            vec!["--store", "redis://me@host"],
            "write redis://USER:PASSWORD@HOST",
        ),
    ] {
        let run = run(quell(&["serve"]).args(&arguments));
        assert_eq!(run.code(), Some(2), "{run:?}");
        assert!(run.stderr.contains(words), "{run:?}");
    }
    let shown = run(&mut quell(&[
        "serve",
        "--store",
        "redis://me:secret@h",
        "--print-config",
    ]));
    let shown = shown.expect_success();
    assert!(
        shown.contains("redis://me:***@h:6379/0") && !shown.contains("secret"),
        "{shown}"
    );
}
