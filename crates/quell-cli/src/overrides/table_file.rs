//! Table file: overrides as CSV, which people edit in a spreadsheet.
//!
//! The first line names the columns: `rule`, the entries, and fields such as `rate`, `plan`, `until` and `reason`. A
//! column whose name is no field is an entry; one that is also the name of a field is written `entry.NAME`. An empty
//! cell is one that says nothing.
//!
//! **Formulas.** A spreadsheet runs a cell that begins with `=`, `+`, `-` or `@`, and values of entries are what callers
//! sent. So exports write `'` before such a cell, and quote every cell, lest a `;` begins another one. Imports take
//! that `'` off again. A cell with nothing but `'` is an empty value.

use std::collections::BTreeSet;

use csv::{ByteRecord, QuoteStyle, ReaderBuilder, Writer, WriterBuilder};
use quell_protocol::printable;
use quell_rules::{meant, number_fields};
use serde_json::{Map, Value};

use super::number::{number_value, rank, text};
use super::row::{OF_SERVER, Row, RowMistake};

/// Beginning of a column's name that is an entry whatever fields there are.
const ENTRY: &str = "entry.";

/// Fields beside the numbers.
const MEMBERS: [&str; 9] = [
    "rule", "domain", "from", "until", "change", "reason", "prorated", "revision", "delete",
];

/// A column.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Column {
    Entry(String),
    Field(String),
    /// A column without a name, whose cells are empty.
    Unnamed,
}

/// The columns of a table.
#[derive(Debug, Default)]
pub(super) struct Columns(Vec<Column>);

/// A row of a table as a line of NDJSON, or what is wrong with its cells.
pub(super) type TableLine = (usize, Result<Map<String, Value>, Vec<RowMistake>>);

impl Columns {
    /// The number of a field's column, from 1; 1 if it has none.
    pub(super) fn number(&self, field: &str) -> usize {
        let is_it = |column: &Column| match column {
            Column::Field(name) | Column::Entry(name) => name == field,
            Column::Unnamed => false,
        };
        self.0.iter().position(is_it).unwrap_or(0) + 1
    }

    /// The names of entries that the columns have.
    pub(super) fn entries(&self) -> Vec<&str> {
        let names = self.0.iter().filter_map(|column| match column {
            Column::Entry(name) => Some(&**name),
            Column::Field(_) | Column::Unnamed => None,
        });
        names.collect()
    }

    /// Returns true if there is a column for the end of overrides.
    pub(super) fn has_until(&self) -> bool {
        let is_it = |column: &Column| matches!(column, Column::Field(name) if name == "until");
        self.0.iter().any(is_it)
    }
}

/// Reads a table, and gives each row with the number of its line to `each`, until that returns false.
///
/// # Errors
/// What is wrong with the first line.
pub(super) fn read_table(
    bytes: &[u8],
    mut each: impl FnMut(TableLine, &Columns) -> bool,
) -> Result<Columns, Vec<RowMistake>> {
    let mut reader = ReaderBuilder::new().flexible(true).from_reader(bytes);
    let header = reader.byte_headers().cloned().unwrap_or_default();
    let columns = read_columns(&header)?;
    let mut record = ByteRecord::new();
    // Reading from memory does not fail, and a flexible reader has no other errors.
    while reader.read_byte_record(&mut record).unwrap_or(false) {
        let line = record
            .position()
            .map_or(0, |position| line(bytes, position));
        if !each((line, read_record(&record, &columns)), &columns) {
            break;
        }
    }
    Ok(columns)
}

/// The line on which a record begins: its position is that of the empty lines before it.
fn line(bytes: &[u8], position: &csv::Position) -> usize {
    let number = |number| usize::try_from(number).unwrap_or(usize::MAX);
    let rest = bytes.get(number(position.byte())..).unwrap_or_default();
    let breaks = rest.iter().take_while(|byte| matches!(byte, b'\r' | b'\n'));
    number(position.line()).saturating_add(breaks.filter(|byte| **byte == b'\n').count())
}

fn read_columns(header: &ByteRecord) -> Result<Columns, Vec<RowMistake>> {
    let mut mistakes = Vec::new();
    let mut columns: Vec<Column> = Vec::new();
    let mut mistake = |field: &str, message: String| {
        mistakes.push(RowMistake {
            field: field.to_owned(),
            message,
        });
    };
    for cell in header {
        let Ok(name) = std::str::from_utf8(cell) else {
            mistake(
                "",
                "the name of a column is not UTF-8: save the file as UTF-8".to_owned(),
            );
            continue;
        };
        match column(&unguarded(name)) {
            Ok(column) if column != Column::Unnamed && columns.contains(&column) => {
                let message = format!("the column `{}` appears twice: delete one", printable(name));
                mistake(name, message);
            }
            Ok(column) => columns.push(column),
            Err(message) => mistake(name, message),
        }
    }
    let has_rule = columns.contains(&Column::Field("rule".to_owned()));
    let has_other_separator = |cell: &[u8]| cell.contains(&b';') || cell.contains(&b'\t');
    if header.len() == 1 && header.iter().any(has_other_separator) {
        mistakes.clear();
        mistakes.push(RowMistake {
            field: String::new(),
            message: "the columns are separated by something else: separate them by commas"
                .to_owned(),
        });
    } else if !has_rule {
        mistakes.push(RowMistake {
            field: String::new(),
            message: "there is no column `rule`: name the columns in the first line, as in rule,tenant,rate,until,reason"
                .to_owned(),
        });
    }
    match mistakes.is_empty() {
        true => Ok(Columns(columns)),
        false => Err(mistakes),
    }
}

fn column(name: &str) -> Result<Column, String> {
    if name.is_empty() {
        return Ok(Column::Unnamed);
    }
    if let Some(entry) = name.strip_prefix(ENTRY).filter(|entry| !entry.is_empty()) {
        return Ok(Column::Entry(entry.to_owned()));
    }
    let known = || MEMBERS.into_iter().chain(OF_SERVER).chain(number_fields());
    if known().any(|other| other == name) {
        return Ok(Column::Field(name.to_owned()));
    }
    let names: Vec<&str> = known().chain(["entries"]).collect();
    let shown = printable(name);
    match meant(name, &names) {
        Some("entries") => {
            Err("a table has a column for each entry: write its name, such as tenant".to_owned())
        }
        Some(meant) => Err(format!(
            "unknown column `{shown}`, did you mean `{meant}`? the column of an entry is written `{ENTRY}{shown}`"
        )),
        None => Ok(Column::Entry(name.to_owned())),
    }
}

fn read_record(
    record: &ByteRecord,
    columns: &Columns,
) -> Result<Map<String, Value>, Vec<RowMistake>> {
    let (mut line, mut entries, mut mistakes) = (Map::new(), Map::new(), Vec::new());
    let mut mistake = |field: &str, message: String| {
        mistakes.push(RowMistake {
            field: field.to_owned(),
            message,
        });
    };
    let (cells, all) = (record.len(), columns.0.len());
    if cells != all {
        let message = format!(
            "the row has {cells} cells, and the first line {all}: separate cells by commas, and write values with \
             commas in \"quotes\""
        );
        mistake("", message);
    }
    for (cell, column) in record.iter().zip(&columns.0) {
        let (Column::Entry(name) | Column::Field(name)) = column else {
            if !cell.is_empty() {
                mistake(
                    "",
                    "a cell stands under no name: name its column in the first line".to_owned(),
                );
            }
            continue;
        };
        let Ok(cell) = std::str::from_utf8(cell) else {
            mistake(name, "this is not UTF-8: save the file as UTF-8".to_owned());
            continue;
        };
        if cell.is_empty() {
            continue;
        }
        let cell = unguarded(cell);
        let value = match column {
            Column::Entry(_) => {
                entries.insert(name.clone(), Value::from(cell));
                continue;
            }
            _ if cell.is_empty() => continue,
            _ if name == "revision" => cell.parse::<u64>().map_or(Value::from(&*cell), Value::from),
            _ if name != "prorated" && MEMBERS.contains(&&**name) => Value::from(cell),
            _ => match number_value(name, &cell) {
                Ok(value) => value,
                Err(message) => {
                    mistake(name, message);
                    continue;
                }
            },
        };
        line.insert(name.clone(), value);
    }
    line.insert("entries".to_owned(), Value::Object(entries));
    match mistakes.is_empty() {
        true => Ok(line),
        false => Err(mistakes),
    }
}

/// Overrides as a table.
///
/// # Errors
/// If it cannot be written.
pub(super) fn write_table(rows: &[Row]) -> Result<Vec<u8>, csv::Error> {
    let entries = rows.iter().flat_map(|row| &row.name.entries);
    let entries: BTreeSet<&str> = entries.map(|(name, _)| &**name).collect();
    let fields = rows.iter().flat_map(|row| &row.numbers);
    let fields: BTreeSet<(usize, &str)> =
        fields.map(|(field, _)| (rank(field), &**field)).collect();
    let mut writer = WriterBuilder::new()
        .quote_style(QuoteStyle::Always)
        .from_writer(Vec::new());
    write_cell(&mut writer, "rule")?;
    for entry in &entries {
        match column(entry) {
            Ok(Column::Entry(name)) if name == *entry => write_cell(&mut writer, entry)?,
            _ => write_cell(&mut writer, &format!("{ENTRY}{entry}"))?,
        }
    }
    for (_, field) in &fields {
        write_cell(&mut writer, field)?;
    }
    let is_prorated = rows.iter().any(|row| row.prorated.is_some());
    let members = ["from", "until", "reason"].into_iter();
    for member in members.chain(is_prorated.then_some("prorated")) {
        write_cell(&mut writer, member)?;
    }
    writer.write_record(None::<&[u8]>)?;
    for row in rows {
        write_cell(&mut writer, &row.name.rule)?;
        for entry in &entries {
            match row.name.entries.iter().find(|(name, _)| name == entry) {
                Some((_, value)) if value.is_empty() => writer.write_field("'")?,
                Some((_, value)) => write_cell(&mut writer, value)?,
                None => write_cell(&mut writer, "")?,
            }
        }
        for (_, field) in &fields {
            let value = row.numbers.iter().find(|(name, _)| name == field);
            write_cell(
                &mut writer,
                &value.map_or_else(String::new, |(_, value)| number_cell(field, value)),
            )?;
        }
        for instant in [row.from, row.until] {
            write_cell(
                &mut writer,
                &instant.map_or_else(String::new, |at| at.to_string()),
            )?;
        }
        write_cell(&mut writer, &row.reason)?;
        if is_prorated {
            let prorated = row.prorated.as_ref().map(Value::to_string);
            write_cell(&mut writer, &prorated.unwrap_or_default())?;
        }
        writer.write_record(None::<&[u8]>)?;
    }
    writer
        .into_inner()
        .map_err(|error| error.into_error().into())
}

fn write_cell(writer: &mut Writer<Vec<u8>>, text: &str) -> Result<(), csv::Error> {
    writer.write_field(guarded(text))
}

/// A value so that [`number_value`] reads it.
fn number_cell(field: &str, value: &Value) -> String {
    match value {
        // Else it would be read as YAML.
        Value::String(text) if field != "plan" && text.starts_with(['{', '[', '"', '\'']) => {
            value.to_string()
        }
        value => text(value),
    }
}

/// Returns true if a spreadsheet may run a cell that begins so, or if the `'` before one would be lost.
fn is_guarded(rest: &str) -> bool {
    rest.starts_with([
        '=', '+', '-', '@', '\t', '\r', '\n', '\u{ff1d}', '\u{ff0b}', '\u{ff0d}', '\u{ff20}',
    ])
}

fn guarded(text: &str) -> String {
    let is_ours = text
        .strip_prefix('\'')
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('\'') || is_guarded(rest));
    match is_guarded(text) || is_ours {
        true => format!("'{text}"),
        false => text.to_owned(),
    }
}

fn unguarded(cell: &str) -> String {
    let rest = cell.strip_prefix('\'');
    let rest = rest.filter(|rest| rest.is_empty() || rest.starts_with('\'') || is_guarded(rest));
    rest.unwrap_or(cell).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<String> {
        let mut told = Vec::new();
        let shown = |mistake: RowMistake| format!("{}: {}", mistake.field, mistake.message);
        let read = read_table(text.as_bytes(), |(line, row), _| {
            match row {
                Ok(row) => told.push(format!("{line} {}", Value::Object(row))),
                Err(mistakes) => told.extend(
                    mistakes
                        .into_iter()
                        .map(|it| format!("{line} {}", shown(it))),
                ),
            }
            true
        });
        match read {
            Ok(_) => told,
            Err(mistakes) => mistakes.into_iter().map(shown).collect(),
        }
    }

    #[test]
    fn a_row_is_a_line() {
        let text = "rule,tenant,entry.plan,rate,burst,plan,ban,reason,\n\
                    api,acme,x,200/s,400,,\"{after: 3, for: [1m]}\",\"a, \"\"b\"\"\nc\",\n\
                    \n\
                    *,'=1+1,',,,2026,,,\n";
        assert_eq!(
            read(text),
            [
                r#"2 {"ban":{"after":3,"for":["1m"]},"burst":400,"entries":{"plan":"x","tenant":"acme"},"rate":"200/s","reason":"a, \"b\"\nc","rule":"api"}"#,
                r#"5 {"entries":{"plan":"","tenant":"=1+1"},"plan":"2026","rule":"*"}"#,
            ]
        );
        assert_eq!(read("rule,tenant\r\nr,a\r\n").len(), 1);
    }

    #[test]
    fn mistakes_in_the_first_line_say_what_to_write() {
        for (text, expected) in [
            ("", ": there is no column `rule`"),
            ("api,acme,200/s\n", ": there is no column `rule`"),
            (
                "rule;tenant;rate\n",
                ": the columns are separated by something else: separate them by commas",
            ),
            (
                "rule,tenant,brust\n",
                "brust: unknown column `brust`, did you mean `burst`? the column of an entry is written `entry.brust`",
            ),
            ("rule,rate,rate\n", "rate: the column `rate` appears twice"),
            (
                "rule,entries\n",
                "entries: a table has a column for each entry",
            ),
        ] {
            let told = read(text);
            assert!(told[0].starts_with(expected), "{text}: {told:?}");
        }
    }

    #[test]
    fn mistakes_in_a_row_say_what_to_write() {
        for (row, expected) in [
            ("api,a,1/s", "2 : the row has 3 cells, and the first line 4"),
            ("api,a,b,1/s,", "2 : the row has 5 cells"),
            ("api,a,1/s,x", "2 : a cell stands under no name"),
            ("api,a,{,", "2 rate: "),
        ] {
            let told = read(&format!("rule,tenant,rate,\n{row}\n"));
            assert!(told[0].starts_with(expected), "{row}: {told:?}");
        }
        let mut told = Vec::new();
        let read = read_table(b"rule,tenant\napi,\xff\n", |(_, row), _| {
            told.push(row);
            true
        });
        assert!(read.is_ok_and(|columns| columns.number("tenant") == 2));
        assert!(
            told[0].as_ref().unwrap_err()[0]
                .message
                .contains("save the file as UTF-8")
        );
    }

    #[test]
    fn no_cell_is_a_formula() {
        for text in [
            "=1",
            "+1",
            "-1",
            "@a",
            "\t=1",
            "\u{ff1d}1",
            "'=1",
            "''",
            "'",
        ] {
            assert!(guarded(text).starts_with('\''), "{text}");
        }
        assert_eq!((&*guarded("acme"), &*guarded("'acme")), ("acme", "'acme"));
    }

    proptest::proptest! {
        #[test]
        fn a_cell_is_read_as_it_was(text in "['=+@a \\-]{1,5}|\\PC{1,5}") {
            proptest::prop_assert_eq!(unguarded(&guarded(&text)), text);
        }
    }
}
