//! Account: whose part of scarce places a call takes up.

/// An account of callers who are one party, such as the bearers of a credential. Of what a process keeps a bounded
/// number of (ids of holds, callers that wait, names of bans), an account has at most half of what others leave, as
/// a domain has. It decides nothing else, and is no part of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Account(u64);

impl Account {
    /// No account: only the domain is counted.
    pub const NONE: Self = Self(0);

    /// The account with this number; 0 is [`Self::NONE`].
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns true for every account but [`Account::NONE`].
    #[must_use]
    pub const fn is_some(self) -> bool {
        self.0 != 0
    }
}
