//! The coordinator of a fleet: the process that shares out quotas to the nodes.
//!
//! [`quell_shares`] decides who may have what; this crate gives it a clock, a configuration store and
//! messages.
//!
//! * [`store`]: the configuration store, etcd or a file.
//! * [`session`]: the leader's key, campaigned for and kept.
//! * [`codec`]: what is stored, as bytes.
//! * [`leader`]: the task that drives the state machine.
//! * [`config_rules`]: rules in the configuration store, as versions.
//! * `etcd_overrides`: stored overrides in etcd, with the feature `etcd`.
//! * [`rule_distribution`]: the rules that nodes are given, and what they say of them.
//! * [`call_reports`]: what nodes say of their calls, added up.
//! * [`limits`]: which rules are limits of the fleet.
//! * [`listen`], [`fleet_service`]: the sockets, and the streams of members on them; [`gate`] says who may speak,
//!   [`budget`] how many bytes they may take.
//! * [`admin`]: the API for operators; [`status`], [`report`], [`metrics`] and [`audit_trail`] are what it shows.
//!
//! [`serve`] runs all of it, as a [`Config`] says: `quell fleet coordinator` does so, until a signal comes. A
//! [`demo`] has nodes beside it.
//!
//! Forbidden here: a decision about a share, which is the business of `quell-shares`; and a
//! write to the store that is not fenced, by the leader's key, or by the head of the stored overrides.

pub mod admin;
pub mod audit_trail;
mod auth;
pub mod budget;
pub mod call_reports;
pub mod clock;
pub mod codec;
pub mod config;
pub mod config_rules;
mod console;
pub mod demo;
pub mod disk;
mod error;
#[cfg(feature = "etcd")]
pub mod etcd_overrides;
pub mod fleet_service;
pub mod gate;
mod history;
pub mod leader;
pub mod limits;
pub mod listen;
mod member_reports;
pub mod metrics;
pub mod name;
mod override_register;
pub mod report;
pub mod rule_distribution;
mod rule_follower;
mod rules_trouble;
mod serve;
pub mod session;
mod sockets;
pub mod status;
pub mod store;
pub mod text_values;

pub use config::Config;
pub use error::ServeError;
pub use serve::{CONNECTIONS, CoordinatorServer, serve};

/// The examples of the crate's page.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
