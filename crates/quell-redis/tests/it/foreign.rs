//! Values under our names that Quell did not write: each is replaced, counted and reported; no key exceeds
//! its limit because of it, and none is blocked for longer than one full refill.

use std::time::Duration;

use proptest::prelude::*;
use quell::store::{Action, HoldStatus};
use quell::{Limit, Limiter, Query, Rate, Verdict};
use quell_core::algorithm::token_bucket::TokenBucket;
use quell_redis::{RedisStore, StoreClock};

use crate::fallback::{Node, declaring, share};
use crate::limits::{SECOND, START, at, built, limiter};
use crate::patience::until_it;
use crate::server::{Server, try_command};

/// An empty value.
const EMPTY: &[&[u8]] = &[b"SET", b""];

/// Values that replace a state: the words before the key and after it.
const FOREIGN: [&[&[u8]]; 6] = [
    EMPTY,
    &[b"SET", b"{\"a\":1}"],
    &[b"SET", b"\0garbage"],
    &[b"RPUSH", b"x"],
    &[b"SADD", b"x"],
    &[b"XADD", b"*", b"a", b"b"],
];

fn only_key(server: &Server) -> Vec<u8> {
    let keys = server.keys();
    assert_eq!(keys.len(), 1, "{keys:?}");
    keys[0].clone()
}

/// Overwrites a state with a foreign value.
fn spoil(server: &Server, key: &[u8], with: &[&[u8]]) {
    try_command(server.port(), &[b"DEL", key]).unwrap();
    let mut words: Vec<&[u8]> = vec![with[0], key];
    words.extend(&with[1..]);
    try_command(server.port(), &words).unwrap();
    let left = try_command(server.port(), &[b"PTTL", key]).unwrap();
    assert_eq!(left, "-1", "it would stay for ever");
}

/// One limit of every kind, each of which is at rest after a second at most.
fn every_kind() -> Vec<Limit> {
    let rate = || Rate::new(50, SECOND).unwrap();
    vec![
        built(Limit::token_bucket(rate()).burst(20).build()),
        built(Limit::token_bucket(rate()).burst(20).initial(3).build()),
        built(TokenBucket::refill(25, SECOND / 2).burst(20).build()),
        built(Limit::leaky_bucket(rate()).burst(20).build()),
        built(Limit::fixed_window(20, SECOND).build()),
        built(Limit::sliding_window(20, SECOND).build()),
        built(Limit::sliding_log(20, SECOND).build()),
    ]
}

#[tokio::test]
async fn a_foreign_value_counts_as_used_up_and_drains() {
    let pairs = FOREIGN.into_iter().cycle().zip(every_kind());
    let empty = every_kind().into_iter().map(|limit| (EMPTY, limit));
    for (with, limit) in pairs.chain(empty) {
        let server = Server::start(&[]);
        let store = server.store().clock(StoreClock::Caller).build();
        let subject = limiter(store, std::slice::from_ref(&limit));
        let query = Query::new("d").entry("user", "a");
        let ask = async |micros: u64| -> Verdict {
            let asked = subject.ask(quell::Operation::Acquire, &query, at(START + micros));
            asked.await.unwrap()
        };
        ask(0).await;
        spoil(&server, &only_key(&server), with);
        let refused = ask(1).await;
        assert!(!refused.is_allow() && !refused.degraded, "{limit}");
        assert_eq!(refused.remaining, Some(0), "{limit}");
        // As if all of it had been used at that moment.
        let wait = match refused.retry_after {
            Some(quell::RetryAfter::After(wait)) => wait,
            other => panic!("{limit}: {other:?}"),
        };
        assert!(wait <= 2 * SECOND, "{limit}: {wait:?}");
        let wait = u64::try_from(wait.as_micros()).unwrap();
        assert!(!ask(wait).await.is_allow(), "{limit}: too early");
        assert!(ask(1 + wait).await.is_allow(), "{limit}");
        assert!(server.left() > 0, "it expires");
        assert_eq!(subject.store().numbers().replaced, 1, "{limit}");
    }
}

/// In a batch of many calls, and behind the fallback, as in a server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_else_is_the_worse_for_it() {
    let server = Server::start(&[]);
    let limit = built(Limit::fixed_window(1_000, 3_600 * SECOND).build());
    let node = Node::new(server.store(), declaring(&[limit], share(1)));
    node.until_back("a").await;
    let key = only_key(&server);
    for with in FOREIGN {
        spoil(&server, &key, with);
        let names: Vec<String> = (0..20).map(|user| format!("user-{}", user % 4)).collect();
        let others = names.iter().map(|user| node.ask(user, 1));
        let (all, spoiled) =
            futures_util::future::join(futures_util::future::join_all(others), node.ask("a", 1))
                .await;
        assert!(all.iter().all(|said| said.is_allow() && !said.degraded));
        assert!(!spoiled.is_allow() && !spoiled.degraded, "{spoiled:?}");
        // Administration works there, too.
        let query = Query::new("d").entry("user", "a");
        node.limiter
            .administer(&query, Action::Forgive)
            .await
            .unwrap();
        assert!(node.ask("a", 1).await.is_allow());
        for user in 0..4 {
            let query = Query::new("d").entry("user", format!("user-{user}"));
            node.limiter
                .administer(&query, Action::Forgive)
                .await
                .unwrap();
        }
    }
    assert_eq!(node.limiter.store().store().numbers().replaced, 6);
    assert_eq!(node.limiter.store().fallback_numbers().shared, 0);
}

/// Existing bans are listed although one of them, and the list itself, has a foreign value.
#[tokio::test]
async fn bans_are_listed_beside_a_foreign_value() {
    let server = Server::start(&[]);
    let limit = built(Limit::fixed_window(5, 60 * SECOND).build());
    let subject = limiter(server.store().build(), &[limit]);
    let query = |user: &'static str| Query::new("d").entry("user", user);
    let ban = Action::Ban(600 * SECOND, None);
    subject.administer(&query("a"), ban).await.unwrap();
    let mut keys = server.keys();
    keys.retain(|key| key.ends_with(b"}"));
    subject.administer(&query("b"), ban).await.unwrap();
    assert_eq!(subject.bans(10).await.unwrap().len(), 2);
    for with in [FOREIGN[0], FOREIGN[2]] {
        try_command(server.port(), &[b"DEL".as_slice(), &keys[0]]).unwrap();
        let mut words: Vec<&[u8]> = vec![with[0], &keys[0]];
        words.extend(&with[1..]);
        try_command(server.port(), &words).unwrap();
        assert_eq!(subject.bans(10).await.unwrap().len(), 1);
        // It is charged and banned as any other.
        assert!(!subject.try_acquire(&query("a")).await.unwrap().is_allow());
        subject.administer(&query("a"), ban).await.unwrap();
        assert!(subject.try_acquire(&query("a")).await.unwrap().banned);
        assert_eq!(subject.bans(10).await.unwrap().len(), 2);
    }
    server.command(&["DEL", "quell:1:{bans}list"]);
    server.command(&["SET", "quell:1:{bans}list", "x"]);
    assert_eq!(subject.bans(10).await.unwrap().len(), 0);
    subject.administer(&query("c"), ban).await.unwrap();
    assert_eq!(subject.bans(10).await.unwrap().len(), 1);
}

/// A damaged ban that can still be read counts until it is lifted.
#[tokio::test]
async fn a_damaged_ban_stands_until_it_is_lifted() {
    let server = Server::start(&[]);
    let limit = built(Limit::fixed_window(5, 60 * SECOND).build());
    let subject = limiter(server.store().build(), &[limit]);
    let query = Query::new("d").entry("user", "a");
    let ban = Action::Ban(600 * SECOND, None);
    subject.administer(&query, ban).await.unwrap();
    let mut keys = server.keys();
    keys.retain(|key| key.ends_with(b"}"));
    let words: [&[u8]; 2] = [b"STRLEN", &keys[0]];
    let length = try_command(server.port(), &words).unwrap();
    let length: usize = length.parse().unwrap();
    // Its end and its length, in the 24 bytes of a ban without refusals: the year 2112.
    let from = (length - 24).to_string();
    let late = b"\x10\0\0\0\0\0\0".repeat(2);
    let words: [&[u8]; 4] = [b"SETRANGE", &keys[0], from.as_bytes(), &late];
    try_command(server.port(), &words).unwrap();
    for _ in 0..3 {
        let refused = subject.try_acquire(&query).await.unwrap();
        assert!(refused.banned);
        let wait = match refused.retry_after {
            Some(quell::RetryAfter::After(wait)) => wait,
            other => panic!("{other:?}"),
        };
        assert!(wait > 10 * 365 * 86_400 * SECOND, "{wait:?}");
    }
    assert_eq!(subject.administer(&query, Action::Lift).await, Ok(1));
    assert!(subject.try_acquire(&query).await.unwrap().is_allow());
}

/// Permits, whose holders are unknown, are as after a restart; a reservation is charged to a used-up
/// state, and an unreadable id means no hold.
#[tokio::test]
async fn holds_find_their_way_past_a_foreign_value() {
    let server = Server::start(&[]);
    let permits = built(Limit::concurrency(2).build());
    let subject = limiter(server.store().build(), &[permits]);
    let query = Query::new("d").entry("user", "a");
    for with in FOREIGN {
        for key in server.keys() {
            try_command(server.port(), &[b"DEL".as_slice(), &key]).unwrap();
        }
        let first = subject
            .reserve(&query, 60 * SECOND, Some("job"))
            .await
            .unwrap();
        assert!(first.is_allow());
        for key in server.keys() {
            try_command(server.port(), &[b"DEL".as_slice(), &key]).unwrap();
            let mut words: Vec<&[u8]> = vec![with[0], &key];
            words.extend(&with[1..]);
            try_command(server.port(), &words).unwrap();
        }
        let held = subject
            .reserve(&query, 60 * SECOND, Some("job"))
            .await
            .unwrap();
        assert!(held.is_allow(), "none is held");
        let ended = subject
            .end("d", "job", quell::Ending::Release)
            .await
            .unwrap();
        assert_eq!(ended.status, HoldStatus::Released);
    }
}

fn garbage() -> impl Strategy<Value = Vec<u8>> {
    let any = proptest::collection::vec(any::<u8>(), 1..64);
    // After the first bytes of a limit, or of a state with holds.
    (proptest::option::of(0_u8..=255), any).prop_map(|(first, mut bytes)| {
        if let Some(first) = first {
            bytes[0] = first;
        }
        bytes
    })
}

/// Overwrites a state, or the same number of bytes after some of it.
const SPOIL: &str = "local was, bytes, kept = redis.call('GET', KEYS[1]), ARGV[1], tonumber(ARGV[2]) \
    if kept then \
        kept = kept % #was \
        bytes = was:sub(1, kept) .. bytes:rep(#was):sub(1, #was - kept) \
    end \
    return redis.call('SET', KEYS[1], bytes)";

/// The first byte of a limit, its number of numbers, and the bytes of its use.
const KINDS: [(u8, usize, usize); 10] = [
    (1, 2, 7),
    (0x31, 4, 14),
    (2, 2, 7),
    (0x82, 5, 7),
    (3, 3, 14),
    (4, 2, 14),
    (6, 4, 16),
    (7, 2, 16),
    (7, 2, 26),
    (0x80, 4, 16),
];

/// A limiter of each kind, whose keys contain what a test writes.
struct Spoiled {
    server: Server,
    subjects: Vec<(Limit, Limiter<RedisStore>)>,
}

impl Spoiled {
    fn new() -> Self {
        let server = Server::start(&[]);
        let limits = every_kind().into_iter().enumerate();
        let subjects = limits.map(|(number, limit)| {
            let store = server.store().test_keys(&number.to_string());
            let store = store.clock(StoreClock::Caller).build();
            let subject = limiter(store, std::slice::from_ref(&limit));
            (limit, subject)
        });
        Self {
            subjects: subjects.collect(),
            server,
        }
    }

    /// Whatever is stored, perhaps after some bytes of the state: there is an answer, never more than the
    /// limit, and after two full refills the whole limit (one for what was written, and one that a key may
    /// owe if its clock went back).
    async fn check(&self, bytes: &[u8], kept: Option<u16>) {
        let query = Query::new("d").entry("user", "a");
        for (limit, subject) in &self.subjects {
            let pass = async |micros: u64, most: u32| -> u32 {
                let mut passed = 0;
                for _ in 0..most {
                    let now = at(START + micros);
                    let asked = subject.ask(quell::Operation::Acquire, &query, now);
                    passed += u32::from(asked.await.unwrap().is_allow());
                }
                passed
            };
            self.server.command(&["FLUSHALL"]);
            pass(0, 1).await;
            let key = only_key(&self.server);
            let kept_too = kept.map_or_else(String::new, |kept| kept.to_string());
            let words: [&[u8]; 6] = [
                b"EVAL",
                SPOIL.as_bytes(),
                b"1",
                &key,
                bytes,
                kept_too.as_bytes(),
            ];
            assert_eq!(try_command(self.server.port(), &words).unwrap(), "OK");
            let passed = pass(0, 25).await;
            assert!(passed <= 20, "{limit}: {passed} after {bytes:?}, {kept:?}");
            let later = pass(2_500_000, 25).await;
            assert_eq!(later, 20, "{limit}: after {bytes:?}, {kept:?}");
        }
    }
}

/// Values that can be read, but that no server writes: a debt of a bucket that is filled in batches or
/// warms up (the first two were found by chance), and limits with a number of zero.
#[tokio::test]
async fn what_no_server_writes_locks_no_key() {
    let spoiled = Spoiled::new();
    let debts: [&[u8]; 3] = [
        b"\x33\xcd\xc5\x11\xaaGhf\x8cK\xa2x\xaa\x99\x8fL\xeaS&7J",
        b"\x82`\xd5\x80^\xe4\x08\x9b\xf2\xc0\xed\xaf-\xaf\x8fo)\x85\x88n\xdd\xe4\xed",
        b"\x03\x01\x01\x14\xff\xff\xff\xff\xff\xff\xff\0\0\x01\0\0\0\0",
    ];
    let mut all: Vec<_> = debts.into_iter().map(<[u8]>::to_vec).collect();
    for (kind, numbers, used) in KINDS {
        for nothing in 0..numbers {
            let numbers = (0..numbers).map(|number| u8::from(number != nothing));
            let limit: Vec<_> = std::iter::once(kind).chain(numbers).collect();
            // One unit, at an instant that leaves no time to drain.
            for from in [0, 7] {
                let mut state = vec![0; used - 1];
                state.extend([1]);
                for byte in state.iter_mut().skip(from).take(7) {
                    *byte = 0xff;
                }
                all.push([limit.clone(), state].concat());
            }
        }
    }
    for bytes in all {
        spoiled.check(&bytes, None).await;
    }
}

/// The same after the very limit that is asked, whose other bytes are not read.
#[tokio::test]
async fn more_used_than_a_limit_is_foreign() {
    Spoiled::new().check(&[0xff; 7], Some(13)).await;
}

/// However long another limit's use takes to come to rest, a server accepts the expiry.
#[tokio::test]
async fn the_largest_limits_are_carried_over() {
    let spoiled = Spoiled::new();
    let most = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
    for (kind, numbers, used) in KINDS {
        let bytes = [vec![kind], most.repeat(numbers), vec![0x20; used]].concat();
        spoiled.check(&bytes, None).await;
        let bytes = [vec![kind, 1], most.repeat(numbers - 1), vec![0x20; used]].concat();
        spoiled.check(&bytes, None).await;
    }
}

#[test]
fn any_bytes_have_an_answer() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let spoiled = Spoiled::new();
    let limits = every_kind();
    let server = &spoiled.server;
    let holds: Vec<_> = limits
        .iter()
        .map(|limit| limiter(server.store().build(), std::slice::from_ref(limit)))
        .collect();
    let query = Query::new("d").entry("user", "a");
    let check = |bytes: Vec<u8>, kept: u16| {
        runtime.block_on(async {
            spoiled.check(&bytes, None).await;
            spoiled.check(&bytes, Some(kept)).await;
            for (subject, limit) in holds.iter().zip(&limits) {
                server.command(&["FLUSHALL"]);
                let claim = async || subject.reserve(&query, SECOND, None).await;
                claim().await.unwrap();
                let mut keys = server.keys();
                keys.retain(|key| key.ends_with(b"}"));
                let words: [&[u8]; 3] = [b"SET", &keys[0], &[b"\0", &bytes[..]].concat()];
                try_command(server.port(), &words).unwrap();
                let claimed = claim().await;
                assert!(claimed.is_ok(), "{limit}: {claimed:?} after {bytes:?}");
            }
        });
    };
    let config = ProptestConfig {
        cases: 40,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    proptest!(config, |(bytes in garbage(), kept in any::<u16>())| check(bytes, kept));
}

/// By a store with a fallback, which asks again.
#[tokio::test]
async fn a_key_is_mended_and_the_store_decides_again() {
    let server = Server::start(&[]);
    let limit = built(Limit::fixed_window(10, Duration::from_secs(1)).build());
    let node = Node::new(server.store(), declaring(&[limit], share(1)));
    node.until_back("a").await;
    spoil(&server, &only_key(&server), FOREIGN[2]);
    until_it("an answer of the store", async || {
        !node.ask("a", 1).await.degraded
    })
    .await;
}

/// A state with a hold and one changed byte: its content may make no sense.
#[test]
fn any_byte_of_a_state_with_holds_may_be_another() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = Server::start(&[]);
    let mut limits = every_kind();
    limits.push(built(Limit::concurrency(20).build()));
    let subjects: Vec<_> = limits
        .iter()
        .map(|limit| limiter(server.store().build(), std::slice::from_ref(limit)))
        .collect();
    let query = Query::new("d").entry("user", "a");
    let change = "local v = redis.call('GET', KEYS[1]) local at = ARGV[1] % #v \
        redis.call('SET', KEYS[1], v:sub(1, at) .. string.char(ARGV[2]) .. v:sub(at + 2))";
    let check = |(place, byte): (u16, u8)| {
        runtime.block_on(async {
            for (subject, limit) in subjects.iter().zip(&limits) {
                server.command(&["FLUSHALL"]);
                let claim = async || subject.reserve(&query, 60 * SECOND, None).await;
                claim().await.unwrap();
                let mut keys = server.keys();
                keys.retain(|key| key.ends_with(b"}"));
                let (place, byte) = (place.to_string(), byte.to_string());
                let words: [&[u8]; 6] = [
                    b"EVAL",
                    change.as_bytes(),
                    b"1",
                    &keys[0],
                    place.as_bytes(),
                    byte.as_bytes(),
                ];
                try_command(server.port(), &words).unwrap();
                let claimed = claim().await;
                let said = claimed.map_err(|error| error.to_string());
                assert!(said.is_ok(), "{limit}: byte {place} is {byte}: {said:?}");
            }
        });
    };
    let config = ProptestConfig {
        cases: 100,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    proptest!(config, |(change in (any::<u16>(), any::<u8>()))| check(change));
}
