//! Rules as versions: each push is based on the newest version, and versions never change.

use quell_redis::{Draft, Head, KEPT_VERSIONS, PushOutcome, RuleVersions, RuleVersionsError};
use tokio::task::JoinSet;

use crate::cluster::Cluster;
use crate::server::Server;

fn draft(text: &str) -> Draft<'_> {
    Draft {
        text,
        who: "ann",
        change: "1 changed (d/a)",
        note: "",
    }
}

async fn push(book: &RuleVersions, from: Option<&Head>, text: &str) -> Head {
    match book.push(from, &draft(text)).await.unwrap() {
        PushOutcome::Done(head) => head,
        PushOutcome::Overtaken(other) => panic!("overtaken by {other:?}"),
    }
}

/// The usual steps: adds a version, reads it, finds it in the list.
async fn versions_are_added(book: &RuleVersions) {
    assert_eq!(book.head().await, Ok(None));
    assert_eq!(book.latest().await, Ok(None));
    assert_eq!(book.history(10).await, Ok(Vec::new()));
    let first = push(book, None, "domain: d # one").await;
    let second = push(book, Some(&first), "domain: d # 二\n").await;
    assert_eq!((first.number(), second.number()), (1, 2));
    assert_eq!(book.head().await, Ok(Some(second.clone())));
    let latest = book.latest().await.unwrap().unwrap();
    assert_eq!(latest.text, "domain: d # 二\n");
    assert_eq!((latest.head(), &*latest.entry.who), (&second, "ann"));
    let first_again = book.version(1).await.unwrap().unwrap();
    assert_eq!(first_again.text, "domain: d # one");
    assert!(first_again.entry.at_ms > 0 && first_again.entry.at_ms <= latest.entry.at_ms);
    assert_eq!(book.version(3).await, Ok(None));
    let history = book.history(10).await.unwrap();
    let numbers: Vec<u64> = history.iter().map(|entry| entry.head.number()).collect();
    assert_eq!(numbers, [2, 1]);
    assert_eq!(history[0].change, "1 changed (d/a)");
    assert_eq!(book.history(1).await.unwrap().len(), 1);
}

#[tokio::test]
async fn versions_are_added_and_kept() {
    let server = Server::start(&[]);
    let book = RuleVersions::new(server.url());
    versions_are_added(&book).await;
    let keys = server.command(&["KEYS", "*"]);
    assert!(
        keys.lines()
            .all(|key| key.starts_with("quell:rules:1:{book}:")),
        "{keys}"
    );
    for key in keys.lines() {
        assert_eq!(server.command(&["PTTL", key]), "-1", "rules do not expire");
    }
}

#[tokio::test]
async fn a_cluster_keeps_a_book_in_one_slot() {
    let cluster = Cluster::start(0);
    versions_are_added(&cluster.book()).await;
}

/// Twenty at once from one head: one wins, and every other is told who did.
#[tokio::test]
async fn of_many_who_push_at_once_one_wins() {
    let server = Server::start(&[]);
    let mut from = None;
    for _ in 0..5 {
        let mut racing = JoinSet::new();
        for number in 0..20 {
            let (book, from) = (RuleVersions::new(server.url()), from.clone());
            racing.spawn(async move {
                let text = format!("domain: d{number}");
                book.push(from.as_ref(), &draft(&text)).await.unwrap()
            });
        }
        let ends = racing.join_all().await;
        let mut heads = ends.iter().filter_map(|end| match end {
            PushOutcome::Done(head) => Some(head.clone()),
            PushOutcome::Overtaken(_) => None,
        });
        let winner = heads.next().unwrap();
        assert_eq!(heads.next(), None);
        let told = PushOutcome::Overtaken(Some(winner.clone()));
        assert_eq!(ends.iter().filter(|end| **end == told).count(), 19);
        from = Some(winner);
    }
    assert_eq!(from.map(|head| head.number()), Some(5));
}

/// A client that does not know whether its push arrived pushes again.
#[tokio::test]
async fn a_push_that_is_repeated_is_one_version() {
    let server = Server::start(&[]);
    let book = RuleVersions::new(server.url());
    let first = push(&book, None, "domain: d").await;
    assert_eq!(push(&book, None, "domain: d").await, first);
    server.command(&["SCRIPT", "FLUSH"]);
    let second = push(&book, Some(&first), "domain: e").await;
    assert_eq!(second.number(), 2);
    let late = book.push(Some(&first), &draft("domain: f")).await;
    assert_eq!(late, Ok(PushOutcome::Overtaken(Some(second))));
}

#[tokio::test]
async fn the_oldest_versions_go() {
    let server = Server::start(&[]);
    let book = RuleVersions::new(server.url());
    let mut head = push(&book, None, "domain: first").await;
    for number in 2..=KEPT_VERSIONS + 2 {
        head = push(&book, Some(&head), &format!("domain: d{number}")).await;
    }
    assert_eq!(book.version(2).await, Ok(None));
    assert_eq!(book.version(3).await.unwrap().unwrap().text, "domain: d3");
    let history = book.history(usize::MAX).await.unwrap();
    assert_eq!(history.len() as u64, KEPT_VERSIONS);
    assert_eq!(history.last().map(|entry| entry.head.number()), Some(3));
    // A head and a thousand versions.
    assert_eq!(server.command(&["DBSIZE"]), "1001");
}

#[tokio::test]
async fn what_was_changed_by_hand_is_told() {
    let server = Server::start(&[]);
    let book = RuleVersions::new(server.url());
    push(&book, None, "domain: d").await;
    let key = "quell:rules:1:{book}:1";
    let reason = async |words: &[&str]| {
        server.command(words);
        book.latest().await.unwrap_err().to_string()
    };
    let text = reason(&["HSET", key, "text", "domain: e"]).await;
    assert!(
        text.contains(key) && text.contains("another text"),
        "{text}"
    );
    assert!(text.contains("quell rules rollback"), "{text}");
    let text = reason(&["HDEL", key, "text"]).await;
    assert!(text.contains("has no text"), "{text}");
    let text = reason(&["DEL", key]).await;
    assert!(text.contains("is gone"), "{text}");
    let text = reason(&["SET", "quell:rules:1:{book}:head", "7"]).await;
    assert!(text.contains("does not name a version"), "{text}");
    let text = reason(&["SET", key, "text"]).await;
    assert!(text.contains("does not name a version"), "{text}");
    server.command(&["DEL", "quell:rules:1:{book}:head"]);
    server.command(&["LPUSH", "quell:rules:1:{book}:head", "7"]);
    let error = book.head().await.unwrap_err();
    assert!(matches!(error, RuleVersionsError::Store(_)), "{error:?}");
    assert!(error.to_string().contains("Quell did not write"), "{error}");
}

#[tokio::test]
async fn a_store_that_is_not_there_says_so() {
    let port = crate::server::free_port();
    let url = format!("redis://me:secret@127.0.0.1:{port}");
    let book = RuleVersions::new(url.parse().unwrap());
    let error = book.head().await.unwrap_err().to_string();
    assert!(
        error.starts_with("not reachable: ") && !error.contains("secret"),
        "{error}"
    );
    assert!(!format!("{book:?}").contains("secret"));
}
