//! Rules: as they are written, who changed them and why, and changing those that are in a store. Files are
//! read-only here: they belong to whoever deploys them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use askama::Template;
use axum::Router;
use axum::extract::{Request, State};
use axum::routing::{get, post};
use quell::rule_store::{Draft, Entry, Head, PushOutcome, RuleStore, Version};
use quell_protocol::http::{Problem, ProblemKind};
use quell_rules::{EditedRules, TextFile, read_texts, set_fields};

use super::candidate;
use super::page::{Fields, PageError, PageResult, Viewer, html, instant};
use super::shell::{Shell, redirect, with_status};
use crate::candidate::About;
use crate::candidate_routes::Operator;
use crate::detach::DetachOnDisconnect as _;
use crate::newest_rules::Newest;
use crate::proposal::Proposal;
use crate::rules_host::{MAX_NOTE, MAX_TEXT, RulesHost, RulesPlace, failed, store_at};
use crate::shell_word::quoted;
use crate::task;

/// The page of the rules.
pub const PATH: &str = "/console/rules";
const EDIT: &str = "/console/rules/edit";

/// Longest time for tests of a text that somebody edits: a person waits for them, and others for their turn.
const TEST_TIME: Duration = Duration::from_secs(2);

/// Versions in a history; `quell rules history` has the others.
const MAX_VERSIONS: usize = 30;

/// Shared state of the pages about rules.
#[derive(Debug)]
pub struct RulesPages {
    /// The frame of the pages.
    pub shell: Arc<Shell>,
    /// The process that has the rules.
    pub host: Arc<dyn RulesHost>,
}

/// The routes of the pages about rules.
pub fn routes(shell: &Arc<Shell>, host: Arc<dyn RulesHost>) -> Router {
    Router::new()
        .route(EDIT, get(edit).post(propose))
        .route(candidate::PATH, get(candidate::page).post(candidate::stop))
        .detach_on_disconnect()
        .route(PATH, get(page))
        .route("/console/rules/check", post(check))
        .with_state(Arc::new(RulesPages {
            shell: Arc::clone(shell),
            host,
        }))
}

#[derive(Template)]
#[template(path = "console/rules.html")]
struct RulesPage<'a> {
    viewer: &'a Viewer,
    /// True if a candidate runs.
    has_candidate: bool,
    /// Path of a fleet's waiting rules.
    rollout: Option<&'static str>,
    stores: Vec<StorePart>,
    files: Vec<TextFile>,
    /// Reason why files could not be read.
    problems: Vec<String>,
}

/// The rules in a store.
struct StorePart {
    /// Number of the store, from 0.
    place: usize,
    of: RulesPlace,
    history: Vec<Entry>,
    /// Reason why the store cannot be read.
    failure: Option<String>,
}

#[derive(Template)]
#[template(path = "console/edit.html")]
struct EditPage<'a> {
    viewer: &'a Viewer,
    /// Beginning of the commands for candidates.
    candidate: &'static str,
    /// True if one runs.
    has_candidate: bool,
    /// Path of a fleet's waiting rules.
    rollout: Option<&'static str>,
    form: Form,
    /// The store's; empty if there is none.
    url: String,
    check: Option<Proposal>,
    /// The version whose text is to be brought back.
    back: Option<u64>,
    /// The number of the version that is there now.
    pushed: Option<u64>,
}

/// A person's input.
#[derive(Debug, Default)]
pub struct Form {
    /// Number of the store, from 0.
    pub place: usize,
    /// The version that the text was made from; empty: there was none.
    pub from: String,
    /// The rules.
    pub text: String,
    /// Reason of the change.
    pub note: String,
    action: String,
    /// Instead of a text: the rule of the newest version to be changed; empty: none.
    rule: String,
    /// Its fields, as of `quell rules set`.
    set: String,
}

async fn page(State(pages): State<Arc<RulesPages>>, request: Request) -> PageResult {
    let viewer = &pages.shell.reader(&request)?;
    let paths = pages.host.paths();
    let read = task::run_blocking(move || read_texts(&paths));
    let (files, problems) = match read.await {
        Some(Ok(texts)) => (texts.files, Vec::new()),
        Some(Err(problems)) => {
            let problems = problems.iter().map(ToString::to_string);
            (Vec::new(), problems.collect())
        }
        None => (
            Vec::new(),
            vec!["reading the files was interrupted".to_owned()],
        ),
    };
    let mut stores = Vec::new();
    for (place, of) in pages.host.stores().into_iter().enumerate() {
        let (history, failure) = match of.store.history(MAX_VERSIONS).await {
            Ok(entries) => {
                let newest = Newest::read(&*of.store).await.ok();
                (entries, newest.and_then(|newest| newest.trouble(&of)))
            }
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        stores.push(StorePart {
            place,
            of,
            history,
            failure,
        });
    }
    let page = RulesPage {
        viewer,
        has_candidate: pages.host.candidate().is_some(),
        rollout: pages.host.rollout(),
        stores,
        files,
        problems,
    };
    pages.shell.page("Rules", viewer, &page)
}

/// Time at which a version was pushed, for people.
fn pushed_at(entry: &Entry) -> String {
    i64::try_from(entry.at_ms / 1_000).map_or_else(|_| String::new(), instant)
}

/// Number of the store that is meant, from 0.
fn place(fields: &Fields) -> usize {
    fields.get("store").parse().unwrap_or(usize::MAX)
}

/// The form with the newest version or, to bring it back, an older one.
async fn edit(State(pages): State<Arc<RulesPages>>, request: Request) -> PageResult {
    let viewer = &pages.shell.editor(&request)?;
    let asked = Fields::new(&request);
    let (place, number) = (place(&asked), asked.get("version").parse().ok());
    let stored = store_at(&*pages.host, place)?;
    let newest = Newest::read(&*stored.store).await;
    let newest = newest.map_err(|error| failed(&error))?;
    let (shown, note) = match number {
        Some(number) => {
            let version = stored.store.version(number).await;
            let version = version.map_err(|error| failed(&error))?;
            (version, format!("back to version {number}"))
        }
        // Of a damaged version, and of none any more, what this server could read last.
        None => {
            let newest = newest.version.clone();
            let read = || stored.newest.as_deref().cloned();
            (newest.or_else(read), String::new())
        }
    };
    let damage = newest.trouble(&stored);
    let damage = damage.map(|damage| mendable(&damage, shown.as_ref()));
    let form = Form {
        place,
        from: newest.from(),
        text: shown.map(|version| version.text).unwrap_or_default(),
        note,
        ..Form::default()
    };
    let check = match number {
        Some(_) => Some(form.check(&pages, newest).await?),
        None => None,
    };
    let page = EditPage {
        url: stored.store.url().to_owned(),
        back: number,
        check,
        ..EditPage::new(&pages, viewer, form)
    };
    let damage = damage.map_or(Ok(None), Err);
    pages.shell.answer("Rules", viewer, &damage, &page)
}

/// Text about a newest version that cannot be read.
fn mendable(damage: &str, shown: Option<&Version>) -> String {
    let below = shown.map_or_else(String::new, |version| {
        format!(" Below is version {}.", version.number())
    });
    format!("{damage}.{below} A push replaces it.")
}

/// Changes of a text, while it is written.
async fn check(State(pages): State<Arc<RulesPages>>, request: Request) -> PageResult {
    pages.shell.editor(&request)?;
    let form = Form::read(&pages.shell, request).await?;
    let newest = Newest::read(&*store_at(&*pages.host, form.place)?.store).await;
    let newest = newest.map_err(|error| failed(&error))?;
    Ok(html(&form.check(&pages, newest).await?))
}

/// Checks a text, pushes it, or runs it in shadow. If that fails, the form has what was written.
async fn propose(State(pages): State<Arc<RulesPages>>, request: Request) -> PageResult {
    let viewer = &pages.shell.editor(&request)?;
    let who = Operator::new(&request, &viewer.caller);
    let form = Form::read(&pages.shell, request).await?;
    let mut page = EditPage::new(&pages, viewer, form);
    let problem = match page.act(&pages, &who).await {
        Ok(true) => return Ok(redirect(candidate::PATH)),
        Ok(false) => return pages.shell.page("Rules", viewer, &page),
        Err(problem) => problem,
    };
    let why = Err(problem.detail.unwrap_or_default());
    let page = pages.shell.answer("Rules", viewer, &why, &page)?;
    Ok(with_status(problem.status, page))
}

impl<'a> EditPage<'a> {
    fn new(pages: &RulesPages, viewer: &'a Viewer, form: Form) -> Self {
        Self {
            viewer,
            candidate: pages.host.candidate_command(),
            has_candidate: pages.host.candidate().is_some(),
            rollout: pages.host.rollout(),
            form,
            url: String::new(),
            check: None,
            back: None,
            pushed: None,
        }
    }

    /// Does what the form asks for. Returns whether the text runs in shadow now.
    async fn act(&mut self, pages: &RulesPages, who: &Operator) -> Result<bool, Box<Problem>> {
        let form = &mut self.form;
        let store = store_at(&*pages.host, form.place)?.store;
        store.url().clone_into(&mut self.url);
        let newest = Newest::read(&*store).await;
        let newest = newest.map_err(|error| failed(&error))?;
        if !form.rule.is_empty() {
            form.text = form.edited(pages, &newest).await?;
            form.rule.clear();
        }
        let check = form.check(pages, newest.clone()).await?;
        let check = self.check.insert(check);
        match &*form.action {
            "shadow" if check.is_sound() => {
                let about = About {
                    place: form.place,
                    from: form.from.clone(),
                    text: form.text.clone(),
                    change: check.summary.clone(),
                    note: form.note.clone(),
                    ..About::default()
                };
                who.start(&pages.host, about).await?;
                return Ok(true);
            }
            "push" if check.is_sound() => {
                let grant = self.viewer.caller.grant();
                let name = grant.map(|grant| grant.name().as_str());
                let pushed = form.push(&*store, &newest, name, check).await;
                // Whoever has seen what the text would change of the newest version may push it.
                form.from = newest.from();
                let head = pushed?;
                form.from = head.to_string();
                who.note_push(&*pages.host, (&*store, &head), &check.summary, &form.note);
                let candidate = pages.host.candidate();
                if candidate.is_some_and(|status| status.about.text == form.text) {
                    who.stop(&*pages.host);
                }
                (self.pushed, self.check) = (Some(head.number()), None);
            }
            _ => {}
        }
        Ok(false)
    }
}

impl Operator {
    /// Logs that a version was pushed, and notes it.
    fn note_push(
        &self,
        host: &dyn RulesHost,
        (store, head): (&dyn RuleStore, &Head),
        change: &str,
        note: &str,
    ) {
        let (by, from) = (&self.by, &self.from);
        let (version, store) = (head.number(), store.url());
        tracing::info!(
            store,
            version,
            by,
            from,
            note,
            change,
            "rules pushed in the console"
        );
        let what = format!("version {version} of the rules in {store}: {change}");
        self.note(host, what, note.to_owned());
    }
}

impl Form {
    /// The note as a word of a shell.
    fn note_word(&self) -> String {
        quoted(&self.note).into_owned()
    }

    async fn read(shell: &Shell, request: Request) -> Result<Self, PageError> {
        let fields = shell.form_of(request, MAX_TEXT).await?;
        Ok(Self {
            place: place(&fields),
            from: fields.get("from").to_owned(),
            // A browser ends lines as in mail.
            text: fields.get("text").replace("\r\n", "\n"),
            note: fields.word("note").chars().take(MAX_NOTE).collect(),
            action: fields.get("action").to_owned(),
            rule: fields.get("rule").to_owned(),
            set: fields.get("set").to_owned(),
        })
    }

    /// The newest version with other fields of a rule.
    async fn edited(&self, pages: &RulesPages, newest: &Newest) -> Result<String, Box<Problem>> {
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
        let edited: Result<EditedRules, String> = pages.shell.check(work).await?;
        let edited = edited.map_err(|reason| Problem::new(ProblemKind::InvalidField, reason))?;
        Ok(edited.text)
    }

    async fn check(&self, pages: &RulesPages, newest: Newest) -> Result<Proposal, Box<Problem>> {
        let (text, host) = (self.text.clone(), Arc::clone(&pages.host));
        let work = move || {
            let mut proposal = newest.propose(&text, &*host);
            let began = Instant::now();
            proposal.test(&text, || began.elapsed() < TEST_TIME);
            proposal
        };
        pages.shell.check(work).await
    }

    /// Pushes the text in place of the version that it was made from.
    async fn push(
        &self,
        store: &dyn RuleStore,
        newest: &Newest,
        who: Option<&str>,
        check: &Proposal,
    ) -> Result<Head, Box<Problem>> {
        let (head, version) = (newest.head.as_ref(), newest.version.as_ref());
        let conflict = |reason| Box::new(Problem::new(ProblemKind::Conflict, reason));
        if Head::parse(&self.from).as_ref() != head {
            return Err(conflict(overtaken(version.map(|version| &version.entry))));
        }
        if version.is_some_and(|newest| newest.text == self.text) {
            let reason = "nothing to do: the newest version says the same";
            return Err(conflict(reason.to_owned()));
        }
        let draft = Draft {
            text: &self.text,
            who: who.unwrap_or("the console"),
            change: &check.summary,
            note: &self.note,
        };
        match store.push(head, draft).await {
            Ok(PushOutcome::Done(head)) => Ok(head),
            Ok(PushOutcome::Overtaken(_)) => Err(conflict(overtaken(None))),
            Err(error) => Err(failed(&error)),
        }
    }
}

/// Message to whoever comes second.
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
