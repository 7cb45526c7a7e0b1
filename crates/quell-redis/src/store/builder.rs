//! Options of a store, and how it is built from them.

use std::sync::Arc;
use std::time::Duration;

use super::{RedisStore, StoreClock};
use crate::batch::Batcher;
use crate::key::Names;
use crate::link::Link;
use crate::script::Scripts;
use crate::url::StoreUrl;

/// Puts a [`RedisStore`] together.
#[derive(Debug)]
pub struct RedisStoreBuilder {
    pub(super) url: StoreUrl,
    pub(super) clock: StoreClock,
    pub(super) prefix: String,
    pub(super) timeout: Duration,
    pub(super) is_test_isolation: bool,
    pub(super) is_batching: bool,
}

impl RedisStoreBuilder {
    /// Takes other instants than the store's.
    #[must_use]
    pub const fn clock(mut self, clock: StoreClock) -> Self {
        self.clock = clock;
        self
    }

    /// Keeps the keys of a test apart from all others: they begin with `quell:test:NAME:`.
    #[must_use]
    pub fn test_keys(mut self, name: &str) -> Self {
        self.prefix = format!("quell:test:{name}:");
        self
    }

    /// Does what one process with its states in memory would do, for scenarios: instants are the
    /// caller's, a limit that changes reaches every key at once, and a rule that is gone forgets.
    ///
    /// The store remembers every key that it charged, to do so.
    #[must_use]
    pub const fn test_isolation(mut self) -> Self {
        self.clock = StoreClock::Caller;
        self.is_test_isolation = true;
        self
    }

    /// Sets how long a call may take. Default: [`DEFAULT_TIMEOUT`](crate::DEFAULT_TIMEOUT).
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sends every call by itself, also where others wait at the same time. Default: those go together,
    /// which costs the store about half as much.
    #[must_use]
    pub const fn unbatched(mut self) -> Self {
        self.is_batching = false;
        self
    }

    /// The store. Nothing is sent yet.
    #[must_use]
    pub fn build(self) -> RedisStore {
        let link = Arc::new(Link::new(&self.url, self.timeout));
        let scripts = Arc::new(Scripts::new());
        // On a cluster keys lie in slots, and what one script sees has to lie in one.
        let may_batch = self.is_batching && !link.is_spread();
        let batcher = may_batch.then(|| Batcher::new(&link, &scripts, self.timeout));
        RedisStore {
            link,
            names: Names::new(&self.prefix),
            scripts,
            batcher,
            url: Arc::new(self.url),
            clock: self.clock,
            timeout: self.timeout,
            calendar: Arc::default(),
            test_isolation: self.is_test_isolation.then(Arc::default),
            turn_notifications: Arc::default(),
            pointer_cache: Arc::default(),
            hold_gauges: Arc::default(),
            counts: Arc::default(),
            replaced: Arc::default(),
        }
    }
}
