//! The seeded simulation of Quell fleets: one seed, one queue of events, no threads and no clock.
//!
//! It drives the state machines of [`quell_shares`] as a node and a coordinator would, over a
//! network that loses, doubles and delays, with processes that stop and die and clocks that drift,
//! and checks after every event what the protocol promises. A seed replays to the same event.

pub mod check;
pub mod clock;
pub mod coordinator;
pub mod fault;
pub mod figure;
pub mod many;
pub mod meter;
pub mod mix;
pub mod node;
pub mod rng;
pub mod run;
pub mod schedules;
pub mod setup;
pub mod store;
pub mod stories;
pub mod sum;
pub mod summary;
pub mod world;
