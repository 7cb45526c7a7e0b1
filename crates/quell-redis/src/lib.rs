//! A store on Redis or Valkey, so that many servers share one limit.
//!
//! One script decides a limit set, all or nothing, by the store's clock and in one round trip. It
//! decides as `quell-core` does: the conformance suite of `quell` compares both.
//!
//! ```no_run
//! use quell::{Limiter, Query};
//! use quell_redis::{RedisStore, StoreUrl};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let url: StoreUrl = "redis://localhost:6379/0".parse()?;
//! let limiter = Limiter::new(RedisStore::new(url));
//! limiter.set_rules(Vec::new())?;
//! let verdict = limiter.try_acquire(&Query::new("shop").entry("user", "alice")).await;
//! # Ok(())
//! # }
//! ```
//!
//! [`RuleVersions`] keeps rules in the store, as versions that servers follow.
//!
//! Read first: `store` (how a limit set is decided), `encode` (the script's arguments), and the scripts
//! in `script/`.

mod answer;
mod bans;
mod batch;
mod breaker;
mod check;
mod claim;
mod encode;
mod end_hold;
mod flow;
mod hold;
mod hold_gauges;
mod key;
mod link;
mod numbers;
mod opcode;
mod pointer;
mod remote;
mod rule_versions;
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
pub use quell::store::fallback::{FallbackNumbers, FallbackStore};
pub use remote::Server;
pub use rule_versions::{
    Draft, Entry, Head, KEPT_VERSIONS, PushOutcome, RuleVersions, RuleVersionsError, Version,
};
pub use store::{DEFAULT_TIMEOUT, RedisStore, RedisStoreBuilder};
pub use url::{StoreUrl, UrlError};
