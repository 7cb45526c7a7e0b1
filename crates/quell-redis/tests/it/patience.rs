//! Timeouts of tests: for a store's answers, and for conditions.

use std::time::Duration;

pub(crate) use quell_testkit::wait::{paced, until_it};

/// Time for a store's answer where nothing is lost: long enough for a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Timeout of the store where a test lets answers get lost, and has to wait so long for each of them. The
/// product's 50 ms are tested in `faults.rs`, with a store that answers nothing.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(2);
