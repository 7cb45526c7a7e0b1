//! Integration tests of the core: the promises as properties compared with an oracle, and tables of
//! the edges.
//!
//! The modules are compiled under `cfg(test)` so that their helpers may unwrap.

#[cfg(test)]
mod adaptive;
#[cfg(test)]
mod adjustments;
#[cfg(test)]
mod answers;
#[cfg(test)]
mod bans;
#[cfg(test)]
mod bench;
#[cfg(test)]
mod bounds;
#[cfg(test)]
mod buckets;
#[cfg(test)]
mod calendar;
#[cfg(test)]
mod carry;
#[cfg(test)]
mod clocks;
#[cfg(test)]
mod extremes;
#[cfg(test)]
mod hold_sets;
#[cfg(test)]
mod hold_tables;
#[cfg(test)]
mod holds;
#[cfg(test)]
mod index;
#[cfg(test)]
mod keys;
#[cfg(test)]
mod kind;
#[cfg(test)]
mod nonsense;
#[cfg(test)]
mod oracle;
#[cfg(test)]
mod overdraft;
#[cfg(test)]
mod refusal_pages;
#[cfg(test)]
mod reloads;
#[cfg(test)]
mod rules;
#[cfg(test)]
mod seldom;
#[cfg(test)]
mod sets;
#[cfg(test)]
mod shop;
#[cfg(test)]
mod table;
#[cfg(test)]
mod trace;
#[cfg(test)]
mod truths;
#[cfg(test)]
mod verdicts;
#[cfg(test)]
mod versions;
#[cfg(test)]
mod warm_up;
#[cfg(test)]
mod windows;

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
