//! Integration tests: messages there and back, arbitrary bytes, a stream over loopback, and a node against
//! a scripted coordinator: what it obeys, and when it speaks.
//!
//! The modules are compiled under `cfg(test)` so that their helpers may unwrap.

#[cfg(test)]
mod agent;
#[cfg(test)]
mod coordinator;
#[cfg(test)]
mod pace;
#[cfg(test)]
mod rules;
#[cfg(test)]
mod stream;
#[cfg(test)]
mod wire;
