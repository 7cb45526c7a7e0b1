//! Rules on the wire: the version that coordinators hand out.

use quell::rule_store::{Draft, Entry, Head, RuleStoreError, Version};

use crate::proto;

/// The longest text of rules that is handed out, in bytes: half of the largest message.
pub const MAX_RULES: usize = 4 << 20;

/// A version as a message.
#[must_use]
pub fn encode(version: &Version) -> proto::Rules {
    let entry = &version.entry;
    proto::Rules {
        head: entry.head.to_string(),
        at_ms: entry.at_ms,
        who: entry.who.clone(),
        change: entry.change.clone(),
        note: entry.note.clone(),
        text: version.text.clone(),
    }
}

/// A message as a version.
///
/// # Errors
/// If the text is not the one that was pushed.
pub fn decode(rules: proto::Rules) -> Result<Version, RuleStoreError> {
    let what = "the rules that the coordinator hands out";
    let head = Head::parse(&rules.head);
    let head = head.ok_or_else(|| RuleStoreError::damaged(what, "have no version"))?;
    let draft = Draft {
        text: "",
        who: &rules.who,
        change: &rules.change,
        note: &rules.note,
    };
    let entry = Entry::new(head, rules.at_ms, &draft);
    Version::new(entry, rules.text, what)
}
