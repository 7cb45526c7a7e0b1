//! A rate limiter whose limits and waits are exact: wait [`retry_after`](Decision::retry_after) and the
//! call passes, one nanosecond less and it does not. A refused call costs nothing, unless a rule bans.
//!
//! This crate is all that a program needs to limit itself: every classic algorithm, keys, rules, waiting,
//! reservations, permits, bans, and a layer for axum, tonic and tower. With `quell-redis` many processes
//! share the same limits, and with `quell-rules` limits are written in a file. `quell serve` answers programs
//! in other languages.
//!
//! # One limit
//!
//! ```
//! use quell::{Limit, UnkeyedLimiter};
//!
//! let calls = UnkeyedLimiter::new(Limit::per_second(100).burst(200))?;
//! if calls.try_acquire().is_allow() {
//!     // do it
//! }
//! # Ok::<(), quell::LimitError>(())
//! ```
//!
//! # One limit on each key
//!
//! ```
//! use quell::{KeyedLimiter, Limit, RetryAfter};
//!
//! let logins = KeyedLimiter::<str>::new(Limit::per_minute(5))?;
//! for _ in 0..5 {
//!     assert!(logins.try_acquire("alice").is_allow());
//! }
//! let refused = logins.try_acquire("alice");
//! match refused.retry_after() {
//!     None => println!("welcome; {} more", refused.remaining),
//!     Some(RetryAfter::After(wait)) => println!("429, Retry-After: {}", wait.as_secs() + 1),
//!     Some(RetryAfter::Never) => println!("413: it costs more than the limit ever holds"),
//! }
//! assert!(!refused.is_allow());
//! assert!(logins.try_acquire("bob").is_allow());
//! # Ok::<(), quell::LimitError>(())
//! ```
//!
//! A key is anything that has a hash; 39 bytes are kept of each for a bucket, however long it is. Keys
//! expire by themselves, and there are [at most](store::memory::DEFAULT_MAX_KEYS) 10,000,000 unless you
//! say otherwise.
//!
//! # Which algorithm?
//!
//! | you need | write | it admits at most |
//! |---|---|---|
//! | a steady rate, where a burst is fine | [`Limit::per_second(100).burst(200)`](Limit::per_second) | `burst + rate * d` in any time `d` |
//! | calls that leave evenly, the others delayed | [`Limit::leaky_bucket(rate).burst(10)`](Limit::leaky_bucket) | the same; an allowed call carries a `delay` |
//! | never more than the limit in any window | [`Limit::sliding_window(1000, window)`](Limit::sliding_window) | `limit` in any window |
//! | the same to the nanosecond, for small limits | [`Limit::sliding_log(5, window)`](Limit::sliding_log) | `limit` in any window, exact |
//! | a quota per hour that begins with the first call | [`Limit::fixed_window(1000, window)`](Limit::fixed_window) | `limit` per window, twice that across an edge |
//! | a quota per day or month of the calendar | [`Limit::calendar_window(1000, unit, zone)`](Limit::calendar_window) | `limit` per calendar window |
//! | the same from another day, weekday or time | `.anchor(Anchor::DayOfMonth(17))` on it ([`Anchor`](limit::Anchor)) | the same |
//! | so many at a time, however long each takes | [`Limit::concurrency(10)`](Limit::concurrency), in a [rule](#rules-reservations-and-permits) | `max` held at any instant |
//! | to lock out callers that do not stop | [`Ban`](limit::Ban) on any of them | nothing until the ban ends |
//!
//! # Waiting for a turn
//!
//! First come, first served, on any runtime; dropping the future gives the place back.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! use std::time::Duration;
//! use quell::{Cost, KeyedLimiter, Limit};
//!
//! let calls = KeyedLimiter::<str>::new(Limit::per_second(200).burst(1))?;
//! for _ in 0..3 {
//!     calls.acquire("alice").await;
//! }
//! // If its turn would not come in time, the call is refused at once.
//! let mails = KeyedLimiter::<str>::new(Limit::per_hour(1))?;
//! mails.acquire("alice").await;
//! let most = Duration::from_secs(60);
//! assert!(!mails.acquire_timeout("alice", Cost::ONE, most).await.is_allow());
//! # Ok::<(), quell::LimitError>(())
//! # }).unwrap();
//! ```
//!
//! # Rules, reservations and permits
//!
//! A [`Limiter`] has rules. A query is charged under all that match, or under none, and the [`Verdict`]
//! names the rule that refused. If a cost is known only afterwards, reserve an estimate and settle it. Permits
//! are held and released.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! use std::time::Duration;
//! use quell::rule::{DomainRules, Rule};
//! use quell::store::memory::MemoryStore;
//! use quell::{Cost, Limit, Limiter, Query};
//!
//! let tokens = Rule::new("tokens-per-minute", Limit::per_minute(10_000))?.per("team");
//! let streams = Rule::new("streams", Limit::concurrency(2))?
//!     .matching("kind", &["stream"])
//!     .per("team");
//! let limiter = Limiter::new(MemoryStore::new());
//! limiter.set_rules(vec![DomainRules::new("models", vec![tokens, streams])])?;
//!
//! // An answer may take up to 4,000 tokens. This one took 1,500.
//! let ask = Query::new("models").entry("team", "red");
//! let most = Cost::new(4_000).ok_or("a cost of 0")?;
//! let hold = Duration::from_secs(60);
//! let verdict = limiter.reserve(&ask.clone().cost(most), hold, Some("job-1")).await?;
//! assert_eq!(verdict.remaining, Some(6_000));
//! limiter.settle("models", "job-1", 1_500).await?;
//! assert_eq!(limiter.peek(&ask).await?.remaining, Some(8_500));
//!
//! // A permit has the id of the verdict. If its holder dies, it comes back when its lease ends.
//! let stream = limiter.try_acquire(&ask.entry("kind", "stream")).await?;
//! let id = stream.id.ok_or("no permit")?;
//! limiter.release("models", &id).await?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
//!
//! # Rules from a file
//!
//! With `quell-rules` beside this crate; mistakes are reported with file, line and what to write:
//!
//! ```
//! use quell::store::memory::MemoryStore;
//! use quell::{Limiter, Query};
//!
//! let text = "
//! domain: shop
//! rules:
//!   - name: login-per-ip
//!     match: { method: POST, path: /login }
//!     per: [remote_address]
//!     algorithm: sliding_log
//!     limit: 5/min
//!     ban: { after: 3, within: 10m, for: [1m, 10m, 1h] }
//! ";
//! let loaded = quell_rules::parse_str("shop.yaml", text).map_err(|problems| {
//!     problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
//! })?;
//! let limiter = Limiter::new(MemoryStore::new());
//! limiter.set_rules(loaded.domains)?;
//! let login = Query::new("shop")
//!     .entry("method", "POST")
//!     .entry("path", "/login")
//!     .entry("remote_address", "10.0.0.1");
//! assert_eq!(limiter.try_acquire_local(&login)?.remaining, Some(4));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # In front of axum, tonic and tower
//!
//! Feature `tower`. Ten requests a second from each address; a refusal is 429 with `Retry-After`:
//!
//! ```
//! # use std::net::SocketAddr;
//! # use axum::{Router, extract::ConnectInfo, routing::get};
//! # use quell::Limit;
//! # use quell::tower::{Entries, LimitLayer, RemoteAddress};
//! let address = RemoteAddress::new(|connected: &ConnectInfo<SocketAddr>| Some(connected.0));
//! let entries = Entries::new().remote_address(address);
//! let limits = LimitLayer::each("per-address", Limit::per_second(10).burst(20), entries)?;
//! let app: Router = Router::new().route("/", get(|| async { "hello" })).layer(limits);
//! let app = app.into_make_service_with_connect_info::<SocketAddr>();
//! # drop(app);
//! # Ok::<(), quell::LimitError>(())
//! ```
//!
//! # Many processes, one limit
//!
//! `quell-redis` is a store on Redis or Valkey: one script decides a query in one round trip, and rules
//! declare what to answer while the store is gone. Only the line that makes the limiter changes:
//! `Limiter::new(RedisStore::new(url).with_fallback())`. Without rules, [`SharedKeyedLimiter`] is over any store
//! what [`KeyedLimiter`] is in memory. See its page (`crates/quell-redis/README.md`) and what it guarantees
//! (`docs/redis.md`).
//!
//! # What it costs
//!
//! On one 2-core machine (`docs/benchmarks.md` has all figures, and where it loses):
//!
//! | | |
//! |---|---|
//! | a decision, a million keys | 104 to 145 ns; governor takes 2.5 to 3.9 times as long |
//! | the same through 100 or 10,000 rules | 263 to 296 ns |
//! | the slowest of 10,000 calls while the table grows | below 0.25 ms |
//! | memory per key | 39 bytes (buckets), 127 to 160 (windows, logs); governor 87 to 102 |
//! | a new key | 0.7 to 1.1 us; governor 0.6 to 0.7 |
//!
//! `docs/concepts.md` says when not to use it: among others, where a ledger or a firewall is
//! needed, or there is no `std` (`quell-core` needs none).
//!
//! # Features
//!
//! None is on unless you ask for it.
//!
//! * `tower`: a layer for axum, tonic and any tower service ([module `tower`](tower)).
//! * `rule-store`: the port of stores that keep rules as versions, which many processes follow
//!   ([module `rule_store`](rule_store)).
//! * `override-store`: the port of stores that keep overrides of single keys, which many processes follow, and such
//!   a store in a file or in memory ([module `override_store`](override_store)).
//!
//! The suite that every store must pass is the crate `quell-conformance`.
//!
//! Needs Rust 1.95. No `unsafe`. Programs to run are in `crates/quell/examples`.

pub mod calendar;
pub mod clock;
pub mod limit;
pub mod observer;
#[cfg(feature = "override-store")]
pub mod override_store;
pub mod rule;
#[cfg(feature = "rule-store")]
pub mod rule_store;
pub mod store;
#[cfg(feature = "tower")]
pub mod tower;

mod ad_hoc;
mod admin;
#[cfg(feature = "tower")]
mod admit;
mod alarm;
mod error;
mod hold_calls;
mod hold_id;
mod keyed;
mod limiter;
mod overrides;
mod portions;
#[cfg(test)]
mod schedules;
mod shared_keyed;
mod waiters;

pub use ad_hoc::AdHocMemo;
pub use error::{AskError, RulesError};
pub use keyed::{KeyedLimiter, UnkeyedLimiter};
pub use limiter::{AdHocPlan, Limiter, LimiterBuilder, OverrideList, Plan};
pub use overrides::{KeyOverride, OverrideRank, ReadNumbers, Span};
pub use quell_core::account::Account;
pub use quell_core::actual::Actual;
pub use quell_core::charge::Operation;
pub use quell_core::cost::Cost;
pub use quell_core::decision::{Decision, Outcome, RetryAfter};
pub use quell_core::descriptor::{Descriptor, Entry, IntoValue, Query};
pub use quell_core::end_hold::Ending;
pub use quell_core::hold::{MAX_HOLD, OnExpiry};
pub use quell_core::limit::Limit;
pub use quell_core::limit_error::LimitError;
pub use quell_core::limit_spec::LimitSpec;
pub use quell_core::query_bounds::QueryError;
pub use quell_core::rate::Rate;
pub use quell_core::verdict::{RuleDecision, RuleDecisions, Verdict};
pub use shared_keyed::SharedKeyedLimiter;
pub use waiters::MAX_WAITING;

/// The examples of the crate's page.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The example of the project's page.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct FrontPage;

/// The examples of the guide to the layer.
#[cfg(all(doctest, feature = "tower"))]
#[doc = include_str!("../../../docs/tower.md")]
struct TowerGuide;
