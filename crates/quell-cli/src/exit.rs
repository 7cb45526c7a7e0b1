//! Exit: how the command ends, as scripts see it.

use std::error::Error;
use std::process::ExitCode;

use quell_host::rule_tests::SubjectError;
use quell_host::rule_versions::RuleStoreError;
use quell_server::ServeError;

/// Exit status of the command. The numbers are a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// All is well: 0.
    Fine = 0,
    /// Refused, or failed: 1.
    Failed = 1,
    /// Something on the command line is wrong: 2.
    Usage = 2,
    /// No answer came, so it is unknown whether it would be a refusal: 3.
    NoAnswer = 3,
}

impl Exit {
    /// Exit status of a command that failed for this reason.
    pub(crate) fn new(error: &anyhow::Error) -> Self {
        let is_store = |cause: &(dyn Error + 'static)| {
            matches!(
                cause.downcast_ref(),
                Some(RuleStoreError::NoAnswer(_) | RuleStoreError::Unknown(_))
            ) || matches!(
                cause.downcast_ref(),
                Some(ServeError::RulesStoreGone { .. })
            ) || matches!(cause.downcast_ref(), Some(SubjectError::Store { .. }))
        };
        if error.is::<Usage>() {
            Self::Usage
        } else if error.is::<NoAnswer>() || error.chain().any(is_store) {
            Self::NoAnswer
        } else {
            Self::Failed
        }
    }

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

/// The server or the store does not answer, or not to this caller. The text says what to do.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NoAnswer(pub(crate) String);

#[cfg(test)]
mod tests {
    use anyhow::{Context, anyhow};

    use super::*;

    #[test]
    fn a_failure_is_told_from_an_outage_through_every_context() {
        let gone = || RuleStoreError::NoAnswer("refused".to_owned());
        let read: Result<(), _> = Err(gone());
        let read = read.context("cannot read the rules").unwrap_err();
        for (error, exit) in [
            (anyhow!("no such rule"), Exit::Failed),
            (anyhow!(Usage("write a number".to_owned())), Exit::Usage),
            (anyhow!(NoAnswer("no way to it".to_owned())), Exit::NoAnswer),
            (read, Exit::NoAnswer),
            (
                anyhow::Error::new(gone()).context("cannot write"),
                Exit::NoAnswer,
            ),
        ] {
            assert_eq!(Exit::new(&error), exit, "{error:#}");
        }
    }
}
