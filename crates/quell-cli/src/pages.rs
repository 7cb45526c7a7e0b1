//! Pages: the command line takes every `quell` command that a page or a help text has, in a block, in a
//! sentence or in a table.

use std::fs;
use std::path::Path;

use clap::error::ErrorKind;
use clap::{Command, CommandFactory};

use crate::command::Cli;

/// Spans that begin with `quell` and are no commands, and what they are.
const NO_COMMANDS: [(&str, &str); 4] = [
    ("quell COMMAND", "any command"),
    ("quell acquire", "a span of a trace"),
    ("quell peek", "a span of a trace"),
    ("quell end", "a span of a trace"),
];

/// All pages of the repository that people wrote, with their texts.
fn pages() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let made_by_tools = fs::read_to_string(root.join("xtask/src/made_by_tools.txt")).unwrap();
    let mut folders = vec![root];
    let mut pages = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_dir()
                && !path.is_symlink()
                && !made_by_tools.lines().any(|folder| folder == name)
            {
                folders.push(path);
            } else if name.ends_with(".md") {
                let text = fs::read_to_string(&path).unwrap();
                pages.push((path.display().to_string(), text));
            }
        }
    }
    pages
}

/// The blocks of a page for a shell, and its spans in backticks.
fn blocks_and_spans(page: &str) -> (Vec<String>, Vec<String>) {
    let (mut blocks, mut spans) = (Vec::new(), Vec::new());
    for (at, text) in page.split("\n```").enumerate() {
        if at % 2 == 0 {
            let lines = text.lines();
            spans.extend(lines.flat_map(|line| line.split('`').skip(1).step_by(2)));
        } else if let Some(block) = text.strip_prefix("sh\n") {
            blocks.push(format!("\n{block}").replace("\n$ ", "\n"));
        }
    }
    let spans = spans.into_iter().map(|span| span.replace("\\|", "|"));
    (blocks, spans.collect())
}

/// The words of each `quell` command in a line of a shell, without redirections and remarks.
fn commands(line: &str) -> Vec<Vec<String>> {
    let mut commands = vec![vec![String::new()]];
    let mut quote = None;
    for c in line.chars() {
        let command = commands.last_mut().unwrap();
        match quote {
            Some(open) if c == open => quote = None,
            None if c == '\'' || c == '"' => quote = Some(c),
            None if c == '|' || c == '&' => commands.push(vec![String::new()]),
            None if c == ' ' => command.push(String::new()),
            _ => command.last_mut().unwrap().push(c),
        }
    }
    let quell = commands.into_iter().filter_map(|mut words| {
        // A remark stands behind three spaces or more, or behind `#`.
        let remark = words
            .windows(3)
            .skip(3)
            .position(|w| w.iter().all(String::is_empty));
        words.truncate(remark.map_or(words.len(), |at| at + 3));
        words.retain(|word| !word.is_empty() && word != "...");
        let end = words
            .iter()
            .position(|word| [">", "#", "<"].contains(&word.as_str()));
        words.truncate(end.unwrap_or(words.len()));
        let start = words
            .iter()
            .position(|word| !word.contains('=') && word != "sudo")?;
        (words[start] == "quell").then(|| words.split_off(start))
    });
    quell.collect()
}

/// Error of the command line for these words, if it does not take them.
fn refusal(words: &[String]) -> Option<clap::Error> {
    Cli::command().try_get_matches_from(words).err()
}

/// The same for a command in a sentence or a table, which may lack what the command needs. A word in capitals
/// stands for a value; 1 is one for numbers and texts.
fn refusal_in_prose(words: &[String]) -> Option<clap::Error> {
    let value = |word: &String| match word.bytes().all(|byte| byte.is_ascii_uppercase()) {
        true => "1".to_owned(),
        false => word.clone(),
    };
    let words: Vec<String> = words.iter().map(value).collect();
    let is_cut_short = |error: &clap::Error| {
        matches!(
            error.kind(),
            ErrorKind::DisplayHelp
                | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
                | ErrorKind::MissingRequiredArgument
        )
    };
    refusal(&words).filter(|error| !is_cut_short(error))
}

/// The commands of a text, several lines of a shell.
fn commands_of(text: &str) -> Vec<Vec<String>> {
    let lines = text.split("\\\n").map(str::trim_start);
    let joined = lines.collect::<String>();
    joined.lines().flat_map(commands).collect()
}

#[test]
fn every_example_of_a_help_text_is_a_command() {
    let mut waiting: Vec<Command> = vec![Cli::command()];
    let mut count = 0;
    while let Some(command) = waiting.pop() {
        let help = command.get_after_help().map(ToString::to_string);
        for words in commands_of(&help.unwrap_or_default()) {
            count += 1;
            let refused = refusal(&words).map(|error| error.to_string());
            assert_eq!(refused, None, "{}: {words:?}", command.get_name());
        }
        waiting.extend(command.get_subcommands().cloned());
    }
    assert!(count > 60, "{count}");
}

#[test]
fn every_command_of_a_page_is_one_wherever_it_stands() {
    let (mut in_blocks, mut in_prose, mut mistakes) = (0, 0, Vec::new());
    let mut unmet = NO_COMMANDS.to_vec();
    for (page, text) in pages() {
        let (blocks, spans) = blocks_and_spans(&text);
        for mut words in blocks.iter().flat_map(|block| commands_of(block)) {
            // Pages export QUELL_RULES_STORE in place of `--store`.
            let of_stores = ["push", "pull", "set", "history", "rollback"];
            if words[1] == "rules"
                && of_stores.contains(&&*words[2])
                && !words.iter().any(|word| word == "--store")
            {
                words.extend(["--store", "redis://store"].map(str::to_owned));
            }
            in_blocks += 1;
            mistakes.extend(refusal(&words).map(|error| format!("{page}: {words:?}\n{error}")));
        }
        for span in spans {
            let is_none = |(begins, _): &(&str, &str)| span.starts_with(begins);
            if let Some(none) = NO_COMMANDS.into_iter().find(is_none) {
                unmet.retain(|unmet| *unmet != none);
                continue;
            }
            for words in commands_of(&span) {
                in_prose += 1;
                let refused = refusal_in_prose(&words);
                mistakes.extend(refused.map(|error| format!("{page}: {words:?}\n{error}")));
            }
        }
    }
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
    assert!(unmet.is_empty(), "no page has {unmet:?}");
    assert!(in_blocks > 60 && in_prose > 180, "{in_blocks} {in_prose}");
}

#[test]
fn a_command_is_found_among_others() {
    let found = commands("A=1 sudo quell man /x && man quell   # quell what");
    assert_eq!(found, [["quell", "man", "/x"]]);
    let found = commands("quell rules set x 'ban={after: 3}' | quell top > file");
    assert_eq!(found.len(), 2);
    assert_eq!(found[0][4], "ban={after: 3}");
}

#[test]
fn a_command_in_a_sentence_may_be_cut_short_but_not_be_wrong() {
    for (text, is_taken) in [
        ("quell rules check", true),
        ("quell rules chekc FILE", false),
        ("quell bans set ... --reason TEXT", true),
        ("quell bans set ... --reason", false),
        ("quell bans set ... --for soon", false),
        ("quell serve --rule examples", false),
        ("quell token new ada --role guest", false),
        ("quell fleet weight node-1 2 3", false),
        ("quell fleet weight NAME N", true),
        ("quell fleet weight NAME many", false),
    ] {
        let words = &commands_of(text)[0];
        assert_eq!(refusal_in_prose(words).is_none(), is_taken, "{text}");
    }
}
