//! Rules in Redis: a [`RuleStore`] of keys with one hash tag.
//!
//! A script adds a version only if the head is still the one that it was made from. It sees all keys on a
//! cluster too, because of the tag. They do not expire: rules are not state.

use std::time::Duration;

use crate::resp::{Cmd, Value, cmd};
use futures_util::future::try_join_all;
use quell::rule_store::{
    Draft, Entry, Head, KEPT_BYTES, PushOutcome, Reply, RuleStore, RuleStoreError, Version,
};

use crate::link::{Failure, Link};
use crate::script::PUSH_RULES;
use crate::url::StoreUrl;

mod read;

/// Number of versions that are kept; older ones are dropped as new ones come.
const KEPT: u64 = 1_000;

/// Prefix of all keys; the `1` is the version of this format.
const PREFIX: &str = "quell:rules:1:{book}:";

/// Time that a call may take: no request waits for it.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Versions that are asked for at once when many are listed.
const MAX_CONCURRENT: usize = 50;

/// The rules in a Redis. It keeps 1,000 versions, or [`KEPT_BYTES`] of them, and does not tell of changes: who follows asks for the
/// head, which is one cheap command.
#[derive(Debug)]
pub struct RedisRules {
    link: Link,
    /// Without the password.
    url: String,
    kept_bytes: u64,
}

impl From<Failure> for RuleStoreError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Unknown(_) => Self::Unknown(failure.to_string()),
            _ => Self::NoAnswer(failure.to_string()),
        }
    }
}

impl RedisRules {
    /// The rules in the Redis at `url`. Connects at the first call; needs a tokio runtime with time and I/O.
    #[must_use]
    pub fn new(url: &StoreUrl) -> Self {
        Self {
            link: Link::new(url, TIMEOUT),
            url: url.to_string(),
            kept_bytes: KEPT_BYTES,
        }
    }

    /// The same, with calls that may take so long: [`new`](Self::new) gives them 5 s.
    #[must_use]
    pub fn with_timeout(url: &StoreUrl, timeout: Duration) -> Self {
        Self {
            link: Link::new(url, timeout),
            ..Self::new(url)
        }
    }

    /// The same with at most so many bytes of texts. Default: [`KEPT_BYTES`].
    #[must_use]
    pub const fn with_kept_bytes(mut self, bytes: u64) -> Self {
        self.kept_bytes = bytes;
        self
    }

    async fn entry(&self, number: u64) -> Result<Option<Entry>, RuleStoreError> {
        let [without_text @ .., _] = &read::FIELDS;
        let (key, value) = self.fields(number, without_text).await?;
        read::entry(number, &key, &value)
    }

    /// Fields of the version `number`, and the key that has them.
    async fn fields(&self, number: u64, names: &[&str]) -> Result<(String, Value), RuleStoreError> {
        let key = version_key(number);
        let get = cmd("HMGET").arg(key.as_str()).arg(names).take();
        let value = self.call(&key, &get).await?;
        if matches!(value, Value::Array(_)) {
            return Ok((key, value));
        }
        self.give_up(&key);
        Err(RuleStoreError::damaged(&*key, "was answered by no list"))
    }

    /// Gives the connection up: perhaps an answer on it was lost or damaged, and each one since then is that of another
    /// command.
    fn give_up(&self, key: &str) {
        self.link.hang_up(&self.link.endpoint_of(key.as_bytes()));
    }

    async fn call(&self, key: &str, command: &Cmd) -> Result<Value, RuleStoreError> {
        let answer = self.link.call_or_hang_up(key.as_bytes(), command.into());
        Ok(answer.await?)
    }
}

impl RuleStore for RedisRules {
    fn url(&self) -> &str {
        &self.url
    }

    fn kept(&self) -> u64 {
        KEPT
    }

    fn head(&self) -> Reply<'_, Option<Head>> {
        Box::pin(async {
            let key = head_key();
            match self.call(&key, cmd("GET").arg(key.as_str())).await? {
                Value::Nil => Ok(None),
                value => {
                    let head = read::text(&value).and_then(Head::parse);
                    let damaged = || {
                        self.give_up(&key);
                        RuleStoreError::damaged(&*key, "does not name a version")
                    };
                    head.map(Some).ok_or_else(damaged)
                }
            }
        })
    }

    fn version(&self, number: u64) -> Reply<'_, Option<Version>> {
        Box::pin(async move {
            let (key, value) = self.fields(number, &read::FIELDS).await?;
            read::version(number, &key, &value)
        })
    }

    fn history(&self, most: usize) -> Reply<'_, Vec<Entry>> {
        Box::pin(async move {
            let Some(head) = self.head().await? else {
                return Ok(Vec::new());
            };
            let oldest = head.number().saturating_sub(KEPT).saturating_add(1);
            let numbers: Vec<u64> = (oldest.max(1)..=head.number()).rev().take(most).collect();
            let mut entries = Vec::with_capacity(numbers.len());
            for numbers in numbers.chunks(MAX_CONCURRENT) {
                let asked = numbers.iter().map(|number| self.entry(*number));
                entries.extend(try_join_all(asked).await?.into_iter().flatten());
            }
            Ok(entries)
        })
    }

    fn push<'a>(&'a self, from: Option<&'a Head>, draft: Draft<'a>) -> Reply<'a, PushOutcome> {
        Box::pin(async move {
            let next = Head::after(from, draft.text);
            let number = next.number();
            let oldest = number.saturating_sub(KEPT);
            let kept = (oldest..=number).rev().map(version_key);
            let keys: Vec<_> = [head_key()].into_iter().chain(kept).collect();
            let keys: Vec<_> = keys.into_iter().map(String::into_bytes).collect();
            let arguments = [
                from.map(Head::to_string).unwrap_or_default(),
                next.to_string(),
                draft.who.to_owned(),
                draft.change.to_owned(),
                draft.note.to_owned(),
                draft.text.to_owned(),
                KEPT.to_string(),
                self.kept_bytes.to_string(),
            ]
            .map(String::into_bytes);
            let push = PUSH_RULES.command(&keys, &arguments);
            let key = head_key();
            let answer = self.link.call_or_hang_up(key.as_bytes(), push).await?;
            match read::text(&answer).and_then(Head::parse) {
                Some(head) if head == next => Ok(PushOutcome::Done(head)),
                other => Ok(PushOutcome::Overtaken(other)),
            }
        })
    }
}

fn head_key() -> String {
    format!("{PREFIX}head")
}

fn version_key(number: u64) -> String {
    format!("{PREFIX}{number}")
}
