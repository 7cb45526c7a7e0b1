//! Integration tests of the fleet's plain functions, as properties; its state machines are tried
//! by the simulator.
//!
//! The modules stand under `cfg(test)` so that their helpers may unwrap.

#[cfg(test)]
mod apportion;
#[cfg(test)]
mod audit;
#[cfg(test)]
mod liar;
#[cfg(test)]
mod plan;
#[cfg(test)]
mod schedule;

/// So many cases, whatever the environment says; what fails is printed, small, and not kept in
/// files.
#[cfg(test)]
fn config(cases: u32) -> proptest::test_runner::Config {
    proptest::test_runner::Config {
        cases,
        failure_persistence: None,
        ..proptest::test_runner::Config::default()
    }
}
