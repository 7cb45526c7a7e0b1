//! Locks and flags whose order matters. In a model test a scheduler chooses who runs next at each of
//! them; elsewhere they are those of `parking_lot` and `std`.

#[cfg(not(test))]
pub(crate) use parking_lot::Mutex;
#[cfg(all(not(test), feature = "remote"))]
pub(crate) use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(test)]
pub(crate) use model::Mutex;
#[cfg(test)]
pub(crate) use shuttle::sync::atomic::{AtomicBool, Ordering};

#[cfg(test)]
pub(crate) mod model {
    use std::cell::Cell;

    use parking_lot::MutexGuard;
    use shuttle::sync::atomic::{AtomicBool, Ordering};

    thread_local! {
        static IS_ON: Cell<bool> = const { Cell::new(false) };
    }

    /// Ends with the model, however that ends.
    struct On;

    impl Drop for On {
        fn drop(&mut self) {
            IS_ON.set(false);
        }
    }

    /// Runs `run` under so many schedules.
    pub(crate) fn check(schedules: usize, run: impl Fn() + Send + Sync + 'static) {
        let _on = On;
        IS_ON.set(true);
        shuttle::check_random(run, schedules);
    }

    /// Whether this is part of a model. After a failure nobody chooses any more.
    fn is_on() -> bool {
        IS_ON.get() && !std::thread::panicking()
    }

    /// A lock with the face of `parking_lot`'s.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(parking_lot::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            while is_on() {
                // Who goes on is chosen here. Not by yielding, which would wake the task that runs: a
                // wake-up that is missing would not show.
                AtomicBool::new(false).load(Ordering::SeqCst);
                if let Some(locked) = self.0.try_lock() {
                    return locked;
                }
            }
            self.0.lock()
        }
    }
}
