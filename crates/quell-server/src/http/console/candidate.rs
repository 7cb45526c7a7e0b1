//! Candidate: the page of rules that run in shadow beside those in force.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Request, State};
use jiff::Timestamp;

use super::Console;
use super::overview::{Key, key_rows};
use super::page::{self, Head, PageError, PageResult, instant};
use super::rules::{Form, reader_of_all};
use super::shell::redirect;
use crate::access::{Caller, Role};
use crate::candidate::{About, Candidate, Counts};
use crate::history::{Change, origin};
use crate::http::caller::{address, caller};
use crate::http::top;

pub(super) const PATH: &str = "/console/rules/candidate";

/// Keys that are shown.
const MOST_KEYS: usize = 50;

#[derive(Template)]
#[template(path = "console/candidate.html")]
struct CandidatePage {
    head: Head,
    may_change: bool,
    running: Option<Running>,
}

struct Running {
    about: About,
    at: String,
    counts: Counts,
    keys: Vec<Key>,
}

impl Running {
    fn of(candidate: &Candidate, caller: &Caller) -> Self {
        let keys = top::shown(&candidate.keys(), caller, MOST_KEYS);
        Self {
            about: candidate.about.clone(),
            at: instant(candidate.about.at),
            counts: candidate.counts(),
            keys: key_rows(keys),
        }
    }
}

pub(super) async fn page(State(console): State<Arc<Console>>, request: Request) -> PageResult {
    let caller = reader_of_all(&request)?;
    let running = console.shared.candidates.running();
    Ok(page::page(&CandidatePage {
        head: Head::of("Candidate", &caller),
        may_change: caller.check(Role::Admin, None).is_ok(),
        running: running.map(|running| Running::of(&running, &caller)),
    }))
}

/// Stops the candidate.
pub(super) async fn stop(State(console): State<Arc<Console>>, request: Request) -> PageResult {
    let caller = caller(&request, Role::Admin)?;
    caller.check_whole()?;
    let shared = &console.shared;
    if let Some(candidate) = shared.candidates.stop() {
        let what = format!("the candidate was stopped: {}", candidate.about.change);
        note(&console, &caller, &request, what);
    }
    Ok(redirect(PATH))
}

/// Starts the text of a form that was checked as the candidate.
///
/// # Errors
/// Why it cannot run.
pub(super) async fn start(
    console: &Arc<Console>,
    form: &Form,
    change: &str,
    by: &Change,
) -> Result<(), PageError> {
    let about = About {
        place: form.place,
        from: form.from.clone(),
        text: form.text.clone(),
        change: change.to_owned(),
        note: form.note.clone(),
        by: by.by.clone(),
        at: Timestamp::now().as_second(),
    };
    let shared = Arc::clone(&console.shared);
    let work = move || {
        let loaded = shared.sources.load_with(Some((about.place, &about.text)));
        let loaded = loaded.map_err(|problems| {
            let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
            problems.join("; ")
        })?;
        shared.candidates.start(about, loaded.domains)
    };
    let started = console.shell.work(work).await?;
    started.map_err(|reason| PageError::wrong(&reason))?;
    let what = format!("a candidate was started: {change}");
    tracing::info!(
        by = by.by,
        from = by.from,
        note = form.note,
        change,
        "candidate started in the console"
    );
    console.shared.history.note(Change { what, ..by.clone() });
    Ok(())
}

fn note(console: &Console, caller: &Caller, request: &Request, what: String) {
    let (by, from) = (caller.to_string(), origin(address(request)));
    tracing::info!(by, from, change = what, "candidate stopped in the console");
    console.shared.history.note(Change {
        at: Timestamp::now().as_second(),
        domain: None,
        by,
        from,
        what,
        reason: String::new(),
    });
}
