//! `quell overrides import`: brings the overrides of a file to a server.

use std::io::{BufRead as _, IsTerminal as _, Write as _, stderr, stdin};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use jiff::Timestamp;
use quell_protocol::http::OverrideServersBody;
use quell_protocol::printable;
use quell_rules::Problem;
use serde::Serialize;

use super::batch::{BatchLine, Deletion, MAX_CHANGES, Sent, USUAL_CHANGES, is_single, send};
use super::compare::{Comparison, compare};
use super::file::{FileArgs, ImportFile};
use super::wait::{note_missing, wait};
use crate::client::{Client, ServerUrl};
use crate::entry;
use crate::exit::{Exit, NoAnswer, Usage};
use crate::output;
use crate::progress::Progress;
use crate::rules::{count, print_problems};

/// Bring the overrides of a file to a server
///
/// CSV begins with the names of its columns: rule, the entries of the key, and fields such as rate, plan, until and
/// reason. A column whose name is no field is an entry; an entry with the name of a field is written entry.NAME. An
/// empty cell says nothing, and ' alone is an empty value. NDJSON has an object on each line, with the entries as an
/// object. until and from are as of `quell overrides set`, change is keep, prorate or restart, and revision is the one
/// that the override has to have on the server.
///
/// Only what differs is written. The server checks all of it first: if there is a mistake in the file, nothing is
/// written, and --dry-run says the same. Then it is written in batches of which the server makes all changes or none. If
/// it cannot make one, since somebody else changed something or there would be too many, those before it stay: import the
/// file again. Overrides that are over are left out.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  quell overrides import shop tenants.csv --dry-run
  quell overrides import shop tenants.csv --delete-others --yes --wait 5s
  psql -c \"copy (select 'api' as rule, tenant, plan from subscriptions) to stdout csv header\" |
    quell overrides import shop -")]
pub(super) struct Import {
    #[command(flatten)]
    file: FileArgs,

    /// Say what would change, and write nothing
    #[arg(long)]
    dry_run: bool,

    /// Delete the overrides of the file's rules that the file does not have; asks first on a terminal. Boosts stay if
    /// the file has no `until`
    #[arg(long)]
    delete_others: bool,

    /// Delete them without asking
    #[arg(long, requires = "delete_others")]
    yes: bool,

    /// Changes in a batch, 10000 at most
    #[arg(long, value_name = "N", default_value_t = USUAL_CHANGES, value_parser = batch_size)]
    batch: usize,

    /// Wait so long, at most, until all servers that share the store have what is written; 10s at most
    #[arg(long, value_name = "DURATION", value_parser = wait)]
    wait: Option<String>,

    #[command(flatten)]
    server: ServerUrl,

    /// Print the outcome as JSON
    #[arg(long)]
    json: bool,
}

/// The outcome for programs.
#[derive(Debug, Default, Serialize)]
struct ImportOutcome {
    ok: bool,
    dry_run: bool,
    added: usize,
    changed: usize,
    deleted: usize,
    unchanged: usize,
    over: usize,
    /// The newest revision of the store, if something was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<u64>,
    /// The servers that have what is written, if it was waited for.
    #[serde(skip_serializing_if = "Option::is_none")]
    servers: Option<OverrideServersBody>,
    problems: Vec<Problem>,
}

impl Import {
    /// Imports the file.
    ///
    /// # Errors
    /// Why nothing, or not all, is written.
    pub(super) fn run(&self) -> Result<Exit> {
        let instants = self.file.time_zone.reader(Timestamp::now())?;
        let client = self.server.client()?;
        let file = match self.file.read(&instants)? {
            Ok(file) => file,
            Err(problems) => return self.refuse(problems),
        };
        let compared = compare(
            &client,
            &self.file.domain,
            &file,
            self.delete_others,
            instants.now,
        )?;
        let comparison = match compared {
            Ok(comparison) => comparison,
            Err(problems) => return self.refuse(problems),
        };
        if self.dry_run {
            let of = (&*self.file.domain, &file);
            let problems = comparison.check(&client, of, self.batch)?;
            if !problems.is_empty() {
                return self.refuse(problems);
            }
        }
        let mut outcome = ImportOutcome {
            ok: true,
            dry_run: self.dry_run,
            unchanged: comparison.unchanged,
            over: file.over,
            ..ImportOutcome::default()
        };
        if self.dry_run {
            outcome.added = comparison.added.len();
            outcome.changed = comparison.changed.len();
            outcome.deleted = comparison.others.len();
        } else if self.may_delete(&comparison, &file)? {
            let changes = changes(&file, &comparison);
            if !is_single(&changes, self.batch)? {
                let of = (&*self.file.domain, &file);
                let problems = comparison.check(&client, of, self.batch)?;
                if !problems.is_empty() {
                    return self.refuse(problems);
                }
            }
            self.write(&client, (&file, &changes), &comparison, &mut outcome)?;
        } else {
            output::note("nothing is written");
            return Ok(Exit::Failed);
        }
        self.print(&outcome)?;
        Ok(Exit::fine_if(outcome.ok))
    }

    /// Prints mistakes that were found before anything was written.
    fn refuse(&self, problems: Vec<Problem>) -> Result<Exit> {
        let outcome = ImportOutcome {
            dry_run: self.dry_run,
            problems,
            ..ImportOutcome::default()
        };
        if self.json {
            output::json(&outcome)?;
        } else {
            print_problems(&outcome.problems, &[]);
            let mistakes = count(outcome.problems.len(), "mistake");
            output::note(format_args!("{mistakes}: nothing is written"));
        }
        Ok(Exit::Failed)
    }

    /// Asks whether others are deleted, if there are any.
    fn may_delete(&self, comparison: &Comparison, file: &ImportFile) -> Result<bool> {
        if comparison.others.is_empty() || self.yes {
            return Ok(true);
        }
        let others = count(comparison.others.len(), "override");
        if self.file.is_stdin() || !stdin().is_terminal() {
            bail!(Usage(format!(
                "{others} would be deleted: look at them with `quell overrides diff`, then write --yes"
            )));
        }
        let name = printable(&file.name);
        let question = format!("Delete {others} that {name} does not have? [y/N] ");
        stderr()
            .write_all(question.as_bytes())
            .context("cannot ask")?;
        let mut said = String::new();
        stdin()
            .lock()
            .read_line(&mut said)
            .context("cannot read the answer")?;
        Ok(matches!(&*said.trim().to_ascii_lowercase(), "y" | "yes"))
    }

    fn write(
        &self,
        client: &Client,
        (file, changes): (&ImportFile, &[BatchLine<'_>]),
        comparison: &Comparison,
        outcome: &mut ImportOutcome,
    ) -> Result<()> {
        let written = comparison.written();
        let mut sent = Sent::default();
        let result = {
            let mut progress = Progress::stderr();
            send(
                client,
                (&self.file.domain, self.wait.as_deref()),
                changes,
                self.batch,
                &mut progress,
                &mut sent,
            )
        };
        let made = written
            .get(..sent.made.min(written.len()))
            .unwrap_or_default();
        result.map_err(|error| {
            let last = made.last().map(|index| file.line(*index));
            match (last, error.is::<NoAnswer>()) {
                (Some(line), true) => error.context(format!(
                    "the changes up to line {line} are written, and perhaps more: run it again to write the rest"
                )),
                (Some(line), false) => error.context(format!("the changes up to line {line} are written")),
                (None, true) => error.context("perhaps nothing is written: run it again"),
                (None, false) => error,
            }
        })?;
        let is_changed =
            |index: &&usize| comparison.changed.iter().any(|(other, _)| other == *index);
        outcome.changed = match made.len() == written.len() {
            true => comparison.changed.len(),
            false => made.iter().filter(is_changed).count(),
        };
        outcome.added = made.len() - outcome.changed;
        outcome.deleted = sent.made.saturating_sub(written.len());
        outcome.revision = (sent.made > 0).then_some(sent.revision);
        outcome.servers = sent.servers.take();
        outcome.ok = sent.refused.is_empty();
        for (change, detail) in &sent.refused {
            outcome.problems.push(match written.get(*change) {
                Some(index) => file.problem(*index, detail),
                None => {
                    let row = comparison.others.get(change - written.len());
                    let name = row.map_or_else(String::new, |row| row.name.words());
                    Problem::of_file(&file.name, format!("delete {name}: {detail}"))
                }
            });
        }
        Ok(())
    }

    fn print(&self, outcome: &ImportOutcome) -> Result<()> {
        if self.json {
            return output::json(outcome);
        }
        print_problems(&outcome.problems, &[]);
        if !outcome.ok {
            output::note(
                "the server refused a batch: nothing of it is written, what came before it is",
            );
        }
        let ImportOutcome {
            added,
            changed,
            deleted,
            unchanged,
            ..
        } = outcome;
        let over = match outcome.over {
            0 => String::new(),
            over => format!("; {over} are over and left out"),
        };
        let would = if self.dry_run { "would be: " } else { "" };
        output::line(format_args!(
            "{would}{added} added, {changed} changed, {deleted} deleted, {unchanged} unchanged{over}"
        ))?;
        note_missing(outcome.servers.as_ref());
        Ok(())
    }
}

/// The changes that an import makes: rows that are written, and deletions of others.
fn changes<'a>(file: &'a ImportFile, comparison: &'a Comparison) -> Vec<BatchLine<'a>> {
    let written = comparison.written().into_iter();
    let puts = written
        .filter_map(|index| file.rows.get(index))
        .map(BatchLine::Put);
    let deletions = comparison.others.iter();
    let deletions = deletions.map(|row| BatchLine::Delete(Deletion(&row.name)));
    puts.chain(deletions).collect()
}

/// Reads the size of a batch.
fn batch_size(text: &str) -> Result<usize, String> {
    match entry::whole::<usize>(text)? {
        size @ 1..=MAX_CHANGES => Ok(size),
        _ => Err(format!("write a whole number from 1 to {MAX_CHANGES}")),
    }
}
