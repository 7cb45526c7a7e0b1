//! Advice: what to write instead of a word that this command line does not have.

use std::ffi::OsString;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, Error, ErrorKind};
use quell_protocol::printable;

/// Commands of other tools: the command of ours before them, their words, and what to write.
const COMMANDS: [(&str, &str, &str); 16] = [
    ("", "run start up server daemon", "quell serve"),
    ("", "test", "quell rules test"),
    ("", "explain", "quell rules explain"),
    ("", "validate lint verify", "quell rules check"),
    ("", "push pull history rollback set", "quell rules"),
    ("", "ban", "quell bans set"),
    ("", "unban", "quell bans lift"),
    ("rules", "lint validate verify", "quell rules check"),
    ("rules", "run", "quell rules test"),
    ("rules", "show get list ls", "quell rules pull"),
    ("", "override", "quell overrides"),
    (
        "overrides",
        "add create new put update change",
        "quell overrides set",
    ),
    ("overrides", "show describe", "quell overrides get"),
    (
        "overrides",
        "remove rm del unset clear",
        "quell overrides delete",
    ),
    ("bans", "add create new ban", "quell bans set"),
    (
        "bans",
        "remove rm delete del unset unban clear",
        "quell bans lift",
    ),
];

/// Flags of other servers, and what to write.
const FLAGS: [(&str, &str); 6] = [
    (
        "--port --listen --bind --address --addr -p",
        "write `--http 127.0.0.1:8080`, and `--resp 127.0.0.1:6380` for Redis clients",
    ),
    (
        "--redis --redis-url --backend --url",
        "write `--store redis://HOST:PORT/0`",
    ),
    ("--file -f --rules-file", "write `--rules FILE`"),
    ("--verbose -v --debug", "write `--log debug`"),
    (
        "--dry-run",
        "write `--shadow`: rules are reported, and refuse no call",
    ),
    (
        "--daemon --background -d",
        "it stays in the foreground: have a supervisor start it",
    ),
];

/// The same error with what to write, if a word is another tool's.
pub(crate) fn advise(mut error: Error, arguments: &[OsString]) -> Error {
    let advice = match error.kind() {
        ErrorKind::InvalidSubcommand => {
            text(&error, ContextKind::InvalidSubcommand).and_then(|word| command(word, arguments))
        }
        ErrorKind::UnknownArgument => {
            text(&error, ContextKind::InvalidArg).and_then(|word| argument(word, arguments))
        }
        _ => None,
    };
    if let Some(advice) = advice {
        // A similar word of ours means something else.
        for other in [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand] {
            error.insert(other, ContextValue::None);
        }
        let advice = ContextValue::StyledStrs(vec![StyledStr::from(advice)]);
        error.insert(ContextKind::Suggested, advice);
    }
    error
}

fn text(error: &Error, kind: ContextKind) -> Option<&str> {
    match error.get(kind)? {
        ContextValue::String(text) => Some(text),
        _ => None,
    }
}

/// The first command on the command line, such as `serve` or `rules`.
fn first_command(arguments: &[OsString]) -> String {
    let first = arguments.get(1);
    first.map_or_else(String::new, |first| {
        printable(&first.to_string_lossy()).into_owned()
    })
}

fn has_word(words: &str, word: &str) -> bool {
    words.split(' ').any(|other| other == word)
}

fn command(word: &str, arguments: &[OsString]) -> Option<String> {
    let said = first_command(arguments);
    let before = if said == word { "" } else { said.as_str() };
    let mut commands = COMMANDS.iter();
    let (_, _, ours) =
        commands.find(|(above, words, _)| *above == before && has_word(words, word))?;
    Some(match *ours {
        "quell rules" => format!("write `quell rules {word}`"),
        ours => format!("write `{ours}`"),
    })
}

fn argument(word: &str, arguments: &[OsString]) -> Option<String> {
    let command = first_command(arguments);
    let number = word.strip_prefix('-').unwrap_or_default();
    if number.starts_with(|c: char| c.is_ascii_digit()) {
        return Some("nothing here is negative: write a value above 0".to_owned());
    }
    let is_word = !word.starts_with('-');
    let is_file = word.ends_with(".yaml") || word.ends_with(".yml");
    match command.as_str() {
        "serve" if matches!(word, "true" | "false" | "yes" | "no" | "on" | "off") => Some(format!(
            "the value of such a flag follows `=`: write `--FLAG={word}`"
        )),
        "serve" if is_word => Some(format!("rules are named by a flag: write `--rules {word}`")),
        "serve" if word.starts_with("--tls") || word.starts_with("--cert") => Some(
            "TLS needs a certificate and its key: write `--tls-cert FILE --tls-key FILE`"
                .to_owned(),
        ),
        "serve" => {
            let mut flags = FLAGS.iter();
            let (_, advice) = flags.find(|(others, _)| has_word(others, word))?;
            Some((*advice).to_owned())
        }
        "overrides" if matches!(word, "-d" | "--domain" | "-r" | "--rule") => Some(
            "the domain and the rule come first: write `quell overrides set DOMAIN RULE -e NAME=VALUE rate=200/s`"
                .to_owned(),
        ),
        "check" if is_word && is_file => Some(format!("write `quell rules check {word}`")),
        "check" | "bans" | "rules" if is_word && word.contains('=') => {
            Some(format!("an entry is named by a flag: write `-e {word}`"))
        }
        "check" | "bans" if is_word => {
            Some("an entry is one word: write `-e NAME=VALUE`".to_owned())
        }
        _ => None,
    }
}
