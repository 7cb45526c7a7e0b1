//! Mistake: messages for text that is not YAML.

use granit_parser::ErrorKind;

use crate::fields::{DOCUMENT, OVERRIDE, RULE};
use crate::hint;
use crate::path::Position;

/// More levels than any rule needs.
pub(crate) const TOO_DEEP: &str = "nested too deep: write at most 64 levels";

/// Explanation of a mistake: the error, its place, and the text to write. The parser notices some mistakes
/// a line before or after.
pub(crate) fn explain(kind: &ErrorKind, text: &str, at: Position) -> (Position, String) {
    let message = describe(kind, text, at);
    if message == TAB {
        return (tab_from(text, at).unwrap_or(at), message);
    }
    let is_general = message == INDENTATION || message.starts_with("not YAML (");
    match missing_colon(text, at).filter(|_| is_general) {
        Some((at, message)) => (at, message),
        None => (at, message),
    }
}

/// The first tab in the indentation of a line, from the line of `at` on.
fn tab_from(text: &str, at: Position) -> Option<Position> {
    let lines = (1..).zip(text.lines()).skip(at.line.saturating_sub(1));
    let mut tabs = lines.filter_map(|(line, text)| {
        let indentation = text.len() - text.trim_start().len();
        let tab = text.get(..indentation)?.find('\t')?;
        Some(Position {
            line,
            column: tab + 1,
        })
    });
    tabs.next()
}

/// The line at or before `at` that has a field's name and no colon after it, if one has.
fn missing_colon(text: &str, at: Position) -> Option<(Position, String)> {
    let lines: Vec<&str> = text.lines().take(at.line).collect();
    let lines = lines.into_iter().enumerate().rev();
    // The parser reads on to the next colon, which is in the next line that says something.
    let mut lines = lines.filter(|(_, text)| says_something(text)).take(2);
    lines.find_map(|(before, text)| {
        let field = text.trim_start().trim_start_matches("- ").trim_start();
        let (name, value) = field.split_once(' ').unwrap_or((field, ""));
        let is_field = [&DOCUMENT, &RULE, &OVERRIDE]
            .iter()
            .any(|table| table.field(name).is_some());
        let is_bare = !field.contains(':') && is_field;
        is_bare.then(|| {
            let column = text.chars().count() - field.chars().count() + 1;
            let value = value.split(" #").next().unwrap_or_default();
            let line = before + 1;
            let meant = hint::shorten(format!("{name}: {}", value.trim()).trim_end());
            let message = format!("a `:` is missing after `{name}`: write `{meant}`");
            (Position { line, column }, message)
        })
    })
}

fn says_something(line: &str) -> bool {
    let line = line.trim_start();
    !line.is_empty() && !line.starts_with('#')
}

const TAB: &str = "a tab in the indentation: write spaces";

const INDENTATION: &str = "the indentation or a `:` is wrong: write fields of one map at one column, \
                           and values that contain `: ` in quotes";

fn describe(kind: &ErrorKind, text: &str, at: Position) -> String {
    let message = match kind {
        ErrorKind::TabNotAllowed
        | ErrorKind::TabInBlockIndentation
        | ErrorKind::TabInIndentation
        | ErrorKind::TabInPlainScalar
        | ErrorKind::TabAtBlockScalarStart
        | ErrorKind::InvalidBlockEntryWhitespace
        | ErrorKind::InvalidMappingValueWhitespace => TAB,
        ErrorKind::RecursionLimitExceeded => TOO_DEEP,
        ErrorKind::MissingAnchorOrAliasName => {
            "a value that begins with `*` or `&` is an alias or an anchor: write it in quotes, \
             such as \"*\""
        }
        ErrorKind::UnexpectedEofFlowSequence | ErrorKind::UnclosedFlowCollection { open: '[' } => {
            "a list is not closed: write `]`"
        }
        ErrorKind::UnexpectedEofFlowMapping
        | ErrorKind::UnexpectedEofImplicitFlowMapping
        | ErrorKind::UnclosedFlowCollection { .. } => "a map is not closed: write `}`",
        ErrorKind::ExpectedFlowMappingSeparator => {
            "between two fields: write `,`, or `}` at the end"
        }
        ErrorKind::ExpectedFlowSequenceSeparator => {
            "between two values: write `,`, or `]` at the end"
        }
        ErrorKind::UnclosedQuotedScalar
        | ErrorKind::DocumentIndicatorInQuotedScalar
        | ErrorKind::InvalidQuotedScalarIndent => "a quote is not closed: write the closing quote",
        ErrorKind::MismatchedFlowCollectionEnd { open: '[', .. } => {
            "a list is closed by `}`: write `]`"
        }
        ErrorKind::MismatchedFlowCollectionEnd { .. } => "a map is closed by `]`: write `}`",
        ErrorKind::UnexpectedCharacter {
            character: '%' | '@' | '`',
        } => "a value cannot begin with this character: write it in quotes",
        ErrorKind::ExpectedBlockMappingKey
        | ErrorKind::InvalidIndentation
        | ErrorKind::MappingValueNotAllowed
        | ErrorKind::MappingKeyNotAllowed
        | ErrorKind::ExpectedBlockSequenceEntry
        | ErrorKind::BlockSequenceEntryNotAllowed => INDENTATION,
        _ if line(text, at).contains('\t') => "not YAML: write spaces in place of tabs",
        _ => return format!("not YAML ({kind}): write it as YAML 1.2"),
    };
    message.to_owned()
}

/// A glob that was meant as text is a common reason for an alias that leads nowhere.
pub(crate) fn unknown_alias(name: &str) -> String {
    format!("`*{name}` is an alias without an anchor: for a glob write it in quotes, \"*{name}\"")
}

fn line(text: &str, at: Position) -> &str {
    text.lines()
        .nth(at.line.saturating_sub(1))
        .unwrap_or_default()
}

/// Position of the end of `text`.
pub(crate) fn end_of(text: &str) -> Position {
    let last = text.rsplit('\n').next().unwrap_or_default();
    Position {
        line: text.matches('\n').count() + 1,
        column: last.chars().count() + 1,
    }
}
