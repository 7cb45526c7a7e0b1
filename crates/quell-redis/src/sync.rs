//! Locks, tasks and waits whose order matters. In a model test a scheduler chooses who runs next at each
//! of them; elsewhere they are those of parking_lot and tokio.

use tokio::runtime::Handle;

#[cfg(not(test))]
pub(crate) use parking_lot::Mutex;
#[cfg(not(test))]
pub(crate) use tokio::time::sleep;

#[cfg(test)]
pub(crate) use model::{Mutex, sleep};

#[cfg(test)]
pub(crate) mod model;

/// Returns true if there is a runtime for tasks.
pub(crate) fn can_spawn() -> bool {
    #[cfg(test)]
    if model::is_on() {
        return true;
    }
    Handle::try_current().is_ok()
}

/// Starts a task.
pub(crate) fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    #[cfg(test)]
    if model::is_on() {
        model::spawn(task);
        return;
    }
    tokio::spawn(task);
}
