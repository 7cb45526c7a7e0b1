//! The memory store: the conformance suite, the bound on keys, snapshots.

use std::sync::Arc;
use std::time::Duration;

use quell::clock::{Clock, ManualClock};
use quell::limit::{Anchor, CalendarUnit};
use quell::store::memory::{HashKey, MemoryStore};
use quell::store::{Action, MAX_REASON};
use quell::{Cost, KeyedLimiter, Limit, Limiter, Operation, Query, Rate};
use quell_conformance::{
    a_carried_key_needs_no_call, anchors_as_model, exact_in_parallel, held_overrides_as_model,
    holds_as_model, lists_holds, names_stand_for_whole_sets, new_anchors_give_no_second_budget,
    overdraws_as_model, overrides_as_model, permits_are_counted,
    random_anchors_give_no_second_budget, reservations_follow_a_new_anchor, restarts_as_model,
    same_as_model, seeds,
};
use quell_core::rule::{DomainRules, Effect, Matcher, Override, Pattern, REMEMBERED, Rule};
use quell_core::time::Now;

#[tokio::test]
async fn answers_as_the_model_does() {
    for seed in 0..60 {
        same_as_model(MemoryStore::new(), seed, 1_500).await;
        overdraws_as_model(MemoryStore::new(), seed, 1_500).await;
    }
}

#[tokio::test]
async fn overrides_answer_as_the_model_does() {
    for seed in seeds(20) {
        overrides_as_model(MemoryStore::new(), seed, 1_000).await;
        held_overrides_as_model(MemoryStore::new(), seed, 1_000).await;
    }
}

#[tokio::test]
async fn a_restart_changes_no_answer() {
    for seed in seeds(20) {
        restarts_as_model(MemoryStore::new(), seed, 1_000, &restarted).await;
    }
}

#[tokio::test]
async fn permits_are_counted_while_their_number_changes() {
    for seed in seeds(20) {
        permits_are_counted(MemoryStore::new(), seed, 1_000).await;
    }
}

#[tokio::test]
async fn a_name_stands_for_its_whole_set() {
    names_stand_for_whole_sets(MemoryStore::new()).await;
}

#[tokio::test]
async fn what_is_held_is_listed() {
    lists_holds(MemoryStore::new()).await;
}

#[tokio::test]
async fn holds_as_the_model_does() {
    for seed in 0..60 {
        holds_as_model(MemoryStore::new(), seed, 1_500).await;
    }
}

#[tokio::test]
async fn a_new_anchor_gives_no_second_budget() {
    new_anchors_give_no_second_budget(MemoryStore::new()).await;
    a_carried_key_needs_no_call(MemoryStore::new()).await;
    for seed in 0..60 {
        random_anchors_give_no_second_budget(MemoryStore::new(), seed, 500).await;
    }
}

/// Each change counts at its instant, although nobody called before the old window ended.
#[tokio::test]
async fn a_new_anchor_counts_from_its_instant_without_a_call() {
    let monthly = |day| {
        let window = Limit::calendar_window(100, CalendarUnit::Month, "UTC");
        per_user(window.anchor(Anchor::DayOfMonth(day)).build().unwrap())
    };
    let day = |day: u64| Now::from_nanos((1_767_225_600 + day * 86_400) * 1_000_000_000);
    let clock = Arc::new(ManualClock::new(day(9)));
    let limiter = Limiter::builder(MemoryStore::new()).clock(Arc::clone(&clock) as _);
    let limiter = limiter.build();
    limiter.set_rules(monthly(1)).unwrap();
    let query = |cost| {
        Query::new("d")
            .entry("user", "ann")
            .cost(Cost::new(cost).unwrap())
    };
    assert!(limiter.try_acquire(&query(80)).await.unwrap().is_allow());
    clock.set(day(19));
    limiter.set_rules(monthly(15)).unwrap();
    // February 2, and 15.
    for (later, left) in [(32, 20), (45, 100)] {
        clock.set(day(later));
        let verdict = limiter.peek(&query(1)).await.unwrap();
        assert_eq!(verdict.remaining, Some(left));
    }
}

#[tokio::test]
async fn reservations_are_settled_under_a_new_anchor() {
    reservations_follow_a_new_anchor(MemoryStore::new()).await;
}

#[tokio::test]
async fn anchors_change_as_in_the_model() {
    for seed in 0..60 {
        anchors_as_model(MemoryStore::new(), seed, 600).await;
    }
}

#[test]
fn admits_exactly_the_limit_in_parallel() {
    let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
    exact_in_parallel(MemoryStore::new(), 8, 1_000, |calls| {
        runtime.block_on(calls);
    });
}

/// `limit` per user in domain `d`.
fn per_user(limit: Limit) -> Vec<DomainRules> {
    let rule = Rule::new("per-user", limit).unwrap().per("user");
    vec![DomainRules::new("d", vec![rule])]
}

fn limiter(max_keys: usize, limit: Limit) -> (Limiter<MemoryStore>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(Now::from_nanos(1_000_000_000_000)));
    let store = MemoryStore::with(max_keys, HashKey::random());
    let limiter = Limiter::builder(store)
        .clock(Arc::clone(&clock) as _)
        .build();
    limiter.set_rules(per_user(limit)).unwrap();
    (limiter, clock)
}

fn allows(limiter: &Limiter<MemoryStore>, user: &str) -> bool {
    limiter
        .try_acquire_local(&Query::new("d").entry("user", user))
        .unwrap()
        .is_allow()
}

#[test]
fn a_flood_of_keys_lets_no_offender_off_and_stays_bounded() {
    let (limiter, clock) = limiter(1_000, Limit::per_minute(5).build().unwrap());
    for _ in 0..5 {
        assert!(allows(&limiter, "offender"));
    }
    assert!(!allows(&limiter, "offender"));
    for flood in 0..200_000 {
        allows(&limiter, &format!("flood-{flood}"));
    }
    assert!(limiter.store().keys() <= 1_000);
    assert!(limiter.store().overflow_states() > 0);
    assert!(limiter.store().overflow_states() <= limiter.store().shard_count());
    assert!(!allows(&limiter, "offender"), "the offender was forgotten");

    // All keys are at rest: every user is new again, and the table empties bit by bit.
    clock.advance(Duration::from_secs(61));
    assert!(allows(&limiter, "offender"));
    limiter
        .store()
        .sweep(limiter.store().shard_count(), limiter.now());
    assert_eq!(limiter.store().overflow_states(), 0);
    assert_eq!(limiter.store().keys(), 1);
}

#[test]
fn past_the_bound_new_keys_share_a_limit_each_may_be_refused_by() {
    let (limiter, clock) = limiter(1, Limit::per_hour(5).build().unwrap());
    assert!(allows(&limiter, "first"));
    let admitted = (0..100_000)
        .filter(|key| allows(&limiter, &format!("late-{key}")))
        .count();
    let shards = limiter.store().shard_count();
    assert_eq!(
        admitted,
        shards * 5,
        "each shard's overflow state admits its limit and no more"
    );

    // The first key leaves; a new key with a state of its own starts with what it may have used.
    clock.advance(Duration::from_secs(13 * 60));
    limiter.store().sweep(shards, limiter.now());
    assert_eq!(limiter.store().keys(), 0);
    assert!(allows(&limiter, "late-0"), "one unit came back");
    assert!(!allows(&limiter, "late-0"), "and not five");
    assert_eq!(limiter.store().keys(), 1);
}

#[test]
fn two_new_keys_of_one_query_that_share_an_overflow_state_are_charged_the_sum() {
    let (limiter, _clock) = limiter(1, Limit::per_hour(3).build().unwrap());
    assert!(allows(&limiter, "first"));
    let mut admitted = 0;
    for query in 0..50_000 {
        let users = [format!("{query}-a"), format!("{query}-b")];
        let descriptors = users.iter().map(|user| {
            let mut descriptor = quell::Descriptor::new();
            descriptor.push("user", user.as_str());
            descriptor
        });
        let query = Query::with_descriptors("d", descriptors.collect());
        admitted += 2 * usize::from(limiter.try_acquire_local(&query).unwrap().is_allow());
    }
    let most = limiter.store().shard_count() * 3;
    assert!(admitted <= most, "{admitted} admitted, at most {most} fit");
    assert!(admitted > most / 2, "{admitted} admitted");
}

#[test]
fn past_the_bound_limits_of_one_rule_do_not_cut_each_others_use() {
    let (limiter, _clock) = limiter(1, Limit::per_hour(100).build().unwrap());
    let mut rules = per_user(Limit::per_hour(100).build().unwrap());
    let small = Limit::per_hour(1).build().unwrap();
    let matcher = Matcher {
        entry: Arc::from("user"),
        patterns: [Pattern::parse("small-*")].into_iter().collect(),
    };
    rules[0].rules[0].overrides.push(Override {
        when: [matcher].into(),
        effect: Effect::Limit(small),
    });
    limiter.set_rules(rules).unwrap();
    assert!(allows(&limiter, "first"));
    let mut admitted = 0;
    for key in 0..200_000 {
        admitted += usize::from(allows(&limiter, &format!("large-{key}")));
        allows(&limiter, &format!("small-{key}"));
    }
    assert!(
        admitted <= limiter.store().shard_count() * 100,
        "{admitted} admitted"
    );
}

#[test]
fn keyed_limiter_is_bounded_as_well() {
    let clock = ManualClock::default();
    let limiter = KeyedLimiter::<u64, _>::with(Limit::per_second(1), 100, clock).unwrap();
    for key in 0..10_000 {
        limiter.try_acquire(&key);
    }
    assert!(limiter.keys() <= 100);
    for key in 0..100 {
        assert!(
            !limiter.try_acquire(&key).outcome.is_allow(),
            "key {key} was let off"
        );
    }
}

#[test]
fn newcomers_make_room_as_fast_as_they_come() {
    for live in [3_000_u64, 30_000] {
        // Time advances by a nanosecond with every call, and a key is at rest after `live` of them.
        let clock = Arc::new(ManualClock::default());
        let rate = Rate::new(1, Duration::from_nanos(live)).unwrap();
        let limiter =
            KeyedLimiter::<u64, _>::with(Limit::token_bucket(rate), 10_000_000, Arc::clone(&clock));
        let limiter = limiter.unwrap();
        for key in 0..live * 8 {
            assert!(limiter.try_acquire(&key).outcome.is_allow());
            clock.advance(Duration::from_nanos(1));
            let most = usize::try_from(live).unwrap() * 3 / 2;
            assert!(
                limiter.keys() <= most,
                "{} keys after {key}, {live} of them live",
                limiter.keys()
            );
        }
    }
}

#[tokio::test]
async fn a_snapshot_brings_use_and_bans_back_under_new_rules() {
    let (before, clock) = limiter(1_000, Limit::per_hour(5).build().unwrap());
    for _ in 0..3 {
        assert!(allows(&before, "alice"));
    }
    let bob = Query::new("d").entry("user", "bob");
    let banned = before
        .administer(&bob, Action::Ban(Duration::from_secs(60), None))
        .await;
    assert_eq!(banned, Ok(1));
    let shards = 0..before.store().shard_count();
    let now = clock.now();
    let states: Vec<_> = shards
        .flat_map(|shard| before.store().export(shard, now))
        .collect();
    assert_eq!(states.len(), 2);

    let store = MemoryStore::with(1_000, before.store().hash_key());
    let after = Limiter::builder(store)
        .clock(Arc::clone(&clock) as _)
        .build();
    after
        .set_rules(per_user(Limit::per_hour(4).build().unwrap()))
        .unwrap();
    after.restore(before.store().limits(), states, now);
    let alice = after
        .peek(&Query::new("d").entry("user", "alice"))
        .await
        .unwrap();
    assert_eq!(alice.remaining, Some(1), "three of what are now four");
    let bans = after.bans(10).await.unwrap();
    assert_eq!(bans.len(), 1);
    assert_eq!(bans[0].key.to_string(), "user=bob");
    assert_eq!(bans[0].left, Duration::from_secs(60));
    assert!(!allows(&after, "bob"));
    assert_eq!(after.administer(&bob, Action::Lift).await, Ok(1));
    assert!(allows(&after, "bob"));
}

#[tokio::test]
async fn overflow_states_are_found_after_a_restart_with_other_rules() {
    let hourly = |limit| Limit::per_hour(limit).build().unwrap();
    let (before, clock) = limiter(1, hourly(4));
    before.set_rules(per_user(hourly(5))).unwrap();
    let rate = Rate::new(5, Duration::from_secs(3_600)).unwrap();
    let brought = Limit::token_bucket(rate);
    let flood = async |limiter: &Limiter<MemoryStore>| {
        let mut admitted = [0, 0];
        for key in 0..10_000 {
            let key = format!("late-{key}");
            admitted[0] += usize::from(allows(limiter, &key));
            let now = limiter.now();
            let decided =
                limiter.ask_ad_hoc(Operation::Acquire, key.as_bytes(), &brought, Cost::ONE, now);
            admitted[1] += usize::from(decided.await.unwrap().outcome.is_allow());
        }
        admitted
    };
    let admitted = flood(&before).await;
    assert!(admitted.iter().all(|count| *count > 0), "{admitted:?}");
    while flood(&before).await != [0, 0] {}
    // One more rule, so that limits are numbered differently.
    let mut rules = per_user(hourly(5));
    let mut other = rules[0].rules[0].clone();
    other.name = Arc::from("other");
    other.matchers.push(Matcher {
        entry: Arc::from("path"),
        patterns: [Pattern::parse("/other")].into_iter().collect(),
    });
    rules[0].rules.insert(0, other);
    let after = restarted(&before, &clock, rules);
    assert_eq!(flood(&after).await, [0, 0]);
}

#[test]
fn states_under_a_replaced_limit_are_dropped_when_at_rest_and_not_before() {
    let (limiter, clock) = limiter(1_000, Limit::per_second(100).burst(2).build().unwrap());
    for key in 0..500 {
        allows(&limiter, &format!("key-{key}"));
    }
    for _ in 0..2 {
        allows(&limiter, "busy");
    }
    limiter
        .set_rules(per_user(Limit::per_hour(1).burst(2).build().unwrap()))
        .unwrap();
    clock.advance(Duration::from_secs(1));
    let sweep = || {
        limiter
            .store()
            .sweep(limiter.store().shard_count(), limiter.now())
    };
    sweep();
    assert_eq!(
        limiter.store().keys(),
        501,
        "an hour per unit: nobody is at rest yet"
    );
    assert!(!allows(&limiter, "busy"));
    clock.advance(Duration::from_secs(3_600));
    sweep();
    assert_eq!(
        limiter.store().keys(),
        1,
        "one unit came back to all, and one has used two"
    );
}

/// A restart after `before`, with these rules and with a snapshot of it.
fn restarted(
    before: &Limiter<MemoryStore>,
    clock: &Arc<ManualClock>,
    rules: Vec<DomainRules>,
) -> Limiter<MemoryStore> {
    let now = clock.now();
    let shards = 0..before.store().shard_count();
    let states = shards.flat_map(|shard| before.store().export(shard, now));
    let store = MemoryStore::with(10_000, before.store().hash_key());
    let after = Limiter::builder(store)
        .clock(Arc::clone(clock) as _)
        .build();
    after.set_rules(rules).unwrap();
    after.restore(before.store().limits(), states.collect(), now);
    after
}

#[test]
fn a_slower_rule_after_a_restart_keeps_what_was_used() {
    let (before, clock) = limiter(1_000, Limit::per_second(10).burst(2).build().unwrap());
    assert!(allows(&before, "alice") && allows(&before, "alice"));
    let slower = per_user(Limit::per_hour(1).burst(2).build().unwrap());
    let after = restarted(&before, &clock, slower);
    clock.advance(Duration::from_secs(75));
    after
        .store()
        .sweep(after.store().shard_count(), after.now());
    assert!(!allows(&after, "alice"));

    // A removed rule is forgotten after a while.
    let third = restarted(&after, &clock, Vec::new());
    let sweep = || third.store().sweep(512, third.now());
    sweep();
    assert_eq!(third.store().keys(), 1);
    clock.advance(REMEMBERED + Duration::from_nanos(1));
    sweep();
    sweep();
    assert_eq!(third.store().keys(), 0);
}

/// A change before the restart counts from its own instant.
#[test]
fn a_snapshot_holds_what_was_used_when_the_limit_changed() {
    let (before, clock) = limiter(1_000, Limit::per_second(10).burst(2).build().unwrap());
    assert!(allows(&before, "alice") && allows(&before, "alice"));
    let slower = per_user(Limit::per_hour(1).burst(2).build().unwrap());
    before.set_rules(slower.clone()).unwrap();
    clock.advance(Duration::from_secs(1));
    let after = restarted(&before, &clock, slower);
    assert!(!allows(&after, "alice"));
    clock.advance(Duration::from_secs(3_600));
    assert!(allows(&after, "alice") && !allows(&after, "alice"));
}

/// A rule that is dropped, and is back after a restart, finds its bans and what was used.
#[tokio::test]
async fn what_a_dropped_rule_knew_outlives_a_restart() {
    let limit = Limit::per_hour(2).build().unwrap();
    for back in [limit.clone(), Limit::per_hour(1).build().unwrap()] {
        let (before, clock) = limiter(1_000, limit.clone());
        assert!(allows(&before, "alice") && allows(&before, "alice"));
        let bob = Query::new("d").entry("user", "bob");
        let day = Duration::from_secs(86_400);
        let banned = before.administer(&bob, Action::Ban(day, None)).await;
        assert_eq!(banned, Ok(1));
        let none = vec![DomainRules::new("d", Vec::new())];
        before.set_rules(none.clone()).unwrap();
        let mut after = restarted(&before, &clock, none.clone());
        assert!(allows(&after, "bob"), "there is no rule");
        clock.advance(Duration::from_secs(60));
        after = restarted(&after, &clock, none.clone());
        after.set_rules(per_user(back.clone())).unwrap();
        assert!(!allows(&after, "alice") && !allows(&after, "bob"));
        assert_eq!(after.bans(10).await.unwrap().len(), 1);
        // Or at the start itself; but not if it takes longer.
        after.set_rules(none.clone()).unwrap();
        after = restarted(&after, &clock, per_user(back.clone()));
        assert!(!allows(&after, "alice") && !allows(&after, "bob"));
        after.set_rules(none.clone()).unwrap();
        after = restarted(&after, &clock, none);
        clock.advance(REMEMBERED + Duration::from_nanos(1));
        after.set_rules(per_user(back)).unwrap();
        assert!(allows(&after, "alice") && allows(&after, "bob"));
        assert_eq!(after.bans(10).await.unwrap().len(), 0);
    }
}

#[tokio::test]
async fn forgiving_a_key_forgets_what_it_used() {
    let (limiter, _clock) = limiter(10, Limit::per_hour(1).build().unwrap());
    let query = Query::new("d").entry("user", "alice");
    assert!(allows(&limiter, "alice"));
    assert!(!allows(&limiter, "alice"));
    assert_eq!(limiter.administer(&query, Action::Forgive).await, Ok(1));
    assert_eq!(limiter.store().keys(), 0);
    assert!(allows(&limiter, "alice"));
    let mut entries = quell::Descriptor::new();
    entries.push("user", "alice");
    let peek = || async { limiter.peek_key("d", "per-user", &entries).await.unwrap() };
    let used = (peek().await, peek().await);
    assert!(!used.0.is_allow() && used.0 == used.1, "{used:?}");
    let by_name = limiter
        .administer_key("d", "per-user", &entries, Action::Forgive)
        .await;
    assert_eq!(by_name, Ok(1));
    assert_eq!(peek().await.remaining, Some(1));
    let unknown = limiter
        .administer_key("d", "nobody", &entries, Action::Forgive)
        .await;
    assert_eq!(unknown, Err(quell::AskError::UnknownRule));
}

/// A reason keeps its first characters, whatever bytes they have; and it is that of a ban in force.
#[tokio::test]
async fn a_long_reason_of_a_ban_is_cut() {
    let (limiter, clock) = limiter(100, Limit::per_hour(5).build().unwrap());
    let (query, minute) = (
        Query::new("d").entry("user", "bob"),
        Duration::from_secs(60),
    );
    let reason = "\u{e9}".repeat(MAX_REASON + 1);
    let ban = Action::Ban(minute, Some(&reason));
    assert_eq!(limiter.administer(&query, ban).await, Ok(1));
    let seen = async || {
        let listed = limiter.bans(1).await.unwrap();
        let listed = listed.into_iter().next().and_then(|ban| ban.reason);
        let entries = &query.descriptors()[0];
        let viewed = limiter.view("d", None, entries).await.unwrap();
        [
            listed,
            viewed
                .into_iter()
                .next()
                .and_then(|(_, view)| view.ban_reason),
        ]
    };
    let kept = Some("\u{e9}".repeat(MAX_REASON).into_boxed_str());
    assert_eq!(seen().await, [kept.clone(), kept]);
    clock.advance(minute);
    assert_eq!(seen().await, [None, None]);
}

/// Strangers choose these values: only a short part of each is kept, and only as long as the ban.
#[tokio::test]
async fn names_of_banned_keys_are_short_and_go_with_their_bans() {
    let (limiter, clock) = limiter(100, Limit::per_hour(5).build().unwrap());
    let store = limiter.store();
    let long = |end: &str| "x".repeat(8_000) + end;
    let users = [long("a"), long("b"), "carol".to_owned()];
    for user in &users {
        let query = Query::new("d").entry("user", user.clone());
        let ban = Action::Ban(Duration::from_secs(60), None);
        assert_eq!(limiter.administer(&query, ban).await.unwrap(), 1);
    }
    let mut shown: Vec<_> = limiter.bans(10).await.unwrap();
    shown.sort_by_key(|ban| ban.key.to_string());
    let shown: Vec<_> = shown.iter().map(|ban| ban.key.to_string()).collect();
    assert_eq!(shown[0], "user=carol");
    assert!(shown[1..].iter().all(|name| name.len() < 100), "{shown:?}");
    assert_ne!(shown[1], shown[2], "told apart by their hashes");
    for shard in 0..store.shard_count() {
        for saved in store.export(shard, limiter.now()) {
            assert!(saved.name.unwrap().len() < 200);
        }
    }
    let query = Query::new("d").entry("user", "carol");
    limiter.administer(&query, Action::Lift).await.unwrap();
    assert_eq!(store.named_bans(), 2, "lifted and forgotten");
    clock.advance(Duration::from_secs(61));
    store.sweep(store.shard_count() + 1, limiter.now());
    assert_eq!(store.named_bans(), 0, "nobody asked for the list");
}

/// A file that was half-written for a moment lifts no ban.
#[tokio::test]
async fn a_rule_that_comes_back_finds_its_bans_and_what_was_used() {
    let hourly = |count| per_user(Limit::per_hour(count).build().unwrap());
    let (limiter, clock) = limiter(100, Limit::per_hour(2).build().unwrap());
    let banned = Query::new("d").entry("user", "mallory");
    let ban = Action::Ban(Duration::from_secs(3_600), None);
    assert_eq!(limiter.administer(&banned, ban).await, Ok(1));
    assert!(allows(&limiter, "alice") && allows(&limiter, "alice"));
    // The whole domain is gone, then back unchanged, then back with other numbers.
    for (rules, others) in [(hourly(2), 2), (hourly(3), 3), (hourly(2), 2)] {
        limiter.set_rules(Vec::new()).unwrap();
        clock.advance(Duration::from_secs(60));
        limiter.store().sweep(512, limiter.now());
        assert!(limiter.try_acquire(&banned).await.is_err());
        limiter.set_rules(rules).unwrap();
        limiter.store().sweep(512, limiter.now());
        let verdict = limiter.try_acquire(&banned).await.unwrap();
        assert!(verdict.banned && !verdict.is_allow());
        let alice = Query::new("d").entry("user", "alice");
        let left = limiter.peek(&alice).await.unwrap().remaining;
        assert_eq!(left, Some(others - 2));
        assert_eq!(limiter.bans(10).await.unwrap().len(), 1);
    }
}

/// The state of a removed rule is not kept for long, even without calls and without another reload.
#[tokio::test]
async fn a_rule_that_stays_away_is_forgotten() {
    let yearly = || per_user(Limit::per_hour(1).burst(10_000).build().unwrap());
    let (limiter, clock) = limiter(100, Limit::per_hour(1).burst(10_000).build().unwrap());
    let banned = Query::new("d").entry("user", "mallory");
    let ban = Action::Ban(Duration::from_secs(86_400), None);
    assert_eq!(limiter.administer(&banned, ban).await, Ok(1));
    assert!(allows(&limiter, "alice"));
    limiter.set_rules(Vec::new()).unwrap();
    clock.advance(REMEMBERED);
    limiter.store().sweep(512, limiter.now());
    assert_eq!(limiter.store().keys(), 2);
    assert_eq!(limiter.store().limits().len(), 1);
    clock.advance(Duration::from_nanos(1));
    limiter.store().sweep(512, limiter.now());
    assert_eq!(limiter.store().keys(), 0);
    assert!(limiter.store().limits().is_empty());
    limiter.set_rules(yearly()).unwrap();
    assert!(limiter.try_acquire(&banned).await.unwrap().is_allow());
}
