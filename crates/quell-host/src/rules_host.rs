//! Rules host: what `/v1/candidate` and the console ask of a process that has rules.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use quell::rule_store::{RuleStore, RuleStoreError, Version};
use quell_core::rule::DomainRules;
use quell_protocol::http::{Problem, ProblemKind};

use crate::candidate::{About, CandidateStatus};
use crate::history::Change;

/// Longest form with rules, in bytes: some twenty thousand rules.
pub const MAX_TEXT: usize = 4 * 1_024 * 1_024;

/// Longest note, in characters.
pub const MAX_NOTE: usize = 255;

/// The rules that a console shows and edits.
pub trait RulesHost: fmt::Debug + Send + Sync {
    /// The stores that they are read from.
    fn stores(&self) -> Vec<RulesPlace>;

    /// The files that they are read from.
    fn paths(&self) -> Vec<PathBuf>;

    /// Returns true if they are those of servers that share a store.
    fn is_shared(&self) -> bool;

    /// Checks whether the process can use the rules.
    ///
    /// # Errors
    /// Why not, and what to write.
    fn check(&self, domains: &[DomainRules]) -> Result<(), String>;

    /// The page where changed rules of a fleet wait until somebody puts them into force, if they do.
    fn rollout(&self) -> Option<&'static str> {
        None
    }

    /// Notes what a person changed.
    fn note(&self, change: Change);

    /// Runs a text in shadow beside the rules in force, in place of the one before. May take long.
    ///
    /// # Errors
    /// Why it cannot run.
    fn start_candidate(&self, about: About) -> Result<(), String>;

    /// Ends what [`start_candidate`](Self::start_candidate) began.
    fn stop_candidate(&self) -> Option<About>;

    /// Its results so far.
    fn candidate(&self) -> Option<CandidateStatus>;

    /// Beginning of the commands for candidates of this process.
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

/// The store at this place.
pub fn store_at(host: &dyn RulesHost, place: usize) -> Result<RulesPlace, Box<Problem>> {
    let of_place = host.stores().into_iter().nth(place).ok_or_else(|| {
        let detail = "there is no such store of rules: start from the page Rules";
        Box::new(Problem::new(ProblemKind::NotFound, detail))
    })?;
    if of_place.store.is_read_only() {
        let detail = "the coordinators of the fleet give this node its rules: edit them in the console of a \
                      coordinator";
        return Err(Box::new(Problem::new(ProblemKind::Conflict, detail)));
    }
    Ok(of_place)
}

/// The problem for an error of a store of rules.
pub fn failed(error: &RuleStoreError) -> Box<Problem> {
    Box::new(Problem::new(
        ProblemKind::TemporarilyReduced,
        error.to_string(),
    ))
}
