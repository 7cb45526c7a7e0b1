//! Candidate: the page of rules that run in shadow beside those in force.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Request, State};

use super::overview::{Key, key_rows};
use super::page::{self, Head, PageResult, instant};
use super::rules::{RulesPages, reader_of_all};
use super::shell::redirect;
use crate::access::Role;
use crate::candidate::CandidateStatus;
use crate::http::candidate::operator;

pub(super) const PATH: &str = "/console/rules/candidate";

#[derive(Template)]
#[template(path = "console/candidate.html")]
struct CandidatePage {
    head: Head,
    may_change: bool,
    /// Whether the rules are in a store.
    has_store: bool,
    /// What the commands begin with.
    command: &'static str,
    running: Option<CandidateStatus>,
    keys: Vec<Key>,
}

pub(super) async fn page(State(pages): State<Arc<RulesPages>>, request: Request) -> PageResult {
    let caller = reader_of_all(&request)?;
    let running = pages.host.candidate();
    let keys = running.as_ref().map(|status| status.keys.clone());
    Ok(page::page(&CandidatePage {
        head: Head::with(pages.shell.menu, "Candidate", &caller),
        may_change: caller.check(Role::Admin, None).is_ok(),
        has_store: !pages.host.stores().is_empty(),
        command: pages.host.candidate_command(),
        keys: key_rows(keys.unwrap_or_default()),
        running,
    }))
}

/// Stops the candidate.
pub(super) async fn stop(State(pages): State<Arc<RulesPages>>, request: Request) -> PageResult {
    operator(&request)?.stop(&*pages.host);
    Ok(redirect(PATH))
}
