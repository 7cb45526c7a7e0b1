//! Ids as bytes whose order is that of the ids, so that a domain, a rule and a prefix of the first value are ranges
//! of keys: for stores that keep their keys in order.
//!
//! A text ends with a byte 0, and a 0 in it is written `00 FF`: UTF-8 has no byte FF, so no longer text sorts before
//! a shorter one. A rule is `01` for every rule, or `02` and its name. After the entries come `00` and whether the
//! override has an end.

use std::sync::Arc;

use super::{OverrideFilter, OverrideId, RuleFilter};

/// Bytes that no text begins with, and no end of entries: what follows all keys with a prefix.
const AFTER: u8 = 0xFF;

const STAR: u8 = 1;
const NAMED: u8 = 2;

/// The key of an id.
#[must_use]
pub fn encode(id: &OverrideId) -> Vec<u8> {
    let mut key = Vec::with_capacity(96);
    push_text(&mut key, &id.domain);
    push_rule(&mut key, id.rule.as_deref());
    for (name, value) in &id.entries {
        push_text(&mut key, name);
        push_text(&mut key, value);
    }
    key.extend([0, u8::from(id.has_end)]);
    key
}

/// The id of a key; `None` if it is none.
#[must_use]
pub fn decode(key: &[u8]) -> Option<OverrideId> {
    let (domain, rest) = text(key)?;
    let (rule, mut rest) = match rest.split_first()? {
        (&STAR, rest) => (None, rest),
        (&NAMED, rest) => text(rest).map(|(rule, rest)| (Some(rule), rest))?,
        _ => return None,
    };
    let mut entries = Vec::new();
    loop {
        match rest {
            [0, has_end @ (0 | 1)] => {
                return Some(OverrideId {
                    domain,
                    rule,
                    entries,
                    has_end: *has_end == 1,
                });
            }
            _ => {
                let (name, after) = text(rest)?;
                let (value, after) = text(after)?;
                entries.push((name, value));
                rest = after;
            }
        }
    }
}

/// The part of the keys that a list looks at.
#[derive(Debug)]
pub struct Scope {
    /// All keys begin so.
    begin: Vec<u8>,
    /// Whether the rule is part of that.
    has_rule: bool,
    /// The first values begin so.
    prefix: Vec<u8>,
}

/// The next step of a list, at a key.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// It is of the list.
    Take,
    /// The next key that may be is this one, or after it.
    Seek(Vec<u8>),
    /// No further key is.
    End,
}

impl Scope {
    /// The scope of a filter; of everything if there is none.
    #[must_use]
    pub fn new(filter: Option<&OverrideFilter>) -> Self {
        let (mut begin, mut prefix) = (Vec::new(), Vec::new());
        let mut has_rule = false;
        if let Some(filter) = filter {
            push_text(&mut begin, &filter.domain);
            match &filter.rule {
                RuleFilter::Any => {}
                RuleFilter::Star => push_rule(&mut begin, None),
                RuleFilter::Named(rule) => push_rule(&mut begin, Some(rule)),
            }
            has_rule = filter.rule != RuleFilter::Any;
            push_escaped(&mut prefix, &filter.prefix);
        }
        Self {
            begin,
            has_rule,
            prefix,
        }
    }

    /// The first key that may be of the list, after this one.
    #[must_use]
    pub fn start(&self, after: Option<Vec<u8>>) -> Vec<u8> {
        let next = after.map(|mut key| {
            key.push(0);
            key
        });
        next.map_or_else(|| self.begin.clone(), |next| next.max(self.begin.clone()))
    }

    /// Bytes with which all keys of the list begin.
    #[must_use]
    pub fn common_prefix(&self) -> &[u8] {
        &self.begin
    }

    /// The next step of the list, at this key.
    #[must_use]
    pub fn step(&self, key: &[u8]) -> Step {
        let rest = match key.strip_prefix(self.begin.as_slice()) {
            // The domain or the rule is a longer text, with a byte 0 in it.
            None | Some([AFTER, ..]) => return Step::End,
            Some(rest) => rest,
        };
        if self.prefix.is_empty() {
            return Step::Take;
        }
        let Some(value) = first_value(rest, self.has_rule) else {
            return Step::Seek([key, &[0]].concat());
        };
        if value.starts_with(&self.prefix) {
            return Step::Take;
        }
        let (group, _) = key.split_at(key.len() - value.len());
        if value < self.prefix.as_slice() {
            return Step::Seek([group, &self.prefix].concat());
        }
        Step::Seek([group, &[AFTER]].concat())
    }
}

/// What stands from the first value on, after the domain, or after domain and rule. `None` if there are no entries.
fn first_value(rest: &[u8], has_rule: bool) -> Option<&[u8]> {
    let rest = match rest.split_first() {
        _ if has_rule => rest,
        Some((&STAR, rest)) => rest,
        Some((&NAMED, rest)) => split(rest)?.1,
        _ => return None,
    };
    let (name, value) = split(rest)?;
    (!name.is_empty()).then_some(value)
}

fn push_rule(key: &mut Vec<u8>, rule: Option<&str>) {
    match rule {
        None => key.push(STAR),
        Some(rule) => {
            key.push(NAMED);
            push_text(key, rule);
        }
    }
}

fn push_text(key: &mut Vec<u8>, text: &str) {
    push_escaped(key, text);
    key.push(0);
}

fn push_escaped(key: &mut Vec<u8>, text: &str) {
    for byte in text.bytes() {
        key.push(byte);
        if byte == 0 {
            key.push(AFTER);
        }
    }
}

/// An escaped text and what follows its end.
fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut from = 0;
    loop {
        let zero = from + bytes.get(from..)?.iter().position(|byte| *byte == 0)?;
        if bytes.get(zero + 1) != Some(&AFTER) {
            return Some((bytes.get(..zero)?, bytes.get(zero + 1..)?));
        }
        from = zero + 2;
    }
}

fn text(bytes: &[u8]) -> Option<(Arc<str>, &[u8])> {
    let (escaped, rest) = split(bytes)?;
    let plain = if escaped.contains(&AFTER) {
        let kept = escaped.iter().copied().filter(|byte| *byte != AFTER);
        String::from_utf8(kept.collect()).ok()?.into()
    } else {
        str::from_utf8(escaped).ok()?.into()
    };
    Some((plain, rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ids() -> impl Strategy<Value = OverrideId> {
        let name = || "[a\u{0}\u{1}ä]{1,3}".prop_map(Arc::<str>::from);
        let value = "[a\u{0}\u{1}ä]{0,3}".prop_map(Arc::<str>::from);
        let entries = prop::collection::btree_map(name(), value, 0..3);
        let rule = prop::option::of(name());
        (name(), rule, entries, any::<bool>()).prop_map(|(domain, rule, entries, has_end)| {
            OverrideId {
                domain,
                rule,
                entries: entries.into_iter().collect(),
                has_end,
            }
        })
    }

    proptest! {
        // Of two texts one is rarely the other and a byte 0.
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn keys_are_in_the_order_of_the_ids(one in ids(), other in ids()) {
            let keys = (encode(&one), encode(&other));
            prop_assert_eq!(keys.0.cmp(&keys.1), one.cmp(&other));
            prop_assert_eq!(decode(&keys.0), Some(one));
        }

        #[test]
        fn a_list_finds_what_its_filter_lets_pass(
            mut ids in prop::collection::vec(ids(), 0..30),
            like in ids(),
            rule in 0..3,
            prefix in "[a\u{0}ä]{0,2}",
        ) {
            let filter = OverrideFilter {
                rule: match (rule, like.rule) {
                    (0, _) => RuleFilter::Any,
                    (1, Some(rule)) => RuleFilter::Named(rule),
                    _ => RuleFilter::Star,
                },
                prefix: prefix.into(),
                ..OverrideFilter::domain(like.domain)
            };
            ids.sort();
            ids.dedup();
            let keys: Vec<_> = ids.iter().map(encode).collect();
            let scope = Scope::new(Some(&filter));
            let (mut found, mut from) = (Vec::new(), scope.start(None));
            while let Some(key) = keys.iter().find(|key| **key >= from) {
                let next = [key.as_slice(), &[0]].concat();
                from = match scope.step(key) {
                    Step::Take => {
                        found.extend(decode(key));
                        next
                    }
                    Step::Seek(target) => {
                        prop_assert!(target > *key, "it goes on");
                        target
                    }
                    Step::End => break,
                };
            }
            ids.retain(|id| filter.matches_id(id));
            prop_assert_eq!(found, ids);
        }

        #[test]
        fn any_bytes_are_a_key_or_not(bytes: Vec<u8>) {
            if let Some(id) = decode(&bytes) {
                drop(id);
            }
            let scope = Scope::new(Some(&OverrideFilter { prefix: "a".into(), ..OverrideFilter::domain("") }));
            drop(scope.step(&[&[0], bytes.as_slice()].concat()));
        }
    }
}
