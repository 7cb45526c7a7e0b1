//! Locks of the local shares. The unit tests put others in their place, under which a scheduler
//! chooses who runs next at every step.

#[cfg(not(test))]
pub(super) use parking_lot::Mutex;

#[cfg(not(test))]
pub(super) use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(test)]
pub(super) use scheduled::Mutex;

#[cfg(test)]
pub(super) use shuttle::sync::atomic::{AtomicBool, Ordering};

#[cfg(test)]
mod scheduled {
    use shuttle::sync::MutexGuard;

    /// A lock with the face of `parking_lot`'s.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().expect("nobody panics with it")
        }
    }
}
