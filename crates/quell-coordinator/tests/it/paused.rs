//! Coordinators on a runtime whose time is paused: it goes on when nobody has anything to do.

use std::sync::Arc;

use quell::clock::Clock;
use quell_coordinator::leader::{DesiredLimits, Leader};
use quell_coordinator::session::{Session, SessionOptions};
use quell_coordinator::store::{ConfigStore, EmbeddedStore};
use quell_core::time::Now;
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::leader::{options, wanted};

/// The runtime's time, as both clocks.
#[derive(Debug)]
struct RuntimeClock(Instant);

impl Clock for RuntimeClock {
    fn now(&self) -> Now {
        let since = u64::try_from(self.0.elapsed().as_nanos()).unwrap();
        Now::from_nanos(1_774_742_400_000_000_000 + since)
    }
}

/// These options, on the runtime's clock.
pub(crate) fn on_runtime(options: SessionOptions) -> SessionOptions {
    let clock = Arc::new(RuntimeClock(Instant::now()));
    SessionOptions { clock, ..options }
}

/// The only coordinator of a fleet, on a file in a folder that goes with it.
pub(crate) fn alone() -> (TempDir, Leader, watch::Sender<DesiredLimits>) {
    let folder = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(folder.path().join("fleet.db")).unwrap();
    let (leader, want) = start(store, "a");
    (folder, leader, want)
}

/// A coordinator whose session runs here as well.
pub(crate) fn start(store: impl ConfigStore, name: &str) -> (Leader, watch::Sender<DesiredLimits>) {
    let session = Session::start_here(store, on_runtime(options(name)));
    let (want, wants) = watch::channel(wanted(&[1_000]));
    (Leader::start(session, wants), want)
}
