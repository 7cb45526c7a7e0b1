//! Directory: the files of a server, locked against other servers.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, BufReader, BufWriter, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use quell::Limiter;
use quell_core::time::Now;

use super::format::{self, Restored};
use crate::error::{DataDirError, io_error};
use crate::store::ServerStore;

/// The snapshot.
const SNAPSHOT: &str = "snapshot.quell";

/// A snapshot that is being written. A crash may leave it, and the next snapshot overwrites it.
const UNFINISHED: &str = "snapshot.quell.tmp";

/// Locked for as long as a server uses the directory.
const LOCK: &str = "quell.lock";

/// Only for its owner: the snapshot holds the secret under which keys are hashed.
const FILE_MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;

/// Bytes that are read or written at once.
const CHUNK: usize = 256 * 1_024;

/// A data directory that is this server's.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    _lock: File,
}

/// Refuses a file whose opening could block, such as a pipe.
fn check_regular(path: &Path) -> Result<(), DataDirError> {
    match fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => Err(DataDirError::NotAFile(path.to_owned())),
        _ => Ok(()),
    }
}

/// Opens a file for writing and empties it, or makes it.
fn create(path: &Path) -> Result<File, DataDirError> {
    check_regular(path)?;
    let mut options = OpenOptions::new();
    options.create(true).truncate(true).write(true);
    let file = options.mode(FILE_MODE).open(path);
    file.map_err(io_error("open", path))
}

impl Directory {
    /// Makes the directory if it does not exist.
    pub(crate) fn make(path: &Path) -> Result<(), DataDirError> {
        let mut builder = DirBuilder::new();
        let made = builder.recursive(true).mode(DIRECTORY_MODE).create(path);
        made.map_err(io_error("make the directory", path))
    }

    /// Makes the directory if it does not exist, and locks it.
    pub(crate) fn open(path: &Path) -> Result<Self, DataDirError> {
        Self::make(path)?;
        let lock_path = path.join(LOCK);
        let lock = create(&lock_path)?;
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
        format::read(&path, &mut reader, length, now).map(Some)
    }

    /// Writes a snapshot in place of the last one; returns its size. The last one is replaced only when
    /// the new one is complete and on the disk.
    pub(crate) fn write(&self, limiter: &Limiter<ServerStore>) -> Result<u64, DataDirError> {
        let unfinished = self.path.join(UNFINISHED);
        let file = create(&unfinished)?;
        let bytes = write_to(file, limiter).map_err(io_error("write", &unfinished))?;
        let path = self.path.join(SNAPSHOT);
        fs::rename(&unfinished, &path).map_err(io_error("replace", &path))?;
        // The new name is only safe once the directory is.
        let directory = File::open(&self.path).and_then(|directory| directory.sync_all());
        directory.map_err(io_error("write", &self.path))?;
        Ok(bytes)
    }
}

fn write_to(file: File, limiter: &Limiter<ServerStore>) -> io::Result<u64> {
    let store = limiter.store().memory();
    let writer = BufWriter::with_capacity(CHUNK, file);
    let mut out = format::Out::begin(writer, store.hash_key(), limiter.now())?;
    for shard in 0..store.shard_count() {
        for saved in store.export(shard, limiter.now()) {
            out.state(&saved)?;
        }
    }
    // After the states, so that limits that came into force meanwhile are included: each state that was
    // written has its limit in the file, unless the limit was removed.
    let (writer, bytes) = out.end(&store.limits())?;
    let mut file = writer
        .into_inner()
        .map_err(io::IntoInnerError::into_error)?;
    file.flush()?;
    file.sync_all()?;
    Ok(bytes)
}
