//! What a server logs is on its page: `docs/observability.md` has every line of the level `info` and above,
//! and every field of the decision log.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use proc_macro2::TokenTree;

use crate::finding::Finding;
use crate::repository::{Repository, TextFile};
use crate::tokens;

const PAGE: &str = "docs/observability.md";

/// The record that is a line of the decision log.
const LINE: &str = "crates/quell-server/src/decision_log/line.rs";

/// Crates whose code runs in no server or coordinator.
const TOOLS: [&str; 2] = ["crates/quell-sim/", "crates/quell-chaos/"];

/// Files with lines that are nothing but a value: how many, and what the page says of them.
const VALUES: [(&str, usize, &str); 6] = [
    (
        "crates/quell-cli/src/fleet/coordinator/limits.rs",
        1,
        "`the rules have mistakes; the limits stay as they are`; `the rules cannot be read; the limits stay as they \
         are` | error | mend them; each mistake has a line of its own",
    ),
    (
        "crates/quell-coordinator/src/leader/office.rs",
        2,
        "`the configuration store was restored from a backup: ..` | error",
    ),
    (
        "crates/quell-fleet/src/agent/task.rs",
        1,
        "`the coordinator gives this node no seat: ..` | warn",
    ),
    (
        "crates/quell-server/src/http/admin/action_line.rs",
        1,
        "`banned for …`, `ban lifted`, `use forgiven`",
    ),
    (
        "crates/quell-server/src/reload.rs",
        1,
        "`the rules have mistakes; the rules in force stay` | error | mend the file; each mistake has a line of its own",
    ),
    (
        "crates/quell-server/src/reload/into_force.rs",
        2,
        "each warning about the rules has a line of its own | warn",
    ),
];

/// A line of the log: its level, and its text with `..` for values.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    level: String,
    text: String,
}

/// Checks the page against the source.
///
/// # Errors
///
/// When the page, the record or a table is missing, or a source is not Rust.
pub(crate) fn check(repository: &Repository) -> Result<Vec<Finding>> {
    let file = |path: &str| {
        let mut files = repository.files.iter();
        let found = files.find(|file| file.path == path);
        found.with_context(|| format!("there is no {path}"))
    };
    let page = file(PAGE)?;
    let mut findings = fields(&page.text, &file(LINE)?.text)?;
    let is_source = |path: &str| {
        path.starts_with("crates/")
            && path.contains("/src/")
            && path.ends_with(".rs")
            && !TOOLS.iter().any(|tool| path.starts_with(tool))
    };
    let sources: Vec<&TextFile> = repository
        .files
        .iter()
        .filter(|file| is_source(&file.path))
        .collect();
    let documented = documented(&page.text)?;
    let mut values = Vec::new();
    for source in &sources {
        for (line, event) in events(source)? {
            let message = match event.text.as_str() {
                ".." => {
                    values.push(source.path.as_str());
                    continue;
                }
                _ if documented.iter().any(|one| is_of(one, &event)) => continue,
                text => format!("{PAGE} does not have `{text}` ({})", event.level),
            };
            findings.push(Finding::at_line(&source.path, line, message));
        }
    }
    findings.extend(explained(&page.text, &values));
    let texts: Vec<String> = sources.iter().map(|source| joined(&source.text)).collect();
    for event in &documented {
        let fixed = event
            .text
            .trim_start_matches("..")
            .split("..")
            .next()
            .unwrap_or_default();
        if !texts.iter().any(|text| text.contains(fixed)) {
            findings.push(Finding::in_file(
                PAGE,
                format!("no code logs `{}`", event.text),
            ));
        }
    }
    Ok(findings)
}

/// Checks that lines of values are those of the table, and explained; has the file of each.
fn explained(page: &str, values: &[&str]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let listed = VALUES.map(|(path, ..)| path);
    for path in listed.iter().chain(values).collect::<BTreeSet<_>>() {
        let found = values.iter().filter(|one| *one == path).count();
        let (_, count, said) =
            { VALUES.into_iter().find(|(one, ..)| one == path) }.unwrap_or_default();
        if found != count {
            let message = format!("{found} lines of values, and not {count} as `VALUES` says");
            findings.push(Finding::in_file(path, message));
        } else if !page.contains(said) {
            let message = format!("does not explain the lines of values of {path}: {said}");
            findings.push(Finding::in_file(PAGE, message));
        }
    }
    findings
}

/// A source whose strings are on one line each, as they are logged.
fn joined(source: &str) -> String {
    let mut parts = source.split("\\\n");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.trim_start())
}

/// Whether a text of the page stands for an event.
fn is_of(documented: &Event, event: &Event) -> bool {
    let is_text = documented.text == event.text
        || documented
            .text
            .strip_suffix("..")
            .is_some_and(|start| event.text.starts_with(start));
    documented.level == event.level && is_text
}

/// The lines of a table of the page, cell by cell, below a heading.
fn rows<'a>(page: &'a str, heading: &str) -> Result<Vec<Vec<&'a str>>> {
    let (_, section) = page
        .split_once(&format!("\n## {heading}\n"))
        .with_context(|| format!("{PAGE} has no section {heading}"))?;
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    Ok(rows
        .map(|row| row.split('|').map(str::trim).skip(1).collect())
        .collect())
}

/// Words in backticks.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// Every text of the tables with its level. A row with one level has it for all of its texts.
fn documented(page: &str) -> Result<Vec<Event>> {
    let mut events = Vec::new();
    for row in rows(page, "The log")? {
        let levels: Vec<&str> = row
            .get(1)
            .copied()
            .unwrap_or_default()
            .split(", ")
            .collect();
        for (at, text) in quoted(row[0]).enumerate() {
            let level = levels
                .get(at)
                .or(levels.first())
                .copied()
                .unwrap_or_default();
            events.push(Event {
                level: level.to_owned(),
                text: text.to_owned(),
            });
        }
    }
    Ok(events)
}

/// What the code of a file logs, tests aside.
fn events(file: &TextFile) -> Result<Vec<(usize, Event)>> {
    let code = file
        .text
        .split("\n#[cfg(test)]\nmod tests {")
        .next()
        .unwrap_or_default();
    let mut found = Vec::new();
    collect(&tokens::parse(&file.path, code)?, &mut found);
    Ok(found)
}

fn collect(tokens: &[TokenTree], found: &mut Vec<(usize, Event)>) {
    for (at, token) in tokens.iter().enumerate() {
        let Some((_, inside)) = tokens::inside(token) else {
            continue;
        };
        collect(&inside, found);
        let is_macro = at >= 2 && tokens::is_punct(&tokens[at - 1], '!');
        let levels = ["info", "warn", "error"].into_iter();
        let level = levels.filter(|level| is_macro && tokens::is_ident(&tokens[at - 2], level));
        for level in level {
            // The message is the string that is no field's value.
            let strings = inside
                .iter()
                .enumerate()
                .filter(|(at, _)| *at == 0 || tokens::is_punct(&inside[at - 1], ','));
            if let Some(text) = strings.filter_map(|(_, token)| string(token)).next() {
                let level = level.to_owned();
                found.push((tokens::line(token), Event { level, text }));
            }
        }
    }
}

/// A string literal with `..` for its values.
fn string(token: &TokenTree) -> Option<String> {
    let TokenTree::Literal(literal) = token else {
        return None;
    };
    let text = joined(&literal.to_string());
    let text = text.strip_prefix('"')?.strip_suffix('"')?;
    let mut parts = text.split('{');
    let first = parts.next().unwrap_or_default().to_owned();
    Some(parts.fold(first, |text, part| {
        text + ".." + part.split_once('}').map_or("", |(_, rest)| rest)
    }))
}

/// The fields of the decision log's record are those of its table.
fn fields(page: &str, record: &str) -> Result<Vec<Finding>> {
    let (_, record) = record
        .split_once("struct Line<")
        .context("no record of a line")?;
    let record = record.split("\n}").next().unwrap_or_default();
    let is_field = |line: &&str| !line.starts_with("//") && !line.starts_with('#');
    let names = record.lines().skip(1).map(str::trim).filter(is_field);
    let names = names.filter_map(|line| line.split_once(':'));
    let written: BTreeSet<&str> = names.map(|(name, _)| name).collect();
    let rows = rows(page, "The decision log")?;
    let described: BTreeSet<&str> = rows.iter().flat_map(|row| quoted(row[0])).collect();
    let unlike = written.symmetric_difference(&described);
    Ok(unlike
        .map(|name| {
            let message =
                format!("the decision log's field `{name}` is only here or only in {LINE}");
            Finding::in_file(PAGE, message)
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::{assert_none, assert_one};

    #[test]
    fn this_repository_passes() {
        assert_none(&check(&Repository::load().unwrap()).unwrap());
    }

    #[test]
    fn an_event_is_read_with_its_level() {
        let text = "fn f() { tokio::select! { _ = x => tracing::warn!(store = %y, of = \"z\", \"gone \\\n   for {}: {x}\", 1) } \
                    info!(\"back\"); debug!(\"no\") }\n#[cfg(test)]\nmod tests { fn g() { error!(\"no\") } }";
        let file = TextFile {
            path: "a.rs".to_owned(),
            text: text.replace("}\n#[cfg", "}\n\n#[cfg"),
        };
        let found = events(&file).unwrap();
        let found: Vec<_> = found
            .iter()
            .map(|(_, event)| (&*event.level, &*event.text))
            .collect();
        assert_eq!(found, [("warn", "gone for ..: .."), ("info", "back")]);
    }

    #[test]
    fn lines_of_values_are_listed_and_explained() {
        let all: Vec<&str> = VALUES
            .iter()
            .flat_map(|(path, count, _)| vec![*path; *count])
            .collect();
        let page = VALUES.map(|(.., said)| said).join("\n");
        assert_none(&explained(&page, &all));
        assert_one(&explained(&page, &all[1..]), "0 lines of values, and not 1");
        let more = [&all[..], &["crates/a.rs"]].concat();
        assert_one(&explained(&page, &more), "1 lines of values, and not 0");
        assert_one(
            &explained(&page.replace("use forgiven", ""), &all),
            "does not explain",
        );
    }

    #[test]
    fn a_row_has_a_level_for_each_text_or_one_for_all() {
        let page =
            "\n## The log\n\n| `a`; `b ..` | warn, info | |\n| `c`; `d` | error | |\n\n## More\n";
        let found = documented(page).unwrap();
        let found: Vec<_> = found
            .iter()
            .map(|event| (&*event.level, &*event.text))
            .collect();
        assert_eq!(
            found,
            [
                ("warn", "a"),
                ("info", "b .."),
                ("error", "c"),
                ("error", "d")
            ]
        );
        let event = |level: &str, text: &str| Event {
            level: level.to_owned(),
            text: text.to_owned(),
        };
        let b = event("info", "b ..");
        assert!(is_of(&b, &event("info", "b c")));
        assert!(!is_of(&b, &event("warn", "b c")) && !is_of(&b, &event("info", "c")));
    }

    #[test]
    fn a_field_that_the_page_lacks_is_found() {
        let page = "\n## The decision log\n\n| `a`, `b` | |\n";
        let record = |fields: &str| format!("struct Line<'a> {{\n    a: u8,\n{fields}}}\n");
        let found = |record: &str| fields(page, record).unwrap();
        assert_none(&found(&record("    /// Said.\n    b: u8,\n")));
        assert_one(&found(&record("    b: u8,\n    c: u8,\n")), "`c`");
        assert_one(&found(&record("")), "`b`");
    }
}
