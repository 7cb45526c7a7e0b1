//! Locks of the waiters. The unit tests put others in their place, under which a scheduler
//! chooses who runs next at every step.

#[cfg(not(test))]
pub(crate) use parking_lot::Mutex;

#[cfg(test)]
pub(crate) use scheduled::Mutex;

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
