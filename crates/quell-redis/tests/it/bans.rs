//! Bans: listed by name, lifted, and the same for every server.

use std::collections::BTreeSet;
use std::time::Duration;

use quell::store::{Action, BanCursor, BanPage};
use quell::{Limit, Limiter, Operation, Query};
use quell_core::ban::Ban;
use quell_core::descriptor::Descriptor;
use quell_core::rule::DomainRules;
use quell_redis::RedisStore;
use sha2::{Digest, Sha256};

use crate::limits::{SECOND, START, ask, built, limiter, rule};
use crate::server::{Server, try_command};

const HOUR: Duration = Duration::from_secs(3_600);

/// The name of the list in Redis.
const LIST: &str = "quell:1:{bans}list";

/// Its window, and the time in which refusals count, are longer than any machine needs for a test.
fn banning() -> Limit {
    let ban = Ban::new(2, Some(HOUR), vec![HOUR, 10 * HOUR]).unwrap();
    built(Limit::fixed_window(1, HOUR).build()).with_ban(ban)
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
    assert!(listed[0].left <= HOUR && listed[0].left > HOUR / 2);
    let cause = listed[0].cause.as_deref();
    assert_eq!(cause, Some("refusal 2 within 1h, ban 1 of 2"));
    assert_eq!(listed[0].reason, None, "nobody said why");
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
    let subject = limiter(server.store().test_isolation().build(), &[plain]);
    let query = Query::new("d").entry("user", "eve");
    let banned = subject
        .administer(&query, Action::Ban(90 * SECOND, None))
        .await;
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

/// A view of a ban shows its reason, whichever server set it, and that of no other ban on that key.
#[tokio::test]
async fn every_server_says_why_a_key_is_banned() {
    let server = Server::start(&[]);
    let new = || limiter(server.store().build(), &[banning()]);
    let (one, other) = (new(), new());
    let query = Query::new("d").entry("user", "eve");
    let reason = async || {
        let listed = other.bans(10).await.unwrap();
        let mut entries = Descriptor::new();
        entries.push("user", b"eve".as_slice());
        let viewed = other.view("d", Some("rule-0"), &entries).await.unwrap();
        let reason = viewed[0].1.ban_reason.clone();
        assert_eq!(listed.first().and_then(|ban| ban.reason.clone()), reason);
        reason
    };
    let ban = |seconds, reason| Action::Ban(seconds * SECOND, reason);
    let why = Some("tries 1 \u{e9}\r\n");
    one.administer(&query, ban(900, why)).await.unwrap();
    assert_eq!(reason().await.as_deref(), why);
    let on_its_key = |does: &str| {
        let key = "local key = redis.call('KEYS', 'quell:1:why:*')[1]";
        server.command(&["EVAL", &format!("{key} {does}"), "0"])
    };
    let left: i64 = { on_its_key("return redis.call('PTTL', key)").parse() }.unwrap();
    assert!((800_000..=900_000).contains(&left), "{left}");
    one.administer(&query, ban(600, None)).await.unwrap();
    assert_eq!(reason().await, None, "of a ban that another one replaced");
    one.administer(&query, ban(900, why)).await.unwrap();
    one.administer(&query, Action::Lift).await.unwrap();
    assert_eq!(reason().await, None, "there is no ban");
    for _ in 0..3 {
        one.try_acquire(&query).await.unwrap();
    }
    assert_eq!(other.bans(10).await.unwrap().len(), 1);
    assert_eq!(reason().await, None, "the rule banned it");
    one.administer(&query, ban(900, why)).await.unwrap();
    on_its_key("redis.call('DEL', key) return redis.call('ZADD', key, '1', 'foreign')");
    assert_eq!(reason().await, None);
    one.administer(&query, ban(900, why)).await.unwrap();
    assert_eq!(
        reason().await.as_deref(),
        why,
        "which the next one replaces"
    );
}

#[tokio::test]
async fn the_longest_bans_are_listed_first() {
    let server = Server::start(&[]);
    let subject = limiter(server.store().build(), &[banning()]);
    for (user, seconds) in [("a", 1_000), ("b", 3_000), ("c", 2_000)] {
        let query = Query::new("d").entry("user", user);
        let length = Duration::from_secs(seconds);
        subject
            .administer(&query, Action::Ban(length, None))
            .await
            .unwrap();
    }
    let listed = subject.bans(2).await.unwrap();
    let names: Vec<_> = listed.iter().map(|ban| ban.key.to_string()).collect();
    assert_eq!(names, ["user=b", "user=c"]);
    let left: i64 = server.command(&["PTTL", LIST]).parse().unwrap();
    assert!((2_000_000..=3_001_000).contains(&left), "{left}");
}

/// A member of the list of bans, without a state.
fn member(domain: &str, user: &str) -> Vec<u8> {
    let part = |part: &[u8]| [&u32::try_from(part.len()).unwrap().to_be_bytes(), part].concat();
    let digest = Sha256::digest(domain);
    let (domain, rule, entry) = (part(domain.as_bytes()), part(b"rule-0"), part(b"user"));
    let key = [b"r".as_slice(), &domain, &rule, &[1], &entry, &[0], &[1]].concat();
    let state = b"\0\x04none";
    [&digest[..8], state, &key, &part(user.as_bytes())].concat()
}

/// Adds so many members, whose last six bytes are numbers, and whose bans end one after the other from `until`.
fn add_members(server: &Server, member: &[u8], count: usize, until: &str) {
    let add = b"local head, domain = string.sub(ARGV[1], 1, -7), string.sub(ARGV[1], 1, 8)
        for i = 1, ARGV[2] do
          redis.call('ZADD', KEYS[1], ARGV[3] + i, head .. string.format('%06d', i))
        end
        for _, field in ipairs({domain, ''}) do redis.call('HINCRBY', KEYS[2], field, ARGV[2]) end";
    let count = count.to_string();
    let words: [&[u8]; 8] = [
        b"EVAL",
        add,
        b"2",
        LIST.as_bytes(),
        b"quell:1:{bans}domains",
        member,
        count.as_bytes(),
        until.as_bytes(),
    ];
    try_command(server.port(), &words).unwrap();
}

/// The users whose bans are listed, page by page.
async fn users_by_page(
    subject: &Limiter<RedisStore>,
    most: usize,
    domain: &'static str,
) -> Vec<Vec<String>> {
    let (mut pages, mut from) = (Vec::new(), Some(BanCursor::default()));
    while let Some(place) = from {
        let page = BanPage {
            wants: &|of| of == domain,
            from: &place,
            most,
        };
        let (bans, next) = subject.ban_page(&page).await.unwrap();
        let users = bans
            .iter()
            .map(|ban| ban.key.to_string()["user=".len()..].to_owned());
        pages.push(users.collect());
        from = next;
    }
    pages
}

/// An operator of one domain sees its bans, however many longer ones others have, and no call for that
/// takes long.
#[tokio::test]
async fn bans_of_a_domain_are_found_behind_ten_thousand_of_another() {
    let server = Server::start(&[]);
    let subject = limiter(server.store().build(), &[banning()]);
    let numbered = |number: u64| format!("{number:03}");
    for number in 0..150 {
        let query = Query::new("d").entry("user", numbered(number));
        let length = Duration::from_secs(100 * (1_000 - number));
        let banned = subject.administer(&query, Action::Ban(length, None)).await;
        assert_eq!(banned, Ok(1));
    }
    add_members(&server, &member("e", "000000"), 10_000, "8e15");
    server.command(&["CONFIG", "RESETSTAT"]);
    let pages = users_by_page(&subject, 40, "d").await;
    let all = Vec::from_iter((0..150).map(numbered));
    assert_eq!(pages.concat(), all);
    assert!(
        pages.iter().all(|page| page.len() <= 40) && pages.len() == 4,
        "{pages:?}"
    );
    // Not one state of another domain is looked at.
    let statistics = server.command(&["INFO", "commandstats"]);
    let slow: u64 = { statistics.lines() }
        .filter(|line| line.starts_with("cmdstat_evalsha:"))
        .map(|line| {
            line["cmdstat_evalsha:calls=".len()..]
                .split(',')
                .next()
                .unwrap()
        })
        .map(|calls| calls.parse::<u64>().unwrap())
        .sum();
    assert!(slow < 40, "{slow}");
    // A page that passes over too many is empty, and the next one goes on.
    add_members(&server, &member("e", "x000000"), 20_000, "8.1e15");
    let pages = users_by_page(&subject, 1_000, "d").await;
    assert_eq!(pages.concat(), all);
    assert_eq!(pages[0], Vec::<String>::new());
}

/// Fifty thousand keys banned in one domain, as SECURITY.md describes: the next ban there has no name on
/// the list. It is in force, its key shows it, and it is lifted as before. Another domain has its names all
/// the same, however much sooner its bans end.
#[tokio::test]
async fn fifty_thousand_bans_of_a_domain_take_no_name_of_another() {
    let server = Server::start(&[]);
    let subject = limiter(server.store().build(), &[]);
    let rules =
        ["d", "e"].map(|domain| DomainRules::new(domain, vec![rule(0, &["user"], &banning())]));
    subject.set_rules(rules.into()).unwrap();
    add_members(&server, &member("e", "000000"), 50_000, "8e15");
    let users = async |domain| users_by_page(&subject, 10, domain).await.concat();
    for (domain, is_listed) in [("d", true), ("e", false)] {
        let query = Query::new(domain).entry("user", "eve");
        assert!(subject.try_acquire(&query).await.unwrap().is_allow());
        subject.try_acquire(&query).await.unwrap();
        assert!(
            subject.try_acquire(&query).await.unwrap().banned,
            "{domain}"
        );
        assert_eq!(server.command(&["ZCARD", LIST]), "50001", "{domain}");
        assert!(subject.peek(&query).await.unwrap().banned, "{domain}");
        assert_eq!(users("d").await, ["eve"], "{domain}");
        let mut entries = Descriptor::new();
        entries.push("user", b"eve".as_slice());
        if !is_listed {
            let lifted = subject.administer_key(domain, "rule-0", &entries, Action::Lift);
            assert_eq!(lifted.await, Ok(1));
            assert!(!subject.peek(&query).await.unwrap().banned);
        }
    }
    // The next one of that domain is listed when one of the others is gone.
    let others = "local gone = redis.call('ZPOPMAX', KEYS[1])[1] local domain = string.sub(gone, 1, 8) \
        for _, field in ipairs({domain, ''}) do redis.call('HINCRBY', KEYS[2], field, -2) end \
        redis.call('ZPOPMAX', KEYS[1])";
    server.command(&["EVAL", others, "2", LIST, "quell:1:{bans}domains"]);
    let query = Query::new("e").entry("user", "eve");
    assert_eq!(
        subject.administer(&query, Action::Ban(HOUR, None)).await,
        Ok(1)
    );
    assert_eq!(server.command(&["ZCARD", LIST]), "50000");
    assert_eq!(users("e").await, ["eve"]);
}

/// A value of somebody else, or numbers that were evicted: the list starts anew, and every ban stands.
#[tokio::test]
async fn a_list_of_bans_without_its_numbers_starts_anew() {
    let server = Server::start(&[]);
    let subject = limiter(server.store().build(), &[banning()]);
    let ban = async |user: &'static str| {
        let query = Query::new("d").entry("user", user);
        let banned = subject.administer(&query, Action::Ban(HOUR, None));
        assert_eq!(banned.await, Ok(1));
    };
    ban("ann").await;
    for (key, odd) in [
        (LIST, ["SET", LIST, "x"].as_slice()),
        (
            "quell:1:{bans}domains",
            &["SET", "quell:1:{bans}domains", "x"],
        ),
        ("quell:1:{bans}domains", &["DEL", "quell:1:{bans}domains"]),
        (LIST, &["DEL", LIST]),
    ] {
        ban("bob").await;
        server.command(odd);
        ban("eve").await;
        let listed = subject.bans(10).await.unwrap();
        assert_eq!(listed.len(), 1, "{key} {odd:?}");
        assert_eq!(listed[0].key.to_string(), "user=eve");
        let query = Query::new("d").entry("user", "ann");
        assert!(subject.peek(&query).await.unwrap().banned);
    }
}

/// An entry that is no ban leaves the list, and no ban behind it is missed or shown twice.
#[tokio::test]
async fn pages_of_bans_miss_nobody_while_others_begin_and_end() {
    let server = Server::start(&[]);
    let subject = limiter(server.store().build(), &[banning()]);
    let query = |number: u64| Query::new("d").entry("user", format!("{number:03}"));
    let administer = async |number, action| {
        assert_eq!(subject.administer(&query(number), action).await, Ok(1));
    };
    for number in 0..100 {
        let length = Duration::from_secs(100 * (1_000 - number));
        administer(number, Action::Ban(length, None)).await;
    }
    let page = async |from: &BanCursor| {
        let page = BanPage {
            wants: &|_| true,
            from,
            most: 40,
        };
        let (bans, next) = subject.ban_page(&page).await.unwrap();
        let users = bans
            .iter()
            .map(|ban| ban.key.to_string()["user=".len()..].parse().unwrap());
        (Vec::<u64>::from_iter(users), next)
    };
    let (first, next) = page(&BanCursor::default()).await;
    assert_eq!(first, Vec::from_iter(0..40));
    // Some of those that were shown end, one begins before all others, and odd members come.
    for number in (0..40).step_by(2) {
        administer(number, Action::Lift).await;
    }
    administer(500, Action::Ban(Duration::from_secs(900_000), None)).await;
    add_members(&server, b"what nobody wrote 000000", 300, "9e15");
    let (second, next) = page(&next.unwrap()).await;
    assert_eq!(second, Vec::from_iter(40..80));
    let (third, next) = page(&next.unwrap()).await;
    assert_eq!((third, next), (Vec::from_iter(80..100), None));
    let (first, _) = page(&BanCursor::default()).await;
    let left = [500].into_iter().chain((1..40).step_by(2)).chain(40..59);
    assert_eq!(first, Vec::from_iter(left));
    assert_eq!(server.command(&["ZCARD", LIST]), "81");
}

/// Strangers choose the values of keys: the list keeps no more of them than it shows.
#[tokio::test]
async fn long_values_are_listed_short() {
    let server = Server::start(&[]);
    let subject = limiter(server.store().build(), &[banning()]);
    let long = |end: &str| format!("{}{end}", "x".repeat(8_000));
    let query = |value: &str| Query::new("d").entry("user", value.to_owned());
    let names = async || {
        let listed = subject.bans(10).await.unwrap();
        let names = listed.iter().map(|ban| ban.key.to_string());
        names.collect::<BTreeSet<_>>()
    };
    for value in [&long("a"), &long("b"), "short"] {
        let query = query(value);
        let banned = subject.administer(&query, Action::Ban(HOUR, None));
        assert_eq!(banned.await, Ok(1));
    }
    let bytes = server.command(&["MEMORY", "USAGE", LIST, "SAMPLES", "0"]);
    assert!(bytes.parse::<usize>().unwrap() < 2_000, "{bytes}");
    let all = names().await;
    assert_eq!(all.len(), 3, "{all:?}");
    assert!(all.iter().all(|name| name.len() < 100), "{all:?}");
    assert_eq!(server.command(&["ZCARD", LIST]), "3");
    for value in [&long("a"), &long("b"), "short"] {
        let query = query(value);
        let lifted = subject.administer(&query, Action::Lift);
        assert_eq!(lifted.await, Ok(1));
    }
    assert_eq!(subject.bans(10).await.unwrap(), []);
    assert_eq!(server.command(&["EXISTS", LIST]), "0");
}

/// Counting bans for metrics must not read a hundred thousand names.
#[tokio::test]
async fn bans_are_counted_without_their_names() {
    let server = Server::start(&[]);
    let subject = limiter(server.store().build(), &[banning()]);
    assert_eq!(subject.ban_count().await, Ok(0));
    let long = "x".repeat(8_000);
    for value in ["ann", "eve", &long] {
        let query = Query::new("d").entry("user", value.to_owned());
        let banned = subject.administer(&query, Action::Ban(HOUR, None));
        assert_eq!(banned.await, Ok(1));
    }
    assert_eq!(subject.ban_count().await, Ok(3));
    // A ban that is over, but still on the list.
    add_members(&server, &member("d", "bob000"), 1, "1");
    assert_eq!(subject.ban_count().await, Ok(3));
    for (value, left) in [("ann", 2), (&long, 1)] {
        let query = Query::new("d").entry("user", value.to_owned());
        assert_eq!(subject.administer(&query, Action::Lift).await, Ok(1));
        assert_eq!(subject.ban_count().await, Ok(left));
    }
    let commands = server.command(&["INFO", "commandstats"]);
    assert!(commands.contains("cmdstat_zcount"), "{commands}");
    assert!(!commands.contains("cmdstat_zrevrange"), "{commands}");
    // A value that is not a list counts as empty.
    server.command(&["SET", LIST, "x"]);
    assert_eq!(subject.ban_count().await, Ok(0));
}
