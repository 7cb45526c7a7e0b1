//! Call report slot: where a server puts what it says of its calls. The next request takes it along.

use std::sync::{Arc, Mutex, PoisonError};

use crate::call_report::bounded;
use crate::proto::NodeSeen;

/// Slot for a server's counts of its calls, until they are sent. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct CallReportSlot(Arc<Mutex<Option<NodeSeen>>>);

impl CallReportSlot {
    /// Says it with the next report, in place of what was not sent yet. A node that never calls this says
    /// nothing of its calls.
    pub fn set(&self, seen: NodeSeen) {
        let seen = bounded(seen);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(seen);
    }

    pub(super) fn take(&self) -> Option<NodeSeen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
