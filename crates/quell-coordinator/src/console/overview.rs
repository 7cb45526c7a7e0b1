//! Overview: the limits and the nodes of a fleet, now and over time.

use std::sync::Arc;

use crate::call_reports::{CallsStatus, KeyStatus};
use crate::status::{FleetStatus, LimitStatus, NodeStatus, ShareStatus};
use askama::Template;
use axum::extract::{Request, State};
use quell_host::console::candidate::candidate_now;
use quell_host::console::key_table::{FleetCalls, Key};
use quell_host::console::page::{Fields, PageResult, Viewer};
use quell_host::console::shell::{Watcher, chart_event, event, events};
use quell_host::refused_key::between;
use tokio::sync::watch;

use super::Console;
use super::chart::{self, Drawn, View};
use super::node_now::NodeNow;
use super::page_query::{PageQuery, query};
use crate::report::{
    Kind, head, key_words, notes, now_ms, rate, some_percent, some_rate, state,
    troubles_and_others, whose, within,
};
use quell_host::wait;

/// Nodes on a page.
const MAX_NODES: usize = 100;

#[derive(Template)]
#[template(path = "fleet/overview.html")]
struct Overview<'a> {
    page_query: &'a PageQuery,
    spans: [(&'static str, String, bool); 2],
    asked: Fields,
    limit: String,
    query: String,
    limits: &'a [LimitStatus],
    /// The chart in words.
    words: Option<String>,
    now: Now<'a>,
}

/// Part updated each second.
#[derive(Template)]
#[template(path = "fleet/now.html")]
struct Now<'a> {
    viewer: &'a Viewer,
    status: &'a FleetStatus,
    /// Troubles are read first.
    troubles: Vec<(Kind, String)>,
    head: String,
    notes: Vec<(Kind, String)>,
    calls: Option<FleetCalls>,
    limits: Vec<LimitRow<'a>>,
    limit: String,
    /// With what each has of the limit.
    nodes: Vec<(&'a NodeStatus, Option<&'a ShareStatus>)>,
    /// Number of nodes like that.
    found: usize,
    /// The first and the last that are shown, from 1.
    first: usize,
    last: usize,
    before: Option<String>,
    after: Option<String>,
}

struct LimitRow<'a> {
    limit: &'a LimitStatus,
    address: String,
    demand: f64,
    admitted: f64,
}

impl LimitRow<'_> {
    /// Or nodes have parts of a larger limit.
    fn is_within(&self) -> bool {
        self.limit.may_use_per_s <= self.limit.rate_per_s
    }
}

impl<'a> Now<'a> {
    fn new(viewer: &'a Viewer, status: &'a FleetStatus, page_query: &PageQuery) -> Self {
        let limit = page_query.limit(status);
        let found = status.nodes.iter().filter(|node| page_query.is_of(node));
        let found: Vec<_> = found.collect();
        let from = page_query.from.min(found.len().saturating_sub(1));
        let shown = found.iter().skip(from).take(MAX_NODES);
        let nodes = shown.map(|node| {
            let share = node.limits.iter().find(|share| share.name == limit);
            (*node, share)
        });
        let nodes: Vec<_> = nodes.collect();
        let last = from + nodes.len();
        let page = |from| Some(format!("?{}", page_query.query(limit, from)));
        let (troubles, notes) = troubles_and_others(notes(status, now_ms()));
        Self {
            viewer,
            troubles,
            head: head(status),
            notes,
            calls: status.calls.as_ref().map(|calls| of_calls(status, calls)),
            limits: limit_rows(status, page_query),
            found: found.len(),
            first: from + 1,
            last,
            before: page(from.saturating_sub(MAX_NODES)).filter(|_| from > 0),
            after: page(last).filter(|_| last < found.len()),
            limit: limit.to_owned(),
            nodes,
            status,
        }
    }

    /// URL of the leader's console, if this is not it.
    fn leader(&self) -> Option<&str> {
        let leader = self.status.leader.as_ref().filter(|_| !self.status.leads);
        leader.and_then(|leader| leader.admin.as_deref())
    }
}

/// Nodes' reports on their calls.
fn of_calls(status: &FleetStatus, calls: &CallsStatus) -> FleetCalls {
    let seconds = |ms: u64| wait::words(ms.next_multiple_of(1_000));
    let row = |key: &KeyStatus, value, why: Option<&String>| Key {
        domain: key.domain.clone(),
        rule: key.rule.clone(),
        entries: key_words(&key.entries),
        value,
        why: why.map(|why| why.as_str().into()),
        ..Key::default()
    };
    let per_s = |per_s| format!("{}/s", rate(per_s));
    FleetCalls {
        whose: whose(status, calls),
        tiles: [
            ("allowed", per_s(calls.allowed_per_s)),
            ("denied", per_s(calls.denied_per_s)),
            ("denied in shadow", per_s(calls.would_refuse_per_s)),
            ("answered degraded", per_s(calls.degraded_per_s)),
            ("half decided within", within(calls.p50_ns)),
            ("99 % decided within", within(calls.p99_ns)),
        ],
        refused: { calls.refused.iter() }
            .map(|one| row(&one.key, between(one.at_least..=one.refusals), None))
            .collect(),
        bans: { calls.bans.iter() }
            .map(|ban| row(&ban.key, seconds(ban.left_ms), ban.reason.as_ref()))
            .collect(),
        window: seconds(calls.refused_window_ms),
        total: between(calls.bans_at_least..=calls.bans_at_most),
        bans_unknown: calls.bans_unknown_nodes,
    }
}

fn limit_rows<'a>(status: &'a FleetStatus, page_query: &PageQuery) -> Vec<LimitRow<'a>> {
    let mut sums = std::collections::HashMap::<&str, (f64, f64)>::new();
    for share in status.nodes.iter().flat_map(|node| &node.limits) {
        let (demand, admitted) = sums.entry(&share.name).or_default();
        *demand += share.demand_per_s;
        *admitted += share.admitted_per_s.unwrap_or_default();
    }
    let row = |limit: &'a LimitStatus| {
        let (demand, admitted) = sums.get(&*limit.name).copied().unwrap_or_default();
        LimitRow {
            limit,
            address: format!("?{}", page_query.query(&limit.name, page_query.from)),
            demand,
            admitted,
        }
    };
    status.limits.iter().map(row).collect()
}

pub(super) async fn page(State(console): State<Arc<Console>>, request: Request) -> PageResult {
    let viewer = &console.shell.reader(&request)?;
    let asked = Fields::new(&request);
    let page_query = PageQuery::new(&asked);
    let status = FleetStatus::from_service(&console.admin.service).await;
    let now = Now::new(viewer, &status, &page_query);
    let of_all = View {
        node: None,
        ..page_query.view(&now.limit)
    };
    let page = Overview {
        limit: now.limit.clone(),
        query: page_query.query(&now.limit, page_query.from),
        spans: page_query.spans(&now.limit),
        page_query: &page_query,
        asked,
        limits: &status.limits,
        words: chart::words(&console.history, of_all),
        now,
    };
    console.shell.page("Fleet", viewer, &page)
}

/// An open stream.
struct Live {
    console: Arc<Console>,
    watcher: Watcher,
    page_query: PageQuery,
    now: watch::Receiver<Option<Arc<FleetStatus>>>,
    drawn: Drawn,
}

pub(super) async fn live(State(console): State<Arc<Console>>, request: Request) -> PageResult {
    let viewer = console.shell.reader(&request)?;
    let live = Live {
        watcher: Watcher::new(&console.shell, viewer, &request)?,
        page_query: PageQuery::new(&Fields::new(&request)),
        now: console.now.subscribe(),
        drawn: Drawn::default(),
        console,
    };
    Ok(events(live, |mut live| async {
        live.now.changed().await.ok()?;
        let status = live.now.borrow_and_update().clone()?;
        if live.watcher.is_over() {
            return None;
        }
        let events = live.events(&status)?;
        Some((events, live))
    }))
}

impl Live {
    /// The events of a second.
    fn events(&mut self, status: &FleetStatus) -> Option<String> {
        let page_query = &self.page_query;
        if page_query.has_candidate {
            return Some(event("now", &candidate_now(&*self.console.rules)));
        }
        let now = match page_query.node {
            Some(member) => NodeNow::new(status, member, &page_query.limit).render(),
            None => Now::new(self.watcher.viewer(), status, page_query).render(),
        };
        let mut events = event("now", &now.ok()?);
        let history = &self.console.history;
        if let Some(chart) = self.drawn.news(history, page_query.view(&page_query.limit)) {
            events += &chart_event("shares", &chart)?;
        }
        Some(events)
    }
}

#[cfg(test)]
mod tests {
    use quell_host::access::Caller;

    use super::*;

    fn status(leads: bool) -> FleetStatus {
        let text = format!(
            r#"{{"leads": {leads}, "leader": {{"url": "https://a:7600", "admin": "https://a:7601"}},
            "store_trouble": null, "refused": "the rates are <too> small", "restored": null, "epoch": "1",
            "grants": true, "revision": "2", "awaits_nodes": false, "answered_window_s": 30, "rejected_joins": [],
            "waits": true, "rollout": null, "applied": 0, "nodes": [],
            "limits": [{{"name": "a&b", "group": null, "rate_per_s": 10, "may_use_per_s": 11,
            "held_by_silent_per_s": 0, "most_per_s": 0, "reserved_per_s": 0, "shortage": null,
            "asked_total": 0, "refused_total": 0, "degraded_total": 0}}]}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    fn now(status: &FleetStatus) -> String {
        let viewer = Viewer {
            caller: Caller::Anyone,
            url: " --url http://a:1".to_owned(),
            from: String::new(),
        };
        Now::new(&viewer, status, &PageQuery::default())
            .render()
            .unwrap()
    }

    #[test]
    fn a_follower_leads_to_the_leader() {
        let text = now(&status(false));
        assert!(text.contains(r#"href="https://a:7601/console""#), "{text}");
        assert!(!text.contains("Limits"), "{text}");
    }

    #[test]
    fn troubles_and_parts_of_a_larger_limit_are_seen_and_names_are_escaped() {
        let text = now(&status(true));
        assert!(text.contains("<code>quell fleet status --url http://a:1</code>"));
        assert!(!text.contains("its console"), "{text}");
        assert!(text.contains("the rates are &#60;too&#62; small"), "{text}");
        assert!(
            text.contains(r#"<td class="number warn">11</td>"#),
            "{text}"
        );
        assert!(text.contains("?limit=a%26b"), "{text}");
        assert!(text.contains("/console/rollout"), "{text}");
        assert!(text.contains("/console/register"), "{text}");
    }

    /// Names of keys are those that nodes say.
    #[test]
    fn what_nodes_say_of_their_calls_is_escaped() {
        let mut status = status(true);
        assert!(!now(&status).contains("<h2>Calls</h2>"));
        let key = r#""domain": "<i>\u202e", "rule": "<u>", "entries": {"user": "<b>\u001b[2J"}"#;
        let calls = format!(
            r#"{{"nodes": 1, "decisions_per_s": 7, "allowed_per_s": 7, "denied_per_s": 0, "would_refuse_per_s": 0,
            "degraded_per_s": 0, "p50_ns": 4000, "p99_ns": null, "window_ms": 60000,
            "refused": [{{{key}, "refusals": 9, "at_least": 7}}], "refused_window_ms": 600000,
            "bans": [{{{key}, "left_ms": 60001, "reason": "<s>"}}], "bans_at_least": 21, "bans_at_most": 40,
            "bans_unknown_nodes": 1}}"#
        );
        status.calls = Some(serde_json::from_str(&calls).unwrap());
        let text = now(&status);
        for shown in [
            "<td>&#60;i&#62;\\u{202e}</td><td>&#60;u&#62;</td>",
            "&#60;b&#62;\\u{1b}[2J</td><td class=\"number\">7 to 9</td>",
            "<td class=\"number\">61s</td><td>&#60;s&#62;</td>",
            "<dt>99 % decided within</dt><dd>–</dd>",
            "1 of 21 to 40",
            "At 1 of these nodes bans are not known",
        ] {
            assert!(text.contains(shown), "{shown}\n{text}");
        }
    }

    #[test]
    fn a_node_is_found_by_its_number_or_its_state() {
        let node = r#"{"member": 77, "incarnation": "1", "weight": 1, "groups": [], "state": "silent",
            "draining": false, "lease_left_ms": 0, "heard_ms_ago": 1, "revision": "1", "follows": null, "version": 1, "applied": 1, "limits": []}"#;
        let node: NodeStatus = serde_json::from_str(node).unwrap();
        for (find, is_found) in [
            ("", true),
            ("7", true),
            ("node-77", true),
            (" Silent ", true),
            ("78", false),
            ("active", false),
        ] {
            let find = find.to_owned();
            let page_query = PageQuery {
                find,
                ..PageQuery::default()
            };
            assert_eq!(page_query.is_of(&node), is_found, "{page_query:?}");
        }
    }
}
