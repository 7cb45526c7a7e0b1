//! Tests of the simulation: thousands of seeds keep every promise, and every deliberate mistake
//! breaks one.

#[cfg(test)]
mod cli;
#[cfg(test)]
mod leases;
#[cfg(test)]
mod promises;
#[cfg(test)]
mod synced;
#[cfg(test)]
mod teeth;
