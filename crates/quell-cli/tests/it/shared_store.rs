//! Servers that share a store have one limit, whichever of them is asked.

use std::process::{Child, Command, Stdio};

use crate::clients::{ab, redis_cli};
use crate::files::{Folder, of_repository, shared_rules, window_rules};
use crate::process::{quell, run, until};
use crate::server::{Server, lasting_port};

/// A Redis server on a free port, killed when the test is over.
pub(crate) struct Redis {
    child: Child,
    pub(crate) port: u16,
}

impl Redis {
    pub(crate) fn start() -> Self {
        Self::start_on(lasting_port())
    }

    pub(crate) fn start_on(port: u16) -> Self {
        let mut command = Command::new("redis-server");
        let words = [
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--port",
            &port.to_string(),
        ];
        command
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let child = command.spawn();
        let child = child.expect("redis-server is missing: install Debian's redis-server");
        until("redis-server answers", || {
            let pong = run(redis_cli(port).arg("PING"));
            pong.stdout.starts_with("PONG").then_some(())
        });
        Self { child, port }
    }

    /// A server that was started in another way.
    pub(crate) fn of(child: Child, port: u16) -> Self {
        Self { child, port }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    pub(crate) fn say(&self, words: &[&str]) -> String {
        run(redis_cli(self.port).args(words)).expect_success()
    }
}

/// Two servers with the same rules and a shared store, whose timeout is enough even for a busy
/// machine.
pub(crate) fn two_servers(redis: &Redis, rules: &str) -> [Server; 2] {
    let (folder, store) = (Folder::new(), redis.url());
    let rules = folder.write("shared.yaml", rules);
    let arguments = ["--rules", &rules, "--store", &store];
    let arguments = [&arguments[..], &["--store-timeout", "10s"]].concat();
    [(); 2].map(|()| Server::start(&arguments))
}

impl Drop for Redis {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[test]
fn of_110_calls_spread_over_two_servers_100_pass() {
    let redis = Redis::start();
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
    let redis = Redis::start();
    let arguments = [
        "rules",
        "test",
        "--store",
        &redis.url(),
        &of_repository("examples"),
    ];
    run(&mut quell(&arguments)).expect_success();
    assert_eq!(redis.say(&["DBSIZE"]).trim(), "0", "nothing is left behind");
}

#[test]
fn health_says_where_the_store_is_and_that_it_is_gone() {
    let redis = Redis::start();
    let folder = Folder::new();
    let rules = folder.write("ab.yaml", &shared_rules("ab", "100/min"));
    let server = Server::start(&["--rules", &rules, "--store", &redis.url()]);
    until("the store answers", || {
        (server.health()["status"] == "ok").then_some(())
    });
    assert_eq!(server.health()["store"]["url"], redis.url());
    let port = redis.port;
    drop(redis);
    assert_eq!(server.health()["status"], "degraded");
    // Since when, why, and what callers get.
    let begins = format!("Redis 127.0.0.1:{port} does not answer since ");
    let gets = "): 1 rule lets half its limit pass on each server";
    until("health says what callers get", || {
        let health = server.health();
        let failure = health["store"]["failure"].as_str()?;
        (failure.starts_with(&begins) && failure.ends_with(gets)).then_some(())
    });
    let page = server.get("/console");
    assert!(page.contains(&begins) && page.contains(gets), "{page}");
    // The rules declare an answer, so calls may still be sent here.
    let mut curl = crate::clients::curl();
    curl.args(["-s", "-i", &server.url("/readyz")]);
    let ready = run(&mut curl).expect_success();
    assert!(ready.starts_with("HTTP/1.1 200"), "{ready}");
    assert!(ready.contains("\"status\":\"degraded\""), "{ready}");
    // The store comes back, and nothing else has to be done.
    let _redis = Redis::start_on(port);
    until("the store answers again", || {
        (server.health()["status"] == "ok").then_some(())
    });
    server.stop();
}

/// Clients get the declared answer, and are told that it is one.
#[test]
fn an_outage_shows_on_every_wire_and_in_every_number() {
    let redis = Redis::start();
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
    let store = redis.url();
    let server = Server::start(&["--rules", &rules, "--store", &store, "--decision-log", &log]);
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
fn a_server_that_shares_a_store_has_to_be_told_what_to_answer_without_it() {
    let folder = Folder::new();
    let rules = folder.write("ab.yaml", &window_rules("ab", "100/min"));
    let run = run(quell(&["serve"]).args(["--rules", &rules, "--store", "redis://127.0.0.1:1"]));
    assert!(!run.status.success());
    let words = "ab.yaml:3:5: rules[0]: nothing says what to answer while the store does not";
    assert!(run.stderr.contains(words), "{run:?}");
    assert!(
        run.stderr
            .contains("`defaults: {on_failure: share, nodes: 2}`"),
        "{run:?}"
    );
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

/// A store that answers but refuses is as useless as one that is gone, and is reported in the same
/// way; the last line of the log is true.
#[test]
fn a_store_that_comes_back_and_refuses_is_not_said_to_be_back() {
    let redis = Redis::start();
    let (port, folder) = (redis.port, Folder::new());
    let rules = folder.write("ab.yaml", &shared_rules("ab", "100/min"));
    let server = Server::start(&["--rules", &rules, "--store", &redis.url()]);
    let ask = || {
        let url = server.url("/v1/authorize?domain=ab");
        run(crate::clients::curl().args(["-s", "-i", &url])).expect_success()
    };
    until("the store answers", || {
        (server.health()["status"] == "ok").then_some(())
    });
    drop(redis);
    until("calls fail at once", || {
        ask();
        (server.metric("quell_store_gone") == Some(1)).then_some(())
    });
    // From now on it answers every ping, and takes no write.
    let words = [
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--min-replicas-to-write",
        "1",
    ];
    let mut command = Command::new("redis-server");
    command.args(words).args(["--port", &port.to_string()]);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    let redis = Redis::of(child.unwrap(), port);
    let health = until("health says that it refuses", || {
        ask();
        let health = server.health();
        let failure = health["store"]["failure"].as_str()?;
        failure.contains("NOREPLICAS").then_some(health.clone())
    });
    assert_eq!(health["status"], "degraded");
    assert_eq!(health["store"]["gone"], false);
    assert!(ask().contains("quell-degraded: ?1"));
    assert_eq!(server.metric("quell_degraded"), Some(1));
    assert!(
        !server.log().contains("the store is back"),
        "{}",
        server.log()
    );
    redis.say(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    // No calls are made.
    until("the log says that it is over", || {
        server.log().contains("the store is back").then_some(())
    });
    assert_eq!(server.health()["status"], "ok");
    assert_eq!(server.metric("quell_degraded"), Some(0));
    assert!(!ask().contains("quell-degraded"));
    let log = server.log();
    for line in ["the store does not decide", "the store is back"] {
        assert_eq!(log.matches(line).count(), 1, "{log}");
    }
    server.stop();
}

#[test]
fn a_store_that_may_drop_states_is_warned_of() {
    let redis = Redis::start();
    redis.say(&["CONFIG", "SET", "maxmemory", "100mb"]);
    redis.say(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let folder = Folder::new();
    let rules = folder.write("ab.yaml", &shared_rules("ab", "100/min"));
    let server = Server::start(&["--rules", &rules, "--store", &redis.url()]);
    let health = until("health has the warning", || {
        let health = server.health();
        health["store"]["warnings"].is_array().then_some(health)
    });
    let warning = health["store"]["warnings"][0].to_string();
    assert!(warning.contains("maxmemory-policy allkeys-lru"), "{health}");
    until("the log has it", || {
        let log = server.log();
        log.contains("maxmemory-policy allkeys-lru").then_some(())
    });
    server.stop();
}
