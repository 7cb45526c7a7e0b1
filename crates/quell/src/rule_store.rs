//! Rule store: where the rules of many processes are kept, as versions that are added and never changed
//! (feature `rule-store`).
//!
//! The head is a number and a digest of the text. A push names the head that its text was made from, and
//! adds a version only if that is still the head: of two pushes at once one is overtaken. A rollback
//! pushes an older text again, so no version is ever lost by one.
//!
//! Processes follow the head: [`RuleStore::wait`] returns when it may be another one. It is only a wake-up,
//! so nothing is lost if it comes late or for nothing; what counts is [`RuleStore::head`].

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use sha2::{Digest, Sha256};

mod directory;

pub use directory::DirectoryRules;

/// Time for which [`RuleStore::wait`] waits before the head is read again, in a store that does not
/// announce changes: people can wait for a second, and a thousand processes send a thousand cheap calls a
/// second.
pub const POLL: Duration = Duration::from_secs(1);

/// Bytes of texts that a store keeps: older versions are dropped as new ones come, but never the newest and
/// the one before, to which a rollback goes. Ten thousand tenants with a number each are 0.65 MB of text,
/// so a hundred versions of that are kept, and a small Redis has room for them.
pub const KEPT_BYTES: u64 = 64 * 1_024 * 1_024;

/// The most characters of a name or a note that are read.
const LONGEST: usize = 1_000;

/// Future of a call to a rule store.
pub type Reply<'a, T> = Pin<Box<dyn Future<Output = Result<T, RuleStoreError>> + Send + 'a>>;

/// A wait for another head.
pub type Waiting<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// The rules of many processes, as versions. Calls need a tokio runtime with time and I/O, and take some
/// seconds at most.
pub trait RuleStore: fmt::Debug + Send + Sync {
    /// URL of the store; shows no password.
    fn url(&self) -> &str;

    /// Returns true if versions come from elsewhere, so that none can be pushed here and no command reads
    /// them.
    fn is_read_only(&self) -> bool {
        false
    }

    /// Greatest number of versions that the store keeps; older ones are dropped as new ones come, and
    /// earlier if their texts are larger than [`KEPT_BYTES`] together.
    fn kept(&self) -> u64;

    /// The version that should be in force; `None` if nothing was ever pushed. One cheap call.
    fn head(&self) -> Reply<'_, Option<Head>>;

    /// The version `number` with its text; `None` if there is none, or none any more. An error if its text
    /// was changed.
    fn version(&self, number: u64) -> Reply<'_, Option<Version>>;

    /// The versions that are kept, without their texts, the newest first, at most `most`.
    fn history(&self, most: usize) -> Reply<'_, Vec<Entry>>;

    /// Adds `draft` as the next version, if `from` is still the head. A push whose result is unknown may be
    /// repeated: it is not added twice.
    fn push<'a>(&'a self, from: Option<&'a Head>, draft: Draft<'a>) -> Reply<'a, PushOutcome>;

    /// Returns when there may be another head than `seen`, at once if there is; also without a reason, so
    /// who finds nothing new lets [`POLL`] pass. A store that tells of no changes does that itself.
    fn wait<'a>(&'a self, seen: Option<&'a Head>) -> Waiting<'a> {
        let _ = seen;
        Box::pin(tokio::time::sleep(POLL))
    }

    /// Tells the store which version is in force here, and why the newest is not. Most stores do not keep
    /// that.
    fn note(&self, in_force: Option<&Head>, refused: Option<&str>) {
        let _ = (in_force, refused);
    }

    /// Advice on bringing rules into a store that has none.
    fn advice(&self) -> String {
        format!("`quell rules push --store {} FILE` brings some", self.url())
    }

    /// The version that should be in force, with its text. An error also if its text is gone.
    fn latest(&self) -> Reply<'_, Option<Version>> {
        Box::pin(async move {
            let Some(head) = self.head().await? else {
                return Ok(None);
            };
            let reason = match self.version(head.number).await? {
                Some(version) if version.head() == &head => return Ok(Some(version)),
                None => {
                    "is gone, although it is the newest version (was it evicted? rules need a database \
                     that evicts only keys that expire)"
                }
                Some(_) => OTHER_TEXT,
            };
            let name = format!("version {} in {}", head.number, self.url());
            Err(RuleStoreError::damaged(name, reason))
        })
    }
}

/// Damage of a version whose text is not that of its digest.
const OTHER_TEXT: &str = "is another text than the one that was pushed";

/// Versions that are to go, of a list with the newest first and the bytes of their texts: for at most
/// `most` to stay, of `most_bytes` together.
#[must_use]
pub fn leaving(
    versions: impl IntoIterator<Item = (u64, u64)>,
    most: u64,
    most_bytes: u64,
) -> Vec<u64> {
    let mut room = most_bytes;
    let mut leaving = Vec::new();
    for (place, (number, bytes)) in (0..).zip(versions) {
        let fits = leaving.is_empty() && bytes <= room;
        room = room.saturating_sub(bytes);
        if place >= most || (place >= 2 && !fits) {
            leaving.push(number);
        }
    }
    leaving
}

/// The version that is in force, or should be: its number and a digest of its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    number: u64,
    digest: String,
}

/// A version that is not pushed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draft<'a> {
    /// The rules, as YAML.
    pub text: &'a str,
    /// Author of the push.
    pub who: &'a str,
    /// Change in one line.
    pub change: &'a str,
    /// Note on the reason, or empty.
    pub note: &'a str,
}

/// Result of a push.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PushOutcome {
    /// The version was added, and is the head.
    Done(Head),
    /// Another push came first, and nothing was changed; this is the head now.
    Overtaken(Option<Head>),
}

/// A version without its text.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// Its number and the digest of its text.
    pub head: Head,
    /// Time of the push, in milliseconds since 1970, by the clock of the store, or of the pushing process
    /// if the store has none; 0 if that is not known.
    pub at_ms: u64,
    /// Author of the push. One line, without control characters.
    pub who: String,
    /// Change in one line.
    pub change: String,
    /// Note on the reason, or empty; one line.
    pub note: String,
}

/// A version with its text, which is the one that was pushed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Version {
    /// Everything but the text.
    pub entry: Entry,
    /// The rules, as YAML.
    pub text: String,
}

/// Reason why the versions cannot be read or written. The text says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RuleStoreError {
    /// The store does not answer, or refuses. Nothing was pushed.
    #[error("{0}")]
    NoAnswer(String),
    /// The store did not answer a push, which it may have made.
    #[error("{0}")]
    Unknown(String),
    /// The store cannot take this push, now or later.
    #[error("{0}")]
    Unfit(String),
    /// The store holds something that no push has written.
    #[error(
        "{what} {reason}: push the rules again (`quell rules push`), or an older version of them \
         (`quell rules rollback`)"
    )]
    Damaged {
        /// The key, or the version.
        what: String,
        /// Reason why it is damaged.
        reason: String,
    },
}

impl RuleStoreError {
    /// Error for damage to `what`.
    pub fn damaged(what: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Damaged {
            what: what.into(),
            reason: reason.into(),
        }
    }
}

/// The SHA-256 of a text, as 64 hexadecimal digits: nobody finds two texts with the same.
#[must_use]
pub fn text_digest(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Head {
    /// The first version is 1.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// The first twelve hexadecimal digits of the SHA-256 of the text.
    #[must_use]
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// The head that `text` is under `number`.
    #[must_use]
    pub fn new(number: u64, text: &str) -> Self {
        let mut digest = text_digest(text);
        digest.truncate(12);
        Self { number, digest }
    }

    /// The head that the push of `text` makes, in place of `from`.
    #[must_use]
    pub fn after(from: Option<&Self>, text: &str) -> Self {
        Self::new(from.map_or(0, Self::number).saturating_add(1), text)
    }

    /// Reads what `Display` writes.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (number, digest) = text.split_once(' ')?;
        let number = number.parse().ok().filter(|number| *number > 0)?;
        let is_digit = |c: char| matches!(c, '0'..='9' | 'a'..='f');
        (digest.len() == 12 && digest.chars().all(is_digit)).then(|| Self {
            number,
            digest: digest.to_owned(),
        })
    }
}

/// As it is stored: `7 1f2e3d4c5b6a`.
impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.number, self.digest)
    }
}

impl Entry {
    /// Version that `draft` becomes when it is pushed. Names and notes become lines, for comments, logs and
    /// tables.
    #[must_use]
    pub fn new(head: Head, at_ms: u64, draft: &Draft<'_>) -> Self {
        Self {
            head,
            at_ms,
            who: line(draft.who),
            change: line(draft.change),
            note: line(draft.note),
        }
    }
}

impl Version {
    /// A version that was read as `what`, if `text` is the one that was pushed.
    ///
    /// # Errors
    /// [`RuleStoreError::Damaged`].
    pub fn new(entry: Entry, text: String, what: &str) -> Result<Self, RuleStoreError> {
        if Head::new(entry.head.number, &text) != entry.head {
            return Err(RuleStoreError::damaged(what, OTHER_TEXT));
        }
        Ok(Self { entry, text })
    }

    /// Version `number` with the contents of `draft`.
    #[must_use]
    pub fn from_draft(number: u64, at_ms: u64, draft: &Draft<'_>) -> Self {
        Self {
            entry: Entry::new(Head::new(number, draft.text), at_ms, draft),
            text: draft.text.to_owned(),
        }
    }

    /// Its number and the digest of its text.
    #[must_use]
    pub const fn head(&self) -> &Head {
        &self.entry.head
    }

    /// Its number.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.entry.head.number()
    }
}

/// `text` as one line.
fn line(text: &str) -> String {
    let ends_line = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}');
    let shown = |c: char| if ends_line(c) { ' ' } else { c };
    text.chars().take(LONGEST).map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_a_number_and_a_digest() {
        let head = Head::new(7, "domain: shop\n");
        assert_eq!(Head::parse(&head.to_string()), Some(head.clone()));
        assert_eq!(head.digest().len(), 12);
        assert_ne!(head.digest(), Head::new(7, "domain: shop").digest());
        for text in [
            "",
            "7",
            "0 1f2e3d4c5b6a",
            "7 1F2E3D4C5B6A",
            "7 1f",
            "x 1f2e3d4c5b6a",
            "7  1f2e3d4c5b6a",
        ] {
            assert_eq!(Head::parse(text), None, "{text}");
        }
    }

    #[test]
    fn the_oldest_leave_until_the_others_fit() {
        let of = |sizes: &[u64], most| leaving((1..=9).rev().zip(sizes.iter().copied()), most, 10);
        assert_eq!(of(&[3, 3, 3, 1], 9), [0; 0]);
        assert_eq!(of(&[3, 3, 3, 2, 1], 9), [6, 5], "no gap is left");
        assert_eq!(of(&[30, 30, 1, 1], 9), [7, 6], "two stay");
        assert_eq!(of(&[1, 1, 1, 1], 3), [6]);
    }

    #[test]
    fn a_version_is_the_text_that_was_pushed_and_lines() {
        let draft = Draft {
            text: "domain: d",
            who: "ann\nrules: []",
            change: "c\u{2028}d",
            note: "",
        };
        let entry = Entry::new(Head::after(None, draft.text), 17, &draft);
        assert_eq!((entry.head.number(), &*entry.who), (1, "ann rules: []"));
        assert_eq!(entry.change, "c d");
        let version = Version::new(entry.clone(), "domain: d".to_owned(), "k").unwrap();
        assert_eq!(version.number(), 1);
        let error = Version::new(entry, "domain: e".to_owned(), "k").unwrap_err();
        assert!(
            error.to_string().starts_with("k is another text"),
            "{error}"
        );
    }
}
