//! On failure: what a rule answers while the store that it shares with others cannot tell.

use core::num::NonZeroU32;

/// What is answered for a limit while nobody can count.
///
/// There is no default: who is let in while a store is gone, and who is kept out, only the operator
/// knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnFailure {
    /// Each of so many nodes goes on by itself, with its share of the limit.
    Share {
        /// How many nodes share the limit.
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

    /// How many nodes share the limit, if they do.
    #[must_use]
    pub const fn nodes(self) -> Option<u32> {
        match self {
            Self::Share { nodes } => Some(nodes.get()),
            Self::Deny | Self::Allow => None,
        }
    }
}
