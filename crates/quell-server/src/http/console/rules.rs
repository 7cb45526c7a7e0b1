//! Rules: as they are written, who changed them and why, and changing those that are in a store. Files are
//! read-only here: they belong to whoever deploys them.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use askama::Template;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use jiff::Timestamp;
use quell::Limiter;
use quell::rule_store::{
    Draft, Entry, Head as VersionHead, PushOutcome, RuleStore, RuleStoreError, Version,
};
use quell::store::memory::MemoryStore;
use quell::store::shares::{Shares, SharesStore};
use quell_core::rule::DomainRules;
use quell_protocol::http::{Problem, ProblemKind};
use quell_rules::{EditedRules, TextFile, join_texts, read_texts, set_fields};

use super::candidate;
use super::page::{self, Fields, Head, PageError, PageResult, instant, reader};
use super::proposal::{Before, Proposal};
use super::shell::{Shell, redirect};
use crate::access::{Caller, Denied, Role};
use crate::candidate::{About, CandidateStatus};
use crate::history::{Change, origin};
use crate::http::body;
use crate::http::caller::{address, caller};
use crate::http::candidate::Operator;
use crate::shared::Shared;
use crate::shell_word::quoted;
use crate::stored_rules::StoredRules;

pub(super) const PATH: &str = "/console/rules";
const EDIT: &str = "/console/rules/edit";

/// Longest form with rules, in bytes: some twenty thousand rules.
pub(crate) const MOST_TEXT: usize = 4 * 1_024 * 1_024;

/// Versions in a history.
const MOST_VERSIONS: usize = 30;

/// Longest note, in characters.
pub(crate) const MOST_NOTE: usize = 255;

/// The rules that a console shows and edits.
pub trait RulesHost: fmt::Debug + Send + Sync {
    /// The stores that they are read from.
    fn stores(&self) -> Vec<RulesPlace>;

    /// The files that they are read from.
    fn paths(&self) -> Vec<PathBuf>;

    /// Whether they are those of servers that share a store.
    fn is_shared(&self) -> bool;

    /// Whether the process can use them.
    ///
    /// # Errors
    /// Why not, and what to write.
    fn check(&self, domains: &[DomainRules]) -> Result<(), String>;

    /// Notes what a person changed.
    fn note(&self, change: Change);

    /// Runs a text in shadow beside the rules in force, in place of the one before. May take long.
    ///
    /// # Errors
    /// Why it cannot run.
    fn start_candidate(&self, about: About) -> Result<(), String>;

    /// Ends what [`start_candidate`](Self::start_candidate) began.
    fn stop_candidate(&self) -> Option<About>;

    /// What came of it so far.
    fn candidate(&self) -> Option<CandidateStatus>;

    /// What the commands for candidates of this process begin with.
    fn candidate_command(&self) -> &'static str;
}

/// A store of rules, and what a process has of it.
#[derive(Clone, Debug)]
pub struct RulesPlace {
    /// The store.
    pub store: Arc<dyn RuleStore>,
    /// The version that was read last.
    pub newest: Option<Arc<Version>>,
    /// The version that is in force.
    pub in_force: Option<u64>,
}

impl RulesHost for Shared {
    fn stores(&self) -> Vec<RulesPlace> {
        let stores = self.sources.stores();
        let place = |stored: &Arc<StoredRules>| RulesPlace {
            store: stored.store(),
            newest: stored.said().map(|(_, version)| version),
            in_force: stored.standing().version(),
        };
        stores.map(place).collect()
    }

    fn paths(&self) -> Vec<PathBuf> {
        self.sources.paths()
    }

    fn is_shared(&self) -> bool {
        self.config.store.is_some()
    }

    fn check(&self, domains: &[DomainRules]) -> Result<(), String> {
        let any_store = SharesStore::new(MemoryStore::new(), Shares::new());
        let set = Limiter::new(any_store).set_rules(domains.to_vec());
        set.map_err(|error| error.to_string())
    }

    fn note(&self, change: Change) {
        self.history.note(change);
    }

    fn start_candidate(&self, about: About) -> Result<(), String> {
        let domains = self.sources.try_out(about.place, &about.text)?;
        self.candidates.start(about, domains).map(drop)
    }

    fn stop_candidate(&self) -> Option<About> {
        self.candidates.stop().map(|running| running.about.clone())
    }

    fn candidate(&self) -> Option<CandidateStatus> {
        self.candidates.running().map(|running| running.status())
    }

    fn candidate_command(&self) -> &'static str {
        "quell candidate"
    }
}

/// What the pages about rules share.
#[derive(Debug)]
pub(super) struct RulesPages {
    pub(super) shell: Arc<Shell>,
    pub(super) host: Arc<dyn RulesHost>,
}

/// The routes of the pages about rules.
pub(super) fn routes<S: Clone + Send + Sync + 'static>(
    shell: &Arc<Shell>,
    host: Arc<dyn RulesHost>,
) -> Router<S> {
    Router::new()
        .route(PATH, get(page))
        .route(EDIT, get(edit).post(propose))
        .route("/console/rules/check", post(check))
        .route(candidate::PATH, get(candidate::page).post(candidate::stop))
        .with_state(Arc::new(RulesPages {
            shell: Arc::clone(shell),
            host,
        }))
}

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
    history: Vec<Entry>,
    /// Why the store cannot be read.
    failure: Option<String>,
}

#[derive(Template)]
#[template(path = "console/edit.html")]
struct EditPage {
    head: Head,
    /// What the commands for candidates begin with.
    candidate: &'static str,
    form: Form,
    url: String,
    check: Option<Proposal>,
    /// The version whose text is to be brought back.
    back: Option<u64>,
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
    /// Instead of a text: the rule of the newest version to be changed; empty: none.
    rule: String,
    /// Its fields, as of `quell rules set`.
    set: String,
}

/// What stands in a store now.
#[derive(Clone)]
pub(crate) struct Newest {
    head: Option<VersionHead>,
    version: Option<Version>,
    /// What is wrong with the version of the head, if it cannot be read.
    damage: Option<String>,
}

impl Newest {
    async fn read(store: &dyn RuleStore) -> Result<Self, Box<Problem>> {
        let (version, damage) = match store.latest().await {
            Ok(version) => (version, None),
            Err(damaged @ RuleStoreError::Damaged { .. }) => (None, Some(damaged.to_string())),
            Err(error) => return Err(failed(&error)),
        };
        let head = match damage {
            None => version.as_ref().map(|version| version.head().clone()),
            Some(_) => store.head().await.map_err(|error| failed(&error))?,
        };
        Ok(Self {
            head,
            version,
            damage,
        })
    }

    /// What stands in the store at this place or, where there is no store, in the files.
    pub(crate) async fn of(host: &dyn RulesHost, place: usize) -> Result<Self, Box<Problem>> {
        let paths = host.paths();
        match host.stores().is_empty() {
            false => Self::read(&*store_at(host, place)?.store).await,
            true => {
                let read = tokio::task::spawn_blocking(move || read_texts(&paths)).await;
                let text = read.ok().and_then(Result::ok);
                let text = text.map(|texts| join_texts(&texts.files));
                let unreadable = || "the rules files cannot be read".to_owned();
                Ok(Self {
                    head: None,
                    damage: text.is_none().then(unreadable),
                    version: text.map(|text| {
                        let draft = Draft {
                            text: &text,
                            who: "",
                            change: "",
                            note: "",
                        };
                        Version::of(0, 0, &draft)
                    }),
                })
            }
        }
    }

    pub(crate) fn from(&self) -> String {
        self.head
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default()
    }

    /// What a text would change of it. Takes long.
    pub(crate) fn propose(&self, text: &str, host: &dyn RulesHost) -> Proposal {
        let number = self.head.as_ref().map_or(0, VersionHead::number);
        let before = match (&self.version, &self.damage) {
            (Some(version), _) => Before::Text(&version.text),
            (None, None) => Before::Nothing,
            (None, Some(_)) => Before::Unreadable,
        };
        Proposal::new(text, number.saturating_add(1), before, host)
    }
}

/// The store at this place.
fn store_at(host: &dyn RulesHost, place: usize) -> Result<RulesPlace, Box<Problem>> {
    host.stores().into_iter().nth(place).ok_or_else(|| {
        let detail = "there is no such store of rules: start from the page Rules";
        Box::new(Problem::new(ProblemKind::NotFound, detail))
    })
}

async fn page(State(pages): State<Arc<RulesPages>>, request: Request) -> PageResult {
    let caller = reader_of_all(&request)?;
    let paths = pages.host.paths();
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
    for (place, stored) in pages.host.stores().into_iter().enumerate() {
        stores.push(StorePart::read(place, stored).await);
    }
    Ok(page::page(&RulesPage {
        head: Head::with(pages.shell.menu, "Rules", &caller),
        may_change: caller.check(Role::Admin, None).is_ok(),
        has_candidate: pages.host.candidate().is_some(),
        stores,
        files,
        problems,
    }))
}

impl StorePart {
    fn is_in_force(&self, number: &u64) -> bool {
        self.in_force == Some(*number)
    }

    async fn read(place: usize, stored: RulesPlace) -> Self {
        let (history, failure) = match stored.store.history(MOST_VERSIONS).await {
            Ok(entries) => (entries, None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        let newest = stored.newest;
        Self {
            place,
            url: stored.store.url().to_owned(),
            newest: newest.map(|version| (version.number(), version.text.clone())),
            in_force: stored.in_force,
            history,
            failure,
        }
    }
}

/// When a version was pushed, for people.
fn pushed_at(entry: &Entry) -> String {
    i64::try_from(entry.at_ms / 1_000).map_or_else(|_| String::new(), instant)
}

/// The caller of a page about the rules of all domains.
pub(super) fn reader_of_all(request: &Request) -> Result<Caller, PageError> {
    let caller = reader(request)?;
    caller.check_whole()?;
    Ok(caller)
}

/// The caller who changes rules, which are those of all domains.
fn editor(request: &Request) -> Result<Caller, Denied> {
    let caller = caller(request, Role::Admin)?;
    caller.check(Role::Read, None)?;
    caller.check_whole()?;
    Ok(caller)
}

impl EditPage {
    fn new(pages: &RulesPages, caller: &Caller, form: Form, store: &dyn RuleStore) -> Self {
        Self {
            head: Head::with(pages.shell.menu, "Rules", caller),
            candidate: pages.host.candidate_command(),
            form,
            url: store.url().to_owned(),
            check: None,
            back: None,
            pushed: None,
            failure: None,
        }
    }
}

/// Which store is meant, from 0.
fn place(fields: &Fields) -> usize {
    fields.get("store").parse().unwrap_or(usize::MAX)
}

fn failed(error: &RuleStoreError) -> Box<Problem> {
    Box::new(Problem::new(
        ProblemKind::TemporarilyReduced,
        error.to_string(),
    ))
}

/// The form with the newest version or, to bring it back, an older one.
async fn edit(State(pages): State<Arc<RulesPages>>, request: Request) -> PageResult {
    let caller = editor(&request)?;
    let asked = Fields::of(&request);
    let (place, number) = (place(&asked), asked.get("version").parse().ok());
    let stored = store_at(&*pages.host, place)?;
    let newest = Newest::read(&*stored.store).await?;
    let (shown, note) = match number {
        Some(number) => {
            let version = stored.store.version(number).await;
            let version = version.map_err(|error| failed(&error))?;
            (version, format!("back to version {number}"))
        }
        // Of a damaged version, what this server could read last.
        None if newest.damage.is_some() => (stored.newest.as_deref().cloned(), String::new()),
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
        ..Form::default()
    };
    let mut page = EditPage::new(&pages, &caller, form, &*stored.store);
    if number.is_some() {
        page.check = Some(page.form.check(&pages, newest).await?);
    }
    (page.back, page.failure) = (number, failure);
    Ok(page::page(&page))
}

/// What is said of a newest version that cannot be read.
fn mendable(damage: &str, shown: Option<&Version>) -> String {
    let below = shown.map_or_else(String::new, |version| {
        format!(" Below is version {}.", version.number())
    });
    format!("{damage}.{below} A push replaces it.")
}

/// What a text would change, while it is written.
async fn check(State(pages): State<Arc<RulesPages>>, request: Request) -> PageResult {
    editor(&request)?;
    let form = Form::read(&pages.shell, request).await?;
    let newest = Newest::read(&*store_at(&*pages.host, form.place)?.store).await?;
    Ok(page::page(&form.check(&pages, newest).await?))
}

/// Checks a text or pushes it.
async fn propose(State(pages): State<Arc<RulesPages>>, request: Request) -> PageResult {
    let caller = editor(&request)?;
    let from = address(&request);
    let who = Operator::of(&request, &caller);
    let mut form = Form::read(&pages.shell, request).await?;
    let stored = store_at(&*pages.host, form.place)?.store;
    let newest = Newest::read(&*stored).await?;
    if !form.rule.is_empty() {
        form.text = form.edited(&pages, &newest).await?;
    }
    let check = form.check(&pages, newest.clone()).await?;
    let mut page = EditPage::new(&pages, &caller, form, &*stored);
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
        let about = About {
            place: page.form.place,
            from: page.form.from,
            text: page.form.text,
            change: check.summary,
            note: page.form.note,
            ..About::default()
        };
        who.start(&pages.host, about).await?;
        return Ok(redirect(candidate::PATH));
    }
    if page.form.action == "push" && check.is_sound() {
        match page.form.push(&*stored, &newest, &caller, &check).await {
            Ok(head) => {
                pages.note_push(&*stored, &head, change);
                let candidate = pages.host.candidate();
                if candidate.is_some_and(|status| status.about.text == page.form.text) {
                    pages.host.stop_candidate();
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

impl RulesPages {
    /// Logs who pushed a version, and notes it.
    fn note_push(&self, store: &dyn RuleStore, head: &VersionHead, change: Change) {
        let (version, store) = (head.number(), store.url());
        tracing::info!(
            store,
            version,
            by = change.by,
            from = change.from,
            note = change.reason,
            change = change.what,
            "rules pushed in the console"
        );
        let what = format!("version {version} of the rules in {store}: {}", change.what);
        self.host.note(Change { what, ..change });
    }
}

impl Form {
    /// The note as a word of a shell.
    fn note_word(&self) -> String {
        quoted(&self.note).into_owned()
    }

    async fn read(shell: &Shell, request: Request) -> Result<Self, PageError> {
        let body = body::read_form(request, &*shell.host, MOST_TEXT).await?;
        let fields = Fields::parse(&body.bytes);
        Ok(Self {
            place: place(&fields),
            from: fields.get("from").to_owned(),
            // A browser ends lines as in mail.
            text: fields.get("text").replace("\r\n", "\n"),
            note: fields.word("note").chars().take(MOST_NOTE).collect(),
            action: fields.get("action").to_owned(),
            rule: fields.get("rule").to_owned(),
            set: fields.get("set").to_owned(),
        })
    }

    /// The newest version with other fields of a rule.
    async fn edited(&self, pages: &RulesPages, newest: &Newest) -> Result<String, PageError> {
        let (rule, set) = (self.rule.clone(), self.set.clone());
        let before = newest.version.as_ref().map(|version| version.text.clone());
        let work = move || {
            let fields: Vec<_> =
                { set.split_whitespace().map(str::parse) }.collect::<Result<_, _>>()?;
            let edited = set_fields(
                "the rules",
                &before.unwrap_or_default(),
                None,
                &rule,
                &fields,
            );
            edited.map_err(|error| error.to_string())
        };
        let edited: Result<EditedRules, String> = pages.shell.work(work).await?;
        Ok(edited.map_err(|reason| PageError::wrong(&reason))?.text)
    }

    async fn check(&self, pages: &RulesPages, newest: Newest) -> Result<Proposal, PageError> {
        let (text, host) = (self.text.clone(), Arc::clone(&pages.host));
        let work = move || {
            let mut proposal = newest.propose(&text, &*host);
            proposal.test(&text);
            proposal
        };
        Ok(pages.shell.work(work).await?)
    }

    /// Pushes the text in place of the version that it was made from.
    async fn push(
        &self,
        store: &dyn RuleStore,
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
        match store.push(head, draft).await {
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
