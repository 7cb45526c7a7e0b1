//! Rules in etcd, and in a file, pass the suite of rule stores; and what only etcd can do to them.

use std::sync::Arc;

use quell::rule_store::{Head, RuleStore, RuleStoreError};
use quell_conformance::rule_store::{self, draft, push};
use quell_coordinator::config_rules::{self, ConfigRules};
use quell_coordinator::store::{EmbeddedStore, EtcdOptions, MAX_WRITE};
use tempfile::TempDir;

use crate::etcd::{Etcd, PATIENCE};

fn book(etcd: &Etcd, name: &str) -> Arc<dyn RuleStore> {
    let book = config_rules::in_etcd(etcd.urls(), EtcdOptions::default(), name, "etcd://here");
    book.unwrap()
}

/// Each name is a history of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_keeps_rules() {
    let etcd = Etcd::start();
    rule_store::adds_and_keeps_versions(&*book(&etcd, "a")).await;
    rule_store::of_many_who_push_at_once_one_wins(|| book(&etcd, "b")).await;
    rule_store::the_oldest_versions_go(&*book(&etcd, "c")).await;
    rule_store::a_push_wakes_who_waits(&*book(&etcd, "d"), &*book(&etcd, "d")).await;
    assert_eq!(book(&etcd, "a").head().await.unwrap().unwrap().number(), 3);
}

#[tokio::test]
async fn a_file_keeps_rules() {
    let folder = TempDir::new().unwrap();
    let store = Arc::new(EmbeddedStore::open(folder.path().join("f")).unwrap());
    for name in ["a", "b", "c"] {
        let rules = ConfigRules::new(Arc::clone(&store), name, "file");
        if name == "c" {
            let rules = rules.with_kept_bytes(10_000);
            rule_store::large_versions_go_early(&rules).await;
        } else if name == "a" {
            rule_store::adds_and_keeps_versions(&rules).await;
        } else {
            let other = ConfigRules::new(Arc::clone(&store), name, "file");
            rule_store::a_push_wakes_who_waits(&rules, &other).await;
        }
    }
}

/// One endpoint of three is dead, and what was is compacted while somebody waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_endpoint_and_compaction_stop_nobody() {
    let mut etcd = Etcd::three();
    let (rules, other) = (book(&etcd, "a"), book(&etcd, "a"));
    let first = push(&*rules, None, "domain: d").await;
    etcd.kill(0);
    let waits = tokio::spawn(async move {
        let mut seen = None;
        while seen.as_ref().map(Head::number) != Some(3) {
            other.wait(seen.as_ref()).await;
            seen = other.head().await.unwrap_or(seen);
        }
        seen
    });
    // A read is made again, at an endpoint that lives.
    assert_eq!(rules.head().await, Ok(Some(first.clone())));
    let second = push(&*rules, Some(&first), "domain: e").await;
    etcd.ctl(&["compact", "2"]);
    let third = push(&*rules, Some(&second), "domain: f").await;
    let found = tokio::time::timeout(PATIENCE, waits).await.unwrap();
    assert_eq!(found.unwrap(), Some(third));
}

#[tokio::test]
async fn what_is_too_large_is_refused_before_etcd_does() {
    let etcd = Etcd::start();
    let rules = book(&etcd, "a");
    let text = "#".repeat(MAX_WRITE);
    let error = rules.push(None, draft(&text)).await.unwrap_err();
    assert!(matches!(&error, RuleStoreError::Unfit(_)), "{error:?}");
    assert!(error.to_string().contains("under two names"), "{error}");
    assert_eq!(rules.head().await, Ok(None));
    // What just fits, fits.
    push(&*rules, None, &text[..MAX_WRITE - 1_024]).await;
}

#[tokio::test]
async fn what_was_changed_by_hand_is_told() {
    let etcd = Etcd::start();
    let rules = book(&etcd, "a");
    push(&*rules, None, "domain: d").await;
    let entry = "/quell-rules/a/entry/00000000000000000001";
    let text = "/quell-rules/a/text/00000000000000000001";
    let told = async |words: &[&str]| {
        etcd.ctl(words);
        rules.latest().await.unwrap_err().to_string()
    };
    for (words, expected) in [
        (&["put", text, "domain: e"][..], "another text"),
        (&["del", text], "has no text"),
        (&["put", entry, "{}"], "not as a push leaves it"),
        (&["del", entry], "version 1 in etcd://here is gone"),
        (
            &["put", "/quell-rules/a/head", "7"],
            "does not name a version",
        ),
    ] {
        let text = told(words).await;
        assert!(text.contains(expected), "{text}");
        assert!(text.contains("quell rules push"), "{text}");
    }
}

#[tokio::test]
async fn an_etcd_that_is_not_there_says_so() {
    let urls = vec![format!(
        "http://127.0.0.1:{}",
        quell_testkit::port::free_port()
    )];
    let rules = config_rules::in_etcd(urls, EtcdOptions::default(), "a", "etcd://here").unwrap();
    let error = rules.head().await.unwrap_err();
    assert!(matches!(&error, RuleStoreError::NoAnswer(_)), "{error:?}");
    assert!(error.to_string().contains("cannot be reached"), "{error}");
}
