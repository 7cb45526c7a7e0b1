//! Override form: what a person writes about the overrides of a key, and what is done with it.

use std::collections::BTreeMap;

use quell_host::shell_word::quoted;
use quell_protocol::http::{OverrideRecordBody, Problem, ProblemKind};
use serde_json::{Map, Value};

use super::page::Fields;
use crate::http::admin::Operator;
use crate::http::override_routes::{Condition, KeyAddress, KeyWriter};
use crate::http::reply::{Refusal, invalid};
use crate::overrides::WhichOverride;
use crate::shared::Shared;

/// Members of an override that have a field of their own in the form.
const OTHER_MEMBERS: [&str; 5] = ["from", "until", "change", "reason", "prorated"];

/// Fields of a form: `domain`, `rule` and `entries` of a key; `numbers`, one a line, `from`, `until`, `reason` and
/// `change`; `standing` and `boost`, the revisions that the person saw, empty for none; `prorated`, the limit of this
/// window as JSON, and `prorated_numbers`, those that it belongs to; and `action`.
#[derive(Default)]
pub(super) struct OverrideForm(pub(super) Fields);

/// Values of the form's inputs.
#[derive(Default)]
pub(super) struct Inputs {
    pub(super) numbers: String,
    pub(super) from: String,
    pub(super) until: String,
    pub(super) reason: String,
    pub(super) change: String,
    /// The limit of this window as JSON, empty for none, and the numbers that it belongs to.
    pub(super) prorated: String,
    pub(super) prorated_numbers: String,
    /// The revisions that the person saw, 0 for none.
    pub(super) standing: u64,
    pub(super) boost: u64,
}

/// Deed of the form.
enum Action {
    Set,
    Delete(WhichOverride),
}

impl OverrideForm {
    pub(super) fn get(&self, name: &str) -> &str {
        self.0.word(name)
    }

    /// Returns true if it names a key.
    pub(super) fn has_key(&self) -> bool {
        !self.get("domain").is_empty() && self.0.entry_lines().next().is_some()
    }

    /// The key, or one of its overrides.
    pub(super) fn address(&self, which: Option<WhichOverride>) -> Result<KeyAddress, Box<Problem>> {
        let rule = self.get("rule");
        if rule.is_empty() {
            let detail =
                "the rule is missing: write its name, or * for every rule with these entries";
            return Err(invalid(detail.to_owned()));
        }
        let entries = self.0.entries().map_err(invalid)?;
        Ok(KeyAddress::new(self.get("domain"), rule, &entries, which))
    }

    /// What was written, after it was refused.
    pub(super) fn typed(&self) -> Inputs {
        Inputs {
            numbers: self.0.get("numbers").replace("\r\n", "\n"),
            from: self.0.get("from").to_owned(),
            until: self.0.get("until").to_owned(),
            reason: self.0.get("reason").to_owned(),
            change: self.get("change").to_owned(),
            prorated: self.0.get("prorated").to_owned(),
            prorated_numbers: self.0.get("prorated_numbers").to_owned(),
            standing: self.seen(WhichOverride::Standing),
            boost: self.seen(WhichOverride::Boost),
        }
    }

    /// The revision that the person saw, 0 for none.
    fn seen(&self, which: WhichOverride) -> u64 {
        self.get(which.name()).parse().unwrap_or_default()
    }

    fn action(&self) -> Result<Action, Box<Problem>> {
        match self.get("action") {
            "set" => Ok(Action::Set),
            "delete-boost" => Ok(Action::Delete(WhichOverride::Boost)),
            "delete-standing" => Ok(Action::Delete(WhichOverride::Standing)),
            _ => Err(invalid(
                "write set, delete-boost or delete-standing".to_owned(),
            )),
        }
    }

    /// The override as the body of the route.
    fn members(&self) -> Result<Map<String, Value>, Box<Problem>> {
        let mut members = read_numbers(self.0.get("numbers")).map_err(invalid)?;
        let prorated = self.kept_window(&members);
        members.extend(prorated.map(|window| ("prorated".to_owned(), window)));
        for name in ["from", "until", "change", "reason"] {
            let text = self.get(name);
            if !text.is_empty() {
                members.insert(name.to_owned(), text.into());
            }
        }
        Ok(members)
    }

    /// The limit of this window, if it is another one and these numbers are still those that it belongs to. Other
    /// numbers count at once, and so do those of a key that begins anew.
    fn kept_window(&self, numbers: &Map<String, Value>) -> Option<Value> {
        let keeps = ["", "keep"].contains(&self.get("change"));
        let before = read_numbers(self.0.get("prorated_numbers")).ok()?;
        let window = serde_json::from_str(self.0.get("prorated")).ok()?;
        (keeps && before == *numbers).then_some(window)
    }

    /// Does what the form asks for, as the route does, if the key is as the person saw it. Returns what was done.
    pub(super) async fn act(
        &self,
        shared: &Shared,
        operator: Operator<'_>,
    ) -> Result<String, Refusal> {
        match self.action()? {
            Action::Set => {
                let writer = KeyWriter::new(shared, operator, self.address(None)?)?;
                let which = match self.get("until") {
                    "" => WhichOverride::Standing,
                    _ => WhichOverride::Boost,
                };
                let condition = Condition::Shown(self.seen(which));
                let (record, _) = writer.set(condition, self.members()?).await?;
                let later = match record.in_force {
                    true => "",
                    false => ", and not in force here yet",
                };
                Ok(format!("Set: revision {}{later}.", record.revision))
            }
            Action::Delete(which) => {
                let writer = KeyWriter::new(shared, operator, self.address(Some(which))?)?;
                let condition = Condition::Shown(self.seen(which));
                let deleted = writer.delete(condition).await?;
                Ok(match deleted.deleted {
                    0 => "There was nothing to delete.".to_owned(),
                    _ => format!("Deleted: revision {}.", deleted.revision),
                })
            }
        }
    }

    /// The command that does the same.
    pub(super) fn command(&self) -> Option<String> {
        Some(match self.action().ok()? {
            Action::Set => {
                if let Some(line) = self.members().ok().and_then(|members| self.line(members)) {
                    let [line, domain] = [&*line, self.get("domain")].map(quoted);
                    return Some(format!(
                        "printf '%s\\n' {line} | quell overrides import {domain} -"
                    ));
                }
                let mut command = self.key_command("set");
                let numbers = self.0.get("numbers").lines().map(str::trim);
                for line in numbers.filter(|line| !line.is_empty()) {
                    command += &format!(" {}", quoted(&command_number(line)));
                }
                for name in ["from", "until", "change", "reason"] {
                    let text = self.get(name);
                    if !text.is_empty() {
                        command += &format!(" --{name} {}", quoted(text));
                    }
                }
                command
            }
            Action::Delete(which) => self.key_command("delete") + " --which " + which.name(),
        })
    }

    /// The override as a line of a file, if only a file can have all of it.
    fn line(&self, members: Map<String, Value>) -> Option<String> {
        members.get("prorated")?;
        let mut line = Map::new();
        line.insert("rule".to_owned(), self.get("rule").into());
        let entries = self.0.entries().ok()?;
        line.insert("entries".to_owned(), serde_json::to_value(entries).ok()?);
        line.extend(members);
        Some(Value::Object(line).to_string())
    }

    /// A command about the key.
    pub(super) fn key_command(&self, verb: &str) -> String {
        let [domain, rule] = ["domain", "rule"].map(|name| quoted(self.get(name)));
        let entries = self.0.entry_lines();
        entries.fold(
            format!("quell overrides {verb} {domain} {rule}"),
            |command, line| format!("{command} -e {}", quoted(line)),
        )
    }
}

impl Inputs {
    /// Values of an override that is there, to change it.
    pub(super) fn of(record: &OverrideRecordBody) -> Self {
        let numbers = number_lines(&record.numbers);
        let window = record.prorated.as_ref();
        let window = window.and_then(|window| serde_json::to_string(window).ok());
        Self {
            prorated_numbers: window
                .as_ref()
                .map_or_else(String::new, |_| numbers.clone()),
            prorated: window.unwrap_or_default(),
            numbers,
            from: record.from.clone().unwrap_or_default(),
            until: record.until.clone().unwrap_or_default(),
            reason: record.reason.clone(),
            ..Self::default()
        }
    }

    /// The person sees these overrides.
    pub(super) fn note_revisions(&mut self, overrides: &[OverrideRecordBody]) {
        (self.standing, self.boost) = (0, 0);
        for record in overrides {
            match record.until {
                Some(_) => self.boost = record.revision,
                None => self.standing = record.revision,
            }
        }
    }
}

/// Returns true if a refusal says that somebody else changed the key.
pub(super) fn is_conflict(problem: &Problem) -> bool {
    problem.kind == ProblemKind::PreconditionFailed.uri()
}

/// Numbers of an override, one a line: `rate=200/s`, `plan=gold`, or `unlimited` and `refuse` by themselves.
fn read_numbers(text: &str) -> Result<Map<String, Value>, String> {
    let mut numbers = Map::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once('=').unwrap_or((line, ""));
        let (name, value) = (name.trim_end(), value.trim_start());
        if OTHER_MEMBERS.contains(&name) {
            return Err(format!("`{name}` is no number: write it in its own field"));
        }
        let value = match (name, value) {
            ("unlimited" | "refuse", "") => Value::Bool(true),
            (_, "") => return Err(format!("`{line}` has no value: write FIELD=VALUE, such as rate=200/s")),
            ("plan", plan) => plan.into(),
            (_, value) => read_value(value)
                .ok_or_else(|| format!("the value of `{name}` is not JSON: write it without brackets and quotes, or close them"))?,
        };
        if numbers.insert(name.to_owned(), value).is_some() {
            return Err(format!("`{name}` appears twice: write it once"));
        }
    }
    Ok(numbers)
}

/// A value as people write it; what begins with a bracket or a quote is JSON.
fn read_value(text: &str) -> Option<Value> {
    match text {
        "true" => Some(true.into()),
        "false" => Some(false.into()),
        text if text.starts_with(['{', '[', '"']) => serde_json::from_str(text).ok(),
        // A leading zero or a sign stays as it was written.
        text => Some(match text.parse::<u64>() {
            Ok(number) if number.to_string() == text => number.into(),
            _ => text.into(),
        }),
    }
}

/// Numbers as [`read_numbers`] reads them.
fn number_lines(numbers: &Map<String, Value>) -> String {
    let lines = numbers.iter().map(|(name, value)| match &**name {
        "unlimited" | "refuse" => name.clone(),
        name => format!("{name}={}", value_text(value)),
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// A number of the form as an argument of the command.
fn command_number(line: &str) -> String {
    match line {
        "unlimited" | "refuse" => format!("{line}=true"),
        line => line.to_owned(),
    }
}

fn value_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Numbers for people: `rate 200/s, burst 400`.
pub(super) fn number_words(numbers: &Map<String, Value>) -> String {
    let words = numbers.iter().map(|(name, value)| match &**name {
        "unlimited" => "unlimited".to_owned(),
        "refuse" => "refused".to_owned(),
        name => format!("{name} {}", value_text(value)),
    });
    words.collect::<Vec<_>>().join(", ")
}

/// The entries of a key, one a line, as [`Fields::entries`] reads them.
pub(super) fn entry_text(entries: &BTreeMap<String, String>, between: &str) -> String {
    let lines = entries
        .iter()
        .map(|(name, value)| format!("{name}={value}"));
    lines.collect::<Vec<_>>().join(between)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lines_are_numbers_and_come_back() {
        for (text, expected) in [
            (
                "rate=200/s\n\n burst = 400 ",
                json!({"rate": "200/s", "burst": 400}),
            ),
            ("plan=2026", json!({"plan": "2026"})),
            ("unlimited", json!({"unlimited": true})),
            ("refuse=true", json!({"refuse": true})),
            (
                "anchor=20:00\nburst=007",
                json!({"anchor": "20:00", "burst": "007"}),
            ),
            ("ban={\"after\":3}", json!({"ban": {"after": 3}})),
        ] {
            let read = read_numbers(text).unwrap();
            assert_eq!(Value::Object(read.clone()), expected, "{text}");
            assert_eq!(read_numbers(&number_lines(&read)).unwrap(), read, "{text}");
        }
        for (text, told) in [
            ("rate", "write FIELD=VALUE"),
            ("rate=1/s\nrate=2/s", "twice"),
            ("until=2h", "its own field"),
            ("ban={after", "not JSON"),
        ] {
            let error = read_numbers(text).unwrap_err();
            assert!(error.contains(told), "{text}: {error}");
        }
    }

    #[test]
    fn a_form_is_the_command_that_does_the_same() {
        let form = |text: &str| OverrideForm(Fields::parse(text.as_bytes()));
        let key = "domain=shop&rule=*&entries=tenant%3Da%27b&";
        let set = form(&format!(
            "{key}action=set&numbers=refuse%0D%0A&until=2h&reason=a+sale"
        ));
        assert_eq!(
            set.command().unwrap(),
            r"quell overrides set shop '*' -e 'tenant=a'\''b' refuse=true --until 2h --reason 'a sale'"
        );
        let window = "numbers=limit%3D9%2Fday&change=keep&prorated_numbers=limit%3D9%2Fday&prorated=%7B%22limit%22:7%7D";
        let prorated = form(&format!("{key}action=set&{window}"));
        assert_eq!(
            prorated.command().unwrap(),
            r#"printf '%s\n' '{"change":"keep","entries":{"tenant":"a'\''b"},"limit":"9/day","prorated":{"limit":7},"rule":"*"}' | quell overrides import shop -"#
        );
        let delete = form(&format!("{key}action=delete-boost&numbers=refuse"));
        assert_eq!(
            delete.command().unwrap(),
            r"quell overrides delete shop '*' -e 'tenant=a'\''b' --which boost"
        );
    }
}
