//! Compare: what an import of a file changes on the server.

use anyhow::Result;
use jiff::Timestamp;
use quell_rules::Problem;

use super::existing::read_existing;
use super::file::ImportFile;
use super::row::{OverrideName, Row};
use crate::client::Client;

/// What of a file and the server differs. Numbers are those of the file's rows.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    /// Rows that the server does not have.
    pub(super) added: Vec<usize>,
    /// Rows that the server has with another content, and that content.
    pub(super) changed: Vec<(usize, Row)>,
    pub(super) unchanged: usize,
    /// Overrides of the file's rules that the file does not have, if they were looked for.
    pub(super) others: Vec<Row>,
}

/// Compares; `others` looks for overrides that the file does not have, too.
///
/// # Errors
/// Why the server does not say what it has. What it says against single rows is the value.
pub(super) fn compare(
    client: &Client,
    domain: &str,
    file: &ImportFile,
    others: bool,
    now: Timestamp,
) -> Result<Result<Comparison, Vec<Problem>>> {
    let names: Vec<&OverrideName> = file.rows.iter().map(|row| &row.name).collect();
    let existing = read_existing(client, domain, &names, others, now)?;
    if !existing.refused.is_empty() {
        let refused = existing.refused.iter();
        let problems = refused.map(|(index, detail)| file.problem(*index, detail));
        return Ok(Err(problems.collect()));
    }
    let mut rows = existing.rows;
    let mut comparison = Comparison::default();
    for (index, row) in file.rows.iter().enumerate() {
        match rows.remove(&row.name) {
            None => comparison.added.push(index),
            Some(before) if row.has_content_of(&before) => comparison.unchanged += 1,
            Some(before) => comparison.changed.push((index, before)),
        }
    }
    if others {
        comparison.others = rows.into_values().collect();
        comparison
            .others
            .sort_unstable_by(|one, other| one.name.cmp(&other.name));
    }
    Ok(Ok(comparison))
}

impl Comparison {
    /// The rows to write, in the order of the file.
    pub(super) fn written(&self) -> Vec<usize> {
        let changed = self.changed.iter().map(|(index, _)| *index);
        let mut written: Vec<usize> = self.added.iter().copied().chain(changed).collect();
        written.sort_unstable();
        written
    }
}
