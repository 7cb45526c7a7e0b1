//! Node now: what changes every second of the page of a node.

use askama::Template;

use super::page_query::query;
use crate::report::{rate, some_rate, state};
use crate::status::{FleetStatus, NodeStatus};

/// Part of a node's page that changes every second.
#[derive(Template)]
#[template(path = "fleet/node_now.html")]
pub(super) struct NodeNow<'a> {
    pub(super) node: Option<&'a NodeStatus>,
    /// The limit that is shown over time.
    pub(super) limit: &'a str,
}

impl<'a> NodeNow<'a> {
    /// Shows the first limit of the node if none is said.
    pub(super) fn new(status: &'a FleetStatus, member: u32, limit: &'a str) -> Self {
        let node = status.nodes.iter().find(|node| node.member == member);
        let first = node.and_then(|node| node.limits.first());
        Self {
            limit: first
                .filter(|_| limit.is_empty())
                .map_or(limit, |first| &first.name),
            node,
        }
    }
}
