//! Timeouts of tests: for a store's answers, and for conditions.

use std::time::Duration;

pub(crate) use quell_testkit::wait::{PATIENCE, paced, until_it};

/// Time for the answers of a store that is asked thousands of times at once, and loses none.
pub(crate) const LONG_PATIENCE: Duration = Duration::from_secs(600);

/// Timeout of the store where a test lets answers get lost, and has to wait so long for each of them. The
/// product's 50 ms are tested in `src/link/traffic.rs`, by instants that are given.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(2);

/// Timeout of a store that answers nothing in time, where a test waits for the end of many calls, and afterwards for the
/// first that is answered. Nothing depends on how short it is.
pub(crate) const HASTY: Duration = Duration::from_millis(200);
