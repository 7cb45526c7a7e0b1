//! The Redis and Valkey store: many servers, one limit.
//!
//! One script decides a limit set, all or nothing, by the store's clock and in one round trip. What
//! it decides is what `quell-core` decides: the conformance suite of `quell` holds both against each
//! other.
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
//! [`RuleBook`] keeps rules there, too, as versions that servers follow.
//!
//! Open first: `store` (the way of a limit set), `code` (what the script reads), and the script
//! itself, beside `script.rs`.

mod answer;
mod asked;
mod bans;
mod book;
mod boxed;
mod breaker;
mod calls;
mod check;
mod code;
mod finish;
mod flow;
mod foreign;
mod gather;
mod guard;
mod hold;
mod key;
mod link;
mod numbers;
mod owing;
mod own;
mod owned_set;
mod reach;
mod rehearsal;
mod script;
mod slots;
mod store;
mod sync;
mod ticks;
mod url;

pub use book::{BookError, Draft, Entry, Head, KEPT_VERSIONS, Pushed, RuleBook, Version};
pub use guard::{GuardNumbers, GuardedStore};
pub use link::Failure;
pub use numbers::StoreNumbers;
pub use store::{DEFAULT_TIMEOUT, RedisStore, RedisStoreBuilder, StoreClock};
pub use url::{StoreUrl, UrlError};
