//! Shared limit: a limit of the store, and the part of it that this node decides on while the store is gone.

use std::num::NonZeroU32;

use quell_core::algorithm::Algorithm;
use quell_core::limit::{ActiveLimit, Limit};

/// A limit and this node's part of it.
#[derive(Debug)]
pub(super) struct SharedLimit {
    /// The limit in the store.
    pub(super) whole: ActiveLimit,
    pub(super) share: ActiveLimit,
    /// The share, for counting debts.
    pub(super) counted: Limit,
    pub(super) nodes: NonZeroU32,
}

impl SharedLimit {
    pub(super) fn new(whole: &ActiveLimit, nodes: NonZeroU32) -> Option<Self> {
        // Permits come back only where they are held, so they are not shared.
        if whole.limit.lease().is_some() {
            return None;
        }
        let share = whole.limit.share(nodes)?;
        Some(Self {
            whole: whole.clone(),
            counted: share.without_warm_up(),
            share: ActiveLimit {
                limit: share,
                ..whole.clone()
            },
            nodes,
        })
    }

    /// Returns true if states under the limit grow with their usage.
    pub(super) fn grows(&self) -> bool {
        let algorithm = self.share.limit.algorithm();
        matches!(
            algorithm,
            Algorithm::SlidingLog(_) | Algorithm::SlidingWindow(_)
        )
    }
}
