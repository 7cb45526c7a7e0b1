//! Overrides in a file and in memory pass the suite of override stores; and what only a file can go through.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use futures_util::FutureExt as _;
use quell::override_store::{
    ApplyOutcome, Changes, Cursor, EmbeddedOptions, EmbeddedOverrides, OverrideStore,
    OverrideStoreError,
};
use quell_conformance::override_store::{self, Follower, apply, put, rate, tenant};
use tempfile::tempdir;

/// Names the directory that a copy of this program writes to.
const CHILD: &str = "QUELL_TEST_OVERRIDES";

/// The suite in a file, and in memory.
macro_rules! passes {
    ($($name:ident($store:ident) $test:expr;)+) => {$(
        #[tokio::test]
        async fn $name() {
            let $store = EmbeddedOverrides::in_memory().unwrap();
            $test.await;
            let folder = tempdir().unwrap();
            let $store = EmbeddedOverrides::open(folder.path()).unwrap();
            $test.await;
        }
    )+};
}

passes! {
    the_newest_form_is_kept(store) override_store::keeps_the_newest_form(&store);
    a_batch_that_fails_changes_nothing(store)
        override_store::a_batch_that_fails_changes_nothing(&store);
    a_list_is_whole_while_others_write(store)
        override_store::a_list_is_whole_while_others_write(&store);
    what_ended_is_found(store) override_store::what_ended_is_found(&store);
    large_overrides_come_in_parts(store) override_store::large_overrides_come_in_parts(&store);
    another_history_is_noticed(store) override_store::another_history_is_noticed(&store);
    a_change_wakes_who_waits(store) override_store::a_change_wakes_who_waits(&store, &store);
}

fn shared() -> impl Fn() -> Arc<dyn OverrideStore> {
    let store: Arc<dyn OverrideStore> = Arc::new(EmbeddedOverrides::in_memory().unwrap());
    move || Arc::clone(&store)
}

#[tokio::test]
async fn of_concurrent_writers_one_wins() {
    override_store::of_concurrent_writers_one_wins(shared()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_writers_lose_nothing() {
    override_store::concurrent_writers_lose_nothing(shared()).await;
}

#[tokio::test]
async fn histories_are_those_of_a_map() {
    for seed in 0..60 {
        let store = EmbeddedOverrides::in_memory().unwrap();
        override_store::same_as_map(&store, seed, 200).await;
    }
}

/// A follower lists everything whenever the log is too short for it.
#[tokio::test]
async fn histories_with_a_short_log_are_those_of_a_map() {
    for seed in 100..130 {
        let options = EmbeddedOptions {
            log: seed % 20 + 1,
            ..EmbeddedOptions::default()
        };
        override_store::same_as_map(&options.open().unwrap(), seed, 200).await;
    }
}

#[tokio::test]
async fn there_are_no_more_than_there_may_be() {
    let bounded = |max| EmbeddedOptions {
        max,
        ..EmbeddedOptions::default()
    };
    override_store::the_bound_holds(&bounded(25).open().unwrap(), 25).await;
    for seed in 200..230 {
        let most = seed % 8;
        let store = bounded(most).open().unwrap();
        override_store::same_as_bounded_map(&store, seed, 200, most).await;
    }
}

/// Batches that wait for one transaction, of which those that fit are made.
#[tokio::test]
async fn callers_at_once_stay_within_the_bound() {
    let options = EmbeddedOptions {
        max: 10,
        ..EmbeddedOptions::default()
    };
    let store = options.open().unwrap();
    let changes: Vec<_> = (0..50)
        .map(|number| [put(&tenant("api", &number.to_string()), rate(1), None)])
        .collect();
    let calls = changes.iter().map(|change| store.apply(change));
    let answers = futures_util::future::join_all(calls).await;
    let made = answers.iter().filter(|answer| answer.is_ok()).count();
    let full = Err(OverrideStoreError::Full {
        count: 11,
        most: 10,
    });
    let refused = answers.iter().filter(|answer| **answer == full).count();
    assert_eq!((made, refused), (10, 40));
    let all = store.all(None, 100).await.unwrap().overrides;
    assert_eq!(all.len(), 10);
}

#[tokio::test]
async fn the_oldest_changes_go() {
    let options = EmbeddedOptions {
        log: 100,
        ..EmbeddedOptions::default()
    };
    override_store::the_oldest_changes_go(&options.open().unwrap(), 100).await;
}

#[tokio::test]
async fn what_was_written_is_there_after_a_restart() {
    let folder = tempdir().unwrap();
    let directory = folder.path().join("data");
    let id = tenant("api", "acme");
    let store = EmbeddedOverrides::open(&directory).unwrap();
    apply(&store, &[put(&id, rate(1), None)]).await;
    let mut follower = Follower::default();
    follower.follow(&store).await;
    apply(&store, &[put(&id, rate(2), Some(1))]).await;

    let other = EmbeddedOverrides::open(&directory).unwrap_err().to_string();
    assert!(other.contains("overrides.redb is in use"), "{other}");

    drop(store);
    let store = EmbeddedOverrides::open(&directory).unwrap();
    let since = store.changes(follower.position(), 10).await.unwrap();
    assert!(
        matches!(since, Changes::Since { newest: 2, .. }),
        "{since:?}"
    );
    follower.follow(&store).await;
    assert_eq!(follower.overrides()[0].numbers, rate(2));

    // An older copy of the file, to which others write, is another history.
    drop(store);
    let backup = folder.path().join("backup");
    fs::create_dir(&backup).unwrap();
    fs::copy(
        directory.join("overrides.redb"),
        backup.join("overrides.redb"),
    )
    .unwrap();
    let store = EmbeddedOverrides::open(&directory).unwrap();
    apply(&store, &[put(&id, rate(3), None)]).await;
    follower.follow(&store).await;
    drop(store);
    let store = EmbeddedOverrides::open(&backup).unwrap();
    apply(&store, &[put(&id, rate(4), None)]).await;
    let since = store.changes(follower.position(), 10).await.unwrap();
    assert_eq!(since, Changes::TooOld);
    follower.follow(&store).await;
    assert_eq!(follower.overrides()[0].numbers, rate(4));
}

#[tokio::test]
async fn a_file_of_another_program_is_refused() {
    let folder = tempdir().unwrap();
    fs::write(
        folder.path().join("overrides.redb"),
        "rules: []\n".repeat(9_999),
    )
    .unwrap();
    let error = EmbeddedOverrides::open(folder.path()).unwrap_err();
    assert!(
        matches!(error, OverrideStoreError::NoAnswer(_)),
        "{error:?}"
    );
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let error = EmbeddedOverrides::open(&file).unwrap_err().to_string();
    assert!(error.contains("overrides.redb"), "{error}");
}

#[tokio::test]
async fn a_cursor_of_another_list_is_refused() {
    let store = EmbeddedOverrides::in_memory().unwrap();
    for text in ["a", "AAAA", "_-_-"] {
        let cursor = Cursor::parse(text).unwrap();
        let page = store.all(Some(&cursor), 10).await;
        assert_eq!(page, Err(OverrideStoreError::ForeignCursor), "{text}");
    }
    assert_eq!(Cursor::parse("a b"), None);
}

/// A writer that nobody waits for any more writes all the same.
#[tokio::test]
async fn a_caller_that_goes_away_leaves_a_whole_store() {
    let store = EmbeddedOverrides::in_memory().unwrap();
    let id = tenant("api", "acme");
    let change = [put(&id, rate(1), None)];
    // It is handed to the writer, and dropped.
    drop(store.apply(&change).now_or_never());
    let second = store.apply(&[put(&id, rate(2), None)]).await.unwrap();
    assert!(matches!(second, ApplyOutcome::Applied { .. }));
    let stored = store.get(&id).await.unwrap().unwrap();
    assert_eq!(stored.numbers, rate(2));
}

/// Eight writers, in a program that is killed while they write.
#[test]
fn what_was_acknowledged_is_there_after_a_kill() {
    if let Some(directory) = std::env::var_os(CHILD) {
        write_until_killed(Path::new(&directory));
    }
    let folder = tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let mut acknowledged = Vec::new();
    for round in 1..=3 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture"])
            .arg("embedded_overrides::what_was_acknowledged_is_there_after_a_kill")
            .env(CHILD, folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut fresh = 0;
        for line in lines {
            let line = line.unwrap();
            let Some(words) = line.strip_prefix("written ") else {
                continue;
            };
            // The last line may have been cut off.
            let Some((name, revision)) = words.strip_suffix(" end").and_then(|w| w.split_once(' '))
            else {
                continue;
            };
            acknowledged.push((name.to_owned(), revision.parse::<u64>().unwrap()));
            fresh += 1;
            if fresh == 400 {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        assert!(fresh >= 400, "round {round}: {fresh}");
        let store = EmbeddedOverrides::open(folder.path()).unwrap();
        for (name, revision) in &acknowledged {
            let stored = runtime.block_on(store.get(&tenant("api", name)));
            let found = stored.unwrap().map(|stored| stored.revision);
            assert_eq!(found, Some(*revision), "{name}");
        }
    }
}

#[expect(
    clippy::print_stdout,
    reason = "its parent reads what was acknowledged"
)]
fn write_until_killed(directory: &Path) -> ! {
    let store = EmbeddedOverrides::open(directory).unwrap();
    let store = Arc::new(store);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(async {
        let begun = store.position().await.unwrap().revision();
        let writers = (0..8).map(|writer| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                for number in 0.. {
                    let name = format!("{begun}-{writer}-{number}");
                    let revision =
                        apply(&*store, &[put(&tenant("api", &name), rate(1), None)]).await;
                    let revision = revision[0].unwrap();
                    println!("written {name} {revision} end");
                }
            })
        });
        futures_util::future::join_all(writers.collect::<Vec<_>>()).await;
    });
    unreachable!("it is killed")
}
