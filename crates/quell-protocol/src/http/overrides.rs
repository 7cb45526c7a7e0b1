//! Bodies of `/v1/overrides`: numbers of single keys that lie in a store beside the rules.
//!
//! An override is flat everywhere: its name, its numbers and its times are members of one object.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// An override as it is stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct OverrideRecordBody {
    /// Its domain.
    pub domain: String,
    /// Its rule, or `*` for every rule whose `per` has exactly these entries.
    pub rule: String,
    /// The values of its key.
    pub entries: BTreeMap<String, String>,
    /// `plan`, `unlimited`, `refuse`, or the fields of a limit as in a rules file.
    #[serde(flatten)]
    pub numbers: Map<String, Value>,
    /// Beginning of its time; left out if it applied at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(extend("format" = "date-time")))]
    pub from: Option<String>,
    /// End of its time; left out if it has none. A key has at most one override with an end and one without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(extend("format" = "date-time")))]
    pub until: Option<String>,
    /// Another limit for the window in which it was written (`change: prorate`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prorated: Option<ProratedBody>,
    /// Why it was written, or empty.
    pub reason: String,
    /// Who wrote it, or empty if the server knows nobody.
    pub by: String,
    /// When it was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(extend("format" = "date-time")))]
    pub at: Option<String>,
    /// Its revision: of two changes the later one has the higher.
    #[cfg_attr(feature = "openapi", schemars(range(min = 1)))]
    pub revision: u64,
    /// True if this server has it, its time is now, and its numbers go with the rules. An override of the same key
    /// that goes before it may decide all the same.
    pub in_force: bool,
    /// The servers that have it, in the answer of a change with `wait`; left out if the store did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub servers: Option<OverrideServersBody>,
}

/// The servers that follow the store of overrides, and those of them that have a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct OverrideServersBody {
    /// Servers that have the change.
    pub have: usize,
    /// Servers that follow the store: those that it heard of in the last ten seconds.
    pub of: usize,
    /// The names of those that lack it, at most 100; left out if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
}

/// A limit for the rest of a window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct ProratedBody {
    /// The limit, in units of cost.
    pub limit: u64,
    /// The end of the window.
    #[cfg_attr(feature = "openapi", schemars(extend("format" = "date-time")))]
    pub until: String,
}

/// A page of overrides.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct OverridesBody {
    /// The overrides, in an order that means nothing.
    pub overrides: Vec<OverrideRecordBody>,
    /// Beginning of the next page: the value of `cursor` there. Null if this is the last one. A page may have fewer
    /// overrides than `most`, or none, before the last one.
    pub next: Option<String>,
    /// True if the store came back empty. Servers go on with overrides that it does not have, and that are not shown,
    /// until something is written to it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub emptied: bool,
}

/// A key: its overrides, and what decides it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct OverriddenKeyBody {
    /// Its domain.
    pub domain: String,
    /// Its rule, or `*`.
    pub rule: String,
    /// Its values.
    pub entries: BTreeMap<String, String>,
    /// Its overrides: at most one without an end, and one with an end.
    pub overrides: Vec<OverrideRecordBody>,
    /// The numbers that there are for the key, each before those above it: those of the rule, of an override of the
    /// rules file, of a plan, and of stored overrides. Left out for `*`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chain: Vec<ChainLinkBody>,
    /// The limit in force in one line for people, `unlimited` or `refused`. Left out for `*`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// Units that are used now; left out without a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<u64>,
    /// Units that are left now; left out without a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining: Option<u64>,
    /// True if the store came back empty. Servers go on with overrides that it does not have, and that are not shown,
    /// until something is written to it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub emptied: bool,
}

/// Numbers that there are for a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct ChainLinkBody {
    /// Their place.
    pub source: ChainSource,
    /// The plan whose numbers they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
    /// The condition of an override of the rules file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<String>,
    /// The limit in one line for people, `unlimited` or `refused`; left out if the numbers do not go with the rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// Beginning of the time of a stored override.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(extend("format" = "date-time")))]
    pub from: Option<String>,
    /// Its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(extend("format" = "date-time")))]
    pub until: Option<String>,
    /// Its revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// Why it was written; left out if its author did not say.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Who wrote it; left out if the server has no credentials.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub by: String,
    /// True of the one by which this server decides.
    pub in_force: bool,
}

/// Place of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema), schemars(inline))]
pub enum ChainSource {
    /// The rule.
    Rule,
    /// An override of the rules file.
    OverrideOfFile,
    /// A plan that the values of the key name.
    Plan,
    /// A stored override.
    Override,
}

/// Number of overrides that are deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct DeletedOverridesBody {
    /// Overrides that were there.
    pub deleted: usize,
    /// The newest revision of the store.
    pub revision: u64,
    /// The servers that have the change, if `wait` was asked for; left out if the store did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub servers: Option<OverrideServersBody>,
}

/// Number of overrides that a batch changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct BatchBody {
    /// Overrides that were written, or were there and deleted.
    pub changed: usize,
    /// Lines that were passed over, because the time of their overrides is over.
    #[serde(default)]
    pub skipped: usize,
    /// The newest revision of the store.
    pub revision: u64,
    /// True if this server decides by them.
    pub in_force: bool,
    /// The servers that have the change, if `wait` was asked for; left out if the store did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub servers: Option<OverrideServersBody>,
}

/// A mistake in a line of a batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct LineMistake {
    /// The line, from 1.
    pub line: usize,
    /// The mistake, and what to write.
    pub detail: String,
}
