//! Rules in a directory pass the suite of rule stores; and what only a directory can do to them.

use std::fs;
use std::sync::Arc;

use quell::rule_store::{DirectoryRules, PushOutcome, RuleStore, RuleStoreError};
use quell_conformance::rule_store::{self, draft, push};
use tempfile::tempdir;

#[tokio::test]
async fn versions_are_added_and_kept() {
    let folder = tempdir().unwrap();
    let store = DirectoryRules::new(folder.path().join("rules"));
    rule_store::adds_and_keeps_versions(&store).await;
    let names = fs::read_dir(folder.path().join("rules")).unwrap();
    let mut names: Vec<_> = names.map(|file| file.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(
        names,
        ["1.version", "2.version", "3.version"],
        "nothing else is left"
    );
}

#[tokio::test]
async fn of_many_who_push_at_once_one_wins() {
    let folder = tempdir().unwrap();
    let open = || Arc::new(DirectoryRules::new(folder.path())) as Arc<dyn RuleStore>;
    rule_store::of_many_who_push_at_once_one_wins(open).await;
}

#[tokio::test]
async fn the_oldest_versions_go() {
    let folder = tempdir().unwrap();
    rule_store::the_oldest_versions_go(&DirectoryRules::new(folder.path())).await;
}

#[tokio::test]
async fn large_versions_go_early() {
    let folder = tempdir().unwrap();
    // A file has five lines beside its text.
    let store = DirectoryRules::new(folder.path()).with_kept_bytes(10_500);
    rule_store::large_versions_go_early(&store).await;
}

#[tokio::test]
async fn a_push_wakes_who_waits() {
    let folder = tempdir().unwrap();
    let [store, other] = [(); 2].map(|()| DirectoryRules::new(folder.path()));
    rule_store::a_push_wakes_who_waits(&store, &other).await;
}

#[tokio::test]
async fn what_somebody_wrote_by_hand_is_told_and_replaced() {
    let folder = tempdir().unwrap();
    let store = DirectoryRules::new(folder.path());
    let first = push(&store, None, "domain: d").await;
    let file = folder.path().join("1.version");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("domain: d", "domain: e")).unwrap();
    let damaged = store.latest().await.unwrap_err();
    assert!(
        matches!(damaged, RuleStoreError::Damaged { .. }),
        "{damaged}"
    );
    assert_eq!(push(&store, Some(&first), "domain: f").await.number(), 2);

    // A file of another kind is in the way, and the error says what to do.
    fs::write(folder.path().join("3.version"), "domain: g").unwrap();
    let error = store.head().await.unwrap_err().to_string();
    assert!(
        error.ends_with("3.version is no version of rules: move it away"),
        "{error}"
    );
    fs::remove_file(folder.path().join("3.version")).unwrap();
    // Others are no versions.
    fs::write(folder.path().join("notes.txt"), "").unwrap();
    let late = store.push(Some(&first), draft("domain: h")).await.unwrap();
    assert!(matches!(late, PushOutcome::Overtaken(Some(head)) if head.number() == 2));
}

#[test]
fn a_url_names_a_directory() {
    let parse = |url| DirectoryRules::parse(url).map(|store| store.map(|it| it.url().to_owned()));
    assert_eq!(
        parse("file:///var/rules"),
        Some(Ok("file:///var/rules".to_owned()))
    );
    assert_eq!(parse("redis://h"), None);
    assert!(
        parse("file://")
            .unwrap()
            .unwrap_err()
            .contains("such as file:///")
    );
}
