//! The rules that coordinators hand out, as a [`RuleStore`] that is only read.
//!
//! A version that is in force is kept in a file, so that the next start has rules when nothing else is up.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prost::Message as _;
use quell::rule_store::{
    Draft, Entry, Head, PushOutcome, Reply, RuleStore, RuleStoreError, Version, Waiting,
};
use tokio::sync::watch;

use super::file::{read_checked, replace};
use crate::call_report::{LONGEST_WHY, bounded_candidate};
use crate::{proto, wire_rules};

/// First bytes of the file; the last byte is the version of the format.
const MAGIC: &[u8; 4] = b"qlr\x01";

/// First words of the reason if rules in force are not in the file.
const UNKEPT: &str = "in force, and not kept for the next start";

/// The rules of a node that follows those of its fleet.
#[derive(Debug)]
pub struct FleetRules {
    file: Option<PathBuf>,
    newest: watch::Sender<Option<Arc<Version>>>,
    candidate: watch::Sender<Arc<proto::Candidate>>,
    judged: watch::Sender<Arc<[String]>>,
    state: Mutex<RulesState>,
}

#[derive(Debug, Default)]
struct RulesState {
    /// Report to the coordinators.
    seen: proto::RulesSeen,
    /// Version that was last read here, which need not be the newest any more.
    read: Option<Arc<Version>>,
    /// Version in force that is not in the file, because of a failure.
    unkept: Option<Arc<Version>>,
}

impl RulesState {
    /// Notes which version is in force. What was counted under another one is not told with it.
    fn apply(&mut self, in_force: Option<&Head>) {
        let applied = head_text(in_force);
        if self.seen.applied != applied {
            self.seen.applied = applied;
            self.seen.answered.clear();
        }
    }
}

impl FleetRules {
    /// Reads what an earlier start has kept. Blocks on the disk for a moment.
    pub(super) fn open(file: Option<PathBuf>) -> Self {
        let kept = file.as_deref().map(read).transpose();
        let kept = kept.unwrap_or_else(|why| {
            let path = file.as_deref().unwrap_or(Path::new(""));
            tracing::error!(
                path = %path.display(),
                why,
                "cannot read this node's copy of the fleet's rules: the node has no rules until a \
                coordinator answers"
            );
            None
        });
        let kept = kept.flatten().map(Arc::new);
        let seen = proto::RulesSeen {
            known: head_text(kept.as_deref().map(Version::head)),
            ..proto::RulesSeen::default()
        };
        Self {
            file,
            newest: watch::Sender::new(kept),
            candidate: watch::Sender::default(),
            judged: watch::Sender::default(),
            state: Mutex::new(RulesState {
                seen,
                ..RulesState::default()
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, RulesState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the report for coordinators. What could not be written is tried again.
    pub(super) fn seen(&self) -> proto::RulesSeen {
        let mut state = self.state();
        if let Some(version) = state.unkept.take() {
            self.keep(&mut state, version);
        }
        state.seen.clone()
    }

    /// Writes a version that is in force. It is told as applied when it is in the file.
    fn keep(&self, state: &mut RulesState, version: Arc<Version>) {
        match self.write(&version) {
            Ok(()) => {
                state.apply(Some(version.head()));
                if state.seen.refused.starts_with(UNKEPT) {
                    state.seen.refused.clear();
                }
            }
            Err(error) => {
                let why: String = format!("{UNKEPT}: {error}")
                    .chars()
                    .take(LONGEST_WHY)
                    .collect();
                if state.seen.refused != why {
                    tracing::error!(
                        why,
                        "cannot save the fleet's rules for the next start: make room on the disk or repair \
                        it"
                    );
                }
                state.seen.refused = why;
                state.unkept = Some(version);
            }
        }
    }

    /// Takes what a coordinator has handed out.
    pub(super) fn receive(&self, given: proto::Rules) {
        let head = given.head.clone();
        let version = wire_rules::decode(given);
        let mut state = self.state();
        state.seen.known = head;
        state.seen.refused.clear();
        match version {
            Ok(version) => {
                let version = Some(Arc::new(version));
                drop(state);
                self.newest.send_if_modified(|newest| {
                    let is_new = *newest != version;
                    *newest = version;
                    is_new
                });
            }
            Err(error) => {
                tracing::error!(
                    %error,
                    "cannot use the fleet's new rules; the rules in force stay"
                );
                state.seen.refused = error.to_string().chars().take(LONGEST_WHY).collect();
            }
        }
    }

    /// Takes the candidate that a coordinator has handed out; one with the id 0 is none.
    pub(super) fn receive_candidate(&self, given: proto::Candidate) {
        if let Some(seen) = &mut self.state().seen.candidate {
            *seen = proto::CandidateSeen {
                id: given.id,
                ..proto::CandidateSeen::default()
            };
        }
        self.candidate.send_replace(Arc::new(given));
    }

    /// The candidate of the fleet, to be run in shadow beside the rules in force; the id 0 is none. Coordinators
    /// give one to nodes that have called this, and to no others.
    #[must_use]
    pub fn follow_candidate(&self) -> watch::Receiver<Arc<proto::Candidate>> {
        self.state().seen.candidate.get_or_insert_default();
        self.candidate.subscribe()
    }

    /// Sets the report on a candidate, for coordinators.
    pub fn tell_candidate(&self, seen: proto::CandidateSeen) {
        if let Some(last) = &mut self.state().seen.candidate
            && last.id == seen.id
        {
            *last = bounded_candidate(seen);
        }
    }

    /// Takes the names of the rules that are judged, in place of those before.
    pub(super) fn receive_judged(&self, given: proto::Judged) {
        let mut state = self.state();
        // What was counted before they came is told by who counts, and never as 0 until then.
        state.seen.answered.clear();
        self.judged.send_replace(given.rules.into());
    }

    /// The rules of which coordinators want to know how calls are answered, as `domain/rule`. Coordinators give
    /// such names to nodes that have called this, and to no others.
    #[must_use]
    pub fn follow_judged(&self) -> watch::Receiver<Arc<[String]>> {
        self.state().seen.counts = true;
        self.judged.subscribe()
    }

    /// Sets the counts of answers under each of the rules that are judged, since this process began to
    /// count. What is said of other rules comes too late.
    pub fn tell_answered(&self, answered: Vec<proto::RuleAnswers>) {
        let mut state = self.state();
        let told = answered.iter().map(|one| &one.rule);
        if self.judged.borrow().iter().eq(told) {
            state.seen.answered = answered;
        }
    }

    fn newest(&self) -> Option<Arc<Version>> {
        self.newest.borrow().clone()
    }

    fn write(&self, version: &Version) -> io::Result<()> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        replace(file, MAGIC, &wire_rules::encode(version).encode_to_vec())
    }
}

fn head_text(head: Option<&Head>) -> String {
    head.map(Head::to_string).unwrap_or_default()
}

fn read(file: &Path) -> Result<Option<Version>, String> {
    let Some(body) = read_checked(file, MAGIC)? else {
        return Ok(None);
    };
    let message = proto::Rules::decode(&*body).map_err(|error| error.to_string())?;
    let version = wire_rules::decode(message);
    version.map(Some).map_err(|error| error.to_string())
}

impl RuleStore for FleetRules {
    fn url(&self) -> &str {
        "fleet"
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn kept(&self) -> u64 {
        1
    }

    fn head(&self) -> Reply<'_, Option<Head>> {
        let head = self.newest().map(|version| version.head().clone());
        Box::pin(async { Ok(head) })
    }

    fn version(&self, number: u64) -> Reply<'_, Option<Version>> {
        let newest = self.newest().filter(|version| version.number() == number);
        if newest.is_some() {
            self.state().read.clone_from(&newest);
        }
        Box::pin(async move { Ok(newest.map(|version| (*version).clone())) })
    }

    fn history(&self, most: usize) -> Reply<'_, Vec<Entry>> {
        let newest = self.newest().map(|version| version.entry.clone());
        Box::pin(async move { Ok(newest.into_iter().take(most).collect()) })
    }

    fn push<'a>(&'a self, _from: Option<&'a Head>, _draft: Draft<'a>) -> Reply<'a, PushOutcome> {
        let text =
            "these rules come from the coordinators of the fleet: push to the store that they read";
        Box::pin(async { Err(RuleStoreError::Unfit(text.to_owned())) })
    }

    fn wait<'a>(&'a self, seen: Option<&'a Head>) -> Waiting<'a> {
        Box::pin(async move {
            let mut newest = self.newest.subscribe();
            let is_other =
                |newest: &Option<Arc<Version>>| newest.as_deref().map(Version::head) != seen;
            // The sender lives as long as this.
            newest.wait_for(is_other).await.ok();
        })
    }

    /// Keeps the version in a file, if it is in force.
    fn note(&self, in_force: Option<&Head>, refused: Option<&str>) {
        let mut state = self.state();
        state.seen.refused = refused
            .unwrap_or_default()
            .chars()
            .take(LONGEST_WHY)
            .collect();
        let read = state.read.clone();
        match read.filter(|version| Some(version.head()) == in_force) {
            Some(version) if refused.is_none() => self.keep(&mut state, version),
            _ if state.unkept.is_none() => state.apply(in_force),
            _ => {}
        }
    }

    fn advice(&self) -> String {
        "a coordinator hands some out, if it has any: look at `quell fleet status`".to_owned()
    }
}
