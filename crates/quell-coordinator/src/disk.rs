//! Disk: files that are replaced as one.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// Replaces a file by these parts, one after the other. After a power cut it is the old one or the new one.
pub(crate) fn replace(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let unfinished = with_suffix(path, ".new");
    let mut file = File::create(&unfinished)?;
    for part in parts {
        file.write_all(part)?;
    }
    file.sync_all()?;
    fs::rename(&unfinished, path)?;
    File::open(folder(path))?.sync_all()
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
