//! Exit: how the command ends, as scripts see it.

use std::process::ExitCode;

/// How the command ended. The numbers are a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// All is well: 0.
    Fine = 0,
    /// Refused, or failed: 1.
    Failed = 1,
    /// Something on the command line is wrong: 2.
    Usage = 2,
}

impl Exit {
    /// [`Exit::Fine`] if `fine`, else [`Exit::Failed`].
    pub(crate) const fn fine_if(fine: bool) -> Self {
        if fine { Self::Fine } else { Self::Failed }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// An argument, a variable or a configuration file is wrong. The text says what to write.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) String);
