//! A Redis server for one test, and stores on it.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use quell_redis::{RedisStore, RedisStoreBuilder, StoreUrl};
use quell_testkit::proxy::Fault;
use quell_testkit::redis::{Options, Redis};

pub(crate) use quell_testkit::port::free_port;
pub(crate) use quell_testkit::redis::{session, try_command};

use crate::patience::PATIENCE;

/// Answers come later than a hasty caller waits, however late its own timer rings.
pub(crate) const SLOW: Fault = Fault::Delay(Duration::from_secs(1));

/// A server that stops when it is dropped.
pub(crate) struct Server(Redis);

impl From<Redis> for Server {
    fn from(redis: Redis) -> Self {
        Self(redis)
    }
}

impl Deref for Server {
    type Target = Redis;

    fn deref(&self) -> &Redis {
        &self.0
    }
}

impl DerefMut for Server {
    fn deref_mut(&mut self) -> &mut Redis {
        &mut self.0
    }
}

impl Server {
    /// Starts a server with more words on its command line.
    pub(crate) fn start(words: &[&str]) -> Self {
        Self(Redis::start(words))
    }

    /// The same on this port.
    pub(crate) fn start_on(port: u16, words: &[&str]) -> Self {
        Self(Redis::start_on(port, Options::words(words)))
    }

    pub(crate) fn url(&self) -> StoreUrl {
        format!("redis://127.0.0.1:{}", self.port())
            .parse()
            .unwrap()
    }

    /// A store on this server that waits long enough for a busy machine.
    pub(crate) fn store(&self) -> RedisStoreBuilder {
        RedisStore::builder(self.url()).timeout(PATIENCE)
    }
}
