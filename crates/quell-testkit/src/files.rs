//! Folders that are deleted when a test is over, and the files in them.

use tempfile::TempDir;

/// A folder that is deleted when it is dropped.
#[derive(Debug)]
pub struct Folder(TempDir);

impl Default for Folder {
    fn default() -> Self {
        Self::new()
    }
}

impl Folder {
    /// An empty folder.
    pub fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    /// The path of a file in it.
    pub fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    /// Writes a file as editors do, in one step. Returns its path.
    pub fn write(&self, name: &str, text: &str) -> String {
        let (path, fresh) = (self.path(name), self.path(".fresh"));
        std::fs::write(&fresh, text).unwrap();
        std::fs::rename(&fresh, &path).unwrap();
        path
    }
}
