//! Rules: as they are written, who changed them and why, and changing those that are in a store. Files are
//! read-only here: they belong to whoever deploys them.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use jiff::Timestamp;
use quell::rule_store::{Draft, Entry, Head as VersionHead, PushOutcome, RuleStoreError, Version};
use quell_protocol::http::{Problem, ProblemKind};
use quell_rules::{TextFile, read_texts};

use super::page::{self, Head, PageError, PageResult, instant, reader};
use super::proposal::{Before, Proposal};
use super::shell::redirect;
use super::{Console, candidate};
use crate::access::{Caller, Role};
use crate::history::{Change, origin};
use crate::http::caller::{address, caller};
use crate::http::{body, reply};
use crate::shared::Shared;
use crate::stored_rules::StoredRules;

pub(super) const PATH: &str = "/console/rules";
pub(super) const EDIT: &str = "/console/rules/edit";

/// Longest form with rules, in bytes: some twenty thousand rules.
const MOST_TEXT: usize = 4 * 1_024 * 1_024;

/// Versions in a history.
const MOST_VERSIONS: usize = 30;

/// Longest note, in characters.
const MOST_NOTE: usize = 255;

#[derive(Template)]
#[template(path = "console/rules.html")]
struct RulesPage {
    head: Head,
    may_change: bool,
    /// Whether a candidate runs.
    has_candidate: bool,
    stores: Vec<StorePart>,
    files: Vec<TextFile>,
    /// Why files could not be read.
    problems: Vec<String>,
}

/// The rules in a store.
struct StorePart {
    /// Which store it is, from 0.
    place: usize,
    url: String,
    /// The version that was read last.
    newest: Option<(u64, String)>,
    in_force: Option<u64>,
    history: Vec<Row>,
    /// Why the store cannot be read.
    failure: Option<String>,
}

/// A version in a history.
struct Row {
    number: u64,
    at: String,
    who: String,
    change: String,
    note: String,
}

#[derive(Template)]
#[template(path = "console/edit.html")]
struct EditPage {
    head: Head,
    form: Form,
    url: String,
    check: Option<Proposal>,
    /// The number of the version that is there now.
    pushed: Option<u64>,
    failure: Option<String>,
}

/// What a person fills in.
#[derive(Default)]
pub(super) struct Form {
    /// Which store, from 0.
    pub(super) place: usize,
    /// The version that the text was made from; empty: there was none.
    pub(super) from: String,
    pub(super) text: String,
    pub(super) note: String,
    action: String,
}

/// What stands in a store now.
#[derive(Clone)]
struct Newest {
    head: Option<VersionHead>,
    version: Option<Version>,
    /// What is wrong with the version of the head, if it cannot be read.
    damage: Option<String>,
}

impl Newest {
    async fn read(stored: &StoredRules) -> Result<Self, PageError> {
        let (version, damage) = match stored.store().latest().await {
            Ok(version) => (version, None),
            Err(damaged @ RuleStoreError::Damaged { .. }) => (None, Some(damaged.to_string())),
            Err(error) => return Err(failed(&error)),
        };
        let head = match damage {
            None => version.as_ref().map(|version| version.head().clone()),
            Some(_) => stored
                .store()
                .head()
                .await
                .map_err(|error| failed(&error))?,
        };
        Ok(Self {
            head,
            version,
            damage,
        })
    }

    fn from(&self) -> String {
        self.head
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default()
    }
}

pub(super) async fn page(State(console): State<Arc<Console>>, request: Request) -> PageResult {
    let caller = reader_of_all(&request)?;
    let shared = &console.shared;
    let paths = shared.sources.paths();
    let read = tokio::task::spawn_blocking(move || read_texts(&paths));
    let (files, problems) = match read.await {
        Ok(Ok(texts)) => (texts.files, Vec::new()),
        Ok(Err(problems)) => {
            let problems = problems.iter().map(ToString::to_string);
            (Vec::new(), problems.collect())
        }
        Err(_) => (
            Vec::new(),
            vec!["reading the files was interrupted".to_owned()],
        ),
    };
    let mut stores = Vec::new();
    for (place, stored) in shared.sources.stores().enumerate() {
        stores.push(StorePart::read(place, stored).await);
    }
    Ok(page::page(&RulesPage {
        head: Head::of("Rules", &caller),
        may_change: caller.check(Role::Admin, None).is_ok(),
        has_candidate: shared.candidates.running().is_some(),
        stores,
        files,
        problems,
    }))
}

impl StorePart {
    fn is_in_force(&self, number: &u64) -> bool {
        self.in_force == Some(*number)
    }

    async fn read(place: usize, stored: &StoredRules) -> Self {
        let (history, failure) = match stored.store().history(MOST_VERSIONS).await {
            Ok(entries) => (entries.iter().map(Row::of).collect(), None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        let newest = stored.said();
        Self {
            place,
            url: stored.url().to_owned(),
            newest: newest.map(|(_, version)| (version.number(), version.text.clone())),
            in_force: stored.standing().version(),
            history,
            failure,
        }
    }
}

impl Row {
    fn of(entry: &Entry) -> Self {
        Self {
            number: entry.head.number(),
            at: i64::try_from(entry.at_ms / 1_000).map_or_else(|_| String::new(), instant),
            who: entry.who.clone(),
            change: entry.change.clone(),
            note: entry.note.clone(),
        }
    }
}

/// The caller of a page about the rules of all domains.
pub(super) fn reader_of_all(request: &Request) -> Result<Caller, PageError> {
    let caller = reader(request)?;
    caller.check_whole()?;
    Ok(caller)
}

/// The caller of a page that changes rules, which are those of all domains.
fn editor(request: &Request) -> Result<Caller, PageError> {
    let caller = caller(request, Role::Admin)?;
    caller.check(Role::Read, None)?;
    caller.check_whole()?;
    Ok(caller)
}

/// The store at this place.
fn store_at(shared: &Shared, place: usize) -> Result<&StoredRules, PageError> {
    let stored = shared.sources.stores().nth(place);
    stored.map(|stored| &**stored).ok_or_else(|| {
        let detail = "this server has no such store of rules: start from the page Rules";
        Problem::new(ProblemKind::NotFound, detail).into()
    })
}

fn failed(error: &RuleStoreError) -> PageError {
    Problem::new(ProblemKind::TemporarilyReduced, error.to_string()).into()
}

/// The form with the newest version or, to bring it back, an older one.
pub(super) async fn edit(State(console): State<Arc<Console>>, request: Request) -> PageResult {
    let caller = editor(&request)?;
    let (mut place, mut number) = (0, None);
    for (name, value) in reply::parameters(request.uri().query()) {
        match &*name {
            "store" => place = value.parse().unwrap_or(usize::MAX),
            "version" => number = value.parse().ok(),
            _ => {}
        }
    }
    let stored = store_at(&console.shared, place)?;
    let newest = Newest::read(stored).await?;
    let (shown, note) = match number {
        Some(number) => {
            let version = stored.store().version(number).await;
            let version = version.map_err(|error| failed(&error))?;
            (version, format!("back to version {number}"))
        }
        // Of a damaged version, what this server could read last.
        None if newest.damage.is_some() => {
            let last = stored.said().map(|(_, version)| Version::clone(&version));
            (last, String::new())
        }
        None => (newest.version.clone(), String::new()),
    };
    let failure = newest
        .damage
        .as_ref()
        .map(|damage| mendable(damage, shown.as_ref()));
    let form = Form {
        place,
        from: newest.from(),
        text: shown.map(|version| version.text).unwrap_or_default(),
        note,
        action: String::new(),
    };
    let check = match number {
        Some(_) => Some(form.check(&console, newest).await?),
        None => None,
    };
    Ok(page::page(&EditPage {
        head: Head::of("Rules", &caller),
        form,
        url: stored.url().to_owned(),
        check,
        pushed: None,
        failure,
    }))
}

/// What is said of a newest version that cannot be read.
fn mendable(damage: &str, shown: Option<&Version>) -> String {
    let below = shown.map_or_else(String::new, |version| {
        format!(" Below is version {}.", version.number())
    });
    format!("{damage}.{below} A push replaces it.")
}

/// What a text would change, while it is written.
pub(super) async fn check(State(console): State<Arc<Console>>, request: Request) -> PageResult {
    editor(&request)?;
    let form = Form::read(&console.shared, request).await?;
    let newest = Newest::read(store_at(&console.shared, form.place)?).await?;
    Ok(page::page(&form.check(&console, newest).await?))
}

/// Checks a text or pushes it.
pub(super) async fn propose(State(console): State<Arc<Console>>, request: Request) -> PageResult {
    let caller = editor(&request)?;
    let from = address(&request);
    let shared = &console.shared;
    let form = Form::read(shared, request).await?;
    let stored = store_at(shared, form.place)?;
    let newest = Newest::read(stored).await?;
    let check = form.check(&console, newest.clone()).await?;
    let mut page = EditPage {
        head: Head::of("Rules", &caller),
        url: stored.url().to_owned(),
        form,
        check: None,
        pushed: None,
        failure: None,
    };
    let mut status = StatusCode::OK;
    let change = Change {
        at: Timestamp::now().as_second(),
        domain: None,
        by: caller.to_string(),
        from: origin(from),
        what: check.summary.clone(),
        reason: page.form.note.clone(),
    };
    if page.form.action == "shadow" && check.is_sound() {
        candidate::start(&console, &page.form, &check.summary, &change).await?;
        return Ok(redirect(candidate::PATH));
    }
    if page.form.action == "push" && check.is_sound() {
        match page.form.push(stored, &newest, &caller, &check).await {
            Ok(head) => {
                note_push(shared, stored, &head, change);
                let running = shared.candidates.running();
                if running.is_some_and(|running| running.about.text == page.form.text) {
                    shared.candidates.stop();
                }
                page.pushed = Some(head.number());
                page.form.from = head.to_string();
            }
            Err(reason) => {
                status = StatusCode::CONFLICT;
                page.failure = Some(reason);
                // Whoever has seen what the text would change of the newest version may push it.
                page.form.from = newest.from();
            }
        }
    }
    page.check = Some(check).filter(|_| page.pushed.is_none());
    Ok(page::html(status, &page))
}

/// Logs who pushed a version, and notes it.
fn note_push(shared: &Shared, stored: &StoredRules, head: &VersionHead, change: Change) {
    let (version, store) = (head.number(), stored.url());
    let Change {
        by,
        from,
        what,
        reason,
        ..
    } = &change;
    tracing::info!(
        store,
        version,
        by,
        from,
        note = reason,
        change = what,
        "rules pushed in the console"
    );
    let what = format!("version {version} of the rules in {store}: {what}");
    shared.history.note(Change { what, ..change });
}

impl Form {
    async fn read(shared: &Shared, request: Request) -> Result<Self, PageError> {
        let body = body::read_form(request, shared, MOST_TEXT).await?;
        let mut form = Self::default();
        for (name, value) in form_urlencoded::parse(&body.bytes) {
            match &*name {
                "store" => form.place = value.parse().unwrap_or(usize::MAX),
                "from" => form.from = value.into_owned(),
                // A browser ends lines as in mail.
                "text" => form.text = value.replace("\r\n", "\n"),
                "note" => form.note = value.trim().chars().take(MOST_NOTE).collect(),
                "action" => form.action = value.into_owned(),
                _ => {}
            }
        }
        Ok(form)
    }

    async fn check(&self, console: &Console, newest: Newest) -> Result<Proposal, PageError> {
        let is_shared = console.shared.config.store.is_some();
        let text = self.text.clone();
        let number = newest.head.as_ref().map_or(0, VersionHead::number);
        let work = move || {
            let before = match (&newest.version, &newest.damage) {
                (Some(version), _) => Before::Text(&version.text),
                (None, None) => Before::Nothing,
                (None, Some(_)) => Before::Unreadable,
            };
            Proposal::new(&text, number.saturating_add(1), before, is_shared)
        };
        Ok(console.shell.work(work).await?)
    }

    /// Pushes the text in place of the version that it was made from.
    async fn push(
        &self,
        stored: &StoredRules,
        newest: &Newest,
        caller: &Caller,
        check: &Proposal,
    ) -> Result<VersionHead, String> {
        let (head, version) = (newest.head.as_ref(), newest.version.as_ref());
        let from = VersionHead::parse(&self.from);
        if from.as_ref() != head {
            return Err(overtaken(version.map(|version| &version.entry)));
        }
        if version.is_some_and(|newest| newest.text == self.text) {
            return Err("nothing to do: the newest version says the same".to_owned());
        }
        let who = caller.grant().map(|grant| grant.name().as_str());
        let draft = Draft {
            text: &self.text,
            who: who.unwrap_or("the console"),
            change: &check.summary,
            note: &self.note,
        };
        match stored.store().push(head, draft).await {
            Ok(PushOutcome::Done(head)) => Ok(head),
            Ok(PushOutcome::Overtaken(_)) => Err(overtaken(None)),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// What is said to whoever comes second.
fn overtaken(newest: Option<&Entry>) -> String {
    let other = newest.map_or_else(String::new, |entry| {
        format!(
            " version {} by {} ({})",
            entry.head.number(),
            entry.who,
            entry.change
        )
    });
    format!(
        "Somebody came first:{other}. Nothing is pushed. Below is what your text would change of the newest \
         version; push again if that is what you want."
    )
}
