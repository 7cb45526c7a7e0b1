//! An override as it is stored, and what it may contain.

use std::sync::Arc;

use quell_core::time::Wall;

use super::{
    MAX_OVERRIDE_ENTRIES, MAX_OVERRIDE_FIELDS, MAX_OVERRIDE_NAME, MAX_OVERRIDE_REASON,
    MAX_OVERRIDE_VALUE, json,
};

/// Name of an override: the keys that it is for, and whether it ends by itself.
///
/// The keys are those of one rule, or of every rule of the domain whose `per` has exactly these entries. A key
/// can have two overrides at a time, one with an end (`until`: a boost) and one without: the one with an end wins
/// while its time is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OverrideId {
    /// The domain.
    pub domain: Arc<str>,
    /// The rule; `None`, which is written `*`, is every rule.
    pub rule: Option<Arc<str>>,
    /// The entries of `per` and their values, in the order of the names, each once.
    pub entries: Vec<(Arc<str>, Arc<str>)>,
    /// Whether the override has an `until`.
    pub has_end: bool,
}

/// An override: its numbers, when they apply, who wrote it and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredOverride {
    /// Its name.
    pub id: OverrideId,
    /// The numbers that apply.
    pub numbers: StoredNumbers,
    /// Instant from which it applies; `None` for at once.
    pub from: Option<Wall>,
    /// Instant from which it does not apply any more.
    pub until: Option<Wall>,
    /// Another limit for the first window.
    pub prorated: Option<Prorated>,
    /// Why it was written, or empty.
    pub reason: Arc<str>,
    /// Who wrote it, or empty.
    pub by: Arc<str>,
    /// When it was written, by the clock of the writer.
    pub at: Wall,
    /// The revision of this form. A store sets it, whatever a writer says; 0 before that.
    pub revision: u64,
}

/// Limit of the window in which the override was written, which the writer computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prorated {
    /// The limit, in units of cost.
    pub limit: u64,
    /// The end of that window.
    pub until: Wall,
}

/// The numbers that an override says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredNumbers {
    /// Fields of a limit as in a rules file: a compact JSON object ([`StoredNumbers::fields`]). Whether they make
    /// a limit is checked by who writes them.
    Fields(Arc<str>),
    /// Those of a plan.
    Plan(Arc<str>),
    /// Those of a plan whose limits have other windows of the calendar.
    PlanFrom {
        /// The plan.
        plan: Arc<str>,
        /// Where the windows begin: `anchor`, `time_zone` or both, as in [`StoredNumbers::Fields`].
        calendar: Arc<str>,
    },
    /// No limit.
    Unlimited,
    /// Nothing passes.
    Refuse,
}

/// Reason why something is no override. The text says what to write.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidOverride {
    /// A text that has to have something in it.
    #[error("the {0} of an override is empty: write one")]
    Empty(&'static str),
    /// A text that is too long.
    #[error("the {what} of an override has {length} {unit}, and may have {most}")]
    TooLong {
        /// The text.
        what: &'static str,
        /// Its length.
        length: usize,
        /// What is counted.
        unit: &'static str,
        /// The most of them.
        most: usize,
    },
    /// Too many entries.
    #[error("an override has {0} entries, and may have {MAX_OVERRIDE_ENTRIES}")]
    TooManyEntries(usize),
    /// Entries that do not stand in order.
    #[error("the entries of an override are in the order of their names, each once: `{0}` is not")]
    EntryOrder(Arc<str>),
    /// A rule that is named like every rule.
    #[error("no rule is named `*`, which is every rule")]
    RuleStar,
    /// The end, and what the id says of it.
    #[error("the id of an override says whether it has an `until`")]
    EndDiffers,
    /// A time that ends before it begins.
    #[error("`from` has to be before `until`")]
    EmptyTime,
    /// Fields that are no object, or have room in them.
    #[error("the fields of an override are a compact JSON object, such as {{\"rate\":\"10/s\"}}")]
    Fields,
    /// A text that is no record.
    #[error("not an override: {0}")]
    Json(String),
}

impl OverrideId {
    /// The id with these entries, in any order.
    ///
    /// # Errors
    /// If a name or a value is too long, a name is empty or stands twice, there are too many entries, or the rule
    /// is named `*`.
    pub fn new(
        domain: impl Into<Arc<str>>,
        rule: Option<Arc<str>>,
        entries: impl IntoIterator<Item = (Arc<str>, Arc<str>)>,
        has_end: bool,
    ) -> Result<Self, InvalidOverride> {
        let mut entries: Vec<_> = entries.into_iter().collect();
        entries.sort_unstable();
        let id = Self {
            domain: domain.into(),
            rule,
            entries,
            has_end,
        };
        id.check().map(|()| id)
    }

    /// The id of the other override of the same keys.
    #[must_use]
    pub fn counterpart(&self) -> Self {
        Self {
            has_end: !self.has_end,
            ..self.clone()
        }
    }

    /// Checks the bounds of an id.
    ///
    /// # Errors
    /// As of [`OverrideId::new`], and if entries do not stand in order.
    pub fn check(&self) -> Result<(), InvalidOverride> {
        name("domain", &self.domain)?;
        if let Some(rule) = &self.rule {
            name("rule", rule)?;
            if &**rule == "*" {
                return Err(InvalidOverride::RuleStar);
            }
        }
        if self.entries.len() > MAX_OVERRIDE_ENTRIES {
            return Err(InvalidOverride::TooManyEntries(self.entries.len()));
        }
        for (entry, value) in &self.entries {
            name("name of an entry", entry)?;
            bytes("value of an entry", value, MAX_OVERRIDE_VALUE)?;
        }
        let mut pairs = self.entries.iter().zip(self.entries.iter().skip(1));
        match pairs.find(|(one, next)| one.0 >= next.0) {
            Some((_, (entry, _))) => Err(InvalidOverride::EntryOrder(Arc::clone(entry))),
            None => Ok(()),
        }
    }
}

impl StoredOverride {
    /// Checks the bounds of an override.
    ///
    /// # Errors
    /// If a text is too long, the id does not say whether it has an end, its time is empty, or its fields are no
    /// compact JSON object.
    pub fn check(&self) -> Result<(), InvalidOverride> {
        self.id.check()?;
        if self.id.has_end != self.until.is_some() {
            return Err(InvalidOverride::EndDiffers);
        }
        let is_empty = |(from, until): (Wall, Wall)| from >= until;
        if self.from.zip(self.until).is_some_and(is_empty) {
            return Err(InvalidOverride::EmptyTime);
        }
        bytes("author", &self.by, MAX_OVERRIDE_NAME)?;
        let length = self.reason.chars().count();
        if length > MAX_OVERRIDE_REASON {
            return Err(InvalidOverride::TooLong {
                what: "reason",
                length,
                unit: "characters",
                most: MAX_OVERRIDE_REASON,
            });
        }
        self.numbers.check()
    }

    /// The JSON of the override, on one line: the same text in every store, on the wire and in exports. It begins
    /// with `{"revision":`, and the domain, the rule and the entries follow in this order.
    #[must_use]
    pub fn to_json(&self) -> String {
        json::put(self)
    }

    /// The JSON as it goes on after `{"revision":7`, for a store that sets the revision as it writes.
    #[must_use]
    pub fn to_json_tail(&self) -> String {
        let unwritten = Self {
            revision: 0,
            ..self.clone()
        };
        let mut text = unwritten.to_json();
        text.drain(..json::UNWRITTEN.len());
        text
    }

    /// The revision in JSON that [`to_json`](Self::to_json) wrote, of which nothing else is read.
    #[must_use]
    pub fn revision_in_json(text: &[u8]) -> Option<u64> {
        json::revision(text)
    }

    /// Reads [`to_json`](Self::to_json), also with fields that are not known here, in another order, or missing:
    /// only the domain and the numbers have to be there.
    ///
    /// # Errors
    /// If it is no override, has more than [`MAX_OVERRIDE_RECORD`](super::MAX_OVERRIDE_RECORD) bytes, or does not
    /// pass [`check`](Self::check).
    pub fn from_json(text: &[u8]) -> Result<Self, InvalidOverride> {
        json::read_override(text)
    }
}

impl StoredNumbers {
    /// The fields that a JSON object has, without the room between them.
    ///
    /// # Errors
    /// If the text is no JSON object, or longer than [`MAX_OVERRIDE_FIELDS`].
    pub fn fields(text: &str) -> Result<Self, InvalidOverride> {
        bytes("text of the fields", text, MAX_OVERRIDE_FIELDS)?;
        let compact = json::compact_object(text).ok_or(InvalidOverride::Fields)?;
        Ok(Self::Fields(compact.into()))
    }

    /// The plan, if they are those of one.
    #[must_use]
    pub const fn plan(&self) -> Option<&Arc<str>> {
        match self {
            Self::Plan(plan) | Self::PlanFrom { plan, .. } => Some(plan),
            Self::Fields(_) | Self::Unlimited | Self::Refuse => None,
        }
    }

    /// The text of the fields that it has, for itself or beside a plan.
    pub(super) const fn field_text(&self) -> Option<&Arc<str>> {
        match self {
            Self::Fields(text) | Self::PlanFrom { calendar: text, .. } => Some(text),
            Self::Plan(_) | Self::Unlimited | Self::Refuse => None,
        }
    }

    /// Bytes of its text.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Fields(text) | Self::Plan(text) => text.len(),
            Self::PlanFrom { plan, calendar } => plan.len() + calendar.len(),
            Self::Unlimited | Self::Refuse => 0,
        }
    }

    fn check(&self) -> Result<(), InvalidOverride> {
        if let Some(plan) = self.plan() {
            name("plan", plan)?;
        }
        match self.field_text() {
            Some(text) => match Self::fields(text)? {
                Self::Fields(compact) if compact == *text => Ok(()),
                _ => Err(InvalidOverride::Fields),
            },
            None => Ok(()),
        }
    }
}

fn name(what: &'static str, text: &str) -> Result<(), InvalidOverride> {
    if text.is_empty() {
        return Err(InvalidOverride::Empty(what));
    }
    bytes(what, text, MAX_OVERRIDE_NAME)
}

fn bytes(what: &'static str, text: &str, most: usize) -> Result<(), InvalidOverride> {
    let length = text.len();
    if length <= most {
        return Ok(());
    }
    Err(InvalidOverride::TooLong {
        what,
        length,
        unit: "bytes",
        most,
    })
}
