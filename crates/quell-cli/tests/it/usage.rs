//! Usage: help, versions, completions, and messages for wrong command lines.

use crate::files::{Folder, of_repository};
use crate::process::{quell, run};

/// Runs the command, and expects this exit code and this text on standard error.
fn refused(arguments: &[&str], code: i32, words: &[&str]) {
    let run = run(&mut quell(arguments));
    assert_eq!(run.code(), Some(code), "{arguments:?}: {run:?}");
    for word in words {
        assert!(
            run.stderr.contains(word),
            "{arguments:?}: no {word:?} in {}",
            run.stderr
        );
    }
    assert_eq!(run.stdout, "", "{arguments:?}");
}

#[test]
fn every_command_has_help_with_examples() {
    let commands = crate::man::commands(&[]);
    assert!(commands.len() > 30, "{commands:?}");
    for command in commands {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let help = run(quell(&words).arg("--help")).expect_success();
        assert!(help.contains("Usage: quell"), "{command:?}: {help}");
        assert!(help.contains("Examples:\n  quell "), "{command:?}: {help}");
        assert!(
            !help.contains('\u{1b}'),
            "no colours off a terminal: {help}"
        );
    }
}

#[test]
fn the_version_is_the_crates() {
    let version = run(&mut quell(&["--version"])).expect_success();
    assert_eq!(version, concat!("quell ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn usage_errors_end_with_2() {
    refused(&[], 2, &["Usage: quell"]);
    refused(&["sevre"], 2, &["unrecognized subcommand 'sevre'", "serve"]);
    refused(&["serve", "--htpp", "x"], 2, &["--htpp", "--http"]);
    refused(&["check"], 2, &["--domain <DOMAIN>"]);
    for cost in ["-5", "0", "1.5"] {
        let what = if cost == "0" {
            "a cost of 0"
        } else {
            "is not a cost: write a whole number from 1"
        };
        let check = ["check", "-d", "shop", "--cost", cost];
        refused(&check, 2, &["--cost <N>", what]);
        let explain = ["rules", "explain", "shop.yaml", "--cost", cost];
        refused(&explain, 2, &["--cost <N>", what]);
    }
    refused(
        &["check", "-d", "shop", "-e", "path"],
        2,
        &["write NAME=VALUE, such as path=/login"],
    );
    refused(
        &["check", "-d", "shop", "-e", "a=1", "-e", "a=2"],
        2,
        &["the entry \"a\" appears twice"],
    );
    refused(
        &["check", "-d", "shop", "--cost", "0"],
        2,
        &["write at least 1", "--peek"],
    );
    refused(&["check", "-d", "shop", "--cost", "-1"], 2, &["-1"]);
    refused(
        &["check", "-d", "shop", "--cost", "1.5"],
        2,
        &["write a whole number"],
    );
    refused(
        &["check", "-d", "shop", "--url", "ftp://x"],
        2,
        &["after http://, https:// or unix:"],
    );
    refused(
        &["check", "-d", "shop", "--url", "127.0.0.1:1"],
        2,
        &["after http://, https:// or unix:"],
    );
    refused(&["check", "-d", "shop", "--url", "unix:"], 2, &["or unix:"]);
    refused(
        &["check", "-d", "shop", "--cert", "client.pem"],
        2,
        &["--key"],
    );
    refused(
        &["check", "-d", "shop", "--url", "http://a b"],
        2,
        &["write one such as"],
    );
    refused(&["rules", "check"], 2, &["<FILE>..."]);
    refused(&["completions", "cmd"], 2, &["bash", "zsh", "fish"]);
}

/// Words of other programs that newcomers type, and the advice that they get.
#[test]
fn words_of_other_programs_are_told_with_ours() {
    for (words, told) in [
        (&["serve", "shop.yaml"][..], "write `--rules shop.yaml`"),
        (&["serve", "--shadow", "false"], "write `--FLAG=false`"),
        (&["serve", "--port", "80"], "write `--http 127.0.0.1:8080`"),
        (
            &["serve", "--listen", ":80"],
            "write `--http 127.0.0.1:8080`",
        ),
        (
            &["serve", "--redis", "x"],
            "write `--store redis://HOST:PORT/0`",
        ),
        (&["serve", "--tls-cert", "x"], "write tls_key as well"),
        (
            &["serve", "--tls-cert-file", "x"],
            "write `--tls-cert FILE --tls-key FILE`",
        ),
        (&["serve", "--cert", "x"], "write `--tls-cert FILE"),
        (
            &["serve", "--store-timeout", "-5ms"],
            "write a value above 0",
        ),
        (&["serve", "--max-keys", "-1"], "write a value above 0"),
        (
            &["bans", "set", "-d", "a", "--for", "-5m"],
            "write a value above 0",
        ),
        (
            &["check", "shop.yaml"],
            "write `quell rules check shop.yaml`",
        ),
        (&["check", "-d", "a", "path=/x"], "write `-e path=/x`"),
        (
            &["check", "-d", "a", "-e", "a=b", "/x"],
            "write `-e NAME=VALUE`",
        ),
        (
            &["rules", "explain", "a.yaml", "path=/x"],
            "write `-e path=/x`",
        ),
        (&["run"], "write `quell serve`"),
        (&["test", "a.test.yaml"], "write `quell rules test`"),
        (&["push", "a.yaml"], "write `quell rules push`"),
        (&["rules", "lint", "a.yaml"], "write `quell rules check`"),
        (&["bans", "add"], "write `quell bans set`"),
        (&["bans", "remove"], "write `quell bans lift`"),
    ] {
        refused(words, 2, &[told]);
    }
    let similar = quell(&["serve", "--rule", "a"]).output().unwrap();
    let similar = String::from_utf8_lossy(&similar.stderr).into_owned();
    assert!(similar.contains("'--rules'"), "{similar}");
}

#[test]
fn impossible_settings_end_with_2_and_say_what_to_write() {
    refused(
        &["serve", "--http", "nowhere"],
        2,
        &["http: `nowhere` is not an address: write"],
    );
    refused(&["serve", "--http", "0.0.0.0:0"], 2, &["--insecure"]);
    refused(&["serve", "--resp", "[::]:0"], 2, &["resp:", "--insecure"]);
    refused(
        &["serve", "--http", "off", "--resp", "off"],
        2,
        &["http and resp are both off"],
    );
    refused(
        &["serve", "--max-keys", "0"],
        2,
        &["error: --max-keys: 0 is too small: write at least 1"],
    );
    refused(&["serve", "--max-keys", "many"], 2, &["--max-keys", "many"]);
    refused(
        &["serve", "--snapshot-interval", "5"],
        2,
        &["`5` has no unit"],
    );
    refused(&["serve", "--shadow=perhaps"], 2, &["write true or false"]);
    refused(
        &["serve", "--log", "inof"],
        2,
        &["`inof` is not a level: write error, warn"],
    );
    refused(
        &["serve", "--log-format", "xml"],
        2,
        &["write text or json"],
    );
    refused(
        &["serve", "--authorize-gateway", "f5"],
        2,
        &["write one of any, original"],
    );
    refused(
        &["serve", "--config", "/no/such.toml"],
        2,
        &["cannot read", "/no/such.toml"],
    );
}

#[test]
fn mistakes_in_variables_name_the_variable() {
    for (variable, value, words) in [
        (
            "QUELL_MAX_KEYS",
            "many",
            "for the variable QUELL_MAX_KEYS: `many` is not a whole number: write digits only",
        ),
        (
            "QUELL_MAX_BODY_BYTES",
            "99999999999999999999",
            "for the variable QUELL_MAX_BODY_BYTES: `99999999999999999999` is too large",
        ),
        (
            "QUELL_SHADOW",
            "perhaps",
            "for the variable QUELL_SHADOW: `perhaps` is not a yes or no: write true or false",
        ),
        (
            "QUELL_MAX_KEYS",
            "0",
            "error: QUELL_MAX_KEYS: 0 is too small: write at least 1",
        ),
        (
            "QUELL_HTTP",
            "nowhere",
            "error: QUELL_HTTP: `nowhere` is not an address: write one such as",
        ),
        (
            "QUELL_IDLE_TIMEOUT",
            "5",
            "error: QUELL_IDLE_TIMEOUT: `5` has no unit: write `5s`",
        ),
        (
            "QUELL_LOG",
            "inof",
            "error: QUELL_LOG: `inof` is not a level",
        ),
        (
            "QUELL_LOG_FORMAT",
            "xml",
            "error: QUELL_LOG_FORMAT: `xml` is not a format",
        ),
        (
            "QUELL_AUTHORIZE_GATEWAY",
            "f5",
            "error: QUELL_AUTHORIZE_GATEWAY: unknown gateway `f5`: write one of any",
        ),
        ("QUELL_CONFIG", "/no/such.toml", "/no/such.toml"),
    ] {
        let told = run(quell(&["serve"]).env(variable, value));
        assert_eq!(told.code(), Some(2), "{variable}={value}: {told:?}");
        assert!(told.stderr.contains(words), "{variable}={value}: {told:?}");
    }
    let told = run(quell(&["check", "-d", "shop"]).env("QUELL_URL", "nowhere"));
    assert_eq!(told.code(), Some(2), "{told:?}");
    assert!(
        told.stderr
            .contains("for the variable QUELL_URL: `nowhere` is not an address"),
        "{told:?}"
    );
}

#[test]
fn what_a_flag_says_counts_and_is_to_blame() {
    let told = run(quell(&["serve", "--max-keys", "few"]).env("QUELL_MAX_KEYS", "many"));
    assert!(
        told.stderr.contains("for '--max-keys <N>': `few` is no"),
        "{told:?}"
    );
    let told = run(quell(&["serve", "--http", "here"]).env("QUELL_HTTP", "there"));
    assert!(told.stderr.contains("error: --http: `here`"), "{told:?}");
}

#[test]
fn mistakes_in_a_file_name_its_line() {
    let folder = Folder::new();
    for (text, words) in [
        (
            "shadow = true\nmax_keys = 0",
            ":2: max_keys: 0 is too small: write at least 1",
        ),
        (
            "\n[authorize]\ngateway = 'f5'",
            ":3: authorize.gateway: unknown gateway `f5`",
        ),
        ("log = 'inof'", ":1: log: `inof` is not a level"),
        ("max_keys = 'many'", ":1:12: max_keys: invalid type"),
    ] {
        let file = folder.write("quell.toml", text);
        let words = format!("error: {file}{words}");
        refused(&["serve", "--config", &file], 2, &[&words]);
    }
}

#[test]
fn without_a_server_the_reader_learns_how_to_start_one() {
    for command in [
        &["check", "-d", "shop"][..],
        &["bans", "list"],
        &["overrides", "list", "shop"],
        &["overrides", "set", "shop", "api", "-e", "a=b", "rate=1/s"],
        &["holds", "-d", "shop"],
        &["top"],
    ] {
        let mut arguments = command.to_vec();
        // Port 1: only root can listen there.
        arguments.extend(["--url", "http://127.0.0.1:1"]);
        refused(
            &arguments,
            3,
            &["no server listens at http://127.0.0.1:1", "`quell serve`"],
        );
    }
}

/// Nobody knows then what the answer would have been, or what is in force.
#[test]
fn a_store_of_rules_that_is_gone_is_an_outage() {
    let store = ["--store", "redis://127.0.0.1:1/0"];
    let rules = of_repository("examples/shop.yaml");
    let tests = of_repository("examples/shop.test.yaml");
    for command in [
        &["pull"][..],
        &["history"],
        &["push", &rules],
        &["set", "login", "limit=1/s"],
        &["rollback", "1"],
        &["test", &tests],
    ] {
        let arguments = [&["rules"], command, &store].concat();
        refused(&arguments, 3, &["not reachable", "127.0.0.1:1"]);
    }
}

#[test]
fn completions_name_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(&mut quell(&["completions", shell])).expect_success();
        for command in [
            "serve",
            "check",
            "rules",
            "bans",
            "completions",
            "snapshot-interval",
        ] {
            assert!(script.contains(command), "{shell}: {command}");
        }
    }
}

#[test]
fn a_reader_that_has_gone_is_no_failure() {
    let quell = env!("CARGO_BIN_EXE_quell");
    for command in ["completions bash", "serve --print-config"] {
        let script = format!("({quell} {command}; echo ended with $? >&2) | true");
        let run = run(std::process::Command::new("sh").args(["-c", &script]));
        assert_eq!(run.stderr, "ended with 0\n", "{command}");
    }
}
