//! Rule follower: the rules that a coordinator reads, from files or a store, what they want of the fleet, and
//! what nodes are given of them.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};

use quell::rule_store::{Draft, Version, text_digest};
use quell_core::rule::DomainRules;
use quell_fleet::wire_rules::MAX_RULES;
use quell_host::candidate::{About, CandidateStatus};
use quell_host::config::field;
use quell_host::file_watch::Watch;
use quell_host::history::Change;
use quell_host::rule_source::RuleSource;
use quell_host::rules_host::{RulesHost, RulesPlace};
use quell_host::stored_rules::{Follower, Look, StoredRules};
use quell_rules::{LoadedRules, Problem, TextFile, join_texts, load_from, parse_str, read_texts};
use quell_shares::plan::Name;
use tokio::sync::{Notify, watch};

use crate::audit_trail::{AuditTrail, Author};
use crate::config::{Config, EtcdAccess, Terms};
use crate::config_rules::open_etcd;
use crate::console::ROLLOUT;
use crate::error::ServeError;
use crate::leader::{Changes, DesiredLimits, Service};
use crate::metrics::Metrics;

mod candidate;
mod changed_rules;
mod recorded_rules;

/// Source of the rules.
pub(crate) enum Origin {
    Files(Vec<PathBuf>),
    Store(StoredRules),
}

/// The rules, followed, and what they want of the fleet.
pub(crate) struct RuleFollower {
    pub(crate) origin: Origin,
    pub(crate) terms: Terms,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) trail: Arc<AuditTrail>,
    pub(crate) wanted: watch::Sender<DesiredLimits>,
    service: OnceLock<Service>,
    /// The rules in force. Held from reading to telling, so that older files never replace newer ones.
    good: Mutex<Option<Arc<Version>>>,
    /// Somebody wants the store to be read.
    asked: Notify,
}

/// Rules that were read, with the text for nodes if there is one.
struct Read {
    loaded: LoadedRules,
    text: Option<String>,
}

impl Origin {
    fn new(said: &[PathBuf], access: &EtcdAccess) -> Result<Self, ServeError> {
        let wrong = |reason: &str| ServeError::from(field("rules", reason));
        let parse = |path: &PathBuf| RuleSource::parse(path).map_err(|reason| wrong(&reason));
        let sources = said.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
        if let [source] = &*sources
            && let Some(store) = source.open(|url| open_etcd(url, access))
        {
            return Ok(Self::Store(StoredRules::new(store?)));
        }
        let path = |source| match source {
            RuleSource::Path(path) => Ok(path),
            RuleSource::Fleet => Err(wrong(
                "nodes follow their coordinators: write the files or the store that this coordinator reads",
            )),
            _ => Err(wrong("write files and directories, or one store")),
        };
        let paths: Result<Vec<_>, _> = sources.into_iter().map(path).collect();
        Ok(Self::Files(paths?))
    }
}

fn texts(problems: &[Problem]) -> Vec<String> {
    problems.iter().map(ToString::to_string).collect()
}

/// The rules of files. Nodes are given them as one text, if that says the same.
fn read_files(paths: &[PathBuf]) -> Result<Read, Vec<Problem>> {
    let read = read_texts(paths)?;
    let mut loaded = load_from(read.files.iter().map(TextFile::source))?;
    loaded.warnings.splice(..0, read.warnings);
    let text = join_texts(&read.files);
    let joined = parse_str("the files together", &text);
    let is_same = joined.is_ok_and(|joined| joined.domains == loaded.domains);
    if !is_same {
        tracing::warn!(
            "the rule files differ in meaning when they are joined into one: nodes with --rules fleet do \
            not get them; write the rules in one file"
        );
    }
    Ok(Read {
        loaded,
        text: is_same.then_some(text),
    })
}

impl RulesHost for RuleFollower {
    fn stores(&self) -> Vec<RulesPlace> {
        let Origin::Store(stored) = &self.origin else {
            return Vec::new();
        };
        let newest = self.good.lock().ok().and_then(|good| good.clone());
        let in_force = match self.service.get() {
            Some(service) => service.rule_distribution().versions().in_force,
            None => newest.clone(),
        };
        vec![RulesPlace {
            store: stored.store(),
            in_force: in_force.as_deref().map(Version::number),
            newest,
        }]
    }

    fn paths(&self) -> Vec<PathBuf> {
        match &self.origin {
            Origin::Files(paths) => paths.clone(),
            Origin::Store(_) => Vec::new(),
        }
    }

    fn is_shared(&self) -> bool {
        false
    }

    fn check(&self, domains: &[DomainRules]) -> Result<(), String> {
        self.terms.wanted(domains).map(drop)
    }

    fn rollout(&self) -> Option<&'static str> {
        let is_staged = self.wanted.borrow().changes == Changes::Staged;
        is_staged.then_some(ROLLOUT)
    }

    fn note(&self, change: Change) {
        let author = Author {
            by: change.by,
            from: change.from,
            why: change.reason,
        };
        self.trail.note(&author, change.what);
    }

    fn start_candidate(&self, about: About) -> Result<(), String> {
        let service = self
            .service
            .get()
            .ok_or("this coordinator has only just started")?;
        candidate::start(service, about)
    }

    fn stop_candidate(&self) -> Option<About> {
        candidate::stop(self.service.get()?)
    }

    fn candidate(&self) -> Option<CandidateStatus> {
        candidate::status(self.service.get()?)
    }

    fn candidate_command(&self) -> &'static str {
        "quell fleet candidate"
    }
}

impl fmt::Debug for RuleFollower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuleFollower").finish_non_exhaustive()
    }
}

impl RuleFollower {
    /// Reads the rules for the first time. Returns their warnings as well.
    ///
    /// # Errors
    /// If what was said is wrong, or the rules are.
    pub(crate) async fn read(
        config: &Config,
        trail: AuditTrail,
    ) -> Result<(Self, Vec<Problem>), ServeError> {
        let origin = Origin::new(&config.rules, &config.rules_access)?;
        let terms = config.terms.clone();
        let (read, good) = match &origin {
            Origin::Files(paths) => (read_files(paths), None),
            Origin::Store(stored) => {
                let url = || stored.url().to_owned();
                let latest = stored.read_first().await;
                let latest =
                    latest.map_err(|source| ServeError::RulesStore { url: url(), source })?;
                let latest = latest.ok_or_else(|| ServeError::NoRules {
                    url: url(),
                    advice: stored.store().advice().to_owned(),
                })?;
                let name = format!("{} version {}", stored.url(), latest.number());
                (read_version(&name, &latest), Some(latest))
            }
        };
        let read = read.map_err(ServeError::Rules)?;
        let wanted = terms.wanted(&read.loaded.domains);
        let mut wanted = wanted.map_err(ServeError::Impossible)?;
        let good = good.or_else(|| read.text.as_deref().map(|text| of_files(1, text)));
        wanted.rules = good.as_deref().and_then(digest);
        let follower = Self {
            origin,
            wanted: watch::Sender::new(wanted),
            terms,
            metrics: Arc::default(),
            trail: Arc::new(trail),
            service: OnceLock::new(),
            good: Mutex::new(good),
            asked: Notify::new(),
        };
        Ok((follower, read.loaded.warnings))
    }

    /// A watch over the files.
    pub(crate) fn watch(said: &[PathBuf]) -> Watch {
        let is_path = |path: &&PathBuf| !path.to_string_lossy().contains("://");
        let paths: Vec<PathBuf> = said.iter().filter(is_path).cloned().collect();
        Watch::new(&paths)
    }

    /// Gives nodes the rules by `service`, from now on.
    pub(crate) fn hand_out(&self, service: Service) {
        let service = self.service.get_or_init(|| service);
        if let Ok(good) = self.good.lock()
            && let Some(good) = &*good
        {
            service.rule_distribution().publish(Arc::clone(good));
        }
    }

    /// Reads the rules again whenever they change.
    pub(crate) async fn follow(self: Arc<Self>, mut changes: Watch) {
        match &self.origin {
            Origin::Files(paths) => loop {
                changes.changed(|| paths.clone()).await;
                self.reload();
            },
            Origin::Store(stored) => self.follow_store(stored).await,
        }
    }

    /// Reads the rules again, or has that done.
    pub(crate) fn reload(&self) {
        match &self.origin {
            Origin::Files(paths) => self.take(read_files(paths), None),
            Origin::Store(_) => self.asked.notify_one(),
        }
    }

    async fn follow_store(&self, stored: &StoredRules) {
        let mut follower = Follower::new(stored);
        loop {
            let look = tokio::select! {
                look = follower.look() => look,
                () = self.asked.notified() => stored.look().await,
            };
            if look == Look::Changed
                && stored.read().await.is_ok()
                && let Some((name, version)) = stored.last_read()
            {
                self.take(read_version(&name, &version), Some(version));
            }
            let failure = stored.status().failure;
            if failure.is_none() {
                self.metrics.config_was_read();
            }
            if let Some(service) = self.service.get() {
                let reasons = failure.map(|failure| failure.reasons.join("; "));
                service.rule_distribution().set_unreadable(reasons);
            }
        }
    }

    /// Puts rules into force. If they have a mistake, those before stay.
    fn take(&self, read: Result<Read, Vec<Problem>>, version: Option<Arc<Version>>) {
        let Ok(mut good) = self.good.lock() else {
            return;
        };
        let read = read.map_err(|problems| texts(&problems)).and_then(|read| {
            let wanted = self.terms.wanted(&read.loaded.domains);
            Ok((wanted.map_err(|reason| vec![reason])?, read.text))
        });
        let (mut wanted, text) = match read {
            Ok(read) => read,
            Err(reasons) => {
                tracing::error!("the rules have mistakes; the limits in force stay");
                for reason in &reasons {
                    tracing::error!("{reason}");
                }
                let number = version.map(|version| version.number());
                self.refuse(number, &reasons.join("; "));
                return;
            }
        };
        self.metrics.config_was_read();
        let number = good.as_deref().map_or(0, Version::number);
        let next = match (version, text) {
            (Some(version), _) => Some(version),
            (None, Some(text)) if good.as_deref().is_none_or(|good| good.text != text) => {
                Some(of_files(number + 1, &text))
            }
            (None, Some(_)) => good.clone(),
            (None, None) => None,
        };
        // Before a leader puts it into force.
        match (self.service.get(), &next) {
            (Some(service), Some(next)) => service.rule_distribution().publish(Arc::clone(next)),
            (_, None) => {
                let why = "the rule files differ in meaning when they are joined into one, so nodes do not \
                    get them";
                self.refuse(None, why);
            }
            _ => {}
        }
        wanted.rules = next.as_deref().and_then(digest);
        let is_new = self.wanted.send_if_modified(|before| {
            let is_new = *before != wanted;
            *before = wanted;
            is_new
        });
        if is_new {
            tracing::info!("the rules changed");
        } else {
            tracing::debug!("the rules were read again: they are the same");
        }
        if next.is_some() {
            *good = next;
        }
    }

    fn refuse(&self, number: Option<u64>, reasons: &str) {
        if let Some(service) = self.service.get() {
            let what = number.map_or("the files".to_owned(), |number| format!("version {number}"));
            service
                .rule_distribution()
                .refuse(format!("{what}: {reasons}"));
        }
    }
}

fn read_version(name: &str, version: &Version) -> Result<Read, Vec<Problem>> {
    Ok(Read {
        loaded: parse_str(name, &version.text)?,
        text: None,
    })
}

/// The mark of a text that nodes can be given.
fn digest(version: &Version) -> Option<Name> {
    let fits = version.text.len() <= MAX_RULES;
    fits.then(|| text_digest(&version.text).into())
}

/// Files have no versions: their changes are counted since the start.
fn of_files(number: u64, text: &str) -> Arc<Version> {
    let draft = Draft {
        text,
        who: "the coordinator's files",
        change: "",
        note: "",
    };
    Arc::new(Version::from_draft(number, 0, &draft))
}
