//! Endpoint: one server to ask, with its circuit breaker.
//!
//! A cluster has one endpoint for each primary, so a primary that is gone delays only calls on its own
//! keys. A single server is one endpoint, and so is the primary that sentinels watch, whichever it is.

use crate::breaker::Breaker;

/// A server, or the primary of a group of servers.
#[derive(Debug)]
pub(crate) struct Endpoint {
    /// `HOST:PORT`, or the name under which sentinels know it.
    pub(crate) name: String,
    pub(crate) breaker: Breaker,
}

impl Endpoint {
    pub(super) const fn new(name: String) -> Self {
        Self {
            name,
            breaker: Breaker::new(),
        }
    }
}
