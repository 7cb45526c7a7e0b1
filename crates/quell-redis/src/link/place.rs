//! Place: one server that is asked, and whether it answers.
//!
//! A cluster has one for each of its primaries, so that one that is lost holds up its own keys and no
//! others; a single server is one, and so is the primary that sentinels watch, whoever that is.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::breaker::Breaker;

/// A server, or who stands for it.
#[derive(Debug)]
pub(crate) struct Place {
    name: String,
    pub(crate) breaker: Breaker,
    is_probing: AtomicBool,
}

impl Place {
    pub(super) fn new(name: String) -> Self {
        Self {
            name,
            breaker: Breaker::new(),
            is_probing: AtomicBool::default(),
        }
    }

    /// `HOST:PORT`, or the name under which sentinels know it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether the caller is now the only one that looks whether it is back.
    pub(crate) fn begins_probe(&self) -> bool {
        !self.is_probing.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn ends_probe(&self) {
        self.is_probing.store(false, Ordering::Release);
    }
}
