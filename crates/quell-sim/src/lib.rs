//! The seeded simulation of Quell fleets: one seed, one queue of events, no threads and no clock.
//!
//! It drives the state machines of [`quell_shares`] as a node and a coordinator would. The network
//! loses, duplicates and delays messages, processes stop and die, and clocks drift. After every
//! event it checks what the protocol promises. A seed always replays to the same events.

mod audit;
pub mod check;
pub mod clock;
pub mod coordinator;
pub mod fault;
pub mod figure;
mod lease_ledger;
pub mod leases;
pub mod many;
pub mod meter;
pub mod mix;
pub mod node;
pub mod rng;
pub mod run;
pub mod schedules;
pub mod setup;
pub mod shared_key;
pub mod shared_store;
pub mod store;
pub mod stories;
pub mod sum;
pub mod summary;
pub mod synced;
pub mod utilisation;
pub mod world;
