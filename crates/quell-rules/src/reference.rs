//! Reference: the tables of `docs/rules.md`, made from the fields that the parser knows.

use std::fmt::Write;

use crate::fields::{Field, TABLES, Table};

/// The tables of all fields as Markdown, one section for each kind of map.
///
/// The text between the marks of `docs/rules.md` is this, and a test fails when it is not.
#[must_use]
pub fn markdown() -> String {
    let mut text = String::new();
    for table in TABLES {
        section(&mut text, table);
    }
    text
}

/// The table's name with a capital.
fn heading(table: &Table) -> String {
    let mut name = table.name.chars();
    let first = name.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(name).collect()
}

/// Writing to a string cannot fail, so what `write!` returns is dropped.
fn section(text: &mut String, table: &Table) {
    let _ = writeln!(text, "### {}\n", heading(table));
    let _ = writeln!(text, "| field | of | write | unless said | meaning |");
    let _ = writeln!(text, "|---|---|---|---|---|");
    for field in table.fields().filter(|field| !field.later) {
        row(text, field);
    }
    let later: Vec<String> = table
        .fields()
        .filter(|field| field.later)
        .map(|field| format!("`{}`", field.name))
        .collect();
    if !later.is_empty() {
        let _ = writeln!(
            text,
            "\nRefused as \"not available yet\": {}.",
            later.join(", ")
        );
    }
    text.push('\n');
}

fn row(text: &mut String, field: &Field) {
    let of: Vec<String> = field
        .of
        .iter()
        .map(|kind| format!("`{}`", kind.name()))
        .collect();
    let _ = writeln!(
        text,
        "| `{}` | {} | {} | {} | {} |",
        field.name,
        of.join(", "),
        field.write,
        field.default,
        field.about
    );
}
