//! Compare: what an import of a file changes on the server.

use std::collections::HashMap;

use anyhow::Result;
use jiff::Timestamp;
use quell_rules::Problem;

use super::batch::{BatchLine, check};
use super::existing::read_existing;
use super::file::ImportFile;
use super::row::{OverrideName, Row};
use crate::client::Client;
use crate::progress::Progress;

/// Differences between a file and the server. Numbers are those of the file's rows.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    /// Rows that the server does not have.
    pub(super) added: Vec<usize>,
    /// Rows that the server has with another content, and that content.
    pub(super) changed: Vec<(usize, Row)>,
    pub(super) unchanged: usize,
    /// Overrides of the file's rules that the file does not have, if they were looked for: boosts only if it has some.
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
    let index = names.iter().enumerate().map(|(index, name)| (*name, index));
    let index: HashMap<&OverrideName, usize> = index.collect();
    let mut is_known = vec![false; file.rows.len()];
    let has_boosts = file.has_boosts();
    let mut comparison = Comparison::default();
    let refused = read_existing(client, domain, &names, others, &mut |before| {
        if before.is_over(now) {
            return;
        }
        let found = index.get(&before.name);
        let found = found.and_then(|index| Some((*index, file.rows.get(*index)?)));
        let Some((index, row)) = found else {
            if others && (has_boosts || !before.name.has_end) {
                comparison.others.push(before);
            }
            return;
        };
        // A list of what changes meanwhile may have something twice.
        if let Some(is_known) = is_known.get_mut(index)
            && !std::mem::replace(is_known, true)
        {
            match row.has_content_of(&before) {
                true => comparison.unchanged += 1,
                false => comparison.changed.push((index, before)),
            }
        }
    })?;
    if !refused.is_empty() {
        let problems = refused.iter();
        let problems = problems.map(|(index, detail)| file.problem(*index, detail));
        return Ok(Err(problems.collect()));
    }
    let added = is_known.iter().zip(0..).filter(|(is_known, _)| !**is_known);
    comparison.added = added.map(|(_, index)| index).collect();
    comparison.changed.sort_unstable_by_key(|(index, _)| *index);
    comparison
        .others
        .sort_unstable_by(|one, other| one.name.cmp(&other.name));
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

    /// Mistakes that the server finds in the rows to write, of which it writes none.
    ///
    /// # Errors
    /// Why it does not say.
    pub(super) fn check(
        &self,
        client: &Client,
        (domain, file): (&str, &ImportFile),
        batch: usize,
    ) -> Result<Vec<Problem>> {
        let written = self.written();
        let puts = written.iter().filter_map(|index| file.rows.get(*index));
        let puts: Vec<BatchLine<'_>> = puts.map(BatchLine::Put).collect();
        let mut progress = Progress::stderr();
        let refused = check(client, domain, &puts, batch, &mut progress)?;
        let problems = refused.iter().filter_map(|(change, detail)| {
            let index = written.get(*change)?;
            Some(file.problem(*index, detail))
        });
        Ok(problems.collect())
    }
}
