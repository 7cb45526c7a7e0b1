//! Rules trouble: why the newest rules are not in use.

use serde::{Deserialize, Serialize};

/// Reason why the newest rules are not in use.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RulesTrouble {
    /// Reason why newer rules are not used.
    pub refused: Option<String>,
    /// Reason why it is not known whether there are newer rules: the store cannot be read.
    pub unreadable: Option<String>,
    /// Reason why nodes are not given rules that are in force.
    pub missing: Option<String>,
}

impl RulesTrouble {
    /// The same in words, for operators.
    pub fn texts(&self) -> impl Iterator<Item = String> {
        texts([
            (
                "the rules cannot be read, and stay as they are",
                &self.unreadable,
            ),
            ("newer rules are not used", &self.refused),
            ("rules in force are not known", &self.missing),
        ])
    }
}

/// Troubles, with reasons.
pub(crate) fn texts<const N: usize>(
    all: [(&str, &Option<String>); N],
) -> impl Iterator<Item = String> {
    let text = |(what, why): (&str, &Option<String>)| Some(format!("{what}: {}", why.as_ref()?));
    all.map(text).into_iter().flatten()
}
