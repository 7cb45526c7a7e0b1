//! Fleet: nodes of a fleet, and what they and its coordinators say to each other, over gRPC.
//!
//! The protocol's state machines are in `quell-shares`. [`agent`] makes a process a node; [`service`], [`wire`]
//! and [`proto`] carry the messages, [`wire_rules`] the rules that coordinators hand out, [`wire_overrides`] the
//! stored overrides that they keep, [`call_report`] what servers say of their calls, [`terms`] what a credential lets
//! its bearer be, [`disk`] replaces files. A member keeps one stream to its coordinator
//! ([`service::FleetClient`]): requests go one way, answers and pushes the other. Every message is complete in itself,
//! so a stream may break at any time and nothing needs to be sent again.
//!
//! # A program as a node
//!
//! A program limits itself by rules that it shares with the other nodes; `quell fleet coordinator` reads the
//! same rules. Until a coordinator has answered, the node has what its file says, which is nothing when it
//! starts for the first time.
//!
//! ```
//! use std::sync::Arc;
//!
//! use quell::clock::SystemClock;
//! use quell::store::memory::MemoryStore;
//! use quell_store::shares::SharesStore;
//! use quell::{Limiter, Query};
//! use quell_core::rule::all_shared_limits;
//! use quell_fleet::agent::{Connector, Credentials, Fleet, FleetOptions, MemberId};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let rules = quell_rules::parse_str(
//!     "shop.yaml",
//!     "domain: shop
//! rules: [{ name: api, rate: 300/s, burst: 60, rung: shares, cluster_size: auto }]",
//! )
//! .map_err(|problems| format!("{problems:?}"))?;
//!
//! let clock = Arc::new(SystemClock::new());
//! let fleet = Fleet::start(FleetOptions {
//!     coordinators: vec!["http://127.0.0.1:7600".parse()?],
//!     member: MemberId(1),
//!     weight: 1,
//!     groups: Vec::new(),
//!     credentials: Credentials::default(),
//!     connector: Connector::tcp(),
//!     file: None,
//!     follow_rules: false,
//!     clock: Arc::clone(&clock) as _,
//! })?;
//! // Which of the rules' limits are shared, and by which name coordinators know them.
//! let limits = all_shared_limits(&rules.domains)?;
//! let names = limits.iter().map(|(_, limit)| (&*limit.key, limit.name.as_str().into()));
//! fleet.shares().set_keys(names);
//!
//! let store = SharesStore::new(MemoryStore::new(), fleet.shares().clone());
//! let limiter = Limiter::builder(store).clock(clock as _).build();
//! limiter.set_rules(rules.domains.clone())?;
//!
//! // In memory: no call waits for a coordinator.
//! let verdict = limiter.try_acquire_local(&Query::new("shop"))?;
//! # assert!(!verdict.is_allow(), "nobody has granted anything yet");
//! println!("{verdict:?}, as {:?}", fleet.status().borrow().limit("api"));
//!
//! // Before the program ends, so that the others have its part at once.
//! fleet.leave().await;
//! # Ok(())
//! # }
//! ```
//!
//! # The messages
//!
//! ```
//! use quell_fleet::{proto, wire};
//! use quell_shares::message::{Leave, Request};
//! use quell_shares::plan::MemberId;
//!
//! let leave = Request::Leave(Leave { member: MemberId(7), incarnation: 3 });
//! let sent: proto::Request = wire::encode_request(&leave);
//! assert_eq!(wire::decode_request(sent), Ok(leave));
//! ```

pub mod agent;
pub mod call_report;
pub mod disk;
pub mod proto;
pub mod service;
pub mod terms;
pub mod wire;
pub mod wire_overrides;
pub mod wire_rules;

/// The examples of the crate's page.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
