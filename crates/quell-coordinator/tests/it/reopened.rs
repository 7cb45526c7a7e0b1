//! A file of this process that is opened once more.

use std::path::Path;

use quell_coordinator::store::{EmbeddedStore, OpenError};
use quell_testkit::wait::until;

/// Opens a file that this process just had open. A process that another test starts has its lock until it executes its
/// own program.
pub(crate) fn reopened(path: &Path) -> Result<EmbeddedStore, OpenError> {
    until("nobody has its lock", || match EmbeddedStore::open(path) {
        Err(OpenError::Locked(_)) => None,
        opened => Some(opened),
    })
}
