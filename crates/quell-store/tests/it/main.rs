//! Integration tests of the layers over a shared store.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test stops where something is not as it must be"
)]

mod answers_from_memory;
mod fallback;
mod flaky_store;
mod lease_audit;
mod leased;
mod outage_in_memory;
mod outages;
mod recovery;
mod remote_model;
mod rules;
mod rungs;
mod shares;
mod store_calls;
mod synced;
