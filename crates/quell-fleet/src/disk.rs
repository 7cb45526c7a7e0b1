//! Disk: files that are replaced as a whole, by nodes, coordinators and servers.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// Only for its owner: files have the names of keys and people, addresses, and reasons.
const FILE_MODE: u32 = 0o600;

/// Replaces a file by these parts, one after the other. After a power cut it is the old one or the new one;
/// when this returns, the new one. Nobody but its owner may read it.
///
/// # Errors
/// The file cannot be written. The old one is as it was.
pub fn replace(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let new = beside(path, ".new");
    let mut options = OpenOptions::new();
    options.create(true).truncate(true).write(true);
    let mut file = options.mode(FILE_MODE).open(&new)?;
    // One that a crash left may be another program's.
    file.set_permissions(Permissions::from_mode(FILE_MODE))?;
    for part in parts {
        file.write_all(part)?;
    }
    file.sync_all()?;
    fs::rename(&new, path)?;
    let folder = path.parent().filter(|path| !path.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// A path whose last name ends with this as well.
#[must_use]
pub fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_and_its_owners_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        for left in [&path, &beside(&path, ".new")] {
            fs::write(left, "longer than what follows").unwrap();
        }
        replace(&path, &[b"new", b" text"]).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new text");
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, FILE_MODE);
        assert!(!beside(&path, ".new").exists());
    }
}
