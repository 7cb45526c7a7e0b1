//! Table request: `COMMAND` with its subcommands, which the table of commands answers.

use super::args::Args;
use super::encode::Encoder;
use super::error::CommandError;
use super::table::{ROWS, Row, find};

/// `COMMAND ...`: a request that the table answers itself.
#[derive(Clone, Copy, Debug)]
pub struct TableRequest<'a>(Question<'a>);

#[derive(Clone, Copy, Debug)]
enum Question<'a> {
    Count,
    List,
    /// About these commands, or about all.
    Docs(Args<'a>),
    Info(Args<'a>),
}

impl<'a> TableRequest<'a> {
    pub(super) fn parse(args: Args<'a>) -> Result<Self, CommandError> {
        let Some(subcommand) = args.get(0) else {
            return Ok(Self(Question::Info(args)));
        };
        let rest = args.skip(1);
        let alone = |question, name| match rest.is_empty() {
            true => Ok(question),
            false => Err(CommandError::Arity(name)),
        };
        let question = match subcommand.to_ascii_uppercase().as_slice() {
            b"COUNT" => alone(Question::Count, "command|count")?,
            b"LIST" => alone(Question::List, "command|list")?,
            b"DOCS" => Question::Docs(rest),
            b"INFO" => Question::Info(rest),
            _ => {
                let known = "COUNT, LIST, DOCS or INFO";
                return Err(CommandError::subcommand("COMMAND", subcommand, known));
            }
        };
        Ok(Self(question))
    }

    /// Writes the reply.
    pub fn write_reply(&self, encoder: &mut Encoder<'_>) {
        match self.0 {
            Question::Info(names) => {
                let rows: Vec<Option<&Row>> = match names.is_empty() {
                    true => ROWS.iter().map(Some).collect(),
                    false => names.iter().map(find).collect(),
                };
                encoder.array(rows.len());
                for row in rows {
                    match row {
                        Some(row) => row.write(encoder),
                        None => encoder.null_array(),
                    }
                }
            }
            Question::Count => encoder.integer(i64::try_from(ROWS.len()).unwrap_or(i64::MAX)),
            Question::List => {
                encoder.array(ROWS.len());
                for row in &ROWS {
                    row.write_name(encoder);
                }
            }
            Question::Docs(names) => {
                let asked = |row: &&Row| {
                    let same = |name: &[u8]| row.upper.as_bytes().eq_ignore_ascii_case(name);
                    names.is_empty() || names.iter().any(same)
                };
                encoder.map(ROWS.iter().filter(asked).count());
                for row in ROWS.iter().filter(asked) {
                    row.write_docs(encoder);
                }
            }
        }
    }
}
