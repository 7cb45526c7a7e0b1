//! Value: what somebody said on a command line, as it stands in a rules file.

use std::fmt;
use std::str::FromStr;

use super::spans;

/// A field of a rule and what it shall say: `rate=100/s`, `ban={after: 3, within: 10m, for: 1m}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    field: String,
    /// As it stands in a file.
    written: String,
}

impl Assignment {
    /// The field.
    #[must_use]
    pub fn field(&self) -> &str {
        &self.field
    }

    /// The value as it stands in a file.
    pub(super) fn written(&self) -> &str {
        &self.written
    }
}

impl fmt::Display for Assignment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.field, self.written)
    }
}

impl FromStr for Assignment {
    type Err = String;

    /// Reads `FIELD=VALUE`. A value in braces, brackets or quotes is YAML; any other stands for
    /// itself.
    fn from_str(text: &str) -> Result<Self, String> {
        let said = text.split_once('=');
        let (field, value) = said.ok_or("write FIELD=VALUE, such as rate=100/s")?;
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if field.is_empty() || !field.chars().all(is_name) {
            return Err(format!(
                "{field:?} is no field: write a name such as rate, as in rate=100/s"
            ));
        }
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
            field: field.to_owned(),
            written,
        })
    }
}

/// `value`, if it is one value of YAML on one line.
fn checked(field: &str, value: &str) -> Result<String, String> {
    let roots = spans::documents(value).unwrap_or_default();
    let is_whole = match roots.as_slice() {
        [root] => root.range == (0..value.len()) && root.is_exact(),
        _ => false,
    };
    if is_whole && !value.chars().any(char::is_control) {
        return Ok(value.to_owned());
    }
    Err(format!(
        "the value of {field} is no YAML on one line: write {{name: value}}, [one, two], or put all \
         of it in quotes"
    ))
}

/// Whether YAML takes `value` for itself without quotes, in braces too.
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
        ] {
            let assignment: Assignment = text.parse().unwrap();
            assert_eq!(assignment.to_string(), written);
        }
    }

    #[test]
    fn what_is_no_assignment_says_what_to_write() {
        for (text, expected) in [
            ("rate", "write FIELD=VALUE"),
            ("=5", "\"\" is no field"),
            ("a: b=5", "is no field"),
            ("rate=", "write rate=VALUE"),
            ("per=[a", "no YAML on one line"),
            ("per=[a]: b", "no YAML on one line"),
            ("per=[a] # c", "no YAML on one line"),
            ("per=[a,\n b]", "no YAML on one line"),
            ("name=\"a\" b", "no YAML on one line"),
        ] {
            let error = text.parse::<Assignment>().unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
