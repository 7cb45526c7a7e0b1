//! Integration tests of the library.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test stops where something is not as it must be"
)]

mod alone;
mod calendar_edges;
mod directory_rules;
mod embedded_overrides;
mod examples;
mod hold_bans;
mod holds;
mod learned;
mod limiters;
mod lost_answers;
mod memory;
mod overrides;
mod parallel;
mod tower;
mod versions;
