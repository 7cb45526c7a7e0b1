//! Pages: one node, what can be done to it, and what a change would do to every node.

use std::sync::Arc;

use crate::admin::{LimitBody, PreviewBody, WeightBody};
use crate::status::{FleetStatus, LimitStatus, NodeState, NodeStatus, SharePreview};
use askama::Template;
use axum::extract::{Path, Request, State};
use quell_host::console::page::{Done, Fields, PageError, PageResult, Viewer, or_why};
use quell_host::fleet_member::read_number;
use quell_host::shell_word::quoted;

use super::node_now::NodeNow;
use super::page_query::PageQuery;
use super::{Console, change, chart};
use crate::report::rate;

/// Shares of a preview that are shown, those that change most first.
const MAX_SHARES: usize = 1_000;

#[derive(Template)]
#[template(path = "fleet/node.html")]
struct NodePage<'a> {
    viewer: &'a Viewer,
    member: u32,
    /// `None`: it has no seat, or this coordinator does not know.
    node: Option<&'a NodeStatus>,
    now: NodeNow<'a>,
    /// Query that updates it.
    query: String,
    spans: [(&'static str, String, bool); 2],
    /// Its chart in words.
    words: Option<String>,
    /// Reason why it is to be changed, if that was refused.
    reason: &'a str,
}

impl NodePage<'_> {
    /// Returns true if a drained node was not heard since, so that it still has its part and its seat.
    fn waits_to_drain(node: &NodeStatus) -> bool {
        node.draining && node.state != NodeState::Draining
    }
}

/// The node of an address.
fn member_of(text: &str) -> Result<u32, PageError> {
    read_number(text).map_err(|reason| PageError::wrong(&reason))
}

pub(super) async fn node(
    State(console): State<Arc<Console>>,
    Path(member): Path<String>,
    request: Request,
) -> PageResult {
    let member = member_of(&member)?;
    let viewer = console.shell.reader(&request)?;
    let asked = Fields::new(&request);
    shown(&console, &viewer, (member, &asked), Ok(None), "").await
}

/// Does what a form asks for.
pub(super) async fn act(
    State(console): State<Arc<Console>>,
    Path(member): Path<String>,
    request: Request,
) -> PageResult {
    let member = member_of(&member)?;
    let viewer = console.shell.editor(&request)?;
    let form = console.shell.form(request).await?;
    let asked = change::change(&form, member);
    let done = console.make(&viewer, &form, asked).await;
    let reason = done.as_ref().map_or_else(|_| form.get("reason"), |_| "");
    let fields = Fields::default();
    shown(&console, &viewer, (member, &fields), done, reason).await
}

async fn shown(
    console: &Console,
    viewer: &Viewer,
    (member, asked): (u32, &Fields),
    done: Done,
    reason: &str,
) -> PageResult {
    let status = FleetStatus::from_service(&console.admin.service).await;
    let now = NodeNow::new(&status, member, asked.get("limit"));
    let mut page_query = PageQuery::new(asked);
    page_query.node = Some(member);
    let page = NodePage {
        viewer,
        member,
        node: now.node,
        query: page_query.query(now.limit, 0),
        spans: page_query.spans(now.limit),
        words: chart::words(&console.history, page_query.view(now.limit)),
        now,
        reason,
    };
    console.shell.answer("Fleet", viewer, &done, &page)
}

/// A change that is looked at, with the form in which another can be.
#[derive(Template)]
#[template(path = "fleet/preview.html")]
struct PreviewPage<'a> {
    viewer: &'a Viewer,
    asked: &'a Fields,
    limits: &'a [LimitStatus],
    /// The limit of the form.
    limit: &'a str,
    /// With the shares that change most, and how many there are; `None`: it cannot be.
    what_if: Option<(WhatIf, (Vec<SharePreview>, usize))>,
    /// The store of the rules, its newest version, which the numbers are set in, and where they then wait for a
    /// rollout, if they do; `None`: the rules are in files.
    store: Option<(String, String, Option<&'static str>)>,
}

/// A possible change.
struct WhatIf {
    what: String,
    command: String,
    /// The node and its weight, if that is what would change.
    weight: Option<(u32, u32)>,
    /// The limit and its numbers, as `quell rules set` takes them, if that is what would change.
    set: Option<(String, String)>,
}

impl WhatIf {
    /// The parameters' change, and the body of the request.
    fn new(asked: &Fields) -> Result<(Self, PreviewBody), String> {
        let mut what_if = Self {
            what: "The limits of the rules".to_owned(),
            command: "quell fleet preview".to_owned(),
            weight: None,
            set: None,
        };
        let mut body = PreviewBody::default();
        let (node, limit) = (asked.word("node"), asked.get("limit"));
        if !node.is_empty() {
            let member = read_number(node)?;
            let weight = change::weight(asked.get("weight"))?;
            what_if.what = format!("Weight {weight} for node {member}");
            what_if.command += &format!(" --node {member} --weight {weight}");
            what_if.weight = Some((member, weight));
            body.weight = Some(WeightBody { member, weight });
        } else if !limit.is_empty() {
            let (per_s, burst) = (number(asked.word("rate"))?, number(asked.word("burst"))?);
            let mut said = Vec::new();
            what_if.command += &format!(" --limit {}", quoted(limit));
            for (field, value, unit) in [("rate", per_s, "/s"), ("burst", burst, "")] {
                if let Some(value) = value {
                    what_if.command += &format!(" --{field} {value}");
                    said.push(format!("{field}={value}{unit}"));
                }
            }
            if said.is_empty() {
                return Err("write a rate, a burst or both".to_owned());
            }
            let said = said.join(" ");
            what_if.what = format!("{said} for the limit {limit}");
            what_if.set = Some((limit.to_owned(), said));
            body.limit = Some(LimitBody {
                name: limit.to_owned(),
                rate_per_s: per_s,
                burst,
            });
        }
        Ok((what_if, body))
    }
}

fn number(text: &str) -> Result<Option<u64>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let wrong = |_| format!("`{text}` is not a number of units: write a whole number");
    text.parse().map(Some).map_err(wrong)
}

/// The shares that change most, and how many there are.
pub(super) fn most_moved(mut shares: Vec<SharePreview>) -> (Vec<SharePreview>, usize) {
    let moved = |share: &SharePreview| {
        let planned = (share.after_per_s - share.before_per_s).abs();
        planned.max((share.static_after_per_s - share.static_before_per_s).abs())
    };
    shares.sort_by(|one, other| moved(other).total_cmp(&moved(one)));
    let total = shares.len();
    shares.truncate(MAX_SHARES);
    (shares, total)
}

pub(super) async fn preview(State(console): State<Arc<Console>>, request: Request) -> PageResult {
    let viewer = &console.shell.reader(&request)?;
    let asked = Fields::new(&request);
    let status = FleetStatus::from_service(&console.admin.service).await;
    let store = console.rules.stores().into_iter().next().map(|place| {
        let newest = place.newest.map(|version| version.head().to_string());
        let url = quoted(place.store.url()).into_owned();
        (url, newest.unwrap_or_default(), console.rules.rollout())
    });
    let made = match WhatIf::new(&asked) {
        Ok((what_if, body)) => match console.admin.preview(body).await {
            Ok(preview) => Ok((what_if, most_moved(preview.shares))),
            Err(problem) => Err(problem.detail.unwrap_or_default()),
        },
        Err(reason) => Err(reason),
    };
    let (what_if, done) = or_why(made);
    let page = PreviewPage {
        viewer,
        asked: &asked,
        limits: &status.limits,
        limit: asked.get("limit"),
        what_if,
        store,
    };
    console.shell.answer("Fleet", viewer, &done, &page)
}

#[derive(Template)]
#[template(path = "fleet/register.html")]
struct RegisterPage<'a> {
    /// Filled-in values.
    node: &'a str,
    weight: &'a str,
    /// The part of all nodes' weights that it has once it is there, and the commands that start it.
    start: Option<(String, Vec<String>)>,
}

/// Page for a new node: it registers itself when it starts, with the number and the weight that it is given.
pub(super) async fn register(State(console): State<Arc<Console>>, request: Request) -> PageResult {
    let viewer = console.shell.reader(&request)?;
    let asked = Fields::new(&request);
    let status = FleetStatus::from_service(&console.admin.service).await;
    let has_seat = |member: u32| status.nodes.iter().any(|node| node.member == member);
    let free = (1..).find(|member| !has_seat(*member)).unwrap_or_default();
    let free = free.to_string();
    let seats = console.admin.service.look(|core, _, now| {
        let ledger = core.leads(now)?;
        Some(ledger.record().plan.size.seats)
    });
    let seats = seats.await.ok().flatten();
    let (node, weight) = (asked.or("node", &free), asked.or("weight", "1"));
    let start = || {
        let (member, weight) = (read_number(node)?, change::weight(weight)?);
        let seats = seats.ok_or("this coordinator does not lead: ask the console of the leader")?;
        if has_seat(member) {
            return Err(format!(
                "node {member} is there already: write another number, such as {free}"
            ));
        }
        if u32::try_from(status.nodes.len()).is_ok_and(|has| has >= seats) {
            return Err(format!(
                "all {seats} seats are taken: start the coordinators with more --seats, or deregister a node"
            ));
        }
        let weights = status.nodes.iter().map(|node| u64::from(node.weight));
        let total = weights.sum::<u64>() + u64::from(weight);
        let url = status.leader.as_ref().map_or("URL", |leader| &*leader.url);
        let commands = start_commands((member, weight), url, viewer.caller.grant().is_some());
        Ok((format!("{weight} of {total}"), commands))
    };
    let (start, done) = or_why(start());
    let page = RegisterPage {
        node,
        weight,
        start,
    };
    console.shell.answer("Fleet", &viewer, &done, &page)
}

/// Commands for a node of the coordinator at this URL, with a token or not.
fn start_commands((member, weight): (u32, u32), url: &str, wants_token: bool) -> Vec<String> {
    let mut start = format!(
        "quell serve --rules fleet --fleet {url} --fleet-member node-{member} --fleet-weight {weight} \
         --data-dir /var/lib/quell"
    );
    if url.starts_with("https://") {
        start += " --fleet-ca ca.pem";
    }
    let mut commands = Vec::new();
    if wants_token {
        start += &format!(" --fleet-token node-{member}.token");
        commands.push(format!(
            "quell token new node-{member} --role node --append credentials.toml > node-{member}.token"
        ));
    }
    commands.push(start);
    commands
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preview_is_a_command_and_what_puts_it_into_force() {
        let of = |query: &str| WhatIf::new(&Fields::parse(query.as_bytes()));
        let (page, _) = of("limit=api&rate=500").unwrap();
        assert_eq!(page.command, "quell fleet preview --limit api --rate 500");
        assert_eq!(
            page.set.unwrap(),
            ("api".to_owned(), "rate=500/s".to_owned())
        );
        let (page, _) = of("limit=it's+all&rate=500").unwrap();
        let command = r"quell fleet preview --limit 'it'\''s all' --rate 500";
        assert_eq!(page.command, command);
        let (page, _) = of("node=node-3&weight=2").unwrap();
        assert_eq!(page.command, "quell fleet preview --node 3 --weight 2");
        assert_eq!(page.weight, Some((3, 2)));
        for wrong in [
            "node=x&weight=1",
            "node=3",
            "limit=api",
            "limit=api&rate=-1",
        ] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
