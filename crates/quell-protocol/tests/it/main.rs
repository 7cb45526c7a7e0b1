//! Bytes in, bytes out: the wires as their clients see them.
//!
//! The modules are compiled under `cfg(test)` so that their helpers may unwrap.

#[cfg(test)]
mod authorize;
#[cfg(test)]
mod commands;
#[cfg(test)]
mod fields;
#[cfg(test)]
mod frames;
#[cfg(test)]
mod keys;
#[cfg(test)]
mod nonsense;
#[cfg(test)]
mod pieces;
#[cfg(test)]
mod problems;
#[cfg(test)]
mod queries;
#[cfg(test)]
mod replies;
#[cfg(test)]
mod session;
#[cfg(test)]
mod support;
#[cfg(test)]
mod throttle;
#[cfg(test)]
mod verdicts;
