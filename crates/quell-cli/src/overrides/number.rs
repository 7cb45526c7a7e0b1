//! Number: a field of a limit and its value, as a command and a cell of a table say it.

use quell_protocol::printable;
use quell_rules::{
    DocumentNode, DocumentValue, Problem, TextFile, meant, number_fields, read_documents,
};
use serde_json::{Map, Value};

/// `FIELD=VALUE` on the command line.
#[derive(Clone, Debug)]
pub(super) struct NumberArg {
    pub(super) field: String,
    pub(super) value: Value,
}

/// Reads `FIELD=VALUE`.
pub(super) fn number_arg(text: &str) -> Result<NumberArg, String> {
    let pair = text.split_once('=').filter(|(field, _)| !field.is_empty());
    let (field, value) = pair.ok_or_else(|| {
        format!(
            "`{}` is not a field: write FIELD=VALUE, such as rate=200/s; if * is the rule, write it in quotes: '*'",
            printable(text)
        )
    })?;
    if ["from", "until", "change", "reason", "wait"].contains(&field) {
        return Err(format!(
            "write `--{field}`, as in --{field} {}",
            printable(value)
        ));
    }
    check_field(field).map_err(|error| match error {
        UnknownField::Similar(error) => error,
        UnknownField::Other(error) => {
            format!(
                "{error}; an entry of the key is named by a flag: write `-e {}`",
                printable(text)
            )
        }
    })?;
    if value.is_empty() {
        return Err(format!("no value for {field}: write {field}=VALUE"));
    }
    Ok(NumberArg {
        field: field.to_owned(),
        value: number_value(field, value)?,
    })
}

/// Reason why a field is none.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum UnknownField {
    /// One that is probably another. The text says which.
    Similar(String),
    /// Any other.
    Other(String),
}

/// Checks that numbers can have this field.
pub(super) fn check_field(field: &str) -> Result<(), UnknownField> {
    if number_fields().any(|other| other == field) {
        return Ok(());
    }
    let names: Vec<&str> = number_fields().collect();
    let shown = printable(field);
    Err(match meant(field, &names) {
        Some(meant) => {
            UnknownField::Similar(format!("unknown field `{shown}`, did you mean `{meant}`?"))
        }
        None => UnknownField::Other(format!("`{shown}` is not a field of a limit")),
    })
}

/// The place of a field among others: those that say most come first.
pub(super) fn rank(field: &str) -> usize {
    number_fields()
        .position(|other| other == field)
        .unwrap_or(usize::MAX)
}

/// The value of a field, of which only the text is known. In braces, brackets or quotes it is YAML.
pub(super) fn number_value(field: &str, text: &str) -> Result<Value, String> {
    if field == "plan" {
        return Ok(Value::from(text));
    }
    if !text.starts_with(['{', '[', '"', '\'']) {
        return Ok(plain(text));
    }
    let file = TextFile {
        name: field.to_owned(),
        text: text.to_owned(),
    };
    let told = |problems: Vec<Problem>| problems.first().map_or_else(String::new, Problem::in_text);
    match read_documents(file).map_err(told)?.as_slice() {
        [document] => Ok(json(document)),
        _ => Err(format!(
            "the value of {field} is not one value: write {{name: value}}, or [one, two]"
        )),
    }
}

fn plain(text: &str) -> Value {
    match text {
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        // What has a leading zero or a sign stays as it was written.
        text => match text.parse::<u64>() {
            Ok(number) if number.to_string() == text => Value::from(number),
            _ => Value::from(text),
        },
    }
}

fn json(node: &DocumentNode) -> Value {
    match node.value() {
        DocumentValue::Null => Value::Null,
        DocumentValue::Text {
            text,
            is_plain: true,
        } => plain(text),
        DocumentValue::Text { text, .. } => Value::from(text),
        DocumentValue::List(items) => Value::Array(items.iter().map(json).collect()),
        DocumentValue::Map(pairs) => {
            let pairs = pairs
                .iter()
                .map(|(name, node)| ((*name).to_owned(), json(node)));
            Value::Object(pairs.collect::<Map<_, _>>())
        }
    }
}

/// Returns true if a rules file would read both as the same: `400` is `"400"`.
pub(super) fn is_same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len()
                && one
                    .iter()
                    .zip(other)
                    .all(|(one, other)| is_same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            let has = |(name, value)| other.get(name).is_some_and(|other| is_same(value, other));
            one.len() == other.len() && one.iter().all(has)
        }
        (one, other) => one == other || text(one) == text(other),
    }
}

/// A value as text.
pub(super) fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_field_has_the_kind_of_its_value() {
        for (argument, expected) in [
            ("rate=200/s", json!("200/s")),
            ("burst=400", json!(400)),
            ("unlimited=true", json!(true)),
            ("plan=2026", json!("2026")),
            ("plan={a", json!("{a")),
            ("anchor=20:00", json!("20:00")),
            ("burst=007", json!("007")),
            (
                "ban={after: 3, for: [1m, \"2m\"]}",
                json!({"after": 3, "for": ["1m", "2m"]}),
            ),
            ("limit=\"5/min\"", json!("5/min")),
        ] {
            assert_eq!(number_arg(argument).unwrap().value, expected, "{argument}");
        }
    }

    #[test]
    fn what_is_no_field_says_what_to_write() {
        for (argument, expected) in [
            (
                "tenant=acme",
                "`tenant` is not a field of a limit; an entry of the key is named by a flag: write `-e tenant=acme`",
            ),
            ("brust=5", "unknown field `brust`, did you mean `burst`?"),
            ("until=2h", "write `--until`, as in --until 2h"),
            ("rate", "write FIELD=VALUE, such as rate=200/s"),
            ("=5", "write FIELD=VALUE"),
            ("rate=", "no value for rate"),
            ("when={a: b}", "`when` is not a field"),
            ("ban={after", "line 1"),
        ] {
            let error = number_arg(argument).unwrap_err();
            assert!(error.contains(expected), "{argument}: {error}");
        }
    }

    #[test]
    fn numbers_and_their_texts_are_the_same() {
        assert!(is_same(&json!(400), &json!("400")));
        assert!(is_same(&json!({"a": [1, "2"]}), &json!({"a": ["1", 2]})));
        assert!(!is_same(&json!({"a": 1}), &json!({"a": 1, "b": 2})));
        assert!(!is_same(&json!([1]), &json!([1, 2])));
        assert!(!is_same(&json!("1/s"), &json!("2/s")));
    }
}
