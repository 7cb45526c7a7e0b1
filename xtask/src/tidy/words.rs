//! One word for one thing: a public name may not use a synonym of a word of the
//! vocabulary, unless an exception says why.
//!
//! Names are read from syntax: every `pub` item, field and method, the variants
//! of `pub` enums and the items of `pub` traits. `pub(crate)` is not public.

use anyhow::{Context, Result};

use super::public_names::{PublicName, public_names};
use crate::finding::Finding;
use crate::repository::{Repository, TextFile};

/// Where a finding about the lists themselves is reported.
const LISTS: &str = "xtask/src/tidy/words.rs";

/// A word that is not used, and what is said in its place. Several words stand
/// for themselves in a row (`wait_time`, `WaitTime`).
const FORBIDDEN: [(&str, &str); 23] = [
    ("namespace", "domain"),
    ("tenant", "domain"),
    ("scope", "domain"),
    ("hit", "cost"),
    ("hits", "cost"),
    ("quantity", "cost"),
    ("tolerance", "burst"),
    ("identifier", "key"),
    ("limited", "deny"),
    ("ttl", "reset_after"),
    ("wait time", "retry_after"),
    ("consume", "acquire"),
    ("consumed", "charged"),
    ("jail", "ban"),
    ("jailed", "banned"),
    ("blacklist", "ban"),
    ("whitelist", "unlimited"),
    ("tier", "rung"),
    ("dry run", "shadow"),
    ("master", "primary"),
    ("slave", "replica"),
    ("bucket size", "burst"),
    ("cooldown", "ban"),
];

/// A public name that uses a forbidden word for a reason.
struct Exception {
    krate: &'static str,
    identifier: &'static str,
    word: &'static str,
    reason: &'static str,
}

/// Wire words and words of other trades, each with its reason. An exception
/// that nothing needs any more is a finding too.
const EXCEPTIONS: &[Exception] = &[Exception {
    krate: "quell-core",
    identifier: "scope",
    word: "scope",
    reason: "the bytes that all keys of one rule share, of which the domain is a part",
}];

/// Checks the public names of every crate in `crates/`.
///
/// # Errors
///
/// When a source file is not Rust.
pub(crate) fn check(repository: &Repository) -> Result<Vec<Finding>> {
    let mut names = Vec::new();
    for file in repository.rust_files().filter(|file| is_source(file)) {
        let found = public_names(file)
            .with_context(|| format!("{} is not Rust that syn can read", file.path))?;
        names.extend(found);
    }
    Ok(compare(&names, EXCEPTIONS))
}

fn is_source(file: &TextFile) -> bool {
    let in_src = file.path.starts_with("crates/") && file.path.contains("/src/");
    in_src && !file.is_test_code()
}

fn compare(names: &[PublicName], exceptions: &[Exception]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut used = vec![false; exceptions.len()];
    for name in names {
        for (word, instead) in forbidden_in(&name.identifier) {
            let excepted = exceptions.iter().position(|exception| {
                exception.krate == name.krate
                    && exception.identifier == name.identifier
                    && exception.word == word
            });
            if let Some(index) = excepted {
                used[index] = true;
                continue;
            }
            let message = format!(
                "`{}` says \"{word}\"; the word is {instead} (or add a reasoned exception in {LISTS})",
                name.identifier
            );
            findings.push(Finding::at_line(&name.path, name.line, message));
        }
    }
    for (exception, used) in exceptions.iter().zip(used) {
        let Exception {
            krate, identifier, ..
        } = exception;
        if exception.reason.split_whitespace().count() < 3 {
            let message = format!("the exception for {krate} {identifier} gives no reason");
            findings.push(Finding::in_file(LISTS, message));
        }
        if !used {
            let message = format!("the exception for {krate} {identifier} is no longer needed");
            findings.push(Finding::in_file(LISTS, message));
        }
    }
    findings
}

/// The forbidden words that a name is made of, each with the word to use.
fn forbidden_in(identifier: &str) -> Vec<(&'static str, &'static str)> {
    let words = words_of(identifier);
    let uses = |forbidden: &str| {
        let forbidden: Vec<&str> = forbidden.split(' ').collect();
        words
            .windows(forbidden.len())
            .any(|window| window.iter().zip(&forbidden).all(|(a, b)| a == b))
    };
    FORBIDDEN
        .into_iter()
        .filter(|(word, _)| uses(word))
        .collect()
}

/// The words of `a_snake_name`, `ACamelName` or `A_CONST`, in lower case.
fn words_of(identifier: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for part in identifier.split('_').filter(|part| !part.is_empty()) {
        let letters: Vec<char> = part.chars().collect();
        let mut word = String::new();
        for (index, letter) in letters.iter().enumerate() {
            let after_lower = index > 0 && !letters[index - 1].is_uppercase();
            let before_lower = letters
                .get(index + 1)
                .is_some_and(|next| next.is_lowercase());
            let starts = letter.is_uppercase() && index > 0 && (after_lower || before_lower);
            if starts {
                words.push(std::mem::take(&mut word));
            }
            word.extend(letter.to_lowercase());
        }
        words.push(word);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::{assert_none, assert_one};

    fn name(identifier: &str) -> PublicName {
        PublicName {
            krate: "quell-protocol".to_owned(),
            path: "crates/quell-protocol/src/resp.rs".to_owned(),
            line: 7,
            identifier: identifier.to_owned(),
        }
    }

    #[test]
    fn this_repository_passes() {
        assert_none(&check(&Repository::load().unwrap()).unwrap());
    }

    #[test]
    fn names_fall_into_words() {
        for (identifier, words) in [
            ("retry_after", vec!["retry", "after"]),
            ("TokenBucket", vec!["token", "bucket"]),
            ("MAX_KEYS", vec!["max", "keys"]),
            ("HTTPServer", vec!["http", "server"]),
            ("Resp3", vec!["resp3"]),
            ("_x", vec!["x"]),
        ] {
            assert_eq!(words_of(identifier), words, "{identifier}");
        }
    }

    #[test]
    fn every_forbidden_word_is_found_in_every_case() {
        for (word, instead) in FORBIDDEN {
            let snake = format!("the_{}_of", word.replace(' ', "_"));
            assert_one(&compare(&[name(&snake)], &[]), instead);
            let camel: String = word
                .split(' ')
                .map(|part| part[..1].to_uppercase() + &part[1..])
                .collect();
            assert_one(&compare(&[name(&format!("The{camel}"))], &[]), instead);
        }
    }

    #[test]
    fn only_whole_words_count() {
        for fine in [
            "token_bucket",
            "concurrency",
            "Unlimited",
            "architecture",
            "blocking",
        ] {
            assert_none(&compare(&[name(fine)], &[]));
        }
    }

    #[test]
    fn an_exception_holds_for_one_name_and_must_be_needed_and_reasoned() {
        let exception = |identifier, reason| Exception {
            krate: "quell-protocol",
            identifier,
            word: "ttl",
            reason,
        };
        let reasoned = [exception(
            "redis_ttl",
            "the name of the command on the wire",
        )];
        assert_none(&compare(&[name("redis_ttl")], &reasoned));
        let other = compare(&[name("redis_ttl"), name("ttl_of_all")], &reasoned);
        assert_one(&other, "ttl_of_all");
        assert_one(&compare(&[], &reasoned), "no longer needed");
        let bare = [exception("redis_ttl", "wire")];
        assert_one(&compare(&[name("redis_ttl")], &bare), "gives no reason");
    }
}
