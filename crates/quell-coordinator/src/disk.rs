//! Disk: files that are replaced as one.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Only for its owner: files have the names of keys and people, addresses, and reasons.
const FILE_MODE: u32 = 0o600;

/// Replaces a file by these parts, one after the other. After a power cut it is the old one or the new one.
pub(crate) fn replace(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let unfinished = with_suffix(path, ".new");
    let mut options = OpenOptions::new();
    options.create(true).truncate(true).write(true);
    let mut file = options.mode(FILE_MODE).open(&unfinished)?;
    // One that a crash left may be another program's.
    file.set_permissions(Permissions::from_mode(FILE_MODE))?;
    for part in parts {
        file.write_all(part)?;
    }
    file.sync_all()?;
    fs::rename(&unfinished, path)?;
    File::open(folder(path))?.sync_all()
}

/// Longest file that is read, in bytes: more than the longest that is written.
const MOST_BYTES: u64 = 32 * 1_024 * 1_024;

/// What a file has as JSON; the default if there is no file.
///
/// # Errors
/// If it cannot be read, or has something else.
pub fn read_json<T: DeserializeOwned + Default>(path: &Path) -> io::Result<T> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(T::default()),
        Err(error) => return Err(error),
    };
    let mut text = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

/// Replaces a file by this as JSON. After a power cut it is the old one or the new one.
///
/// # Errors
/// If it cannot be written.
pub fn write_json(path: &Path, value: &impl Serialize) -> io::Result<()> {
    replace(path, &[&serde_json::to_vec(value)?])
}

/// A path whose last name ends with this as well.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}
