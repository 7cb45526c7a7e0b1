//! Sync: the atomics of a line, and how to wait for one. In unit tests they are those of loom, which
//! tries every order that the memory model allows; so no unit test can use a table, and those that do
//! stand in `tests/it`.

#[cfg(not(test))]
pub(super) use std::sync::atomic::{AtomicU64, Ordering, fence};

#[cfg(test)]
pub(super) use loom::sync::atomic::{AtomicU64, Ordering, fence};

/// Tries before the thread lets another one run.
#[cfg(not(test))]
const SPINS: u32 = 64;

/// Tries before the thread sleeps: whoever holds the lock may have a lower priority.
#[cfg(not(test))]
const YIELDS: u32 = 1_024;

/// How long it sleeps.
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
pub(super) fn pause(_tries: u32) {
    loom::thread::yield_now();
}
