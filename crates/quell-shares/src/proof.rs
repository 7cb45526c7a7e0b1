//! Proof: what a node knows of a store's memory, by the store's last answer about a key.
//!
//! A store may lose its memory (it is emptied, starts again, or a replica takes over) and would then count a
//! busy key as unused. But it keeps the state of a key that is in use, and any state for [`KEPT`] after each call
//! on it. So a node that was answered about a key knows until when its state is there, says so in its next call,
//! and a store that has none before that instant counts the key as used up.

use core::time::Duration;

use quell_core::decision::Decision;
use quell_core::time::{Monotonic, Wall};

use crate::lease::LIFE;

/// For how long a store keeps a state after each call on its key, at least: as long as a lease lasts, but for
/// what a store loses that counts in milliseconds.
pub const KEPT: Duration = LIFE.saturating_sub(Duration::from_millis(1));

/// Instant until which a key's state is known to exist, if it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Proof(Option<Known>);

#[derive(Clone, Copy, Debug)]
struct Known {
    /// By the store's clock.
    until: Wall,
    /// By the node's clock, since another store with another clock may have taken over.
    fresh_until: Monotonic,
}

impl Proof {
    /// The answer to a call came now; the store made it at `decided`, by its own clock. One that says that the
    /// key is at rest proves nothing.
    pub fn note(&mut self, now: Monotonic, decision: &Decision, decided: Wall) {
        let is_used = !decision.reset_after.is_zero();
        self.0 = is_used.then(|| Known {
            until: decided.saturating_add(KEPT),
            fresh_until: now.saturating_add(KEPT),
        });
    }

    /// Instant until which the state is known to exist, by the store's clock.
    #[must_use]
    pub fn until(&self, now: Monotonic) -> Option<Wall> {
        let known = self.0.filter(|known| now < known.fresh_until);
        known.map(|known| known.until)
    }
}
