//! Permit: what a call holds until its response has been sent.

use std::fmt;
use std::sync::Arc;

use crate::limiter::Limiter;
use crate::store::Store;

/// Gives back, when it is dropped, what a call holds.
pub(super) struct Permit(Box<dyn Fn() + Send + Sync>);

impl Permit {
    /// The permit `id` of `domain`.
    pub(super) fn of<S: Store>(limiter: &Arc<Limiter<S>>, domain: &str, id: &str) -> Self {
        let (limiter, domain, id) = (Arc::clone(limiter), domain.to_owned(), id.to_owned());
        Self(Box::new(move || limiter.let_go(&domain, &id)))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        (self.0)();
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Permit")
    }
}
