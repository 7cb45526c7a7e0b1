//! Model: runs tasks under many schedules, with a lock at which a scheduler chooses which one runs next.

use std::cell::Cell;

use parking_lot::MutexGuard;
use shuttle::sync::atomic::{AtomicBool, Ordering};

thread_local! {
    static IS_ON: Cell<bool> = const { Cell::new(false) };
}

/// Ends with the model, in whatever way that ends.
struct On;

impl Drop for On {
    fn drop(&mut self) {
        IS_ON.set(false);
    }
}

/// Runs `run` under this many schedules.
pub fn check(schedules: usize, run: impl Fn() + Send + Sync + 'static) {
    let _on = On;
    IS_ON.set(true);
    shuttle::check_random(run, schedules);
}

/// Returns true in a run of a model. After a failure the scheduler chooses no more.
fn is_on() -> bool {
    IS_ON.get() && !std::thread::panicking()
}

/// A lock with the interface of `parking_lot`'s.
#[derive(Debug, Default)]
pub struct Mutex<T>(parking_lot::Mutex<T>);

impl<T> Mutex<T> {
    /// The lock of parking_lot, once the scheduler has let other tasks go first.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        while is_on() {
            // The scheduler chooses the next task here. This does not yield, which would wake the
            // running task and hide a missing wake-up.
            AtomicBool::new(false).load(Ordering::SeqCst);
            if let Some(locked) = self.0.try_lock() {
                return locked;
            }
        }
        self.0.lock()
    }
}
