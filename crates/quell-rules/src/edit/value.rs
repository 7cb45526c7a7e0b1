//! Value: a value from the command line, in the form in which it is written to a rules file.

use std::fmt;
use std::str::FromStr;

use crate::problem::Sink;
use crate::yaml;

/// A field of a rule and its new value: `rate=100/s`, `ban={after: 3, within: 10m, for: 1m}`; a field of an
/// override, counted from 0: `overrides[0].rate=1000/s`; or a field of what a plan says for the rule:
/// `plans.gold.api.rate=200/s`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The field's path, as given.
    path: String,
    place: Place,
    /// Offset of the field's name in it.
    name_at: usize,
    /// The value in the form of a file.
    written: String,
}

/// The map that a field is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The rule.
    Rule,
    /// The override of the rule with this index, from 0.
    Override(usize),
    /// What a plan says for a rule: `PLAN.RULE`. Either name may have dots.
    Plan(String),
}

impl Assignment {
    /// The field, with its override or plan if it is of one.
    #[must_use]
    pub fn field(&self) -> &str {
        &self.path
    }

    /// The field's name alone.
    pub(super) fn name(&self) -> &str {
        self.path.get(self.name_at..).unwrap_or_default()
    }

    /// The map that the field is in.
    pub(super) const fn place(&self) -> &Place {
        &self.place
    }

    /// The value in the form of a file.
    pub(super) fn written(&self) -> &str {
        &self.written
    }
}

impl fmt::Display for Assignment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.path, self.written)
    }
}

impl FromStr for Assignment {
    type Err = String;

    /// Reads `FIELD=VALUE`, `overrides[N].FIELD=VALUE` or `plans.PLAN.RULE.FIELD=VALUE`. A value in braces,
    /// brackets or quotes is YAML; any other is taken literally.
    fn from_str(text: &str) -> Result<Self, String> {
        let assignment = text.split_once('=');
        let (field, value) = assignment.ok_or("write FIELD=VALUE, such as rate=100/s")?;
        let (place, name) = parts(field).ok_or_else(|| {
            format!(
                "{field:?} is not a field: write a name such as rate, as in rate=100/s, that of an override, as \
                 in overrides[0].rate=100/s for the first, or that of a plan, as in plans.gold.api.rate=100/s"
            )
        })?;
        if value.is_empty() {
            return Err(format!(
                "no value for {field}: write {field}=VALUE; to leave the field out, pull the rules, \
                 edit them and push them"
            ));
        }
        let written = if value.starts_with(['{', '[', '"', '\'']) {
            checked(field, value)?
        } else if is_plain(value) {
            value.to_owned()
        } else {
            quoted(value)
        };
        Ok(Self {
            path: field.to_owned(),
            place,
            name_at: field.len() - name.len(),
            written,
        })
    }
}

/// The map that the field is in, and the field's name.
fn parts(path: &str) -> Option<(Place, &str)> {
    let (place, name) = if let Some(rest) = path.strip_prefix("overrides[") {
        let (index, name) = rest.split_once("].")?;
        let is_number = index.chars().all(|c| c.is_ascii_digit());
        let index = index.parse().ok().filter(|_| is_number)?;
        (Place::Override(index), name)
    } else if let Some(rest) = path.strip_prefix("plans.") {
        let (plan, name) = rest
            .rsplit_once('.')
            .filter(|(plan, _)| plan.contains('.'))?;
        (Place::Plan(plan.to_owned()), name)
    } else {
        (Place::Rule, path)
    };
    let is_letter = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_name = !name.is_empty() && name.chars().all(is_letter);
    is_name.then_some((place, name))
}

/// `value`, if it is one YAML value on one line.
fn checked(field: &str, value: &str) -> Result<String, String> {
    // Mistakes inside it are reported when the edited text is parsed.
    let roots = yaml::documents(value.as_bytes(), &mut Sink::new(field));
    let is_whole = match roots.as_slice() {
        [root] => root.bytes == (0..value.len()) && root.is_exact(),
        _ => false,
    };
    if is_whole && !value.chars().any(char::is_control) {
        return Ok(value.to_owned());
    }
    Err(format!(
        "the value of {field} is not YAML on one line: write {{name: value}}, [one, two], or put all \
         of it in quotes"
    ))
}

/// Returns true if YAML reads `value` literally without quotes, even in braces.
fn is_plain(value: &str) -> bool {
    let is_harmless = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    let begins_well = |c: char| c.is_ascii_alphanumeric() || c == '/';
    value.starts_with(begins_well)
        && value.chars().all(is_harmless)
        && !value.eq_ignore_ascii_case("null")
}

fn quoted(value: &str) -> String {
    let mut quoted = String::from("\"");
    for c in value.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => quoted.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_so_that_they_are_read_as_they_were_said() {
        for (text, written) in [
            ("rate=100/s", "rate=100/s"),
            ("burst=7", "burst=7"),
            ("time_zone=Europe/Berlin", "time_zone=Europe/Berlin"),
            ("rate=5/s # more", "rate=\"5/s # more\""),
            ("rate=*x", "rate=\"*x\""),
            ("rate=1/s, burst: 9", "rate=\"1/s, burst: 9\""),
            ("rate=1/s\nburst: 9", "rate=\"1/s\\u000aburst: 9\""),
            ("rate=a\"b\\", "rate=\"a\\\"b\\\\\""),
            ("x=null", "x=\"null\""),
            ("per=[tenant, user]", "per=[tenant, user]"),
            ("name='it''s'", "name='it''s'"),
            ("limit=\"5/min\"", "limit=\"5/min\""),
            ("overrides[10].rate=5/s, x", "overrides[10].rate=\"5/s, x\""),
            ("plans.gold.api.rate=5/s", "plans.gold.api.rate=5/s"),
            ("plans.a b.c.d.rate=5/s", "plans.a b.c.d.rate=5/s"),
        ] {
            let assignment: Assignment = text.parse().unwrap();
            assert_eq!(assignment.to_string(), written);
        }
    }

    #[test]
    fn what_is_no_assignment_says_what_to_write() {
        for (text, expected) in [
            ("rate", "write FIELD=VALUE"),
            ("=5", "\"\" is not a field"),
            ("a: b=5", "is not a field"),
            ("overrides[0]=1/s", "is not a field: write"),
            ("overrides[0].=1/s", "is not a field"),
            ("overrides[].rate=1/s", "is not a field"),
            ("overrides[-1].rate=1/s", "is not a field"),
            ("overrides[+1].rate=1/s", "is not a field"),
            ("overrides[99999999999999999999].rate=1/s", "is not a field"),
            ("ban.after=3", "is not a field"),
            ("plans.gold=x", "as in plans.gold.api.rate=100/s"),
            ("plans.gold.api={rate: 1/s}", "is not a field"),
            ("plans.gold.api.=1/s", "is not a field"),
            ("rate=", "write rate=VALUE"),
            ("per=[a", "not YAML on one line"),
            ("per=[a]: b", "not YAML on one line"),
            ("per=[a] # c", "not YAML on one line"),
            ("per=[a,\n b]", "not YAML on one line"),
            ("name=\"a\" b", "not YAML on one line"),
        ] {
            let error = text.parse::<Assignment>().unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
