//! Pipes, sockets and directories in place of files: a start never hangs, and a signal ends it.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::files::{Folder, window_rules};
use crate::process::{quell, run, until, wait};
use crate::server::Server;

fn make_pipe(path: &str) {
    run(Command::new("mkfifo").arg(path)).expect_success();
}

/// Decisions go to standard output or standard error, by the name of either: in a container that is a
/// pipe, which cannot be opened again.
#[test]
fn decisions_go_to_standard_output_by_any_name() {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", &window_rules("shop", "9/h"));
    for (name, is_error) in [("-", false), ("/dev/stdout", false), ("/dev/stderr", true)] {
        let server = Server::start(&["--rules", &rules, "--decision-log", name]);
        server.get("/v1/authorize?domain=shop");
        until("the decision is written", || {
            let text = if is_error {
                server.log()
            } else {
                server.stdout()
            };
            let mut lines = text
                .lines()
                .filter_map(|line| serde_json::from_str::<Value>(line).ok());
            lines.find(|line| line["rule"] == "per-user")
        });
        // As log rotation does; there is nothing to open again.
        server.signal("HUP");
        server.stop();
    }
}

/// A device has no end: how much of it is read is bounded.
#[test]
fn a_configuration_that_does_not_end_is_refused() {
    let told = run(&mut quell(&["serve", "--config", "/dev/zero"]));
    assert_eq!(told.code(), Some(2), "{told:?}");
    assert!(told.stderr.contains("larger than 1 MiB"), "{told:?}");
}

/// A shell's `<(command)` is a pipe with a writer at its other end.
#[test]
fn rules_come_through_a_pipe() {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", &window_rules("shop", "9/h"));
    let mut shell = Command::new("bash");
    let script = format!("exec \"$0\" rules check <(sleep 0.1; cat '{rules}')");
    let told = run(shell.args(["-c", &script, env!("CARGO_BIN_EXE_quell")])).expect_success();
    assert_eq!(told, "ok: 1 rule in domain shop, from 1 file\n");
}

/// A start that waits for a pipe ends when it is told to.
#[test]
fn a_signal_ends_a_start() {
    let folder = Folder::new();
    let pipe = folder.path("pipe");
    make_pipe(&pipe);
    for signal in ["TERM", "INT"] {
        let mut command = quell(&[
            "serve",
            "--http",
            "127.0.0.1:0",
            "--resp",
            "off",
            "--rules",
            &pipe,
        ]);
        let mut child = command.stderr(Stdio::null()).spawn().unwrap();
        let number = child.id();
        // From the time it handles signals itself until it gives the pipe up.
        until("it waits for signals", || {
            let status = std::fs::read_to_string(format!("/proc/{number}/status")).ok()?;
            let caught = status
                .lines()
                .find_map(|line| line.strip_prefix("SigCgt:"))?;
            let caught = u64::from_str_radix(caught.trim(), 16).ok()?;
            (caught & (1 << 14) != 0).then_some(())
        });
        let kill = format!("kill -{signal} {number}");
        run(Command::new("sh").args(["-c", &kill])).expect_success();
        assert_eq!(wait(&mut child, "the start").code(), Some(0), "{signal}");
    }
}
