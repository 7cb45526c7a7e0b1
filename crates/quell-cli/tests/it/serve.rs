//! `quell serve`: settings from all sources, its output at the start, and how it ends.

use std::io::Read;
use std::net::{TcpListener, TcpStream};

use serde_json::Value;

use crate::files::{Folder, of_repository};
use crate::process::{quell, run, until};
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
