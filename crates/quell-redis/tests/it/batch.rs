//! Concurrent calls share a script call, and each gets the answer that it would get alone.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Waker};

use futures_util::future::{join, join_all, join4};
use quell::store::{
    Action, AdminStore, Answer, BanList, BanPage, Charges, KeyView, Store, StoreError,
};
use quell::{Cost, Limit, Limiter, Query};
use quell_conformance::{Carries, same_as_model_in_micros};
use quell_core::algorithm::fixed_window::CalendarUnit;
use quell_core::charge::{LimitSet, Operation};
use quell_core::limit::{ActiveLimit, LimitId, LimitPlace};
use quell_core::rule::Changes;
use quell_core::time::{Monotonic, Now};
use quell_redis::{RedisStore, StoreClock};
use quell_testkit::proxy::{Fault, Proxy};

use crate::fallback::scripts;
use crate::limits::{SECOND, START, ask, at, built, limiter};
use crate::patience::{PATIENCE, TIMEOUT, until_it};
use crate::server::{Server, try_command};

/// Replaces the only key that `make` creates by a foreign value.
async fn spoil(server: &Server, value: &str, make: impl Future<Output = ()>) {
    let before = server.keys();
    make.await;
    let made = server.keys().into_iter().find(|key| !before.contains(key));
    let name = made.expect("a key was made");
    let set = |words: &[&[u8]]| try_command(server.port(), words).unwrap();
    set(&[b"DEL", &name]);
    match value {
        "list" => set(&[b"RPUSH", &name, b"x"]),
        text => set(&[b"SET", &name, text.as_bytes()]),
    };
}

/// A store that never sends a call alone: each goes with a neighbour's call, and with one for a key
/// that held a foreign value at first.
#[derive(Debug)]
struct Crowded {
    store: RedisStore,
    active: ActiveLimit,
    asked: Arc<AtomicU64>,
}

impl Crowded {
    /// `other` has the same keys.
    async fn new(store: RedisStore, other: RedisStore, server: &Server) -> Self {
        let crowded = Self {
            store,
            active: ActiveLimit {
                id: LimitId::default(),
                limit: built(Limit::per_second(5).build()),
                since: Monotonic::ORIGIN,
                place: LimitPlace::NONE,
            },
            asked: Arc::default(),
        };
        spoil(server, "list", async {
            let set = LimitSet::ad_hoc(b"foreign", &crowded.active, Cost::ONE);
            let now = at(START);
            let charged = other
                .decide(Charges::Set(&set), Operation::Acquire, now)
                .await;
            charged.unwrap();
        })
        .await;
        crowded
    }

    async fn among<T>(&self, question: impl Future<Output = T>, now: Now) -> T {
        let look = async |key: &[u8]| {
            let set = LimitSet::ad_hoc(key, &self.active, Cost::ONE);
            self.store
                .decide(Charges::Set(&set), Operation::Peek, now)
                .await
        };
        self.asked.fetch_add(1, Ordering::Relaxed);
        // The next call applies the changes of a reload: this one does, before the others.
        look(b"first").await.unwrap();
        // The first leaves alone, the others after it.
        let (first, foreign, answer, last) =
            join4(look(b"first"), look(b"foreign"), question, look(b"last")).await;
        for neighbour in [first, foreign, last] {
            assert_eq!(neighbour.unwrap().decisions.len(), 1);
        }
        answer
    }
}

impl Store for Crowded {
    type Lookup = ();

    fn install(&self, changes: &Changes) {
        self.store.install(changes);
    }

    async fn decide(
        &self,
        charges: Charges<'_, '_>,
        operation: Operation,
        now: Now,
    ) -> Result<Answer, StoreError> {
        self.among(self.store.decide(charges, operation, now), now)
            .await
    }
}

impl AdminStore for Crowded {
    async fn administer(
        &self,
        set: &LimitSet<'_>,
        action: Action<'_>,
        now: Now,
    ) -> Result<usize, StoreError> {
        self.among(self.store.administer(set, action, now), now)
            .await
    }

    async fn view(&self, set: &LimitSet<'_>, now: Now) -> Result<Vec<KeyView>, StoreError> {
        self.store.view(set, now).await
    }

    async fn ban_page(&self, page: &BanPage<'_>, now: Now) -> Result<BanList, StoreError> {
        self.store.ban_page(page, now).await
    }

    async fn ban_count(&self, now: Now) -> Result<usize, StoreError> {
        self.store.ban_count(now).await
    }
}

#[tokio::test]
async fn random_traces_have_the_same_answers_among_other_questions() {
    let server = Server::start(&[]);
    for seed in 1..11 {
        let name = format!("one-{seed}");
        let store = server.store().test_keys(&name).test_isolation().build();
        let other = server.store().test_keys(&name).build();
        let crowded = Crowded::new(store, other, &server).await;
        same_as_model_in_micros(crowded, Carries::AtOnce, seed, 300).await;
        let name = format!("many-{seed}");
        let store = server.store().test_keys(&name).clock(StoreClock::Caller);
        let other = server.store().test_keys(&name).build();
        let crowded = Crowded::new(store.build(), other, &server).await;
        let asked = Arc::clone(&crowded.asked);
        let before = scripts(&server);
        same_as_model_in_micros(crowded, Carries::AtNextCall, seed, 300).await;
        let calls = scripts(&server) - before;
        let asked = asked.load(Ordering::Relaxed);
        // Five calls each in three script calls; listing bans takes one more.
        assert!(calls < asked * 4, "{calls} calls for {asked}");
    }
}

async fn passes(subject: &Limiter<RedisStore>, user: &str) -> Result<bool, String> {
    let query = Query::new("d").entry("user", user.to_owned());
    let verdict = subject.try_acquire(&query).await;
    let verdict = verdict.map_err(|error| error.to_string())?;
    Ok(verdict.is_allow())
}

/// This many parallel calls for different users. Returns each answer.
async fn all(subject: &Limiter<RedisStore>, users: usize) -> Vec<Result<bool, String>> {
    let users: Vec<_> = (0..users).map(|user| format!("user-{user}")).collect();
    join_all(users.iter().map(|user| passes(subject, user))).await
}

fn five() -> Limit {
    built(Limit::fixed_window(5, 3_600 * SECOND).build())
}

#[tokio::test]
async fn one_key_admits_exactly_its_limit_in_the_order_of_its_calls() {
    let server = Server::start(&[]);
    let limits = [
        built(Limit::fixed_window(100, 3_600 * SECOND).build()),
        built(Limit::sliding_log(100, 3_600 * SECOND).build()),
        built(Limit::per_second(1).burst(10_000).build()),
    ];
    for count in [1, 2, 3] {
        let store = server.store().test_keys(&format!("{count}"));
        let subject = limiter(store.build(), &limits[..count]);
        let before = scripts(&server);
        let query = Query::new("d").entry("user", "hot");
        let verdicts = join_all((0..300).map(|_| subject.try_acquire(&query))).await;
        for (call, verdict) in (0_u64..).zip(verdicts) {
            let verdict = verdict.unwrap();
            assert_eq!(verdict.is_allow(), call < 100, "call {call}");
            assert_eq!(verdict.remaining, Some(99_u64.saturating_sub(call)));
        }
        let calls = scripts(&server) - before;
        assert!(calls < 20, "{calls} script calls for 300 questions");
    }
}

#[tokio::test]
async fn what_is_wrong_with_one_question_is_its_own_answer() {
    let server = Server::start(&[]);
    for limit in [five(), built(Limit::per_hour(5).build())] {
        for value in ["list", "{\"a\":1}", "\u{5}"] {
            server.command(&["FLUSHALL"]);
            let subject = limiter(server.store().build(), std::slice::from_ref(&limit));
            spoil(&server, value, async {
                passes(&subject, "user-7").await.unwrap();
            })
            .await;
            for _ in 0..3 {
                let told = all(&subject, 40).await;
                for (user, told) in told.into_iter().enumerate() {
                    assert_eq!(told, Ok(user != 7), "{value}: {user}");
                }
                assert_eq!(subject.store().numbers().replaced, 1, "{value}");
            }
            // The others were charged three times each, and no other key was touched.
            assert_eq!(server.command(&["DBSIZE"]), "40", "{value}");
        }
    }
}

#[tokio::test]
async fn a_full_server_refuses_every_question_and_charges_none() {
    let server = Server::start(&["--maxmemory", "1", "--maxmemory-policy", "noeviction"]);
    let bucket = || built(Limit::per_second(5).build());
    for limits in [vec![five()], vec![bucket()], vec![bucket(), five()]] {
        let subject = limiter(server.store().build(), &limits);
        server.command(&["CONFIG", "SET", "maxmemory", "1"]);
        for told in all(&subject, 40).await {
            let error = told.unwrap_err();
            assert!(error.contains("OOM"), "{error}");
        }
        assert_eq!(server.command(&["DBSIZE"]), "0");
        server.command(&["CONFIG", "SET", "maxmemory", "0"]);
        assert!(all(&subject, 40).await.iter().all(|told| *told == Ok(true)));
        server.command(&["FLUSHALL"]);
    }
}

/// If a clock goes back, no key is locked for longer than one refill, whichever calls share the
/// batch.
#[tokio::test]
async fn a_clock_that_goes_back_is_mended_for_every_question() {
    let server = Server::start(&[]);
    let store = server.store().clock(StoreClock::Caller).build();
    let subject = limiter(store, &[built(Limit::per_second(1).burst(5).build())]);
    let hour = 3_600_000_000;
    let users: Vec<_> = (0..40).map(|user| format!("user-{user}")).collect();
    let later = START + 2 * hour;
    for (at, cost, passes) in [
        (later, 5, true),
        (later - hour, 1, false),
        (later - hour + 5_000_000, 5, true),
    ] {
        let told = users
            .iter()
            .map(|user| ask(&subject, Operation::Acquire, user, cost, at));
        for verdict in join_all(told).await {
            assert_eq!(verdict.is_allow(), passes, "{at}: {verdict:?}");
        }
    }
}

/// A refused write is tried again, each call separately, as long as there is time.
#[tokio::test]
async fn a_server_that_becomes_a_primary_answers_every_question_that_waits() {
    let server = Server::start(&[]);
    let subject = limiter(server.store().build(), &[five()]);
    assert!(all(&subject, 40).await.iter().all(|told| *told == Ok(true)));
    server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    let back = async {
        until_it("a write is refused", async || {
            let errors = server.command(&["INFO", "errorstats"]);
            // Redis 6.2 counts what a script was told as an error of the script.
            errors.contains("errorstat_READONLY") || errors.contains("errorstat_ERR")
        })
        .await;
        server.command(&["REPLICAOF", "NO", "ONE"]);
    };
    let (told, ()) = join(all(&subject, 40), back).await;
    assert!(told.iter().all(|told| *told == Ok(true)), "{told:?}");
    for call in 2..6 {
        let told = all(&subject, 40).await;
        assert!(told.iter().all(|told| *told == Ok(call < 5)), "{call}");
    }
}

#[tokio::test]
async fn a_script_that_is_gone_is_sent_again_for_all() {
    let server = Server::start(&[]);
    let subject = limiter(server.store().build(), &[five()]);
    for call in 0..6 {
        server.command(&["SCRIPT", "FLUSH"]);
        let told = all(&subject, 40).await;
        assert!(told.iter().all(|told| *told == Ok(call < 5)), "{call}");
    }
}

/// The store's clock is far beyond the edges that this node knows: it asks again, together with other
/// calls.
#[tokio::test]
async fn calendar_edges_are_asked_for_again_among_other_questions() {
    let server = Server::start(&[]);
    let yearly = built(Limit::calendar_window(5, CalendarUnit::Year, "UTC").build());
    let subject = limiter(server.store().build(), &[yearly]);
    let before = scripts(&server);
    for call in 0..6 {
        let told = all(&subject, 40).await;
        assert!(told.iter().all(|told| *told == Ok(call < 5)), "{told:?}");
    }
    let calls = scripts(&server) - before;
    assert!(calls < 60, "{calls} script calls for 240 questions");
}

/// A caller that goes away before its call was sent leaves nothing behind.
#[tokio::test]
async fn a_question_that_nobody_waits_for_is_not_asked() {
    let server = Server::start(&[]);
    let subject = limiter(server.store().build(), &[five()]);
    assert_eq!(passes(&subject, "warm").await, Ok(true));
    let mut first = pin!(passes(&subject, "first"));
    {
        let mut rest = pin!(all(&subject, 40));
        let mut context = Context::from_waker(Waker::noop());
        // Nothing else runs on this thread meanwhile: the first call is sent, the others wait.
        assert!(first.as_mut().poll(&mut context).is_pending());
        assert!(rest.as_mut().poll(&mut context).is_pending());
    }
    assert_eq!(first.await, Ok(true));
    assert_eq!(passes(&subject, "last").await, Ok(true));
    assert_eq!(server.command(&["DBSIZE"]), "3");
}

/// Many wait while no answer comes: each gives up at its own time, and later calls are answered.
#[tokio::test]
async fn calls_behind_others_that_get_no_answer_end_in_time() {
    let server = Server::start(&[]);
    let proxy = Proxy::start(server.port());
    let url = format!("redis://127.0.0.1:{}", proxy.port());
    let store = RedisStore::builder(url.parse().unwrap()).timeout(TIMEOUT);
    let subject = limiter(store.build(), &[five()]);
    until_it("it answers", async || {
        passes(&subject, "warm").await.is_ok()
    })
    .await;
    proxy.set(Fault::StallAnswers);
    let waited = tokio::time::timeout(PATIENCE, all(&subject, 1_000)).await;
    let told = waited.expect("no end");
    assert!(told.iter().all(Result::is_err));
    proxy.set(Fault::None);
    until_it("it answers again", async || {
        all(&subject, 100).await.iter().all(Result::is_ok)
    })
    .await;
}

/// Batching can be switched off, for example for a measurement.
#[tokio::test]
async fn calls_go_one_by_one_where_that_is_asked_for() {
    let server = Server::start(&[]);
    let subject = limiter(server.store().unbatched().build(), &[five()]);
    assert_eq!(passes(&subject, "warm").await, Ok(true));
    let before = scripts(&server);
    assert!(all(&subject, 40).await.iter().all(|told| *told == Ok(true)));
    assert_eq!(scripts(&server) - before, 40);
}

/// A caller that is not polled makes the others wait for a while, but not for ever.
#[tokio::test]
async fn a_caller_that_is_not_polled_holds_nobody_up_for_ever() {
    let server = Server::start(&[]);
    let store = RedisStore::builder(server.url()).timeout(TIMEOUT);
    let subject = limiter(store.build(), &[five()]);
    assert_eq!(passes(&subject, "warm").await, Ok(true));
    let mut first = pin!(passes(&subject, "first"));
    let mut context = Context::from_waker(Waker::noop());
    assert!(first.as_mut().poll(&mut context).is_pending());
    until_it("the others are answered", async || {
        let others = tokio::time::timeout(PATIENCE, all(&subject, 40)).await;
        others.expect("no end").iter().all(Result::is_ok)
    })
    .await;
    assert_eq!(first.await, Ok(true));
}
