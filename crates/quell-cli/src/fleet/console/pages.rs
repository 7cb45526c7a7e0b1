//! Pages: one node, what can be done to it, and what a change would do to every node.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Path, Request, State};
use quell_coordinator::admin::{LimitBody, PreviewBody, WeightBody};
use quell_coordinator::status::{FleetStatus, NodeStatus, SharePreview};
use quell_server::access::{Caller, Role};
use quell_server::console::{Fields, PageError, PageResult, Shell, quoted};

use super::overview::{framed, may_change, query, some_rate};
use super::{Console, Done, change};
use crate::fleet::status::{rate, state};

/// Shares of a preview that are shown, those that change most first.
const MOST_SHARES: usize = 1_000;

#[derive(Template)]
#[template(path = "fleet/node.html")]
struct NodePage<'a> {
    member: u32,
    /// `None`: it has no seat, or this coordinator does not know.
    node: Option<&'a NodeStatus>,
    now: NodeNow<'a>,
    may_change: bool,
    done: Done,
}

/// What changes every second of the page of a node.
#[derive(Template)]
#[template(path = "fleet/node_now.html")]
pub(super) struct NodeNow<'a> {
    node: Option<&'a NodeStatus>,
    /// The limit that is shown over time.
    limit: &'a str,
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

pub(super) async fn node(
    State(console): State<Arc<Console>>,
    Path(member): Path<u32>,
    request: Request,
) -> PageResult {
    let caller = Shell::caller(&request, Role::Read)?;
    let limit = Fields::of(&request).get("limit").to_owned();
    shown(&console, &caller, (member, &limit), Ok(None)).await
}

/// Does what a form asks for.
pub(super) async fn act(
    State(console): State<Arc<Console>>,
    Path(member): Path<u32>,
    request: Request,
) -> PageResult {
    let caller = Shell::caller(&request, Role::Admin)?;
    caller.check(Role::Read, None)?;
    let form = console.shell.form(request).await?;
    let asked = change::change(&form, member);
    let done = console.make(&caller, asked).await;
    shown(&console, &caller, (member, ""), done).await
}

async fn shown(
    console: &Console,
    caller: &Caller,
    (member, limit): (u32, &str),
    done: Done,
) -> PageResult {
    let status = FleetStatus::of(&console.admin.service).await;
    let now = NodeNow::new(&status, member, limit);
    let page = NodePage {
        member,
        node: now.node,
        now,
        may_change: may_change(caller),
        done,
    };
    framed(console, caller, "Fleet", &page)
}

/// A change that is looked at.
#[derive(Template)]
#[template(path = "fleet/preview.html")]
struct PreviewPage {
    what: String,
    command: String,
    /// The node and its weight, if that is what would change.
    weight: Option<(u32, u32)>,
    /// The limit and its numbers, as `quell rules set` takes them, if that is what would change.
    limit: Option<(String, String)>,
    /// The store of the rules and its newest version, which the numbers are set in; `None`: they are in files.
    store: Option<(String, String)>,
    shares: Vec<SharePreview>,
    total: usize,
    may_change: bool,
    failure: Option<String>,
}

impl PreviewPage {
    /// What the parameters say would change, its command, and the body of the request.
    fn of(asked: &Fields) -> Result<(Self, PreviewBody), String> {
        let mut page = Self {
            what: "The limits of the rules".to_owned(),
            command: "quell fleet preview".to_owned(),
            weight: None,
            limit: None,
            store: None,
            shares: Vec::new(),
            total: 0,
            may_change: false,
            failure: None,
        };
        let mut body = PreviewBody::default();
        let (node, limit) = (asked.word("node"), asked.get("limit"));
        if !node.is_empty() {
            let member = crate::fleet::admin::node(node)?;
            let weight = change::weight(asked.get("weight"))?;
            page.what = format!("Weight {weight} for node {member}");
            page.command += &format!(" --node {member} --weight {weight}");
            page.weight = Some((member, weight));
            body.weight = Some(WeightBody { member, weight });
        } else if !limit.is_empty() {
            let (per_s, burst) = (number(asked.word("rate"))?, number(asked.word("burst"))?);
            let mut said = Vec::new();
            page.command += &format!(" --limit {}", quoted(limit));
            for (flag, field, value, unit) in [
                ("--rate", "rate", per_s, "/s"),
                ("--burst", "burst", burst, ""),
            ] {
                if let Some(value) = value {
                    page.command += &format!(" {flag} {value}");
                    said.push(format!("{field}={value}{unit}"));
                }
            }
            if said.is_empty() {
                return Err("write a rate, a burst or both".to_owned());
            }
            let said = said.join(" ");
            page.what = format!("{said} for the limit {limit}");
            page.limit = Some((limit.to_owned(), said));
            body.limit = Some(LimitBody {
                name: limit.to_owned(),
                rate_per_s: per_s,
                burst,
            });
        }
        Ok((page, body))
    }
}

fn number(text: &str) -> Result<Option<u64>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let wrong = |_| format!("`{text}` is no number of units: write a whole number");
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
    shares.truncate(MOST_SHARES);
    (shares, total)
}

pub(super) async fn preview(State(console): State<Arc<Console>>, request: Request) -> PageResult {
    let caller = Shell::caller(&request, Role::Read)?;
    let asked = PreviewPage::of(&Fields::of(&request));
    let (mut page, body) = asked.map_err(|reason| PageError::wrong(&reason))?;
    page.may_change = may_change(&caller);
    page.store = console.rules.stores().first().map(|place| {
        let newest = place
            .newest
            .as_ref()
            .map(|version| version.head().to_string());
        (
            quoted(place.store.url()).into_owned(),
            newest.unwrap_or_default(),
        )
    });
    match console.admin.preview(body).await {
        Ok(preview) => (page.shares, page.total) = most_moved(preview.shares),
        Err(problem) => page.failure = problem.detail,
    }
    framed(&console, &caller, "Fleet", &page)
}

#[derive(Template)]
#[template(path = "fleet/register.html")]
struct RegisterPage {
    member: u32,
    weight: u32,
    /// What its weight is a part of, once it is there.
    total: u64,
    commands: Vec<String>,
    failure: Option<String>,
}

/// How a node becomes one: it registers itself when it starts, with the number and the weight that it is given.
pub(super) async fn register(State(console): State<Arc<Console>>, request: Request) -> PageResult {
    let caller = Shell::caller(&request, Role::Read)?;
    let asked = Fields::of(&request);
    let status = FleetStatus::of(&console.admin.service).await;
    let has_seat = |member: u32| status.nodes.iter().any(|node| node.member == member);
    let free = (1..).find(|member| !has_seat(*member)).unwrap_or_default();
    let said = |name| Some(asked.word(name)).filter(|text| !text.is_empty());
    let member = said("node").map_or(Ok(free), crate::fleet::admin::node);
    let weight = said("weight").map_or(Ok(1), change::weight);
    let seats = console.admin.service.look(|core, _, now| {
        let ledger = core.leads(now)?;
        Some(ledger.record().plan.size.seats)
    });
    let seats = seats.await.ok().flatten();
    let why_not = |member: u32| match seats {
        None => Some("this coordinator does not lead: ask the console of the leader".to_owned()),
        _ if has_seat(member) => Some(format!(
            "node {member} is there already: write another number, such as {free}"
        )),
        Some(seats) if u32::try_from(status.nodes.len()).is_ok_and(|has| has >= seats) => {
            Some(format!(
                "all {seats} seats are taken: start the coordinators with more --seats, or deregister a node"
            ))
        }
        Some(_) => None,
    };
    let weights = status.nodes.iter().map(|node| u64::from(node.weight));
    let mut page = RegisterPage {
        member: *member.as_ref().unwrap_or(&free),
        weight: *weight.as_ref().unwrap_or(&1),
        total: weights.sum(),
        commands: Vec::new(),
        failure: member.clone().err().or(weight.err()),
    };
    page.failure = page.failure.or_else(|| why_not(page.member));
    page.total += u64::from(page.weight);
    let url = status.leader.as_ref().map_or("URL", |leader| &*leader.url);
    page.commands = page.commands(url, caller.grant().is_some());
    framed(&console, &caller, "Fleet", &page)
}

impl RegisterPage {
    /// What makes it a node of the coordinator at this URL, which wants a token or not.
    fn commands(&self, url: &str, wants_token: bool) -> Vec<String> {
        let Self { member, weight, .. } = self;
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preview_is_a_command_and_what_puts_it_into_force() {
        let of = |query: &str| PreviewPage::of(&Fields::parse(query.as_bytes()));
        let (page, _) = of("limit=api&rate=500").unwrap();
        assert_eq!(page.command, "quell fleet preview --limit api --rate 500");
        assert_eq!(
            page.limit.unwrap(),
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
