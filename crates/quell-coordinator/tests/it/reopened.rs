//! A file of this process that is opened once more.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use quell_coordinator::store::{EmbeddedStore, OpenError};

use crate::etcd::PATIENCE;

/// Opens a file that this process just had open. A process that another test starts has its lock until it executes its
/// own program.
pub(crate) fn reopened(path: &Path) -> Result<EmbeddedStore, OpenError> {
    let end = Instant::now() + PATIENCE;
    loop {
        match EmbeddedStore::open(path) {
            Err(OpenError::Locked(_)) if Instant::now() < end => {
                thread::sleep(Duration::from_millis(1));
            }
            opened => return opened,
        }
    }
}
