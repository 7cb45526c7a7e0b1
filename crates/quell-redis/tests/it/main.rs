//! The Redis store against real servers. Every test starts its own, on a free port of this machine,
//! and stops it; without a `redis-server` it fails and says so.
#![expect(clippy::large_futures, reason = "each future of a test is made once")]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on says so by panicking"
)]

mod bans;
mod batch;
mod cluster;
mod colocated;
mod conformance;
mod debts;
mod degraded;
mod denied;
mod examples;
mod expiry;
mod extremes;
mod fallback;
mod faults;
mod foreign;
mod hold_fallback;
mod hold_nodes;
mod hold_nodes_in_slots;
mod hold_numbers;
mod hold_traces;
mod hold_traces_in_slots;
mod hostile_time;
mod learned;
mod leased;
mod limits;
mod long_states;
mod lost_memory;
mod lost_primary;
mod mixed_rungs;
mod moving;
mod overload;
mod patience;
mod policy;
mod processes;
mod redis_overrides;
mod redis_rules;
mod returns;
mod rights;
mod sent_once;
mod sentinel;
mod server;
mod stampede;
mod synced;
mod two_nodes;
mod versions;
mod weather;
