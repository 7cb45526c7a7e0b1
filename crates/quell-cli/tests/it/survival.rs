//! Survival: what signals and full files leave of the states in `--data-dir`. Restarts and crashes are
//! tested in `crates/quell-server/tests/it/persistence.rs`.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::files::{Folder, window_rules};
use crate::process::{PATIENCE, Run, quell, run, until};
use crate::server::Server;

fn check(server: &Server, user: &str, more: &[&str]) -> Run {
    let (url, user) = (server.url(""), format!("user={user}"));
    let arguments = ["check", "--json", "-d", "shop", "-e", &user, "--url", &url];
    run(quell(&arguments).args(more))
}

fn remaining(server: &Server, user: &str) -> u64 {
    let verdict = server.peek("shop", &format!("user={user}")).unwrap();
    verdict["remaining"].as_u64().unwrap()
}

/// Sends a request with only the first ten bytes of its body.
fn half_a_request(server: &Server, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", server.http)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = format!(
        "POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Expect: 100-continue\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    // The server reads the body now: so the request is known to be in flight.
    let mut go_on = [0; 25];
    stream.read_exact(&mut go_on).unwrap();
    assert!(go_on.starts_with(b"HTTP/1.1 100 Continue"), "{go_on:?}");
    stream.write_all(&body.as_bytes()[..10]).unwrap();
    stream
}

/// GNU `timeout` signals the process and its group, milliseconds apart. The test uses two different
/// signals, because the system may merge two equal ones.
#[test]
fn two_quick_signals_are_one_and_lose_nothing() {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", &window_rules("shop", "5/day"));
    let data = folder.path("data");
    let arguments = ["--rules", &rules, "--data-dir", &data];
    for (signals, left) in [(["INT", "INT"], 3), (["INT", "TERM"], 1)] {
        let mut server = Server::start(&arguments);
        check(&server, "alice", &[]).expect_success();
        let body = r#"{"domain": "shop", "entries": {"user": "alice"}}"#;
        let mut stream = half_a_request(&server, body);
        server.signals(&signals);
        until("nobody new is let in", || {
            let new = TcpStream::connect(("127.0.0.1", server.http));
            new.is_err().then_some(())
        });
        stream.write_all(&body.as_bytes()[10..]).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        assert!(reply.contains("\"allowed\":true"), "{reply}");
        assert_eq!(server.wait().code(), Some(0), "{}", server.log());
        let server = Server::start(&arguments);
        assert_eq!(remaining(&server, "alice"), left);
        server.stop();
    }
}

#[test]
fn a_late_second_signal_ends_the_wait_and_loses_nothing() {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", &window_rules("shop", "5/day"));
    let data = folder.path("data");
    let arguments = ["--rules", &rules, "--data-dir", &data];
    let patient = ["--shutdown-grace", "1h", "--body-timeout", "1h"];
    let mut server = Server::start(&[&arguments[..], &patient].concat());
    check(&server, "alice", &["--cost", "3"]).expect_success();
    let _open = half_a_request(&server, "0123456789abcdef");
    let begun = Instant::now();
    until("it has heard the second signal", || {
        server.signal("INT");
        server.has_ended().then_some(())
    });
    assert!(begun.elapsed() >= Duration::from_secs(1), "not at once");
    let log = server.log();
    assert_eq!(server.wait().code(), Some(1), "{log}");
    until("it says why", || {
        server
            .log()
            .contains("told to stop a second time")
            .then_some(())
    });
    let server = Server::start(&arguments);
    assert_eq!(remaining(&server, "alice"), 2);
    server.stop();
}

/// A system may limit the size of a file (`ulimit -f`), and kills a process that writes more unless
/// it handles the signal.
#[test]
fn a_file_that_may_not_grow_is_told_and_ends_nobody() {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", &window_rules("shop", "5/day"));
    let (data, log) = (folder.path("data"), folder.path("decisions.log"));
    // Its log comes through a pipe, since the file in which a test collects it may be no larger.
    let script = format!(
        "exec 2> >(cat >&2); ulimit -f 2; exec \"$0\" serve --http 127.0.0.1:0 --resp off --rules '{rules}' \
         --data-dir '{data}' --snapshot-interval 100ms --decision-log '{log}'"
    );
    let mut shell = Command::new("bash");
    let mut server = Server::spawn(shell.args(["-c", &script, env!("CARGO_BIN_EXE_quell")]));
    check(&server, "alice", &[]).expect_success();
    until("alice is kept", || {
        (server.metric("quell_snapshots_total") > Some(0)).then_some(())
    });
    let user = "b".repeat(4_000);
    let mut number = 0;
    let health = until("both files are full", || {
        number += 1;
        check(&server, &format!("{user}{number}"), &[]).expect_success();
        let health = server.health();
        let is_told = !health["snapshot_failure"].is_null();
        (is_told && health["decision_log_failing"] == true).then_some(health)
    });
    assert_eq!(health["status"], "degraded", "{health}");
    until("it has failed more than once", || {
        (server.metric("quell_snapshot_failures_total") > Some(2)).then_some(())
    });
    let told = server.log().matches("no snapshot was written").count();
    assert_eq!(told, 1, "once per failure: {}", server.log());
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(1), "{}", server.log());
    let server = Server::start(&["--rules", &rules, "--data-dir", &data]);
    assert_eq!(remaining(&server, "alice"), 4, "the last whole one counts");
    server.stop();
}
