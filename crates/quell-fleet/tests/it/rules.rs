//! The rules that coordinators hand out, at a node: followed, checked, kept for the next start.

use std::path::Path;
use std::sync::Arc;

use quell::clock::ManualClock;
use quell::rule_store::{RuleStore, RuleStoreError, Version};
use quell_conformance::rule_store::draft;
use quell_core::time::Now;
use quell_fleet::agent::{Fleet, FleetRules};
use quell_fleet::{proto, wire_rules};
use tokio::time::timeout;

use crate::agent::options;
use crate::coordinator::{PATIENCE, Scripted, Stream};

fn version(number: u64, text: &str) -> Version {
    Version::from_draft(number, 17, &draft(text))
}

async fn hand_out(stream: &Stream, given: proto::Rules) {
    let kind = Some(proto::response::Kind::Rules(given));
    stream.raw(proto::Response { kind }).await;
}

/// Starts a node, once the one before has ended.
async fn start(url: &str, file: Option<&Path>) -> (Fleet, Arc<FleetRules>) {
    let clock = Arc::new(ManualClock::new(Now::from_nanos(1)));
    let start = async {
        loop {
            match Fleet::start(options(&[url], file, &clock)) {
                Ok(fleet) => return fleet,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    };
    let fleet = timeout(PATIENCE, start).await.unwrap();
    let rules = Arc::clone(fleet.rules().unwrap());
    (fleet, rules)
}

/// Report of the node on its rules, once `is_so` holds for it.
async fn until(stream: &mut Stream, is_so: impl Fn(&proto::RulesSeen) -> bool) -> proto::RulesSeen {
    loop {
        let request = stream.raw_request().await.expect("the node says something");
        let seen = request.rules.expect("it follows rules");
        if is_so(&seen) {
            return seen;
        }
    }
}

/// A node that runs no candidates is given none; one that does says what came of the one that it has.
#[tokio::test(start_paused = true)]
async fn a_node_says_what_came_of_the_candidate_that_it_was_given() {
    let mut coordinator = Scripted::start();
    let (_node, store) = start(&coordinator.url, None).await;
    let mut stream = coordinator.stream().await;
    let seen = until(&mut stream, |_| true).await;
    assert_eq!(seen.candidate, None);
    let mut given = store.follow_candidate();
    until(&mut stream, |seen| {
        seen.candidate == Some(proto::CandidateSeen::default())
    })
    .await;
    let candidate = proto::Candidate {
        id: 7,
        text: "domain: d".to_owned(),
        ..proto::Candidate::default()
    };
    let kind = Some(proto::response::Kind::Candidate(candidate.clone()));
    stream.raw(proto::Response { kind }).await;
    timeout(PATIENCE, given.changed()).await.unwrap().unwrap();
    assert_eq!(**given.borrow_and_update(), candidate);
    let says = |id, calls| proto::CandidateSeen {
        id,
        calls,
        ..proto::CandidateSeen::default()
    };
    until(&mut stream, |seen| seen.candidate == Some(says(7, 0))).await;
    // What is said of another one comes too late.
    store.tell_candidate(says(6, 60));
    store.tell_candidate(says(7, 3));
    until(&mut stream, |seen| seen.candidate == Some(says(7, 3))).await;
}

/// Counts under other rules, or under another version, are not reported with those that are judged.
#[tokio::test(start_paused = true)]
async fn a_node_says_how_calls_were_answered_under_the_rules_that_are_judged() {
    let mut coordinator = Scripted::start();
    let (_node, store) = start(&coordinator.url, None).await;
    let mut stream = coordinator.stream().await;
    let seen = until(&mut stream, |_| true).await;
    assert!(!seen.counts, "nobody counts yet");
    let mut judged = store.follow_judged();
    until(&mut stream, |seen| seen.counts).await;
    let names = |names: &[&str]| -> Vec<String> { names.iter().map(ToString::to_string).collect() };
    let ask = async |stream: &Stream, rules: &[&str]| {
        let rules = names(rules);
        let kind = Some(proto::response::Kind::Judged(proto::Judged { rules }));
        stream.raw(proto::Response { kind }).await;
    };
    ask(&stream, &["shop/a", "shop/b"]).await;
    timeout(PATIENCE, judged.changed()).await.unwrap().unwrap();
    assert_eq!(**judged.borrow_and_update(), *names(&["shop/a", "shop/b"]));
    let counted = |rules: &[&str], asked| -> Vec<_> {
        let rules = names(rules).into_iter();
        rules
            .map(|rule| proto::RuleAnswers {
                rule,
                asked,
                ..proto::RuleAnswers::default()
            })
            .collect()
    };
    store.tell_answered(counted(&["shop/a", "shop/b"], 7));
    store.tell_answered(counted(&["shop/a"], 60));
    let told = counted(&["shop/a", "shop/b"], 7);
    until(&mut stream, |seen| seen.answered == told).await;

    let seven = version(7, "domain: seven");
    hand_out(&stream, wire_rules::encode(&seven)).await;
    timeout(PATIENCE, store.wait(None)).await.unwrap();
    assert_eq!(store.latest().await, Ok(Some(seven.clone())));
    store.note(Some(seven.head()), None);
    let head = seven.head().to_string();
    let seen = until(&mut stream, |seen| seen.applied == head).await;
    assert_eq!(seen.answered, [], "it was counted under another version");
    store.tell_answered(counted(&["shop/a", "shop/b"], 8));
    until(&mut stream, |seen| !seen.answered.is_empty()).await;
    ask(&stream, &["shop/b"]).await;
    timeout(PATIENCE, judged.changed()).await.unwrap().unwrap();
    until(&mut stream, |seen| seen.answered.is_empty()).await;
}

/// A program that says nothing of its calls sends nothing, and what a server says is sent once and within bounds.
#[tokio::test(start_paused = true)]
async fn a_node_says_what_it_was_told_of_its_calls() {
    let mut coordinator = Scripted::start();
    let (node, _) = start(&coordinator.url, None).await;
    let mut stream = coordinator.stream().await;
    let request = stream.raw_request().await.unwrap();
    assert_eq!(request.seen, None);
    let key = |at_most| proto::CandidateKey {
        at_most,
        ..proto::CandidateKey::default()
    };
    node.call_report().set(proto::NodeSeen::default());
    node.call_report().set(proto::NodeSeen {
        refused: vec![key(7); 10_000],
        ..proto::NodeSeen::default()
    });
    let seen = loop {
        if let Some(seen) = stream.raw_request().await.unwrap().seen {
            break seen;
        }
    };
    assert_eq!((seen.refused.len(), seen.others_at_most), (20, 7));
    assert_eq!(stream.raw_request().await.unwrap().seen, None);
}

#[tokio::test(start_paused = true)]
async fn a_node_follows_checks_and_keeps_rules() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("fleet");
    let mut coordinator = Scripted::start();
    let (node, store) = start(&coordinator.url, Some(&file)).await;
    assert_eq!(store.latest().await, Ok(None));
    let mut stream = coordinator.stream().await;
    let none = until(&mut stream, |_| true).await;
    assert_eq!(none, proto::RulesSeen::default());

    let seven = version(7, "domain: seven");
    hand_out(&stream, wire_rules::encode(&seven)).await;
    timeout(PATIENCE, store.wait(None)).await.unwrap();
    assert_eq!(store.latest().await, Ok(Some(seven.clone())));
    assert_eq!(store.history(9).await, Ok(vec![seven.entry.clone()]));
    store.note(Some(seven.head()), None);
    let head = seven.head().to_string();
    until(&mut stream, |seen| {
        seen.applied == head && seen.known == head
    })
    .await;

    // What was changed on its way is not taken, and told.
    let mut broken = wire_rules::encode(&version(8, "domain: eight"));
    broken.text.push('!');
    hand_out(&stream, broken).await;
    let seen = until(&mut stream, |seen| !seen.refused.is_empty()).await;
    assert!(seen.refused.contains("another text"), "{seen:?}");
    assert!(seen.known.starts_with("8 ") && seen.applied == head);
    assert_eq!(store.latest().await, Ok(Some(seven.clone())));

    // What is refused by the server is not kept for the next start.
    let nine = version(9, "domain: [");
    hand_out(&stream, wire_rules::encode(&nine)).await;
    timeout(PATIENCE, store.wait(Some(seven.head())))
        .await
        .unwrap();
    assert_eq!(store.latest().await, Ok(Some(nine)));
    store.note(Some(seven.head()), Some("line 1: no"));
    until(&mut stream, |seen| seen.refused == "line 1: no").await;

    let pushed = store.push(None, draft("domain: d")).await;
    assert!(
        matches!(pushed, Err(RuleStoreError::Unfit(_))),
        "{pushed:?}"
    );
    drop((stream, node, store));
    let (node, store) = start(&coordinator.url, Some(&file)).await;
    assert_eq!(store.latest().await, Ok(Some(seven)));

    // A file that cannot be read is no rules.
    drop((node, store));
    std::fs::write(directory.path().join("fleet.rules"), b"qlr\x01 nonsense").unwrap();
    let (_node, store) = start(&coordinator.url, Some(&file)).await;
    assert_eq!(store.latest().await, Ok(None));
}

#[tokio::test(start_paused = true)]
async fn rules_that_are_not_on_the_disk_are_not_told_as_applied() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("fleet");
    let in_the_way = directory.path().join("fleet.rules");
    std::fs::create_dir(&in_the_way).unwrap();
    let mut coordinator = Scripted::start();
    let (node, store) = start(&coordinator.url, Some(&file)).await;
    let mut stream = coordinator.stream().await;
    let seven = version(7, "domain: seven");
    hand_out(&stream, wire_rules::encode(&seven)).await;
    timeout(PATIENCE, store.wait(None)).await.unwrap();
    assert_eq!(store.latest().await, Ok(Some(seven.clone())));
    // The next version comes before this one is in force.
    let eight = version(8, "domain: [");
    hand_out(&stream, wire_rules::encode(&eight)).await;
    timeout(PATIENCE, store.wait(Some(seven.head())))
        .await
        .unwrap();
    store.note(Some(seven.head()), None);
    let unkept = "in force, and not kept for the next start";
    let seen = until(&mut stream, |seen| seen.refused.starts_with(unkept)).await;
    assert_eq!(seen.applied, "");

    std::fs::remove_dir(&in_the_way).unwrap();
    let head = seven.head().to_string();
    let seen = until(&mut stream, |seen| seen.applied == head).await;
    assert_eq!(seen.refused, "");
    drop((stream, node, store));
    let (_node, store) = start(&coordinator.url, Some(&file)).await;
    assert_eq!(store.latest().await, Ok(Some(seven)));
}
