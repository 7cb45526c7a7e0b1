//! Keys and values of the overrides in etcd, and the checks of what is read.

use std::fmt::Write as _;

use etcd_client::KeyValue;
use prost::Message;
use quell::override_store::{OverrideId, OverrideStoreError, Position, StoredOverride, key};
use serde::{Deserialize, Serialize};

/// Names of keys.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    /// All of them begin so.
    prefix: String,
}

impl Keys {
    /// Below this prefix; the `1` is the version of the format.
    pub(super) fn new(prefix: &str) -> Self {
        let prefix = format!("{prefix}1/");
        Self { prefix }
    }

    pub(super) fn head(&self) -> String {
        format!("{}head", self.prefix)
    }

    /// The override with this key of its id; with none the first.
    pub(super) fn record(&self, key: &[u8]) -> Vec<u8> {
        [self.records().as_bytes(), key].concat()
    }

    /// All overrides.
    pub(super) fn records(&self) -> String {
        format!("{}o/", self.prefix)
    }

    /// The entries of the log that end with this revision.
    pub(super) fn log(&self, last: u64) -> String {
        format!("{}{last:020}", self.logs())
    }

    /// The whole log.
    pub(super) fn logs(&self) -> String {
        format!("{}l/", self.prefix)
    }

    /// A part of the batch with this tag.
    pub(super) fn part(&self, tag: u64, part: u32) -> String {
        format!("{}{part:05}", self.parts(tag))
    }

    /// All parts of it.
    pub(super) fn parts(&self, tag: u64) -> String {
        format!("{}b/{tag:016x}/", self.prefix)
    }
}

/// The first key after all that begin so.
pub(super) fn end_of(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if let Some(next) = last.checked_add(1) {
            end.push(next);
            break;
        }
    }
    end
}

/// The head: how far the store is. JSON, so that people can read it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct Head {
    /// Random text that was made with the store; empty if there is no head.
    pub(super) identity: String,
    /// The newest revision that can be read.
    pub(super) revision: u64,
    /// The tag of that change.
    pub(super) tag: u64,
    /// A batch that is decided, and not made to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) batch: Option<BatchHead>,
}

/// The part of a batch that is made.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct BatchHead {
    /// The tag of its changes.
    pub(super) tag: u64,
    /// Number of its parts.
    pub(super) parts: u32,
    /// The part that is made next, from 0.
    pub(super) part: u32,
    /// Changes of that part that are made.
    pub(super) made: u32,
    /// The revision of the last change that is made.
    pub(super) revision: u64,
}

/// A head, and the value that it was read from: a transaction compares it, and it is never the same twice.
#[derive(Clone, Debug, Default)]
pub(super) struct SeenHead {
    pub(super) head: Head,
    /// `None` if there is none.
    pub(super) value: Option<Vec<u8>>,
}

impl SeenHead {
    pub(super) fn read(kvs: Vec<KeyValue>) -> Result<Self, OverrideStoreError> {
        let Some(kv) = kvs.into_iter().next() else {
            return Ok(Self::default());
        };
        let head: Result<Head, _> = serde_json::from_slice(kv.value());
        let head = head.map_err(|error| unreadable(kv.key(), &error))?;
        // A follower writes down its position, and reads it again.
        if Position::parse(&head.position().to_string()).is_none() || head.identity.is_empty() {
            return Err(unreadable(kv.key(), &"its identity is none"));
        }
        let value = Some(kv.value().to_vec());
        Ok(Self { head, value })
    }

    pub(super) fn new(head: Head) -> Self {
        // Writing to memory does not fail.
        let value = serde_json::to_vec(&head).unwrap_or_default();
        Self {
            head,
            value: Some(value),
        }
    }
}

impl Head {
    pub(super) fn position(&self) -> Position {
        Position::new(self.identity.as_str().into(), self.revision, self.tag)
    }
}

/// Consecutive entries of the log, which one transaction wrote.
#[derive(Clone, PartialEq, Message)]
pub(super) struct LogChunk {
    /// The revision of the first.
    #[prost(uint64, tag = "1")]
    pub(super) first: u64,
    /// The tag of all.
    #[prost(fixed64, tag = "2")]
    pub(super) tag: u64,
    #[prost(message, repeated, tag = "3")]
    pub(super) entries: Vec<LogEntry>,
}

/// A change that was made.
#[derive(Clone, PartialEq, Message)]
pub(super) struct LogEntry {
    /// The key of the override.
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bool, tag = "2")]
    pub(super) is_deletion: bool,
}

impl LogChunk {
    /// Reads an entry of etcd that is in order.
    fn read(keys: &Keys, kv: &KeyValue) -> Result<Self, OverrideStoreError> {
        let chunk = Self::decode(kv.value()).map_err(|error| unreadable(kv.key(), &error))?;
        let is_named = chunk.first > 0
            && !chunk.entries.is_empty()
            && keys.log(chunk.last()).as_bytes() == kv.key();
        if !is_named {
            return Err(unreadable(
                kv.key(),
                &"its revisions are not those of its key",
            ));
        }
        Ok(chunk)
    }

    /// Reads entries of etcd up to this revision. Those after it were never written by an override.
    pub(super) fn read_all<'a>(
        keys: &'a Keys,
        kvs: &'a [KeyValue],
        newest: u64,
    ) -> impl Iterator<Item = Result<Self, OverrideStoreError>> + 'a {
        let end = keys.log(newest);
        let known = kvs.iter().take_while(move |kv| kv.key() <= end.as_bytes());
        known.map(|kv| Self::read(keys, kv))
    }

    /// The revision of the last entry.
    pub(super) fn last(&self) -> u64 {
        self.first
            .saturating_add(self.entries.len() as u64)
            .saturating_sub(1)
    }

    /// The entries with their revisions.
    pub(super) fn revisions(&self) -> impl Iterator<Item = (u64, &LogEntry)> {
        (self.first..).zip(&self.entries)
    }
}

/// A part of a batch that waits for its decision, or to be made.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Part {
    #[prost(message, repeated, tag = "1")]
    pub(super) changes: Vec<StagedChange>,
}

/// A change of one override.
#[derive(Clone, PartialEq, Message)]
pub(super) struct StagedChange {
    /// The key of the override.
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    /// The JSON after the revision; none for a deletion.
    #[prost(string, optional, tag = "2")]
    pub(super) tail: Option<String>,
}

impl StagedChange {
    /// Bytes that it needs in a transaction which makes it: the key stands in the log, too.
    pub(super) fn bytes(&self) -> usize {
        2 * self.key.len() + self.tail.as_ref().map_or(0, String::len) + 64
    }
}

/// The override in an entry of etcd, with the key of this id.
pub(super) fn stored(kv: &KeyValue, id_key: &[u8]) -> Result<StoredOverride, OverrideStoreError> {
    let stored = StoredOverride::from_json(kv.value());
    let stored = stored.map_err(|error| unreadable(kv.key(), &error))?;
    if key::encode(&stored.id) == id_key {
        return Ok(stored);
    }
    let what = printable(kv.key());
    Err(OverrideStoreError::damaged(what, "is another override"))
}

/// The id of a key that stands in the log, in the chunk that ends with this revision.
pub(super) fn id_of(
    keys: &Keys,
    entry: &LogEntry,
    last: u64,
) -> Result<OverrideId, OverrideStoreError> {
    let id = key::decode(&entry.key);
    id.ok_or_else(|| unreadable(keys.log(last).as_bytes(), &"it names no override"))
}

pub(super) fn unreadable(key: &[u8], error: &impl ToString) -> OverrideStoreError {
    let reason = format!("cannot be read ({})", error.to_string());
    OverrideStoreError::damaged(printable(key), reason)
}

/// A key as text, on one line.
fn printable(key: &[u8]) -> String {
    let mut text = String::new();
    for c in String::from_utf8_lossy(key).chars() {
        if c.is_control() {
            // Writing to memory does not fail.
            write!(text, "{}", c.escape_default()).ok();
        } else {
            text.push(c);
        }
    }
    text
}
