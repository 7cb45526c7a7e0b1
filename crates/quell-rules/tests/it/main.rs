//! The tests of the rules file, in one program.
//!
//! The modules are compiled under `cfg(test)` so that their helpers may unwrap.

#[cfg(test)]
mod advice;
#[cfg(test)]
mod bounds;
#[cfg(test)]
mod changes;
#[cfg(test)]
mod coming_from;
#[cfg(test)]
mod documented;
#[cfg(test)]
mod edited;
#[cfg(test)]
mod examples;
#[cfg(test)]
mod explained;
#[cfg(test)]
mod files;
#[cfg(test)]
mod gateways;
#[cfg(test)]
mod mistakes;
#[cfg(test)]
mod on_failure;
#[cfg(test)]
mod plans;
#[cfg(test)]
mod random;
#[cfg(test)]
mod resolved;
#[cfg(test)]
mod scenario_bounds;
#[cfg(test)]
mod scenarios;
#[cfg(test)]
mod shares;
#[cfg(test)]
mod sources;
#[cfg(test)]
mod subject;
#[cfg(test)]
mod warnings;
