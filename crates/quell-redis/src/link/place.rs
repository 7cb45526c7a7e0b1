//! Place: one server that is asked, and whether it answers.
//!
//! A cluster has one for each of its primaries, so that one that is lost holds up its own keys and no
//! others; a single server is one, and so is the primary that sentinels watch, whoever that is.

use std::sync::Arc;
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

    /// Leave to look whether it is back, for one at a time; it ends when it is dropped.
    pub(crate) fn begin_probe(self: &Arc<Self>) -> Option<Probing> {
        let is_first = !self.is_probing.swap(true, Ordering::AcqRel);
        is_first.then(|| Probing {
            place: Arc::clone(self),
        })
    }
}

/// Somebody looks whether a place is back.
#[derive(Debug)]
pub(crate) struct Probing {
    place: Arc<Place>,
}

impl Probing {
    pub(crate) const fn place(&self) -> &Arc<Place> {
        &self.place
    }
}

impl Drop for Probing {
    fn drop(&mut self) {
        self.place.is_probing.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_looks_at_a_time_and_leaves_nothing_behind() {
        let place = Arc::new(Place::new("h".to_owned()));
        let probing = place.begin_probe().unwrap();
        assert!(place.begin_probe().is_none());
        // As when the runtime ends with the task in it.
        drop(probing);
        assert!(place.begin_probe().is_some());
    }
}
