//! Directory: the files, whose they are, and what is wrong with them.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, BufReader, BufWriter, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use quell::Limiter;
use quell::store::memory::{HashKey, Saved};
use quell_core::limit::ActiveLimit;
use quell_core::time::Now;

use super::format::{self, FormatError, Head};
use crate::store::ServerStore;

/// The snapshot.
const SNAPSHOT: &str = "snapshot.quell";

/// A snapshot that is being written. What a crash leaves of it is written over.
const UNFINISHED: &str = "snapshot.quell.tmp";

/// Locked for as long as a server uses the directory.
const LOCK: &str = "quell.lock";

/// Only for its owner: the snapshot holds the secret under which keys are hashed.
const FILE_MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;

/// Bytes that are read or written at once.
const CHUNK: usize = 256 * 1_024;

/// Why a data directory cannot be used. The text says which file, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataDirError {
    /// Another server uses it.
    #[error("{} is in use by another server: stop that one, or give another --data-dir", .0.display())]
    InUse(PathBuf),
    /// The system says no.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A pipe, a device or a directory stands where a file should.
    #[error("{} is no regular file: move it away, or give another --data-dir", .0.display())]
    NotAFile(PathBuf),
    /// The file is no snapshot.
    #[error("{} is no snapshot of Quell: move it away, or give another --data-dir", .0.display())]
    Foreign(PathBuf),
    /// The file was written by a later version.
    #[error("{} has format {version}, and this is a version that reads {known}: start a newer Quell, or move the file away to begin without what it holds", path.display())]
    Future {
        /// The file.
        path: PathBuf,
        /// The format it is in.
        version: u32,
        /// The format that this version reads.
        known: u32,
    },
    /// The file is damaged.
    #[error("{} is torn ({reason}): put a copy in its place, or move it away to begin without what it holds", path.display())]
    Torn {
        /// The file.
        path: PathBuf,
        /// How it shows.
        reason: String,
    },
}

/// A data directory that is this server's.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    _lock: File,
}

/// What a snapshot holds, on this process's clock.
#[derive(Debug)]
pub(crate) struct Restored {
    pub(crate) secret: HashKey,
    pub(crate) limits: Vec<ActiveLimit>,
    pub(crate) states: Vec<Saved>,
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> DataDirError {
    let path = path.to_owned();
    move |source| DataDirError::Io {
        action,
        path,
        source,
    }
}

/// Refuses what would keep whoever opens it waiting, such as a pipe.
fn check_regular(path: &Path) -> Result<(), DataDirError> {
    match fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => Err(DataDirError::NotAFile(path.to_owned())),
        _ => Ok(()),
    }
}

impl Directory {
    /// Makes the directory if it is not there, and takes it.
    pub(crate) fn open(path: &Path) -> Result<Self, DataDirError> {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(DIRECTORY_MODE);
        builder
            .create(path)
            .map_err(io_error("make the directory", path))?;
        let lock_path = path.join(LOCK);
        check_regular(&lock_path)?;
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(FILE_MODE)
            .open(&lock_path)
            .map_err(io_error("open", &lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(DataDirError::InUse(path.to_owned())),
            Err(TryLockError::Error(error)) => return Err(io_error("lock", &lock_path)(error)),
        }
        let unfinished = path.join(UNFINISHED);
        match fs::remove_file(&unfinished) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(io_error("remove", &unfinished)(error));
            }
            _ => {}
        }
        Ok(Self {
            path: path.to_owned(),
            _lock: lock,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the snapshot, if there is one, and moves its instants to the clock that says `now`.
    pub(crate) fn read(&self, now: Now) -> Result<Option<Restored>, DataDirError> {
        let path = self.path.join(SNAPSHOT);
        check_regular(&path)?;
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io_error("open", &path)(error)),
        };
        let length = file.metadata().map_err(io_error("read", &path))?.len();
        let mut reader = BufReader::with_capacity(CHUNK, file);
        let read = format::read(&mut reader, length, now).map_err(|error| match error {
            FormatError::Foreign => DataDirError::Foreign(path.clone()),
            FormatError::Future(version) => DataDirError::Future {
                path: path.clone(),
                version,
                known: format::VERSION,
            },
            FormatError::Torn(reason) => DataDirError::Torn {
                path: path.clone(),
                reason,
            },
            FormatError::Io(source) => io_error("read", &path)(source),
        })?;
        Ok(Some(read))
    }

    /// Writes a snapshot in place of the last one; returns its size. Until it is whole and on the
    /// disk, the last one stands.
    pub(crate) fn write(&self, limiter: &Limiter<ServerStore>) -> Result<u64, DataDirError> {
        let unfinished = self.path.join(UNFINISHED);
        check_regular(&unfinished)?;
        let file = OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(FILE_MODE)
            .open(&unfinished)
            .map_err(io_error("open", &unfinished))?;
        let wrote = io_error("write", &unfinished);
        let bytes = write_to(file, limiter).map_err(wrote)?;
        let path = self.path.join(SNAPSHOT);
        fs::rename(&unfinished, &path).map_err(io_error("replace", &path))?;
        // The new name is only safe once the directory is.
        let directory = File::open(&self.path).and_then(|directory| directory.sync_all());
        directory.map_err(io_error("write", &self.path))?;
        Ok(bytes)
    }
}

fn write_to(file: File, limiter: &Limiter<ServerStore>) -> io::Result<u64> {
    let Some(store) = limiter.store().memory() else {
        return Ok(0);
    };
    let head = Head {
        secret: store.hash_key(),
        at: limiter.now(),
    };
    let mut out = format::Out::begin(BufWriter::with_capacity(CHUNK, file), &head)?;
    for shard in 0..store.shard_count() {
        for saved in store.export(shard, limiter.now()) {
            out.state(&saved)?;
        }
    }
    // After the states: a limit that came into force meanwhile is among them, so every state that
    // was written finds its own, or was forgotten with it.
    let (writer, bytes) = out.end(&store.limits())?;
    let mut file = writer
        .into_inner()
        .map_err(io::IntoInnerError::into_error)?;
    file.flush()?;
    file.sync_all()?;
    Ok(bytes)
}
