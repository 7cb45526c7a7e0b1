//! Fleet: nodes of a fleet, and what they and its coordinators say to each other, over gRPC.
//!
//! The protocol's state machines are in `quell-shares`. [`agent`] makes a process a node; [`wire`] and
//! [`proto`] carry the messages, [`rules`] the rules that coordinators hand out. A member
//! keeps one stream to its coordinator ([`proto::fleet_client::FleetClient`]): requests go one way,
//! answers and pushes the other. Every message is complete in itself, so a stream may break at any
//! time and nothing needs to be sent again.
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

// Only generated code uses it.
use tonic_prost as _;

pub mod agent;
pub mod rules;
pub mod wire;

/// The messages and the service of package `quell.fleet.v1`, as generated from its `.proto` file.
pub mod proto {
    #![expect(
        missing_docs,
        unused_qualifications,
        reason = "generated; fleet.proto describes the fields"
    )]

    tonic::include_proto!("quell.fleet.v1");
}
