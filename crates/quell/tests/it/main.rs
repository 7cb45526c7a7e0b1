//! Integration tests of the library.

mod limiters;
mod memory;
