//! A store on Redis or Valkey, so that many processes share one limit, exact to the unit.
//!
//! One script decides all limits of a query, all or nothing, in one round trip and by the store's clock.
//! It decides as the store in memory does; the suite `quell-conformance` compares both.
//!
//! ```no_run
//! use quell::rule::{DomainRules, OnFailure, Rule};
//! use quell::{Limit, Limiter, Query};
//! use quell_redis::{RedisStore, StoreUrl};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let url: StoreUrl = "redis://127.0.0.1:6379/0".parse()?;
//! let limiter = Limiter::new(RedisStore::new(url).with_fallback());
//!
//! // 100 a second on all nodes together; a quarter of it on each of four while the store is gone.
//! let quarter = OnFailure::Share { nodes: 4.try_into()? };
//! let searches = Rule::new("searches", Limit::per_second(100))?.per("user").policy(quarter);
//! limiter.set_rules(vec![DomainRules::new("shop", vec![searches])])?;
//!
//! let verdict = limiter.try_acquire(&Query::new("shop").entry("user", "alice")).await?;
//! if !verdict.is_allow() {
//!     println!("429, {:?}", verdict.retry_after);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! * The limiter is that of `quell`, so waiting, reservations, permits and the tower layer work as there, on
//!   all processes together.
//! * `redis+sentinel://` and `redis+cluster://` follow fail-overs and resharding; `rediss://` is TLS.
//!   [`StoreUrl`] lists the forms.
//! * [`RedisStore::with_fallback`] applies each rule's `on_failure` while the store is gone, slow or
//!   failing over, marks such verdicts as [degraded](quell::Verdict::degraded), and charges the store
//!   afterwards. Without it an outage is an error of every call.
//! * [`RedisRules`] keeps rules in Redis, as versions that processes follow, and [`RedisOverrides`] overrides of single
//!   keys.
//! * What it guarantees, sizing, rights and outages: `docs/redis.md`.
//!
//! Needs Redis 6.2, or Valkey, and a tokio runtime with time and I/O. `examples/three_limits.rs` is a
//! program with a local, a burst and a distributed limit.
//!
//! To read the code, begin with `store` (how a limit set is decided), `encode` (the script's arguments) and
//! the scripts in `script/`.

mod answer;
mod bans;
mod batch;
mod breaker;
mod check;
mod claim;
mod encode;
mod end_hold;
mod flow;
mod hold_gauges;
mod key;
mod link;
mod numbers;
mod opcode;
mod pointer;
mod redis_holds;
mod redis_overrides;
mod redis_rules;
mod remote;
mod resp;
mod script;
mod script_request;
mod servers;
mod slots;
mod store;
mod sync;
mod test_isolation;
mod ticks;
mod turn_notifications;
mod url;

pub use link::Failure;
pub use numbers::StoreNumbers;
pub use opcode::StoreClock;
// The limiter of this store.
pub use quell;
pub use quell_store::fallback::{FallbackNumbers, FallbackStore};
pub use redis_overrides::RedisOverrides;
pub use redis_rules::RedisRules;
pub use remote::Server;
pub use store::{DEFAULT_TIMEOUT, RedisStore, RedisStoreBuilder, SharedStore};
pub use url::{StoreUrl, UrlError};

/// The examples of the crate's page.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
