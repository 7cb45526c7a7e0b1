//! Every mistake is reported with its place and what to write instead: inputs and the exact
//! messages.
//!
//! In messages, `{rule}` and `{override}` represent where the fields of such a map are.

mod document;
mod limit;
mod over;
mod reserve;
mod rule;
mod scenario;
mod yaml;

/// An input and the messages for it, without the file's name.
type Mistake = (&'static str, &'static [&'static str]);

const RULE: &str = "docs/fields.md lists the fields of a rule";

const OVERRIDE: &str = "docs/fields.md lists the fields of an override";

fn check(table: &[Mistake], told: impl Fn(&str) -> Vec<String>) {
    for (input, expected) in table {
        let expected: Vec<String> = expected
            .iter()
            .map(|message| {
                message
                    .replace("{rule}", RULE)
                    .replace("{override}", OVERRIDE)
            })
            .map(|message| format!("f:{message}"))
            .collect();
        assert_eq!(told(input), expected, "\n{input}");
    }
}

fn told_of_rules(text: &str) -> Vec<String> {
    let problems = quell_rules::parse_str("f", text).unwrap_err();
    problems.iter().map(ToString::to_string).collect()
}

fn told_of_fields(fields: &str) -> Vec<String> {
    told_of_rules(&format!("domain: d\nrules:\n  - {{ name: r, {fields} }}\n"))
}

fn told_of_scenarios(text: &str) -> Vec<String> {
    let problems = quell_rules::scenario::parse_str("f", text, "nowhere").unwrap_err();
    problems.iter().map(ToString::to_string).collect()
}

#[test]
fn in_yaml() {
    check(yaml::TABLE, told_of_rules);
}

#[test]
fn in_documents() {
    check(document::TABLE, told_of_rules);
}

#[test]
fn in_rules() {
    check(rule::TABLE, told_of_fields);
}

#[test]
fn in_reservations() {
    check(reserve::TABLE, told_of_fields);
}

#[test]
fn in_limits() {
    check(limit::TABLE, told_of_fields);
}

#[test]
fn in_overrides() {
    check(over::TABLE, told_of_fields);
}

#[test]
fn in_scenarios() {
    check(scenario::TABLE, told_of_scenarios);
}
