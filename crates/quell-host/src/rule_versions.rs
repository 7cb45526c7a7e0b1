//! Rule versions: the versions of the rules in a store, as commands read them.

use std::sync::Arc;

use quell::rule_store::RuleStore;
pub use quell::rule_store::{Entry, RuleStoreError, Version};

use crate::newest_rules::Newest;

/// The versions of the rules in a store. Calls need a tokio runtime.
#[derive(Clone, Debug)]
pub struct RuleVersions {
    pub(crate) store: Arc<dyn RuleStore>,
}

/// Reason why versions cannot be read or written. The text says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RuleVersionsError {
    /// They cannot be read.
    #[error("cannot read the rules in {url}")]
    Read {
        /// URL of the store; shows no password.
        url: String,
        /// Cause.
        source: RuleStoreError,
    },
    /// None can be added.
    #[error("cannot write the rules to {url}")]
    Write {
        /// URL of the store; shows no password.
        url: String,
        /// Cause.
        source: RuleStoreError,
    },
    /// A push was not answered.
    #[error(
        "it is unknown whether {url} has the new version: run the command again, a version is not added twice"
    )]
    Unknown {
        /// URL of the store; shows no password.
        url: String,
        /// Cause, as far as it is known.
        source: RuleStoreError,
    },
    /// There is no such version.
    #[error("{url} has no version {number}: `quell rules history` lists those that are kept")]
    NoVersion {
        /// URL of the store; shows no password.
        url: String,
        /// The version that is meant.
        number: u64,
    },
    /// There is no version at all.
    #[error("{0} has no rules yet: `quell rules push FILE` brings some")]
    NoRules(String),
}

impl RuleVersions {
    /// Those in this store.
    #[must_use]
    pub fn new(store: Arc<dyn RuleStore>) -> Self {
        Self { store }
    }

    /// The URL of the store; shows no password.
    #[must_use]
    pub fn url(&self) -> &str {
        self.store.url()
    }

    /// The version that is meant: the newest, or `number`.
    ///
    /// # Errors
    /// [`RuleVersionsError`]; also if there is none.
    pub async fn version(&self, number: Option<u64>) -> Result<Version, RuleVersionsError> {
        let found = match number {
            Some(number) => self.store.version(number).await,
            None => self.store.latest().await,
        };
        let found = found.map_err(|source| self.unreadable(source))?;
        let url = || self.url().to_owned();
        found.ok_or_else(|| match number {
            Some(number) => RuleVersionsError::NoVersion { url: url(), number },
            None => RuleVersionsError::NoRules(url()),
        })
    }

    /// The versions that are kept, the newest first, at most `most`.
    ///
    /// # Errors
    /// [`RuleVersionsError::Read`].
    pub async fn history(&self, most: usize) -> Result<Vec<Entry>, RuleVersionsError> {
        let entries = self.store.history(most).await;
        entries.map_err(|source| self.unreadable(source))
    }

    /// The newest version, whatever its state.
    pub(crate) async fn newest(&self) -> Result<Newest, RuleVersionsError> {
        let newest = Newest::read(&*self.store).await;
        newest.map_err(|source| self.unreadable(source))
    }

    fn unreadable(&self, source: RuleStoreError) -> RuleVersionsError {
        let url = self.url().to_owned();
        RuleVersionsError::Read { url, source }
    }
}
