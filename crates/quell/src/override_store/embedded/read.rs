//! Reads overrides and changes of one snapshot.

use quell_core::time::Wall;
use redb::{ReadTransaction, ReadableTable as _};

use super::tables::{LOG, LogEntry, OVERRIDES, damaged};
use crate::override_store::json;
use crate::override_store::key::{self, Scope, Step};
use crate::override_store::{
    AppliedChange, Changes, Cursor, MAX_OVERRIDE_PAGE, MAX_OVERRIDE_PAGE_BYTES, OverrideFilter,
    Page, Position, StoredOverride,
};

/// The most overrides that a call looks at, whether they are of its list or not: some 20 ms.
const MAX_LOOKS: usize = 10_000;

/// The overrides that a list has.
#[derive(Clone, Debug)]
pub(super) enum Selection {
    /// All of them.
    All,
    /// Those that a filter lets pass.
    Of(OverrideFilter),
    /// Those whose time ended before an instant.
    Ended(Wall),
}

impl Selection {
    const fn filter(&self) -> Option<&OverrideFilter> {
        match self {
            Self::Of(filter) => Some(filter),
            Self::All | Self::Ended(_) => None,
        }
    }

    fn matches(&self, stored: &StoredOverride) -> bool {
        match self {
            Self::All => true,
            Self::Of(filter) => filter.matches(stored),
            Self::Ended(before) => stored.until.is_some_and(|until| until < *before),
        }
    }
}

/// The override with this key.
pub(super) fn get(
    database: &ReadTransaction,
    key: &[u8],
) -> Result<Option<StoredOverride>, redb::Error> {
    let table = database.open_table(OVERRIDES)?;
    let stored = table.get(key)?;
    stored.map(|stored| record(stored.value())).transpose()
}

/// A page of a list that goes on after this key.
pub(super) fn page(
    database: &ReadTransaction,
    selection: &Selection,
    after: Option<Vec<u8>>,
    most: usize,
) -> Result<Page, redb::Error> {
    let table = database.open_table(OVERRIDES)?;
    let most = most.clamp(1, MAX_OVERRIDE_PAGE);
    let scope = Scope::new(selection.filter());
    let mut page = Page::default();
    let (mut from, mut last) = (scope.start(after), Vec::new());
    let (mut looks, mut bytes) = (0, 0);
    'seek: loop {
        for item in table.range(from.as_slice()..)? {
            let (key, stored) = item?;
            let step = scope.step(key.value());
            if step == Step::End {
                return Ok(page);
            }
            let is_full = page.overrides.len() == most || bytes >= MAX_OVERRIDE_PAGE_BYTES;
            if is_full || looks == MAX_LOOKS {
                page.next = Some(Cursor::from_bytes(&last));
                return Ok(page);
            }
            looks += 1;
            last = key.value().to_vec();
            if let Step::Seek(target) = step {
                from = target;
                continue 'seek;
            }
            let json = stored.value();
            let stored = record(json)?;
            if selection.matches(&stored) {
                bytes += json.len();
                page.overrides.push(stored);
            }
        }
        return Ok(page);
    }
}

/// The changes after a position, which is of this store and not after its newest.
pub(super) fn changes(
    database: &ReadTransaction,
    since: &Position,
    most: usize,
) -> Result<Changes, redb::Error> {
    let (overrides, log) = (database.open_table(OVERRIDES)?, database.open_table(LOG)?);
    let newest = log.last()?.map_or(0, |(revision, _)| revision.value());
    let is_known = match since.revision() {
        0 => newest == 0 || log.get(1)?.is_some(),
        revision => match log.get(revision)? {
            Some(entry) => LogEntry::decode(entry.value())?.tag == since.tag(),
            None => false,
        },
    };
    if !is_known {
        return Ok(Changes::TooOld);
    }
    let (mut changes, mut position, mut bytes) = (Vec::new(), since.clone(), 0);
    let most = most.clamp(1, MAX_OVERRIDE_PAGE);
    for item in log.range(since.revision().saturating_add(1)..)?.take(most) {
        if bytes >= MAX_OVERRIDE_PAGE_BYTES {
            break;
        }
        let (revision, entry) = item?;
        let (revision, entry) = (revision.value(), LogEntry::decode(entry.value())?);
        position = position.at(revision, entry.tag);
        match overrides.get(entry.key)? {
            // A later entry is about the same override, also where a deletion finds it again.
            Some(stored) if json::revision(stored.value()) != Some(revision) => {}
            Some(stored) => {
                bytes += stored.value().len();
                changes.push(AppliedChange::Put(record(stored.value())?));
            }
            None if entry.is_deletion => {
                bytes += entry.key.len();
                changes.push(AppliedChange::Deleted {
                    id: key::decode(entry.key).ok_or_else(|| damaged("a key"))?,
                    revision,
                });
            }
            None => {}
        }
    }
    Ok(Changes::Since {
        changes,
        position,
        newest,
    })
}

fn record(json: &[u8]) -> Result<StoredOverride, redb::Error> {
    let stored = StoredOverride::from_json(json);
    stored.map_err(|error| damaged(&format!("an override ({error})")))
}
