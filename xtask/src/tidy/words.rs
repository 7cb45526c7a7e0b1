//! One word for one thing: a public name may not use a synonym of a word of our vocabulary. The
//! field's technical words (cache, slot, counter, peer, policy, backend, throttle, batch, prefetch,
//! spill, TTL) are free.
//!
//! Names are read from syntax: every `pub` item, field and method, the variants
//! of `pub` enums and the items of `pub` traits. `pub(crate)` is not public.

use anyhow::{Context, Result};

use super::public_names::{PublicName, public_names};
use crate::finding::Finding;
use crate::repository::{Repository, TextFile};

/// Synonyms of the words that name our own things, each with our word. A synonym of two words
/// matches if they follow each other (`dry_run`, `DryRun`).
const SYNONYMS: [(&str, &str); 13] = [
    ("namespace", "domain"),
    ("tenant", "domain"),
    ("hits", "cost"),
    ("quantity", "cost"),
    ("threshold", "limit"),
    ("tolerance", "burst"),
    ("identifier", "key"),
    ("limited", "deny"),
    ("wait time", "retry_after"),
    ("consume", "acquire"),
    ("jail", "ban"),
    ("tier", "rung"),
    ("dry run", "shadow"),
];

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
    Ok(compare(&names))
}

fn is_source(file: &TextFile) -> bool {
    let in_src = file.path.starts_with("crates/") && file.path.contains("/src/");
    in_src && !file.is_test_code()
}

fn compare(names: &[PublicName]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for name in names {
        for (synonym, ours) in synonyms_in(&name.identifier) {
            let message = format!(
                "`{}` says \"{synonym}\"; our word is {ours}",
                name.identifier
            );
            findings.push(Finding::at_line(&name.path, name.line, message));
        }
    }
    findings
}

/// The synonyms that a name contains, each with our word.
fn synonyms_in(identifier: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let name = format!(" {} ", words_of(identifier).join(" "));
    SYNONYMS
        .into_iter()
        .filter(move |(synonym, _)| name.contains(&format!(" {synonym} ")))
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
    fn every_synonym_is_found_in_every_case() {
        for (synonym, ours) in SYNONYMS {
            let snake = format!("the_{}_of", synonym.replace(' ', "_"));
            assert_one(&compare(&[name(&snake)]), ours);
            let camel: String = synonym
                .split(' ')
                .map(|part| part[..1].to_uppercase() + &part[1..])
                .collect();
            assert_one(&compare(&[name(&format!("The{camel}"))]), ours);
        }
    }

    #[test]
    fn only_whole_words_count() {
        for fine in ["Unlimited", "frontier", "consumer", "dry", "dry_and_run"] {
            assert_none(&compare(&[name(fine)]));
        }
    }

    #[test]
    fn technical_words_are_free() {
        for fine in [
            "cache_hit",
            "slot",
            "Counter",
            "peer",
            "policy",
            "Backend",
            "throttle",
            "batch",
            "prefetch",
            "spill",
            "ttl",
        ] {
            assert_none(&compare(&[name(fine)]));
        }
    }
}
