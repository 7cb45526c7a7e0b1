//! Lists of overrides, page by page.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::{OverrideId, StoredOverride};

/// The longest cursor, in bytes: the longest id, encoded.
const MAX_CURSOR: usize = 32 * 1_024;

/// Which overrides of a domain are listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverrideFilter {
    /// The domain.
    pub domain: Arc<str>,
    /// Those of which rule.
    pub rule: RuleFilter,
    /// Those whose first entry, in the order of the names, has a value that begins so; with the empty text, all.
    pub prefix: Arc<str>,
    /// Those that say this plan.
    pub plan: Option<Arc<str>>,
}

/// Overrides of which rule are listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RuleFilter {
    /// All overrides.
    #[default]
    Any,
    /// Those that are for every rule (`*`).
    Star,
    /// Those of one rule.
    Named(Arc<str>),
}

/// The place after a page. Its text means something to the store that wrote it only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor(Arc<str>);

/// A part of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The overrides.
    pub overrides: Vec<StoredOverride>,
    /// The place where the list goes on; `None` at its end.
    pub next: Option<Cursor>,
}

impl OverrideFilter {
    /// All overrides of a domain.
    #[must_use]
    pub fn domain(domain: impl Into<Arc<str>>) -> Self {
        Self {
            domain: domain.into(),
            rule: RuleFilter::Any,
            prefix: Arc::from(""),
            plan: None,
        }
    }

    /// Whether the filter lets an override pass.
    #[must_use]
    pub fn matches(&self, stored: &StoredOverride) -> bool {
        let plan = stored.numbers.plan();
        self.matches_id(&stored.id) && (self.plan.is_none() || self.plan.as_ref() == plan)
    }

    /// The same without a look at the plan.
    #[must_use]
    pub fn matches_id(&self, id: &OverrideId) -> bool {
        let is_of_rule = match &self.rule {
            RuleFilter::Any => true,
            RuleFilter::Star => id.rule.is_none(),
            RuleFilter::Named(rule) => id.rule.as_ref() == Some(rule),
        };
        let value = id.entries.first().map_or("", |(_, value)| value);
        id.domain == self.domain && is_of_rule && value.starts_with(&*self.prefix)
    }
}

impl Cursor {
    /// A cursor that a caller gives back. `None` if no store writes such a text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        let fits = !text.is_empty() && text.len() <= MAX_CURSOR;
        (fits && text.bytes().all(is_plain)).then(|| Self(text.into()))
    }

    /// The cursor that a store writes for a place.
    #[must_use]
    pub fn from_bytes(place: &[u8]) -> Self {
        Self(URL_SAFE_NO_PAD.encode(place).into())
    }

    /// The place that a store wrote; `None` if it is none.
    #[must_use]
    pub fn to_bytes(&self) -> Option<Vec<u8>> {
        URL_SAFE_NO_PAD.decode(&*self.0).ok()
    }

    /// Its text: letters, digits, `-` and `_`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
