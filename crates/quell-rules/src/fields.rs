//! Fields: every field that a rules file or a scenario file may have. The parser, its messages and
//! the reference in `docs/rules.md` are all made from these tables.

use crate::kind::Kind;

mod rules;
mod scenarios;

pub(crate) use rules::{ADAPTIVE, BAN, DEFAULTS, DOCUMENT, OVERRIDE, PREFIX, REFILL, RULE};
pub(crate) use scenarios::{DESCRIPTOR, EXPECT, EXPECT_RULE, SCENARIOS, STEP, TEST, WAIT};

/// A map whose fields are known.
#[derive(Debug)]
pub(crate) struct Table {
    /// What such a map is called in messages and headings, with its article.
    pub(crate) name: &'static str,
    /// One list after the other.
    pub(crate) fields: &'static [&'static [Field]],
}

/// One field.
#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    /// The algorithms that have it; empty: it has to do with none.
    pub(crate) of: &'static [Kind],
    /// Known, but of a version to come.
    pub(crate) later: bool,
    /// What to write, with an example.
    pub(crate) write: &'static str,
    /// What holds if nothing is said.
    pub(crate) default: &'static str,
    pub(crate) about: &'static str,
    /// The last two where an override has the field.
    in_override: (&'static str, &'static str),
}

impl Table {
    pub(crate) fn fields(&self) -> impl Iterator<Item = &'static Field> {
        self.fields.iter().copied().flatten()
    }

    pub(crate) fn field(&self, name: &str) -> Option<&'static Field> {
        self.fields().find(|field| field.name == name)
    }

    /// Whether a map is not complete without the field.
    pub(crate) fn needs(&self, name: &str) -> bool {
        self.field(name)
            .is_some_and(|field| field.default.starts_with("needed"))
    }

    /// The fields that may be written today.
    pub(crate) fn names(&self) -> Vec<&'static str> {
        let available = self.fields().filter(|field| !field.later);
        available.map(|field| field.name).collect()
    }
}

const fn field(
    name: &'static str,
    write: &'static str,
    default: &'static str,
    about: &'static str,
) -> Field {
    Field {
        name,
        of: &[],
        later: false,
        write,
        default,
        about,
        in_override: ("the rule's", "As in a rule."),
    }
}

const fn later(name: &'static str) -> Field {
    let mut field = field(name, "", "", "");
    field.later = true;
    field
}

impl Field {
    const fn of(mut self, kinds: &'static [Kind]) -> Self {
        self.of = kinds;
        self
    }

    /// Says what holds in an override, and what is meant there.
    const fn again(mut self, default: &'static str, about: &'static str) -> Self {
        self.in_override = (default, about);
        self
    }
}

/// All tables, in the order of the reference.
pub(crate) static TABLES: [&Table; 15] = [
    &DOCUMENT,
    &DEFAULTS,
    &RULE,
    &OVERRIDE,
    &REFILL,
    &PREFIX,
    &ADAPTIVE,
    &BAN,
    &SCENARIOS,
    &TEST,
    &STEP,
    &DESCRIPTOR,
    &EXPECT,
    &EXPECT_RULE,
    &WAIT,
];
