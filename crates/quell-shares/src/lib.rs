//! Shares: divides one quota among the nodes of a fleet, each of which then decides alone.
//!
//! The simplest idea is to divide equally: four nodes share 1000/s as 250/s each. That is safe without
//! any communication, but what an idle node does not use is lost. So a coordinator moves shares to where
//! the demand is. Then one thing can go wrong: a node still uses a share that has meanwhile been given
//! to another node, because an answer was late, a clock was slow, a leader was paused, or its successor
//! did not know.
//!
//! Here a share is a *schedule* ([`schedule`]): first a lease, then at most the node's static share,
//! then the static share itself. The ends are part of the schedule, so no message is needed for a right
//! to end. For each member the coordinator ([`ledger`]) keeps every schedule that it sent since the last
//! one that it knows to be in force. They give an upper bound U(x) of what the member may use at any
//! later instant x. It grants r until E only if, for every x until E,
//!
//! ```text
//! r + sum over the others of U(x) <= R
//! ```
//!
//! Only an acknowledgement lowers U before its time.
//!
//! * [`leader`]: which coordinator takes over after one died.
//! * [`apportion`]: how much each member should get, a pure function.
//! * [`member`]: the node's side.
//! * [`cell`]: the bucket from which a node's threads take by a schedule.
//! * [`lease`]: the rung `leased`: a node takes units of a key from a shared store in advance.
//! * [`synced`]: the rung `synced`: a node admits from memory, and has it charged afterwards.
//! * [`audit`]: checks the promises, in the simulator and in production.
//!
//! All numbers are integers: rates in micro-units per second, tokens in micro-units, time in nanoseconds
//! of the local clock. Clocks are never compared with each other; a bound on how fast they drift apart
//! ([`plan::Drift`]) is enough.
//!
//! Bad at: quotas so small that a share is less than a few calls per report; see
//! [`plan::Plan::check`].
//!
//! Nothing here reads a clock or does I/O. A state machine takes an instant and an event, and returns
//! what to send and what to put in force.
#![cfg_attr(not(test), no_std, deny(clippy::float_arithmetic))]

extern crate alloc;

pub mod apportion;
pub mod audit;
pub mod cell;
mod curve;
mod effect;
pub mod generation;
pub mod leader;
pub mod lease;
pub mod ledger;
pub mod member;
pub mod message;
pub mod plan;
pub mod proof;
pub mod schedule;
mod store_rollback;
pub mod suspend_detector;
pub mod synced;

/// The examples of the crate's page.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
