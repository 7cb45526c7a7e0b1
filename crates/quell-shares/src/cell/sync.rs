//! Sync: the atomics of a cell. In unit tests they are loom's, which tries every order and every
//! value that the memory model allows.

#[cfg(not(test))]
pub(super) use core::sync::atomic::{AtomicU64, Ordering, fence};

#[cfg(test)]
pub(super) use loom::sync::atomic::{AtomicU64, Ordering, fence};
