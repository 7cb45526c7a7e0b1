//! Options of a store, and how it is built from them.

use std::sync::Arc;
use std::time::Duration;

use super::RedisStore;
use crate::batch::Batcher;
use crate::key::{Names, PREFIX};
use crate::link::{Link, Settings};
use crate::opcode::StoreClock;
use crate::servers::Servers;
use crate::url::StoreUrl;

/// Default time of a call: a store near its servers answers within a millisecond, and no request should
/// wait longer for a limit.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_millis(50);

/// Puts a [`RedisStore`] together.
#[derive(Debug)]
pub struct RedisStoreBuilder {
    url: StoreUrl,
    clock: StoreClock,
    prefix: String,
    timeout: Duration,
    test_quiet: Option<Duration>,
    is_test_isolation: bool,
    is_batching: bool,
}

impl RedisStoreBuilder {
    pub(super) fn new(url: StoreUrl) -> Self {
        Self {
            url,
            clock: StoreClock::Own,
            prefix: PREFIX.to_owned(),
            timeout: DEFAULT_TIMEOUT,
            test_quiet: None,
            is_test_isolation: false,
            is_batching: true,
        }
    }

    /// Sets whose clock decides. Default: the store's.
    #[must_use]
    pub const fn clock(mut self, clock: StoreClock) -> Self {
        self.clock = clock;
        self
    }

    /// Separates the keys of a test from all others: they begin with `quell:test:NAME:`.
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

    /// Sets for how long a server that was started again, or took over, may lack states of leased and synced limits,
    /// for tests that look at it on a busy machine. Default: a second.
    #[must_use]
    pub const fn test_quiet(mut self, quiet: Duration) -> Self {
        self.test_quiet = Some(quiet);
        self
    }

    /// Sets how long a call may take. Default: [`DEFAULT_TIMEOUT`](crate::DEFAULT_TIMEOUT).
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sends every call alone. Default: calls that wait at the same time share a batch, which costs the store
    /// about half as much.
    #[must_use]
    pub const fn unbatched(mut self) -> Self {
        self.is_batching = false;
        self
    }

    /// The store. Nothing is sent yet.
    #[must_use]
    pub fn build(self) -> RedisStore {
        let mut settings = Settings::new(&self.url, self.timeout);
        settings.quiet = self.test_quiet.unwrap_or(settings.quiet);
        let link = Arc::new(Link::with_settings(settings));
        let servers = Servers {
            batcher: Batcher::new(&link, self.timeout, self.is_batching),
            link,
            names: Names::new(&self.prefix),
            url: self.url,
            clock: self.clock,
            timeout: self.timeout,
            calendar: Default::default(),
            test_isolation: self.is_test_isolation.then(Default::default),
            turn_notifications: Default::default(),
            pointer_cache: Default::default(),
            hold_gauges: Default::default(),
            counts: Default::default(),
        };
        RedisStore {
            servers: Arc::new(servers),
        }
    }
}
