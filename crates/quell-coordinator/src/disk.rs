//! Disk: files of JSON, which are replaced as a whole.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use quell_fleet::disk::replace;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Longest file that is read, in bytes: more than the longest that is written.
const MAX_BYTES: u64 = 32 * 1_024 * 1_024;

/// Reads a file as JSON; the default if there is no file.
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
    file.take(MAX_BYTES).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

/// Replaces a file by this as JSON. After a power cut it is the old one or the new one.
///
/// # Errors
/// If it cannot be written.
pub fn write_json(path: &Path, value: &impl Serialize) -> io::Result<()> {
    replace(path, &[&serde_json::to_vec(value)?])
}
