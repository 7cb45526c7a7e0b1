//! Integration tests of the wire: messages there and back, arbitrary bytes, a stream over loopback.
//!
//! The modules are compiled under `cfg(test)` so that their helpers may unwrap.

#[cfg(test)]
mod stream;
#[cfg(test)]
mod wire;
