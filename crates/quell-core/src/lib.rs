//! The pure core of Quell: limits, the states of keys, and decisions.
//!
//! Nothing here reads a clock, does I/O, allocates without bound, or panics on any input. Time comes in
//! as a [`time::Now`]. A [`decision::Decision`] or a [`verdict::Verdict`] goes out, which contain only
//! durations.
//!
//! Read first: [`charge`] (how a set of charges is decided), [`algorithm`] (one module per algorithm,
//! explained at its top) and [`rule`] (how a query becomes charges).
#![cfg_attr(not(test), no_std)]

extern crate alloc;

pub mod algorithm;
pub mod ban;
pub mod bucket_replay;
pub mod charge;
pub mod claim;
pub mod cost;
pub mod debt;
pub mod decision;
pub mod descriptor;
pub mod end_hold;
pub mod hold;
pub mod key;
pub mod limit;
pub mod limit_error;
pub mod limit_spec;
pub mod on_failure;
pub mod packed;
pub mod path;
pub mod policy;
pub mod rate;
pub mod rate_limit_fields;
pub mod rule;
mod share;
mod short_list;
pub mod state;
pub mod ticket;
pub mod time;
pub mod usage;
pub mod verdict;
