//! Tests of the simulation: thousands of seeds keep every promise. That it notices what is wrong, the patches in
//! `mistakes` show, which `cargo xtask soak` tries.

#[cfg(test)]
mod cli;
#[cfg(test)]
mod leases;
#[cfg(test)]
mod odd_numbers;
#[cfg(test)]
mod promises;
#[cfg(test)]
mod synced;

/// The first seeds; with `QUELL_SEED`, which `cargo xtask soak` sets, others for each of its values.
#[cfg(test)]
pub(crate) fn seeds(most: u64) -> impl Iterator<Item = u64> {
    let round = std::env::var("QUELL_SEED").ok();
    let round: u64 = round.and_then(|seed| seed.parse().ok()).unwrap_or(0);
    let before = round.saturating_mul(10_000);
    (1..=most).map(move |seed| before.saturating_add(seed))
}
