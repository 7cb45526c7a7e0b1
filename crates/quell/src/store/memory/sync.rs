//! Sync: the atomics and locks of the store, and how to wait for a line's lock.
//!
//! In unit tests they are loom's, which tries every order that the memory model allows. A unit test
//! of the store therefore runs inside `loom::model` and on a table of a few small lines; all other
//! tests are in `tests/it`.

#[cfg(not(test))]
pub(super) use arc_swap::ArcSwap;
#[cfg(not(test))]
pub(super) use parking_lot::Mutex;
#[cfg(not(test))]
pub(super) use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

#[cfg(test)]
pub(super) use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(test)]
pub(super) use modelled::{ArcSwap, Mutex};

/// Tries before the thread yields.
#[cfg(not(test))]
const SPINS: u32 = 64;

/// Tries before the thread sleeps: the holder of the lock may have a lower priority.
#[cfg(not(test))]
const YIELDS: u32 = 1_024;

/// Duration of a sleep.
#[cfg(not(test))]
const NAP: std::time::Duration = std::time::Duration::from_micros(50);

/// Waits a little for a lock that was held `tries` times before.
#[cfg(not(test))]
pub(super) fn pause(tries: u32) {
    match tries {
        ..SPINS => std::hint::spin_loop(),
        SPINS..YIELDS => std::thread::yield_now(),
        YIELDS.. => std::thread::sleep(NAP),
    }
}

#[cfg(test)]
pub(super) fn pause(tries: u32) {
    // Each time, all others have gone on as far as they can.
    assert!(tries < 20, "a lock is waited for for ever");
    loom::thread::yield_now();
}

#[cfg(test)]
mod modelled {
    use std::ops::Deref;
    use std::sync::Arc;

    use loom::sync::MutexGuard;

    /// A lock with the interface of `parking_lot`'s.
    #[derive(Debug, Default)]
    pub(in super::super) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(in super::super) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap()
        }

        pub(in super::super) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().ok()
        }
    }

    /// A pointer that is replaced in one step, with the interface of `arc_swap`'s.
    #[derive(Debug, Default)]
    pub(in super::super) struct ArcSwap<T>(Mutex<Arc<T>>);

    impl<T> ArcSwap<T> {
        pub(in super::super) fn load(&self) -> impl Deref<Target = Arc<T>> + use<T> {
            Box::new(Arc::clone(&self.0.lock()))
        }

        pub(in super::super) fn swap(&self, next: Arc<T>) -> Arc<T> {
            std::mem::replace(&mut self.0.lock(), next)
        }
    }
}
