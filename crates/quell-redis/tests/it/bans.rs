//! Bans: listed by name, lifted, and alike for every server.

use std::time::Duration;

use quell::store::Action;
use quell::{Limit, Operation, Query};
use quell_core::ban::Ban;
use quell_core::descriptor::Descriptor;

use crate::limits::{SECOND, START, ask, built, limiter};
use crate::server::Server;

fn banning() -> Limit {
    let ban = Ban::new(2, Some(60 * SECOND), vec![60 * SECOND, 600 * SECOND]).unwrap();
    built(Limit::fixed_window(1, SECOND).build()).with_ban(ban)
}

#[tokio::test]
async fn refusals_by_two_servers_add_up_to_one_ban() {
    let server = Server::start(&[]);
    let store = || server.store().build();
    let (one, other) = (
        limiter(store(), &[banning()]),
        limiter(store(), &[banning()]),
    );
    let query = Query::new("d").entry("user", "eve");
    assert!(one.try_acquire(&query).await.unwrap().is_allow());
    let first = one.try_acquire(&query).await.unwrap();
    assert!(!first.is_allow() && !first.banned);
    assert!(other.try_acquire(&query).await.unwrap().banned);
    assert!(one.peek(&query).await.unwrap().banned);
    let listed = one.bans(10).await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].key.to_string(), "user=eve");
    assert_eq!(
        (listed[0].key.domain.as_str(), listed[0].key.rule.as_str()),
        ("d", "rule-0")
    );
    assert!(listed[0].left <= 60 * SECOND && listed[0].left > 50 * SECOND);
    let mut entries = Descriptor::new();
    entries.push("user", b"eve".as_slice());
    let lifted = other
        .administer_key("d", "rule-0", &entries, Action::Lift)
        .await;
    assert_eq!(lifted, Ok(1));
    assert_eq!(other.bans(10).await.unwrap(), []);
    assert!(!one.peek(&query).await.unwrap().banned);
}

#[tokio::test]
async fn a_ban_by_hand_stands_on_any_key_and_survives_its_limit() {
    let server = Server::start(&[]);
    let plain = built(Limit::per_second(100).build());
    let subject = limiter(server.store().rehearsal().build(), &[plain]);
    let query = Query::new("d").entry("user", "eve");
    let banned = subject.administer(&query, Action::Ban(90 * SECOND)).await;
    assert_eq!(banned, Ok(1));
    let verdict = ask(&subject, Operation::Acquire, "eve", 1, START).await;
    assert!(verdict.banned);
    assert_eq!(verdict.reset_after, Some(90 * SECOND));
    // Another algorithm starts fresh; the ban goes on.
    let rules = crate::limits::rules(&[built(Limit::sliding_log(5, SECOND).build())]);
    subject.set_rules(rules).unwrap();
    let verdict = ask(&subject, Operation::Acquire, "eve", 1, START + 1).await;
    assert!(verdict.banned);
    assert_eq!(subject.bans(10).await.unwrap().len(), 1);
    assert_eq!(subject.administer(&query, Action::Forgive).await, Ok(1));
    let verdict = ask(&subject, Operation::Acquire, "eve", 1, START + 2).await;
    assert!(verdict.is_allow());
    assert_eq!(subject.bans(10).await.unwrap(), []);
}

#[tokio::test]
async fn the_longest_bans_are_listed_first() {
    let server = Server::start(&[]);
    let subject = limiter(server.store().build(), &[banning()]);
    for (user, seconds) in [("a", 100), ("b", 300), ("c", 200)] {
        let query = Query::new("d").entry("user", user);
        let length = Duration::from_secs(seconds);
        subject
            .administer(&query, Action::Ban(length))
            .await
            .unwrap();
    }
    let listed = subject.bans(2).await.unwrap();
    let names: Vec<_> = listed.iter().map(|ban| ban.key.to_string()).collect();
    assert_eq!(names, ["user=b", "user=c"]);
    let left: i64 = server.command(&["PTTL", "quell:1:bans"]).parse().unwrap();
    assert!((290_000..=301_000).contains(&left), "{left}");
}

/// A reply of all these names would be longer than a connection takes.
#[tokio::test]
async fn a_list_of_the_longest_names_is_read_in_pages() {
    let server = Server::start(&[]);
    let subject = limiter(server.store().build(), &[banning()]);
    let query = |number: u64| {
        let value = format!("{number:03}{}", "x".repeat(500_000));
        Query::new("d").entry("user", value)
    };
    for number in 0..150 {
        let length = Duration::from_secs(1_000 - number);
        let query = query(number);
        let banned = subject.administer(&query, Action::Ban(length));
        assert_eq!(banned.await, Ok(1));
    }
    let numbers = async |most| {
        let listed = subject.bans(most).await.unwrap();
        let names = listed.iter().map(|ban| ban.key.to_string());
        names
            .map(|name| name["user=".len()..][..3].parse().unwrap())
            .collect::<Vec<u64>>()
    };
    assert_eq!(numbers(1_000).await, Vec::from_iter(0..150));
    assert_eq!(numbers(70).await, Vec::from_iter(0..70));
    // What was lifted and what is no name leave their page, and nothing behind them is missed.
    let add = "for i = 1, 200 do redis.call('ZADD', KEYS[1], 9e15, 'x' .. i) end";
    server.command(&["EVAL", add, "1", "quell:1:bans"]);
    for number in (0..150).step_by(2) {
        let query = query(number);
        let lifted = subject.administer(&query, Action::Lift);
        assert_eq!(lifted.await, Ok(1));
    }
    let odd = Vec::from_iter((0..150).skip(1).step_by(2));
    assert_eq!(numbers(40).await, odd[..40]);
    assert_eq!(numbers(1_000).await, odd);
    assert_eq!(server.command(&["ZCARD", "quell:1:bans"]), "75");
}
