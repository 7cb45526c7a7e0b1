//! Rules in the store, as versions that are added and never changed.
//!
//! The head is a number and a digest of the text. A push names the head that its text was made from, and
//! a script adds the version only if that is still the head: of two concurrent pushes one fails with a
//! conflict. All keys have one hash tag, so that the script sees them on a cluster too. They do not
//! expire: rules are not state.

use std::fmt;
use std::time::Duration;

use futures_util::future::try_join_all;
use redis::{Cmd, Value};
use sha2::{Digest, Sha256};

use crate::link::{Failure, Link};
use crate::script::PUSH_RULES;
use crate::url::StoreUrl;

mod read;

pub use read::{Entry, Version};

/// How many versions are kept; older ones are dropped as new ones come.
pub const KEPT_VERSIONS: u64 = 1_000;

/// What all keys begin with; the `1` is the version of this format.
const PREFIX: &str = "quell:rules:1:{book}:";

/// How long a call may take: no request waits for it.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Versions that are asked for at once when many are listed.
const MAX_CONCURRENT: usize = 50;

/// The rules in a store.
#[derive(Debug)]
pub struct RuleVersions {
    link: Link,
    url: StoreUrl,
}

/// The version that is in force, or should be: its number and a digest of its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    number: u64,
    digest: String,
}

/// A version that is not pushed yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft<'a> {
    /// The rules, as YAML.
    pub text: &'a str,
    /// Who pushes it.
    pub who: &'a str,
    /// What it changes, in a line.
    pub change: &'a str,
    /// Why, or nothing.
    pub note: &'a str,
}

/// What became of a push.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PushOutcome {
    /// The version was added, and is the head.
    Done(Head),
    /// Another push came first, and nothing was changed; this is the head now.
    Overtaken(Option<Head>),
}

/// Why the versions cannot be read or written. The text says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RuleVersionsError {
    /// The store does not answer, or refuses.
    #[error(transparent)]
    Store(#[from] Failure),
    /// A value in the store was not written by a push.
    #[error(
        "{key} {reason}: push the rules again (`quell rules push`), or an older version of them \
         (`quell rules rollback`)"
    )]
    Damaged {
        /// The key.
        key: String,
        /// What is wrong with it.
        reason: String,
    },
}

impl RuleVersionsError {
    fn damaged(key: &str, reason: &str) -> Self {
        Self::Damaged {
            key: key.to_owned(),
            reason: reason.to_owned(),
        }
    }
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
    fn of(number: u64, text: &str) -> Self {
        let digest = Sha256::digest(text.as_bytes());
        let digits = digest.iter().take(6).map(|byte| format!("{byte:02x}"));
        Self {
            number,
            digest: digits.collect(),
        }
    }

    fn parse(text: &str) -> Option<Self> {
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

impl RuleVersions {
    /// The versions in the store at `url`. Connects at the first call; needs a tokio runtime with time and I/O.
    #[must_use]
    pub fn new(url: StoreUrl) -> Self {
        Self {
            link: Link::new(&url, TIMEOUT),
            url,
        }
    }

    /// Where it is; shows no password.
    #[must_use]
    pub const fn url(&self) -> &StoreUrl {
        &self.url
    }

    /// The version that should be in force; `None` if nothing was ever pushed. One cheap command.
    ///
    /// # Errors
    /// [`RuleVersionsError`] if the store does not answer within five seconds, or has another value there.
    pub async fn head(&self) -> Result<Option<Head>, RuleVersionsError> {
        let key = head_key();
        match self.call(&key, redis::cmd("GET").arg(key.as_str())).await? {
            Value::Nil => Ok(None),
            value => {
                let head = read::text(&value).and_then(Head::parse);
                let damaged = || RuleVersionsError::damaged(&key, "does not name a version");
                head.map(Some).ok_or_else(damaged)
            }
        }
    }

    /// The version that should be in force, with its text.
    ///
    /// # Errors
    /// As [`RuleVersions::head`]; also if its text is gone or was changed.
    pub async fn latest(&self) -> Result<Option<Version>, RuleVersionsError> {
        let Some(head) = self.head().await? else {
            return Ok(None);
        };
        let reason = match self.version(head.number).await? {
            Some(version) if version.head() == &head => return Ok(Some(version)),
            None => {
                "is gone, although it is the newest version (was it evicted? rules need a database \
                 that evicts only keys that expire)"
            }
            Some(_) => read::OTHER_TEXT,
        };
        let key = version_key(head.number);
        Err(RuleVersionsError::damaged(&key, reason))
    }

    /// The version `number` with its text; `None` if there is none, or none any more.
    ///
    /// # Errors
    /// As [`RuleVersions::head`]; also if its text was changed.
    pub async fn version(&self, number: u64) -> Result<Option<Version>, RuleVersionsError> {
        let (key, value) = self.fields(number, &read::FIELDS).await?;
        Version::read(number, &key, &value)
    }

    /// The versions that are kept, without their texts, the newest first, at most `most`.
    ///
    /// # Errors
    /// As [`RuleVersions::head`].
    pub async fn history(&self, most: usize) -> Result<Vec<Entry>, RuleVersionsError> {
        let Some(head) = self.head().await? else {
            return Ok(Vec::new());
        };
        let oldest = head.number.saturating_sub(KEPT_VERSIONS).saturating_add(1);
        let numbers: Vec<u64> = (oldest.max(1)..=head.number).rev().take(most).collect();
        let mut entries = Vec::with_capacity(numbers.len());
        for numbers in numbers.chunks(MAX_CONCURRENT) {
            let asked = numbers.iter().map(|number| self.entry(*number));
            entries.extend(try_join_all(asked).await?.into_iter().flatten());
        }
        Ok(entries)
    }

    async fn entry(&self, number: u64) -> Result<Option<Entry>, RuleVersionsError> {
        let [without_text @ .., _] = &read::FIELDS;
        let (key, value) = self.fields(number, without_text).await?;
        Entry::read(number, &key, &value)
    }

    /// Fields of the version `number`, and the key that has them.
    async fn fields(
        &self,
        number: u64,
        names: &[&str],
    ) -> Result<(String, Value), RuleVersionsError> {
        let key = version_key(number);
        let get = redis::cmd("HMGET").arg(key.as_str()).arg(names).take();
        let value = self.call(&key, &get).await?;
        Ok((key, value))
    }

    /// Adds `draft` as the next version, if `from` is still the head. A push whose result is unknown may be
    /// repeated: it is not added twice.
    ///
    /// # Errors
    /// As [`RuleVersions::head`]; after [`Failure::Unknown`] it may be there.
    pub async fn push(
        &self,
        from: Option<&Head>,
        draft: &Draft<'_>,
    ) -> Result<PushOutcome, RuleVersionsError> {
        let number = from.map_or(0, Head::number).saturating_add(1);
        let next = Head::of(number, draft.text);
        let leaves = number.saturating_sub(KEPT_VERSIONS);
        let keys = [head_key(), version_key(number), version_key(leaves)].map(String::into_bytes);
        let arguments = [
            from.map(Head::to_string).unwrap_or_default(),
            next.to_string(),
            draft.who.to_owned(),
            draft.change.to_owned(),
            draft.note.to_owned(),
            draft.text.to_owned(),
        ]
        .map(String::into_bytes);
        let push = PUSH_RULES.command(&keys, &arguments);
        let answer = self.link.call(head_key().as_bytes(), push).await?;
        let stands = read::text(&answer).and_then(Head::parse);
        match stands {
            Some(head) if head == next => Ok(PushOutcome::Done(head)),
            other => Ok(PushOutcome::Overtaken(other)),
        }
    }

    async fn call(&self, key: &str, command: &Cmd) -> Result<Value, RuleVersionsError> {
        Ok(self.link.call(key.as_bytes(), command.into()).await?)
    }
}

fn head_key() -> String {
    format!("{PREFIX}head")
}

fn version_key(number: u64) -> String {
    format!("{PREFIX}{number}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_a_number_and_a_digest() {
        let head = Head::of(7, "domain: shop\n");
        assert_eq!(Head::parse(&head.to_string()), Some(head.clone()));
        assert_eq!(head.digest().len(), 12);
        assert_ne!(head.digest(), Head::of(7, "domain: shop").digest());
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
}
