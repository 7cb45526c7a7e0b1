//! Reference: `docs/cli.md`, written from the commands themselves, and a test that it is.
//!
//! `QUELL_UPDATE_DOCS=1 cargo test -p quell-cli` writes it anew.

use std::fmt::Write;
use std::path::Path;

use clap::{Arg, ArgAction, Command, CommandFactory};

use crate::command::Cli;

/// How the page begins.
const HEAD: &str = "# The `quell` command

This page is generated from the command itself (`QUELL_UPDATE_DOCS=1 cargo test -p quell-cli`); `quell help` and `quell COMMAND --help` say the same.

Flags override environment variables, which override the configuration file (`--config FILE`), which overrides the defaults. A configuration file is TOML; the tables below have its names. Paths in it are relative to the directory in which the server is started. `quell serve --print-config` prints the result of all four; its output is itself a configuration file.

Output is for people; `--json` is for programs.

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

/// What only a configuration file can say.
const TAIL: &str = "
### Only in a configuration file

`authorize.entries` makes entries of other headers, before or in place of the gateway's. `reading` is `plain`, `method` (in capitals), `path` (a URI without its query, in its [normal spelling](gateways.md#spellings-of-a-path)), `host` (in small letters, without port) or `address` (the last of a list that is not a [trusted proxy's](gateways.md#behind-a-cdn); the header `forwarded` is read as RFC 7239 has it); by default that of the entry that it replaces, and `plain` for any other.

```toml
[authorize]
gateway = \"original\"
entries = [{ entry = \"tenant\", headers = [\"x-tenant\"], reading = \"plain\" }]
```
";

fn page() -> String {
    let mut command = Cli::command();
    command.build();
    let mut page = HEAD.to_owned();
    for sub in visible(&command) {
        section(&mut page, sub, "quell", 2);
    }
    page
}

fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command
        .get_subcommands()
        .filter(|sub| sub.get_name() != "help")
}

fn section(page: &mut String, command: &Command, parent: &str, level: usize) {
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
    if let Some(examples) = command.get_after_help() {
        write!(page, "\n```text\n{examples}\n```\n").unwrap();
    }
    let arguments: Vec<&Arg> = command
        .get_arguments()
        .filter(|arg| !["help", "version"].contains(&arg.get_id().as_str()) && !arg.is_hide_set())
        .collect();
    if name == "quell serve" {
        settings(page, &arguments);
        page.push_str(TAIL);
    } else if !arguments.is_empty() {
        table(page, &arguments);
    }
    for sub in visible(command) {
        section(page, sub, &name, level + 1);
    }
}

fn table(page: &mut String, arguments: &[&Arg]) {
    page.push_str("\n| argument | variable | meaning | default |\n|---|---|---|---|\n");
    for arg in arguments {
        let (form, variable, (help, own)) = (form(arg), variable(arg), help_and_default(arg));
        let default = arg.get_default_values().first();
        let default = default.map_or(own, |value| format!("`{}`", value.to_string_lossy()));
        writeln!(page, "| `{form}` | {variable} | {help} | {default} |").unwrap();
    }
}

fn settings(page: &mut String, arguments: &[&Arg]) {
    let mut heading = "";
    for arg in arguments {
        let group = arg.get_help_heading().unwrap_or("Configuration");
        if group != heading {
            heading = group;
            write!(page, "\n### {heading}\n\n").unwrap();
            page.push_str(
                "| flag | variable | in `--config` | meaning | default |\n|---|---|---|---|---|\n",
            );
        }
        let in_file = match arg.get_id().as_str() {
            "config" | "print_config" => String::new(),
            key => format!("`{key}`"),
        };
        let (help, default) = help_and_default(arg);
        let (form, variable) = (form(arg), variable(arg));
        writeln!(
            page,
            "| `{form}` | {variable} | {in_file} | {help} | {default} |"
        )
        .unwrap();
    }
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

/// What an argument means, and its default if its help ends with one.
fn help_and_default(arg: &Arg) -> (String, String) {
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    match help.split_once(" [default: ") {
        Some((help, default)) => {
            let default = format!("`{}`", default.trim_end_matches(']'));
            (help.to_owned(), default)
        }
        None => (help, String::new()),
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
