//! History: points of a chart, the changes that people made, and the file that both are kept in.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use quell_fleet::disk::replace;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

mod series;

pub use series::{Numbers, Point, Series, Span};

/// Longest file that is read: more than the longest that is written.
const MAX_BYTES: u64 = 32 * 1_024 * 1_024;

/// A person's change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// In seconds since 1970.
    pub at: i64,
    /// `None`: the rules of all domains.
    pub domain: Option<String>,
    /// Its author.
    pub by: String,
    /// An address, or `a Unix socket`.
    pub from: String,
    /// The action.
    pub what: String,
    /// Empty if nobody said why.
    pub reason: String,
}

/// Origin of a change, for people.
pub fn origin(from: Option<IpAddr>) -> String {
    from.map_or_else(|| "a Unix socket".to_owned(), |from| from.to_string())
}

/// Reads a file of this format; the default if there is no file.
///
/// # Errors
/// If it cannot be read, or is damaged.
pub fn read<T: DeserializeOwned + Default>(path: &Path, format: &[u8]) -> io::Result<T> {
    let metadata = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(T::default()),
        metadata => metadata?,
    };
    let damaged = || io::Error::new(io::ErrorKind::InvalidData, "it is damaged");
    if !metadata.is_file() || metadata.len() > MAX_BYTES {
        return Err(damaged());
    }
    let bytes = fs::read(path)?;
    let rest = bytes.strip_prefix(format).ok_or_else(damaged)?;
    let (sum, rest) = rest.split_first_chunk().ok_or_else(damaged)?;
    if u32::from_le_bytes(*sum) != crc32fast::hash(rest) {
        return Err(damaged());
    }
    postcard::from_bytes(rest).map_err(|_| damaged())
}

/// Replaces a file by this in a format. After a power cut it is the old one or the new one.
///
/// # Errors
/// If it cannot be written.
pub fn write(path: &Path, format: &[u8], kept: &impl Serialize) -> io::Result<()> {
    let rest = postcard::to_stdvec(kept).map_err(io::Error::other)?;
    let sum = crc32fast::hash(&rest).to_le_bytes();
    replace(path, &[format, &sum, &rest])
}
