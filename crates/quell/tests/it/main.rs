//! Integration tests of the library.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test stops where something is not as it must be"
)]

mod alone;
mod answers_from_memory;
mod directory_rules;
mod examples;
mod fallback;
mod flaky_store;
mod hold_bans;
mod holds;
mod learned;
mod lease_audit;
mod leased;
mod limiters;
mod memory;
mod outage_in_memory;
mod outages;
mod parallel;
mod rungs;
mod shares;
mod slow_model;
mod store_calls;
mod synced;
mod tower;
mod versions;
