//! Page query: what a page of the fleet is asked to show.

use quell_host::console::page::Fields;
use quell_host::history::Span;

use super::chart::View;
use crate::report::state;
use crate::status::{FleetStatus, NodeStatus};

/// A person's choice of view.
#[derive(Clone, Debug, Default)]
pub(super) struct PageQuery {
    /// The limit whose shares are shown; empty: the first.
    pub(super) limit: String,
    /// Only nodes whose number begins so, or that are in this state.
    pub(super) find: String,
    /// Number of them shown on the pages before.
    pub(super) from: usize,
    /// Instead the only node that is shown.
    pub(super) node: Option<u32>,
    /// The charts go back a day, and not an hour.
    pub(super) is_day: bool,
    /// Instead the rules that run in shadow.
    pub(super) has_candidate: bool,
}

impl PageQuery {
    pub(super) fn new(asked: &Fields) -> Self {
        Self {
            limit: asked.get("limit").to_owned(),
            find: asked.get("find").to_owned(),
            from: asked.get("from").parse().unwrap_or_default(),
            node: asked.get("node").parse().ok(),
            is_day: asked.get("span") == "day",
            has_candidate: asked.get("of") == "candidate",
        }
    }

    /// The same query with another limit, or from another node.
    pub(super) fn query(&self, limit: &str, from: usize) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair("limit", limit);
        if !self.find.is_empty() {
            query.append_pair("find", &self.find);
        }
        if from > 0 {
            query.append_pair("from", &from.to_string());
        }
        if self.is_day {
            query.append_pair("span", "day");
        }
        query.finish()
    }

    /// Queries for charts of an hour and of a day, and whether they are shown.
    pub(super) fn spans(&self, limit: &str) -> [(&'static str, String, bool); 2] {
        [("1 hour", false), ("1 day", true)].map(|(name, is_day)| {
            let page_query = Self {
                is_day,
                ..self.clone()
            };
            (
                name,
                page_query.query(limit, self.from),
                is_day == self.is_day,
            )
        })
    }

    /// The charts' view of a limit.
    pub(super) const fn view<'a>(&self, limit: &'a str) -> View<'a> {
        let (node, span) = (self.node, if self.is_day { Span::Day } else { Span::Hour });
        View { limit, node, span }
    }

    /// The limit that is shown.
    pub(super) fn limit<'a>(&'a self, status: &'a FleetStatus) -> &'a str {
        match status.limits.first() {
            Some(first) if self.limit.is_empty() => &first.name,
            _ => &self.limit,
        }
    }

    pub(super) fn is_of(&self, node: &NodeStatus) -> bool {
        let find = self.find.trim().to_ascii_lowercase();
        let number = find.strip_prefix("node-").unwrap_or(&find);
        node.member.to_string().starts_with(number) || state(node.state).starts_with(&find)
    }
}

/// Query for the overview with this limit.
pub(super) fn query(limit: &str) -> String {
    PageQuery::default().query(limit, 0)
}
