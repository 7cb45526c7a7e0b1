//! Shared keyed limiter: one limit on many keys, in a store that processes share, without rules.

use std::sync::Arc;

use quell_core::charge::Operation;
use quell_core::cost::Cost;
use quell_core::descriptor::{IntoValue, Query};
use quell_core::limit_error::LimitError;
use quell_core::limit_spec::LimitSpec;
use quell_core::policy::Policy;
use quell_core::rule::{DomainRules, Rule};
use quell_core::verdict::Verdict;

use crate::error::AskError;
use crate::limiter::Limiter;
use crate::store::Store;

/// The entry of the query that has the key.
const KEY: &str = "key";

/// One limit on many keys in any store: what [`KeyedLimiter`](crate::KeyedLimiter) is in memory.
///
/// Processes that give the same name on the same store share the keys.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use quell::store::memory::MemoryStore;
/// use quell::{Limit, SharedKeyedLimiter};
///
/// // With quell-redis: `RedisStore::new(url).with_fallback()` in place of the store in memory.
/// let logins = SharedKeyedLimiter::new(MemoryStore::new(), "logins", Limit::per_minute(5))?;
/// for _ in 0..5 {
///     assert!(logins.try_acquire("alice").await?.is_allow());
/// }
/// assert!(!logins.try_acquire("alice").await?.is_allow());
/// assert!(logins.try_acquire("bob").await?.is_allow());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct SharedKeyedLimiter<S> {
    limiter: Limiter<S>,
    name: Arc<str>,
}

impl<S> Clone for SharedKeyedLimiter<S> {
    fn clone(&self) -> Self {
        Self {
            limiter: self.limiter.clone(),
            name: Arc::clone(&self.name),
        }
    }
}

impl<S: Store> SharedKeyedLimiter<S> {
    /// A limiter on `store`, whose failures are errors of the calls.
    ///
    /// # Errors
    /// [`LimitError`] if the name or the numbers are impossible, or the store cannot apply the limit.
    pub fn new(store: S, name: &str, limit: impl Into<LimitSpec>) -> Result<Self, LimitError> {
        Self::with(store, name, limit, Policy::default())
    }

    /// A limiter whose `policy` says what is answered while the store is gone, if it is one with a fallback.
    ///
    /// # Errors
    /// As [`SharedKeyedLimiter::new`].
    pub fn with(
        store: S,
        name: &str,
        limit: impl Into<LimitSpec>,
        policy: impl Into<Policy>,
    ) -> Result<Self, LimitError> {
        let rule = Rule::new(name, limit)?.per(KEY).policy(policy);
        let limiter = Limiter::new(store);
        limiter
            .set_rules(vec![DomainRules::new(name, vec![rule])])
            .map_err(|wrong| wrong.error)?;
        Ok(Self {
            limiter,
            name: name.into(),
        })
    }

    /// Asks for one unit, and charges it if it fits.
    ///
    /// # Errors
    /// [`AskError`] if the store fails. A refusal is not an error.
    pub async fn try_acquire<'a>(&'a self, key: impl IntoValue<'a>) -> Result<Verdict, AskError> {
        self.ask(Operation::Acquire, key, Cost::ONE).await
    }

    /// Asks for `cost` units, and charges them if they fit.
    ///
    /// # Errors
    /// As [`SharedKeyedLimiter::try_acquire`].
    pub async fn try_acquire_n<'a>(
        &'a self,
        key: impl IntoValue<'a>,
        cost: Cost,
    ) -> Result<Verdict, AskError> {
        self.ask(Operation::Acquire, key, cost).await
    }

    /// Asks for `cost` units without charging.
    ///
    /// # Errors
    /// As [`SharedKeyedLimiter::try_acquire`].
    pub async fn peek<'a>(
        &'a self,
        key: impl IntoValue<'a>,
        cost: Cost,
    ) -> Result<Verdict, AskError> {
        self.ask(Operation::Peek, key, cost).await
    }

    /// The limiter of rules behind it, to wait, reserve and ban: its only domain and its only rule have the name,
    /// and the key is the entry `key`.
    #[must_use]
    pub const fn limiter(&self) -> &Limiter<S> {
        &self.limiter
    }

    async fn ask<'a>(
        &'a self,
        operation: Operation,
        key: impl IntoValue<'a>,
        cost: Cost,
    ) -> Result<Verdict, AskError> {
        let query = Query::new(&*self.name).entry(KEY, key).cost(cost);
        self.limiter
            .ask(operation, &query, self.limiter.now())
            .await
    }
}
