//! The coordinator of a fleet: the process that shares out quotas to the nodes.
//!
//! [`quell_shares`] decides who may have what; this crate gives it a clock, a configuration store and
//! messages.
//!
//! * [`store`]: the configuration store, etcd or a file.
//! * [`session`]: the leader's key, campaigned for and kept.
//! * [`codec`]: what is stored, as bytes.
//! * [`leader`]: the task that drives the state machine.
//! * [`rules`]: rules in the configuration store, as versions.
//! * [`handout`]: the rules that nodes are given, and what they say of them.
//! * [`seen`]: what nodes say of their calls, added up.
//! * [`limits`]: which rules are limits of the fleet.
//! * [`listen`], [`attend`]: the sockets, and the streams of members on them; [`gate`] says who may speak,
//!   [`budget`] how many bytes they may take.
//! * [`admin`]: the API for operators; [`status`], [`report`], [`metrics`] and [`trail`] are what it shows.
//!
//! What must not happen here: a decision about a share, which is the business of `quell-shares`; and a
//! write to the store that is not fenced by the leader's key.

pub mod admin;
pub mod attend;
pub mod budget;
mod by_member;
mod callers;
pub mod clock;
pub mod codec;
pub mod disk;
pub mod gate;
pub mod handout;
pub mod leader;
pub mod limits;
pub mod listen;
pub mod metrics;
pub mod name;
pub mod report;
pub mod rules;
pub mod seen;
pub mod session;
pub mod status;
pub mod store;
pub mod trail;

/// The examples of the crate's page.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
