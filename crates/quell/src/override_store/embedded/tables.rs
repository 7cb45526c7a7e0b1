//! The tables of the file.

use redb::{Database, ReadableDatabase as _, ReadableTable as _, TableDefinition};

use crate::override_store::{OverrideStoreError, Position};

/// Overrides as JSON, by key.
pub(super) const OVERRIDES: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("overrides");

/// Changes by revision, without gaps up to the newest: [`LogEntry`].
pub(super) const LOG: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("log");

/// What is known of the file itself.
const ABOUT: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("about");

/// Names in [`ABOUT`].
const FORMAT: &str = "format";
const IDENTITY: &str = "identity";

/// The format of this file: the tables above, and what is in them.
const FORMAT_1: &[u8] = b"1";

/// A change in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogEntry<'a> {
    /// A random number that the changes of one transaction share.
    pub(super) tag: u64,
    /// Whether the override was deleted.
    pub(super) is_deletion: bool,
    /// The key of the override.
    pub(super) key: &'a [u8],
}

impl<'a> LogEntry<'a> {
    pub(super) fn encode(self) -> Vec<u8> {
        let mut bytes = self.tag.to_le_bytes().to_vec();
        bytes.push(u8::from(self.is_deletion));
        bytes.extend_from_slice(self.key);
        bytes
    }

    pub(super) fn decode(bytes: &'a [u8]) -> Result<Self, redb::Error> {
        let entry = || {
            let (tag, rest) = bytes.split_first_chunk()?;
            let (is_deletion, key) = rest.split_first()?;
            Some(Self {
                tag: u64::from_le_bytes(*tag),
                is_deletion: *is_deletion != 0,
                key,
            })
        };
        entry().ok_or_else(|| damaged("an entry of the log"))
    }
}

/// The file has something in it that was not written by this module.
pub(super) fn damaged(what: &str) -> redb::Error {
    redb::Error::Corrupted(format!("{what} is damaged: restore the file from a backup"))
}

/// Makes the tables of a new file, and returns the position of the newest change.
pub(super) fn prepare(database: &Database) -> Result<Position, redb::Error> {
    let new = database.begin_write()?;
    {
        new.open_table(OVERRIDES)?;
        new.open_table(LOG)?;
        let mut about = new.open_table(ABOUT)?;
        let format = about.get(FORMAT)?.map(|format| format.value().to_vec());
        match format.as_deref() {
            None => {
                let identity = Position::random_identity().map_err(no_random_numbers)?;
                about.insert(IDENTITY, identity.as_bytes())?;
                about.insert(FORMAT, FORMAT_1)?;
            }
            Some(FORMAT_1) => {}
            Some(_) => {
                let reason = "the file was written by a later version of Quell".to_owned();
                return Err(redb::Error::Corrupted(reason));
            }
        }
    }
    new.commit()?;
    let read = database.begin_read()?;
    let identity = read.open_table(ABOUT)?.get(IDENTITY)?;
    let identity = identity.ok_or_else(|| damaged("the identity"))?;
    let identity = str::from_utf8(identity.value()).map_err(|_| damaged("the identity"))?;
    let position = Position::new(identity.into(), 0, 0);
    let log = read.open_table(LOG)?;
    match log.last()? {
        Some((revision, entry)) => {
            let entry = LogEntry::decode(entry.value())?;
            Ok(position.at(revision.value(), entry.tag))
        }
        None => Ok(position),
    }
}

/// This machine has no random numbers for what is to be written.
pub(super) fn no_random_numbers(error: OverrideStoreError) -> redb::Error {
    redb::Error::Io(std::io::Error::other(error))
}
