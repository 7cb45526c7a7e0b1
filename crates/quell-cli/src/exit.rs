//! Exit: how the command ends, as scripts see it.

use std::process::ExitCode;

/// How the command ended. The numbers are a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// All is well: 0.
    Fine,
    /// Refused, or failed: 1.
    Failed,
    /// Something was said that cannot be meant: 2.
    Usage,
}

impl Exit {
    /// [`Exit::Fine`] if `fine`, else [`Exit::Failed`].
    pub(crate) const fn fine_if(fine: bool) -> Self {
        if fine { Self::Fine } else { Self::Failed }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Fine => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
        })
    }
}

/// Something was said, on the command line, in the environment or in a configuration file, that
/// cannot be meant. The text says what to write.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}
