//! `quell serve`: settings from all sources, its output at the start, and how it ends.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use serde_json::Value;

use crate::clients::curl;
use crate::files::{Folder, of_repository, window_rules};
use crate::process::{PATIENCE, quell, run, until};
use crate::server::Server;

#[test]
fn it_works_without_any_rules() {
    let server = Server::start(&[]);
    assert!(
        server.log().contains("no rules (CL.THROTTLE needs none"),
        "{}",
        server.log()
    );
    assert_eq!(server.health()["status"], "ok");
    assert!(server.stdout().is_empty());
    server.stop();
}

#[test]
fn the_shop_of_the_examples_is_served() {
    let server = Server::start(&["--rules", &of_repository("examples/shop.yaml")]);
    let log = server.log();
    assert!(
        log.contains("6 rules in 1 domain; states in memory only"),
        "{log}"
    );
    assert_eq!(server.health()["rules"], 6);
    server.stop();
}

#[test]
fn flags_count_before_variables_and_those_before_the_file() {
    let folder = Folder::new();
    let text = "max_keys = 3\nmax_body_bytes = 300\nidle_timeout = '3s'\n";
    let file = folder.write("quell.toml", text);
    let shown = |command: &mut std::process::Command| run(command).expect_success();
    let mut command = quell(&[
        "serve",
        "--config",
        &file,
        "--print-config",
        "--max-keys",
        "1",
    ]);
    command
        .env("QUELL_MAX_KEYS", "2")
        .env("QUELL_MAX_BODY_BYTES", "200");
    command
        .env("QUELL_RULES", "a.yaml,rules.d")
        .env("QUELL_SHADOW", "yes");
    let text = shown(&mut command);
    for line in [
        "max_keys = 1",
        "max_body_bytes = 200",
        "idle_timeout = \"3s\"",
        "shadow = true",
        "stall_timeout = \"1m\"",
        "\"rules.d\"",
        "log = \"info\"",
    ] {
        assert!(text.contains(line), "no {line} in\n{text}");
    }
    // The printed configuration is itself a configuration, of the same server.
    let again = folder.write("again.toml", &text);
    assert_eq!(
        shown(&mut quell(&["serve", "--config", &again, "--print-config"])),
        text
    );
    let mut by_variable = quell(&["serve", "--print-config"]);
    assert_eq!(shown(by_variable.env("QUELL_CONFIG", &again)), text);
}

#[test]
fn a_mistake_in_the_file_is_told_with_its_place() {
    let folder = Folder::new();
    let file = folder.write("quell.toml", "max_keys = 3\nmax_kesy = 4\n");
    let told = run(&mut quell(&["serve", "--config", &file]));
    assert_eq!(told.code(), Some(2), "{told:?}");
    assert!(
        told.stderr
            .contains(&format!("{file}:2:1: unknown field `max_kesy`")),
        "{told:?}"
    );
}

#[test]
fn what_hinders_a_start_is_one_message() {
    let folder = Folder::new();
    let wrong = folder.write(
        "wrong.yaml",
        "domain: a\nrules: [{ name: b, rate: 5/moment }]\n",
    );
    let told = run(&mut quell(&[
        "serve",
        "--http",
        "off",
        "--resp",
        "127.0.0.1:0",
        "--rules",
        &wrong,
    ]));
    assert_eq!(told.code(), Some(1), "{told:?}");
    assert!(
        told.stderr.contains("error: the rules have mistakes"),
        "{told:?}"
    );
    assert!(
        told.stderr.contains(":2:") && told.stderr.contains("`moment`"),
        "{told:?}"
    );

    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let told = run(&mut quell(&["serve", "--http", "off", "--resp", &address]));
    assert_eq!(told.code(), Some(1), "{told:?}");
    assert!(
        told.stderr
            .contains(&format!("error: cannot listen on {address}")),
        "{told:?}"
    );
    assert!(
        told.stderr.contains("--resp") && told.stderr.contains("in use"),
        "{told:?}"
    );

    let told = run(&mut quell(&[
        "serve",
        "--rules",
        "/no/such.yaml",
        "--http",
        "127.0.0.1:0",
    ]));
    assert_eq!(told.code(), Some(1), "{told:?}");
    assert!(told.stderr.contains("/no/such.yaml"), "{told:?}");
}

#[test]
fn logs_can_be_json() {
    let mut command = quell(&["serve", "--http", "off", "--resp", "127.0.0.1:0"]);
    command.args(["--log-format", "json", "--log", "debug"]);
    let mut child = command
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = child.stderr.take().unwrap();
    let mut text = String::new();
    let ready = until("an event says that it is ready", || {
        let mut bytes = [0; 4096];
        let read = stderr.read(&mut bytes).unwrap();
        assert!(read > 0, "it ended: {text}");
        text.push_str(&String::from_utf8_lossy(&bytes[..read]));
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let events = whole
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        events.into_iter().find(|event| event["message"] == "ready")
    });
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(ready["http"], "off");
    assert_eq!(ready["level"], "INFO");
    assert!(
        ready["resp"]
            .as_str()
            .is_some_and(|address| address.starts_with("127.0.0.1:"))
    );
}

#[test]
fn a_signal_to_stop_is_a_good_end() {
    for signal in ["TERM", "INT"] {
        let mut server = Server::start(&[]);
        server.signal(signal);
        assert_eq!(server.wait().code(), Some(0), "{signal}: {}", server.log());
        assert!(TcpStream::connect(("127.0.0.1", server.resp)).is_err());
    }
}

/// A request whose body has not arrived completely is in flight: a stop waits for it.
#[test]
fn a_stop_answers_what_is_in_flight() {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", &window_rules("shop", "2/min"));
    let mut server = Server::start(&["--rules", &rules]);
    let body = r#"{"domain": "shop", "entries": {"user": "alice"}}"#;
    let mut stream = half_a_request(&server, body);
    server.signal("TERM");
    until("nobody new is let in", || {
        TcpStream::connect(("127.0.0.1", server.http))
            .is_err()
            .then_some(())
    });
    stream.write_all(&body.as_bytes()[10..]).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 200 OK"), "{reply}");
    assert!(reply.contains("\"allowed\":true"), "{reply}");
    assert_eq!(server.wait().code(), Some(0), "{}", server.log());
}

#[test]
fn a_stop_is_bounded() {
    let body = "0123456789abcdef";
    let mut bounded = Server::start(&["--shutdown-grace", "50ms", "--body-timeout", "1h"]);
    let _open = half_a_request(&bounded, body);
    bounded.signal("TERM");
    assert_eq!(bounded.wait().code(), Some(0), "{}", bounded.log());
}

/// Sends a request with only the first ten bytes of its body.
pub(crate) fn half_a_request(server: &Server, body: &str) -> TcpStream {
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

#[test]
fn everything_can_be_put_in_shadow() {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", &window_rules("shop", "1/h"));
    let server = Server::start(&["--rules", &rules, "--shadow"]);
    for _ in 0..3 {
        let url = server.url("/v1/authorize?domain=shop");
        let status = [
            "--silent",
            "--output",
            "/dev/null",
            "--write-out",
            "%{http_code}",
        ];
        let told = run(curl().args(status).arg(&url)).expect_success();
        assert_eq!(told, "204");
    }
    let labels = "domain=\"shop\",rule=\"per-user\",outcome=\"shadow_deny\"";
    assert_eq!(
        server.metric(&format!("quell_decisions_total{{{labels}}}")),
        Some(2)
    );
    server.stop();
}

#[test]
fn decisions_are_written_as_lines_of_json() {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", &window_rules("shop", "1/h"));
    let server = Server::start(&["--rules", &rules, "--decision-log", "-"]);
    for _ in 0..2 {
        run(curl().args(["--silent", &server.url("/v1/authorize?domain=shop")])).expect_success();
    }
    let lines = until("two decisions are written", || {
        let lines: Vec<Value> = server
            .stdout()
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect();
        (lines.len() == 2).then_some(lines)
    });
    assert_eq!(lines[0]["domain"], "shop");
    let file = folder.path("decisions.log");
    server.stop();

    let server = Server::start(&["--rules", &rules, "--decision-log", &file]);
    run(curl().args(["--silent", &server.url("/v1/authorize?domain=shop")])).expect_success();
    // A clean stop writes what is still buffered.
    server.stop();
    let text = std::fs::read_to_string(&file).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains("per-user"), "{text}");
}
