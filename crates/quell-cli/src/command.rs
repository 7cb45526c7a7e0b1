//! Command: everything that can be said on the command line.

use anyhow::Result;
use clap::{ArgMatches, CommandFactory, Parser, Subcommand};

use crate::bans::Bans;
use crate::candidate::Candidate;
use crate::check::Check;
use crate::client::ServerUrl;
use crate::completions::Completions;
use crate::exit::Exit;
use crate::fleet::Fleet;
use crate::health::Health;
use crate::holds::Holds;
use crate::man::Manual;
use crate::rules::Rules;
use crate::serve::Serve;
use crate::token::Token;
use crate::top::Top;

/// Exact rate limits: a server, and rules with tests
#[derive(Debug, Parser)]
#[command(
    name = "quell",
    version,
    propagate_version = true,
    max_term_width = 100,
    after_help = "Examples:
  quell serve --rules examples/shop.yaml       answer on HTTP (8080) and RESP (6380)
  quell check --domain shop -e method=POST -e path=/login -e remote_address=10.0.0.1
  quell rules test examples/shop.test.yaml     test rules on a virtual clock

Exit codes: 0 fine or allowed, 1 refused or failed, 2 usage, 3 could not ask."
)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What there is to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Serve(Box<Serve>),
    Check(Check),
    Rules(Rules),
    Bans(Bans),
    Holds(Holds),
    /// Run rules in shadow beside those in force, and see what they would refuse
    ///
    /// They refuse nobody, see the calls of this server alone, count in a memory of their own, and end with the
    /// process. At most one candidate runs; it takes the place of the one before.
    #[command(after_help = "Examples:
  quell candidate start new.yaml --note 'before the sale'
  quell candidate show
  quell candidate stop")]
    Candidate(Candidate<ServerUrl>),
    Top(Top),
    Fleet(Fleet),
    Health(Health),
    Token(Token),
    Completions(Completions),
    Man(Manual),
}

impl Command {
    /// Runs the command; `matches` are those of the subcommand.
    ///
    /// # Errors
    /// [`crate::exit::Usage`] if an argument is invalid, else why the command failed.
    pub(crate) fn run(self, matches: &ArgMatches) -> Result<Exit> {
        match self {
            Self::Serve(serve) => serve.run(matches),
            Self::Check(check) => check.run(),
            Self::Rules(rules) => rules.run(),
            Self::Bans(bans) => bans.run(),
            Self::Holds(holds) => holds.run(),
            Self::Candidate(candidate) => candidate.run(),
            Self::Top(top) => top.run(),
            Self::Fleet(fleet) => fleet.run(),
            Self::Health(health) => health.run(),
            Self::Token(token) => token.run(),
            Self::Completions(completions) => completions.run(Cli::command()),
            Self::Man(manual) => manual.run(Cli::command()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_fit_together() {
        Cli::command().debug_assert();
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

    /// Panics if a command in the text is none. Pages export QUELL_RULES_STORE in place of `--store`.
    fn parse_all(page: &str, text: &str, exported: &[&str]) -> usize {
        let lines = text.split("\\\n").map(str::trim_start);
        let joined = lines.collect::<String>();
        let commands: Vec<_> = joined.lines().flat_map(commands).collect();
        let of_stores = ["push", "pull", "set", "history", "rollback"];
        for words in &commands {
            let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
            if let [_, "rules", verb, ..] = words[..]
                && of_stores.contains(&verb)
                && !words.contains(&"--store")
            {
                words.extend(exported);
            }
            let parsed = Cli::command().try_get_matches_from(&words);
            assert!(parsed.is_ok(), "{page}: {words:?}\n{}", parsed.unwrap_err());
        }
        commands.len()
    }

    #[test]
    fn every_example_is_a_command() {
        let mut waiting = vec![Cli::command()];
        let mut parsed = 0;
        while let Some(command) = waiting.pop() {
            let help = command.get_after_help().map(ToString::to_string);
            parsed += parse_all(command.get_name(), &help.unwrap_or_default(), &[]);
            waiting.extend(command.get_subcommands().cloned());
        }
        assert!(parsed > 60, "{parsed}");
    }

    #[test]
    fn every_command_on_a_page_is_one_whether_or_not_it_is_run_there() {
        let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");
        let mut parsed = 0;
        for entry in std::fs::read_dir(docs).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "md") {
                continue;
            }
            let page = std::fs::read_to_string(&path).unwrap();
            for block in page.split("\n```").skip(1).step_by(2) {
                if let Some(script) = block.strip_prefix("sh\n") {
                    let script = script.replace("\n$ ", "\n");
                    let script = script.strip_prefix("$ ").unwrap_or(&script);
                    let exported = ["--store", "redis://store"];
                    parsed += parse_all(&path.to_string_lossy(), script, &exported);
                }
            }
        }
        assert!(parsed > 50, "{parsed}");
    }

    #[test]
    fn a_command_is_found_among_others() {
        let found = commands("A=1 sudo quell man /x && man quell   # quell what");
        assert_eq!(found, [["quell", "man", "/x"]]);
        let found = commands("quell rules set x 'ban={after: 3}' | quell top > file");
        assert_eq!(found.len(), 2);
        assert_eq!(found[0][4], "ban={after: 3}");
    }
}
