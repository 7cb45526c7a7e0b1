//! Trail: what people changed through this coordinator, for its console. Its log has all of it.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use crate::clock;

/// Changes that are kept.
const MOST: usize = 100;

/// What somebody changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Noted {
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// Who.
    pub by: String,
    /// What was done: the command that does the same, if there is one.
    pub what: String,
    /// Why; empty if nobody said so.
    pub why: String,
}

/// The last changes.
#[derive(Debug, Default)]
pub struct Trail(Mutex<VecDeque<Noted>>);

impl Trail {
    /// Notes what was done now.
    pub fn note(&self, by: &str, what: String, why: String) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.truncate(MOST - 1);
        all.push_front(Noted {
            at_ms: clock::now().wall.as_nanos() / 1_000_000,
            by: by.to_owned(),
            what,
            why,
        });
    }

    /// The newest first.
    #[must_use]
    pub fn list(&self) -> Vec<Noted> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_changes_are_kept_the_newest_first() {
        let trail = Trail::default();
        for number in 0..=MOST {
            trail.note("ada", number.to_string(), String::new());
        }
        let list = trail.list();
        assert_eq!(
            (list.len(), &*list[0].what, &*list[MOST - 1].what),
            (MOST, "100", "1")
        );
    }
}
