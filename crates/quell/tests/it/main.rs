//! Integration tests of the library.
#![expect(
    clippy::unwrap_used,
    reason = "a test stops where something is not as it must be"
)]

mod holding;
mod limiters;
mod memory;
