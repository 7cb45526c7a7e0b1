//! Repository checks and chores: `cargo xtask`.
//!
//! `cargo xtask test` is the one command that runs all tests and installs what they need;
//! continuous integration runs nothing else.

mod chaos;
mod finding;
mod install;
mod mistakes;
mod packages;
mod programs;
mod repository;
mod screenshots;
mod soak;
mod steps;
mod terminal;
mod test_programs;
mod tidy;

use std::env;
use std::process::ExitCode;

use anyhow::{Result, bail};

/// Every command: its name, its arguments, and what it does.
const COMMANDS: [(&str, &str, &str); 7] = [
    (
        "test",
        "",
        "install what is missing, then every check and test",
    ),
    ("install", "", "only install what the tests need"),
    (
        "tidy",
        "",
        "only the repository checks, all findings at once",
    ),
    (
        "chaos",
        " [WORDS]",
        "attack real servers and stores; --seconds N or --rounds N, --seed S, \
         SCENARIO.., --list",
    ),
    (
        "soak",
        " [WORDS]",
        "deliberate mistakes, then all that runs on seeds, with new ones: chaos, simulated fleets, random traces; \
         --minutes N, --seed S; --mistakes only tries whether the simulation notices the patches \
         in crates/quell-sim/mistakes, which is done first otherwise",
    ),
    (
        "packages",
        "",
        "only pack, unpack and build the published crates",
    ),
    (
        "screenshots",
        "",
        "take the pictures of the console in docs/images again",
    ),
];

/// The help of one command, or of all of them.
fn help(of: Option<&str>) -> String {
    let mut text = String::from("cargo xtask COMMAND\n");
    for (name, words, about) in COMMANDS {
        if of.is_none_or(|of| of == name) {
            text += &format!("\n  {:<16} {about}", format!("{name}{words}"));
        }
    }
    text
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            terminal::complain(&format!("xtask: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    if let Some(of) = asks_for_help(&words) {
        terminal::line(&help(of));
        return Ok(());
    }
    match words.as_slice() {
        ["test"] => steps::test(),
        ["install"] => install::run(),
        ["tidy"] => tidy::run(),
        ["chaos", words @ ..] => chaos::run(words),
        ["soak", words @ ..] => soak::run(words),
        ["screenshots"] => screenshots::run(),
        ["packages"] => packages::run(&repository::root()?),
        other => bail!("cannot read {:?}\n\n{}", other.join(" "), help(None)),
    }
}

/// Command for which these arguments ask for help, if they do; `Some(None)` means all of them.
fn asks_for_help<'w>(words: &[&'w str]) -> Option<Option<&'w str>> {
    let is_known = |word: &&str| COMMANDS.iter().any(|(name, ..)| name == word);
    match words {
        [] | ["help" | "--help" | "-h"] => Some(None),
        ["help", command] | [command, .., "--help" | "-h"] if is_known(command) => {
            Some(Some(command))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_help() {
        for (name, _, about) in COMMANDS {
            for words in [&[name, "--help"][..], &[name, "-h"], &["help", name]] {
                assert_eq!(asks_for_help(words), Some(Some(name)), "{words:?}");
            }
            assert!(help(Some(name)).contains(about) && help(None).contains(about));
            assert_eq!(asks_for_help(&[name]), None);
        }
        assert_eq!(asks_for_help(&[]), Some(None));
        assert_eq!(asks_for_help(&["--help"]), Some(None));
        assert_eq!(asks_for_help(&["nonsense", "--help"]), None);
    }

    #[test]
    fn every_command_on_a_page_exists_with_its_flags() {
        let repository = repository::Repository::load().unwrap();
        let mut files = repository.files.iter();
        let scenarios = files.find(|file| file.path == "crates/quell-chaos/src/scenarios.rs");
        let scenarios = &scenarios.unwrap().text;
        let mut found = 0;
        for page in &repository.files {
            let commands = page.text.split("cargo xtask ").skip(1);
            for command in commands.filter(|_| page.path.ends_with(".md")) {
                let end = command.find(['`', '#', '\n']).unwrap_or(command.len());
                let words: Vec<&str> = command[..end].split(' ').collect();
                let name = words[0];
                let known = COMMANDS.iter().find(|(known, ..)| *known == name);
                let (_, takes, about) = known.unwrap_or_else(|| panic!("{}: {name}", page.path));
                for pair in words.windows(2) {
                    let is_known = match pair[1] {
                        flag if flag.starts_with("--") => about.contains(flag),
                        _ if pair[0].starts_with("--") => true,
                        word if name == "chaos" => {
                            scenarios.contains(&format!("name: \"{word}\","))
                        }
                        _ => !takes.is_empty(),
                    };
                    assert!(is_known || pair[1].is_empty(), "{}: {words:?}", page.path);
                }
                found += 1;
            }
        }
        assert!(found > 20, "{found}");
    }
}
