//! Plans: numbers that a rule has for the callers of a plan, such as `free` and `gold`.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;

use super::{DescriptorReader, Effect, EmptyValue};

/// The plans of a domain, as one rule sees them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plans {
    /// The entry of a call that names its plan. Without one only a stored override says which plan applies.
    pub entry: Option<Arc<str>>,
    /// The effects of the plans that have numbers for this rule.
    pub effects: BTreeMap<Arc<str>, Effect>,
    /// The names of all plans of the domain. One that has no numbers for this rule leaves it as it is.
    pub names: Arc<BTreeSet<Arc<str>>>,
}

/// Plan that a call names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedPlan<'r, 'd> {
    /// One that has numbers for the rule.
    Plan(&'r Arc<str>),
    /// None, or one that leaves the rule as it is.
    Nothing,
    /// One that the domain does not have.
    Unknown(&'d [u8]),
}

impl Plans {
    /// The plan that a descriptor names, for a rule with this treatment of empty values.
    #[must_use]
    pub fn named<'d>(&self, reader: &DescriptorReader<'d>, empty: EmptyValue) -> NamedPlan<'_, 'd> {
        let Some(entry) = &self.entry else {
            return NamedPlan::Nothing;
        };
        let Some(value) = reader.get(entry, empty) else {
            return NamedPlan::Nothing;
        };
        let name = core::str::from_utf8(value);
        let Ok(name) = name else {
            return NamedPlan::Unknown(value);
        };
        match self.effects.get_key_value(name) {
            Some((plan, _)) => NamedPlan::Plan(plan),
            None if self.names.contains(name) => NamedPlan::Nothing,
            None => NamedPlan::Unknown(value),
        }
    }
}
