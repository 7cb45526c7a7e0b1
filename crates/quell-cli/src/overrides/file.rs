//! File: overrides that are imported, as CSV or NDJSON.

use std::collections::HashMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Args;
use quell_protocol::printable;
use quell_rules::Problem;
use serde_json::{Map, Value};

use super::instant::{InstantReader, TimeZoneArg};
use super::row::{OverrideName, Row, RowMistake};
use super::table_file::{Columns, read_table};

/// The most mistakes that are told at a time: more than a person corrects before the next run.
pub(super) const MAX_MISTAKES: usize = 100;

/// The domain and the file of an import.
#[derive(Debug, Args)]
pub(super) struct FileArgs {
    /// The domain
    #[arg(value_name = "DOMAIN")]
    pub(super) domain: String,

    /// The file: CSV, or an object on each line (NDJSON); - is standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,

    #[command(flatten)]
    pub(super) time_zone: TimeZoneArg,
}

/// The overrides that a file says.
#[derive(Debug, Default)]
pub(super) struct ImportFile {
    /// Its name in messages.
    pub(super) name: String,
    /// Those whose time is not over.
    pub(super) rows: Vec<Row>,
    /// The line of each.
    lines: Vec<usize>,
    /// Number of rows whose time is over.
    pub(super) over: usize,
    columns: Columns,
}

impl FileArgs {
    /// Returns true if the file is standard input.
    pub(super) fn is_stdin(&self) -> bool {
        self.file == Path::new("-")
    }

    /// Reads the file.
    ///
    /// # Errors
    /// If it cannot be read. Mistakes in it are the value.
    pub(super) fn read(
        &self,
        instants: &InstantReader,
    ) -> Result<Result<ImportFile, Vec<Problem>>> {
        let mut bytes = Vec::new();
        let (name, read) = if self.is_stdin() {
            let read = std::io::stdin().lock().read_to_end(&mut bytes);
            ("standard input".to_owned(), read.map(|_| bytes))
        } else {
            (self.file.display().to_string(), std::fs::read(&self.file))
        };
        let bytes = read.with_context(|| format!("cannot read {name}"))?;
        Ok(read_bytes(name, &bytes, &self.domain, instants))
    }
}

fn read_bytes(
    name: String,
    bytes: &[u8],
    domain: &str,
    instants: &InstantReader,
) -> Result<ImportFile, Vec<Problem>> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let mut reader = FileReader {
        file: ImportFile {
            name,
            ..ImportFile::default()
        },
        problems: Vec::new(),
        domain,
        instants,
    };
    if bytes.trim_ascii().is_empty() {
        return Ok(reader.file);
    }
    if bytes.trim_ascii_start().starts_with(b"{") {
        reader.read_lines(bytes);
    } else {
        let read = read_table(bytes, |(line, row), columns| {
            match row {
                Ok(row) => reader.take(line, row, columns),
                Err(mistakes) => reader.report(line, mistakes, columns),
            }
            reader.problems.len() < MAX_MISTAKES
        });
        match read {
            Ok(columns) => reader.file.columns = columns,
            Err(mistakes) => reader.report(1, mistakes, &Columns::default()),
        }
    }
    reader.check_names();
    match reader.problems.is_empty() {
        true => Ok(reader.file),
        false => Err(reader.problems),
    }
}

/// Reads the lines of a file.
struct FileReader<'a> {
    file: ImportFile,
    problems: Vec<Problem>,
    domain: &'a str,
    instants: &'a InstantReader,
}

impl FileReader<'_> {
    fn read_lines(&mut self, bytes: &[u8]) {
        for (index, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
            if self.problems.len() >= MAX_MISTAKES {
                break;
            }
            if line.trim_ascii().is_empty() {
                continue;
            }
            match serde_json::from_slice::<Map<String, Value>>(line) {
                Ok(row) => self.take(index + 1, row, &Columns::default()),
                Err(error) => {
                    let told = error.to_string();
                    let told = told.split(" at line ").next().unwrap_or_default();
                    let message = format!(
                        "{told}: write an object such as {{\"rule\":\"api\",\"entries\":{{\"tenant\":\"acme\"}},\"rate\":\"200/s\"}}"
                    );
                    let place = (index + 1, error.column().max(1));
                    self.problems
                        .push(problem(&self.file.name, place, "", message));
                }
            }
        }
    }

    fn take(&mut self, line: usize, row: Map<String, Value>, columns: &Columns) {
        let row = match Row::from_line(row, self.domain, self.instants) {
            Ok(row) => row,
            Err(mistakes) => return self.report(line, mistakes, columns),
        };
        if row.is_over(self.instants.now) {
            self.file.over += 1;
        } else {
            self.file.rows.push(row);
            self.file.lines.push(line);
        }
    }

    /// Reports overrides that the file has twice.
    fn check_names(&mut self) {
        let mut known: HashMap<&OverrideName, usize> = HashMap::new();
        for (row, line) in self.file.rows.iter().zip(&self.file.lines) {
            let Some(before) = known.insert(&row.name, *line) else {
                continue;
            };
            let message = format!(
                "{} has its {} override in line {before} already: write it once",
                row.name.words(),
                row.name.which()
            );
            let problem = problem(&self.file.name, (*line, 1), "", message);
            self.problems.push(problem);
        }
        self.problems.sort_by_key(|problem| problem.line);
        self.problems.truncate(MAX_MISTAKES);
    }

    fn report(&mut self, line: usize, mistakes: Vec<RowMistake>, columns: &Columns) {
        for RowMistake { field, message } in mistakes {
            let place = (line, columns.number(&field));
            self.problems
                .push(problem(&self.file.name, place, &field, message));
        }
    }
}

impl ImportFile {
    /// Returns true if the file says which boosts there are. One without any end is about what stands.
    pub(super) fn has_boosts(&self) -> bool {
        let mut rows = self.rows.iter();
        self.columns.has_until() || self.over > 0 || rows.any(|row| row.name.has_end)
    }

    /// The line of a row.
    pub(super) fn line(&self, index: usize) -> usize {
        self.lines.get(index).copied().unwrap_or_default()
    }

    /// The server's message about a row, with its place in the file.
    pub(super) fn problem(&self, index: usize, detail: &str) -> Problem {
        let (field, message) = in_numbers(detail);
        let place = (self.line(index), self.columns.number(field));
        let entries = self.columns.entries();
        // A column that nobody meant as an entry is one.
        let names = match message.contains("entries") && !entries.is_empty() {
            true => format!(
                "; columns of the file that are no fields, and so entries: {}",
                printable(&entries.join(", "))
            ),
            false => String::new(),
        };
        problem(&self.name, place, field, format!("{message}{names}"))
    }
}

/// The field and the message of `rule api: rate: what is wrong` and of `` `rate`: what is wrong ``, or no
/// field and the whole.
fn in_numbers(detail: &str) -> (&str, &str) {
    let is_name = |name: &&str| {
        let is_part = |c: char| c.is_ascii_alphanumeric() || "_.[]".contains(c);
        name.chars().all(is_part)
    };
    let member = detail
        .strip_prefix('`')
        .and_then(|rest| rest.split_once("`: "));
    let of_rule = detail
        .strip_prefix("rule ")
        .and_then(|rest| rest.split_once(": "));
    let field = of_rule.and_then(|(_, rest)| rest.split_once(": "));
    let found = member.or(field).filter(|(field, _)| is_name(field));
    found.unwrap_or(("", detail))
}

fn problem(
    file: &str,
    (line, column): (usize, usize),
    field: &str,
    message: impl Into<String>,
) -> Problem {
    let mut problem = Problem::of_file(file, message);
    problem.line = Some(line);
    problem.column = Some(column);
    problem.path = field.to_owned();
    problem
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overrides::instant::utc;
    use crate::overrides::table_file::write_table;

    fn read(text: &str) -> Result<ImportFile, Vec<String>> {
        let instants = utc("2026-12-03T10:00:00Z");
        let read = read_bytes("f".to_owned(), text.as_bytes(), "shop", &instants);
        read.map_err(|problems| problems.iter().map(ToString::to_string).collect())
    }

    /// Whatever values have: they come back from both formats.
    #[test]
    fn what_is_exported_is_imported_the_same() {
        let lines = [
            r#"{"rule":"api","entries":{"tenant":"acme"},"rate":"200/s","burst":400}"#,
            r#"{"rule":"api","entries":{"tenant":"acme"},"plan":"2026","until":"2026-12-07T00:00:00Z","reason":"=a;b,\"c\"\nd","prorated":{"limit":7,"until":"2026-12-05T00:00:00Z"}}"#,
            r#"{"rule":"*","entries":{" x":"ä","rate":"","wait":"'"},"unlimited":true,"from":"2026-12-04T00:00:00.5Z"}"#,
            r#"{"rule":"b","entries":{"=cmd":"-1","entry.x":" "},"limit":"{","ban":{"after":3,"for":["1m"]}}"#,
            r#"{"rule":"-","entries":{"plan":"true","type":"{a"},"refuse":true}"#,
        ];
        let file = read(&lines.join("\n")).unwrap();
        let table = String::from_utf8(write_table(&file.rows).unwrap()).unwrap();
        let again = read(&table).unwrap_or_else(|told| panic!("{table}{told:#?}"));
        for (index, row) in file.rows.iter().enumerate() {
            assert_eq!(serde_json::to_string(row).unwrap(), lines[index]);
            assert_eq!(row.prorated, again.rows[index].prorated);
            assert!(
                row.has_content_of(&again.rows[index]),
                "{table}{:?}",
                again.rows[index]
            );
        }
        assert_eq!(again.rows.len(), lines.len());
    }

    #[test]
    fn mistakes_have_their_place() {
        let told = read(
            "\u{feff}rule,tenant,rate,until\napi,a,1/s,\napi,b,2/s,soon\napi,a,3/s,\napi,c,,\n",
        )
        .unwrap_err();
        assert_eq!(told.len(), 3, "{told:#?}");
        assert!(
            told[0].starts_with("f:3:4: until: `soon` is not an instant: write"),
            "{told:#?}"
        );
        assert_eq!(
            told[1],
            "f:4:1: api tenant=a has its standing override in line 2 already: write it once"
        );
        assert!(
            told[2].starts_with("f:5:1: the numbers are missing"),
            "{told:#?}"
        );
        let told =
            read("{\"rule\":\"api\",\"entries\":{\"a\":\"b\"},\"rate\":\"1/s\"}\n\n{\"rule\":}\n")
                .unwrap_err();
        assert!(
            told[0].starts_with("f:3:9: expected value: write an object such as {"),
            "{told:#?}"
        );
        let table = read("rule,tenant,rate\napi,a,20\n").unwrap();
        let said = "rule api: rate: `20` has no period: write `20/s`";
        assert_eq!(
            table.problem(0, said).to_string(),
            "f:2:3: rate: `20` has no period: write `20/s`"
        );
        assert_eq!(
            table.problem(0, "`rate`: no").to_string(),
            "f:2:3: rate: no"
        );
        assert_eq!(
            table.problem(0, "a key has the entries user").to_string(),
            "f:2:1: a key has the entries user; columns of the file that are no fields, and so entries: tenant"
        );
        assert_eq!(
            table.problem(0, "no rule `api`").to_string(),
            "f:2:1: no rule `api`"
        );
    }

    #[test]
    fn what_is_over_is_left_out() {
        let file = read("rule,tenant,rate,until\napi,a,1/s,2026-12-02\napi,a,2/s,\n").unwrap();
        assert_eq!((file.rows.len(), file.over, file.line(0)), (1, 1, 3));
        assert!(read(" \n").unwrap().rows.is_empty());
    }

    proptest::proptest! {
        /// The same of any names and values.
        #[test]
        fn any_export_is_imported_the_same(
            names in proptest::collection::btree_set("[a-z]{1,5}|(entry[.])?(rate|plan|rule|entries)|['=+@, ;\"a\\n-]{1,4}|\\PC{1,4}", 1..4),
            values in proptest::collection::vec("['=+@,;\"a\r\\n-]{0,4}|\\PC{0,6}", 5),
            plan in "[a-z{\"'=]{1,4}",
        ) {
            let entries: Map<String, Value> = names.into_iter().zip(values.iter().cloned().map(Value::from)).collect();
            let line = |rule: &str| serde_json::json!({ "rule": rule, "entries": &entries, "plan": &plan, "reason": &values[4] });
            let lines = format!("{}\n{}\n", line("a"), line("*"));
            let file = read(&lines).unwrap();
            let table = String::from_utf8(write_table(&file.rows).unwrap()).unwrap();
            let again = read(&table).unwrap_or_else(|told| panic!("{table}{told:#?}"));
            for (row, again) in file.rows.iter().zip(&again.rows) {
                proptest::prop_assert!(row.has_content_of(again), "{}{:?}", table, again);
            }
            proptest::prop_assert_eq!(again.rows.len(), 2);
        }
    }
}
