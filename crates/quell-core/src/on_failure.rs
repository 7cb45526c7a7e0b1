//! On failure: how a rule answers while its shared store is gone.

use core::num::NonZeroU32;

/// The answer for a limit while the store is gone.
///
/// There is no default: only the operator knows whether calls should pass while the store is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnFailure {
    /// Each node continues alone, with its share of the limit.
    Share {
        /// Number of nodes that share the limit.
        nodes: NonZeroU32,
    },
    /// Refuse.
    Deny,
    /// Allow, uncounted.
    Allow,
}

impl OnFailure {
    /// Its name in a rules file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Share { .. } => "share",
            Self::Deny => "deny",
            Self::Allow => "allow",
        }
    }

    /// Number of nodes that share the limit, if nodes share it.
    #[must_use]
    pub const fn nodes(self) -> Option<u32> {
        match self {
            Self::Share { nodes } => Some(nodes.get()),
            Self::Deny | Self::Allow => None,
        }
    }
}
