//! All that a program in one process needs, from `quell` alone: this file names no other crate of Quell.

use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quell::clock::{Clock, ManualClock, Monotonic, Now, SystemClock, Wall};
use quell::limit::{Algorithm, Ban, CalendarUnit, TokenBucket};
use quell::observer::{Event, Observer};
use quell::rule::{
    CutOff, DomainRules, Effect, FleetSize, LeasePolicy, OnFailure, OnMissing, OverAdmission,
    Override, Per, Policy, Prefix, Rule, Rung, SharesPolicy,
};
use quell::store::memory::{HashKey, MemoryStore};
use quell::store::{Action, HoldStatus, Store, StoreError};
use quell::{
    AskError, Cost, Decision, Ending, KeyedLimiter, Limit, LimitError, LimitSpec, Limiter,
    Operation, Outcome, Query, Rate, RetryAfter, RuleDecision, RulesError, UnkeyedLimiter, Verdict,
};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// A program that wraps a limiter can name its types.
fn keyed<C: Clock>(
    limit: impl Into<LimitSpec>,
    clock: C,
) -> Result<KeyedLimiter<str, C>, LimitError> {
    KeyedLimiter::with(limit, 1_000, clock)
}

fn every_algorithm() -> Result<Vec<LimitSpec>, LimitError> {
    let rate = Rate::new(10, SECOND)?;
    Ok(vec![
        Limit::token_bucket(rate).burst(20).into(),
        TokenBucket::refill(10, SECOND).into(),
        Limit::leaky_bucket(rate).delay_after(2).into(),
        Limit::fixed_window(10, MINUTE).into(),
        Limit::calendar_window(10, CalendarUnit::Day, "UTC").into(),
        Limit::sliding_window(10, MINUTE).segments(6).into(),
        Limit::sliding_log(10, MINUTE).max_entries(10).into(),
    ])
}

#[test]
fn one_limit_in_every_algorithm() {
    for spec in every_algorithm().unwrap() {
        let limiter = keyed(spec.clone(), ManualClock::default()).unwrap();
        let decision: Decision = limiter.try_acquire("a");
        assert_eq!(decision.outcome, Outcome::Allow, "{spec}");
        assert_eq!(decision.retry_after(), None, "{spec}");
        let algorithm: Algorithm = limiter.limit().algorithm();
        assert!(spec.to_string().starts_with(algorithm.name()), "{spec}");
    }
    // Permits are given back by name, so they need a `Limiter`.
    let permits = Limit::concurrency(10).queue(1).lease(SECOND);
    let refused = keyed(permits, ManualClock::default());
    assert_eq!(refused.err(), Some(LimitError::PermitsNeedNames));
    let one = UnkeyedLimiter::with(Limit::per_second(1), SystemClock::new()).unwrap();
    assert!(one.try_acquire_n(Cost::ONE).outcome.is_allow());
    let refused = one.try_acquire_n(Cost::new(2).unwrap());
    assert_eq!(refused.retry_after(), Some(RetryAfter::Never));
}

#[test]
fn waits_are_exact() {
    let now = Now {
        monotonic: Monotonic::from_nanos(1),
        wall: Wall::from_nanos(1),
    };
    let clock = Arc::new(ManualClock::new(now));
    let limiter = keyed(Limit::per_second(1), Arc::clone(&clock)).unwrap();
    limiter.try_acquire("a");
    let Some(RetryAfter::After(wait)) = limiter.try_acquire("a").retry_after() else {
        panic!("it is used up for a second");
    };
    clock.advance(wait - Duration::from_nanos(1));
    let last = RetryAfter::After(Duration::from_nanos(1));
    assert_eq!(limiter.peek("a", Cost::ONE).outcome, Outcome::Deny(last));
    clock.advance(Duration::from_nanos(1));
    assert_eq!(limiter.try_acquire("a").outcome, Outcome::Allow);
}

/// Rules as values, with every field that a rules file has.
fn rules() -> Result<DomainRules, LimitError> {
    let ban = Ban::new(3, Some(10 * MINUTE), vec![MINUTE])?;
    let logins = Rule::new(
        "logins",
        Limit::sliding_log(2, MINUTE).build()?.with_ban(ban),
    )?
    .matching("path", &["/login", "/signup/*"])
    .per(Per::address("remote_address"));
    let mut tokens = Rule::new("tokens", Limit::per_minute(10_000))?
        .matching("kind", &["tokens"])
        .per("team");
    tokens.on_missing = OnMissing::SharedKey;
    let mut large = Rule::new("x", Limit::per_minute(1))?.matching("team", &["blue"]);
    tokens.overrides.push(Override {
        when: std::mem::take(&mut large.matchers).into(),
        effect: Effect::Unlimited,
    });
    let mut streams = Rule::new("streams", Limit::concurrency(1))?.matching("kind", &["stream"]);
    streams.cost = Some(Cost::ONE);
    streams.policy = Policy {
        rung: Rung::Local,
        on_failure: Some(OnFailure::Deny),
    };
    let mut watched = Rule::new("watched", Limit::per_minute(1))?.per(Per {
        prefix: Prefix::new(24, 48),
        ..Per::value("remote_address")
    });
    watched.shadow = true;
    Ok(DomainRules::new(
        "all",
        vec![logins, tokens, streams, watched],
    ))
}

#[test]
fn every_rung_can_be_written() {
    let nodes = NonZeroU32::new(10).unwrap();
    let leased = LeasePolicy {
        over: OverAdmission::Units(200),
        nodes,
    };
    let shares = |size| SharesPolicy {
        size,
        cut_off: CutOff::Floor,
    };
    let rungs = [
        Rung::Strict,
        Rung::Local,
        Rung::Leased(leased),
        Rung::Shares(shares(FleetSize::Nodes(nodes))),
        Rung::Shares(shares(FleetSize::Auto)),
    ];
    let names: Vec<_> = rungs.iter().map(|rung| rung.name()).collect();
    assert_eq!(names, ["strict", "local", "leased", "shares", "shares"]);
    let limit: Limit = Limit::per_second(1_000).burst(1_000).build().unwrap();
    let bounds = rungs.map(|rung| rung.bound(&limit, None).is_some());
    assert_eq!(bounds, [false, false, true, false, false]);
}

#[derive(Debug, Default)]
struct Log(Mutex<Vec<(Operation, bool)>>);

impl Observer for Log {
    fn observe(&self, event: &Event<'_>) {
        if let Event::Query {
            operation, verdict, ..
        } = event
        {
            self.0
                .lock()
                .unwrap()
                .push((*operation, verdict.is_allow()));
        }
    }
}

fn limiter(log: &Arc<Log>) -> Limiter<MemoryStore> {
    let store = MemoryStore::with(10_000, HashKey::random());
    let clock = Arc::new(ManualClock::default());
    let limiter = Limiter::builder(store)
        .clock(clock)
        .observer(Arc::clone(log) as _)
        .build();
    let set: Result<(), RulesError> = limiter.set_rules(vec![rules().unwrap()]);
    set.unwrap();
    limiter
}

#[test]
fn a_verdict_names_the_rule_that_refused() {
    let log = Arc::new(Log::default());
    let limiter = limiter(&log);
    let login = Query::new("all")
        .entry("path", "/login")
        .entry("remote_address", "10.0.0.1");
    let answers: Vec<Verdict> = (0..4)
        .map(|_| limiter.try_acquire_local(&login).unwrap())
        .collect();
    assert_eq!(answers[0].remaining, Some(1));
    assert!(answers[1].is_allow() && answers[1].would_refuse());
    let binding: &RuleDecision = answers[2].binding_rule().unwrap();
    assert_eq!((&*binding.rule, binding.decision.banned), ("logins", false));
    assert_eq!(answers[2].retry_after, Some(RetryAfter::After(MINUTE)));
    assert!(!answers[3].banned && !answers[3].degraded && !answers[3].is_permanent());
    assert!(limiter.try_acquire_local(&login).unwrap().banned);
    assert_eq!(log.0.lock().unwrap()[2], (Operation::Acquire, false));
    let unknown = limiter.try_acquire_local(&Query::new("none"));
    assert!(matches!(unknown, Err(AskError::UnknownDomain)));
    assert_eq!(limiter.rules().domain("all").len(), 4);
}

#[tokio::test]
async fn reservations_permits_waiting_and_administration() {
    let limiter = limiter(&Arc::default());
    let tokens = Query::new("all")
        .entry("kind", "tokens")
        .entry("team", "red");
    let most = tokens.clone().cost(Cost::new(4_000).unwrap());
    limiter.reserve(&most, MINUTE, Some("job")).await.unwrap();
    let settled = limiter.settle("all", "job", 1_500).await.unwrap();
    assert_eq!(settled.status, HoldStatus::Settled);
    assert_eq!(limiter.peek(&tokens).await.unwrap().remaining, Some(8_500));

    let stream = Query::new("all").entry("kind", "stream");
    let held = limiter.try_acquire(&stream).await.unwrap();
    let id = held.id.unwrap();
    let refused = limiter
        .acquire_timeout(&stream, Duration::from_millis(1))
        .await
        .unwrap();
    assert!(!refused.is_allow());
    limiter.end("all", &id, Ending::Release).await.unwrap();
    assert!(limiter.acquire(&stream).await.unwrap().is_allow());

    let banned = Query::new("all")
        .entry("path", "/login")
        .entry("remote_address", "10.0.0.2");
    let count = limiter
        .administer(&banned, Action::Ban(MINUTE, None))
        .await
        .unwrap();
    assert_eq!((count, limiter.bans(10).await.unwrap().len()), (2, 2));
}

/// A store is a type that programs are generic over.
fn named<S: Store>(limiter: &Limiter<S>) -> String {
    format!("{:?}", limiter.store())
}

#[test]
fn errors_and_stores_can_be_named() {
    let limiter = Limiter::new(MemoryStore::new());
    assert!(named(&limiter).contains("MemoryStore"));
    let error = AskError::from(StoreError::Overloaded);
    assert!(matches!(error, AskError::Store(StoreError::Overloaded)));
}
