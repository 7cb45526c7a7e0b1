//! Policy: who decides on the keys of a rule, and what it answers while a shared store cannot tell.

use crate::on_failure::OnFailure;

/// Who decides on a limit, and what is answered while nobody can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Policy {
    /// Who decides.
    pub rung: Rung,
    /// What is answered while a store that is shared with other nodes cannot tell. `None`: nothing is
    /// declared, so there is no answer then.
    pub on_failure: Option<OnFailure>,
}

impl Policy {
    /// The store decides, and nothing is declared for when it cannot.
    pub const STRICT: Self = Self {
        rung: Rung::Strict,
        on_failure: None,
    };
}

/// Who decides on a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Rung {
    /// The store, for all processes that share it together.
    #[default]
    Strict,
    /// This process, in memory: each process has the whole limit to itself.
    Local,
}

impl Rung {
    /// Its name in a rules file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Local => "local",
        }
    }
}
