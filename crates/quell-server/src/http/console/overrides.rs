//! Overrides: numbers of single keys, listed and changed, as `/v1/overrides` does.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Request, State};
use quell_host::console::page::address;
use quell_host::shell_word::quoted;
use quell_protocol::http::{
    ChainLinkBody, ChainSource, OverriddenKeyBody, OverrideRecordBody, OverridesBody, Problem,
};

use super::Console;
use super::override_form::{Inputs, OverrideForm, entry_text, is_conflict, number_words};
use super::page::{Fields, PageResult, Viewer, or_why};
use crate::http::admin::Operator;
use crate::http::caller::address as client_address;
use crate::http::override_routes::{self, READERS, WRITERS};
use crate::http::reply::Refusal;
use crate::overrides::{ChangeMode, WhichOverride};

/// The list.
pub(super) const PATH: &str = "/console/overrides";

/// The page of one key.
pub(super) const KEY_PATH: &str = "/console/overrides/key";

const TITLE: &str = "Overrides";

/// Filters of the list.
const FILTERS: [&str; 4] = ["domain", "rule", "plan", "prefix"];

#[derive(Template)]
#[template(path = "console/overrides.html")]
struct ListPage<'a> {
    viewer: &'a Viewer,
    domains: Vec<String>,
    domain: &'a str,
    form: &'a Fields,
    /// `None`: there is no domain, or it was not answered.
    rows: Option<Vec<OverrideRow>>,
    /// The page after this one.
    next: Option<String>,
    emptied: bool,
}

#[derive(Template)]
#[template(path = "console/override_key.html")]
struct KeyPage<'a> {
    viewer: &'a Viewer,
    form: &'a OverrideForm,
    /// `None`: no key was named, or it was not answered.
    found: Option<KeyRows>,
    /// `None`: the viewer may change nothing.
    inputs: Option<Inputs>,
    is_conflict: bool,
}

/// An override that is stored.
struct OverrideRow {
    rule: String,
    key: String,
    /// The page of its key, with it in the form.
    address: String,
    /// Which of the two of its key.
    which: &'static str,
    numbers: String,
    until: String,
    reason: String,
    by: String,
    at: String,
    revision: u64,
    in_force: bool,
}

/// A key, as it is now.
struct KeyRows {
    body: OverriddenKeyBody,
    overrides: Vec<OverrideRow>,
    chain: Vec<ChainRow>,
}

/// Numbers that there are for a key.
struct ChainRow {
    source: String,
    limit: String,
    time: String,
    applies: bool,
}

pub(super) async fn list(State(console): State<Arc<Console>>, request: Request) -> PageResult {
    let viewer = console.shell.viewer_of_either(&request, &READERS)?;
    let form = Fields::new(&request);
    let domains = domains(&console, &viewer);
    let first = domains.first().map_or("", |domain| &**domain);
    let domain = form.or("domain", first).to_owned();
    let page = match &*domain {
        "" => Ok(None),
        domain => {
            let mut said = FILTERS.map(|name| (name, form.word(name)));
            // The domain is in the path of the route.
            said[0] = ("cursor", form.word("cursor"));
            let query = address("", &said);
            let query = query.strip_prefix('?');
            let (shared, caller) = (&console.shared, &viewer.caller);
            let page = override_routes::read_page(shared, caller, domain, query).await;
            page.map(Some).map_err(why)
        }
    };
    let (page, done) = or_why(page);
    let OverridesBody {
        overrides,
        next,
        emptied,
    } = match page.flatten() {
        Some(page) => page,
        None => {
            let page = ListPage {
                viewer: &viewer,
                domains,
                domain: &domain,
                form: &form,
                rows: None,
                next: None,
                emptied: false,
            };
            return console.shell.answer(TITLE, &viewer, &done, &page);
        }
    };
    let next = next.map(|cursor| {
        let mut said = FILTERS.map(|name| (name, form.word(name))).to_vec();
        said[0].1 = &domain;
        said.push(("cursor", &cursor));
        address(PATH, &said)
    });
    let page = ListPage {
        viewer: &viewer,
        domains,
        domain: &domain,
        form: &form,
        rows: Some(overrides.into_iter().map(OverrideRow::new).collect()),
        next,
        emptied,
    };
    console.shell.answer(TITLE, &viewer, &done, &page)
}

pub(super) async fn key(State(console): State<Arc<Console>>, request: Request) -> PageResult {
    let viewer = console.shell.viewer_of_either(&request, &READERS)?;
    let form = OverrideForm(Fields::new(&request));
    shown(&console, &viewer, form, None).await
}

pub(super) async fn act(State(console): State<Arc<Console>>, request: Request) -> PageResult {
    let viewer = console.shell.viewer_of_either(&request, &WRITERS)?;
    let from = client_address(&request);
    let form = OverrideForm(console.shell.form(request).await?);
    let caller = &viewer.caller;
    let done = form.act(&console.shared, Operator { caller, from }).await;
    shown(&console, &viewer, form, Some(done)).await
}

async fn shown(
    console: &Console,
    viewer: &Viewer,
    form: OverrideForm,
    done: Option<Result<String, Refusal>>,
) -> PageResult {
    let found = match form.has_key() {
        true => read(console, viewer, &form).await.map(Some),
        false => Ok(None),
    };
    let (found, unknown) = or_why(found.map_err(why));
    let found = found.flatten();
    let refused = match &done {
        Some(Err(_)) => Some(form.typed()),
        _ => None,
    };
    let is_refused = refused.is_some();
    let mut inputs = refused.unwrap_or_else(|| inputs_of(&form, found.as_ref()));
    let mut has_conflict = false;
    let done = match done {
        None => unknown,
        Some(Ok(done)) => Ok(form.command().map(|command| (done, command + &viewer.url))),
        Some(Err(refusal)) => {
            let problem = Box::<Problem>::from(refusal);
            has_conflict = is_conflict(&problem) && found.is_some();
            Err(match has_conflict {
                true => CONFLICT.to_owned(),
                false => problem.detail.unwrap_or_default(),
            })
        }
    };
    // Whoever was told of a conflict sees what there is now; after any other refusal the person has seen what there
    // was.
    if let Some(found) = found.as_ref().filter(|_| has_conflict || !is_refused) {
        inputs.note_revisions(&found.body.overrides);
    }
    let may_write = override_routes::may_write(&viewer.caller, form.get("domain")).is_ok();
    let may_change = may_write && (found.is_some() || is_refused);
    let page = KeyPage {
        viewer,
        form: &form,
        inputs: may_change.then_some(inputs),
        found,
        is_conflict: has_conflict,
    };
    console.shell.answer(TITLE, viewer, &done, &page)
}

/// In place of the problem of the route, which is for programs.
const CONFLICT: &str = "Somebody changed this override after you opened the page, and nothing of yours was done. Below \
                        is what there is now, and what you wrote; send it again to replace what there is.";

/// What there is for the key of a form.
async fn read(console: &Console, viewer: &Viewer, form: &OverrideForm) -> Result<KeyRows, Refusal> {
    let key = form.address(None)?;
    let body = override_routes::read_key(&console.shared, &viewer.caller, &key).await?;
    Ok(KeyRows {
        overrides: body
            .overrides
            .iter()
            .cloned()
            .map(OverrideRow::new)
            .collect(),
        chain: body.chain.iter().map(ChainRow::new).collect(),
        body,
    })
}

/// The values of one of the overrides that there are: that which was asked for or written, or else the boost.
fn inputs_of(form: &OverrideForm, found: Option<&KeyRows>) -> Inputs {
    let overrides = found.map_or(&[][..], |found| &found.body.overrides);
    let is_standing = match form.get("action") {
        "set" => form.get("until").is_empty(),
        _ => form.get("which") == WhichOverride::Standing.name(),
    };
    let mut wanted = overrides.iter();
    let wanted = wanted.find(|record| record.until.is_none() == is_standing);
    wanted
        .or(overrides.last())
        .map(Inputs::of)
        .unwrap_or_default()
}

/// The domains that a viewer may see.
fn domains(console: &Console, viewer: &Viewer) -> Vec<String> {
    let rules = console.shared.limiter.rules();
    let domains = rules.domains();
    let domains = domains.filter(|domain| viewer.caller.reaches(domain));
    domains.map(str::to_owned).collect()
}

fn why(refusal: Refusal) -> String {
    Box::<Problem>::from(refusal).detail.unwrap_or_default()
}

impl ListPage<'_> {
    /// The command that lists the same.
    fn command(&self) -> String {
        let filters = FILTERS[1..].iter().map(|name| (name, self.form.word(name)));
        let filters = filters.filter(|(_, value)| !value.is_empty());
        let command = format!("quell overrides list {}", quoted(self.domain));
        let command = filters.fold(command, |command, (name, value)| {
            format!("{command} --{name} {}", quoted(value))
        });
        command + &self.viewer.url
    }
}

impl KeyPage<'_> {
    /// The list of the domain.
    fn list_address(&self) -> String {
        address(PATH, &[("domain", self.form.get("domain"))])
    }

    /// The words for what becomes of what was used.
    fn changes(&self) -> [&'static str; 3] {
        ChangeMode::WORDS.map(|(word, _)| word)
    }
}

impl KeyRows {
    /// Units that are used and left.
    fn use_now(&self) -> Option<(u64, u64)> {
        self.body.used.zip(self.body.remaining)
    }
}

impl OverrideRow {
    fn new(record: OverrideRecordBody) -> Self {
        let which = match record.until {
            Some(_) => WhichOverride::Boost,
            None => WhichOverride::Standing,
        };
        let which = which.name();
        let entries = entry_text(&record.entries, "\n");
        let key = [
            ("domain", &*record.domain),
            ("rule", &*record.rule),
            ("entries", &*entries),
            ("which", which),
        ];
        let mut numbers = number_words(&record.numbers);
        if let Some(prorated) = &record.prorated {
            let until = in_seconds(&prorated.until);
            numbers += &format!("; in this window {}, until {until}", prorated.limit);
        }
        Self {
            key: entry_text(&record.entries, " "),
            address: address(KEY_PATH, &key),
            which,
            numbers,
            until: time(record.from.as_deref(), record.until.as_deref()),
            at: record.at.as_deref().map(in_seconds).unwrap_or_default(),
            rule: record.rule,
            reason: record.reason,
            by: record.by,
            revision: record.revision,
            in_force: record.in_force,
        }
    }
}

impl ChainRow {
    fn new(link: &ChainLinkBody) -> Self {
        let mut source = match (link.source, &link.until) {
            (ChainSource::Rule, _) => "rule".to_owned(),
            (ChainSource::OverrideOfFile, _) => {
                let when = link.when.as_deref().unwrap_or_default();
                format!("override in the rules, {when}")
            }
            (ChainSource::Plan, _) => String::new(),
            (ChainSource::Override, Some(_)) => "boost".to_owned(),
            (ChainSource::Override, None) => "standing override".to_owned(),
        };
        if let Some(plan) = &link.plan {
            let space = if source.is_empty() { "" } else { ", " };
            source += &format!("{space}plan {plan}");
        }
        let limit = link.limit.clone();
        Self {
            source,
            limit: limit.unwrap_or_else(|| "does not go with the rule".to_owned()),
            time: time(link.from.as_deref(), link.until.as_deref()),
            applies: link.in_force,
        }
    }
}

/// A time for people.
fn time(from: Option<&str>, until: Option<&str>) -> String {
    let parts = [("from", from), ("until", until)];
    let parts = parts.iter().filter_map(|(word, instant)| {
        let instant = in_seconds((*instant)?);
        Some(format!("{word} {instant}"))
    });
    parts.collect::<Vec<_>>().join(" ")
}

/// An instant of the API without the parts of its second.
fn in_seconds(instant: &str) -> String {
    match instant.split_once('.') {
        Some((seconds, _)) => format!("{seconds}Z"),
        None => instant.to_owned(),
    }
}
