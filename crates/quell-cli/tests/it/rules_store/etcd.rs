//! The same commands and servers, with rules in etcd.

use quell_testkit::etcd::Etcd;
use serde_json::Value;

use super::SHOP;
use super::follow::{follows, limit};
use crate::files::{Folder, window_rules};
use crate::process::{Run, quell, run, until};
use crate::server::Server;

/// `quell rules` with these words, for the rules at `url`.
fn rules(url: &str, words: &[&str]) -> Run {
    let mut command = quell(&["rules"]);
    command.args(words).args(["--store", url]);
    run(command.env("USER", "ann"))
}

#[test]
fn every_command_works_on_etcd_and_servers_follow() {
    let (mut etcd, folder) = (Etcd::start(), Folder::new());
    let url = etcd.rules("shop");
    let server = Server::start(&["--rules", &url, "--allow-empty-rules"]);
    let file = folder.write("shop.yaml", &window_rules("shop", "5/h"));
    let said = rules(&url, &["push", &file, "--note", "first"]).expect_success();
    assert!(said.contains(&format!("version 1 is in {url}")), "{said}");
    follows(&server, 5);
    rules(&url, &["set", "per-user", "limit=7/h"]).expect_success();
    follows(&server, 7);
    // It was made from a version that is not the newest any more.
    let late = rules(&url, &["push", &file, "--expect", "1"]);
    assert_eq!(late.code(), Some(1));
    assert!(late.stderr.contains("version 2, by ann"), "{late:?}");

    // While etcd is gone the rules in force stay, and commands say so.
    etcd.kill();
    until("health tells", || {
        (server.metric("quell_reload_failed") == Some(1)).then_some(())
    });
    assert_eq!(limit(&server), Some(7));
    let gone = rules(&url, &["history"]);
    assert_eq!(gone.code(), Some(3), "{gone:?}");
    assert!(gone.stderr.contains("cannot be reached"), "{gone:?}");
    etcd.restart();
    rules(&url, &["rollback", "1"]).expect_success();
    follows(&server, 5);
    until("health is well", || {
        (server.metric("quell_reload_failed") == Some(0)).then_some(())
    });
    let told: Value = serde_json::from_str(&server.get("/v1/rules")).unwrap();
    let version = &told["stores"][0];
    assert_eq!(version["url"], url);
    assert_eq!(version["version"], 3);

    let history = rules(&url, &["history", "--json"]).expect_success();
    let history: Value = serde_json::from_str(&history).unwrap();
    let said = |at: usize, field: &str| history["versions"][at][field].clone();
    assert_eq!([said(0, "version"), said(2, "version")], [3, 1]);
    assert_eq!([said(2, "note"), said(0, "by")], ["first", "ann"]);
    assert_eq!(
        said(0, "change"),
        "back to version 1: 1 changed (shop/per-user)"
    );
    let pulled = rules(&url, &["pull", "2"]).expect_success();
    assert!(pulled.contains("limit: 7/h"), "{pulled}");
    server.stop();
}

#[test]
fn etcd_with_a_login() {
    let (etcd, folder) = (Etcd::start(), Folder::new());
    let good = |words: &[&str]| {
        let ran = etcd.ctl(words);
        assert!(ran.status.success(), "{ran:?}");
    };
    good(&["user", "add", "root:secret", "--interactive=false"]);
    good(&["user", "grant-role", "root", "root"]);
    good(&["auth", "enable"]);
    let url = etcd.rules("shop");
    let history = rules(&url, &["history"]);
    assert_eq!(history.code(), Some(3), "{history:?}");
    assert!(history.stderr.contains("refused"), "{history:?}");
    let password = folder.write("password", "secret\n");
    let file = folder.write("shop.yaml", SHOP);
    let mut push = quell(&["rules", "push", &file, "--store", &url]);
    let login = [
        ("QUELL_ETCD_USER", "root"),
        ("QUELL_ETCD_PASSWORD_FILE", &*password),
    ];
    run(push.envs(login)).expect_success();
    let half = quell(&["rules", "history", "--store", &url])
        .env("QUELL_ETCD_USER", "root")
        .output();
    let half = half.unwrap();
    assert_eq!(half.status.code(), Some(2));
    let told = String::from_utf8_lossy(&half.stderr);
    assert!(told.contains("QUELL_ETCD_PASSWORD_FILE"), "{told}");
}

#[test]
fn urls_of_etcd_with_mistakes_say_what_to_write() {
    for (url, expected) in [
        ("etcd://localhost", "--store: \"\" is not a name of rules"),
        ("etcd://me:secret@h/shop", "set QUELL_ETCD_USER"),
        ("etcd://h:0/shop", "\"h:0\" is not a host"),
    ] {
        let told = rules(url, &["history"]);
        assert_eq!(told.code(), Some(2), "{told:?}");
        assert!(told.stderr.contains(expected), "{told:?}");
        assert!(!told.stderr.contains("secret"), "{told:?}");
        let told = run(&mut quell(&["serve", "--rules", url]));
        assert_eq!(told.code(), Some(2), "{told:?}");
        let expected = expected.trim_start_matches("--store: ");
        assert!(told.stderr.contains(expected), "{told:?}");
    }
    let told = run(&mut quell(&["serve", "--rules", "http://h/shop"]));
    assert!(told.stderr.contains("or etcd://HOST:2379/NAME"), "{told:?}");
}
