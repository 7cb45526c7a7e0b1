//! The pure core of Quell: what a limit is, what a key has used, and what the answer must be.
//!
//! Nothing here reads a clock, does I/O, allocates without bound or can panic on any input. Time
//! comes in as a [`time::Now`]; what leaves is a [`decision::Decision`] or a [`verdict::Verdict`],
//! in which only durations stand.
//!
//! Open first: [`charge`] (how a set of charges is decided), [`algorithm`] (one module per
//! algorithm, each with its essay) and [`rule`] (from a query to its charges).
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
pub mod rate;
pub mod rate_limit_fields;
pub mod rule;
mod share;
mod short_list;
pub mod state;
pub mod time;
pub mod usage;
pub mod verdict;
