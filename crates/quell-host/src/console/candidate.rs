//! Candidate: the page of rules that run in shadow beside those in force.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Request, State};
use quell_protocol::http::{CandidateCounts, CandidateNodes};

use super::key_table::{Key, KeyTable, key_rows};
use super::page::{PageResult, Viewer, instant};
use super::rule_pages::RulesPages;
use super::shell::redirect;
use crate::candidate::CandidateStatus;
use crate::candidate_routes::operator;
use crate::rules_host::RulesHost;

/// The page of the candidate.
pub const PATH: &str = "/console/rules/candidate";

#[derive(Template)]
#[template(path = "console/candidate.html")]
struct CandidatePage<'a> {
    viewer: &'a Viewer,
    /// The URL of the store that the candidate's rules are for, if there is one.
    store: Option<String>,
    /// Beginning of the commands.
    command: &'static str,
    running: Option<CandidateStatus>,
    now: String,
}

/// Part updated each second.
#[derive(Template)]
#[template(path = "console/candidate_now.html")]
struct CandidateNow {
    counts: CandidateCounts,
    nodes: Option<CandidateNodes>,
    keys: Vec<Key>,
}

impl CandidateNow {
    fn table(&self) -> KeyTable<'_> {
        KeyTable {
            label: "Keys that would be denied",
            id: "all-keys",
            number: "Calls",
            keys: &self.keys,
            none: "None so far.".to_owned(),
            is_linked: self.nodes.is_none(),
            has_why: false,
            caption: "Calls that were allowed, since the start".to_owned(),
            command: None,
        }
    }
}

/// Counts of a candidate so far, as HTML.
#[must_use]
pub fn candidate_now(host: &dyn RulesHost) -> String {
    let now = host.candidate().map(|status| CandidateNow {
        counts: status.counts,
        nodes: status.nodes,
        keys: key_rows(status.keys),
    });
    let now = now.and_then(|now| now.render().ok());
    now.unwrap_or_else(|| "<p>No candidate runs any more.</p>".to_owned())
}

/// Shows the candidate.
pub async fn page(State(pages): State<Arc<RulesPages>>, request: Request) -> PageResult {
    let viewer = &pages.shell.reader(&request)?;
    let running = pages.host.candidate();
    let place = running.as_ref().map_or(0, |running| running.about.place);
    let store = pages.host.stores().into_iter().nth(place);
    let store = store.filter(|place| !place.store.is_read_only());
    let page = CandidatePage {
        viewer,
        store: store.map(|place| place.store.url().to_owned()),
        command: pages.host.candidate_command(),
        now: candidate_now(&*pages.host),
        running,
    };
    pages.shell.page("Candidate", viewer, &page)
}

/// Stops the candidate.
pub async fn stop(State(pages): State<Arc<RulesPages>>, request: Request) -> PageResult {
    operator(&request)?.stop(&*pages.host);
    Ok(redirect(PATH))
}
