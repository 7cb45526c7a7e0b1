//! Policy: where a rule's keys are decided, and the answer while a shared store cannot be asked.

use core::num::NonZeroU64;

use crate::cost::Cost;
use crate::fleet_share::SharesPolicy;
use crate::limit::Limit;
use crate::on_failure::OnFailure;
use crate::over_admission::{LeasePolicy, LeaseTerms, NotLeased};

/// Rung that decides a limit, and the answer while that is impossible.
///
/// A [`Rung`] is a policy without an answer, an [`OnFailure`] one for limits that the store decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Policy {
    /// Rung that decides the limit.
    pub rung: Rung,
    /// The answer while a store shared with other nodes cannot be asked. `None`: no answer is
    /// declared, so there is none.
    pub on_failure: Option<OnFailure>,
}

impl Policy {
    /// The store decides, and no answer is declared for outages.
    pub const STRICT: Self = Self {
        rung: Rung::Strict,
        on_failure: None,
    };

    /// This process decides.
    pub const LOCAL: Self = Self {
        rung: Rung::Local,
        on_failure: None,
    };
}

impl From<Rung> for Policy {
    fn from(rung: Rung) -> Self {
        Self {
            rung,
            on_failure: None,
        }
    }
}

impl From<OnFailure> for Policy {
    fn from(answer: OnFailure) -> Self {
        Self {
            rung: Rung::Strict,
            on_failure: Some(answer),
        }
    }
}

/// Place where a limit is decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Rung {
    /// The store, for all processes that share it together.
    #[default]
    Strict,
    /// This process, in memory: each process has the whole limit to itself.
    Local,
    /// This process, from units that it charges in advance on the store; the store itself where that
    /// does not pay, or the limit cannot be leased.
    Leased(LeasePolicy),
    /// This process, from what the store had left when it was last asked; what it admits is charged on the
    /// store afterwards. The store itself where that does not pay, or the limit cannot be synced.
    Synced(LeasePolicy),
    /// This process, from its part of a limit that the nodes of a fleet share.
    Shares(SharesPolicy),
}

impl Rung {
    /// Its name in a rules file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Local => "local",
            Self::Leased(_) => "leased",
            Self::Synced(_) => "synced",
            Self::Shares(_) => "shares",
        }
    }

    /// Units by which all nodes together may exceed `limit` with calls of this cost; `None` if they cannot,
    /// or if the limit is one for each process.
    #[must_use]
    pub fn bound(self, limit: &Limit, cost: Option<Cost>) -> Option<NonZeroU64> {
        NonZeroU64::new(self.terms(limit, cost)?.ok()?.bound())
    }

    /// Terms of the lease or the sync of `limit` on this rung for calls that all have this cost; `None` on
    /// the other rungs.
    #[must_use]
    #[doc(hidden)]
    pub fn terms(self, limit: &Limit, cost: Option<Cost>) -> Option<Result<LeaseTerms, NotLeased>> {
        match self {
            Self::Strict | Self::Local | Self::Shares(_) => None,
            Self::Leased(policy) => Some(policy.terms(limit, cost)),
            Self::Synced(policy) => Some(policy.synced_terms(limit, cost)),
        }
    }
}
