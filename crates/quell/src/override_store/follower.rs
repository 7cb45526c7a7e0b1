//! Followers of a store, as they are registered in it.

use std::sync::Arc;
use std::time::Duration;

/// A process that follows a store, by what it reported last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Follower {
    /// Its name, which no other follower has.
    pub name: Arc<str>,
    /// The revision up to which it has everything; 0 if what it has is not of the history of the store.
    pub revision: u64,
    /// For how long it has lacked something, or may have; zero if it has everything.
    pub behind: Duration,
}
