//! The pure core of Quell: limits, the states of keys, and decisions. For those who write a store, or a
//! listener for another protocol; a program that limits itself needs only the crate `quell`.
//!
//! Nothing here reads a clock, does I/O, allocates without bound, or panics on any input. Time comes in
//! as a [`time::Now`]. A [`decision::Decision`] or a [`verdict::Verdict`] goes out, which contain only
//! durations.
//!
//! Read first: [`charge`] (how a set of charges is decided), [`algorithm`] (one module per algorithm,
//! explained at its top) and [`rule`] (how a query becomes charges).
//!
//! Some modules are public for the other crates of Quell alone. They are hidden here, and may change in
//! any version.
#![cfg_attr(not(test), no_std, deny(clippy::float_arithmetic))]

extern crate alloc;

#[doc(hidden)]
pub mod account;
pub mod actual;
#[doc(hidden)]
pub mod address;
pub mod adjustment;
pub mod algorithm;
pub mod ban;
#[doc(hidden)]
pub mod bucket_replay;
pub mod charge;
pub mod claim;
pub mod cost;
#[doc(hidden)]
pub mod debt;
pub mod decision;
pub mod descriptor;
pub mod end_hold;
pub mod fleet_share;
#[doc(hidden)]
pub mod forwarded;
pub mod hold;
pub mod key;
pub mod limit;
pub mod limit_error;
pub mod limit_spec;
pub mod on_failure;
pub mod over_admission;
#[doc(hidden)]
pub mod packed;
pub mod path;
pub mod policy;
pub mod query_bounds;
pub mod rate;
pub mod rate_limit_fields;
pub mod refusal_page;
pub mod rule;
mod share;
mod short_list;
pub mod state;
#[doc(hidden)]
pub mod ticket;
pub mod time;
pub mod usage;
pub mod verdict;

/// The examples of the crate's page.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
