//! Batch: changes that a server makes all or none of.

use anyhow::{Context as _, Result};
use quell_protocol::http::{BatchBody, LineMistake, OverrideServersBody};
use serde::Serialize;

use super::PATH;
use super::key::segment;
use super::row::{OverrideName, Row};
use crate::client::Client;
use crate::progress::Progress;

/// The most changes of a batch, which is the server's bound.
pub(super) const MAX_CHANGES: usize = 10_000;

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
        let wait = wait.filter(|_| count == rest.len());
        let answer = match wait {
            Some(wait) => client.post_lines(&format!("{path}&wait={}", segment(wait)), &lines)?,
            None => client.post_lines(&path, &lines)?,
        };
        let errors = answer
            .problem()
            .map(|problem| problem.errors)
            .unwrap_or_default();
        if !errors.is_empty() {
            let refused = errors
                .into_iter()
                .map(|LineMistake { line, detail }| (sent.made + line.saturating_sub(1), detail));
            sent.refused = refused.collect();
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
