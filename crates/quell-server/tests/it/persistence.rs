//! States that outlive the process.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use quell::clock::{Clock, ManualClock};
use quell_core::time::{Monotonic, Now, Wall};
use quell_server::ServeError;

use crate::harness::{Fixture, SHOP, eventually};

const KEPT: &str = "data_dir = 'DIR/data'\nsnapshot_interval = '1h'";

/// The file of a server that was stopped.
fn snapshot(server: &Fixture) -> std::path::PathBuf {
    server.path("data").join("snapshot.quell")
}

fn throttle(server: &Fixture) -> String {
    server.resp_exchange(b"CL.THROTTLE k 0 1 3600\r\n")
}

#[test]
fn a_clean_stop_loses_nothing() {
    let mut server = Fixture::with_clock(SHOP, KEPT);
    for _ in 0..40 {
        server.acquire("/login", "a");
    }
    for _ in 0..3 {
        server.acquire("/strict", "b");
    }
    assert!(throttle(&server).contains(":0\r\n:1\r\n"));
    server.stop();
    let mode = |path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(snapshot(&server)), 0o600, "it holds a secret");
    assert_eq!(mode(server.path("data")), 0o700);
    // The monotonic clock of another process has nothing in common with that of the last one.
    let wall = server.clock.as_ref().unwrap().now().wall;
    server.clock = Some(Arc::new(ManualClock::new(Now {
        monotonic: Monotonic::from_nanos(1_000),
        wall: Wall::from_nanos(wall.as_nanos() + 6_000_000_000),
    })));
    server.start().unwrap();
    let verdict = server.acquire("/login", "a").json();
    assert_eq!(
        verdict["remaining"], 69,
        "40 of 100 used, 10 came back in 6 s, 1 taken"
    );
    assert_eq!(server.acquire("/strict", "b").json()["banned"], true);
    let bans = server.get("/v1/bans").json();
    assert_eq!(
        bans["bans"][0]["entries"]["user"], "b",
        "a banned key keeps its name"
    );
    assert!(
        throttle(&server).starts_with("*5\r\n:1\r\n"),
        "limits that came with calls too"
    );
}

/// Limits from calls are dropped when too many others are in use.
#[test]
fn use_under_other_limits_than_the_last_survives_a_restart() {
    let mut server = Fixture::with_clock("", KEPT);
    let ask = |server: &Fixture| server.resp_exchange(b"CL.THROTTLE k 59 60 3600 60\r\n");
    assert!(ask(&server).starts_with("*5\r\n:0\r\n"));
    let reply = server.resp_exchange(b"CL.THROTTLE k 0 1 1\r\n");
    assert!(reply.starts_with("*5\r\n:1\r\n"), "{reply}");
    let advance = |server: &Fixture, seconds| {
        let clock = server.clock.as_ref().unwrap();
        clock.advance(Duration::from_secs(seconds));
    };
    advance(&server, 3);
    let bursts: Vec<u32> = (1..=65_536).collect();
    for bursts in bursts.chunks(1_024) {
        let calls = bursts.iter();
        let calls = calls.map(|burst| format!("CL.THROTTLE other {burst} 1 10\r\n"));
        server.resp_exchange(calls.collect::<String>().as_bytes());
    }
    server.stop();
    advance(&server, 60);
    server.start().unwrap();
    let reply = ask(&server);
    assert!(reply.starts_with("*5\r\n:1\r\n"), "{reply}");
    let one = server.resp_exchange(b"CL.THROTTLE k 59 60 3600\r\nCL.THROTTLE k 59 60 3600\r\n");
    let allowed = one.matches("*5\r\n:0\r\n").count();
    assert_eq!(allowed, 1, "a minute brings one of sixty: {one}");
}

/// A rule that is missing from the file before a restart, and is back after it.
#[test]
fn bans_of_a_rule_that_is_dropped_survive_a_restart() {
    let mut server = Fixture::with_clock(SHOP, KEPT);
    for _ in 0..3 {
        server.acquire("/strict", "b");
    }
    let rules = server.path("rules.yaml");
    fs::write(&rules, "{domain: shop, rules: []}").unwrap();
    assert!(server.reload());
    assert_eq!(server.acquire("/strict", "b").json()["allowed"], true);
    let key = r#""domain":"shop","rule":"login","entries":{"user":"eve"}"#;
    fs::write(&rules, SHOP).unwrap();
    assert!(server.reload());
    let ban = format!(r#"{{{key},"for":"1d","reason":"tries passwords"}}"#);
    assert_eq!(server.request("POST", "/v1/bans", &ban).status, 200);
    fs::write(&rules, "{domain: shop, rules: []}").unwrap();
    assert!(server.reload());
    server.stop();
    server.start().unwrap();
    fs::write(&rules, SHOP).unwrap();
    assert!(server.reload());
    assert_eq!(server.acquire("/strict", "b").json()["banned"], true);
    let bans = server.get("/v1/bans").json()["bans"].clone();
    let why = |at: usize| {
        (
            bans[at]["entries"]["user"].clone(),
            bans[at]["reason"].clone(),
        )
    };
    assert_eq!(why(0), ("eve".into(), "tries passwords".into()));
    assert_eq!(why(1), ("b".into(), serde_json::Value::Null));
}

#[test]
fn use_survives_a_change_of_the_limit_over_a_restart() {
    let mut server = Fixture::with_clock(SHOP, KEPT);
    for _ in 0..40 {
        server.acquire("/login", "a");
    }
    server.stop();
    let slower = SHOP.replace("rate: 100/min", "rate: 50/min");
    fs::write(server.path("rules.yaml"), slower).unwrap();
    server.start().unwrap();
    assert_eq!(server.acquire("/login", "a").json()["remaining"], 9);
}

#[test]
fn a_crash_loses_no_more_than_an_interval() {
    let settings = "data_dir = 'DIR/data'\nsnapshot_interval = '100ms'";
    let mut server = Fixture::new(SHOP, settings);
    server.acquire("/strict", "a");
    // A snapshot that began after the answer contains it; the next number may still be of an
    // earlier one.
    let written = || {
        server
            .metric("quell_snapshots_total")
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    eventually("a snapshot is written", || written() >= 1);
    server.resp_exchange(b"CL.THROTTLE other 0 1 3600\r\n");
    eventually("another is written", || written() >= 2);
    server.kill();
    server.start().unwrap();
    assert_eq!(server.acquire("/strict", "a").json()["allowed"], false);
}

#[test]
fn nothing_is_written_while_nothing_changes() {
    let settings = "data_dir = 'DIR/data'\nsnapshot_interval = '100ms'";
    let server = Fixture::new(SHOP, settings);
    let written = || server.metric("quell_snapshots_total");
    eventually("the first is written", || written().as_deref() == Some("1"));
    let peek = r#"{"domain":"shop","entries":{"path":"/strict","user":"a"}}"#;
    // With turns in between, after each of which one more would have been written.
    for changes in 2..12 {
        server.request("POST", "/v1/peek", peek);
        server.acquire("/login", "a");
        let mut last = 0;
        eventually("a change is", || {
            last = written().unwrap().parse().unwrap();
            last >= changes
        });
        assert_eq!(last, changes);
    }
}

#[test]
fn what_a_crash_left_half_written_is_ignored() {
    let mut server = Fixture::with_clock(SHOP, KEPT);
    server.acquire("/strict", "a");
    server.stop();
    let unfinished = server.path("data").join("snapshot.quell.tmp");
    fs::write(&unfinished, b"quell snap").unwrap();
    server.start().unwrap();
    assert_eq!(server.acquire("/strict", "a").json()["allowed"], false);
    assert!(!unfinished.exists());
}

fn refusal(server: &mut Fixture) -> String {
    match server.start() {
        Err(error @ ServeError::DataDir(_)) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn torn_and_foreign_files_and_those_of_another_format_are_refused() {
    let mut server = Fixture::with_clock(SHOP, KEPT);
    for user in 0..20 {
        server.acquire("/login", &format!("user-{user}"));
    }
    server.stop();
    let file = snapshot(&server);
    let sound = fs::read(&file).unwrap();
    for end in (21..sound.len()).step_by(97).chain([sound.len() - 1]) {
        fs::write(&file, &sound[..end]).unwrap();
        let error = refusal(&mut server);
        assert!(
            error.contains("snapshot.quell is damaged"),
            "cut at {end}: {error}"
        );
        assert!(error.contains("move it away"), "{error}");
    }
    for at in (20..sound.len()).step_by(53) {
        let mut damaged = sound.clone();
        damaged[at] ^= 0x10;
        fs::write(&file, &damaged).unwrap();
        assert!(
            refusal(&mut server).contains("is damaged"),
            "damaged at {at}"
        );
    }
    fs::write(&file, [&sound[..], b"x"].concat()).unwrap();
    assert!(refusal(&mut server).contains("something follows the end"));
    for format in [0, 9] {
        let mut other = sound.clone();
        other[16] = format;
        fs::write(&file, &other).unwrap();
        let error = refusal(&mut server);
        let told =
            format!("has format {format}, and this version of quell reads 1: start the version");
        assert!(error.contains(&told), "{error}");
    }
    fs::write(&file, b"REDIS0011 something else entirely").unwrap();
    assert!(refusal(&mut server).contains("is not a snapshot of Quell"));
    fs::write(&file, b"").unwrap();
    assert!(refusal(&mut server).contains("is not a snapshot of Quell"));
    fs::write(&file, &sound).unwrap();
    server.start().unwrap();
    assert_eq!(server.metric("quell_keys").as_deref(), Some("20"));
}

#[test]
fn two_servers_do_not_share_a_directory() {
    let first = Fixture::new("", KEPT);
    let data = first.path("data");
    let settings = format!("data_dir = '{}'", data.display());
    let error = Fixture::try_new("", &settings).err().unwrap().to_string();
    assert!(error.contains("is in use by another server"), "{error}");
    assert!(error.contains("give another --data-dir"), "{error}");
}

/// A failure to write is reported where an operator looks, for as long as it lasts.
#[test]
fn a_disk_that_takes_nothing_shows_in_health_and_metrics() {
    let settings = "data_dir = 'DIR/data'\nsnapshot_interval = '100ms'\ndecision_log = '/dev/full'";
    let server = Fixture::new(SHOP, settings);
    assert_eq!(server.get("/healthz").json()["status"], "ok");
    // Nothing can be written while a directory is in the way.
    let in_the_way = server.path("data").join("snapshot.quell.tmp");
    while fs::create_dir(&in_the_way).is_err() {}
    // A change that is no decision, in case that all there was is written already.
    let ban = r#"{"domain":"shop","rule":"login","entries":{"user":"eve"},"for":"1h"}"#;
    assert_eq!(server.request("POST", "/v1/bans", ban).status, 200);
    eventually("health says so of the snapshot", || {
        let health = server.get("/healthz").json();
        assert!(
            health["decision_log_failing"].is_null(),
            "nothing is logged"
        );
        health["status"] == "degraded" && health["snapshot_failure"]["reasons"][0].is_string()
    });
    server.acquire("/login", "a");
    eventually("health says so of the log", || {
        server.get("/healthz").json()["decision_log_failing"] == true
    });
    assert_eq!(server.get("/readyz").status, 200, "it answers");
    assert_eq!(
        server.metric("quell_snapshot_failing").as_deref(),
        Some("1")
    );
    assert_eq!(
        server.metric("quell_decision_log_failing").as_deref(),
        Some("1")
    );
    fs::remove_dir(&in_the_way).unwrap();
    eventually("it is written again", || {
        server.metric("quell_snapshot_failing").as_deref() == Some("0")
    });
    let health = server.get("/healthz").json();
    assert!(health["snapshot_failure"].is_null());
    assert_eq!(health["status"], "degraded", "the log is not");
}

/// Opening a pipe blocks until its other end is opened.
#[test]
fn a_pipe_in_place_of_a_file_is_refused_at_once() {
    let log = KEPT.to_owned() + "\ndecision_log = 'DIR/data/decisions'";
    for (name, told) in [
        ("snapshot.quell", "is not a regular file: move it away"),
        ("quell.lock", "is not a regular file: move it away"),
        ("decisions", "it is a pipe: write - for standard output"),
    ] {
        let mut server = Fixture::prepare(SHOP, &log);
        let data = server.path("data");
        fs::create_dir(&data).unwrap();
        let made = std::process::Command::new("mkfifo")
            .arg(data.join(name))
            .status();
        assert!(made.unwrap().success());
        let error = server.start().unwrap_err();
        let error = std::error::Error::source(&error)
            .map_or_else(|| error.to_string(), ToString::to_string);
        assert!(error.contains(told), "{error}");
    }
}
