//! A file as the configuration store, for one coordinator.
//!
//! The file itself is locked, so a second process is kept away for as long as this one lives, by whatever
//! name or link it comes. So leases end only when they are revoked, or with the process: when the file is
//! opened, keys that were attached to a lease are deleted. The revision rises with every start, so epochs
//! do.
//!
//! A lock is of the file that a name leads to, and not of the name. So this file is never replaced: what
//! it is to have is written as a whole beside it first, then into it, and then the copy is deleted. Every
//! change is on the disk before it is answered. A power cut leaves a whole file or a whole copy.
//!
//! Writing takes as long as the disk needs, on the thread that asks: a session has its own.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prost::Message;
use quell_fleet::disk::{beside, replace};
use tokio::sync::broadcast;

use super::contents::Contents;
use super::{
    Change, Committed, Condition, ConfigStore, Lease, Listing, StoreError, StoredEntry,
    Transaction, Watch, Write,
};

/// The first bytes of the file: its name and the version of its format.
const MAGIC: &[u8; 8] = b"quellfl\x01";

/// Only for its owner: it has addresses of nodes.
const FILE_MODE: u32 = 0o600;

/// The changes that a slow watch may be behind before it ends.
const BACKLOG: usize = 1_024;

/// Reason why a file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process uses it.
    #[error("another coordinator uses {}: stop it; several coordinators need etcd", .0.display())]
    Locked(PathBuf),
    /// It is a directory, a pipe, a device.
    #[error("{} is not a file: write the path of a file, which is made if there is none", .0.display())]
    NotAFile(PathBuf),
    /// It cannot be read or written.
    #[error("{}: {error}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The I/O error.
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
        /// The fault in it.
        what: &'static str,
    },
    /// Another version of this program wrote it.
    #[error("{} has format {version}, and this version of quell knows 1: start the version that wrote it", .path.display())]
    OtherFormat {
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
struct EmbeddedState {
    contents: Contents,
    leases: HashSet<i64>,
    last_lease: i64,
}

/// A configuration store in a file.
#[derive(Debug)]
pub struct EmbeddedStore {
    path: PathBuf,
    /// File with the next contents, while they are written.
    copy: PathBuf,
    /// Locked for as long as this process lives.
    file: File,
    state: Mutex<EmbeddedState>,
    changes: broadcast::Sender<(u64, Change)>,
}

/// Reason why a change is not on the disk.
enum SaveError {
    /// Nothing was changed.
    Unchanged(io::Error),
    /// The next start may find the change.
    Perhaps(io::Error),
}

impl SaveError {
    fn error(self) -> io::Error {
        match self {
            Self::Unchanged(error) | Self::Perhaps(error) => error,
        }
    }
}

impl EmbeddedStore {
    /// Opens the file, or makes it.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, OpenError> {
        let path = path.into();
        let is_missing = !path.exists();
        let file = lock(&path)?;
        let io = |error| OpenError::Io {
            path: path.clone(),
            error,
        };
        // The copy is beside the file, and not beside a link to it.
        let copy = beside(&fs::canonicalize(&path).map_err(io)?, ".copy");
        let is_new = is_missing && file.metadata().map_err(io)?.len() == 0;
        let mut contents = match is_new {
            true => Contents::default(),
            false => read(&path, &file, &copy)?,
        };
        contents.revision += 1;
        contents.entries.retain(|_, entry| entry.lease.is_none());
        let (changes, _) = broadcast::channel(BACKLOG);
        let store = Self {
            path,
            copy,
            file,
            state: Mutex::default(),
            changes,
        };
        let saved = store.save(&contents);
        saved.map_err(|error| OpenError::Io {
            path: store.path.clone(),
            error: error.error(),
        })?;
        store.state().contents = contents;
        Ok(store)
    }

    fn state(&self) -> MutexGuard<'_, EmbeddedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the file. After a power cut it is the old one or the new one, or the copy is the new one.
    fn save(&self, contents: &Contents) -> Result<(), SaveError> {
        let record = FileRecord {
            revision: contents.revision,
            entries: contents.entries.iter().map(EntryRecord::new).collect(),
        };
        let body = record.encode_to_vec();
        let sum = crc32fast::hash(&body).to_le_bytes();
        let whole = [MAGIC.as_slice(), &sum, &body].concat();
        replace(&self.copy, &[&whole]).map_err(SaveError::Unchanged)?;
        self.overwrite(&whole).map_err(SaveError::Perhaps)
    }

    fn overwrite(&self, whole: &[u8]) -> io::Result<()> {
        self.file.write_all_at(whole, 0)?;
        self.file.set_len(whole.len() as u64)?;
        self.file.sync_all()?;
        fs::remove_file(&self.copy)
    }

    /// Writes if the conditions hold, in the file first.
    fn apply(&self, conditions: &[Condition], writes: Vec<Write>) -> Result<Committed, StoreError> {
        let mut state = self.state();
        let committed = |succeeded, revision| Committed {
            succeeded,
            revision,
        };
        let mut conditions = conditions.iter();
        if !conditions.all(|condition| state.contents.holds(condition)) {
            return Ok(committed(false, state.contents.revision));
        }
        let is_over = |write: &Write| match write {
            Write::Put { lease, .. } => lease.is_some_and(|one| !state.leases.contains(&one.0)),
            Write::Delete { .. } => false,
        };
        if writes.iter().any(is_over) {
            return Err(StoreError::LeaseEnded);
        }
        let (next, changes) = state.contents.after(writes);
        if changes.is_empty() {
            return Ok(committed(true, next.revision));
        }
        let told = |error: io::Error| format!("{}: {error}", self.path.display());
        self.save(&next).map_err(|error| match error {
            SaveError::Unchanged(error) => StoreError::Refused(told(error)),
            SaveError::Perhaps(error) => StoreError::Unreachable(told(error)),
        })?;
        let revision = next.revision;
        state.contents = next;
        for change in changes {
            // Nobody watches: nothing to say.
            self.changes.send((revision, change)).ok();
        }
        Ok(committed(true, revision))
    }
}

impl ConfigStore for EmbeddedStore {
    type Watch = EmbeddedWatch;

    async fn read(&self, prefix: &str, _: Duration) -> Result<Listing, StoreError> {
        Ok(self.state().contents.below(prefix))
    }

    async fn watch(
        &self,
        prefix: &str,
        from: u64,
        _: Duration,
    ) -> Result<EmbeddedWatch, StoreError> {
        let state = self.state();
        let next = state.contents.revision + 1;
        if from < next {
            return Err(StoreError::WatchEnded(format!(
                "the changes before revision {next} are not kept"
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
        let mut state = self.state();
        state.last_lease += 1;
        let lease = state.last_lease;
        state.leases.insert(lease);
        Ok(Lease(lease))
    }

    async fn keep_alive(&self, lease: Lease, _: Duration) -> Result<(), StoreError> {
        if self.state().leases.contains(&lease.0) {
            Ok(())
        } else {
            Err(StoreError::LeaseEnded)
        }
    }

    async fn revoke(&self, lease: Lease, _: Duration) -> Result<(), StoreError> {
        let detached = {
            let mut state = self.state();
            state.leases.remove(&lease.0);
            state.contents.detached(lease)
        };
        self.apply(&[], detached).map(drop)
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
    fn new((key, entry): (&String, &StoredEntry)) -> Self {
        Self {
            key: key.clone(),
            value: entry.value.clone(),
            created: entry.created,
            changed: entry.changed,
            leased: entry.lease.is_some(),
        }
    }

    fn entry(self) -> (String, StoredEntry) {
        let entry = StoredEntry {
            value: self.value,
            created: self.created,
            changed: self.changed,
            // Of a process that has ended.
            lease: self.leased.then_some(Lease(0)),
        };
        (self.key, entry)
    }
}

/// Opens and locks the file that this path leads to.
fn lock(path: &Path) -> Result<File, OpenError> {
    let io = |error| OpenError::Io {
        path: path.to_owned(),
        error,
    };
    // A pipe that is opened to read and to write waits for nobody.
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).read(true).write(true);
    let file = match options.mode(FILE_MODE).open(path) {
        Ok(file) => file,
        Err(_) if path.is_dir() => return Err(OpenError::NotAFile(path.to_owned())),
        Err(error) => return Err(io(error)),
    };
    if !file.metadata().map_err(io)?.is_file() {
        return Err(OpenError::NotAFile(path.to_owned()));
    }
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(OpenError::Locked(path.to_owned())),
        Err(TryLockError::Error(error)) => return Err(io(error)),
    }
    // One from elsewhere may be open to others.
    let own = Permissions::from_mode(FILE_MODE);
    file.set_permissions(own).map_err(io)?;
    Ok(file)
}

/// Reads the file, or the copy that a power cut left.
fn read(path: &Path, mut file: &File, copy: &Path) -> Result<Contents, OpenError> {
    let mut bytes = Vec::new();
    let read = file.read_to_end(&mut bytes);
    read.map_err(|error| OpenError::Io {
        path: path.to_owned(),
        error,
    })?;
    match decode(path, &bytes) {
        Err(damaged @ OpenError::Damaged { .. }) => {
            let copied = fs::read(copy).ok();
            let whole = copied.and_then(|bytes| decode(copy, &bytes).ok());
            whole.ok_or(damaged)
        }
        decoded => decoded,
    }
}

fn decode(path: &Path, bytes: &[u8]) -> Result<Contents, OpenError> {
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
        return Err(OpenError::OtherFormat {
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
    })
}
