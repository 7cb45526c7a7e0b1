//! A file as the configuration store, for one coordinator.
//!
//! A lock file beside it keeps a second process away, for as long as this one lives. So leases end only
//! when they are revoked, or with the process: when the file is opened, keys that were attached to a
//! lease are deleted. Every change is on the disk before it is answered, as a whole new file that
//! replaces the old one. The revision rises with every start, so epochs do.
//!
//! Writing takes as long as the disk needs, on the thread that asks: a session has its own.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prost::Message;
use quell_fleet::disk::{beside, replace};
use tokio::sync::broadcast;

use super::{
    Change, Committed, Condition, ConfigStore, Entry, Lease, Listing, StoreError, Transaction,
    Watch, Write,
};

/// The first bytes of the file: its name and the version of its format.
const MAGIC: &[u8; 8] = b"quellfl\x01";

/// The changes that a slow watch may be behind before it ends.
const BACKLOG: usize = 1_024;

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process uses it.
    #[error("another coordinator uses {}: one process per file; several need etcd", .0.display())]
    Locked(PathBuf),
    /// It cannot be read or written.
    #[error("{}: {error}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        error: io::Error,
    },
    /// It is not what this program wrote.
    #[error(
        "{} is damaged ({what}): restore it from a backup, or delete it after every node has stopped",
        .path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A newer version of this program wrote it.
    #[error("{} was written by a newer version of quell (format {version}); this one knows 1", .path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// The version of the format.
        version: u8,
    },
}

/// The file as it is encoded.
#[derive(Clone, PartialEq, Message)]
struct FileRecord {
    #[prost(uint64, tag = "1")]
    revision: u64,
    #[prost(message, repeated, tag = "2")]
    entries: Vec<EntryRecord>,
}

#[derive(Clone, PartialEq, Message)]
struct EntryRecord {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
    #[prost(uint64, tag = "3")]
    created: u64,
    #[prost(uint64, tag = "4")]
    changed: u64,
    #[prost(bool, tag = "5")]
    leased: bool,
}

#[derive(Debug, Default)]
struct Contents {
    revision: u64,
    entries: BTreeMap<String, Entry>,
    leases: HashSet<i64>,
    last_lease: i64,
}

/// A configuration store in a file.
#[derive(Debug)]
pub struct EmbeddedStore {
    path: PathBuf,
    contents: Mutex<Contents>,
    changes: broadcast::Sender<(u64, Change)>,
    /// Locked for as long as this process lives.
    _lock: File,
}

impl EmbeddedStore {
    /// Opens the file, or makes it.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, OpenError> {
        let path = path.into();
        let lock = lock(&path)?;
        let mut contents = read(&path)?;
        contents.revision += 1;
        contents.entries.retain(|_, entry| entry.lease.is_none());
        let (changes, _) = broadcast::channel(BACKLOG);
        let store = Self {
            path,
            contents: Mutex::new(Contents::default()),
            changes,
            _lock: lock,
        };
        let saved = store.save(contents.revision, &contents.entries);
        saved.map_err(|error| OpenError::Io {
            path: store.path.clone(),
            error,
        })?;
        *store.contents() = contents;
        Ok(store)
    }

    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the file. After a power cut it is the old one or the new one.
    fn save(&self, revision: u64, entries: &BTreeMap<String, Entry>) -> io::Result<()> {
        let record = FileRecord {
            revision,
            entries: entries.iter().map(EntryRecord::of).collect(),
        };
        let body = record.encode_to_vec();
        let sum = crc32fast::hash(&body).to_le_bytes();
        replace(&self.path, &[MAGIC.as_slice(), &sum, &body])
    }

    /// Writes if the conditions hold, in the file first.
    fn apply(&self, conditions: &[Condition], writes: Vec<Write>) -> Result<Committed, StoreError> {
        let mut contents = self.contents();
        if !conditions.iter().all(|condition| contents.holds(condition)) {
            return Ok(Committed {
                succeeded: false,
                revision: contents.revision,
            });
        }
        let revision = contents.revision + 1;
        let mut entries = contents.entries.clone();
        let mut changes = Vec::new();
        for write in writes {
            let change = match write {
                Write::Put { key, value, lease } => {
                    if lease.is_some_and(|lease| !contents.leases.contains(&lease.0)) {
                        return Err(StoreError::LeaseEnded);
                    }
                    let created = entries.get(&key).map_or(revision, |old| old.created);
                    let entry = Entry {
                        value,
                        created,
                        changed: revision,
                        lease,
                    };
                    entries.insert(key.clone(), entry.clone());
                    let entry = Some(entry);
                    Change { key, entry }
                }
                Write::Delete { key } if entries.remove(&key).is_none() => continue,
                Write::Delete { key } => Change { key, entry: None },
            };
            changes.push(change);
        }
        if changes.is_empty() {
            return Ok(Committed {
                succeeded: true,
                revision: contents.revision,
            });
        }
        self.save(revision, &entries)
            .map_err(|error| StoreError::Refused(format!("{}: {error}", self.path.display())))?;
        contents.revision = revision;
        contents.entries = entries;
        for change in changes {
            // Nobody watches: nothing to say.
            self.changes.send((revision, change)).ok();
        }
        Ok(Committed {
            succeeded: true,
            revision,
        })
    }
}

impl Contents {
    fn holds(&self, condition: &Condition) -> bool {
        let of = |key: &str, number: fn(&Entry) -> u64| self.entries.get(key).map_or(0, number);
        match condition {
            Condition::Created { key, revision } => of(key, |entry| entry.created) == *revision,
            Condition::Changed { key, revision } => of(key, |entry| entry.changed) == *revision,
            Condition::LeasedBy { key, lease } => {
                let entry = self.entries.get(key);
                entry.is_some_and(|entry| entry.lease == Some(*lease))
            }
        }
    }
}

impl ConfigStore for EmbeddedStore {
    type Watch = EmbeddedWatch;

    async fn read(&self, prefix: &str, _: Duration) -> Result<Listing, StoreError> {
        let contents = self.contents();
        let below = contents.entries.range(prefix.to_owned()..);
        let below = below.take_while(|(key, _)| key.starts_with(prefix));
        Ok(Listing {
            revision: contents.revision,
            entries: below.map(|(k, v)| (k.clone(), v.clone())).collect(),
        })
    }

    async fn watch(
        &self,
        prefix: &str,
        from: u64,
        _: Duration,
    ) -> Result<EmbeddedWatch, StoreError> {
        let contents = self.contents();
        if from <= contents.revision {
            return Err(StoreError::WatchEnded(format!(
                "the changes before revision {} are not kept",
                contents.revision + 1
            )));
        }
        Ok(EmbeddedWatch {
            prefix: prefix.to_owned(),
            from,
            changes: self.changes.subscribe(),
            asked: false,
        })
    }

    async fn commit(&self, transaction: Transaction, _: Duration) -> Result<Committed, StoreError> {
        transaction.check_size()?;
        self.apply(&transaction.conditions, transaction.writes)
    }

    async fn grant(&self, _: Duration, _: Duration) -> Result<Lease, StoreError> {
        let mut contents = self.contents();
        contents.last_lease += 1;
        let lease = contents.last_lease;
        contents.leases.insert(lease);
        Ok(Lease(lease))
    }

    async fn keep_alive(&self, lease: Lease, _: Duration) -> Result<(), StoreError> {
        if self.contents().leases.contains(&lease.0) {
            Ok(())
        } else {
            Err(StoreError::LeaseEnded)
        }
    }

    async fn revoke(&self, lease: Lease, _: Duration) -> Result<(), StoreError> {
        let attached: Vec<Write> = {
            let mut contents = self.contents();
            contents.leases.remove(&lease.0);
            let entries = contents.entries.iter();
            let attached = entries.filter(|(_, entry)| entry.lease == Some(lease));
            attached.map(|(key, _)| Write::delete(key)).collect()
        };
        self.apply(&[], attached).map(drop)
    }
}

/// A watch of a file's store.
#[derive(Debug)]
pub struct EmbeddedWatch {
    prefix: String,
    from: u64,
    changes: broadcast::Receiver<(u64, Change)>,
    asked: bool,
}

impl Watch for EmbeddedWatch {
    async fn next(&mut self) -> Result<Vec<Change>, StoreError> {
        loop {
            let received = match self.changes.try_recv() {
                Ok(received) => received,
                Err(broadcast::error::TryRecvError::Empty) if self.asked => {
                    self.asked = false;
                    return Ok(Vec::new());
                }
                Err(_) => self
                    .changes
                    .recv()
                    .await
                    .map_err(|error| StoreError::WatchEnded(error.to_string()))?,
            };
            let (revision, change) = received;
            if revision >= self.from && change.key.starts_with(&self.prefix) {
                return Ok(vec![change]);
            }
        }
    }

    async fn request_progress(&mut self) -> Result<(), StoreError> {
        self.asked = true;
        Ok(())
    }
}

impl EntryRecord {
    fn of((key, entry): (&String, &Entry)) -> Self {
        Self {
            key: key.clone(),
            value: entry.value.clone(),
            created: entry.created,
            changed: entry.changed,
            leased: entry.lease.is_some(),
        }
    }

    fn entry(self) -> (String, Entry) {
        let entry = Entry {
            value: self.value,
            created: self.created,
            changed: self.changed,
            // Of a process that has ended.
            lease: self.leased.then_some(Lease(0)),
        };
        (self.key, entry)
    }
}

fn lock(path: &Path) -> Result<File, OpenError> {
    let lock_path = beside(path, ".lock");
    let io = |error| OpenError::Io {
        path: lock_path.clone(),
        error,
    };
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).write(true);
    let file = options.open(&lock_path).map_err(io)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::Locked(path.to_owned())),
        Err(TryLockError::Error(error)) => Err(io(error)),
    }
}

fn read(path: &Path) -> Result<Contents, OpenError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Contents::default()),
        Err(error) => {
            let path = path.to_owned();
            return Err(OpenError::Io { path, error });
        }
    };
    let damaged = |what| OpenError::Damaged {
        path: path.to_owned(),
        what,
    };
    let Some((magic, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(damaged("it is too short"));
    };
    if magic[..7] != MAGIC[..7] {
        return Err(damaged("it is another kind of file"));
    }
    if magic[7] != MAGIC[7] {
        return Err(OpenError::Newer {
            path: path.to_owned(),
            version: magic[7],
        });
    }
    let Some((sum, body)) = rest.split_first_chunk::<4>() else {
        return Err(damaged("it is too short"));
    };
    if u32::from_le_bytes(*sum) != crc32fast::hash(body) {
        return Err(damaged("its checksum is wrong"));
    }
    let record = FileRecord::decode(body).map_err(|_| damaged("it cannot be decoded"))?;
    Ok(Contents {
        revision: record.revision,
        entries: record.entries.into_iter().map(EntryRecord::entry).collect(),
        ..Contents::default()
    })
}
