//! Fields: every field that a rules file or a scenario file may have. `docs/fields.md` describes them;
//! the parser and its messages read that page.

use std::sync::LazyLock;

use crate::kind::Kind;

/// The page of all fields as Markdown, one section with a table for each kind of map.
pub const FIELD_TABLES: &str = include_str!("../docs/fields.md");

/// A map whose fields are known: one section of [`FIELD_TABLES`].
#[derive(Debug)]
pub(crate) struct FieldTable {
    /// The name of such a map in messages, with its article.
    pub(crate) name: String,
    pub(crate) fields: Vec<Field>,
}

/// One field.
#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    /// The algorithms that have it; empty if it has nothing to do with algorithms.
    pub(crate) of: Vec<Kind>,
    /// True if the field is reserved for a later version.
    pub(crate) later: bool,
    /// Text to write, with an example.
    pub(crate) write: &'static str,
    /// True if the field is required in a map.
    pub(crate) is_needed: bool,
}

macro_rules! tables {
    ($($table:ident: $heading:literal,)*) => {
        $(pub(crate) static $table: LazyLock<FieldTable> = LazyLock::new(|| FieldTable::read($heading));)*

        #[cfg(test)]
        static TABLES: [&LazyLock<FieldTable>; [$($heading),*].len()] = [$(&$table),*];
    };
}

tables! {
    DOCUMENT: "A document",
    DEFAULTS: "A map of defaults",
    RULE: "A rule",
    OVERRIDE: "An override",
    PLAN_CHOICE: "A choice of plans",
    REFILL: "A refill",
    PREFIX: "A prefix",
    ADAPTIVE: "An adaptive maximum",
    RESERVATION: "A reservation",
    BAN: "A ban",
    SCENARIOS: "A scenario file",
    TEST: "A test",
    STEP: "A step",
    DESCRIPTOR: "A descriptor",
    EXPECT: "An expectation",
    EXPECT_RULE: "An expectation on one rule",
    WAIT: "A range of waits",
}

/// The fields that the numbers of a single key can have: `plan`, and those of an override without `when`.
pub fn number_fields() -> impl Iterator<Item = &'static str> {
    let of_override = OVERRIDE.names().filter(|name| *name != "when");
    ["plan"].into_iter().chain(of_override)
}

impl FieldTable {
    /// Reads the section under `heading`: a row for each field, and a line with the fields of a
    /// later version.
    fn read(heading: &str) -> Self {
        let mut sections = FIELD_TABLES.split("### ");
        let section = sections.find_map(|text| text.strip_prefix(heading)?.strip_prefix('\n'));
        let lines = || section.unwrap_or_default().lines();
        let later = lines().filter(|line| line.starts_with("Refused as"));
        Self {
            name: heading.to_ascii_lowercase(),
            fields: lines()
                .filter_map(Field::read)
                .chain(later.flat_map(in_code).map(Field::later))
                .collect(),
        }
    }

    pub(crate) fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|field| field.name == name)
    }

    /// The fields that may be written today.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        let available = self.fields.iter().filter(|field| !field.later);
        available.map(|field| field.name)
    }
}

impl Field {
    /// Reads a row: name, algorithms, what to write, default, meaning.
    fn read(row: &'static str) -> Option<Self> {
        let mut cells = row.strip_prefix("| `")?.split(" | ");
        Some(Self {
            name: cells.next()?.strip_suffix('`')?,
            of: in_code(cells.next()?).filter_map(Kind::named).collect(),
            later: false,
            write: cells.next()?,
            is_needed: cells.next()?.starts_with("needed"),
        })
    }

    const fn later(name: &'static str) -> Self {
        Self {
            name,
            of: Vec::new(),
            later: true,
            write: "",
            is_needed: false,
        }
    }
}

/// The words in backticks on a line.
fn in_code(line: &'static str) -> impl Iterator<Item = &'static str> {
    line.split('`').skip(1).step_by(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_section_is_a_table_and_every_row_a_field() {
        let rows = FIELD_TABLES.lines().filter(|line| line.starts_with("| `"));
        let fields = || TABLES.iter().flat_map(|table| &table.fields);
        assert_eq!(FIELD_TABLES.matches("### ").count(), TABLES.len());
        assert_eq!(rows.count(), fields().filter(|field| !field.later).count());
        assert_eq!(fields().filter(|field| field.later).count(), 0);
        for table in TABLES {
            assert!(!table.fields.is_empty(), "{}", table.name);
        }
    }

    #[test]
    fn an_override_has_every_field_of_a_limit() {
        let of_limits = RULE.fields.iter().filter(|field| !field.of.is_empty());
        for field in of_limits {
            let other = OVERRIDE
                .field(field.name)
                .map(|field| (&field.of, field.write));
            assert_eq!(other, Some((&field.of, field.write)), "{}", field.name);
        }
    }
}
