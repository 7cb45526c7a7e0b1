//! Place: one server that is asked, and whether it answers.
//!
//! A cluster has one for each of its primaries, so that one that is lost holds up its own keys and no
//! others; a single server is one, and so is the primary that sentinels watch, whoever that is.

use crate::breaker::Breaker;

/// A server, or who stands for it.
#[derive(Debug)]
pub(crate) struct Place {
    name: String,
    pub(crate) breaker: Breaker,
}

impl Place {
    pub(super) const fn new(name: String) -> Self {
        Self {
            name,
            breaker: Breaker::new(),
        }
    }

    /// `HOST:PORT`, or the name under which sentinels know it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}
