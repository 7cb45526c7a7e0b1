//! Integration tests of the fleet's plain functions, as properties; the simulator tests its state
//! machines.
//!
//! The modules are compiled under `cfg(test)` so that their helpers may unwrap.

#[cfg(test)]
mod apportion;
#[cfg(test)]
mod audit;
#[cfg(test)]
mod cell;
#[cfg(test)]
mod demand;
#[cfg(test)]
mod key_audit;
mod lease;
#[cfg(test)]
mod liar;
#[cfg(test)]
mod member;
#[cfg(test)]
mod operate;
#[cfg(test)]
mod plan;
#[cfg(test)]
mod proof;
#[cfg(test)]
mod restored;
#[cfg(test)]
mod schedule;
#[cfg(test)]
mod support;
mod synced;
#[cfg(test)]
mod witnesses;

/// This many cases, whatever the environment says. A failing case is printed, shrunk, and not
/// stored in a file.
#[cfg(test)]
fn config(cases: u32) -> proptest::test_runner::Config {
    proptest::test_runner::Config {
        cases,
        failure_persistence: None,
        ..proptest::test_runner::Config::default()
    }
}
