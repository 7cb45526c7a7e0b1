//! Reference: `docs/cli.md`, written from the commands themselves, and a test that it is.
//!
//! `QUELL_UPDATE_DOCS=1 cargo test -p quell-cli` writes it anew.

use std::fmt::Write;
use std::path::Path;

use clap::{Arg, ArgAction, Command, CommandFactory};

use crate::command::Cli;

/// Head of the page.
const HEAD: &str = "# The `quell` command

This page is generated from the command itself (`QUELL_UPDATE_DOCS=1 cargo test -p quell-cli`); `quell help` and `quell COMMAND --help` say the same.

Flags override environment variables, which override the configuration file (`--config FILE`), which overrides the defaults. Of `--max-keys` of `quell serve` the variable is `QUELL_MAX_KEYS` and the name in the file, which is TOML, is `max_keys`; likewise for every setting, but that of `--authorize-hops` is `hops` in the table `[authorize]`. Paths in the file are relative to the directory in which the server is started. `quell serve --print-config` prints the result of all four; its output is itself a configuration file.

| exit code | meaning |
|---|---|
| 0 | fine, or allowed |
| 1 | refused, or failed |
| 2 | invalid flag, variable or configuration; the server does not know what was asked about |
| 3 | could not ask: no server or store there, none that answers, or it does not answer this caller |

So a script can tell a refusal from an outage: `quell check` ends with 1 only if a limit refuses, or if its rule declares `on_failure: deny` and the store is gone, which the answer calls `degraded`.

`quell serve` stops on SIGINT and SIGTERM. It [drains](http.md#when-a-server-stops), and ends when everything in flight is answered (exit code 0) or `--shutdown-grace` is over.

* A second signal, at least one second after the first, ends the drain. A third one ends the wait for requests in flight (exit code 1). A signal less than a second after another counts as the same.
* A signal during the start ends the server.
* However it is stopped, a server with `--data-dir` writes its last snapshot.
* On SIGHUP it reads its rules again. It also watches rules files, and asks stores of rules every second.
";

/// Tail of the page: settings that only a configuration file can have.
const TAIL: &str = "
### Only in a configuration file

`authorize.entries` makes entries of other headers, before or in place of the gateway's. `reading` is `plain`, `method` (in capitals), `path` (a URI without its query, in its [normal spelling](gateways.md#spellings-of-a-path)), `host` (in small letters, without port) or `address` (the last of a list that is not a [trusted proxy's](gateways.md#behind-a-cdn); the header `forwarded` is read as RFC 7239 has it); by default that of the entry that it replaces, and `plain` for any other.

```toml
[authorize]
gateway = \"original\"
entries = [{ entry = \"tenant\", headers = [\"x-tenant\"], reading = \"plain\" }]
```
";

/// Number of commands from which on a common option stands once on the page.
const SHARED: usize = 3;

fn page() -> String {
    let mut command = Cli::command();
    command.build();
    let mut page = HEAD.to_owned();
    let shared = shared(&command);
    page.push_str("\n## Shared options\n\nWhere a command names one of these, it means:\n\n");
    table(&mut page, &shared);
    for sub in visible(&command) {
        section(&mut page, sub, "quell", 2, &shared);
    }
    page
}

/// Options that several commands have with the same words, in the order of the commands.
fn shared(command: &Command) -> Vec<&Arg> {
    let mut all = Vec::new();
    collect(command, &mut all);
    let mut shared: Vec<&Arg> = Vec::new();
    for arg in &all {
        let count = all.iter().filter(|other| is_same(arg, other)).count();
        if count >= SHARED && !is_in(arg, &shared) {
            shared.push(arg);
        }
    }
    shared
}

/// All options of a command and of those below it, but for those of `quell serve`, which has tables of its own.
fn collect<'c>(command: &'c Command, all: &mut Vec<&'c Arg>) {
    for sub in visible(command).filter(|sub| sub.get_name() != "serve") {
        all.extend(shown(sub).filter(|arg| arg.get_long().is_some()));
        collect(sub, all);
    }
}

/// Returns true if two options are one to a reader.
fn is_same(one: &Arg, other: &Arg) -> bool {
    form(one) == form(other) && help_and_default(one) == help_and_default(other)
}

fn is_in(arg: &Arg, list: &[&Arg]) -> bool {
    list.iter().any(|other| is_same(arg, other))
}

fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command
        .get_subcommands()
        .filter(|sub| sub.get_name() != "help")
}

/// The arguments that the help of a command shows.
fn shown(command: &Command) -> impl Iterator<Item = &Arg> {
    command
        .get_arguments()
        .filter(|arg| !["help", "version"].contains(&arg.get_id().as_str()) && !arg.is_hide_set())
}

fn section(page: &mut String, command: &Command, parent: &str, level: usize, shared: &[&Arg]) {
    let name = format!("{parent} {}", command.get_name());
    let about = command
        .get_about()
        .map(ToString::to_string)
        .unwrap_or_default();
    write!(page, "\n{} `{name}`\n\n{about}.\n", "#".repeat(level)).unwrap();
    let long = command.get_long_about().map(ToString::to_string);
    let more = long
        .as_deref()
        .and_then(|long| long.strip_prefix(about.as_str()));
    if let Some(more) = more.map(str::trim).filter(|more| !more.is_empty()) {
        write!(page, "\n{more}\n").unwrap();
    }
    // Those of a group of commands are of its commands.
    if visible(command).next().is_none()
        && let Some(examples) = command.get_after_help().map(ToString::to_string)
    {
        let examples = first_examples(&examples);
        write!(page, "\n```text\n{examples}```\n").unwrap();
    }
    if name == "quell serve" {
        settings(page, &shown(command).collect::<Vec<_>>());
        page.push_str(TAIL);
    } else {
        let (once, own): (Vec<&Arg>, Vec<&Arg>) =
            shown(command).partition(|arg| is_in(arg, shared));
        if !own.is_empty() {
            page.push('\n');
            table(page, &own);
        }
        if !once.is_empty() {
            let names = once.iter().filter_map(|arg| arg.get_long());
            let names: Vec<String> = names.map(|name| format!("`--{name}`")).collect();
            write!(page, "\n[Shared](#shared-options): {}\n", names.join(", ")).unwrap();
        }
    }
    for sub in visible(command) {
        section(page, sub, &name, level + 1, shared);
    }
}

/// Number of examples of a command on the page; its help has all.
const EXAMPLES: usize = 2;

/// The first examples, without their heading. Further lines of one are indented.
fn first_examples(help: &str) -> String {
    let lines = help.lines().skip_while(|line| !line.starts_with("  "));
    let mut count = 0;
    let first = lines.take_while(|line| {
        count += usize::from(!line.starts_with("    "));
        count <= EXAMPLES
    });
    first
        .map(|line| format!("{}\n", line.trim_start_matches("  ")))
        .collect()
}

/// A table of these, without the columns that would be empty.
fn table(page: &mut String, arguments: &[&Arg]) {
    let rows = arguments.iter().map(|arg| {
        let (help, own) = help_and_default(arg);
        let default = arg.get_default_values().first();
        let default = default.map(|value| value.to_string_lossy().into_owned());
        [
            format!("`{}`", form(arg)),
            variable(arg),
            help,
            shown_default(&default.unwrap_or(own)),
        ]
    });
    write_table(
        page,
        ["argument", "variable", "meaning", "default"],
        &rows.collect::<Vec<_>>(),
    );
}

fn write_table<const N: usize>(page: &mut String, heads: [&str; N], rows: &[[String; N]]) {
    let is_used = |column: &usize| rows.iter().any(|row| !row[*column].is_empty());
    let columns: Vec<usize> = (0..N).filter(is_used).collect();
    let line = |cells: Vec<&str>| format!("| {} |\n", cells.join(" | "));
    page.push_str(&line(columns.iter().map(|at| heads[*at]).collect()));
    writeln!(page, "|{}", "---|".repeat(columns.len())).unwrap();
    for row in rows {
        page.push_str(&line(columns.iter().map(|at| &*row[*at]).collect()));
    }
}

fn settings(page: &mut String, arguments: &[&Arg]) {
    let headings = arguments.iter().map(|arg| heading(arg));
    let mut headings: Vec<&str> = headings.collect();
    headings.dedup();
    for of in headings {
        write!(page, "\n### {of}\n\n").unwrap();
        let rows = arguments
            .iter()
            .filter(|arg| heading(arg) == of)
            .map(|arg| {
                check_names(arg);
                let (help, default) = help_and_default(arg);
                [format!("`{}`", form(arg)), help, shown_default(&default)]
            });
        write_table(
            page,
            ["flag", "meaning", "default"],
            &rows.collect::<Vec<_>>(),
        );
    }
}

fn heading(arg: &Arg) -> &str {
    arg.get_help_heading().unwrap_or("Configuration")
}

/// The head of the page says how a setting's names follow from its flag.
fn check_names(arg: &Arg) {
    let flag = arg.get_long().unwrap();
    let name = flag.replace('-', "_");
    if let Some(variable) = arg.get_env() {
        assert_eq!(
            variable.to_str(),
            Some(&*format!("QUELL_{}", name.to_uppercase()))
        );
    }
    let of_gateways = name.replacen("authorize_", "authorize.", 1);
    assert_eq!(arg.get_id().as_str(), of_gateways, "--{flag}");
}

fn form(arg: &Arg) -> String {
    let value = arg.get_value_names().and_then(<[_]>::first);
    let value = value
        .filter(|_| arg.get_action().takes_values())
        .map(ToString::to_string);
    let Some(long) = arg.get_long() else {
        let many = arg
            .get_num_args()
            .is_some_and(|number| number.max_values() > 1);
        return format!(
            "{}{}",
            value.unwrap_or_default(),
            if many { "..." } else { "" }
        );
    };
    let short = arg
        .get_short()
        .map(|short| format!("-{short}, "))
        .unwrap_or_default();
    let value = value.map(|value| match arg.is_require_equals_set() {
        true => format!("[={value}]"),
        false => format!(" {value}"),
    });
    let again = if matches!(arg.get_action(), ArgAction::Append) {
        "..."
    } else {
        ""
    };
    format!("{short}--{long}{}{again}", value.unwrap_or_default())
}

fn variable(arg: &Arg) -> String {
    let name = arg
        .get_env()
        .map(|name| format!("`{}`", name.to_string_lossy()));
    name.unwrap_or_default()
}

/// The help of an argument, and its default if the help ends with one.
fn help_and_default(arg: &Arg) -> (String, String) {
    // In other words for each command.
    if arg.get_long() == Some("json") {
        return (
            "Print the outcome as JSON, for programs".to_owned(),
            String::new(),
        );
    }
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    match help.split_once(" [default: ") {
        Some((help, default)) => (help.to_owned(), default.trim_end_matches(']').to_owned()),
        None => (help, String::new()),
    }
}

/// Default of an option; empty for one that is off, or a text that is empty, unless it is said.
fn shown_default(default: &str) -> String {
    match default {
        "" | "false" => String::new(),
        default => format!("`{default}`"),
    }
}

#[test]
fn the_page_is_what_the_command_says() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli.md");
    let page = page();
    if std::env::var_os("QUELL_UPDATE_DOCS").is_some() {
        std::fs::write(&file, &page).unwrap();
    }
    let kept = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        kept == page,
        "docs/cli.md is out of date: run `QUELL_UPDATE_DOCS=1 cargo test -p quell-cli`"
    );
}
