//! How far a store, or a follower of it, is.

use std::fmt;
use std::sync::Arc;

use super::OverrideStoreError;

/// A change in the history of a store: up to it, and with it, a follower has seen everything.
///
/// A revision alone would not do. A store that was emptied has another identity; one that was restored from a
/// backup, or failed over to a replica that lacked the last writes, gives the same revisions to other changes,
/// and these have other tags.
///
/// ```
/// use quell::override_store::Position;
/// let position = Position::new("3f2a".into(), 17, 99);
/// assert_eq!(position.to_string(), "17-99-3f2a");
/// assert_eq!(Position::parse("17-99-3f2a"), Some(position));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    identity: Arc<str>,
    revision: u64,
    tag: u64,
}

impl Position {
    /// The change `revision` of the store with this identity. The tag is a random number that the change was
    /// written with; 0 before the first change.
    #[must_use]
    pub const fn new(identity: Arc<str>, revision: u64, tag: u64) -> Self {
        Self {
            identity,
            revision,
            tag,
        }
    }

    /// Random text that was made with the store; empty if nothing was ever written to it.
    #[must_use]
    pub const fn identity(&self) -> &Arc<str> {
        &self.identity
    }

    /// The revision of the change; 0 before the first one.
    #[must_use]
    pub const fn revision(&self) -> u64 {
        self.revision
    }

    /// The tag of the change.
    #[must_use]
    pub const fn tag(&self) -> u64 {
        self.tag
    }

    /// The position of another change of the same store.
    #[must_use]
    pub fn at(&self, revision: u64, tag: u64) -> Self {
        Self::new(Arc::clone(&self.identity), revision, tag)
    }

    /// A tag for the changes of a transaction.
    ///
    /// # Errors
    /// If this machine has no random numbers.
    pub fn random_tag() -> Result<u64, OverrideStoreError> {
        let random = getrandom::u64();
        random.map_err(|error| OverrideStoreError::NoAnswer(format!("no random numbers: {error}")))
    }

    /// An identity for a new store: 32 hexadecimal digits.
    ///
    /// # Errors
    /// As of [`random_tag`](Self::random_tag).
    pub fn random_identity() -> Result<Arc<str>, OverrideStoreError> {
        let (high, low) = (Self::random_tag()?, Self::random_tag()?);
        Ok(format!("{high:016x}{low:016x}").into())
    }

    /// Reads what `Display` writes.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, '-');
        let revision = parts.next()?.parse().ok()?;
        let tag = parts.next()?.parse().ok()?;
        let identity = parts.next()?;
        let is_known = identity.len() <= 64 && identity.bytes().all(|b| b.is_ascii_alphanumeric());
        is_known.then(|| Self::new(identity.into(), revision, tag))
    }
}

/// As a follower writes it down: `17-99-3f2a`.
impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.revision, self.tag, self.identity)
    }
}
