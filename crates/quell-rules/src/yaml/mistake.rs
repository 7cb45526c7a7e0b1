//! Mistake: messages for text that is not YAML.

use granit_parser::ErrorKind;

use crate::path::Position;

/// More levels than any rule needs.
pub(crate) const TOO_DEEP: &str = "nested too deep: write at most 64 levels";

/// What is wrong and what to write.
pub(crate) fn explain(kind: &ErrorKind, text: &str, at: Position) -> String {
    let message = match kind {
        ErrorKind::TabNotAllowed
        | ErrorKind::TabInBlockIndentation
        | ErrorKind::TabInIndentation
        | ErrorKind::TabInPlainScalar
        | ErrorKind::TabAtBlockScalarStart
        | ErrorKind::InvalidBlockEntryWhitespace
        | ErrorKind::InvalidMappingValueWhitespace => "a tab in the indentation: write spaces",
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
        | ErrorKind::BlockSequenceEntryNotAllowed => {
            "the indentation or a `:` is wrong: write fields of one map at one column, \
             and values that contain `: ` in quotes"
        }
        _ if line(text, at).contains('\t') => "not YAML: write spaces in place of tabs",
        _ => return format!("not YAML ({kind}): write it as YAML 1.2"),
    };
    message.to_owned()
}

/// A glob that was meant as text is a common reason for an alias that leads nowhere.
pub(crate) fn unknown_alias(name: &str) -> String {
    format!("`*{name}` is an alias of nothing: for a glob write it in quotes, \"*{name}\"")
}

fn line(text: &str, at: Position) -> &str {
    text.lines()
        .nth(at.line.saturating_sub(1))
        .unwrap_or_default()
}

/// Where `text` ends.
pub(crate) fn end_of(text: &str) -> Position {
    let last = text.rsplit('\n').next().unwrap_or_default();
    Position {
        line: text.matches('\n').count() + 1,
        column: last.chars().count() + 1,
    }
}
