//! Batch: changes that a server makes all or none of.

use anyhow::{Context as _, Result};
use quell_protocol::http::{BatchBody, LineMistake, OverrideServersBody};
use serde::Serialize;

use super::PATH;
use super::file::MAX_MISTAKES;
use super::key::segment;
use super::row::{OverrideName, Row};
use crate::client::{Client, HttpResponse};
use crate::progress::Progress;

/// The most changes of a batch, which is the server's bound.
pub(super) const MAX_CHANGES: usize = 10_000;

/// Changes of a batch, if nobody says how many.
pub(super) const USUAL_CHANGES: usize = 1_000;

/// Bytes at which a batch ends early: a tenth of the server's bound.
const MAX_BYTES: usize = 3 * 1_024 * 1_024;

/// A change.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(untagged)]
pub(super) enum BatchLine<'a> {
    Put(&'a Row),
    Delete(Deletion<'a>),
}

/// The name of an override that is deleted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deletion<'a>(pub(super) &'a OverrideName);

impl Serialize for Deletion<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap as _;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("rule", &self.0.rule)?;
        let entries = self.0.entries.iter().cloned();
        map.serialize_entry(
            "entries",
            &entries.collect::<std::collections::BTreeMap<_, _>>(),
        )?;
        map.serialize_entry("which", self.0.which())?;
        map.serialize_entry("delete", &true)?;
        map.end()
    }
}

/// Progress of a server with the batches of an import.
#[derive(Debug, Default)]
pub(super) struct Sent {
    /// Changes of batches that were made: the first so many of all.
    pub(super) made: usize,
    /// The newest revision of the store; 0 if nothing was sent.
    pub(super) revision: u64,
    /// The servers that have them all, if the last batch was made and is waited for.
    pub(super) servers: Option<OverrideServersBody>,
    /// Mistakes in changes of the next batch, by their numbers, from 0. Nothing of that batch was made.
    pub(super) refused: Vec<(usize, String)>,
}

/// The lines of the next batch, and how many changes they are.
fn next_batch(rest: &[BatchLine<'_>], size: usize) -> Result<(String, usize)> {
    let mut lines = String::new();
    let mut count = 0;
    for change in rest.iter().take(size) {
        if lines.len() >= MAX_BYTES {
            break;
        }
        lines += &serde_json::to_string(change).context("cannot write a change as JSON")?;
        lines.push('\n');
        count += 1;
    }
    Ok((lines, count))
}

/// Mistakes in changes of a batch that begins with the change of this number.
fn mistakes_of(answer: &HttpResponse, first: usize) -> Vec<(usize, String)> {
    let errors = answer
        .problem()
        .map(|problem| problem.errors)
        .unwrap_or_default();
    let mistakes = errors.into_iter();
    let mistakes =
        mistakes.map(|LineMistake { line, detail }| (first + line.saturating_sub(1), detail));
    mistakes.collect()
}

/// Has the server check changes as it would before it makes them, for a caller who may make them. Returns mistakes in
/// them, by their numbers, from 0.
///
/// # Errors
/// Why there is no answer.
pub(super) fn check(
    client: &Client,
    domain: &str,
    changes: &[BatchLine<'_>],
    size: usize,
    progress: &mut Progress,
) -> Result<Vec<(usize, String)>> {
    let path = format!("{PATH}/batch?domain={}&check=true", segment(domain));
    let (mut checked, mut refused) = (0, Vec::new());
    while let Some(rest) = changes.get(checked..).filter(|rest| !rest.is_empty()) {
        let (lines, count) = next_batch(rest, size)?;
        let answer = client.post_lines(&path, &lines)?;
        // A token that may only read compares without a check; a write is refused when it is tried.
        if answer.is_forbidden() {
            break;
        }
        let mistakes = mistakes_of(&answer, checked);
        if mistakes.is_empty() {
            answer.good()?;
        }
        refused.extend(mistakes);
        if refused.len() >= MAX_MISTAKES {
            refused.truncate(MAX_MISTAKES);
            break;
        }
        checked += count;
        progress.show(format_args!(
            "{checked} of {} changes are checked",
            changes.len()
        ));
    }
    Ok(refused)
}

/// Returns true if one batch has all changes, which is made as a whole or not at all.
pub(super) fn is_single(changes: &[BatchLine<'_>], size: usize) -> Result<bool> {
    Ok(changes.len() <= size && next_batch(changes, size)?.1 == changes.len())
}

/// Sends changes in batches, until one is refused. With the last one the server waits, for at most `wait`, until all
/// servers have them.
///
/// # Errors
/// Why there is no answer; `made` says how many changes were made before.
pub(super) fn send(
    client: &Client,
    (domain, wait): (&str, Option<&str>),
    changes: &[BatchLine<'_>],
    size: usize,
    progress: &mut Progress,
    sent: &mut Sent,
) -> Result<()> {
    let path = format!("{PATH}/batch?domain={}", segment(domain));
    while let Some(rest) = changes.get(sent.made..).filter(|rest| !rest.is_empty()) {
        let (lines, count) = next_batch(rest, size)?;
        let wait = wait.filter(|_| count == rest.len());
        let answer = match wait {
            Some(wait) => client.post_lines(&format!("{path}&wait={}", segment(wait)), &lines)?,
            None => client.post_lines(&path, &lines)?,
        };
        sent.refused = mistakes_of(&answer, sent.made);
        if !sent.refused.is_empty() {
            return Ok(());
        }
        let body: BatchBody = answer.good()?.json()?;
        sent.revision = body.revision;
        sent.servers = body.servers;
        sent.made += count;
        progress.show(format_args!(
            "{} of {} changes are made",
            sent.made,
            changes.len()
        ));
    }
    Ok(())
}
