//! A follower as the port describes it.

use std::collections::BTreeMap;

use quell::override_store::{
    AppliedChange, Changes, OverrideId, OverrideStore, Position, StoredOverride,
};

/// The overrides of a process that follows a store.
#[derive(Clone, Debug, Default)]
pub struct Follower {
    position: Position,
    overrides: BTreeMap<OverrideId, StoredOverride>,
}

impl Follower {
    /// A follower that has these overrides, which were in the store at this position.
    #[must_use]
    pub fn new(position: Position, overrides: Vec<StoredOverride>) -> Self {
        let overrides = overrides.into_iter();
        let overrides = overrides.map(|stored| (stored.id.clone(), stored));
        Self {
            position,
            overrides: overrides.collect(),
        }
    }

    /// The position up to which it has everything.
    #[must_use]
    pub const fn position(&self) -> &Position {
        &self.position
    }

    /// Its overrides, in the order of the ids.
    #[must_use]
    pub fn overrides(&self) -> Vec<StoredOverride> {
        self.overrides.values().cloned().collect()
    }

    /// Reads until it has what the store had when it was asked last.
    ///
    /// # Panics
    /// If the store fails, or changes do not come in order.
    pub async fn follow(&mut self, store: &dyn OverrideStore) {
        loop {
            let changes = store.changes(&self.position, 50).await;
            match changes.unwrap_or_else(|error| unreachable!("{error}")) {
                Changes::TooOld | Changes::Lost => self.list(store).await,
                Changes::Since {
                    changes,
                    position,
                    newest,
                } => {
                    let revisions: Vec<_> = changes.iter().map(AppliedChange::revision).collect();
                    assert!(revisions.is_sorted(), "{revisions:?}");
                    let range = self.position.revision() + 1..=position.revision();
                    assert!(revisions.iter().all(|revision| range.contains(revision)));
                    assert!(position.revision() <= newest);
                    for change in changes {
                        self.apply(change);
                    }
                    self.position = position;
                    if self.position.revision() == newest {
                        return;
                    }
                }
            }
        }
    }

    async fn list(&mut self, store: &dyn OverrideStore) {
        let position = store.position().await;
        let position = position.unwrap_or_else(|error| unreachable!("{error}"));
        let stored = super::list_all(store, None, 100).await;
        *self = Self::new(position, stored);
    }

    /// Makes a change, unless it has a newer form.
    fn apply(&mut self, change: AppliedChange) {
        let known = self.overrides.get(change.id());
        if known.is_some_and(|known| known.revision >= change.revision()) {
            return;
        }
        match change {
            AppliedChange::Put(stored) => self.overrides.insert(stored.id.clone(), stored),
            AppliedChange::Deleted { id, .. } => self.overrides.remove(&id),
        };
    }
}
